"""One model of the zoo on its whole road: quantize, lower, verify, and what is left outside."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import torch

from common import _lowering
from common._errors import LoweringError, VerificationError
from common._exports import export, exports_kept
from common._op_rows import ReportedOp, op_rows
from common._signature import Inputs
from common._support import refusals
from common.executorch_utils import delegation_summary, lower_to_xnnpack, xnnpack_ptq
from tools.zoo_models import CALIBRATION, Entry

_NOT_COMPUTED = ("alloc", "getitem")


@dataclass(frozen=True)
class Left:
    """Ops of one kind that stay outside every delegate.

    Attributes:
        op: its Edge name.
        count: how many.
        reason: ExecuTorch's words, or that there is no rule.
        line: the line of the model that asks for it.
        where: file and number of that line, or the submodule where no line is known.
    """

    op: str
    count: int
    reason: str
    line: str
    where: str


@dataclass(frozen=True)
class Found:
    """What became of one model.

    Attributes:
        name: of the entry.
        parameters: their number.
        delegates: number of delegates; so are the other counts those of the int8 program.
        inside: nodes in them.
        outside: nodes outside, ``getitem`` and ``alloc`` left out.
        left: what they are.
        int8: bytes of the int8 program, 0 when it is refused.
        fp32: bytes of the fp32 program, 0 when it is refused.
        sqnr: the worst output against the Q/DQ graph, in dB; None when they are equal.
        least: what rounding explains, in dB, of the same output.
        max_lsb: largest distance in steps of the output's scale, None without one.
        top1: share of rows with the same largest entry, None where a row is one value.
        sqnr_fp32: the worst output against the fp32 model, in dB.
        sqnr_float: the fp32 program against its model, in dB; None when they are equal.
        seconds: by step.
        refused: why there is no int8 program.
        refused_fp32: why there is no fp32 program.
    """

    name: str
    parameters: int
    delegates: int = 0
    inside: int = 0
    outside: int = 0
    left: tuple[Left, ...] = ()
    int8: int = 0
    fp32: int = 0
    sqnr: float | None = None
    least: float | None = None
    max_lsb: int | None = None
    top1: float | None = None
    sqnr_fp32: float | None = None
    sqnr_float: float | None = None
    seconds: dict[str, float] | None = None
    refused: str = ""
    refused_fp32: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Found:
        """Make one from what `to_json` returned."""
        values = dict(stored)
        values["left"] = tuple(Left(**item) for item in stored["left"])
        return cls(**values)


def measure(entry: Entry) -> Found:
    """Take a model down the road.

    A refusal is a result, not an error; so is a disagreement.
    """
    _warm_up()
    model = entry.model()
    (example,) = entry.batches(1, seed=2)
    found: dict[str, Any] = {
        "name": entry.name,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    with _clock() as seconds:
        try:
            found.update(_int8(entry, model, example))
        except (ValueError, TypeError, LoweringError, VerificationError) as error:
            found["refused"] = _one_line(error)
    found["seconds"] = {step: round(s, 1) for step, s in seconds.items()}
    try:
        lowered = lower_to_xnnpack(model, example, verify=True)
        found["fp32"] = len(lowered.pte)
        found["sqnr_float"] = _finite(min(o.sqnr for o in _checks(lowered)))
    except (ValueError, TypeError, LoweringError, VerificationError) as error:
        found["refused_fp32"] = _one_line(error)
    return Found(**found)


def _int8(entry: Entry, model: torch.nn.Module, example: tuple[Any, ...]) -> dict[str, Any]:
    calibration = None if entry.dynamic else entry.batches(CALIBRATION, seed=1)
    with exports_kept():
        program = export(model, Inputs(example, {}), None)
        graph = xnnpack_ptq(model, example, calibration=calibration, is_dynamic=entry.dynamic)
    with refusals() as refused:
        lowered = lower_to_xnnpack(graph, example, verify=True, fp32=model)
    summary = delegation_summary(lowered.edge)
    outside = {op: n for op, (_, n) in summary.by_op.items() if n and op not in _NOT_COMPUTED}
    worst = min(_checks(lowered), key=lambda o: o.sqnr)
    return {
        "delegates": summary.n_delegates,
        "inside": summary.n_delegated,
        "outside": sum(outside.values()),
        "left": grouped(op_rows(program, graph, lowered.edge, refused)),
        "int8": len(lowered.pte),
        "sqnr": _finite(worst.sqnr),
        "least": worst.least,
        "max_lsb": worst.max_lsb,
        "top1": worst.top1,
        "sqnr_fp32": min(o.sqnr_fp32 for o in _checks(lowered)),
    }


@functools.cache
def _warm_up() -> None:
    """Pay for what torch and ExecuTorch do once a process: else it is in the first row."""
    layer, example = torch.nn.Conv2d(1, 1, 1).eval(), (torch.ones(1, 1, 2, 2),)
    graph = xnnpack_ptq(layer, example, calibration=[example])
    lower_to_xnnpack(graph, example, verify=True)


def _checks(lowered: Any) -> tuple[Any, ...]:
    assert lowered.verification is not None
    checks: tuple[Any, ...] = lowered.verification.outputs
    return checks


def grouped(rows: Iterable[ReportedOp]) -> tuple[Left, ...]:
    """Count the ops outside every delegate by op, reason and line, in the order of the model."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for row in rows:
        for op in row.outside:
            code, where = ("", row.module) if row.line is None else (row.line.code, str(row.line))
            counts[(op, "; ".join(row.why), code, where)] += 1
    return tuple(Left(op, n, why, code, where) for (op, why, code, where), n in counts.items())


@contextlib.contextmanager
def _clock() -> Generator[dict[str, float], None, None]:
    """Measure the steps inside the helpers: the exports, quantization, lowering, verification."""
    seconds = dict.fromkeys(("export", "quantize", "lower", "verify"), 0.0)
    running: list[str] = []

    def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if step in running:
                return function(*args, **kwargs)
            outer = running[-1] if running else None
            running.append(step)
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - start
                running.pop()
                seconds[step] += took
                if outer:
                    seconds[outer] -= took

        return run

    here = globals()
    with (
        mock.patch.object(torch.export, "export", timed("export", torch.export.export)),
        mock.patch.object(_lowering, "verify_lowered", timed("verify", _lowering.verify_lowered)),
        mock.patch.dict(here, xnnpack_ptq=timed("quantize", xnnpack_ptq)),
        mock.patch.dict(here, lower_to_xnnpack=timed("lower", lower_to_xnnpack)),
    ):
        yield seconds


def _finite(sqnr: float) -> float | None:
    return None if sqnr == float("inf") else sqnr


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
