"""The figures of a report by name, and the limits that a command sets them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from common._inspected import PteInspection

MIN, MAX = "min", "max"
NAMES = {
    "delegates": "delegates of the int8 program",
    "outside": "calls of ops outside of every delegate",
    "float_ops": "ops of the model that a delegate computes in float32, in whole or in part",
    "sqnr": "SQNR in dB of the int8 .pte against the fp32 model, the worst output",
    "sqnr_graph": "SQNR in dB of the int8 .pte against the Q/DQ graph, the worst output",
    "layer_sqnr": "SQNR in dB of the worst layer of the Q/DQ graph",
    "accuracy": "accuracy of the int8 .pte on the labelled data, 0 to 1",
    "accuracy_fp32": "accuracy of the fp32 model on them",
    "accuracy_drop": "accuracy_fp32 - accuracy",
    "bytes": "size of the int8 .pte",
    "bytes_fp32": "size of the fp32 .pte",
    "bytes_ratio": "bytes / bytes_fp32",
    "arena": "bytes of planned memory of the int8 program",
    "speedup": "how many times longer the fp32 .pte takes than the int8 one",
    "warnings": "what was mended or warned of on the way",
}
"""What ``Report.figures`` holds."""

_SIDES = {
    "delegates": MAX, "outside": MAX, "float_ops": MAX, "sqnr": MIN, "sqnr_graph": MIN,
    "layer_sqnr": MIN, "accuracy": MIN, "accuracy_drop": MAX, "bytes": MAX, "bytes_ratio": MAX,
    "arena": MAX, "speedup": MIN, "warnings": MAX,
}  # fmt: skip
_OF_A_FILE = ("delegates", "outside", "bytes", "arena")


@dataclass(frozen=True)
class Limit:
    """A line that a figure must hold.

    Attributes:
        name: of the figure, see `NAMES`.
        value: the least or the most that it may be.

    Example:
        >>> Limit("sqnr", 30).failure({"sqnr": 28.5})
        '--min-sqnr 30: it is 28.5'
    """

    name: str
    value: float

    def __str__(self) -> str:
        return f"{_option(self.name)} {self.value:g}"

    def failure(self, figures: Mapping[str, float | str]) -> str:
        """Say why it does not hold; empty where it does.

        Args:
            figures: numbers by name; a text where there is no number says why.
        """
        found = figures.get(self.name, "it is not known of a file without its model")
        if isinstance(found, str):
            return f"{self}: {found}"
        # a NaN holds no limit
        holds = found >= self.value if _SIDES[self.name] == MIN else found <= self.value
        return "" if holds else f"{self}: it is {found:.6g}"


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Give a command one option for each limit: ``--max-delegates``, ``--min-sqnr``."""
    group = parser.add_argument_group(
        "limits", f"Status 1 when one does not hold. Of a .pte alone: {', '.join(_OF_A_FILE)}."
    )
    for name in _SIDES:
        group.add_argument(_option(name), dest=name, type=float, metavar="N", help=NAMES[name])


def limits(options: argparse.Namespace) -> list[Limit]:
    """Return the limits that were given."""
    given = ((name, getattr(options, name)) for name in _SIDES)
    return [Limit(name, value) for name, value in given if value is not None]


def file_figures(found: PteInspection) -> dict[str, float | str]:
    """Return the figures that a file has without its model, its methods together."""
    methods = [method for method in found.methods if method.steps]
    return {
        "delegates": sum(len(m.delegates) for m in methods),
        "outside": sum(o.calls for m in methods for o in m.operators),
        "bytes": found.size,
        "arena": sum(sum(m.arena) for m in methods),
    }


def _option(name: str) -> str:
    return f"--{_SIDES[name]}-{name.replace('_', '-')}"
