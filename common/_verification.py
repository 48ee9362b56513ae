"""Does a ``.pte`` compute what its graph computes? Run both and compare.

A ``.pte`` of a Q/DQ graph may differ from it: XNNPACK rounds the bias to an integer and computes
in integers, so now and then a value falls on the other side of a rounding border, one LSB away,
and deeper layers pass that on. How much of it is innocent is said in ``_agreement``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._agreement import (
    TELLING_DB,
    Output,
    OutputCheck,
    check_alike,
    check_output,
    not_telling,
)
from common._errors import PteError, VerificationError
from common._isolated import check_isolated
from common._pte_file import find_plan, read_description, read_pte
from common._rounding import in_float64, input_ranges, is_dynamic, output_scales, without_rounding
from common._runner import PteRunner
from common._samples import fresh_inputs
from common._signature import Inputs, call, is_pair, read_signature
from common._state import unchanged
from common._table import ShownAsTable, Table, table

N_INPUTS = 4
SMALL = 5_000_000
"""Parameters and buffers, in values, up to which a program counts as small."""

Batch = tuple[Any, ...]


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
                _decibels(o.least) if o.least >= TELLING_DB else "cannot tell",
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
    inputs: Iterable[Batch],
    *,
    fp32: torch.nn.Module | None = None,
) -> Verification:
    """Run a ``.pte`` and the graph it came from on the same inputs, and compare each output.

    ``lower_to_xnnpack(…, verify=True)`` does it with inputs that it makes.

    Args:
        pte: path of the program, or its bytes.
        gm: what was given to ``lower_to_xnnpack``: a Q/DQ graph or an fp32 model. Its buffers are
            restored afterwards.
        inputs: tuples as for ``forward``; pairs ``(args, kwargs)`` of a tuple and a dict where it
            takes inputs by name. They run in this order, so that a model with state is compared
            from state to state.
        fp32: the model before quantization: it tells what quantization and lowering cost
            together. It decides nothing.

    Returns:
        A `Verification`.

    Raises:
        VerificationError: an output differs by more than rounding explains (for the bound see
            `OutputCheck.least`), has another shape or dtype, or holds a NaN or an infinity where
            the graph's does not; the outputs have another structure; or the program cannot be
            loaded, or fails while it runs.
        TypeError: an item of ``inputs`` is not a tuple, or no pair where one is needed.
        ValueError: ``inputs`` is empty.

    Warns:
        UserWarning: rounding changes an output by as much as it is large: nothing is proven.

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
    data = read_pte(pte)
    batches = _checked(data, inputs)
    graph = gm
    if not isinstance(gm, fx.GraphModule):
        args = _cloned(batches[0])
        args = args if isinstance(args, Inputs) else Inputs(args, {})
        graph = torch.export.export(gm, *args).module()
    assert isinstance(graph, fx.GraphModule)
    return compare(data, gm, graph, batches, fp32=fp32)


def verify_lowered(
    pte: bytes,
    gm: torch.nn.Module,
    program: torch.export.ExportedProgram,
    example: Batch,
    *,
    inputs: Iterable[Batch] | None = None,
    fp32: torch.nn.Module | None = None,
) -> Verification:
    """Run ``verify``, by default on the example and on inputs made from it that the graph takes."""
    graph = program.module()
    assert isinstance(graph, fx.GraphModule)
    if inputs is not None:
        return compare(pte, gm, graph, _checked(pte, inputs), fp32=fp32)
    leaves, spec = pytree.tree_flatten(example)
    fresh = fresh_inputs(program, leaves, input_ranges(graph), count=N_INPUTS)
    runner = _loaded(pte)
    fitting = (x for x in fresh if runner._find_misfit(x) is None)
    ran = _run_what_it_takes(gm, (pytree.tree_unflatten(x, spec) for x in fitting))
    return _compare(runner, graph, *zip(*ran, strict=True), fp32=fp32)


def is_small(program: torch.export.ExportedProgram) -> bool:
    """Tell whether verification costs little beside lowering."""
    return sum(t.numel() for t in program.state_dict.values()) <= SMALL


def compare(
    pte: bytes,
    gm: torch.nn.Module,
    graph: fx.GraphModule,
    batches: Sequence[Batch],
    *,
    fp32: torch.nn.Module | None,
) -> Verification:
    """Run all on the same inputs and compare; ``graph`` is ``gm`` as one graph of ATen ops."""
    return _compare(_loaded(pte), graph, batches, _run(gm, batches), fp32=fp32)


def _compare(
    runner: PteRunner,
    graph: fx.GraphModule,
    batches: Sequence[Batch],
    in_graph: Sequence[Any],
    *,
    fp32: torch.nn.Module | None,
) -> Verification:
    in_pte = _run_pte(runner, batches)
    _check_structure(in_pte[0], in_graph[0], stored=runner._returns is not None)
    by_row = is_dynamic(graph)
    pte_leaves, graph_leaves = _leaves(in_pte), _leaves(in_graph)
    exact, is_quantized = _exact(graph, batches)
    fp32_leaves = None if fp32 is None else _leaves(_run(fp32, batches))
    checks = []
    for i, scale in enumerate(output_scales(graph)):
        for n, (ours, theirs) in enumerate(zip(pte_leaves, graph_leaves, strict=True)):
            check_alike(f"input {n}, output {i}", ours[i], theirs[i])
        expected = _column(graph_leaves, i)
        output = Output(
            pte=_column(pte_leaves, i),
            graph=expected,
            exact=_like(expected, exact, i),
            fp32=_like(expected, fp32_leaves, i),
            scale=scale,
            is_quantized=is_quantized,
            by_row=by_row,
        )
        check = check_output(i, output)
        if not check.is_telling:
            warnings.warn(not_telling(check), stacklevel=4)
        checks.append(check)
    name = "graph without rounding" if by_row else "graph"
    return Verification(tuple(checks), len(batches), name)


