"""A graph without its rounding: what the same network computes where precision costs nothing."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common.graph_utils import is_qdq, short

_KEEP_VALUES = {"view", "permute", "clone", "alias", "slice", "select", "squeeze", "unsqueeze"}


def without_rounding(graph: fx.GraphModule) -> fx.GraphModule | None:
    """Replace each quantize and dequantize pair on activations by a clamp to the same range.

    Weights keep their int8 values. The clamp stays because values outside the calibrated range
    are cut off in the ``.pte`` as well. A dynamically quantized activation has no fixed range:
    there the pair is left out.

    Args:
        graph: a Q/DQ graph; it is not changed.

    Returns:
        The new graph, or None if there is no such pair.
    """
    graph = copy.deepcopy(graph)
    pairs = [node for node in graph.graph.nodes if _dequantizes_an_activation(node)]
    for dequantize in pairs:
        quantize = dequantize.args[0]
        value = quantize.args[0]
        if _is_static(quantize):
            with graph.graph.inserting_before(dequantize):
                value = graph.graph.call_function(
                    torch.ops.aten.clamp.default, (value, *_range(quantize))
                )
        dequantize.replace_all_uses_with(value)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph if pairs else None


def in_float64(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a graph of float ops in double precision; it takes float64 inputs.

    Args:
        graph: a graph without quantization; it is not changed.
    """
    graph = copy.deepcopy(graph).double()
    for module in graph.modules():  # constants that are plain attributes
        for name, value in list(module.__dict__.items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    for node in graph.graph.nodes:
        if short(node.target) == "_assert_tensor_metadata":
            graph.graph.erase_node(node)
            continue
        node.args, node.kwargs = pytree.tree_map_only(
            torch.dtype,
            lambda dtype: torch.float64 if dtype.is_floating_point else dtype,
            (node.args, node.kwargs),
        )
    graph.recompile()
    return graph


def is_dynamic(graph: fx.GraphModule) -> bool:
    """Tell whether activations are quantized with scales found at run time."""
    return any(
        node.op == "call_function" and short(node.target).startswith("choose_qparams")
        for node in graph.graph.nodes
    )


def input_ranges(graph: fx.GraphModule) -> list[tuple[float, float] | None]:
    """Return for each input the range that its quantize node covers, or None without one."""
    ranges = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            users = [user for user in node.users if is_qdq(user) and _is_static(user)]
            ranges.append(_range(users[0]) if users else None)
    return ranges


def output_scales(graph: fx.GraphModule) -> list[float | None]:
    """Return the scale of each output that comes from a dequantize node, else None."""
    return [_scale(node) for node in pytree.tree_leaves(graph.graph.output_node().args[0])]


def _dequantizes_an_activation(node: fx.Node) -> bool:
    if not (is_qdq(node) and short(node.target).startswith("dequantize")):
        return False
    return isinstance(node.args[0], fx.Node) and is_qdq(node.args[0])


def _is_static(quantize: fx.Node) -> bool:
    return len(quantize.args) > 4 and isinstance(quantize.args[1], float)


def _range(quantize: fx.Node) -> tuple[float, float]:
    scale, zero_point, low, high = (float(x) for x in quantize.args[1:5])  # type: ignore[arg-type]
    return (low - zero_point) * scale, (high - zero_point) * scale


def _scale(node: Any) -> float | None:
    while isinstance(node, fx.Node) and node.op == "call_function":
        if is_qdq(node):
            return node.args[1] if _is_static(node) else None  # type: ignore[return-value]
        if short(node.target) not in _KEEP_VALUES:
            break
        node = node.args[0]
    return None
