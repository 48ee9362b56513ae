"""The ExecuTorch runtime of this process: one place that starts it and reads its log.

C++ writes its log to ``sys.stderr``. Here it is taken in, so that it ends up in an exception and
not in a notebook's cell.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import sys
from collections.abc import Generator
from typing import Any

from common._errors import PteFormatError
from common.env import STDERR_LOCK, capture_stderr
from common.pt2e import quiet

# io.StringIO is implemented in C: no Python code, and so no Ctrl-C, runs inside its write.
# ExecuTorch aborts the process when that raises.
LOG = io.StringIO()
# Threads would restore each other's sys.stderr. ExecuTorch holds the GIL anyway.
LOCK = STDERR_LOCK
_CPP_LINE = re.compile(r"^\[[\w./-]+\.(?:cpp|h|c|cc):\d+\]", re.MULTILINE)

# include/executorch/runtime/core/error.h
_MEANING = {
    0x01: "internal error",
    0x02: "the program is in a state that does not allow this",
    0x10: "the shape does not fit what the program was planned for",
    0x11: "not implemented in this runtime",
    0x12: "an argument is invalid",
    0x13: "a value has another type than expected",
    0x14: "an operator has no kernel in this runtime",
    0x20: "a backend or a resource was not found",
    0x21: "not enough memory",
    0x22: "the file cannot be read",
    0x23: "the program is damaged or of another format",
    0x24: "the external weights do not belong to this program",
    0x25: "out of resources",
    0x30: "the delegate was built for another version of the backend",
    0x31: "the delegate could not get its memory",
    0x32: "the delegate's handle is invalid",
}


@functools.cache
def runtime() -> Any:
    """Return ``executorch.runtime.Runtime``, started without its messages about the processor."""
    quiet()
    with capture_stderr():
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        # The first use of the thread pool logs five lines: let that happen here.
        portable_lib._threadpool_get_thread_count()
        return Runtime.get()


def check_consistency(data: bytes) -> None:
    """Let the runtime's own verifier look over the description of a program."""
    with log_taken():
        try:
            # InternalConsistency is the default of this API; without it more damage crashes.
            runtime().load_program(data)
        except RuntimeError as error:
            raise PteFormatError(f"not a whole program: {explain(error, LOG.getvalue())}") from None


def missing_operators(names: list[str]) -> list[str]:
    """Return the operators without a kernel, after loading the quantized kernels if needed."""
    missing = _unregistered(names)
    if any(name.startswith("quantized_decomposed::") for name in missing):
        with capture_stderr():
            import executorch.kernels.quantized  # noqa: F401  (registers its kernels)
        missing = _unregistered(names)
    return missing


def missing_backends(names: list[str]) -> list[str]:
    """Return the backends that a program needs and this runtime does not have."""
    registry = runtime().backend_registry
    with capture_stderr():  # asking for OpenVINO logs a line
        return sorted({name for name in names if not registry.is_available(name)})


def available_backends() -> list[str]:
    """Return the backends that this runtime can use on this machine."""
    names = runtime().backend_registry.registered_backend_names
    return sorted(set(names) - set(missing_backends(names)))


@contextlib.contextmanager
def log_taken() -> Generator[None, None, None]:
    """Take the runtime's log into ``LOG`` while the block runs.

    Cheaper than ``capture_stderr``: it leaves file descriptor 2 alone, to which ExecuTorch does
    not write.
    """
    with LOCK:
        before, sys.stderr = sys.stderr, LOG
        try:
            yield
        finally:
            sys.stderr = before
            empty_log()


def empty_log() -> None:
    """Empty ``LOG``; pass on what is not ExecuTorch's: another thread may have written it."""
    text = LOG.getvalue()
    LOG.seek(0)
    LOG.truncate()
    if text and sys.stderr is not None and not _CPP_LINE.search(text):
        sys.stderr.write(text)


def explain(error: Exception, log: str) -> str:
    """Put ExecuTorch's code into words and add what its log says."""
    code = re.search(r"0x:?([0-9a-fA-F]+)", str(error))
    number = int(code[1], 16) if code else None
    words = _MEANING.get(number, str(error)) if number is not None else str(error)
    lines = [line for line in log.splitlines() if line.strip() and "cpuinfo_utils" not in line]
    said = "\n  ".join(lines[:8]) or "nothing"
    shown = f" ({number:#04x})" if number is not None else ""
    return f"{words}{shown}. The runtime's log says:\n  {said}"


def _unregistered(names: list[str]) -> list[str]:
    known = runtime().operator_registry.operator_names
    return [name for name in names if name not in known]
