"""What ``report`` has found, part by part."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from common._advice import FLOAT
from common._figures import file_figures
from common._inspected import PteInspection
from common._op_rows import INT8, Border, ReportedOp
from common._source_line import line_of_error
from common._verification import Verification
from common.layers import LayerErrors
from common.timing import Comparison
from common.viz import Drawing

INT8_PTE, FP32_PTE = "int8 .pte", "fp32 .pte"
_LONGEST = 700
T = TypeVar("T")
# what torch.export says of symbols after the sentence
_DETAILS = re.compile(r" \((?:unhinted|Size-like symbols): .*")


@dataclass(frozen=True)
class Failure:
    """A part that could not be done.

    Attributes:
        sentence: why.
    """

    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Accuracy:
    """Share of the labelled inputs whose highest score is at the label's position, 0 to 1.

    Attributes:
        fp32: of the model.
        qdq: of the Q/DQ graph.
        pte: of the int8 program.
        count: how many inputs; those that fill no whole batch are left out.
    """

    fp32: float
    qdq: float
    pte: float
    count: int


@dataclass(frozen=True)
class ReportedProgram:
    """A ``.pte`` that was made.

    Attributes:
        pte: its bytes, for ``save_pte`` and ``PteRunner``.
        contents: what is in it.
        verification: how it compares with its graph, and the int8 one with the fp32 model.
    """

    pte: bytes = field(repr=False)
    contents: PteInspection | Failure
    verification: Verification | Failure


@dataclass(frozen=True)
class Findings:
    """The parts of a report. Each is a value, or a `Failure` that says why there is none.

    Attributes:
        name: class of the model.
        quantized: whether the model was quantized; ``ops``, ``borders`` and ``picture`` are then
            those of the int8 program, else of the fp32 one.
        ops: each op of the exported model.
        borders: tensors that enter or leave a delegate in the middle.
        int8: the quantized program.
        fp32: the program of the model as it is.
        layers: SQNR of each layer of the Q/DQ graph against the model.
        accuracy: on the labelled data.
        latency: seconds of the two programs, measured in turn.
        threads: that ExecuTorch had meanwhile.
        picture: delegates and what lies between them.
        warnings: what was mended on the way, and Python's warnings.
        seconds: where the time went, by step; a step inside another one is not counted twice.
    """

    name: str
    quantized: bool
    ops: tuple[ReportedOp, ...] | Failure
    borders: tuple[Border, ...] | Failure
    int8: ReportedProgram | Failure
    fp32: ReportedProgram | Failure
    layers: LayerErrors | Failure
    accuracy: Accuracy | Failure
    latency: Comparison | Failure
    threads: int
    picture: Drawing | Failure
    warnings: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def outside(self) -> tuple[ReportedOp, ...]:
        """The ops that are computed outside of every delegate, in whole or in part."""
        return () if isinstance(self.ops, Failure) else tuple(o for o in self.ops if o.outside)

    @property
    def in_float(self) -> tuple[ReportedOp, ...]:
        """The ops that a delegate computes in float32, in whole or in part."""
        if isinstance(self.ops, Failure):
            return ()
        return tuple(op for op in self.ops if FLOAT in op.computes)

    @property
    def in_int8(self) -> tuple[ReportedOp, ...]:
        """The ops that a delegate computes in int8, in whole or in part."""
        if isinstance(self.ops, Failure):
            return ()
        return tuple(op for op in self.ops if INT8 in op.computes)

    @property
    def figures(self) -> dict[str, float | str]:
        """Numbers by name, which the command's limits are for; see `NAMES`.

        Where there is no number, a text says why.
        """
        int8 = _contents(self.int8)
        graph = self.int8 if isinstance(self.int8, Failure) else self.int8.verification
        return {
            "delegates": _of(int8, lambda c: _count(c, "delegates")),
            "outside": _of(int8, lambda c: _count(c, "outside")),
            "float_ops": _of(self._of_int8(), lambda _: len(self.in_float)),
            "sqnr": _of(graph, _to_fp32),
            "sqnr_graph": _of(graph, lambda v: min(o.sqnr for o in v.outputs)),
            "layer_sqnr": _of(self.layers, lambda v: v.worst.sqnr_db),
            "accuracy": _of(self.accuracy, lambda a: a.pte),
            "accuracy_fp32": _of(self.accuracy, lambda a: a.fp32),
            "accuracy_drop": _of(self.accuracy, lambda a: a.fp32 - a.pte),
            "bytes": _of(self.int8, lambda p: len(p.pte)),
            "bytes_fp32": _of(self.fp32, lambda p: len(p.pte)),
            "bytes_ratio": _of(
                self.int8, lambda a: _of(self.fp32, lambda b: len(a.pte) / len(b.pte))
            ),
            "arena": _of(int8, lambda c: _count(c, "arena")),
            "speedup": _of(self.latency, lambda c: c.ratio(FP32_PTE, INT8_PTE)),
            "warnings": len(self.warnings),
        }

    def _of_int8(self) -> ReportedProgram | Failure:
        return self.ops if isinstance(self.ops, Failure) else self.int8


def attempt(part: Callable[[], T]) -> T | Failure:
    """Do a part; what it raises becomes a `Failure`."""
    try:
        return part()
    except Exception as error:  # a model, and torch, may raise anything
        return Failure(sentence(error))


def sentence(error: BaseException) -> str:
    """Say what was raised. Another's exception: its type, its first line, the model's line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = line_of_error(error)
    if type(error).__module__.startswith("common.") or (place is None and _is_plain(error)):
        return _cut(" ".join(lines))
    first = _DETAILS.sub("", lines[0]) if lines else "without a message"
    at = "" if place is None else f' at {place} ("{place.code}")'
    return _cut(f"{type(error).__name__}{at}: {first}")


def _is_plain(error: BaseException) -> bool:
    return type(error) in (ValueError, TypeError)


def _cut(said: str) -> str:
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def _of(part: T | Failure, figure: Callable[[T], float | str]) -> float | str:
    return part.sentence if isinstance(part, Failure) else figure(part)


def _contents(program: ReportedProgram | Failure) -> PteInspection | Failure:
    return program if isinstance(program, Failure) else program.contents


def _count(found: PteInspection, what: str) -> float | str:
    return file_figures(found)[what]


def _to_fp32(found: Verification) -> float | str:
    values = [o.sqnr_fp32 for o in found.outputs if o.sqnr_fp32 is not None]
    return min(values, default=math.nan) if values else "it was not compared with the fp32 model"
