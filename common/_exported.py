"""An exported program before and after ExecuTorch reads it: what is mended, what is refused."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch
from torch import fx

from common._journal import note
from common._source_line import named, source_line
from common._state import changed_in_place, passes_memory_on
from common._text import torch_name
from common.graph_utils import is_qdq, short

# These read and write any order of dimensions, or no elements at all.
_ANY_ORDER = ("dim_order_ops_", "getitem", "alloc", "executorch_call_delegate", "sym_")


def check_inputs_unchanged(program: torch.export.ExportedProgram) -> None:
    """Refuse a model that changes an input in place, directly or through a view.

    Raises:
        ValueError: naming the input.
    """
    inputs = set(program.graph_signature.user_inputs)
    changed = set(program.graph_signature.user_inputs_to_mutate.values())
    if not changed and any(changed_in_place(n) & inputs for n in program.graph.nodes):
        functional = program.run_decompositions({}).graph_signature
        changed = set(functional.user_inputs_to_mutate.values())
    if changed:
        raise ValueError(
            f"forward changes its input {', '.join(sorted(changed))} in place. The program would "
            "return the changed input as an extra first output. Work on a copy: x = x.clone()."
        )


def functional_where_needed(
    program: torch.export.ExportedProgram,
) -> torch.export.ExportedProgram:
    """Write ops that work in place as functions, where one changes what others read.

    ``y[:, 0] = 0`` changes ``y``; its quantize nodes stand before the change, and all that reads
    ``y`` would silently get the old values. A ReLU in place, whose result alone is used, is left.
    """
    if any(_is_seen_elsewhere(node) for node in program.graph.nodes):
        return program.run_decompositions({})
    return program


def without_ignored_arguments(
    program: torch.export.ExportedProgram,
) -> torch.export.ExportedProgram:
    """Write out the ops of which ExecuTorch's XNNPACK lowering silently ignores an argument.

    ``addmm`` with ``alpha`` or ``beta`` becomes a linear layer without them; bilinear upsampling
    by a ``scale_factor`` takes the ratio of the sizes, which is another number where they were
    rounded.
    """
    if not any(_addmm_has_factors(n) or _scale_is_rounded(n) for n in program.graph.nodes):
        return program
    aten = torch.ops.aten
    upsample: Any = torch._decomp.get_decompositions([aten.upsample_bilinear2d.vec])
    (upsampled,) = upsample.values()

    def addmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if alpha == beta == 1:
            return NotImplemented
        product = torch.mm(a, b) * alpha
        return product if beta == 0 else bias * beta + product

    def upsample_bilinear2d(x: Any, size: Any, align_corners: bool, scales: Any = None) -> Any:
        if not _are_rounded(x.shape[2:], align_corners, scales):
            return NotImplemented
        return upsampled(x, size, align_corners, scales)

    return program.run_decompositions(
        {aten.addmm.default: addmm, aten.upsample_bilinear2d.vec: upsample_bilinear2d}
    )


def _addmm_has_factors(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.addmm.default and not set(node.kwargs.values()) <= {1}


def _scale_is_rounded(node: fx.Node) -> bool:
    if node.target is not torch.ops.aten.upsample_bilinear2d.vec or len(node.args) < 4:
        return False
    x: Any = node.args[0]
    return _are_rounded(x.meta["val"].shape[2:], node.args[2], node.args[3])


def _are_rounded(sizes: Any, align_corners: Any, scales: Any) -> bool:
    """Whether a size times its scale is no whole number; corners that align need no scale."""
    if align_corners or scales is None:
        return False
    return any(int(n * scale) != n * scale for n, scale in zip(sizes, scales, strict=True))


def _is_seen_elsewhere(node: fx.Node) -> bool:
    if not _is_in_place(node):
        return False
    reader: fx.Node = node
    while reader.op == "call_function" and reader.args and isinstance(reader.args[0], fx.Node):
        if reader is not node and (_is_in_place(reader) or not passes_memory_on(reader)):
            return False
        changed = reader.args[0]
        if set(changed.users) != {reader}:
            return True
        reader = changed
    return False


def _is_in_place(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def check_quantized_float32(program: torch.export.ExportedProgram) -> None:
    """Refuse a Q/DQ graph around another float dtype: its kernels end the process at run time.

    float16 is let through: XNNPACK takes it, and the kernels refuse it in words.

    Raises:
        ValueError: naming the node and its dtype.
    """
    for node in program.graph.nodes:
        if not is_qdq(node):
            continue
        for n in (node, *node.all_input_nodes[:1]):
            value = n.meta.get("val")
            if (
                isinstance(value, torch.Tensor)
                and (value.is_floating_point() or value.is_complex())
                and value.dtype not in (torch.float32, torch.float16)
            ):
                raise ValueError(
                    f"{named(n)} is {torch_name(value.dtype)}: kernels that "
                    "quantize and dequantize are for float32, and end the process with this "
                    "dtype. Call .float() on the model and its data, and quantize it again."
                )


def make_contiguous(program: torch.export.ExportedProgram) -> None:
    """Give a program its own contiguous copies of weights and constants in another layout.

    ExecuTorch fails on channels_last weights and on lazy negations. The model keeps its own. Names
    for one tensor get one copy.
    """
    names = constant_names(program)
    copies: dict[int, torch.Tensor] = {}
    for node in program.graph.nodes:
        fqn = names.get(node.name) if node.op == "placeholder" else None
        if fqn is None:
            continue
        stored: dict[str, Any] = (
            program.state_dict if fqn in program.state_dict else program.constants
        )
        old = stored[fqn]
        if (
            not isinstance(old, torch.Tensor)
            or old.layout != torch.strided
            or (_in_order(old) and not old.is_neg() and not old.is_conj())
        ):
            continue
        if id(old) not in copies:
            note(
                "Weights in another memory order (channels_last, or a lazy view) were copied into "
                "the usual one for the program."
            )
            plain = old.detach().resolve_conj().resolve_neg()
            plain = plain.clone(memory_format=torch.contiguous_format)
            is_parameter = isinstance(old, torch.nn.Parameter)
            copies[id(old)] = (
                torch.nn.Parameter(plain, old.requires_grad) if is_parameter else plain
            )
        stored[fqn] = copies[id(old)]
        mode = node.meta["val"].fake_mode
        node.meta["val"] = mode.from_tensor(stored[fqn], static_shapes=True)


def constant_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the model's name of each parameter, buffer and constant, by that of its node."""
    signature = program.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


