"""What to try with an op that stays outside of XNNPACK, or in float32 inside.

Each rewrite here is lowered by a test, which also compares its numbers with those of the form
before. All ops with their limits: notebooks/ops.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from common._fx_view import arguments
from common.graph_utils import short

OUTSIDE, FLOAT = "outside", "float32"


@dataclass(frozen=True)
class Advice:
    """What to try.

    Attributes:
        subject: the op, with what it is about.
        do: the advice in sentences.
        before: how it is written; empty where there is no rewrite.
        after: how to write it instead.
        becomes: what the rewritten form is computed in, inside a delegate: ``int8`` or
            ``float32``.
        same: whether it computes the same numbers. Otherwise accuracy is to be measured again,
            and as a rule the network to be trained again.
        init: what ``after`` needs in ``__init__``, with the sizes of the example.
    """

    subject: str
    do: str
    before: str = ""
    after: str = ""
    becomes: str = ""
    same: bool = True
    init: str = ""


_Test = Callable[[fx.Node], bool]


@dataclass(frozen=True)
class _Rule:
    ops: tuple[str, ...]
    place: str
    advice: Advice
    when: _Test


def _rule(
    ops: str,
    place: str,
    subject: str,
    do: str,
    before: str = "",
    after: str = "",
    becomes: str = "",
    *,
    same: bool = True,
    init: str = "",
    when: _Test = lambda node: True,
) -> _Rule:
    advice = Advice(subject, do, before, after, becomes, same, init)
    return _Rule(tuple(ops.split()), place, advice, when)


def advice_for(node: fx.Node, place: str) -> Advice | None:
    """Return what to try, or None where nothing is known.

    Args:
        node: of the exported model.
        place: ``outside`` or ``float32``, where XNNPACK has left it.

    Example:
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x.mean((2, 3))
        >>> program = torch.export.export(Net().eval(), (torch.zeros(1, 4, 8, 8),))
        >>> (mean,) = (n for n in program.graph.nodes if n.op == "call_function")
        >>> print(advice_for(mean, "outside").after)
        x.mean((2, 3), keepdim=True).flatten(1)
    """
    name = short(node.target).removesuffix("_")
    for rule in RULES:
        if name in rule.ops and rule.place == place and rule.when(node):
            return rule.advice
    return None


# --- what a rule looks at


def _value(node: fx.Node, index: int = 0) -> torch.Tensor | None:
    """Return the tensor that an argument stands for."""
    given = node.args[index] if len(node.args) > index else None
    value = given.meta.get("val") if isinstance(given, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _rank(node: fx.Node, index: int = 0) -> int:
    value = _value(node, index)
    return -1 if value is None else value.dim()


def _given(node: fx.Node, name: str) -> Any:
    return arguments(node).get(name)


def _dims(node: fx.Node) -> set[int]:
    dims, rank = _given(node, "dim"), _rank(node)
    dims = [dims] if isinstance(dims, int) else dims or range(rank)
    return {d % rank for d in dims if isinstance(d, int)} if rank > 0 else set()


def _over_image(node: fx.Node) -> bool:
    return _rank(node) == 4 and _dims(node) == {2, 3}


def _by_number(node: fx.Node) -> bool:
    return len(node.args) > 1 and isinstance(node.args[1], (int, float))


def _power(*exponents: float) -> _Test:
    return lambda node: len(node.args) > 1 and node.args[1] in exponents


def _pads(node: fx.Node) -> bool:
    padding = _given(node, "padding") or 0
    sizes = padding if isinstance(padding, (list, tuple)) else [padding]
    return any(sizes) and _given(node, "count_include_pad") is not False


def _is_weight(node: Any) -> bool:
    """Whether a value is a parameter, a buffer or a constant, seen through views of it."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    if not isinstance(node, fx.Node):
        return False
    made = node.op == "call_function"  # torch.ones(…) in forward
    return made or node.op == "get_attr" or node.name.startswith(("p_", "b_", "c_"))


