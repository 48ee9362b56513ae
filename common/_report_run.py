"""Making a report: each step once, each part by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx

from common._example import traceable
from common._exported import row_major_nonzero
from common._exports import export, exports_kept
from common._inspect_pte import inspect_pte
from common._inspected import PteInspection
from common._journal import Journal, journal, note, step
from common._lowering import Lowered, course_digits, lower_to_xnnpack, xnnpack_ptq
from common._measured import FEW, MANY, Kept, accuracies, latency, loaded, of_ops, to_compare
from common._op_rows import ReportedOp, asked_rows, borders, op_rows
from common._overview import overview
from common._progress import progress
from common._reported import Accuracy, Failure, Findings, ReportedProgram, attempt
from common._runner import PteRunner
from common._signature import Inputs
from common._source_line import is_installed
from common._support import Refusal, partition, refusals
from common._threads import get_threads
from common._verification import Verification, compare, is_small
from common.env import capture_stderr
from common.layers import layer_sqnr
from common.pt2e import check_eval
from common.timing import Comparison

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
_SHARE, _SHORTEST, _LONGEST = 0.02, 0.3, 1.0  # of the time so far; seconds


@dataclass(frozen=True)
class Wanted:
    """What `report` was asked for; see there.

    Attributes:
        keywords: whether there are ``example_kwargs``: calibration then consists of pairs.
    """

    model: torch.nn.Module
    example: Inputs
    keywords: bool
    calibration: Iterable[tuple[Any, ...]] | None
    labelled: Any
    dynamic_shapes: Any
    quantizer: Any
    is_dynamic: bool
    measure: bool


def findings(wanted: Wanted) -> Findings:
    """Do all that `report` does; Python's warnings meanwhile go into the result."""
    with (
        progress("report") as on_step,
        journal(on_step) as told,
        exports_kept(),
        warnings.catch_warnings(record=True) as caught,
    ):
        run = _Run(wanted, told)
        parts = run.parts()
    said = [_in_a_line(warning) for warning in caught if _is_for_the_caller(warning)]
    return Findings(
        name=type(wanted.model).__name__,
        quantized=not isinstance(run.qdq, Failure),
        threads=get_threads(),
        warnings=tuple(dict.fromkeys([*told.notes, *said])),
        seconds=dict(told.seconds),
        **parts,
    )


