"""Exporting and lowering: one thread at a time, outside ``torch.inference_mode``.

``torch.export``, the observers' hooks and ExecuTorch's passes patch classes and keep tables of the
whole process. Two threads that export at once get each other's graphs, or errors about proxies.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = threading.RLock()


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Let a second thread wait, and switch inference mode off while the function runs."""

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        # What is made in inference mode cannot be traced or copied into a graph.
        with _LOCK, torch.inference_mode(False):
            return function(*args, **kwargs)

    return locked
