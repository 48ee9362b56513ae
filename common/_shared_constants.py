"""A bias that several ops use, one of them quantized.

XNNPACK stores a bias as int32 with the scale ``s_in · s_w`` of the op that uses it. ExecuTorch
1.5.1 serializes a constant once, with the scale of its first use: the second use of a shared
``Linear`` is then silently wrong, and a program with a shared convolution does not load (the
quantizer leaves its second use in float32).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx

from common.graph_utils import is_qdq, short

_OPS_WITH_BIAS = ("linear", "conv")


def unshare(gm: torch.nn.Module) -> torch.nn.Module:
    """Give each further use of a bias its own copy.

    Args:
        gm: a Q/DQ graph; anything else comes back as it is.

    Returns:
        ``gm`` itself where no bias is shared, else a copy of it.
    """
    if not isinstance(gm, fx.GraphModule) or not _further_uses(gm):
        return gm
    gm = copy.deepcopy(gm)
    for number, (op, bias) in enumerate(_further_uses(gm)):
        target = str(bias.target)
        name = f"{target.replace('.', '_')}_copy{number}"
        gm.register_buffer(name, _value(gm, target).detach().clone())
        with gm.graph.inserting_before(bias):
            own = gm.graph.get_attr(name)
        own.meta = copy.copy(bias.meta)
        op.update_arg(2, own)
    gm.recompile()
    return gm


def _further_uses(gm: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """List (op, bias) for each use of a bias after its first one, if any use is quantized."""
    uses: dict[str, list[tuple[fx.Node, fx.Node]]] = {}
    quantized: set[str] = set()
    for op in gm.graph.nodes:
        if op.op != "call_function" or not short(op.target).startswith(_OPS_WITH_BIAS):
            continue
        weight, bias = (*op.args, None, None)[1:3]
        if isinstance(bias, fx.Node) and bias.op == "get_attr":
            uses.setdefault(str(bias.target), []).append((op, bias))
            # one quantized use is enough: it turns the constant into int32 for all of them
            if isinstance(weight, fx.Node) and is_qdq(weight):
                quantized.add(str(bias.target))
    return [use for target in uses if target in quantized for use in uses[target][1:]]


def _value(gm: fx.GraphModule, target: str) -> torch.Tensor:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value
