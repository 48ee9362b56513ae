"""The ops about which make_op_table.py asks, in the order and the groups of notebooks/ops.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

Shape = tuple[int, ...]


class Row(NamedTuple):
    """One op.

    Attributes:
        name: the op as the table shows it.
        make: makes the module.
        inputs: shapes of its inputs; the empty tuple stands for two token ids.
        rule: the constraint in plain words.
        against: the row that keeps or breaks the rule the other way and gets another answer.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Shape, ...]
    rule: str = ""
    against: str = ""


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return what the function returns."""
        return self._function(*inputs)


IMAGE: tuple[Shape, ...] = ((1, 4, 8, 8),)
TWO = IMAGE * 2
VECTOR: tuple[Shape, ...] = ((2, 6),)
SEQUENCE: tuple[Shape, ...] = ((1, 2, 6),)
IDS: tuple[Shape, ...] = ((),)


def one(
    name: str,
    function: Callable[[torch.Tensor], Any],
    inputs: tuple[Shape, ...] = IMAGE,
    rule: str = "",
    against: str = "",
) -> Row:
    """A row for a function of one tensor."""
    return Row(name, lambda: Function(function), inputs, rule, against)


def two(
    name: str,
    function: Callable[[torch.Tensor, torch.Tensor], Any],
    inputs: tuple[Shape, ...] = TWO,
    rule: str = "",
    against: str = "",
) -> Row:
    """A row for a function of two tensors."""
    return Row(name, lambda: Function(function), inputs, rule, against)


def chain(*layers: nn.Module) -> nn.Module:
    """Layers one behind the other."""
    return nn.Sequential(*layers)


GROUPS: dict[str, tuple[Row, ...]] = {
    "products": (
        Row("Conv2d", lambda: nn.Conv2d(4, 6, 3), IMAGE),
        Row("Conv2d, bias=False", lambda: nn.Conv2d(4, 6, 3, bias=False), IMAGE),
        Row("Conv2d, groups=2", lambda: nn.Conv2d(4, 6, 3, groups=2), IMAGE),
        Row(
            "Conv2d, depthwise",
            lambda: nn.Conv2d(4, 4, 3, groups=4),
            IMAGE,
            "dynamic: not depthwise",
            "Conv2d, groups=2",
        ),
        Row("Conv2d, dilation=2", lambda: nn.Conv2d(4, 6, 3, dilation=2), IMAGE),
        Row("Conv2d + BatchNorm2d", lambda: chain(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), IMAGE),
        Row(
            "Conv2d + ReLU",
            lambda: chain(nn.Conv2d(4, 6, 3), nn.ReLU()),
            IMAGE,
            "dynamic: never with ReLU",
            "Conv2d",
        ),
        Row("Conv2d + ReLU6", lambda: chain(nn.Conv2d(4, 6, 3), nn.ReLU6()), IMAGE),
        Row(
            "Conv2d + SiLU",
            lambda: chain(nn.Conv2d(4, 6, 3), nn.SiLU()),
            IMAGE,
            "only the convolution is int8",
            "Conv2d + ReLU",
        ),
        Row(
            "Conv1d",
            lambda: nn.Conv1d(4, 4, 3),
            ((1, 4, 8),),
            "dynamic: 2-D only",
            "Conv2d",
        ),
        Row(
            "Conv3d",
            lambda: nn.Conv3d(2, 2, 1),
            ((1, 2, 3, 4, 4),),
            "1-D and 2-D only; outside it fails when it runs",
            "Conv2d",
        ),
        Row("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), IMAGE),
        Row(
            "ConvTranspose2d, groups=2",
            lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
            IMAGE,
            "int8: groups=1 only",
            "ConvTranspose2d",
        ),
        Row("Linear", lambda: nn.Linear(6, 4), VECTOR),
        Row("Linear, bias=False", lambda: nn.Linear(6, 4, bias=False), VECTOR),
        Row("Linear + ReLU", lambda: chain(nn.Linear(6, 4), nn.ReLU()), VECTOR),
        two("bmm", torch.bmm, ((2, 3, 6), (2, 6, 4))),
        two(
            "matmul, 2-D",
            torch.matmul,
            ((3, 6), (6, 4)),
            "one factor has to be a weight, or both 3-D: bmm",
            "bmm",
        ),
        two(
            "matmul, 4-D",
            torch.matmul,
            ((1, 2, 3, 6), (1, 2, 6, 4)),
            "its expand stays outside; write it as bmm",
            "bmm",
        ),
        Row(
            "scaled_dot_product_attention",
            lambda: Function(F.scaled_dot_product_attention),
            ((1, 2, 3, 4),) * 3,
            "as matmul, 4-D; and so does its scaling",
            "bmm",
        ),
        Row("LSTM", lambda: nn.LSTM(6, 4, batch_first=True), SEQUENCE, "as chunk", "slice"),
        Row("GRU", lambda: nn.GRU(6, 4, batch_first=True), SEQUENCE, "as chunk", "slice"),
    ),
    "arithmetic": (
        two("x + y", torch.add, TWO),
        two("relu(x + y)", lambda x, y: torch.relu(x + y), TWO),
        two("add(x, y, alpha=2)", lambda x, y: torch.add(x, y, alpha=2), TWO, "alpha=1", "x + y"),
        one("x + 1.0", lambda x: x + 1.0),
        one("x + 1", lambda x: x + 1, IMAGE, "fp32: write 1.0", "x + 1.0"),
        two("x - y", torch.sub, TWO, "int8: write x + y * -1.0", "x + y"),
        two("x * y", torch.mul, TWO),
        two("relu(x * y)", lambda x, y: torch.relu(x * y), TWO),
        two("x / y", torch.div, TWO, "int8: multiply", "x * y"),
        one("x / 2.0", lambda x: x / 2.0, IMAGE, "int8: write x * 0.5", "x * 0.5"),
        one("x / 2", lambda x: x / 2, IMAGE, "write x * 0.5", "x * 0.5"),
        one("x * 0.5", lambda x: x * 0.5),
        one("abs", torch.abs),
        one("neg", torch.neg, IMAGE, "int8: write x * -1.0", "x * 0.5"),
        one("exp", torch.exp),
        one("log", torch.log),
        one("sqrt", torch.sqrt),
        one("rsqrt", torch.rsqrt),
        one("sin, cos", lambda x: (torch.sin(x), torch.cos(x))),
        one("ceil, floor", lambda x: (torch.ceil(x), torch.floor(x))),
        one("round", torch.round, IMAGE, "ceil and floor only", "ceil, floor"),
        one("square, x ** 2", torch.square, IMAGE, "int8: write x * x", "x * y"),
        one("x ** 3", lambda x: x**3, IMAGE, "the integer 2 only", "square, x ** 2"),
        one("x ** 0.5", lambda x: x**0.5, IMAGE, "write sqrt", "sqrt"),
        two("minimum, maximum", lambda x, y: (torch.minimum(x, y), torch.maximum(x, y)), TWO),
        two("where", lambda x, y: torch.where(x > y, x, y), TWO),
    ),
    "activations": (
        one("relu", torch.relu),
        Row("ReLU6, Hardtanh", nn.ReLU6, IMAGE),
        one("clamp", lambda x: x.clamp(0.1, 0.5), IMAGE, "int8: write hardtanh", "ReLU6, Hardtanh"),
        Row("LeakyReLU", nn.LeakyReLU, IMAGE),
        Row("PReLU", nn.PReLU, IMAGE),
        Row("ELU", nn.ELU, IMAGE, "no rule; LeakyReLU has one", "LeakyReLU"),
        Row("Sigmoid", nn.Sigmoid, IMAGE),
        Row("Hardsigmoid", nn.Hardsigmoid, IMAGE, "as x + 1", "x + 1.0"),
        Row("SiLU", nn.SiLU, IMAGE),
        Row("Hardswish", nn.Hardswish, IMAGE),
        Row("GELU", nn.GELU, IMAGE),
        Row("Tanh", nn.Tanh, IMAGE),
        Row("Softmax, last dim", lambda: nn.Softmax(dim=-1), IMAGE),
        Row(
            "Softmax, dim=1 of 4", lambda: nn.Softmax(dim=1), IMAGE, "last dim", "Softmax, last dim"
        ),
        Row(
            "LogSoftmax",
            lambda: nn.LogSoftmax(dim=-1),
            IMAGE,
            "write Softmax, then log",
            "Softmax, last dim",
        ),
    ),
    "reductions": (
        Row("MaxPool2d", lambda: nn.MaxPool2d(2), IMAGE),
        Row("MaxPool2d, ceil_mode", lambda: nn.MaxPool2d(3, stride=2, ceil_mode=True), IMAGE),
        Row(
            "MaxPool2d, stride > kernel",
            lambda: nn.MaxPool2d(2, stride=3),
            IMAGE,
            "stride <= kernel",
            "MaxPool2d",
        ),
        Row("MaxPool1d", lambda: nn.MaxPool1d(2), ((1, 4, 8),), "2-D only", "MaxPool2d"),
        Row("AvgPool2d", lambda: nn.AvgPool2d(2), IMAGE),
        Row(
            "AvgPool2d, padding",
            lambda: nn.AvgPool2d(2, padding=1),
            IMAGE,
            "count_include_pad=False",
            "AvgPool2d, padding, count_include_pad=False",
        ),
        Row(
            "AvgPool2d, padding, count_include_pad=False",
            lambda: nn.AvgPool2d(2, padding=1, count_include_pad=False),
            IMAGE,
        ),
        Row(
            "AvgPool2d, ceil_mode",
            lambda: nn.AvgPool2d(3, stride=2, ceil_mode=True),
            IMAGE,
            "no ceil_mode",
            "AvgPool2d",
        ),
        Row("AdaptiveAvgPool2d(1)", lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
        Row(
            "AdaptiveAvgPool2d(2)",
            lambda: nn.AdaptiveAvgPool2d(2),
            IMAGE,
            "output 1 only; AvgPool2d is fp32",
            "AdaptiveAvgPool2d(1)",
        ),
        one("mean((2, 3), keepdim=True)", lambda x: x.mean((2, 3), keepdim=True)),
        one(
            "mean((2, 3))",
            lambda x: x.mean((2, 3)),
            IMAGE,
            "keepdim=True",
            "mean((2, 3), keepdim=True)",
        ),
        one(
            "mean(1, keepdim=True)",
            lambda x: x.mean(1, keepdim=True),
            IMAGE,
            "over (2, 3) only",
            "mean((2, 3), keepdim=True)",
        ),
        one(
            "mean of 3-D",
            lambda x: x.mean(-1, keepdim=True),
            SEQUENCE,
            "4-D only",
            "mean((2, 3), keepdim=True)",
        ),
        one("sum", lambda x: x.sum(1)),
        one(
            "amax",
            lambda x: x.amax(2, keepdim=True),
            IMAGE,
            "write max(2, keepdim=True).values",
            "max(2, keepdim=True).values",
        ),
        one("max(2, keepdim=True).values", lambda x: x.max(2, keepdim=True).values),
        one(
            "max(2).values",
            lambda x: x.max(2).values,
            IMAGE,
            "taken, and then lowering raises: keepdim=True, over 2 or 3",
        ),
        one(
            "max(2, keepdim=True), with indices",
            lambda x: tuple(x.max(2, keepdim=True)),
            IMAGE,
            "values only",
            "max(2, keepdim=True).values",
        ),
        one("argmax", lambda x: x.argmax(1)),
        one("cumsum", lambda x: x.cumsum(1)),
    ),
    "normalization": (
        Row(
            "BatchNorm2d alone",
            lambda: nn.BatchNorm2d(4),
            IMAGE,
            "int8: directly behind a convolution",
            "Conv2d + BatchNorm2d",
        ),
        Row("LayerNorm", lambda: nn.LayerNorm(6), SEQUENCE),
        Row("GroupNorm", lambda: nn.GroupNorm(2, 4), IMAGE),
        Row(
            "RMSNorm",
            lambda: nn.RMSNorm(6),
            SEQUENCE,
            "as mean of 3-D",
            "mean((2, 3), keepdim=True)",
        ),
    ),
    "shape": (
        one("view, reshape", lambda x: x.reshape(1, 8, 4, 8)),
        one("flatten", lambda x: x.flatten(1)),
        one("permute", lambda x: x.permute(0, 2, 3, 1)),
        one("transpose", lambda x: x.transpose(1, 2)),
        one("squeeze", lambda x: x.squeeze(0), IMAGE, "write reshape", "view, reshape"),
        one(
            "unsqueeze(-1)",
            lambda x: x.unsqueeze(-1),
            IMAGE,
            "int8: write reshape",
            "view, reshape",
        ),
        one("unsqueeze(0)", lambda x: x.unsqueeze(0), IMAGE, "write reshape", "view, reshape"),
        one("expand", lambda x: x.expand(2, 4, 8, 8)),
        one(
            "repeat",
            lambda x: x.repeat(1, 2, 1, 1),
            IMAGE,
            "write cat([x, x * 1.0], 1); of one tensor twice it stays outside",
            "cat of 2",
        ),
        two("cat of 2", lambda x, y: torch.cat([x, y], 1), TWO),
        two("cat of 6", lambda x, y: torch.cat([x, y] * 3, 1), TWO),
        two("stack", lambda x, y: torch.stack([x, y], 1), TWO, "int8: write cat", "cat of 2"),
        one("slice", lambda x: x[:, 1:3]),
        one("slice, step 2", lambda x: x[:, ::2], IMAGE, "step 1", "slice"),
        one("select: x[:, 1]", lambda x: x[:, 1], IMAGE, "write x[:, 1:2]", "slice"),
        one("chunk, split", lambda x: x.chunk(2, 1), IMAGE, "write slices", "slice"),
        one("pad, constant", lambda x: F.pad(x, (1, 1, 1, 1))),
        one(
            "pad, reflect",
            lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
            IMAGE,
            "constant only",
            "pad, constant",
        ),
        one(
            "pad, negative",
            lambda x: F.pad(x, (-1, -1, 0, 0)),
            IMAGE,
            ">= 0; outside it fails when it runs",
            "pad, constant",
        ),
        Row(
            "ConstantPad2d + Conv2d",
            lambda: chain(nn.ConstantPad2d(1, 0.0), nn.Conv2d(4, 6, 3)),
            IMAGE,
        ),
        Row("Upsample, bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
        Row(
            "Upsample, nearest",
            lambda: nn.Upsample(scale_factor=2, mode="nearest"),
            IMAGE,
            "bilinear only",
            "Upsample, bilinear",
        ),
        Row("PixelShuffle", lambda: nn.PixelShuffle(2), IMAGE),
        one("clone", torch.clone),
        one("permute, contiguous", lambda x: x.permute(0, 2, 3, 1).contiguous()),
        Row("Dropout", nn.Dropout, IMAGE),
        Row("Embedding", lambda: nn.Embedding(10, 4), IDS),
    ),
}
ROWS = tuple(row for rows in GROUPS.values() for row in rows)
