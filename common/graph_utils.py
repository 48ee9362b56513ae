"""Reading FX graphs: short op names, op counts, and the quantize/dequantize nodes.

Works on any ``torch.fx`` graph: eager export, the Q/DQ graph, the Edge dialect, a delegate.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import torch
from torch import fx

__all__ = ["QDQ_OPS", "is_qdq", "op_counts", "short"]

QDQ_OPS = (
    "quantize_per_tensor",
    "quantize_per_channel",
    "quantize_per_token",
    "dequantize_per_tensor",
    "dequantize_per_channel",
    "dequantize_per_token",
)
"""Short names of the ops that PT2E inserts between float and integer tensors."""


def short(target: Any) -> str:
    """Return the short name of a node's target.

    Args:
        target: ``node.target`` of an FX node: an ``OpOverload``, an Edge op, a Python function
            or a string.

    Returns:
        The op without namespace and overload (``conv2d``, ``quantize_per_tensor``). An op of the
        Edge dialect keeps ExecuTorch's own spelling (``aten_relu_default``), so that the names
        agree with those of ``get_delegation_info``.

    Example:
        >>> import torch
        >>> short(torch.ops.aten.conv2d.default)
        'conv2d'
        >>> import operator
        >>> short(operator.getitem)
        'getitem'
    """
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).split(".")[1]
    name: str = getattr(target, "__name__", None) or str(target)
    # Edge ops are objects of ExecuTorch, which this module does not import: they call themselves
    # "aten.add.Tensor", and ExecuTorch's delegation info writes that as "aten_add_tensor".
    return re.sub(r"\W", "_", name).lower() if "." in name else name


def op_counts(gm: Any) -> dict[str, int]:
    """Count the ``call_function`` nodes of a graph by short name.

    Args:
        gm: a ``GraphModule``, a ``Graph`` or an ``ExportedProgram``.

    Returns:
        ``{short name: count}`` in alphabetical order. Linear in the number of nodes.

    Raises:
        TypeError: ``gm`` has no FX graph.

    Example:
        >>> import torch
        >>> ep = torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))
        >>> op_counts(ep)
        {'relu': 1}
    """
    graph = fx_graph(gm)
    counts = Counter(short(n.target) for n in graph.nodes if n.op == "call_function")
    return dict(sorted(counts.items()))


def is_qdq(node: fx.Node) -> bool:
    """Tell whether a node quantizes or dequantizes.

    Example:
        >>> graph = fx.Graph()
        >>> is_qdq(graph.placeholder("x"))
        False
    """
    return node.op == "call_function" and _without_dialect(short(node.target)) in QDQ_OPS


def fx_graph(gm: Any) -> fx.Graph:
    """Return the FX graph inside ``gm``; a ``TypeError`` names what came instead."""
    if isinstance(gm, fx.Graph):
        return gm
    exported = getattr(gm, "exported_program", None)
    if callable(exported):
        gm = exported()
    graph = getattr(gm, "graph", None)
    if not isinstance(graph, fx.Graph):
        raise TypeError(
            "expected a torch.fx GraphModule, a Graph or an ExportedProgram, "
            f"got {type(gm).__name__}. Export the model first: torch.export.export(model, inputs)."
        )
    return graph


def _without_dialect(name: str) -> str:
    """Turn the Edge spelling of a q/dq op into the ATen one; leave other names alone."""
    return re.sub(r"^quantized_decomposed_(\w+?)_(?:default|tensor2?)$", r"\1", name)
