"""What a variant is: one way to make and run a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from tools.runtimes.networks import Network


@dataclass(frozen=True)
class Call:
    """A network that is ready to run in this process.

    Attributes:
        run: one inference; what it takes and gives is the runtime's own. This alone is timed.
        prepare: makes from a float32 array ``(1, 3, H, W)`` what `run` takes. Not timed: where a
            program takes int8 or channels_last, whatever feeds it delivers that.
        result: makes from what `run` gave a float32 array ``(1, classes)``.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[np.ndarray], Any]
    result: Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    Attributes:
        name: how the table calls it.
        needs: distributions that must be installed to make and run it.
        load: ``(network name, folder, threads) -> Call``; runs in a process of its own.
        build: ``(network, folder, file) -> None``; writes the file that `load` reads.
        file: the name of that file; None where `load` needs only the weights.
        compiler: whether it needs a C++ compiler.
    """

    name: str
    needs: tuple[str, ...]
    load: Callable[[str, Path, int], Call]
    build: Callable[[Network, Path, str], None] | None = None
    file: str | None = None
    compiler: bool = False
