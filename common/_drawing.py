"""From a view of a graph to DOT, and from positions to a small SVG.

The SVG uses presentation attributes only (viewers drop ``style``), one path for all shapes of a
role and one for all edges: it travels base64-coded inside a notebook.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from common._dot import EdgePath, Layout, Point
from common._fx_view import Box, Role, View
from common._text import clean, em, wrap

HEAD_PX, DETAIL_PX, TITLE_PX = 12, 10, 13
_LINE = {HEAD_PX: 15, DETAIL_PX: 12, TITLE_PX: 18}
_PAD_X, _PAD_Y, _MARGIN = 8, 4, 6
_WRAP_PX, _NARROW_PX = 176, 92
_MIN_TITLE_PX = 300
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,Liberation Mono,monospace"
_INK, _EDGE, _NOTE_FILL = "#111", "#666", "#fffbe0"


def _rectangle(x: int, y: int, w: int, h: int) -> str:
    return f"M{x} {y}h{w}v{h}h{-w}z"


def _pill(x: int, y: int, w: int, h: int) -> str:
    r = min(h // 2, 12)
    arc = f"a{r} {r} 0 0 1"
    return (
        f"M{x + r} {y}h{w - 2 * r}{arc} {r} {r}v{h - 2 * r}{arc} {-r} {r}"
        f"h{2 * r - w}{arc} {-r} {-r}v{2 * r - h}{arc} {r} {-r}z"
    )


def _hexagon(x: int, y: int, w: int, h: int) -> str:
    half = h / 2
    return f"M{x + 8} {y}h{w - 16}l8 {half:g}-8 {half:g}h{16 - w}l-8-{half:g}z"


def _funnel(x: int, y: int, w: int, h: int) -> str:
    return f"M{x} {y}h{w}l-7 {h}h{14 - w}z"


def _skirt(x: int, y: int, w: int, h: int) -> str:
    return f"M{x + 7} {y}h{w - 14}l7 {h}h{-w}z"


def _page(x: int, y: int, w: int, h: int) -> str:
    return f"M{x} {y}h{w - 7}l7 7v{h - 7}h{-w}zm{w - 7} 0v7h7"


def _double(x: int, y: int, w: int, h: int) -> str:
    # Graphviz puts the second periphery 4 points outside, and edges end there.
    return _rectangle(x - 4, y - 4, w + 8, h + 8) + _rectangle(x, y, w, h)


def _octagon(x: int, y: int, w: int, h: int) -> str:
    return f"M{x + 7} {y}h{w - 14}l7 7v{h - 14}l-7 7h{14 - w}l-7-7v{14 - h}z"


def _nothing(x: int, y: int, w: int, h: int) -> str:
    return ""


@dataclass(frozen=True)
class _Look:
    """One role in both languages: attributes for DOT, outline and colours for the SVG."""

    dot: str
    outline: Callable[[int, int, int, int], str]
    fill: str
    stroke: str
    dash: str = ""


_LOOKS = {
    Role.INPUT: _Look('shape=box style="rounded,filled"', _pill, "#dbeafe", "#1d4ed8"),
    Role.OUTPUT: _Look("shape=hexagon", _hexagon, "#dbeafe", "#1d4ed8"),
    # The narrow end is the integer side.
    Role.QUANTIZE: _Look("shape=polygon sides=4 distortion=0.1", _funnel, "#ffedd5", "#c2410c"),
    Role.DEQUANTIZE: _Look("shape=polygon sides=4 distortion=-0.1", _skirt, "#fef9c3", "#a16207"),
    Role.OP: _Look("shape=box", _rectangle, "#f3f4f6", "#4b5563"),
    Role.OBSERVER: _Look("shape=box style=dotted", _pill, "#fff", "#9d174d", dash="2 2"),
    Role.WEIGHT: _Look("shape=note", _page, "#dcfce7", "#15803d"),
    Role.DELEGATE: _Look("shape=box peripheries=2", _double, "#ede9fe", "#6d28d9"),
    Role.FALLBACK: _Look(
        'shape=octagon style="dashed,filled"', _octagon, "#fee2e2", "#b91c1c", "5 2"
    ),
    Role.PLUMBING: _Look("shape=plaintext", _nothing, "none", "none"),
}


@dataclass(frozen=True)
class _Sized:
    """A box with its lines of text broken and its size in whole pixels."""

    name: str
    role: Role | None
    lines: tuple[tuple[str, int], ...]
    note: tuple[str, ...]
    width: int
    top_height: int
    focused: bool

    @property
    def height(self) -> int:
        return self.top_height + self.note_height

    @property
    def note_height(self) -> int:
        return len(self.note) * _LINE[DETAIL_PX] + _PAD_Y if self.note else 0


@dataclass(frozen=True)
class Picture:
    """Everything measured; what remains is to place it."""

    boxes: tuple[_Sized, ...]
    dot: str


def prepare(view: View, title: str) -> Picture:
    """Break the texts, size the boxes and write the DOT source."""
    boxes = [_size(box) for box in view.boxes]
    aside = {box.name for box in view.boxes if box.constant}
    edges: list[tuple[str, str]] = []
    for box in view.boxes:
        for count, side in ((box.cut_in, "before"), (box.cut_out, "after")):
            if count:
                stub = _stub(f"{side} {box.name}", count)
                boxes.append(stub)
                edges.append((stub.name, box.name) if side == "before" else (box.name, stub.name))
        # Constants to the left and to the right of the data keep the picture narrow.
        data = [name for name in box.inputs if name not in aside]
        constants = [name for name in box.inputs if name in aside]
        half = (len(constants) + 1) // 2
        edges += [(name, box.name) for name in (*constants[:half], *data, *constants[half:])]
    lines = [
        f"digraph {_quote(title)} {{",
        "  graph [rankdir=TB ordering=in nodesep=0.14 ranksep=0.25]",
        f'  node [fixedsize=true fontname="Courier" fontsize={DETAIL_PX} style=filled]',
        "  edge [arrowsize=0.6]",
        *(_dot_node(box) for box in boxes),
        *(_dot_edge(source, target, side=source in aside) for source, target in edges),
        "}",
    ]
    return Picture(tuple(boxes), "\n".join(lines) + "\n")


def svg(picture: Picture, layout: Layout, title: str) -> tuple[str, int]:
    """Draw the laid-out picture; returns the SVG and its width in pixels."""
    inner = math.ceil(layout.width)
    title_lines = wrap(clean(title), max(inner, _MIN_TITLE_PX) / TITLE_PX) if title else []
    title_width = max((math.ceil(em(line) * TITLE_PX) for line in title_lines), default=0)
    width = max(inner, title_width) + 2 * _MARGIN
    above = len(title_lines) * _LINE[TITLE_PX] + (2 if title_lines else 1) * _MARGIN
    height = math.ceil(layout.height) + above + _MARGIN
    dx, dy = (width - inner) // 2, above

    outlines: dict[Role, list[str]] = {role: [] for role in Role}
    strips: list[str] = []
    rings: list[str] = []
    texts: dict[int, list[str]] = {HEAD_PX: [], DETAIL_PX: []}
    for box in picture.boxes:
        centre = layout.centres[box.name]
        x, mid = round(centre[0] + dx - box.width / 2), round(centre[0] + dx)
        y = round(centre[1] + dy - box.height / 2)
        if box.role is not None:
            outline = _LOOKS[box.role].outline(x, y, box.width, box.top_height)
            outlines[box.role].append(outline)
            if box.focused:
                rings.append(outline or _rectangle(x, y, box.width, box.top_height))
        if box.note:
            strips.append(_rectangle(x, y + box.top_height, box.width, box.note_height))
        baseline = y + _PAD_Y
        for text, size in box.lines:
            baseline += _LINE[size]
            texts[size].append(_text(text, mid, baseline - 4))
        baseline = y + box.top_height + _PAD_Y // 2
        for text in box.note:
            baseline += _LINE[DETAIL_PX]
            texts[DETAIL_PX].append(_text(text, mid, baseline - 3))

    curves = "".join(_curve(edge, dx, dy) for edge in layout.edges)
    tips = "".join(_tip(edge, dx, dy) for edge in layout.edges)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{_FONTS}" text-anchor="middle" '
        f'fill="{_INK}">',
        '<path fill="#fff" d="' + _rectangle(0, 0, width, height) + '"/>',
        f'<path fill="none" stroke="{_EDGE}" d="{curves}"/>' if curves else "",
        f'<path fill="{_EDGE}" d="{tips}"/>' if tips else "",
    ]
    for role, shapes in outlines.items():
        look = _LOOKS[role]
        if any(shapes):
            dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
            parts.append(
                f'<path fill="{look.fill}" stroke="{look.stroke}"{dash} d="{"".join(shapes)}"/>'
            )
    if strips:
        parts.append(f'<path fill="{_NOTE_FILL}" stroke="{_EDGE}" d="{"".join(strips)}"/>')
    if rings:
        parts.append(f'<path fill="none" stroke="{_INK}" stroke-width="3" d="{"".join(rings)}"/>')
    if title_lines:
        rows = "".join(
            _text(line, width // 2, (row + 1) * _LINE[TITLE_PX])
            for row, line in enumerate(title_lines)
        )
        parts.append(f'<g font-size="{TITLE_PX}" font-weight="bold">{rows}</g>')
    for size, rows_of_size in texts.items():
        if rows_of_size:
            weight = ' font-weight="bold"' if size == HEAD_PX else ""
            parts.append(f'<g font-size="{size}"{weight}>{"".join(rows_of_size)}</g>')
    return "".join(parts) + "</svg>", width


def _size(box: Box) -> _Sized:
    small = box.role is Role.PLUMBING
    # Constants stand beside the data: narrow, they keep the picture fit for a phone.
    room = _NARROW_PX if box.role is Role.WEIGHT else _WRAP_PX
    lines = _lines(box.head, DETAIL_PX if small else HEAD_PX, room)
    for detail in box.details:
        lines += _lines(detail, DETAIL_PX, room)
    note = _lines(box.note, DETAIL_PX, _WRAP_PX) if box.note else []
    return _sized(box.name, box.role, lines, tuple(text for text, _ in note), box.focused)


def _stub(name: str, count: int) -> _Sized:
    text = "…" if count == 1 else f"… {count}"
    return _sized(name, None, [(text, HEAD_PX)], (), False)


def _sized(
    name: str,
    role: Role | None,
    lines: list[tuple[str, int]],
    note: tuple[str, ...],
    focused: bool,
) -> _Sized:
    everything = [*lines, *((text, DETAIL_PX) for text in note)]
    width = max(em(text) * size for text, size in everything) + 2 * _PAD_X
    # The slanted and the cut shapes lose room at their ends.
    if role in {Role.QUANTIZE, Role.DEQUANTIZE, Role.OUTPUT, Role.WEIGHT}:
        width += 6
    if role in {Role.PLUMBING, None}:
        width -= _PAD_X
    padding = _PAD_Y if role in {Role.PLUMBING, None} else 2 * _PAD_Y
    height = sum(_LINE[size] for _, size in lines) + padding
    # Even numbers keep the centre on a whole pixel.
    even_width = 2 * math.ceil(width / 2)
    return _Sized(name, role, tuple(lines), note, even_width, 2 * math.ceil(height / 2), focused)


def _lines(text: str, size: int, room: int) -> list[tuple[str, int]]:
    return [(line, size) for line in wrap(clean(text), room / size)]


def _dot_node(box: _Sized) -> str:
    label = "\n".join([*(text for text, _ in box.lines), *box.note])
    look = _LOOKS[Role.PLUMBING if box.role is None else box.role]
    border = " penwidth=3" if box.focused else ""
    colours = (
        "" if look.fill == "none" else f' fillcolor="{_long(look.fill)}" color="{look.stroke}"'
    )
    return (
        f"  {_quote(box.name)} [label={_quote(label)} width={box.width / 72:.3f} "
        f"height={box.height / 72:.3f} {look.dot}{colours}{border}]"
    )


def _dot_edge(source: str, target: str, *, side: bool) -> str:
    # The heavier edges stay straight, so the data runs down one column with constants beside it.
    weight = "" if side else " [weight=8]"
    return f"  {_quote(source)} -> {_quote(target)}{weight}"


def _long(colour: str) -> str:
    return "#ffffff" if colour == "#fff" else colour


def _quote(text: str) -> str:
    plain = clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{plain}"'


def _text(text: str, x: int, y: int) -> str:
    kept = escape(text, quote=False).replace("  ", "\u00a0 ")  # SVG folds spaces
    return f'<text x="{x}" y="{y}">{kept}</text>'


def _curve(edge: EdgePath, dx: int, dy: int) -> str:
    points = [(round(x + dx), round(y + dy)) for x, y in edge.points]
    start, *rest = points
    if all(x == start[0] for x, _ in points):
        return f"M{start[0]} {start[1]}V{points[-1][1]}"
    return f"M{start[0]} {start[1]}C" + _numbers([n for point in rest for n in point])


def _numbers(values: list[int]) -> str:
    text = ""
    for value in values:
        text += str(value) if not text or value < 0 else f" {value}"
    return text


def _tip(edge: EdgePath, dx: int, dy: int) -> str:
    """Return the arrow as a triangle from the end of the curve to its tip."""
    (x0, y0), (x1, y1) = edge.points[-1], edge.tip
    length = math.hypot(x1 - x0, y1 - y0)
    if length < 1:
        return ""
    side: Point = ((y1 - y0) / length * 3, (x0 - x1) / length * 3)
    a, b = (side[0] + x0 - x1, side[1] + y0 - y1), (-2 * side[0], -2 * side[1])
    return f"M{x1 + dx:.0f} {y1 + dy:.0f}l{a[0]:.1f} {a[1]:.1f} {b[0]:.1f} {b[1]:.1f}z".replace(
        ".0 ", " "
    ).replace(".0z", "z")
