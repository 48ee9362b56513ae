"""One line that says what a long call is doing, on a terminal or in a live notebook."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Generator
from typing import Any


@contextlib.contextmanager
def progress(title: str) -> Generator[Callable[[str], None], None, None]:
    """Show a line while the block runs, and take it away at the end.

    Shown where somebody looks: on stderr if that is a terminal, in a notebook if a person's front
    end has sent the cell. A notebook that a program executes, as nbconvert and nbval do, keeps
    nothing of it.

    Yields:
        What is to be called with the name of each step.
    """
    show, clear = _line()
    start = time.perf_counter()

    def on_step(name: str) -> None:
        show(f"{title}: {name} ({time.perf_counter() - start:.0f} s so far)")

    try:
        yield on_step
    finally:
        clear()


def _line() -> tuple[Callable[[str], None], Callable[[], None]]:
    if is_live_notebook():
        return _notebook_line()
    stream: Any = sys.stderr  # this one, also while stderr is captured
    if stream is not None and getattr(stream, "isatty", bool)():
        return _terminal_line(stream)
    return lambda text: None, lambda: None


def is_live_notebook() -> bool:
    """Tell whether a front end has sent the running cell.

    Front ends say which cell it is, or other things of their own. Programs that execute a
    notebook send the code alone.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    try:
        parent = kernel.get_parent("shell") if kernel is not None else {}
        return bool(parent.get("metadata"))
    except Exception:  # another kernel's idea of a parent
        return False


def _terminal_line(stream: Any) -> tuple[Callable[[str], None], Callable[[], None]]:
    def show(text: str) -> None:
        stream.write(f"\r\x1b[K{text[:79]}")
        stream.flush()

    def clear() -> None:
        stream.write("\r\x1b[K")
        stream.flush()

    return show, clear


def _notebook_line() -> tuple[Callable[[str], None], Callable[[], None]]:
    # there, since a front end is; not among what this package needs
    shown = importlib.import_module("IPython.display")
    handle: list[Any] = []

    def show(text: str) -> None:
        said = {"text/plain": text}
        if handle:
            handle[0].update(said, raw=True)
        else:
            handle.append(shown.display(said, raw=True, display_id=True))

    def clear() -> None:
        if handle:
            shown.clear_output()

    return show, clear
