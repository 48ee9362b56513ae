"""From a model to a Q/DQ graph, and from there to a ``.pte`` for XNNPACK."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._errors import QuantizationError
from common._shared_constants import unshare
from common._unused_patterns import without_unused_patterns
from common.data import calibration_batches
from common.graph_utils import is_qdq
from common.pt2e import check_eval, check_example, export_graph, get_xnnpack_quantizer

COURSE_SHAPE = (3, 16, 16)


class Lowered(NamedTuple):
    """What ``lower_to_xnnpack`` returns.

    Attributes:
        edge: the ``EdgeProgramManager``; its graph shows what went into a delegate.
        pte: the program, ready to be saved or run.
    """

    edge: Any
    pte: bytes


class DelegationSummary(NamedTuple):
    """Which nodes of a lowered graph are inside a delegate.

    Attributes:
        n_delegates: number of delegates (subgraphs).
        n_delegated: nodes inside them.
        n_not_delegated: nodes outside, ``getitem`` and ``alloc`` included.
        by_op: ``{op: (delegated, not delegated)}`` in alphabetical order, Edge names.
    """

    n_delegates: int
    n_delegated: int
    n_not_delegated: int
    by_op: dict[str, tuple[int, int]]

    def __str__(self) -> str:
        total = self.n_delegated + self.n_not_delegated
        left = ", ".join(f"{op} {n}" for op, (_, n) in self.by_op.items() if n) or "none"
        return (
            f"{self.n_delegates} delegate{'s' * (self.n_delegates != 1)}, "
            f"{self.n_delegated} of {total} nodes inside; outside: {left}"
        )


def xnnpack_ptq(
    model: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    calibration: Iterable[tuple[Any, ...]] | None = None,
    is_per_channel: bool = True,
    is_dynamic: bool = False,
    quantizer: Any = None,
    dynamic_shapes: Any = None,
) -> fx.GraphModule:
    """Quantize a model after training for XNNPACK: export, prepare, calibrate, convert.

    Args:
        model: float32, in ``eval()`` mode; it is not changed.
        example_inputs: a tuple with one value per parameter of ``forward``. Its shapes are the
            ones the graph will accept, unless ``dynamic_shapes`` says otherwise.
        calibration: input tuples that are typical of the real data; a hundred are usually enough.
            Without it, a model whose one input has the course's shape ``(batch, 3, 16, 16)`` is
            calibrated with the course's training digits, in groups of the example's batch.
        is_per_channel: one weight scale per output channel instead of one per tensor.
        is_dynamic: quantize activations at run time; no calibration is needed or used.
        quantizer: a configured ``XNNPACKQuantizer``, for instance one that leaves a layer in
            float32; replaces ``is_per_channel`` and ``is_dynamic``.
        dynamic_shapes: as in ``torch.export.export``.

    Returns:
        The Q/DQ graph: float32 ops between quantize and dequantize nodes, int8 weights.

    Raises:
        TypeError: the example or a calibration batch is not a tuple, or a batch holds another
            dtype than the example.
        ValueError: the model is in training mode or not float32, there is no calibration data,
            or a batch holds a NaN, an infinity, or another shape than the example. The last three
            are ``QuantizationError``, a ``ValueError``.

    Example:
        >>> from common.data import trained_tiny_net
        >>> from common.models import example_inputs
        >>> qdq = xnnpack_ptq(trained_tiny_net(), example_inputs(1))
        >>> sum(n.op == "call_function" for n in qdq.graph.nodes)
        42
    """
    check_example(example_inputs)
    check_eval(model)
    _check_float32(model, example_inputs)
    if quantizer is None:
        quantizer, _ = get_xnnpack_quantizer(is_per_channel=is_per_channel, is_dynamic=is_dynamic)
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    traced = _traceable(model, example_inputs, dynamic_shapes)
    batches: Iterable[tuple[Any, ...]] = (
        [traced] if is_dynamic else _batches(calibration, example_inputs, dynamic_shapes)
    )
    graph = export_graph(model, traced, dynamic_shapes)
    prepared = prepare_pt2e(graph, _without_batch_norm_patterns(quantizer))
    with torch.no_grad():
        for n, batch in enumerate(batches):
            try:
                prepared(*batch)
            except AssertionError as error:  # the graph's guard on shapes
                raise QuantizationError(f"calibration batch {n} does not fit: {error}") from None
    converted = convert_pt2e(prepared)
    assert isinstance(converted, fx.GraphModule)
    return converted


def lower_to_xnnpack(
    gm: torch.nn.Module, example_inputs: tuple[Any, ...], *, dynamic_shapes: Any = None
) -> Lowered:
    """Lower a model to XNNPACK and serialize it.

    ``torch.export`` → ``to_edge_transform_and_lower([XnnpackPartitioner()])`` →
    ``to_executorch()``. The edge program shows what the ``.pte`` runs: memory planning has
    already added its ``alloc`` nodes.

    Args:
        gm: a Q/DQ graph from ``xnnpack_ptq``, or a float32 model in ``eval()`` mode.
        example_inputs: a tuple with one value per parameter of ``forward``.
        dynamic_shapes: as in ``torch.export.export``; each ``Dim`` needs a ``max=``, because the
            memory is planned for it. A Q/DQ graph must have been made with the same ones.

    Returns:
        ``(edge, pte)``: an ``EdgeProgramManager`` and the bytes of the program.

    Raises:
        TypeError: the example is not a tuple.
        ValueError: the model is in training mode, a dimension has no upper bound, or ``forward``
            changes one of its inputs.

    Example:
        >>> edge, pte = lower_to_xnnpack(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
        >>> print(delegation_summary(edge))
        1 delegate, 1 of 2 nodes inside; outside: getitem 1
    """
    check_example(example_inputs)
    check_eval(gm)
    gm = unshare(gm)
    traced = _traceable(gm, example_inputs, dynamic_shapes)
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(gm, traced, dynamic_shapes=dynamic_shapes)
    _check_bounded(program)
    with without_unused_patterns(program):
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    _check_inputs_unchanged(edge.exported_program())
    if any(is_qdq(node) for node in edge.exported_program().graph.nodes):
        # Quantize nodes outside every delegate: this import registers their out variants.
        import executorch.kernels.quantized  # noqa: F401
    return Lowered(edge, edge.to_executorch().buffer)


def delegation_summary(edge: Any) -> DelegationSummary:
    """Count the nodes inside and outside the delegates, over ExecuTorch's own figures.

    Args:
        edge: the first item that ``lower_to_xnnpack`` returns, or an ``ExportedProgram`` or
            ``GraphModule`` that was lowered.

    Returns:
        ``(n_delegates, n_delegated, n_not_delegated, by_op)``; linear in the number of nodes.

    Raises:
        TypeError: ``edge`` has no graph.

    Example:
        >>> edge, _ = lower_to_xnnpack(torch.nn.ReLU().eval(), (torch.zeros(1, 4),))
        >>> delegation_summary(edge).by_op
        {'aten_relu_default': (1, 0), 'getitem': (0, 1)}
    """
    from executorch.devtools.backend_debug import get_delegation_info

    program = edge.exported_program() if hasattr(edge, "exported_program") else edge
    gm = getattr(program, "graph_module", program)
    if not isinstance(gm, fx.GraphModule):
        raise TypeError(
            f"edge: expected what lower_to_xnnpack returns first, got {type(edge).__name__}"
        )
    info = get_delegation_info(gm)
    by_op = {
        op: (b.delegated, b.non_delegated) for op, b in sorted(info.delegation_by_operator.items())
    }
    return DelegationSummary(
        info.num_delegated_subgraphs,
        info.num_delegated_nodes,
        info.num_non_delegated_nodes,
        by_op,
    )


def _without_batch_norm_patterns(quantizer: Any) -> Any:
    """Return a copy that looks for no BatchNorm: ``prepare_pt2e`` has folded them by then.

    The quantizer exports each of these patterns anew at every call, which takes seconds.
    """
    quantizer = copy.copy(quantizer)
    patterns = getattr(quantizer, "SUPPORTED_PATTERNS", ())
    quantizer.SUPPORTED_PATTERNS = [p for p in patterns if "bn" not in p.name]
    return quantizer


def _check_float32(model: torch.nn.Module, example_inputs: tuple[Any, ...]) -> None:
    named = chain(
        model.named_parameters(),
        model.named_buffers(),
        ((f"example input {i}", value) for i, value in enumerate(example_inputs)),
    )
    for name, t in named:
        if isinstance(t, torch.Tensor) and t.is_floating_point() and t.dtype != torch.float32:
            raise ValueError(
                f"{name} is {_name(t.dtype)}: quantization starts from a float32 model and "
                "float32 data. Call .float() on both first."
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _batches(
    calibration: Iterable[tuple[Any, ...]] | None,
    example_inputs: tuple[Any, ...],
    dynamic_shapes: Any,
) -> Iterator[tuple[Any, ...]]:
    """Check that there is calibration data now, and each batch when it comes."""
    if calibration is None:
        calibration = _course_digits(example_inputs)
    elif isinstance(calibration, torch.Tensor):
        raise TypeError(
            "calibration: expected an iterable of input tuples, got a tensor. "
            "Write [(x,) for x in images.split(1)]."
        )
    try:
        iterator = iter(calibration)
    except TypeError:
        raise TypeError(
            f"calibration: expected an iterable of input tuples, got {type(calibration).__name__}"
        ) from None
    static = dynamic_shapes is None
    first = next(iterator, None)
    if first is None:
        raise QuantizationError(
            "calibration: got no batch. Without data every scale would stay 1 and the output "
            "would be noise."
        )
    _check_batch(0, first, example_inputs, static)  # now: to prepare the graph takes seconds

    def checked() -> Iterator[tuple[Any, ...]]:
        yield first
        for n, batch in enumerate(iterator, start=1):
            _check_batch(n, batch, example_inputs, static)
            yield batch

    return checked()


def _check_batch(n: int, batch: Any, example_inputs: tuple[Any, ...], static: bool) -> None:
    where = f"calibration batch {n}"
    if not isinstance(batch, tuple):
        raise TypeError(
            f"{where}: expected a tuple of inputs, got {type(batch).__name__}. "
            "Write (x,) for one tensor."
        )
    if len(batch) != len(example_inputs):
        raise QuantizationError(f"{where}: expected {len(example_inputs)} inputs, got {len(batch)}")
    for i, (value, like) in enumerate(zip(batch, example_inputs, strict=True)):
        if not isinstance(like, torch.Tensor):
            continue  # a number or a container: the graph's own guard compares it
        where = f"calibration batch {n}, input {i}"
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{where}: expected a tensor, got {type(value).__name__}")
        if value.dtype != like.dtype:
            raise TypeError(
                f"{where}: dtype {_name(value.dtype)}, but the example is {_name(like.dtype)}"
            )
        if value.shape != like.shape if static else value.dim() != like.dim():
            raise QuantizationError(
                f"{where}: shape {tuple(value.shape)}, but the graph is exported for "
                f"{tuple(like.shape)}, the shape of the example"
            )
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise QuantizationError(
                f"{where}: holds a NaN or an infinity, from which no range can be taken. "
                "Clean the data first."
            )


def _course_digits(example_inputs: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor]]:
    x = example_inputs[0] if len(example_inputs) == 1 else None
    if not (isinstance(x, torch.Tensor) and x.dim() == 4 and tuple(x.shape[1:]) == COURSE_SHAPE):
        raise QuantizationError(
            "calibration: this model needs data of its own. Pass an iterable of input tuples that "
            "are typical of the real data, for instance calibration=[(x1,), (x2,), …]; only the "
            "course's input shape (batch, 3, 16, 16) is calibrated with the course's digits."
        )
    return calibration_batches(x.shape[0])


def _traceable(
    model: torch.nn.Module, example_inputs: tuple[Any, ...], dynamic_shapes: Any
) -> tuple[Any, ...]:
    """Make the example safe to trace: no tensor given twice, no dynamic dimension of size 1."""
    seen: set[int] = set()

    def once(value: Any) -> Any:
        # torch.export takes the same object at two places for one input, silently.
        if not isinstance(value, torch.Tensor):
            return value
        value = value.clone() if id(value) in seen else value
        seen.add(id(value))
        return value

    traced = list(pytree.tree_map(once, example_inputs))
    if isinstance(dynamic_shapes, dict):  # by parameter name, in any order
        names = inspect.signature(model.forward).parameters
        dynamic_shapes = [dynamic_shapes.get(name) for name in names]
    if isinstance(dynamic_shapes, Sequence):
        for i, (value, dims) in enumerate(zip(traced, dynamic_shapes, strict=False)):
            traced[i] = _double_ones(value, dims)
    return tuple(traced)


def _double_ones(value: Any, dims: Any) -> Any:
    """Repeat dynamic dimensions of size 1: torch.export takes 1 for a constant."""
    if not isinstance(value, torch.Tensor) or not dims:
        return value
    for d, dim in dims.items() if isinstance(dims, dict) else enumerate(dims):
        static = dim is None or isinstance(dim, int) or dim == torch.export.Dim.STATIC
        if not static and value.shape[d] == 1:
            value = torch.cat([value, value], dim=d)
    return value


def _check_bounded(program: torch.export.ExportedProgram) -> None:
    for symbol, bounds in program.range_constraints.items():
        if not bounds.is_int or bounds.upper > 2**31:
            raise ValueError(
                f"dynamic dimension {symbol} has no upper bound, but memory is planned for the "
                'largest shape. Give it one: torch.export.Dim("batch", max=8).'
            )


def _check_inputs_unchanged(program: torch.export.ExportedProgram) -> None:
    changed = sorted(set(program.graph_signature.user_inputs_to_mutate.values()))
    if changed:
        raise ValueError(
            f"forward changes its input {', '.join(changed)} in place. The program would return "
            "the changed input as an extra first output. Work on a copy: x = x.clone()."
        )
