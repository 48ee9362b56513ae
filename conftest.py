"""How pytest runs the notebooks: nbval in strict mode where the stored outputs were made, lax
elsewhere, three repairs of nbval 0.11 without which outputs differ or a run hangs, and the
attempts at the exercises behind each lesson.

tests/test_nbval.py shows that each repair is still needed and does what it says.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from queue import Empty
from typing import Any

import nbval.kernel
import nbval.plugin
import pytest

from tests.exercises import attempts
from tools.english import is_copy
from tools.execute_notebooks import kernel_env

# Before torch is imported; see kernel_env.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PATCHED_NBVAL = "0.11.0"
LOOK_EVERY = 1.0  # seconds


def released(owner: Any, name: str) -> Any:
    """The function as nbval has it: pytest may import this file twice, under two names."""
    store: dict[str, Any] = nbval.__dict__.setdefault("m08_released", {})
    return store.setdefault(name, getattr(owner, name))


released_start_new_kernel = released(nbval.kernel, "start_new_kernel")
released_execute_cell_input = released(nbval.kernel.RunningKernel, "execute_cell_input")
released_get_message = released(nbval.kernel.RunningKernel, "get_message")
released_collect = released(nbval.plugin.IPyNbFile, "collect")


def start_new_kernel(*args: Any, **kwargs: Any) -> Any:
    """Start the kernel in the environment in which the stored outputs were made.

    nbval hands on PYTEST_CURRENT_TEST, and with that set ipykernel does not capture what C++ and
    child processes write to file descriptors 1 and 2.
    """
    kwargs.setdefault("env", kernel_env())
    return released_start_new_kernel(*args, **kwargs)


def execute_cell_input(self: Any, cell_input: str, allow_stdin: bool | None = None) -> Any:
    """Execute with history, as Jupyter does.

    nbval passes store_history=False, and then a `;` at the end does not suppress an output.
    """
    return self.kc.execute(
        cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False
    )


def get_message(self: Any, stream: str, timeout: float | None = None) -> Any:
    """Wait for a message in slices, and look in between whether the kernel is alive.

    nbval waits for a kernel that died until the time limit of the cell.
    """
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            return released_get_message(self, stream, timeout=min(left, LOOK_EVERY))
        except Empty:
            if not self.is_alive():
                raise RuntimeError("the kernel died while it ran this cell") from None
            if left == 0.0:
                raise


def collect(self: Any) -> Any:
    """The cells of a notebook, and behind those of a lesson the attempts at its exercises."""
    yield from released_collect(self)
    if self.path.parent != Path(__file__).parent / "notebooks":
        return
    for number, cell in enumerate(attempts(self.nb), start=len(self.nb.cells)):
        options = defaultdict(bool, check=False)
        yield nbval.plugin.IPyNbCell.from_parent(
            self, name=cell.id, cell_num=number, cell=cell, options=options
        )


def patch_nbval() -> None:
    """Put the three repairs in place, in the one version of nbval for which they were written."""
    if version("nbval") == PATCHED_NBVAL:
        nbval.kernel.start_new_kernel = start_new_kernel
        nbval.kernel.RunningKernel.execute_cell_input = execute_cell_input
        nbval.kernel.RunningKernel.get_message = get_message
    nbval.plugin.IPyNbFile.collect = collect


def outputs_are_comparable() -> bool:
    """Whether this is the system on which the stored outputs were made.

    Elsewhere XNNPACK and PyTorch run other kernels, whose last bits differ.
    """
    return sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64")


def pytest_configure(config: pytest.Config) -> None:
    """Runs before collection, which is when nbval looks at its options."""
    patch_nbval()
    if config.getoption("nbval", False) and not outputs_are_comparable():
        config.option.nbval = False
        config.option.nbval_lax = True
    sanitizers = config.getoption("nbval_sanitize_with", None)
    if sanitizers and not Path(sanitizers).exists():
        # nbval opens the path as it stands, which fails in every folder but the root.
        config.option.nbval_sanitize_with = str(config.rootpath / sanitizers)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the English edition: its code and outputs are those of the Chinese one.

    tests/test_english.py proves it; to run them once is enough.
    """
    return True if is_copy(collection_path) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in the header which of the two the reader gets."""
    if config.getoption("nbval", False):
        return "notebooks: executed, every output compared"
    if config.getoption("nbval_lax", False):
        return "notebooks: executed, asserts only (outputs are compared on Linux x86-64)"
    return None
