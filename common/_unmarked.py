"""Why the quantizer left an op alone, from the same rules that it goes by."""

from __future__ import annotations

from collections.abc import Set
from functools import cache

import torch
from torch import fx

from common._fx_view import arguments
from common.graph_utils import short

_CONVOLUTIONS = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "linear")
_OPERANDS = ("weight", "bias")
BEHIND = "the quantizer has not marked what is in front of it,"


def why_unmarked(node: fx.Node, marked: Set[str]) -> str:
    """Say why ``XNNPACKQuantizer`` did not mark an op.

    Args:
        node: of the exported model, before quantization.
        marked: names of the nodes that it marked.
    """
    name = short(node.target).removesuffix("_")
    if _passes_on(node):
        before = node.args[0]
        if isinstance(before, fx.Node) and before.op == "placeholder":
            return f"{BEHIND} an input"
        if isinstance(before, fx.Node) and not _is_marked(before, marked):
            return f"{BEHIND} {before.name}"
    if name not in _patterns():
        return "the quantizer has no pattern for it"
    if name in _CONVOLUTIONS:
        for operand, value in zip(_OPERANDS, node.args[1:3], strict=False):
            if isinstance(value, fx.Node) and (other := _other_user(value, node, marked)):
                return f"its {operand} is that of {other} too, and the quantizer marks one user"
    if name.startswith("conv_transpose") and arguments(node).get("groups", 1) != 1:
        return "the quantizer takes no transposed convolution with groups"
    if any(not _is_float32(value) for value in (node, *node.all_input_nodes)):
        return "the quantizer takes float32 only"
    return "the quantizer knows it, and its settings leave it out"


def _is_marked(node: fx.Node, marked: Set[str]) -> bool:
    """Whether a node was marked; one that was folded into another one counts as that."""
    if "batch_norm" in short(node.target) and isinstance(node.args[0], fx.Node):
        return node.args[0].name in marked
    return node.name in marked


def _other_user(value: fx.Node, node: fx.Node, marked: Set[str]) -> str:
    return next((u.name for u in value.users if u is not node and u.name in marked), "")


def _is_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype == torch.float32


def _passes_on(node: fx.Node) -> bool:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils as utils

    passes_on = getattr(utils, "_is_share_obs_or_fq_op", None)
    return passes_on is not None and bool(passes_on(node.target))


@cache
def _patterns() -> frozenset[str]:
    """Short names of the ops that patterns of the quantizer begin with."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer

    targets = {t for p in XNNPACKQuantizer.SUPPORTED_PATTERNS for t in p.op_overloads}
    return frozenset(short(target) for target in targets)
