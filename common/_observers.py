"""Watching the observers of PT2E: what they are given, and what they make of it.

An observer drops infinities with a warning, so that a mask of ``-inf`` becomes the lowest number
of the rest; a NaN in it ends in an error about histograms. A mask of ``-1e4`` that is added gives
the sum one step in 39, in which the scores vanish. None of this is told to the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from common._errors import QuantizationError
from common._source_line import named, source_line
from common.graph_utils import is_qdq, short

LARGE = 1000.0
"""Values from here on count as those of a mask, where they leave another operand no steps."""
LEVELS = 4
"""The least number of steps that an operand of a sum must have beside a mask."""

_MASK = (
    "Put a mask in with scores.masked_fill(mask, float('-inf')) right before the softmax: both "
    "stay in float32."
)


@contextlib.contextmanager
def only_finite(prepared: fx.GraphModule) -> Generator[None, None, None]:
    """Refuse each NaN and infinity that an observer is given while the block runs.

    Raises:
        QuantizationError: naming the node that the value comes from.
    """
    handles = []
    for node, observer in _observed(prepared):

        def check(_: Any, args: tuple[Any, ...], node: fx.Node = node) -> None:
            _check_finite(node, args[0])

        handles.append(observer.register_forward_pre_hook(check))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_observed(prepared: fx.GraphModule) -> None:
    """Refuse what calibration has left unusable: no value at all, or a mask that hides a sum.

    Raises:
        QuantizationError: naming the node.
    """
    for node, observer in _observed(prepared):
        low: Any = getattr(observer, "min_val", None)
        high: Any = getattr(observer, "max_val", None)
        if isinstance(low, torch.Tensor) and (not low.numel() or bool((low > high).any())):
            raise QuantizationError(
                f"{named(node)}: calibration has shown no value of it, so that its range is "
                "unknown. Its tensor has no element: leave such an op out of the model, or "
                "calibrate with batches that are not empty."
            )
    for node in prepared.graph.nodes:
        if node.op == "call_function" and short(node.target) in ("add", "add_"):
            _check_sum(prepared, node)


def check_scales(gm: fx.GraphModule) -> None:
    """Refuse a Q/DQ graph with a scale that is not a positive number.

    Raises:
        QuantizationError: naming the node whose scale it is.
    """
    for node in gm.graph.nodes:
        if not is_qdq(node) or len(node.args) < 2:
            continue
        scale: Any = node.args[1]
        if isinstance(scale, fx.Node):
            if scale.op != "get_attr":
                continue  # measured at run time
            scale = attrgetter(str(scale.target))(gm)
        scale = torch.as_tensor(scale)
        if not (torch.isfinite(scale) & (scale > 0)).all():
            value = node.args[0]
            what = named(value) if isinstance(value, fx.Node) else node.name
            raise QuantizationError(
                f"{what}: its scale is {scale.flatten()[:4].tolist()}, which is no positive "
                "number: its values are not finite, or too large for float32. Scale them down, or "
                "leave this op in float32 (a quantizer with set_filter_function)."
            )


def _observed(prepared: fx.GraphModule) -> Iterator[tuple[fx.Node, torch.nn.Module]]:
    """Iterate over the observed nodes, each with its observer."""
    for node in prepared.graph.nodes:
        if node.op == "call_module" and node.args and isinstance(node.args[0], fx.Node):
            yield node.args[0], prepared.get_submodule(str(node.target))


def _check_finite(node: fx.Node, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return
    finite = torch.isfinite(value)
    if finite.all():
        return
    found = value[~finite].flatten()[0].item()
    advice = (
        "Repair the weights first."
        if node.op == "get_attr" and found != float("-inf")
        else f"{_MASK} Any other op can be left in float32: a quantizer with "
        "set_filter_function(lambda node: …)."
    )
    users = " and ".join(sorted({f"{short(n.target)}{source_line(n)}" for n in _readers(node)}))
    read = f", which {users} reads," if users else ""
    raise QuantizationError(
        f"{named(node)}{read} holds {found}: 8 bits have no place for it, and the values beside it "
        f"would silently get a range without it. {advice}"
    )


def _readers(node: fx.Node) -> list[fx.Node]:
    """Return the ops that read a node through its observers."""
    through = [n for n in node.users if n.op == "call_module"]
    return [op for n in through for op in n.users if op.op == "call_function"]


def _check_sum(prepared: fx.GraphModule, node: fx.Node) -> None:
    operands = [
        (n.args[0], prepared.get_submodule(str(n.target)))
        for n in node.args[:2]
        if isinstance(n, fx.Node) and n.op == "call_module"
    ]
    if len(operands) != 2:
        return
    for (operand, observer), (_, other) in (operands, operands[::-1]):
        own, mask = _range(observer), _range(other)
        if own is None or mask is None or not isinstance(operand, fx.Node):
            continue
        width, most = own[1] - own[0], max(map(abs, mask))
        # A constant that is small beside the other operand may be one on purpose (an epsilon).
        if operand.op == "get_attr" or width == 0 or most < LARGE:
            continue
        if width < LEVELS * (mask[1] - mask[0]) / 255:
            raise QuantizationError(
                f"{named(node)} adds numbers as large as {most:.4g} to {named(operand)}, whose "
                f"whole range is {width:.3g}: in the 255 steps of the sum it would vanish. {_MASK} "
                "Or leave this op in float32: a quantizer with "
                "set_filter_function(lambda node: …)."
            )


def _range(observer: Any) -> tuple[float, float] | None:
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    if not isinstance(low, torch.Tensor) or not isinstance(high, torch.Tensor):
        return None
    return (low.item(), high.item()) if low.numel() == high.numel() == 1 else None