def _checked(pte: bytes, inputs: Iterable[Batch]) -> list[Batch]:
    """Return inputs as they are called: ``Inputs`` where the program takes some by name."""
    signature = read_signature(find_plan(read_description(pte), "forward"))
    batches: list[Batch] = []
    for n, batch in enumerate(inputs):
        if not isinstance(batch, tuple):
            raise TypeError(
                f"inputs to verify with: item {n}: expected a tuple of inputs, got "
                f"{type(batch).__name__}. Write (x,) for one tensor."
            )
        if signature is not None and signature.kwargs:
            if not is_pair(batch):
                names = ", ".join(signature.kwargs)
                raise TypeError(
                    f"inputs to verify with: item {n}: expected a pair (args, kwargs) of a tuple "
                    f"and a dict, since the program takes {names} by name"
                )
            batch = Inputs(*batch)
        batches.append(batch)
    if not batches:
        raise ValueError("inputs to verify with: expected at least one tuple of inputs, got none")
    return batches


def _loaded(pte: bytes) -> PteRunner:
    try:
        if sys.platform == "linux":  # elsewhere it takes longer than to lower a small model
            check_isolated(pte, read_description(pte), "forward", may_fail=True)
        return PteRunner(pte)
    except PteError as error:
        raise _does_not_run(error) from error


def _does_not_run(error: Exception) -> VerificationError:
    return VerificationError(
        f"the .pte does not run on inputs that its graph takes: {error}\n"
        "verify=False returns the program all the same."
    )


def _run_pte(runner: PteRunner, batches: Sequence[Batch]) -> list[Any]:
    try:
        return [call(runner, _cloned(batch)) for batch in batches]
    except (PteError, ValueError, TypeError) as error:
        raise _does_not_run(error) from error


def _run(module: torch.nn.Module, batches: Iterable[Batch]) -> list[Any]:
    with unchanged(module), torch.no_grad():
        return [_own(call(module, _cloned(batch))) for batch in batches]


def _run_what_it_takes(
    module: torch.nn.Module, batches: Iterator[Batch]
) -> list[tuple[Batch, Any]]:
    """Run the example, and what was made from it as long as the model takes it."""
    has_state = next(module.buffers(), None) is not None
    ran: list[tuple[Batch, Any]] = []
    with unchanged(module), torch.no_grad():
        for batch in batches:
            try:
                outputs = _own(call(module, _cloned(batch)))
            except Exception:  # a model can refuse an input with any exception
                if not ran:  # the example, which torch.export has run
                    raise
                outputs = None
            if not ran or (outputs is not None and _is_finite(outputs)):
                ran.append((batch, outputs))
            elif has_state:
                break  # it may be in a state that the program will not be in
    return ran


def _exact(
    graph: fx.GraphModule, batches: Sequence[Batch]
) -> tuple[list[list[torch.Tensor]] | None, bool]:
    """Run a graph without rounding, or, where no value is quantized, in float64.

    Returns:
        The outputs of each run, None where it cannot be done; and whether values are quantized.
    """
    exact = without_rounding(graph)
    if exact is not None:
        return _leaves(_run(exact, batches)), True
    try:
        wide = pytree.tree_map_only(torch.Tensor, _wide, batches)
        return _leaves(_run(in_float64(graph), wide)), False
    except Exception:  # an op that is not there in float64, or a graph that names float32
        return None, False


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def _cloned(batch: Batch) -> Batch:
    cloned: Batch = pytree.tree_map_only(torch.Tensor, torch.clone, batch)
    return cloned


def _own(outputs: Any) -> Any:
    """Copy what may be the model's state, or a view of an input."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), outputs)


def _leaves(runs: Iterable[Any]) -> list[list[torch.Tensor]]:
    # None, which forward may return, is compared as a tensor without elements
    return [
        [torch.empty(0) if x is None else torch.as_tensor(x) for x in pytree.tree_leaves(outputs)]
        for outputs in runs
    ]


def _is_finite(outputs: Any) -> bool:
    return all(bool(torch.isfinite(x).all()) for x in _leaves([outputs])[0])


def _check_structure(got: Any, expected: Any, *, stored: bool) -> None:
    ours, theirs = pytree.tree_structure(got), pytree.tree_structure(expected)
    if ours.num_leaves != theirs.num_leaves:
        raise VerificationError(
            f"the .pte has {ours.num_leaves} outputs, its graph {theirs.num_leaves}"
        )
    if theirs == pytree.tree_structure((None,)):
        theirs = pytree.tree_structure(None)  # one output comes back as a tensor
    if stored and ours != theirs:
        raise VerificationError(f"the .pte returns the structure {ours}, its graph {theirs}")


def _like(
    expected: torch.Tensor, runs: Sequence[list[torch.Tensor]] | None, i: int
) -> torch.Tensor | None:
    """Return one output of other runs; None where it has other sizes, as values decide them."""
    if runs is None or any(len(outputs) <= i for outputs in runs):
        return None
    column = _column(runs, i)
    return column if column.shape == expected.shape else None


def _column(runs: Sequence[list[torch.Tensor]], i: int) -> torch.Tensor:
    """One output over all inputs; rows stay rows where they have the same length."""
    values = [outputs[i] for outputs in runs]
    widths = {x.shape[-1] if x.dim() else 1 for x in values}
    width = widths.pop() if len(widths) == 1 else 1
    return torch.cat([x.reshape(-1, width) if x.numel() else x.new_empty(0, width) for x in values])


def _decibels(value: float | None) -> str:
    return "-" if value is None else "equal" if value == float("inf") else f"{value:.1f} dB"
