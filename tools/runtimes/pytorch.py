"""PyTorch itself: eager, and compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.runtimes.variant import Call

if TYPE_CHECKING:
    import torch


def eager(name: str, folder: Path, threads: int) -> Call:
    """Call the module."""
    return _call(name, folder, threads, lambda model: model)


def compiled(name: str, folder: Path, threads: int) -> Call:
    """Call the module compiled by Inductor to C++, its weights frozen as constants."""
    import torch

    return _call(
        name, folder, threads, lambda model: torch.compile(model, options={"freezing": True})
    )


def _call(name: str, folder: Path, threads: int, wrap: Callable[[torch.nn.Module], Any]) -> Call:
    import torch

    from tools.runtimes import networks

    torch.set_num_threads(threads)
    model = wrap(networks.load(name, folder).model)
    # A decorator or a with block in `run` would be timed; this process does nothing else.
    torch.set_grad_enabled(False)
    return Call(model, prepare=torch.from_numpy, result=lambda y: y.numpy())
