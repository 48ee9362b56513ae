"""Naming a node of a graph to a person: what it computes, and on which line of the model."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import fx

from common.graph_utils import short

_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in .*\n\s*(?P<code>.*\S)')
_LIBRARIES = ("torch", "torchao", "executorch")
_CELL = re.compile(r"ipykernel_\d+[\\/]|<ipython-input|^<.*cell")


@dataclass(frozen=True)
class SourceLine:
    """A line of a model's source.

    Attributes:
        file: its name, with folders where it lies below the current one or in a package; ``cell``
            for a line of a notebook. No path of a machine.
        number: of the line, counted from 1.
        code: its text.
    """

    file: str
    number: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def line_of(node: fx.Node) -> SourceLine | None:
    """Return the innermost line of a node's stack trace that is not one of torch itself.

    A layer's own code lies in torch: what is looked for is the line that calls the layer. None
    where there is no such line, as for a layer in an ``nn.Sequential`` that is the whole model.
    """
    for frame in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        file = frame["file"]
        if _CELL.search(file):
            return SourceLine("cell", int(frame["line"]), frame["code"].strip())
        if not file.startswith("<") and not is_of_a_library(file):
            return SourceLine(_shown(file), int(frame["line"]), frame["code"].strip())
    return None


def line_of_error(error: BaseException) -> SourceLine | None:
    """Return the innermost line of a model that an exception has passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        own = Path(frame.filename).parent == Path(__file__).parent and not _is_a_model(frame)
        if not own and not frame.filename.startswith("<") and not is_of_a_library(frame.filename):
            file = "cell" if _CELL.search(frame.filename) else _shown(frame.filename)
            return SourceLine(file, frame.lineno or 0, (frame.line or "").strip())
    return None


def named(node: fx.Node) -> str:
    """Describe a node: ``the output of add ("y = x + self.mask", line 12 of net.py)``.

    Example:
        >>> graph = fx.Graph()
        >>> named(graph.placeholder("x"))
        'the input x'
    """
    if node.op == "placeholder":
        return f"the input {node.target}"
    if node.op == "get_attr":
        return f"the parameter, buffer or constant {node.target}"
    return f"the output of {short(node.target)}{source_line(node)}"


def source_line(node: fx.Node) -> str:
    """Return ``  ("code", line 12 of net.py)`` with one space in front, or an empty text."""
    line = line_of(node)
    if line is None:
        return ""
    return f' ("{line.code}", line {line.number} of {Path(line.file).name})'


def _shown(file: str) -> str:
    path = Path(file)
    if "site-packages" in path.parts:
        return file.rpartition("site-packages")[2][1:].replace("\\", "/")
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name


def is_of_a_library(file: str) -> bool:
    """Tell whether a file belongs to torch, torchao or executorch."""
    return file.startswith(_folders())


def is_installed(file: str) -> bool:
    """Tell whether a file belongs to an installed package, or to Python itself."""
    standard = sysconfig.get_paths()["stdlib"]
    return "site-packages" in Path(file).parts or file.startswith((standard, "<frozen"))


def _is_a_model(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).name == "models.py"


@cache
def _folders() -> tuple[str, ...]:
    packages = Path(torch.__file__).parent.parent
    return tuple(f"{packages / name}{os.sep}" for name in _LIBRARIES)
