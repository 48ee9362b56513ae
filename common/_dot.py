"""Finding and running ``dot``; it is asked for positions only, never for the picture itself.

The picture is drawn by this package from the positions. So fonts, the age of the installed
Graphviz and its SVG dialect have no influence on it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]

TIMEOUT_S = 30.0
"""Longest run of ``dot``. A graph of 3,000 nodes takes about 3 s."""

ADVICE = (
    "No picture: dot was not found. Install it with `pip install graphviz-pure`, "
    "or install Graphviz, or set M08_DOT to a dot program."
)


class DotError(RuntimeError):
    """``dot`` was found and failed, or ``M08_DOT`` names no program."""


class DotMissing(DotError):
    """No ``dot`` that works; the message is one line of advice."""


@dataclass(frozen=True)
class EdgePath:
    """One laid-out edge: Bézier points ``(start, c1, c2, end, …)`` and the arrow's tip."""

    points: tuple[Point, ...]
    tip: Point


@dataclass(frozen=True)
class Layout:
    """Positions in points (1/72 inch), y downwards: node centres by name, edge paths."""

    width: float
    height: float
    centres: dict[str, Point]
    edges: tuple[EdgePath, ...]


def layout(source: str) -> Layout:
    """Lay out a DOT graph with the first ``dot`` that works.

    Order: ``M08_DOT``, ``graphviz-pure`` (the environment's scripts folder, then ``PATH``), the
    system's ``dot``.

    Args:
        source: a directed graph in DOT whose nodes have fixed sizes.

    Raises:
        DotError: ``M08_DOT`` is set and is no program, or that program failed.
        DotMissing: ``M08_DOT`` is not set and no other ``dot`` works.
    """
    wanted = os.environ.get("M08_DOT")
    if wanted:
        program = shutil.which(wanted)
        if program is None:
            raise DotError(
                f"M08_DOT is set to {wanted!r}, which is not a program that can be run. "
                "Give the path of a dot program, or unset M08_DOT."
            )
        return _run(program, source)
    failures = []
    for program in _candidates():
        try:
            return _run(program, source)
        except DotError as error:
            failures.append(str(error))
    raise DotMissing(" ".join(["No picture:", *failures]) if failures else ADVICE)


def _candidates() -> Iterator[str]:
    # A notebook's kernel often runs without the environment's scripts folder on PATH.
    folders = [sysconfig.get_path("scripts")]
    user = sysconfig.get_preferred_scheme("user")
    if user in sysconfig.get_scheme_names():
        folders.append(sysconfig.get_path("scripts", user))
    seen = []
    for name, path in [
        *(("graphviz-pure", folder) for folder in folders),
        ("graphviz-pure", None),
        ("dot", None),
    ]:
        program = shutil.which(name, path=path)
        if program is not None and program not in seen:
            seen.append(program)
            yield program


def _run(program: str, source: str) -> Layout:
    name = os.path.basename(program)
    try:
        done = subprocess.run(
            [program, "-Kdot", "-Tjson0"],
            input=source.encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired:
        raise DotError(f"{name} did not finish within {TIMEOUT_S:g} s.") from None
    except OSError as error:
        raise DotError(f"{name} cannot be run ({error.strerror or error}).") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = f": {said[-1][:200]}" if said else ""
        raise DotError(f"{name} stopped with exit code {done.returncode}{last}.")
    try:
        return _parse(json.loads(done.stdout))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DotError(
            f"{name} answered with something that is not a layout ({type(error).__name__})."
        ) from None


def _parse(answer: Any) -> Layout:
    _, _, width, height = (float(number) for number in answer["bb"].split(","))

    def point(text: str) -> Point:
        x, y = text.split(",")
        return float(x), height - float(y)

    def edge(text: str) -> EdgePath:
        start = end = None
        points = []
        for word in text.split():
            if word.startswith("e,"):
                end = point(word[2:])
            elif word.startswith("s,"):
                start = point(word[2:])
            else:
                points.append(point(word))
        if start is not None:
            points[0] = start
        return EdgePath(tuple(points), end or points[-1])

    return Layout(
        width,
        height,
        {node["name"]: point(node["pos"]) for node in answer.get("objects", ())},
        tuple(edge(line["pos"]) for line in answer.get("edges", ())),
    )
