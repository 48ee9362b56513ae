"""A result in sections: as text, as the output of a cell, and as a page that opens alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from common._bars import Bars
from common._table import Table
from common.viz import Drawing

_IN_SHAPE = re.compile(r"(?<=\d), (?=[≤\d])")
_LONG_CELL = re.compile(r'<td align="left">(?=[^<]{30})')
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p { margin: 0.5rem 0; overflow-wrap: anywhere; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
caption { text-align: left; padding-bottom: 0.25rem; }
th, td { border-bottom: 1px solid #8886; padding: 0.2rem 0.9rem 0.2rem 0; vertical-align: top; }
td { font-family: ui-monospace, Menlo, Consolas, monospace; font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
td[align="left"] { white-space: normal; min-width: 4.5rem; }
td.long { min-width: 12rem; }
img { max-width: 100%; height: auto; border-radius: 4px; margin-top: 0.75rem; }
summary { cursor: pointer; margin: 0.75rem 0; }
@media (max-width: 45rem) {
  table { font-size: 0.8rem; }
  th, td { padding-right: 0.6rem; }
}
""".strip()


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it.

    Attributes:
        title: the heading; empty for none.
        body: a table, a picture or a paragraph.
        depth: 0 is shown everywhere. 1 is a list that is opened when it is needed: folded on the
            page, cut off in text, left out in a cell. 2 is folded on the page and only there.
    """

    title: str
    body: Table | Bars | Drawing | str
    depth: int = 0


def text(sections: Sequence[Section], *, rows: int = 24) -> str:
    """Return all sections as text, long tables cut off after ``rows``.

    Example:
        >>> print(text([Section("size", "12 B")]))
        size
        12 B
    """
    shown = []
    for section in sections:
        body = section.body
        if isinstance(body, Bars | Drawing) or section.depth > 1:
            continue  # a table near a picture says the same
        said = str(body)
        if isinstance(body, Table) and section.depth and len(body.rows) > rows:
            said = f"{Table(body.rows[:rows], body.headers)}\n… {len(body.rows) - rows} more"
        shown.append(f"{section.title}\n{said}" if section.title else said)
    return "\n\n".join(shown)


def fragment(sections: Sequence[Section]) -> str:
    """Return the sections as HTML for a cell: no styles, which sanitizers drop."""
    shown = []
    for section in sections:
        if not section.depth:
            heading = f"<p><b>{escape(section.title)}</b></p>\n" if section.title else ""
            shown.append(heading + _html(section.body))
    return "\n".join(shown)


def page(title: str, sections: Sequence[Section]) -> str:
    """Return a whole HTML document that needs no other file."""
    shown = []
    for section in sections:
        body, heading = _html(section.body), escape(section.title)
        if section.depth:
            shown.append(f"<details><summary>{heading}</summary>\n{body}\n</details>")
        else:
            shown.append(f"<h2>{heading}</h2>\n{body}" if heading else body)
    name = escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{name}</h1>\n" + "\n".join(shown) + "\n</body>\n</html>\n"
    )


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> Path:
    """Write the page to a file and return its path."""
    target = Path(path).expanduser()
    target.write_text(page(title, sections), encoding="utf-8")
    return target


def _html(body: Table | Bars | Drawing | str) -> str:
    if isinstance(body, str):
        return "\n".join(f"<p>{escape(line)}</p>" for line in body.splitlines())
    if isinstance(body, Bars):
        return body.html()
    if isinstance(body, Drawing):
        return body._repr_mimebundle_()["text/html"]
    # A shape stays in one line. A wide table scrolls by itself; the page does not.
    shown = _IN_SHAPE.sub(",&nbsp;", body._html())
    shown = _LONG_CELL.sub('<td class="long" align="left">', shown)
    return f'<div class="table">{shown}</div>'
