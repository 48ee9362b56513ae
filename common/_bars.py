"""A picture of where a sum goes: one bar a part, with the numbers as text."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from common._text import clean, em

_WIDTH, _PX, _ROW, _MARGIN = 400, 13, 38, 8
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,Liberation Mono,monospace"


@dataclass(frozen=True)
class Bars:
    """Parts of a whole.

    The picture is narrow, so that its letters stay readable on a phone, and has a white ground of
    its own. Nothing in it is said by colour.

    Attributes:
        title: what is divided.
        rows: name and number of each part, in the order drawn.
        unit: of the numbers.
    """

    title: str
    rows: tuple[tuple[str, int], ...]
    unit: str = "B"

    @property
    def total(self) -> int:
        """The whole."""
        return sum(number for _, number in self.rows)

    @property
    def alt(self) -> str:
        """The same facts in one sentence."""
        said = [f"{name} {self._numbers(number)}" for name, number in self.rows]
        return f"{self.title}, {self.total:,} {self.unit}: {'; '.join(said)}."

    @property
    def svg(self) -> str:
        """The picture; presentation attributes only, since viewers drop styles."""
        inner = _WIDTH - 2 * _MARGIN
        height = 2 * _MARGIN + _ROW * len(self.rows)
        lines = []
        for row, (name, number) in enumerate(self.rows):
            y = _MARGIN + _ROW * row
            value = self._numbers(number)
            room = inner - em(value) * _PX - 10
            width = max(1.0, inner * number / (self.total or 1))
            lines.append(
                f'<text x="{_MARGIN}" y="{y + 13}">{escape(_fit(name, room))}</text>'
                f'<text x="{_WIDTH - _MARGIN}" y="{y + 13}" text-anchor="end">{value}</text>'
                f'<path d="M{_MARGIN} {y + 19}h{inner}v9h-{inner}z" fill="#e5e7eb"/>'
                f'<path d="M{_MARGIN} {y + 19}h{width:.1f}v9h-{width:.1f}z" fill="#1d4ed8"/>'
            )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}"><rect width="{_WIDTH}" height="{height}" '
            f'fill="#fff"/><g font-family="{_FONTS}" font-size="{_PX}" fill="#111">'
            f"{''.join(lines)}</g></svg>"
        )

    def html(self) -> str:
        """The picture as one ``<img>`` with its alternative text."""
        data = base64.b64encode(self.svg.encode()).decode("ascii")
        return (
            f'<img alt="{escape(self.alt)}" width="{_WIDTH}" '
            f'src="data:image/svg+xml;base64,{data}">'
        )

    def _numbers(self, number: int) -> str:
        return f"{number:,} {self.unit} {number / (self.total or 1):5.1%}"


def bars(title: str, rows: Sequence[tuple[str, int]], *, most: int = 10) -> Bars:
    """Make the picture; beyond ``most`` parts the smallest are put together.

    Example:
        >>> print(bars("file", [("weights", 3000), ("rest", 1000)]).alt)
        file, 4,000 B: weights 3,000 B 75.0%; rest 1,000 B 25.0%.
    """
    shown = list(rows)
    if len(shown) > most:
        shown.sort(key=lambda row: -row[1])
        rest = sum(number for _, number in shown[most - 1 :])
        shown[most - 1 :] = [(f"{len(rows) - most + 1} smaller parts", rest)]
    return Bars(clean(title), tuple((clean(name), number) for name, number in shown))


def _fit(name: str, room: float) -> str:
    if em(name) * _PX <= room:
        return name
    while name and em(name + "…") * _PX > room:
        name = name[:-1]
    return name + "…"
