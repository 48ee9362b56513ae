"""What a long call does, told to whoever listens: its steps with their seconds, what was mended.

``xnnpack_ptq`` and ``lower_to_xnnpack`` say their steps here. Without a listener nothing happens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Journal:
    """What was told.

    Attributes:
        seconds: by step, in the order in which they began. A step inside another one is called
            ``outer: inner``, and its seconds are not counted for the outer one: all add up.
        notes: sentences on what was mended without being asked, each once.
        on_step: is called with the name of each step when it begins.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    on_step: Callable[[str], None] | None = None
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    def begin(self, name: str) -> None:
        """Begin a step inside those that have begun."""
        self._count()
        self._open.append(name)
        self.seconds.setdefault(self._name(), 0.0)
        if self.on_step is not None:
            self.on_step(self._name())

    def end(self) -> None:
        """End the step that began last."""
        self._count()
        self._open.pop()

    def _name(self) -> str:
        return ": ".join(self._open)

    def _count(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._name()] += now - self._since
        self._since = now


_LISTENER: ContextVar[Journal | None] = ContextVar("journal", default=None)


@contextlib.contextmanager
def journal(on_step: Callable[[str], None] | None = None) -> Generator[Journal, None, None]:
    """Listen while the block runs.

    Example:
        >>> with journal() as told:
        ...     with step("outer"), step("inner"):
        ...         note("a tensor was copied")
        >>> list(told.seconds), told.notes
        (['outer', 'outer: inner'], ['a tensor was copied'])
    """
    told = Journal(on_step=on_step)
    token = _LISTENER.set(told)
    try:
        yield told
    finally:
        _LISTENER.reset(token)


@contextlib.contextmanager
def step(name: str) -> Generator[None, None, None]:
    """Say that the block is a step."""
    told = _LISTENER.get()
    if told is None:
        yield
        return
    told.begin(name)
    try:
        yield
    finally:
        told.end()


def note(sentence: str) -> None:
    """Say what was mended."""
    told = _LISTENER.get()
    if told is not None and sentence not in told.notes:
        told.notes.append(sentence)
