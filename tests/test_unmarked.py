"""Why the quantizer left an op alone: held against what it marks in real graphs."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from common._lowering import _without_batch_norm_patterns
from common._unmarked import BEHIND, why_unmarked
from common.graph_utils import short
from common.pt2e import get_xnnpack_quantizer


class Left(nn.Module):
    """Ops that the quantizer leaves, each for another reason, and some that it marks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.grouped = nn.ConvTranspose2d(4, 4, 2, groups=2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = F.relu(self.conv(x))
        b = F.relu(self.conv(a * 2.0)).flatten(1)
        return F.silu(a), b, self.grouped(a), x.permute(0, 2, 3, 1), ids + 1


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """The reasons by node; empty for a node that was marked."""
    example = torch.ones(1, 4, 6, 6), torch.ones(1, 2, dtype=torch.int64)
    graph = torch.export.export(Left().eval(), example)
    asked = graph.module()
    assert isinstance(asked, fx.GraphModule)
    quantizer = _without_batch_norm_patterns(get_xnnpack_quantizer()[0])  # as xnnpack_ptq does
    quantizer.annotate(quantizer.transform_for_annotation(asked))
    marked = {
        node.name
        for node in asked.graph.nodes
        if getattr(node.meta.get("quantization_annotation"), "_annotated", False)
    }
    ops = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert {"conv2d", "mul", "relu"} <= marked
    return {n.name: "" if n.name in marked else why_unmarked(n, marked) for n in ops}


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("silu", "the quantizer has no pattern for it"),
        ("conv2d_1", "its weight is that of conv2d too, and the quantizer marks one user"),
        ("relu_1", f"{BEHIND} conv2d_1"),
        ("flatten", f"{BEHIND} relu_1"),
        ("permute", f"{BEHIND} an input"),
        ("conv_transpose2d", "the quantizer takes no transposed convolution with groups"),
        ("add", "the quantizer takes float32 only"),
    ],
)
def test_the_reason(op: str, reason: str, answers: dict[str, str]) -> None:
    assert answers[op] == reason


def test_what_its_settings_leave_out() -> None:
    graph = torch.export.export(nn.Linear(4, 2).eval(), (torch.ones(1, 4),)).graph
    (linear,) = (node for node in graph.nodes if short(node.target) == "linear")
    assert why_unmarked(linear, set()) == "the quantizer knows it, and its settings leave it out"