@contextlib.contextmanager
def row_major_nonzero() -> Generator[None, None, None]:
    """Let ``nonzero`` be planned as its kernel writes it: row by row.

    PyTorch's own kernel writes column by column; ExecuTorch plans for that, and its kernel does
    not: the indices come out mixed up, silently.
    """
    from torch._subclasses import fake_impls

    op = torch.ops.aten.nonzero.default
    original: Any = fake_impls.op_implementations_dict[op]

    def nonzero(mode: Any, func: Any, x: Any) -> Any:
        found = original(mode, func, x)
        return found.new_empty(found.shape)

    with mock.patch.dict(fake_impls.op_implementations_dict, {op: nonzero}):
        yield


def check_layouts(program: torch.export.ExportedProgram) -> None:
    """Refuse a lowered program in which a portable kernel meets a layout that is not contiguous.

    Some of these kernels refuse it at run time; others (``flip``, ``gather``, ``topk``) read and
    write the elements in another order, silently.

    Raises:
        ValueError: naming the op.
    """
    for node in program.graph.nodes:
        if node.op != "call_function" or short(node.target).startswith(_ANY_ORDER):
            continue
        for n in (*node.all_input_nodes, node):
            if all(_in_order(value) for value in _tensors(n)):
                continue
            raise ValueError(
                f"{short(node.target)}{source_line(node)} stays outside every delegate and meets a "
                f"tensor that is not contiguous ({named(n)}). Portable kernels refuse such a "
                "layout when they run, or silently take the elements in another order. Lower with "
                "contiguous example inputs, x.contiguous() (a PteRunner converts what it is "
                "given), and without memory_format= in forward."
            )


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _in_order(value: torch.Tensor) -> bool:
    """Whether ExecuTorch describes the tensor as contiguous, also where a size is 1."""
    try:
        strides = value.stride()
        falling = all(a >= b for a, b in itertools.pairwise(strides))
        return falling and (value.is_contiguous() or value.numel() == 0)
    except Exception:  # torch cannot tell: sizes that depend on data
        return True
