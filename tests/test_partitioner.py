"""Two faults of XNNPACK's partitioner and passes: what they do, and what is lowered instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import fx, nn
from torch.nn import functional as F

from common._partitioner import one_reader_each
from common.executorch_utils import (
    PteExecutionError,
    PteRunner,
    VerificationError,
    lower_to_xnnpack,
    verify,
    xnnpack_ptq,
)
from common.graph_utils import is_qdq, op_counts
from common.metrics import sqnr_db
from tests.programs import image, rows


class Product(nn.Module):
    """A matrix product of two values that are computed, both quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) @ (x.t() * 2)


class Pooled(nn.Module):
    """A quantized value that is an output, and is pooled as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x).relu()
        return F.avg_pool2d(y, 3, 2, 1, count_include_pad=False), y


class Both(nn.Module):
    """Both faults in one program."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.pooled = Product(), Pooled()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.product(x), *self.pooled(y))


def quantized(kind: type[nn.Module], example: tuple[Any, ...]) -> fx.GraphModule:
    torch.manual_seed(0)
    return xnnpack_ptq(kind().eval(), example, calibration=[example] * 2)


def raw(graph: nn.Module, example: tuple[Any, ...]) -> bytes:
    program = torch.export.export(graph, example)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    pte: bytes = edge.to_executorch().buffer
    return pte


@pytest.fixture(scope="module")
def both() -> tuple[fx.GraphModule, tuple[torch.Tensor, torch.Tensor]]:
    example = (rows(3), image())
    return quantized(Both, example), example


def test_both_are_right(both: Any, one_thread: None) -> None:
    graph, example = both
    pte = lower_to_xnnpack(graph, example, verify=False).pte
    for ours, theirs in zip(PteRunner(pte)(*example), graph(*example), strict=True):
        assert sqnr_db(theirs, ours) > 40  # a value or two on the other side of a rounding border


def test_executorch_itself_returns_zeros(one_thread: None) -> None:
    example = (rows(3),)
    graph = quantized(Product, example)
    pte = raw(graph, example)
    assert not PteRunner(pte)(*example).any()
    with pytest.raises(VerificationError, match="does not compute what its graph computes"):
        verify(pte, graph, [example])


def test_executorch_itself_turns_the_layout(one_thread: None) -> None:
    example = (image(),)
    with pytest.raises(PteExecutionError, match="resize a static tensor"):
        PteRunner(raw(quantized(Pooled, example), example))(*example)


def test_each_reader_has_its_own_dequantize_node(both: Any) -> None:
    graph, example = both
    program = torch.export.export(graph, example)
    n_before = op_counts(program.graph_module)["dequantize_per_tensor"]
    one_reader_each(program)
    program.validate()
    activations = [
        n
        for n in program.graph.nodes
        if is_qdq(n) and isinstance(n.args[0], fx.Node) and is_qdq(n.args[0])
    ]
    assert all(len(n.users) == 1 for n in activations)
    assert op_counts(program.graph_module)["dequantize_per_tensor"] == n_before + 1
    for ours, theirs in zip(program.module()(*example), graph(*example), strict=True):
        assert torch.equal(ours, theirs)
