"""Does a ``.pte`` compute what its graph computes? Run both and compare.

A ``.pte`` of a Q/DQ graph may differ from it: XNNPACK rounds the bias to an integer and computes
in integers, so now and then a value falls on the other side of a rounding border, one LSB away,
and deeper layers pass that on. How much of it is innocent depends on the network. So the network
itself gives the bound: the same graph **without rounding** (see ``_rounding``) tells how much all
rounding together changes each output. A ``.pte`` in which few of these values are rounded the
other way differs by less: over chains of 1 to 16 convolutions by 5 to 27 dB less.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._errors import PteError, VerificationError
from common._isolated import check_isolated
from common._pte_file import read_description, read_pte
from common._rounding import input_ranges, is_dynamic, output_scales, without_rounding
from common._runner import PteRunner
from common._samples import fresh_inputs
from common._signature import call
from common._table import ShownAsTable, Table, table
from common.metrics import lsb_distance, sqnr_db

MARGIN_DB = 6.0
"""How far below the SQNR of the graph's own rounding a ``.pte`` may be: few outputs make the
estimate of either uncertain by some dB."""
FLOAT_DB = 60.0
"""The least SQNR of a program without quantization. In float32, order of summation and
approximate functions leave 90 dB and more."""
N_INPUTS = 4
SMALL = 5_000_000
"""Parameters and buffers, in values, up to which a program counts as small."""

Outputs = list[torch.Tensor]


@dataclass(frozen=True)
class OutputCheck:
    """How one output of a ``.pte`` compares with its graph, over all inputs.

    Attributes:
        index: which output, counted flat from 0.
        sqnr: in dB; ``inf`` when they are equal.
        least: the SQNR that rounding explains, in dB, margin included.
        max_lsb: largest distance in steps of the output's scale; None where the graph does not
            end in a dequantize node.
        top1: share of the rows (last dimension) with the same largest entry; None for outputs
            whose rows hold one entry, and for integers.
        equal: share of the elements that are equal bit for bit.
        sqnr_fp32: in dB, of the ``.pte`` against the fp32 model, where one was given.
    """

    index: int
    sqnr: float
    least: float
    max_lsb: int | None
    top1: float | None
    equal: float
    sqnr_fp32: float | None = None


@dataclass(frozen=True)
class Verification(ShownAsTable):
    """What ``verify`` found. ``str()`` and the display in a notebook are a table.

    Attributes:
        outputs: one `OutputCheck` each.
        n_inputs: on how many inputs both were run.
        reference: ``"graph"``, or ``"graph without rounding"`` for dynamic quantization: there
            the ``.pte`` quantizes each row with a scale of its own and the graph whole tensors.
    """

    outputs: tuple[OutputCheck, ...]
    n_inputs: int
    reference: str = "graph"

    def _table(self) -> Table:
        rows = [
            (
                o.index,
                _decibels(o.sqnr),
                _decibels(o.least),
                "-" if o.max_lsb is None else o.max_lsb,
                f"{o.equal:.1%}",
                "-" if o.top1 is None else f"{o.top1:.1%}",
                _decibels(o.sqnr_fp32),
            )
            for o in self.outputs
        ]
        headers = ("output", "SQNR", "at least", "max LSB", "bit-equal", "top-1", "SQNR to fp32")
        inputs = f"{self.n_inputs} input{'s' * (self.n_inputs != 1)}"
        return table(rows, headers, title=f".pte against its {self.reference}, {inputs}")


def verify(
    pte: str | os.PathLike[str] | bytes,
    gm: torch.nn.Module,
    inputs: Iterable[tuple[Any, ...]],
    *,
    fp32: torch.nn.Module | None = None,
) -> Verification:
    """Run a ``.pte`` and the graph it came from on the same inputs, and compare each output.

    ``lower_to_xnnpack(…, verify=True)`` does it with inputs that it makes.

    Args:
        pte: path of the program, or its bytes.
        gm: what was given to ``lower_to_xnnpack``: a Q/DQ graph or an fp32 model. A copy runs.
        inputs: tuples as for ``forward``. They run in this order, so that a model with state is
            compared from state to state.
        fp32: the model before quantization: it tells what quantization and lowering cost
            together. It decides nothing.

    Returns:
        A `Verification`.

    Raises:
        VerificationError: an output differs by more than rounding explains (for the bound see
            `OutputCheck.least`), has another shape or dtype, or holds a NaN or an infinity where
            the graph's does not; or the program cannot be loaded, or fails while it runs.
        ValueError: ``inputs`` is empty.

    Example:
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> layer, x = torch.nn.Linear(4, 2).eval(), torch.ones(1, 4)
        >>> _, pte = lower_to_xnnpack(layer, (x,))
        >>> verify(pte, layer, [(x,)]).outputs[0].sqnr > 100
        True
        >>> verify(pte, torch.nn.Linear(4, 2).eval(), [(x,)])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        common._errors.VerificationError: the .pte does not compute what its graph computes: ...
    """
    batches = _not_empty(inputs)
    graph = gm
    if not isinstance(gm, fx.GraphModule):
        graph = torch.export.export(gm, _cloned(batches[0])).module()
    assert isinstance(graph, fx.GraphModule)
    return compare(read_pte(pte), gm, graph, batches, fp32=fp32)


def verify_lowered(
    pte: bytes,
    gm: torch.nn.Module,
    program: torch.export.ExportedProgram,
    example: tuple[Any, ...],
    *,
    inputs: Iterable[tuple[Any, ...]] | None = None,
    fp32: torch.nn.Module | None = None,
) -> Verification:
    """Run ``verify``, by default on the example and on inputs made from it that the graph takes."""
    graph = program.module()
    assert isinstance(graph, fx.GraphModule)
    if inputs is not None:
        return compare(pte, gm, graph, _not_empty(inputs), fp32=fp32)
    leaves, spec = pytree.tree_flatten(example)
    fresh = fresh_inputs(program, leaves, input_ranges(graph), count=N_INPUTS)
    stateful = bool(program.graph_signature.buffers_to_mutate)
    batches = _those_that_run(gm, (pytree.tree_unflatten(x, spec) for x in fresh), stateful)
    return compare(pte, gm, graph, batches, fp32=fp32)


def is_small(program: torch.export.ExportedProgram) -> bool:
    """Tell whether verification costs little beside lowering."""
    return sum(t.numel() for t in program.state_dict.values()) <= SMALL


def compare(
    pte: bytes,
    gm: torch.nn.Module,
    graph: fx.GraphModule,
    batches: Sequence[tuple[Any, ...]],
    *,
    fp32: torch.nn.Module | None,
) -> Verification:
    """Run all on the same inputs and compare; ``graph`` is ``gm`` as one graph of ATen ops."""
    exact = without_rounding(graph)
    in_graph = list(_run(gm, batches))
    in_exact = in_graph if exact is None else list(_run(exact, batches))
    in_fp32 = None if fp32 is None else list(_run(fp32, batches))
    in_pte = _run_pte(pte, batches)
    n_outputs = len(in_graph[0])
    if len(in_pte[0]) != n_outputs:
        raise VerificationError(f"the .pte has {len(in_pte[0])} outputs, its graph {n_outputs}")
    by_row = is_dynamic(graph)
    checks = []
    for i, scale in enumerate(output_scales(graph)):
        for n, (ours, theirs) in enumerate(zip(in_pte, in_graph, strict=True)):
            _check_alike(f"input {n}, output {i}", ours[i], theirs[i])
        got, expected, unrounded = (_column(runs, i) for runs in (in_pte, in_graph, in_exact))
        least = FLOAT_DB
        if exact is not None:
            least = min(least, _sqnr(unrounded, expected) - MARGIN_DB)
        to_fp32 = None if in_fp32 is None else _sqnr(_column(in_fp32, i), got)
        reference = unrounded if by_row else expected
        checks.append(_compare(i, got, reference, least, scale, to_fp32))
    name = "graph without rounding" if by_row else "graph"
    return Verification(tuple(checks), len(batches), name)


def _not_empty(inputs: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    batches = list(inputs)
    if not batches:
        raise ValueError("inputs to verify with: expected at least one tuple of inputs, got none")
    return batches


def _those_that_run(
    gm: torch.nn.Module, batches: Iterator[tuple[Any, ...]], stateful: bool
) -> list[tuple[Any, ...]]:
    good = [next(batches)]  # the example: torch.export has run it
    for batch in batches:
        try:
            (outputs,) = _run(gm, [batch])
        except Exception:  # a model can refuse an input with any exception
            if stateful:
                break
            continue
        if all(torch.isfinite(x).all() for x in outputs):
            good.append(batch)
    return good


def _run(module: torch.nn.Module, batches: Iterable[tuple[Any, ...]]) -> Iterator[Outputs]:
    module = copy.deepcopy(module)  # one with state starts from the state it has
    with torch.no_grad():
        for batch in batches:
            yield _leaves(call(module, _cloned(batch)))


def _run_pte(pte: bytes, batches: Sequence[tuple[Any, ...]]) -> list[Outputs]:
    try:
        if sys.platform == "linux":  # elsewhere it takes longer than to lower a small model
            check_isolated(pte, read_description(pte), "forward", may_fail=True)
        runner = PteRunner(pte)
        return [_leaves(call(runner, _cloned(batch))) for batch in batches]
    except (PteError, ValueError, TypeError) as error:
        raise VerificationError(
            f"the .pte does not run on inputs that its graph takes: {error}\n"
            "verify=False returns the program all the same."
        ) from error


def _cloned(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    cloned: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, torch.clone, batch)
    return cloned


def _leaves(outputs: Any) -> Outputs:
    leaves = pytree.tree_leaves(outputs)
    # None, which forward may return, is compared as a tensor without elements
    values = [torch.empty(0) if x is None else x for x in leaves]
    return [x.detach() if isinstance(x, torch.Tensor) else torch.tensor(x) for x in values]


def _column(runs: Sequence[Outputs], i: int) -> torch.Tensor:
    """One output over all inputs; rows stay rows where they have the same length."""
    values = [outputs[i] for outputs in runs]
    widths = {x.shape[-1] if x.dim() else 1 for x in values}
    width = widths.pop() if len(widths) == 1 else 1
    return torch.cat([x.reshape(-1, width) if x.numel() else x.new_empty(0, width) for x in values])


def _check_alike(where: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise VerificationError(
            f"{where}: the .pte gives {tuple(got.shape)} {got.dtype}, "
            f"its graph {tuple(expected.shape)} {expected.dtype}"
        )
    ours, theirs = torch.isfinite(got), torch.isfinite(expected)
    if not torch.equal(ours, theirs):
        raise VerificationError(
            f"{where}: {(~ours).sum()} NaN or infinite values in the .pte, "
            f"{(~theirs).sum()} in its graph, of {got.numel()}, at different places. "
            "A quantized program gives finite values for a NaN."
        )


def _compare(
    i: int,
    got: torch.Tensor,
    expected: torch.Tensor,
    least: float,
    scale: float | None,
    sqnr_fp32: float | None,
) -> OutputCheck:
    finite = torch.isfinite(expected)
    equal = (got == expected)[finite].double().mean().item() if finite.any() else 1.0
    real = got.is_floating_point()
    steps = None
    if scale is not None and finite.any():
        steps = int(lsb_distance(got[finite], expected[finite], scale).max().item())
    top1 = None
    if real and got.shape[1] > 1 and len(got):
        top1 = (got.argmax(1) == expected.argmax(1)).double().mean().item()
    check = OutputCheck(i, _sqnr(expected, got), least, steps, top1, equal, sqnr_fp32)
    if real:
        # One step is what a single rounding may differ by, however few values there are.
        wrong = check.sqnr < least and (steps is None or steps > 1)
    else:
        # A position or a class: equal or not. After int8 two candidates are often equally good.
        wrong = equal < (0.98 if least == FLOAT_DB else 0.5)
    if wrong:
        lsb = "" if steps is None else f", at most {steps} LSB apart"
        raise VerificationError(
            f"the .pte does not compute what its graph computes: output {i} agrees with "
            f"{check.sqnr:.1f} dB ({equal:.1%} of the elements are equal{lsb}), where rounding "
            f"explains no less than {least:.1f} dB. Do not use this program. Lower parts of the "
            "model to find the op; verify=False returns the program all the same."
        )
    return check


def _sqnr(reference: torch.Tensor, actual: torch.Tensor) -> float:
    finite = torch.isfinite(reference) & torch.isfinite(actual)
    if not finite.any():
        return math.inf
    reference, actual = reference[finite], actual[finite]
    if not reference.any() and actual.double().abs().max() <= 1e-6:
        return math.inf  # zeros: no signal to measure noise by
    return sqnr_db(reference, actual)


def _decibels(value: float | None) -> str:
    return "-" if value is None else "equal" if value == math.inf else f"{value:.1f} dB"
