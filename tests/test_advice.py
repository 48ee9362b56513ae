"""Advice keeps its word: the rewritten forms are lowered, and compute the same.

All of them together take two minutes, so a run lowers a few of the rewritten forms;
M08_ADVICE=all lowers all, and the forms before.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from common._advice import FLOAT, OUTSIDE, RULES, Advice, advice_for
from common._op_rows import ReportedOp, op_rows
from common._support import refusals
from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq

REWRITES = [rule for rule in RULES if rule.advice.after]
CORE = (
    "mean over height and width without keepdim",
    "chunk or split",
    "a convolution used twice",
    "log_softmax",
)
SHAPES = {  # of the names in the advice
    "x": (1, 4, 8, 8), "y": (1, 4, 8, 8), "z": (1, 4, 1, 1),
    "t": (1, 2, 6), "v": (2, 6), "w": (6, 2),
}  # fmt: skip


ALL = os.environ.get("M08_ADVICE") == "all"
LOWERED = [rule for rule in REWRITES if ALL or rule.advice.subject in CORE]


class Forms(nn.Module):
    """Forms of the advice as branches of one model, behind ops that are int8.

    Two inputs go through a convolution: XNNPACK keeps what follows in another layout.
    """

    def __init__(self, forms: Sequence[str]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.left, self.right = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
            for front in (self.left, self.right):
                nn.init.uniform_(front.weight, 0.0, 0.05)
        names = ", ".join(SHAPES)
        scope = {"torch": torch, "nn": nn, "F": F, "copy": copy}
        for init in dict.fromkeys(rule.advice.init for rule in RULES):
            exec(init, {**scope, "self": self})
        self.functions: list[Callable[..., Any]] = [
            eval(f"lambda self, {names}: {form}", scope) for form in forms
        ]
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> list[Any]:
        x, y, *others = inputs
        values = [self.left(x), self.right(y), *(other * 1.5 for other in others)]
        return [function(self, *values) for function in self.functions]


def example() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.rand(shape, generator=generator) + 0.1 for shape in SHAPES.values())


def rows_of(forms: Sequence[str], *, verify: bool) -> list[list[ReportedOp]]:
    """Lower the forms in int8, and return the ops of each; ops come in the order of the forms."""
    model, inputs = Forms(forms), example()
    program = torch.export.export(model, inputs)
    qdq = xnnpack_ptq(model, inputs, calibration=[inputs])
    with refusals() as refused:
        edge, _ = lower_to_xnnpack(qdq, inputs, verify=verify)
    rows = {row.name: row for row in op_rows(program, qdq, edge, refused)}
    outputs: Any = program.graph.output_node().args[0]
    counts = [len(pytree.tree_leaves(y)) for y in model(*inputs)]
    inner = set(list(rows)[: len(SHAPES)])  # in front
    found = []
    for count in counts:
        waiting, outputs = list(outputs[:count]), outputs[count:]
        names: dict[str, None] = {}
        while waiting:
            node = waiting.pop()
            if node.op == "call_function" and node.name not in inner:
                names[node.name] = None
                waiting += node.all_input_nodes
        found.append([rows[name] for name in names if name in rows])
    return found


@pytest.mark.parametrize("rule", REWRITES, ids=lambda rule: rule.advice.subject)
def test_it_computes_the_same_where_it_says_so(rule: Any) -> None:
    inputs = tuple(x - 0.6 for x in example()) if not rule.advice.same else example()
    before, after = (
        pytree.tree_leaves(Forms([form])(*inputs))
        for form in (rule.advice.before, rule.advice.after)
    )
    same = [
        a.shape == b.shape and torch.allclose(a, b, atol=1e-5)
        for a, b in zip(before, after, strict=True)
    ]
    assert all(same) is rule.advice.same


def test_what_is_rewritten_goes_in(one_thread: None) -> None:
    found = rows_of([r.advice.after for r in LOWERED], verify=True)
    for rule, ops in zip(LOWERED, found, strict=True):
        assert ops, rule.advice.subject
        assert not [op.place for op in ops if op.outside], rule.advice
        # what is partly in float32 is said to be
        computes = {kind for op in ops for kind in op.computes}
        assert (FLOAT in computes) is (rule.advice.becomes == FLOAT), rule.advice


@pytest.mark.skipif(not ALL, reason="takes 15 s; M08_ADVICE=all")
def test_what_is_advised_against_stays_out_or_in_float(one_thread: None) -> None:
    rules = [rule for rule in REWRITES if rule.advice.before != "x + 1"]  # only in an fp32 program
    found = rows_of([r.advice.before for r in rules], verify=False)
    for rule, ops in zip(rules, found, strict=True):
        advised = [op for op in ops if op.advice == rule.advice]
        assert advised, (rule.advice.subject, [(op.op, op.place) for op in ops])
        for op in advised:
            assert bool(op.outside) is (rule.place == OUTSIDE)


@pytest.mark.skipif(not ALL, reason="takes 5 s; M08_ADVICE=all")
def test_an_integer_in_an_fp32_program(one_thread: None) -> None:
    """The quantizer turns the number into a float; without it, it is converted at each run."""
    model, inputs = Forms(["x + 1", "y + 1.0"]), example()
    program = torch.export.export(model, inputs)
    edge, _ = lower_to_xnnpack(model, inputs, verify=False)
    whole, point = op_rows(program, None, edge, [])[len(SHAPES) :]
    assert whole.outside
    assert whole.advice is not None
    assert whole.advice.after == "x + 1.0"
    assert (point.outside, point.advice) == ((), None)


def test_advice_is_complete() -> None:
    for rule in RULES:
        advice = rule.advice
        assert advice.do.endswith("."), advice.subject
        assert bool(advice.before) == bool(advice.after) == bool(advice.becomes)
        assert rule.place in (OUTSIDE, FLOAT)
    subjects = [rule.advice.subject for rule in RULES]
    assert len(set(subjects)) == len(subjects)
    assert set(CORE) <= set(subjects)


def test_nothing_is_said_of_what_is_not_known() -> None:
    program = torch.export.export(Forms(["x.mean((2, 3))", "x.cos()"]), example())
    nodes = {node.name: node for node in program.graph.nodes}
    assert advice_for(nodes["cos"], OUTSIDE) is None
    assert advice_for(nodes["mean"], FLOAT) is None
    assert isinstance(advice_for(nodes["mean"], OUTSIDE), Advice)
