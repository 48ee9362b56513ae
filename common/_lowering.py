"""From a model to a Q/DQ graph, and from there to a ``.pte`` for XNNPACK."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._errors import QuantizationError, VerificationError
from common._example import traceable
from common._exported import (
    check_inputs_unchanged,
    check_layouts,
    check_quantized_float32,
    functional_where_needed,
    make_contiguous,
    row_major_nonzero,
    without_ignored_arguments,
)
from common._exports import export
from common._float_nodes import FloatNodesOnly
from common._journal import step
from common._lowering_words import in_words
from common._names import (
    check_default_dtype,
    check_names,
    plain_tensors,
    without_inference_tensors,
)
from common._observers import check_observed, check_scales, only_finite
from common._one_at_a_time import one_at_a_time
from common._partitioner import one_reader_each, partitioner
from common._passes import mended_passes
from common._portable import (
    check_kernels_exist,
    check_kernels_take,
    check_no_renorm,
    refused_by_a_kernel,
)
from common._prepared import check_unchanged, folded_twice, run_float
from common._shapes import shapes_entry
from common._shared_constants import shares_weights, unshare
from common._signature import (
    Inputs,
    call,
    check_graph_takes,
    check_storable,
    in_order_of_forward,
    is_pair,
    signature_of,
)
from common._size_one import check_size_one
from common._state import (
    keep_initial_state,
    own_buffers,
    state_kept,
    with_state_outside,
    without_state_warning,
)
from common._text import torch_name
from common._unused_patterns import without_unused_patterns
from common._verification import Verification, is_small, verify_lowered
from common.data import calibration_batches
from common.graph_utils import is_qdq
from common.pt2e import check_eval, check_example, get_xnnpack_quantizer

COURSE_SHAPE = (3, 16, 16)


class _EdgeAndPte(NamedTuple):
    edge: Any
    pte: bytes


class Lowered(_EdgeAndPte):
    """What ``lower_to_xnnpack`` returns: ``edge, pte = lower_to_xnnpack(…)``.

    Attributes:
        edge: the ``EdgeProgramManager``; its graph shows what went into a delegate.
        pte: the program, ready to be saved or run.
        verification: how the program compares with its graph; None where it was not verified.
    """

    verification: Verification | None = None

    def __new__(cls, edge: Any, pte: bytes, verification: Verification | None = None) -> Lowered:
        """Make the tuple of two, and keep the third value as an attribute."""
        lowered = super().__new__(cls, edge, pte)
        lowered.verification = verification
        return lowered

    def __copy__(self) -> Lowered:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Lowered:
        return Lowered(copy.deepcopy(self.edge, memo), self.pte, self.verification)

    def __reduce__(self) -> Any:
        raise TypeError(
            "what lower_to_xnnpack returns cannot be pickled, since ExecuTorch's edge program "
            "cannot. Keep the program: save_pte(lowered.pte, path), or pickle lowered.pte."
        )


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


@one_at_a_time
def xnnpack_ptq(
    model: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    calibration: Iterable[tuple[Any, ...]] | None = None,
    is_per_channel: bool = True,
    is_dynamic: bool = False,
    quantizer: Any = None,
    dynamic_shapes: Any = None,
    example_kwargs: dict[str, Any] | None = None,
) -> fx.GraphModule:
    """Quantize a model after training for XNNPACK: export, prepare, calibrate, convert.

    Args:
        model: float32, in ``eval()`` mode; it is not changed.
        example_inputs: a tuple with one value per positional parameter of ``forward``: tensors,
            numbers, None, lists and dicts of them. Its shapes are the ones the graph will accept,
            unless ``dynamic_shapes`` says otherwise; numbers are fixed.
        calibration: input tuples that are typical of the real data; a hundred are usually enough.
            With ``example_kwargs`` each is a pair ``(args, kwargs)`` of a tuple and a dict. A
            model with state sees them one after the other, and its state is restored.
            Without data, a model whose one input has the course's shape ``(batch, 3, 16, 16)`` is
            calibrated with the course's training digits, in groups of the example's batch.
        is_per_channel: one weight scale per output channel instead of one per tensor.
        is_dynamic: quantize activations at run time; no calibration is needed or used.
        quantizer: a configured ``XNNPACKQuantizer``, for instance one that leaves a layer in
            float32; replaces ``is_per_channel`` and ``is_dynamic``.
        dynamic_shapes: as in ``torch.export.export``.
        example_kwargs: inputs that ``forward`` is given by name. The graph takes them by name as
            well, and so will the program.

    Returns:
        The Q/DQ graph: float32 ops between quantize and dequantize nodes, int8 weights.

    Raises:
        TypeError: the example or a calibration batch is not a tuple, or a batch holds another
            dtype or container than the example.
        ValueError: the model is in training mode or not float32, there is no calibration data,
            or a batch holds a NaN, an infinity, another number, name or shape than the example.
            All but the first two are ``QuantizationError``, a ``ValueError``. Also when
            ``forward`` changes one of its inputs; and, as ``QuantizationError``, when a NaN or an
            infinity (in weights or masks as well) goes into a quantized op, when a mask leaves no
            steps to what it is added to, and when preparing the graph changes what the model
            computes, as with one convolution in front of two BatchNorms.

    Note:
        Only what is float32 is quantized; integer arithmetic, as on indices, stays as it is.

    Example:
        >>> from common.data import trained_tiny_net
        >>> from common.models import example_inputs
        >>> qdq = xnnpack_ptq(trained_tiny_net(), example_inputs(1))
        >>> sum(n.op == "call_function" for n in qdq.graph.nodes)
        42
    """
    check_example(example_inputs)
    check_eval(model)
    check_names(model)
    check_default_dtype()
    model, example_inputs = without_inference_tensors(model), plain_tensors(example_inputs)
    example_kwargs = plain_tensors(example_kwargs)
    example = Inputs(example_inputs, in_order_of_forward(model, example_inputs, example_kwargs))
    _check_float32(model, example)
    if quantizer is None:
        quantizer, _ = get_xnnpack_quantizer(is_per_channel=is_per_channel, is_dynamic=is_dynamic)
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    traced = traceable(model, example, dynamic_shapes)
    batches: Iterator[Inputs] = (
        iter([traced])
        if is_dynamic
        else _batches(calibration, example, dynamic_shapes, paired=example_kwargs is not None)
    )
    exported = export(model, traced, dynamic_shapes)
    check_inputs_unchanged(exported)
    check_no_renorm(exported)
    check_size_one(model, exported, traced)
    program, changed = with_state_outside(functional_where_needed(exported))
    with state_kept(model, changed):
        graph: Any = program.module()
        first = next(batches)
        with state_kept(model, changed):
            before = _run_batch(0, graph, first)
        folded = folded_twice(graph)
        float_only: Any = FloatNodesOnly(_without_batch_norm_patterns(quantizer))
        with step("prepare"):
            prepared = prepare_pt2e(graph, float_only)
        with step("calibrate"), only_finite(prepared):
            check_unchanged(before, _run_batch(0, prepared, first), folded)
            for n, batch in enumerate(batches, start=1):
                _run_batch(n, prepared, batch)
        check_observed(prepared)
        with step("convert"):
            converted = convert_pt2e(prepared)
    assert isinstance(converted, fx.GraphModule)
    check_scales(converted)
    own_buffers(converted, model, changed)
    return converted


@one_at_a_time
def lower_to_xnnpack(
    gm: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    dynamic_shapes: Any = None,
    verify: bool | Iterable[tuple[Any, ...]] | None = None,
    fp32: torch.nn.Module | None = None,
    example_kwargs: dict[str, Any] | None = None,
) -> Lowered:
    """Lower a model to XNNPACK, serialize it, and run it to see that it computes the same.

    ``torch.export`` → ``to_edge_transform_and_lower([XnnpackPartitioner()])`` →
    ``to_executorch()``. The edge program shows what the ``.pte`` runs: memory planning has
    already added its ``alloc`` nodes.

    Args:
        gm: a Q/DQ graph from ``xnnpack_ptq``, or a float32 model in ``eval()`` mode.
        example_inputs: a tuple with one value per positional parameter of ``forward``: tensors,
            numbers, None, lists and dicts of them. Numbers are fixed.
        dynamic_shapes: as in ``torch.export.export``; each ``Dim`` needs a ``max=``, because the
            memory is planned for it. A Q/DQ graph must have been made with the same ones. What a
            ``.pte`` has no place for (smallest sizes, which dimensions move, which must agree)
            is added as a method that ``PteRunner`` reads. With static shapes nothing is added.
        verify: run the program and ``gm`` on the example and on three inputs made from it, or on
            those given here, and refuse the program when it disagrees by more than rounding
            explains (see `common.executorch_utils.verify`). By default for up to 5 million
            parameters and buffers, where it adds about a twentieth to the lowering.
        fp32: the model before quantization, to be compared as well when the program is verified.
        example_kwargs: inputs that ``forward`` is given by name; ``PteRunner`` takes them so. The
            items of ``verify`` are then pairs ``(args, kwargs)``.

    Returns:
        ``(edge, pte)``: an ``EdgeProgramManager`` and the bytes of the program. The attribute
        ``verification`` holds what was found, or None.

    Raises:
        TypeError: the example is not a tuple.
        ValueError: the model is in training mode, a dimension has no upper bound, the example is
            not what a Q/DQ graph was made for, or ``forward`` changes one of its inputs, takes or
            returns a text, or a container of another kind than tuple, list and dict. Also when a
            Q/DQ graph is not for float32, and when an op outside every delegate meets a layout
            that its kernel does not know, as with a channels_last example.
        LoweringError: ExecuTorch cannot lower it; the message says why and what to do.
        VerificationError: the program does not compute what ``gm`` computes, or does not run.

    Example:
        >>> edge, pte = lower_to_xnnpack(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
        >>> print(delegation_summary(edge))
        1 delegate, 1 of 2 nodes inside; outside: getitem 1
    """
    check_example(example_inputs)
    check_eval(gm)
    check_names(gm)
    check_default_dtype()
    gm, example_inputs = without_inference_tensors(gm), plain_tensors(example_inputs)
    example_kwargs = plain_tensors(example_kwargs)
    example = Inputs(example_inputs, in_order_of_forward(gm, example_inputs, example_kwargs))
    unshared = unshare(gm)
    traced = traceable(gm, example, dynamic_shapes)
    from executorch.exir import to_edge_transform_and_lower

    with row_major_nonzero():
        program = _export(unshared, traced, dynamic_shapes)
        if shares_weights(program):
            program = _export(unshare(program.module()), traced, dynamic_shapes)
        program = without_ignored_arguments(program)
    _check_bounded(program)
    check_storable(program)
    check_inputs_unchanged(program)
    check_kernels_take(program)
    check_size_one(gm, program, traced)
    check_quantized_float32(program)
    make_contiguous(program)
    one_reader_each(program)
    with (
        step("delegate"),
        in_words(program),
        row_major_nonzero(),
        without_unused_patterns(program),
        mended_passes(),
    ):
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[partitioner()],
            constant_methods=shapes_entry(program) or None,
        )
    check_layouts(edge.exported_program())
    if any(is_qdq(node) for node in edge.exported_program().graph.nodes):
        # Quantize nodes outside every delegate: this import registers their out variants.
        import executorch.kernels.quantized  # noqa: F401
    keep_initial_state(edge.exported_program())
    with (
        step("plan and serialize"),
        in_words(program),
        row_major_nonzero(),
        without_state_warning(),
        torch.no_grad(),
    ):
        planned = edge.to_executorch()
        pte = planned.buffer
    if verify is None:
        verify = is_small(program)
    if verify is False:
        return Lowered(edge, pte)
    inputs = None if verify is True else verify
    check_kernels_exist(planned)
    try:
        found = verify_lowered(pte, gm, program, traced, inputs=inputs, fp32=fp32)
    except VerificationError as error:
        if (refused := refused_by_a_kernel(planned, str(error))) is not None:
            raise refused from error
        raise
    return Lowered(edge, pte, found)


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


def _run_batch(n: int, graph: Any, batch: Inputs) -> list[Any]:
    try:
        return run_float(lambda: call(graph, batch))
    except AssertionError as error:  # the graph's guard on shapes
        raise QuantizationError(f"calibration batch {n} does not fit: {error}") from None


def _without_batch_norm_patterns(quantizer: Any) -> Any:
    """Return a copy that looks for no BatchNorm: ``prepare_pt2e`` has folded them by then.

    The quantizer exports each of these patterns anew at every call, which takes seconds.
    """
    quantizer = copy.copy(quantizer)
    patterns = getattr(quantizer, "SUPPORTED_PATTERNS", ())
    quantizer.SUPPORTED_PATTERNS = [p for p in patterns if "bn" not in p.name]
    return quantizer


def _check_float32(model: torch.nn.Module, example: Inputs) -> None:
    labels = (f"example {label}" for label in signature_of(*example).labels)
    named = chain(
        model.named_parameters(),
        model.named_buffers(),
        zip(labels, pytree.tree_leaves(example), strict=True),
    )
    for name, t in named:
        if isinstance(t, torch.Tensor) and t.is_floating_point() and t.dtype != torch.float32:
            raise ValueError(
                f"{name} is {torch_name(t.dtype)}: quantization starts from a float32 model and "
                "float32 data. Call .float() on both first."
            )


def _batches(
    calibration: Iterable[tuple[Any, ...]] | None,
    example: Inputs,
    dynamic_shapes: Any,
    *,
    paired: bool,
) -> Iterator[Inputs]:
    """Check that there is calibration data now, and each batch when it comes."""
    if calibration is None:
        calibration = course_digits(example)
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
    # now: to prepare the graph takes seconds
    checked_first = _checked_batch(0, first, example, static=static, paired=paired)

    def checked() -> Iterator[Inputs]:
        yield checked_first
        for n, batch in enumerate(iterator, start=1):
            yield _checked_batch(n, batch, example, static=static, paired=paired)

    return checked()


def _checked_batch(n: int, batch: Any, example: Inputs, *, static: bool, paired: bool) -> Inputs:
    """Return a batch in the structure of the example."""
    where = f"calibration batch {n}"
    if paired and not is_pair(batch):
        raise TypeError(
            f"{where}: expected a pair (args, kwargs) of a tuple and a dict, since there are "
            f"example_kwargs; got {type(batch).__name__}"
        )
    if not isinstance(batch, tuple):
        raise TypeError(
            f"{where}: expected a tuple of inputs, got {type(batch).__name__}. "
            "Write (x,) for one tensor."
        )
    signature = signature_of(*example)
    args, kwargs = batch if paired else (batch, {})
    if signature.is_flat and len(args) != len(example.args):
        raise QuantizationError(f"{where}: expected {len(example.args)} inputs, got {len(args)}")
    try:
        leaves = list(args) if signature.is_flat else signature.flatten(args, kwargs)
    except ValueError as error:
        raise QuantizationError(f"{where}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None
    wanted, structure = pytree.tree_flatten(example)
    for label, value, like in zip(signature.labels, leaves, wanted, strict=True):
        _check_leaf(f"{where}, {label}", value, like, static)
    checked = pytree.tree_unflatten(leaves, structure)
    assert isinstance(checked, Inputs)
    return checked


def _check_leaf(where: str, value: Any, like: Any, static: bool) -> None:
    if not isinstance(like, torch.Tensor):
        if type(value) is not type(like) or value != like:
            raise QuantizationError(
                f"{where}: {_short(value)}, but the graph is exported for {like!r}: what is no "
                "tensor is fixed at export"
            )
        return
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where}: expected a tensor, got {type(value).__name__}")
    if value.dtype != like.dtype:
        raise TypeError(
            f"{where}: dtype {torch_name(value.dtype)}, but the example is {torch_name(like.dtype)}"
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


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)[:80]


def course_digits(example: Inputs) -> Iterator[tuple[torch.Tensor]]:
    """Return the course's training digits as calibration, if the example has their shape."""
    x = example.args[0] if len(example.args) == 1 and not example.kwargs else None
    if not (isinstance(x, torch.Tensor) and x.dim() == 4 and tuple(x.shape[1:]) == COURSE_SHAPE):
        raise QuantizationError(
            "calibration: this model needs data of its own. Pass an iterable of input tuples that "
            "are typical of the real data, for instance calibration=[(x1,), (x2,), …]; only the "
            "course's input shape (batch, 3, 16, 16) is calibrated with the course's digits."
        )
    return calibration_batches(x.shape[0])


def _export(
    model: torch.nn.Module, example: Inputs, dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    if isinstance(model, fx.GraphModule):
        check_graph_takes(model, example)
    try:
        return export(model, example, dynamic_shapes)
    except (AssertionError, RuntimeError) as error:
        of_the_graph = str(error).startswith(("Guard failed", "Constraints violated"))
        if not isinstance(model, fx.GraphModule) or not of_the_graph:
            raise
        raise ValueError(
            f"the example does not fit the graph: {str(error).splitlines()[0]}. A graph takes the "
            "shapes and numbers that it was exported for; for others, or for dynamic_shapes, "
            "quantize the model anew with these."
        ) from None


def _check_bounded(program: torch.export.ExportedProgram) -> None:
    used = {
        symbol
        for node in program.graph.nodes
        for size in getattr(node.meta.get("val"), "shape", ())
        if not isinstance(size, int)
        for symbol in size.node.expr.free_symbols
    }
    for symbol, bounds in program.range_constraints.items():
        if symbol not in used:  # a decomposition can leave one behind
            continue
        if not bounds.is_int or bounds.upper > 2**31:
            raise ValueError(
                f"dynamic dimension {symbol} has no upper bound, but memory is planned for the "
                'largest shape. Give it one: torch.export.Dim("batch", max=8).'
            )
