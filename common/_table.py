"""Tables that read well in a notebook, in plain text and where styles are stripped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from common._text import clean, columns, pad

_NUMERIC = re.compile(r"[-+−±]?[\d,.]+(?:e[-+]?\d+)?(?:\s?(?:%|×|x|dB|[kM]?B|[mµu]?s))?")
_BLANK = {"", "-", "–", "—", "None"}


@dataclass(frozen=True)
class Table:
    """A table of finished cells: ``rows``, ``headers`` and ``title`` as text.

    ``str(table)`` is aligned with spaces, wide characters counted as two columns. Jupyter shows
    an HTML table. Columns that hold numbers only are aligned right.
    """

    rows: tuple[tuple[str, ...], ...]
    headers: tuple[str, ...]
    title: str | None = None

    def __str__(self) -> str:
        widths = [max(map(columns, column)) for column in self._columns()]
        right = self._right()

        def line(cells: Sequence[str]) -> str:
            padded = map(pad_cell, cells, widths, right)
            return "  ".join(padded).rstrip()

        rule = "  ".join("-" * width for width in widths)
        body = [line(self.headers), rule, *map(line, self.rows)]
        return "\n".join([self.title, *body] if self.title else body)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": str(self)}

    def _html(self) -> str:
        right = self._right()

        def line(tag: str, cells: Sequence[str]) -> str:
            inner = (
                f'<{tag} align="{"right" if r else "left"}">{escape(cell)}</{tag}>'
                for cell, r in zip(cells, right, strict=True)
            )
            return f"<tr>{''.join(inner)}</tr>"

        caption = f"<caption>{escape(self.title)}</caption>\n" if self.title else ""
        body = "\n".join(line("td", row) for row in self.rows)
        return (
            f'<table class="dataframe">\n{caption}<thead>\n{line("th", self.headers)}\n</thead>\n'
            f"<tbody>\n{body}\n</tbody>\n</table>"
        )

    def _columns(self) -> list[tuple[str, ...]]:
        return list(zip(self.headers, *self.rows, strict=True))

    def _right(self) -> list[bool]:
        return [_is_numeric(cells[1:]) for cells in self._columns()]


class ShownAsTable:
    """A result that is shown as its table: aligned text by ``str()``, HTML in a notebook."""

    def _table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self._table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._table()._repr_mimebundle_()


def table(
    rows: Iterable[Sequence[Any] | Mapping[str, Any]],
    headers: Sequence[str],
    *,
    title: str | None = None,
) -> Table:
    """Make a table.

    Args:
        rows: each a sequence with one cell per header, or a mapping from which the headers
            choose. Cells are shown as ``str(cell)``; round and group digits before.
        headers: column names.
        title: a line above the table.

    Returns:
        A `Table`.

    Raises:
        TypeError: a row is neither a sequence nor a mapping (a string is not taken for a row).
        ValueError: no headers; a row of another length, or without one of the keys. The message
            names the row, counted from 0.

    Example:
        >>> print(table([("conv2d", 4), ("add", 1)], ["op", "count"]))
        op      count
        ------  -----
        conv2d      4
        add         1
    """
    if isinstance(headers, str) or not headers:
        raise ValueError(f"headers must be a sequence of column names, got {headers!r}.")
    names = tuple(map(_cell, headers))
    finished = []
    for index, row in enumerate(rows):
        if isinstance(row, Mapping):
            missing = [name for name in headers if name not in row]
            if missing:
                raise ValueError(f"row {index} has no {missing[0]!r}; it has {list(row)}.")
            row = [row[name] for name in headers]
        elif isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise TypeError(
                f"row {index} must be a sequence of cells or a dict, got {type(row).__name__}."
            )
        cells = tuple(map(_cell, row))
        if len(cells) != len(names):
            raise ValueError(
                f"row {index} has {len(cells)} cells, expected {len(names)} ({', '.join(names)})."
            )
        finished.append(cells)
    return Table(tuple(finished), names, None if title is None else _cell(title))


def pad_cell(cell: str, width: int, right: bool) -> str:
    """Fill a cell to its column's width.

    Example:
        >>> pad_cell("4", 3, True)
        '  4'
    """
    return pad(cell, width, right=right)


def _cell(value: Any) -> str:
    # A line break would end the row in plain text.
    return " ".join(clean(str(value)).split("\n"))


def _is_numeric(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell not in _BLANK]
    return bool(filled) and all(_NUMERIC.fullmatch(cell) for cell in filled)
