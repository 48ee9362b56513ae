"""The result as rows, as text and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.runtimes.catalogue import BASE

if TYPE_CHECKING:
    from tools.runtimes.turns import Measured

HEADERS = ("variant", f"time / {BASE}", "middle half", "SQNR, dB", "same top-1")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Row:
    """One variant of one network.

    Attributes:
        name: the variant.
        ratio: its time over that of `BASE`, the median over the rounds.
        low: first quartile of that ratio.
        high: third quartile.
        sqnr: agreement with eager fp32 over all test inputs, in dB.
        top1: share of the test inputs whose largest score is at the same place as in eager fp32.
    """

    name: str
    ratio: float
    low: float
    high: float
    sqnr: float
    top1: float

    def cells(self) -> tuple[str, ...]:
        """Return the texts below `HEADERS`."""
        sqnr = "exact" if math.isinf(self.sqnr) else f"{self.sqnr:.1f}"
        spread = f"{self.low:.2f}–{self.high:.2f}"
        return (self.name, f"{self.ratio:.2f}", spread, sqnr, f"{self.top1:.1%}")


def rows(measured: Measured) -> list[Row]:
    """Compute the rows from times and outputs, in the order in which the variants were named."""
    import torch

    from common.metrics import sqnr_db

    reference = torch.from_numpy(measured.reference)
    found = []
    for name in measured.times.seconds:
        y = torch.from_numpy(measured.outputs[name])
        low, high = measured.times.ratio_range(name, BASE)
        found.append(
            Row(
                name,
                measured.times.ratio(name, BASE),
                low,
                high,
                sqnr_db(reference, y),
                (y.argmax(1) == reference.argmax(1)).double().mean().item(),
            )
        )
    return found


def markdown(title: str, found: Sequence[Row], notes: Iterable[str] = ()) -> str:
    """Return a section: heading, table, and a sentence for whatever is not in the table."""
    lines = [f"## {title}", "", *_table(found)]
    for note in notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _table(found: Sequence[Row]) -> list[str]:
    bars = "|".join(["---", *["---:"] * (len(HEADERS) - 1)])
    return [
        f"| {' | '.join(HEADERS)} |",
        f"|{bars}|",
        *(f"| {' | '.join(row.cells())} |" for row in found),
    ]


def write(path: Path, text: str) -> None:
    """Put the text between the two marks of a page; what is written around them stays.

    Raises:
        ValueError: the page does not hold both marks, once each and in order.
    """
    page = path.read_text("utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"{path.name}: expected {BEGIN} and then {END}, once each")
    path.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}", "utf-8")