def _shared_weight(node: fx.Node) -> bool:
    operands = [a for a in node.args[1:3] if isinstance(a, fx.Node)]
    return any(len(operand.users) > 1 for operand in operands)


def _second_is_weight(node: fx.Node) -> bool:
    return len(node.args) > 1 and _is_weight(node.args[1])


_ACTIVATION = (
    "It is computed in float32, between two conversions, on activations four times the size. ReLU, "
    "ReLU6 and Hardtanh stay in int8, but are other functions: train the network with one of them."
)
_NO_RULE = (
    "XNNPACK has nothing for it: a portable kernel computes it in float32, between delegates."
)

RULES: tuple[_Rule, ...] = (
    # --- reductions and pooling
    _rule(
        "mean", OUTSIDE, "mean over height and width without keepdim",
        "XNNPACK takes it with keepdim=True; drop the two dimensions afterwards.",
        "x.mean((2, 3))", "x.mean((2, 3), keepdim=True).flatten(1)", "int8", when=_over_image,
    ),
    _rule(
        "mean", OUTSIDE, "mean over a sequence",
        "XNNPACK averages over the last two of four dimensions only: bring the sequence there.",
        "t.mean(1)",
        "t.transpose(1, 2).reshape(1, 6, 2, 1).mean((2, 3), keepdim=True).flatten(1)", "int8",
        when=lambda node: _rank(node) == 3 and _dims(node) == {1},
    ),
    _rule(
        "mean", OUTSIDE, "mean over channels",
        "A 1x1 convolution to one channel whose weights are all 1 / channels.",
        "x.mean(1, keepdim=True)", "self.average(x)", "int8",
        init="self.average = nn.Conv2d(4, 1, 1, bias=False)\n"
        "self.average.weight.data = torch.full((1, 4, 1, 1), 1 / 4)",
        when=lambda node: _rank(node) == 4 and _dims(node) == {1},
    ),
    _rule(
        "mean", OUTSIDE, "mean over other dimensions",
        "XNNPACK averages over the last two of four dimensions only, with keepdim=True: permute "
        "and reshape so that it is these two.",
    ),
    _rule(
        "sum", OUTSIDE, "sum over height and width",
        "A mean times the number of elements is the same.",
        "x.sum((2, 3), keepdim=True)", "x.mean((2, 3), keepdim=True) * 64.0", "int8",
        when=_over_image,
    ),
    _rule(
        "adaptive_avg_pool2d", OUTSIDE, "AdaptiveAvgPool2d with an output larger than 1",
        "Where the input's size is fixed and divisible, AvgPool2d with kernel = input / output is "
        "the same.",
        "F.adaptive_avg_pool2d(x, 2)", "F.avg_pool2d(x, 4)", "float32",
    ),
    _rule(
        "avg_pool2d", OUTSIDE, "AvgPool2d that counts its padding",
        "Pad first; then there is no padding left to count.",
        "F.avg_pool2d(x, 3, 1, 1)", "F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)", "float32",
        when=_pads,
    ),
    _rule(
        "avg_pool2d max_pool2d", OUTSIDE, "a pooling with a setting that XNNPACK does not have",
        "AvgPool2d: no ceil_mode. MaxPool2d: stride at most the kernel's size.",
    ),
    _rule(
        "max_pool1d", OUTSIDE, "MaxPool1d",
        "XNNPACK pools in two dimensions: make one of them 1.",
        "F.max_pool1d(t, 2)", "F.max_pool2d(t.reshape(1, 2, 1, 6), (1, 2)).reshape(1, 2, 3)",
        "int8",
    ),
    _rule(
        "amax", OUTSIDE, "amax", "max with keepdim=True, of which only the values are used.",
        "x.amax(2, keepdim=True)", "x.max(2, keepdim=True).values", "float32",
        when=lambda node: _rank(node) == 4 and _dims(node) in ({2}, {3}),
    ),
    _rule(
        "cumsum", OUTSIDE, "cumsum over channels",
        "A running sum is linear: a 1x1 convolution whose weights are a lower triangle of ones. "
        "In int8 it is rounded like any other layer.",
        "x.cumsum(1)", "self.triangle(x)", "int8",
        init="self.triangle = nn.Conv2d(4, 4, 1, bias=False)\n"
        "self.triangle.weight.data = torch.ones(4, 4).tril()[:, :, None, None]",
        when=lambda node: _rank(node) == 4 and _dims(node) == {1},
    ),
    _rule(
        "cumsum", OUTSIDE, "cumsum over the last dimension",
        "A running sum is linear: a Linear layer whose weights are a lower triangle of ones.",
        "v.cumsum(-1)", "self.lower(v)", "int8",
        init="self.lower = nn.Linear(6, 6, bias=False)\n"
        "self.lower.weight.data = torch.ones(6, 6).tril()",
        when=lambda node: _dims(node) == {_rank(node) - 1},
    ),
    # --- shapes
    _rule(
        "chunk split split_with_sizes tensor_split unbind", OUTSIDE, "chunk or split",
        "Slices with step 1 are taken.",
        "x.chunk(2, 1)", "(x[:, :2], x[:, 2:])", "int8",
    ),
    _rule(
        "select", OUTSIDE, "an index that drops a dimension",
        "Take a slice of length 1, and drop the dimension by reshape.",
        "x[:, 1]", "x[:, 1:2].reshape(1, 8, 8)", "int8",
    ),
    _rule(
        "squeeze", OUTSIDE, "squeeze", "reshape does the same.",
        "x.squeeze(0)", "x.reshape(4, 8, 8)", "int8",
    ),
    _rule(
        "unsqueeze", OUTSIDE, "unsqueeze in front", "reshape does the same.",
        "x.unsqueeze(0)", "x.reshape(1, 1, 4, 8, 8)", "int8",
    ),
    _rule(
        "unsqueeze", FLOAT, "unsqueeze", "reshape does the same and stays in int8.",
        "x.unsqueeze(-1)", "x.reshape(1, 4, 8, 8, 1)", "int8",
    ),
    _rule(
        "repeat", OUTSIDE, "repeat",
        "cat takes it, but not the same tensor twice: multiply the second one by 1.",
        "x.repeat(1, 2, 1, 1)", "torch.cat((x, x * 1.0), 1)", "int8",
    ),
    _rule(
        "stack", FLOAT, "stack", "cat of reshaped tensors stays in int8.",
        "torch.stack((x, y), 1)",
        "torch.cat((x.reshape(1, 1, 4, 8, 8), y.reshape(1, 1, 4, 8, 8)), 1)", "int8",
    ),
    _rule(
        "expand expand_as", OUTSIDE, "expand",
        "add and mul broadcast by themselves: leave the expand out.",
        "x + z.expand(1, 4, 8, 8)", "x + z", "int8",
    ),
    _rule(
        "slice", OUTSIDE, "a slice with a step",
        "Steps other than 1 stay outside. A layer before with stride 2 leaves the elements out "
        "where they are made.",
    ),
    _rule(
        "pad", OUTSIDE, "padding by reflection or repetition",
        "Zeros are taken. The numbers at the edge are others.",
        'F.pad(x, (1, 1, 1, 1), mode="reflect")', "F.pad(x, (1, 1, 1, 1))", "float32",
        same=False,
        when=lambda node: _given(node, "mode") not in (None, "constant"),
    ),
    _rule(
        "upsample_nearest2d", OUTSIDE, "nearest upsampling",
        "XNNPACK has the bilinear one. Its numbers are others.",
        'F.interpolate(x, scale_factor=2, mode="nearest")',
        'F.interpolate(x, scale_factor=2, mode="bilinear")', "float32", same=False,
    ),
    # --- arithmetic
    _rule(
        "add sub", OUTSIDE, "add with alpha", "Multiply by itself.",
        "torch.add(x, y, alpha=2)", "x + y * 2.0", "int8",
        when=lambda node: bool(node.kwargs.get("alpha", 1) != 1),
    ),
    _rule(
        "add mul sub", OUTSIDE, "an integer in float arithmetic",
        "It is exported as int64 and converted at every run. Write it with a point.",
        "x + 1", "x + 1.0", "int8",
        when=lambda node: any(type(a) is int for a in node.args),
    ),
    _rule(
        "div", OUTSIDE, "a division by an integer", "Multiply.", "x / 2", "x * 0.5", "int8",
        when=_by_number,
    ),
    _rule(
        "div", FLOAT, "a division by a number", "A product stays in int8.",
        "x / 2.0", "x * 0.5", "int8", when=_by_number,
    ),
    _rule(
        "sub", FLOAT, "subtraction of a number", "A sum stays in int8.",
        "x - 0.5", "x + -0.5", "int8", when=_by_number,
    ),
    _rule(
        "rsub", FLOAT, "subtraction from a number", "A product and a sum stay in int8.",
        "1.0 - x", "x * -1.0 + 1.0", "int8", when=_by_number,
    ),
    _rule(
        "sub", FLOAT, "subtraction", "A sum and a product stay in int8.",
        "x - y", "x + y * -1.0", "int8",
    ),
    _rule("neg", FLOAT, "negation", "A product stays in int8.", "-x", "x * -1.0", "int8"),
    _rule(
        "square pow", FLOAT, "a square", "A product stays in int8.", "x ** 2", "x * x", "int8",
        when=lambda node: short(node.target) == "square" or _power(2)(node),
    ),
    _rule(
        "pow", OUTSIDE, "a third power", "XNNPACK takes 2 only. A product stays in int8.",
        "x ** 3", "x * x * x", "int8", when=_power(3),
    ),
    _rule(
        "pow", OUTSIDE, "a power of 0.5", "XNNPACK has sqrt.",
        "x ** 0.5", "x.sqrt()", "float32", when=_power(0.5),
    ),
    _rule(
        "ones zeros full eye arange linspace ones_like zeros_like full_like", OUTSIDE,
        "a constant that forward makes",
        "It is made anew at every run. Make it once, as a buffer.",
        "x * torch.ones(1, 4, 8, 8)", "x * self.ones", "int8",
        init='self.register_buffer("ones", torch.ones(1, 4, 8, 8))',
    ),
    # --- products
    _rule(
        "linear", OUTSIDE, "a weight that forward makes or computes",
        "XNNPACK wants a parameter. Make it a layer in __init__.",
        "F.linear(v, torch.ones(3, 6))", "self.linear(v)", "int8",
        init="self.linear = nn.Linear(6, 3, bias=False)\n"
        "self.linear.weight.data = torch.ones(3, 6)",
        when=_second_is_weight,
    ),
    _rule(
        "matmul mm", OUTSIDE, "a product with a weight",
        "XNNPACK takes a weight in a Linear layer, not in a bare product.",
        "v @ self.linear.weight.t()", "self.linear(v)", "int8", when=_second_is_weight,
    ),
    _rule(
        "matmul", OUTSIDE, "a product of tensors of four dimensions",
        "Its batch dimensions are expanded outside. bmm has one batch dimension and goes in.",
        "x @ y", "torch.bmm(x.reshape(4, 8, 8), y.reshape(4, 8, 8)).reshape(1, 4, 8, 8)",
        "float32", when=lambda node: _rank(node) > 3,
    ),
    _rule(
        "matmul mm", OUTSIDE, "a product of two computed matrices",
        "bmm takes two tensors of three dimensions.",
        "v @ w", "torch.bmm(v.reshape(1, 2, 6), w.reshape(1, 6, 2)).reshape(2, 2)", "float32",
    ),
    _rule(
        "scaled_dot_product_attention", OUTSIDE, "attention",
        "Its decomposition for four dimensions expands, and scales outside. Written with bmm, all "
        "of it goes in: one batch dimension, heads included.",
        "F.scaled_dot_product_attention(t, t, t)",
        "torch.bmm((torch.bmm(t, t.transpose(1, 2)) * 6**-0.5).softmax(-1), t)", "float32",
    ),
    _rule(
        "conv1d conv2d conv_transpose1d conv_transpose2d", FLOAT, "a convolution used twice",
        "The quantizer marks one use of a weight. Give each use a layer of its own, copied when "
        "the weights are loaded.",
        "self.conv(x) + self.conv(y)", "self.conv(x) + self.twin(y)", "int8",
        init="self.twin = copy.deepcopy(self.conv)", when=_shared_weight,
    ),
    _rule(
        "conv1d conv2d conv_transpose1d conv_transpose2d", OUTSIDE, "a weight that is computed",
        "XNNPACK wants a parameter. Compute the weight once, and make it a layer in __init__.",
        when=_second_is_weight,
    ),
    _rule(
        "conv3d", OUTSIDE, "Conv3d",
        "XNNPACK convolves in one and two dimensions. Outside, Conv3d fails when it runs.",
    ),
    _rule(
        "lstm gru rnn_tanh rnn_relu", OUTSIDE, "a recurrent layer",
        "It is unrolled into its steps and splits its gates outside. For a fixed length, "
        "convolutions over time go in whole.",
    ),
    # --- activations and normalization
    _rule(
        "softmax", OUTSIDE, "softmax over another than the last dimension",
        "Bring the dimension to the end.",
        "x.softmax(1)", "x.transpose(1, 3).softmax(-1).transpose(1, 3)", "float32",
    ),
    _rule(
        "log_softmax", OUTSIDE, "log_softmax",
        "XNNPACK has softmax and log. For the largest entry alone neither is needed.",
        "x.log_softmax(-1)", "x.softmax(-1).log()", "float32",
    ),
    _rule(
        "elu", OUTSIDE, "ELU", "XNNPACK's partitioner has LeakyReLU, another function.",
        "F.elu(x)", "F.leaky_relu(x)", "float32", same=False,
    ),
    _rule(
        "clamp", FLOAT, "clamp", "hardtanh with the same limits stays in int8.",
        "x.clamp(-1.0, 1.0)", "F.hardtanh(x, -1.0, 1.0)", "int8",
    ),
    _rule(
        "relu6", FLOAT, "the function relu6",
        "The layer nn.ReLU6 and hardtanh, which are the same, stay in int8.",
        "F.relu6(x)", "F.hardtanh(x, 0.0, 6.0)", "int8",
    ),
    _rule(
        "hardswish silu gelu mish leaky_relu prelu sigmoid hardsigmoid tanh softplus elu", FLOAT,
        "an activation in float32", _ACTIVATION,
        "F.hardswish(x)", "F.hardtanh(x, 0.0, 6.0)", "int8", same=False,
    ),
    _rule(
        "hardsigmoid", OUTSIDE, "Hardsigmoid",
        "Part of it is converted outside. Sigmoid is in the delegate, in float32; it is another "
        "function.",
        "F.hardsigmoid(x)", "x.sigmoid()", "float32", same=False,
    ),
    _rule(
        "layer_norm group_norm instance_norm rms_norm", OUTSIDE, "a normalization at run time",
        f"{_NO_RULE} A BatchNorm directly behind a convolution is folded into it and costs "
        "nothing, but the network has to be trained with it.",
    ),
    _rule(
        "batch_norm", FLOAT, "a BatchNorm that stands alone",
        "Directly behind a convolution it is folded into it. Put it there, and train again.",
    ),
    _rule(
        "embedding", OUTSIDE, "an embedding",
        "A look-up computes nothing: it costs a copy of the rows, and the table stays in float32. "
        "As the first op it breaks no delegate in two.",
    ),
    _rule(
        "argmax argmin topk sort max min", OUTSIDE, "a choice by size",
        f"{_NO_RULE} At the end of the model, leave it out and choose from the output in your "
        "own code.",
    ),
)  # fmt: skip