class _Run:
    """A model on its road: exported, quantized, lowered twice. What failed is a `Failure`."""

    def __init__(self, wanted: Wanted, told: Journal) -> None:
        self.wanted, self.told = wanted, told
        self.traced = traceable(wanted.model, wanted.example, wanted.dynamic_shapes)
        self.kept = Kept(())
        self.program = attempt(self._export)
        # before lowering writes into the program
        self.graph = _with(self.program, _as_graph)
        self.qdq = _with(self.program, lambda _: self._quantize())
        self.refused: list[Refusal] = []
        self.int8 = _with(self.qdq, lambda gm: self._lower("int8", gm))
        self.fp32 = _with(self.program, lambda _: self._lower("fp32", wanted.model))

    def _export(self) -> torch.export.ExportedProgram:
        check_eval(self.wanted.model)
        with capture_stderr() as said, row_major_nonzero():  # the latter as lowering does
            program = export(self.wanted.model, self.traced, self.wanted.dynamic_shapes)
        for line in said.text.splitlines()[:1]:
            note(f"torch.export: {line.strip()}")
        return program

    def _quantize(self) -> fx.GraphModule:
        data = self.wanted.calibration
        if self.wanted.is_dynamic:
            data = None
        elif not isinstance(data, torch.Tensor):  # which xnnpack_ptq refuses
            data = self.kept = Kept(course_digits(self.wanted.example) if data is None else data)
        with step("quantize"):
            return xnnpack_ptq(
                self.wanted.model,
                self.wanted.example.args,
                calibration=data,
                quantizer=self.wanted.quantizer,
                is_dynamic=self.wanted.is_dynamic,
                **self._options(),
            )

    def _lower(self, name: str, gm: torch.nn.Module) -> Lowered:
        with step(f"lower {name}"), refusals() as refused:
            if name == "int8" or isinstance(self.qdq, Failure):
                self.refused = refused
            return lower_to_xnnpack(gm, self.wanted.example.args, verify=False, **self._options())

    def _options(self) -> dict[str, Any]:
        kwargs = self.wanted.example.kwargs if self.wanted.keywords else None
        return {"dynamic_shapes": self.wanted.dynamic_shapes, "example_kwargs": kwargs}

    # --- what came out

    def parts(self) -> dict[str, Any]:
        """Return the parts of `Findings`."""
        shown = self.fp32 if isinstance(self.qdq, Failure) else self.int8
        found: dict[str, Any] = {
            "ops": _with(self.program, lambda program: self._ops(program, shown)),
            "borders": _with(shown, lambda lowered: borders(lowered.edge)),
        }
        with step("draw"):
            found["picture"] = _with(shown, self._picture)
        with step("load"):
            int8, fp32 = (_with(p, lambda p: loaded(p.pte)) for p in (self.int8, self.fp32))
        small = not isinstance(self.program, Failure) and is_small(self.program)
        inputs = to_compare(
            self.wanted.labelled,
            self.kept.first,
            self.traced,
            count=MANY if small else FEW,
            paired=self.wanted.keywords,
        )
        found["int8"] = self._program(self.int8, int8, self.qdq, inputs)
        found["fp32"] = self._program(self.fp32, fp32, self.graph, inputs)
        with step("layers"):
            some = inputs[: max(2, len(inputs) // 2)]
            found["layers"] = _both(
                self.graph, self.qdq, lambda a, b: of_ops(layer_sqnr(a, b, some), a)
            )
        with step("accuracy"):
            found["accuracy"] = self._accuracy(int8)
        with step("latency"):
            found["latency"] = self._latency(fp32, int8, inputs[0])
        return found

    def _ops(
        self, program: torch.export.ExportedProgram, shown: Lowered | Failure
    ) -> tuple[ReportedOp, ...]:
        qdq = None if isinstance(self.qdq, Failure) else self.qdq
        if not isinstance(shown, Failure):
            with step("follow the ops"):
                return op_rows(program, qdq, shown.edge, self.refused)
        with step("ask the partitioner"):
            gm = self.wanted.model if qdq is None else qdq
            asked = partition(export(gm, self.traced, self.wanted.dynamic_shapes))
            return asked_rows(program, qdq, asked, shown.sentence)

    def _picture(self, lowered: Lowered) -> Any:
        return overview(lowered.edge, title=type(self.wanted.model).__name__)

    def _program(
        self,
        lowered: Lowered | Failure,
        runner: PteRunner | Failure,
        graph: fx.GraphModule | Failure,
        inputs: list[Inputs],
    ) -> ReportedProgram | Failure:
        if isinstance(lowered, Failure):
            return lowered
        fp32 = None if graph is self.graph or isinstance(self.graph, Failure) else self.graph

        def verified(graph: fx.GraphModule, _: PteRunner) -> Verification:
            return compare(lowered.pte, graph, graph, inputs, fp32=fp32)

        def contents() -> PteInspection:
            return inspect_pte(lowered.pte)

        with step("verify"):
            verification = _both(graph, runner, verified)
        with step("inspect"):
            return ReportedProgram(lowered.pte, attempt(contents), verification)

    def _accuracy(self, int8: PteRunner | Failure) -> Accuracy | Failure:
        if self.wanted.labelled is None:
            return Failure("no labelled data was given")
        graphs = _both(self.graph, self.qdq, lambda graph, qdq: (graph, qdq))
        labelled, example = self.wanted.labelled, self.traced
        return _both(
            graphs,
            int8,
            lambda both, runner: accuracies(both[0], both[1], runner, labelled, example),
        )

    def _latency(
        self, fp32: PteRunner | Failure, int8: PteRunner | Failure, inputs: Inputs
    ) -> Comparison | Failure:
        if not self.wanted.measure:
            return Failure("not asked for: measure=False")
        spent = sum(self.told.seconds.values())
        seconds = min(max(_SHARE * spent, _SHORTEST), _LONGEST)
        return _both(fp32, int8, lambda a, b: latency(a, b, inputs, seconds=seconds))


def _is_for_the_caller(warning: warnings.WarningMessage) -> bool:
    """Whether it is about the model; libraries warn each other of what will go away."""
    deprecated = DeprecationWarning, PendingDeprecationWarning, FutureWarning
    return not issubclass(warning.category, deprecated) or not is_installed(warning.filename)


def _in_a_line(warning: warnings.WarningMessage) -> str:
    lines = str(warning.message).strip().splitlines()
    return f"{warning.category.__name__}: {lines[0] if lines else 'without a message'}"


def _as_graph(program: torch.export.ExportedProgram) -> fx.GraphModule:
    graph = program.module()
    assert isinstance(graph, fx.GraphModule)
    return graph


def _with(part: A | Failure, use: Callable[[A], T]) -> T | Failure:
    """Do something with a part; without it the reason is handed on."""
    return part if isinstance(part, Failure) else attempt(lambda: use(part))


def _both(a: A | Failure, b: B | Failure, use: Callable[[A, B], T]) -> T | Failure:
    return _with(a, lambda a: b if isinstance(b, Failure) else use(a, b))
