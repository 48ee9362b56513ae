"""A bias that several ops use, one of them quantized; the weight of several 1-D convolutions.

XNNPACK stores a bias as int32 with the scale ``s_in · s_w`` of the op that uses it. ExecuTorch
1.5.1 serializes a constant once, with the scale of its first use: the second use of a shared
``Linear`` is then silently wrong, and a program with a shared convolution does not load (the
quantizer leaves its second use in float32). It turns a 1-D convolution into a 2-D one by a view of
the weight, and does not find its way when two of them view the same one.
"""

from __future__ import annotations

import copy
from collections.abc import Set
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from common._journal import note
from common.graph_utils import is_qdq, short

_OPS_WITH_BIAS = ("linear", "conv")
_1D = ("conv1d", "conv_transpose1d")
_WEIGHT, _BIAS = 1, 2


def unshare(gm: torch.nn.Module) -> torch.nn.Module:
    """Give each further use of a bias, or of the weight of a 1-D convolution, its own copy.

    Args:
        gm: a Q/DQ graph or another exported graph; anything else comes back as it is.

    Returns:
        ``gm`` itself where nothing is shared, else a copy of it.
    """
    if not isinstance(gm, fx.GraphModule) or not _further_uses(gm.graph):
        return gm
    note("A bias or weight that several ops use was copied for each further one.")
    gm = copy.deepcopy(gm)
    for number, (op, place) in enumerate(_further_uses(gm.graph)):
        op.update_arg(place, _copied(gm, op, op.args[place], number))
    gm.recompile()
    return gm


def shares_weights(program: torch.export.ExportedProgram) -> bool:
    """Tell whether ``unshare(program.module())`` would copy something."""
    return bool(_further_uses(program.graph, set(program.graph_signature.user_inputs)))


def _copied(gm: fx.GraphModule, op: fx.Node, node: Any, number: int) -> fx.Node:
    """Put a copy of a constant, or of a dequantized one, in front of an op."""
    if is_qdq(node):
        with gm.graph.inserting_before(op):
            new = gm.graph.node_copy(node)
        new.update_arg(0, _copied(gm, new, node.args[0], number))
        return new
    target = str(node.target)
    name = f"{target.replace('.', '_')}_copy{number}"
    gm.register_buffer(name, attrgetter(target)(gm).detach().clone())
    with gm.graph.inserting_before(node):
        own = gm.graph.get_attr(name)
    own.meta = copy.copy(node.meta)
    return own


def _further_uses(graph: fx.Graph, inputs: Set[Any] | None = None) -> list[tuple[fx.Node, int]]:
    """List (op, which argument) for each use of a shared constant after its first one.

    Args:
        graph: of a module, or of a program.
        inputs: of a program: those placeholders that are no constants.
    """
    uses: dict[tuple[str, int], list[tuple[fx.Node, int]]] = {}
    needed: set[tuple[str, int]] = set()
    for op in graph.nodes:
        if op.op != "call_function" or not short(op.target).startswith(_OPS_WITH_BIAS):
            continue
        weight, bias = (*op.args, None, None)[1:3]
        if (key := _constant(bias, inputs)) is not None:
            uses.setdefault((key, _BIAS), []).append((op, _BIAS))
            # one quantized use is enough: it turns the constant into int32 for all of them
            if isinstance(weight, fx.Node) and is_qdq(weight):
                needed.add((key, _BIAS))
        if short(op.target) in _1D and (key := _constant(weight, inputs)) is not None:
            uses.setdefault((key, _WEIGHT), []).append((op, _WEIGHT))
            needed.add((key, _WEIGHT))
    return [use for key in uses if key in needed for use in uses[key][1:]]


def _constant(node: Any, inputs: Set[Any] | None) -> str | None:
    """Name the constant that a node reads or dequantizes; None where it is computed."""
    while isinstance(node, fx.Node) and is_qdq(node):
        node = node.args[0]
    if not isinstance(node, fx.Node):
        return None
    stored = inputs is not None and node.op == "placeholder" and node.name not in inputs
    return str(node.target) if stored or node.op == "get_attr" else None
