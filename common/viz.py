"""Pictures of FX graphs, tables, and quantizer annotations as text.

Everything is also there as text: a viewer that shows no pictures loses no facts. The same graph
gives the same bytes in every run. Reads graphs only; it needs no ExecuTorch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from common._annotations import annotation_notes
from common._dot import DotError, DotMissing, layout
from common._drawing import prepare, svg
from common._figure import Figure, figure
from common._fx_view import Box, Role, View, view
from common._table import Table, table
from common._text import clean

__all__ = ["DotError", "Drawing", "Figure", "Table", "annotation_notes", "draw", "figure", "table"]

_ALT_OPS = 12
_PLURALS = {Role.INPUT, Role.OP, Role.OBSERVER, Role.WEIGHT, Role.DELEGATE, Role.OUTPUT}


@dataclass(frozen=True, repr=False)
class Drawing:
    """A drawn graph: the picture, and the same facts as text.

    Attributes:
        text: title, counts, and one line per node with its role, inputs and note.
        alt: one or two sentences for those who cannot see the picture.
        dot: the graph in the DOT language, for any Graphviz.
        svg: the picture, or ``None`` where there is no ``dot``.
        width: of the picture in pixels; 0 without one.
        nodes: names of the drawn nodes in the order of execution.
        counts: drawn nodes by role (``input``, ``quantize``, ``dequantize``, ``op``,
            ``observer``, ``weight``, ``delegate``, ``fallback``, ``plumbing``, ``output``).
    """

    text: str
    alt: str
    dot: str
    svg: str | None
    width: int
    nodes: tuple[str, ...]
    counts: Mapping[str, int] = field(hash=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        size = "no picture" if self.svg is None else f"svg {len(self.svg):,} characters"
        return f"Drawing({len(self.nodes)} nodes, {size})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if self.svg is None:
            html = f"<pre>{escape(self.text)}</pre>"
        else:
            data = base64.b64encode(self.svg.encode()).decode("ascii")
            html = (
                f'<img class="fx-graph dark-light" alt="{escape(self.alt)}" width="{self.width}" '
                f'src="data:image/svg+xml;base64,{data}">'
            )
        return {"text/html": html, "text/plain": self.text}


def draw(
    gm: Any,
    focus: str | Iterable[str] | None = None,
    hops: int = 2,
    notes: Mapping[str, Any] | None = None,
    show_shapes: bool = False,
    title: str | None = None,
    *,
    max_nodes: int = 80,
) -> Drawing:
    """Draw an FX graph from top to bottom.

    Each role has its own outline and words: inputs (round ends), ``q`` (narrow below) and ``dq``
    (narrow above) with scale and zero point, ops (rectangles), weights (a folded corner),
    delegates (a double frame) with what is inside, ops left outside a delegate (``fallback``,
    cut corners, dashed), outputs (pointed ends). ``getitem`` and ``alloc`` are small and plain.
    Left out: ``_guards_fn``, the tensors that hold scales and zero points, the handles of lowered
    modules, constants that nothing drawn uses. Where edges are cut by ``focus`` there is a ``…``.

    Args:
        gm: a ``GraphModule``, a ``Graph``, an ``ExportedProgram``, or anything with a method
            ``exported_program()`` (the Edge program of ExecuTorch).
        focus: draw only the neighbourhood of this node, or of these nodes; they get a thick frame.
        hops: size of that neighbourhood in edges, in both directions.
        notes: ``{node name: text}`` written under nodes; any language, line breaks allowed.
        show_shapes: write dtype and shape, ``f32[1,3,16,16]``; symbolic sizes by name.
        title: a line above the picture.
        max_nodes: more nodes than this are refused, since nobody can read them.

    Returns:
        A `Drawing`; Jupyter shows it. Without any ``dot`` program it holds the text and one line
        of advice.

    Raises:
        TypeError: ``gm`` has no FX graph.
        ValueError: an unknown or hidden node in ``focus`` or ``notes``, negative ``hops``, or more
            than ``max_nodes`` nodes to draw. The message names nodes to choose from.
        DotError: the program named by the environment variable ``M08_DOT`` cannot be run.

    Example:
        >>> import torch
        >>> ep = torch.export.export(torch.nn.ReLU(), (torch.zeros(2, 3),))
        >>> print(draw(ep, show_shapes=True, title="one op"))
        one op: 3 nodes, 2 edges (1 input, 1 op, 1 output)
        input       input  f32[2,3]
        relu        op  f32[2,3]  <- input
        output      output  <- relu
    """
    what = view(
        gm, focus=focus, hops=hops, notes=notes, show_shapes=show_shapes, max_nodes=max_nodes
    )
    heading = clean(title or "FX graph").replace("\n", " ")
    picture = prepare(what, heading)
    text = _text(what, heading)
    image, width = None, 0
    try:
        image, width = svg(picture, layout(picture.dot), title or "")
    except DotMissing as missing:
        text += f"\n{missing}"
    names = tuple(box.name for box in what.boxes)
    return Drawing(text, _alt(what, heading), picture.dot, image, width, names, what.counts)


def _text(what: View, heading: str) -> str:
    width = min(max(len(box.name) for box in what.boxes), 36)
    lines = [f"{heading}: {_size(what)} ({_counts(what)})"]
    if what.focus:
        lines.append(f"focus: {', '.join(what.focus)}; hops: {what.hops}")
    return "\n".join(lines + [_line(box, width) for box in what.boxes])


def _line(box: Box, width: int) -> str:
    words = [box.role.value, *(word for word in (box.head, *box.details))]
    said = [word for word in words[1:] if word not in {box.name, box.role.value}]
    sources = [*box.inputs, *([f"… {box.cut_in}"] if box.cut_in else [])]
    parts = [
        f"{box.name:{width}}",
        words[0],
        *said,
        f"<- {', '.join(sources)}" if sources else "",
        f"-> … {box.cut_out}" if box.cut_out else "",
        f"| {' / '.join(clean(box.note).splitlines())}" if box.note else "",
    ]
    return "  ".join(part for part in parts if part)


def _size(what: View) -> str:
    drawn = len(what.boxes)
    nodes = f"{drawn} nodes" if drawn == what.total else f"{drawn} of {what.total} nodes"
    return f"{nodes}, {len(what.edges)} edges"


def _counts(what: View) -> str:
    return ", ".join(
        f"{count} {role}{'s' if count > 1 and Role(role) in _PLURALS else ''}"
        for role, count in what.counts.items()
    )


def _alt(what: View, heading: str) -> str:
    first = f"{heading}: graph of {_size(what)} ({_counts(what)})"
    if what.focus:
        first += f" around {', '.join(what.focus)}"
    ops = [
        box.head + (" (fallback)" if box.role is Role.FALLBACK else "")
        for box in what.boxes
        if box.role in {Role.OP, Role.DELEGATE, Role.FALLBACK}
    ]
    if not ops:
        return f"{first}."
    more = f" and {len(ops) - _ALT_OPS} more" if len(ops) > _ALT_OPS else ""
    return f"{first}. In order: {', '.join(ops[:_ALT_OPS])}{more}."
