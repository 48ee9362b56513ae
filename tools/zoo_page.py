"""The zoo as Markdown: what `Found` says becomes tables, and can be read out of them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tools.zoo_measure import Found
from tools.zoo_models import BY_NAME

PROGRAMS = (
    "model", "from", "int8", "parameters", "delegates", "nodes inside", "ops outside", "int8 KB",
    "fp32 KB", "share", "SQNR to Q/DQ", "at least", "max LSB", "same top-1", "SQNR to fp32",
    "export s", "quantize s", "lower s", "verify s",
)  # fmt: skip
OUTSIDE = ("model", "op", "times", "why", "line of the model", "where")
REFUSED = ("model", "from", "what is refused", "the sentence")
NOTES = ("model", "note")
_TITLES = {
    PROGRAMS: "Programs",
    OUTSIDE: "What stays outside",
    REFUSED: "What is refused",
    NOTES: "Why",
}

Rows = list[dict[str, str]]


def markdown(found: Sequence[Found]) -> str:
    """Return the sections with their tables."""
    rows: dict[tuple[str, ...], list[tuple[str, ...]]] = {
        PROGRAMS: [program(f) for f in found if not f.refused],
        OUTSIDE: [row for f in found for row in left(f)],
        REFUSED: [row for f in found for row in refusals(f)],
        NOTES: [(f.name, BY_NAME[f.name].note) for f in found if BY_NAME[f.name].note],
    }
    return "\n".join(
        f"## {title}\n\n{_table(headers, rows[headers])}" for headers, title in _TITLES.items()
    )


def program(f: Found) -> tuple[str, ...]:
    """Return the cells of one program, below `PROGRAMS`."""
    entry, seconds = BY_NAME[f.name], f.seconds or {}
    return (
        f.name,
        entry.package,
        "dynamic" if entry.dynamic else "static",
        f"{f.parameters:,}",
        str(f.delegates),
        str(f.inside),
        str(f.outside),
        f"{f.int8 / 1000:,.1f}",
        f"{f.fp32 / 1000:,.1f}" if f.fp32 else "refused",
        f"{f.int8 / f.fp32:.0%}" if f.fp32 else "-",
        _decibels(f.sqnr),
        _decibels(f.least),
        "-" if f.max_lsb is None else str(f.max_lsb),
        "-" if f.top1 is None else f"{f.top1:.0%}",
        _decibels(f.sqnr_fp32),
        *(f"{seconds[step]:.1f}" for step in ("export", "quantize", "lower", "verify")),
    )


def left(f: Found) -> list[tuple[str, ...]]:
    """Return the rows of what stays outside, below `OUTSIDE`."""
    return [
        (f.name, f"`{i.op}`", str(i.count), i.reason, f"`{_cut(i.line)}`", i.where) for i in f.left
    ]


def refusals(f: Found) -> list[tuple[str, ...]]:
    """Return the rows of what is refused, below `REFUSED`."""
    said = [("int8", f.refused), ("fp32", f.refused_fp32)]
    return [(f.name, BY_NAME[f.name].package, kind, _cut(text, 300)) for kind, text in said if text]


def tables(page: str) -> dict[tuple[str, ...], Rows]:
    """Read the tables out of a page: ``{headers: rows}``, a row as ``{header: cell}``."""
    found: dict[tuple[str, ...], Rows] = {}
    headers: tuple[str, ...] = ()
    for line in page.splitlines():
        if not line.startswith("| "):
            headers = ()
            continue
        cells = tuple(cell.replace("\\|", "|").strip() for cell in line[2:-2].split(" | "))
        if not headers:
            headers = cells
            found[headers] = []
        elif set(cells) != {"---"}:
            found[headers].append(dict(zip(headers, cells, strict=True)))
    return found


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(_cell(c) for c in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _decibels(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f}"
