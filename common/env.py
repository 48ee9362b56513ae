"""What the numbers depend on, and what C++ and Python write to stderr."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import platform
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet

STDERR_LOCK = threading.RLock()
"""Held while ``sys.stderr`` is exchanged, here and by the runner: threads would otherwise restore
each other's."""

__all__ = ["CapturedStderr", "capture_stderr", "check_versions", "env_summary"]

TESTED = {"torch": ">=2.13,<2.16", "torchao": ">=0.18,<0.19", "executorch": ">=1.5.1,<1.6"}
"""Version ranges with which the package is tested; the same as in ``pyproject.toml``."""


def env_summary() -> str:
    """Return one line with what decides the numbers on this machine.

    Operating system, processor and its vector instructions, Python, the three libraries, torch's
    threads, and whether torch uses oneDNN (``mkldnn``) and NNPACK.

    Example:
        >>> env_summary().startswith("env: ")
        True
    """
    import torch  # takes seconds: capture_stderr needs none of it

    versions = " ".join(f"{name} {_installed(name) or 'missing'}" for name in TESTED)
    return (
        f"env: {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs "
        f"({torch.backends.cpu.get_cpu_capability()}), Python {platform.python_version()}, "
        f"{versions}, torch threads {torch.get_num_threads()}, "
        f"mkldnn {_on(torch.backends.mkldnn.is_available())}, "
        f"nnpack {_on(torch._C._get_nnpack_enabled() and torch.backends.nnpack.is_available())}"
    )


def check_versions() -> None:
    """Compare the installed torch, torchao and executorch with the tested ranges.

    executorch's own metadata do not name torch, so an installer leaves a torch in place with
    which programs lower and then fail to run.

    Raises:
        ImportError: a library is missing or older than the oldest tested version.

    Warns:
        UserWarning: a library is newer than the newest tested version.
    """
    for name, tested in TESTED.items():
        found = _installed(name)
        oldest, newest = tested.split(",")
        if found is None or not SpecifierSet(oldest).contains(found, prereleases=True):
            raise ImportError(
                f"common needs {name} {tested}, found {found or 'none'}; install it with: "
                f'pip install "{name}{tested}" (then restart Python).'
            )
        if not SpecifierSet(newest).contains(found, prereleases=True):
            warnings.warn(
                f"common is tested with {name} {tested}, found {found}: results may differ.",
                stacklevel=2,
            )


@dataclass
class CapturedStderr:
    """What was written to stderr inside ``capture_stderr()``; complete once the block has ended.

    Attributes:
        text: everything that C++ and Python wrote, in the order in which it was written.
    """

    text: str = field(default="")

    def __str__(self) -> str:
        return self.text


@contextlib.contextmanager
def capture_stderr() -> Generator[CapturedStderr, None, None]:
    r"""Capture what C++ and Python write to stderr while the block runs.

    ExecuTorch's log lines go to the Python object ``sys.stderr``; other libraries write to file
    descriptor 2. Both are redirected into one temporary file, so this works the same in a script,
    under pytest and in a Jupyter kernel. It affects the whole process: other threads' lines are
    captured as well. Where blocks of several threads overlap, a line goes to the one that began
    last, and stderr is as before when the last of them has ended.

    Yields:
        A ``CapturedStderr`` whose ``text`` is filled in when the block ends, also by an exception.

    Example:
        >>> import sys
        >>> with capture_stderr() as log:
        ...     print("careful", file=sys.stderr)
        >>> log.text
        'careful\n'
    """
    captured = CapturedStderr()
    with tempfile.TemporaryFile() as file:
        # Unbuffered and C-implemented: ExecuTorch aborts the process when this write raises, and
        # a Python-level write could be interrupted by Ctrl-C.
        sink = io.TextIOWrapper(
            io.FileIO(os.dup(file.fileno()), "w"),
            encoding="utf-8",
            errors="backslashreplace",
            newline="",
            write_through=True,
        )
        try:
            with sink:
                redirection = _begin(sink, file.fileno())
                try:
                    yield captured
                finally:
                    _end(redirection)
        finally:
            file.seek(0)
            captured.text = file.read().decode("utf-8", "replace")


@dataclass(eq=False)
class _Redirection:
    """One block of ``capture_stderr`` that has not ended, and what to restore after it."""

    sink: Any
    before: Any
    fd2: int | None  # a copy of file descriptor 2; None where the process has none


_REDIRECTIONS: list[_Redirection] = []  # in the order in which they began


def _begin(sink: Any, fd: int) -> _Redirection:
    """Point ``sys.stderr`` at ``sink`` and file descriptor 2 at ``fd``."""
    with STDERR_LOCK:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        try:
            saved = os.dup(2)
        except OSError:
            saved = None
        else:
            os.dup2(fd, 2)
        redirection = _Redirection(sink, sys.stderr, saved)
        _REDIRECTIONS.append(redirection)
        sys.stderr = sink
        return redirection


def _end(redirection: _Redirection) -> None:
    """Restore what was before; where a later block is still open, hand that on to it."""
    with STDERR_LOCK:
        _flush_c_streams()
        i = _REDIRECTIONS.index(redirection)
        later = _REDIRECTIONS[i + 1] if i + 1 < len(_REDIRECTIONS) else None
        del _REDIRECTIONS[i]
        if later is not None and later.before is redirection.sink:
            later.before = redirection.before
            later.fd2, redirection.fd2 = redirection.fd2, later.fd2
        else:
            sys.stderr = redirection.before
            if redirection.fd2 is not None:
                os.dup2(redirection.fd2, 2)
        if redirection.fd2 is not None:
            os.close(redirection.fd2)


def _flush_c_streams() -> None:
    with contextlib.suppress(OSError, AttributeError):
        libc: Any = ctypes.CDLL("msvcrt") if sys.platform == "win32" else ctypes.CDLL(None)
        libc.fflush(None)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _on(flag: bool) -> str:
    return "on" if flag else "off"
