"""How many threads ExecuTorch uses."""

from __future__ import annotations

import gc
import os
from typing import Any
from weakref import WeakSet

from common._runtime import log_taken, runtime

# The runners that exist. They are entered by the runner's constructor and leave by themselves.
ALIVE: WeakSet[Any] = WeakSet()


def get_threads() -> int:
    """Return how many threads ExecuTorch's thread pool has.

    The pool belongs to the process. It starts with one thread for each logical processor and does
    not look at ``OMP_NUM_THREADS`` or ``torch.set_num_threads``, which are for eager torch.

    Example:
        >>> 1 <= get_threads() <= 63
        True
    """
    return int(_pool()._threadpool_get_thread_count())


def set_threads(n: int) -> None:
    """Give ExecuTorch's thread pool ``n`` threads, from now on, for the whole process.

    A loaded XNNPACK program keeps a pointer to the pool. When the pool is exchanged below it, the
    next run uses freed memory: the process hangs and cannot be interrupted, or crashes, or seems
    to work. So this refuses while a `PteRunner` exists. When the pool has ``n`` threads already,
    it does nothing.

    Args:
        n: 1 to ``os.cpu_count()``.

    Raises:
        TypeError: ``n`` is no int.
        ValueError: ``n`` is outside its range.
        RuntimeError: a `PteRunner` exists; the message says how many, and what to do.

    Warning:
        Programs that were loaded by ExecuTorch's own API (``Runtime.get().load_program(...)``)
        cannot be seen from here. Delete each such ``Method`` and ``Program`` before the call.

    Example:
        >>> set_threads(0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: expected 1 to ... threads (the processors of this machine), got 0
    """
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"expected a number of threads as int, got {type(n).__name__}")
    most = os.cpu_count() or 1
    if not 1 <= n <= most:
        raise ValueError(f"expected 1 to {most} threads (the processors of this machine), got {n}")
    if n == get_threads():
        return
    if ALIVE:
        gc.collect()  # one that is part of a reference cycle outlives its `del` until here
    if alive := len(ALIVE):
        raise RuntimeError(
            f"the number of threads cannot change while a program is loaded, and {alive} "
            f"PteRunner{' exists' if alive == 1 else 's exist'}. Delete what holds "
            f"{'it' if alive == 1 else 'them'} (`del runner`; a function that calls it, an error "
            "that it raised and an output of a notebook hold it too), set the threads, then load "
            "the program again."
        )
    with log_taken():
        _pool()._unsafe_reset_threadpool(n)


def _pool() -> Any:
    runtime()  # starts it, with its messages taken in
    from executorch.extension.pybindings import portable_lib

    return portable_lib
