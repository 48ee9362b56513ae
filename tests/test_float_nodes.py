"""Integer arithmetic in a model that is quantized: the raw quantizer fails, or floats arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from common.executorch_utils import PteRunner, lower_to_xnnpack, xnnpack_ptq
from common.graph_utils import op_counts
from common.metrics import sqnr_db
from common.pt2e import get_xnnpack_quantizer

IDS = torch.tensor([[1, 3], [2, 4]])
ON_INDICES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "plus": (lambda ids: ids + 1, "Long, Int; but got torch.FloatTensor"),
    "times": (lambda ids: 2 * ids, "Long, Int; but got torch.FloatTensor"),
    "cat": (lambda ids: torch.cat([ids, ids], 1), "not implemented for 'Long'"),
    "cat, view, plus": (
        lambda ids: torch.cat([ids + 1, ids]).view(-1) + 1, "not implemented for 'Long'",
    ),
}  # fmt: skip


class Model(nn.Module):
    """Arithmetic, an embedding, a layer."""

    def __init__(self, before: Callable[[Any], Any]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding, self.head = nn.Embedding(12, 6), nn.Linear(6, 3)
        self.before = before

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(self.before(ids)))


def raw_ptq(model: nn.Module, example: tuple[Any, ...]) -> Any:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer, _ = get_xnnpack_quantizer()
    # those for training take seconds, and change nothing here
    quantizer.SUPPORTED_PATTERNS = [p for p in quantizer.SUPPORTED_PATTERNS if not p.is_qat]
    prepared = prepare_pt2e(torch.export.export(model, example).module(), quantizer)
    prepared(*example)
    return convert_pt2e(prepared)


@pytest.mark.parametrize("name", ON_INDICES)
def test_arithmetic_on_indices_is_left_alone(name: str, one_thread: None) -> None:
    arithmetic, said = ON_INDICES[name]
    model = Model(arithmetic).eval()
    with pytest.raises((RuntimeError, NotImplementedError), match=said):  # mended in ExecuTorch?
        raw_ptq(model, (IDS,))
    qdq = xnnpack_ptq(model, (IDS,), calibration=[(IDS,)])
    assert op_counts(qdq)["dequantize_per_channel"] == 1, "the layer is quantized"
    assert sqnr_db(model(IDS), qdq(IDS)) > 30


def test_integers_and_floats_side_by_side(one_thread: None) -> None:
    """Also floats that meet integers, and what would share the range of such a node."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.head = nn.Embedding(12, 6), nn.Linear(6, 3)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.head(self.embedding(torch.cat([ids + 1, ids * 2], 1)))
            scaled = F.relu(y * (ids.sum() + 1)).view(-1)
            return y + y, scaled, torch.cat([ids > 2, ids < 2]), ids + 1

    model = Mixed().eval()
    qdq = xnnpack_ptq(model, (IDS,), calibration=[(IDS,)])
    runner = PteRunner(lower_to_xnnpack(qdq, (IDS,), verify=False).pte)
    for ids in (IDS, IDS.flip(1)):
        floats = list(zip(model(ids), qdq(ids), runner(ids), strict=True))
        for expected, graph, pte in floats[:2]:
            assert sqnr_db(expected, graph) > 25
            assert sqnr_db(graph, pte) > 40
        for expected, graph, pte in floats[2:]:
            assert torch.equal(expected, graph)
            assert torch.equal(expected, pte)


# --- layers whose weight is computed


class Computed(nn.Module):
    """Layers with a weight made of an input, of a parameter, and of state that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(4, 3)
            self.scaled = nn.Parameter(torch.rand(3, 3))
            self.register_buffer("state", torch.rand(3, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.head(F.linear(self.a(x), self.b(y)).relu())
        z = F.linear(z, self.state.clone()).relu()
        self.state.mul_(0.5)
        z = F.linear(z, torch.ones(3, 3) * 0.1 + torch.eye(3))
        return F.linear(z, self.scaled / self.scaled.sum())


def test_a_computed_weight_is_not_quantized(one_thread: None) -> None:
    """ExecuTorch's kernel for quantizing it ends the process."""
    torch.manual_seed(0)
    data = [(torch.randn(2, 6), torch.randn(4, 6)) for _ in range(4)]
    model = Computed().eval()
    by_channel = [n for n in raw_ptq(model, data[0]).graph.nodes if "per_channel" in n.name]
    assert any(n.name.startswith("quantize") for n in by_channel), "mended in ExecuTorch"
    qdq = xnnpack_ptq(Computed().eval(), data[0], calibration=data)
    counts = op_counts(qdq)
    assert "quantize_per_channel" not in counts
    # a, head, and the weight made of a parameter; the quantizer itself takes b for a weight
    assert counts["dequantize_per_channel"] == 3
    runner = PteRunner(lower_to_xnnpack(qdq, data[0]).pte)
    expected = Computed().eval()
    for batch in data[:2]:  # the state goes on
        assert sqnr_db(expected(*batch), runner(*batch)) > 25


def test_a_computed_weight_is_not_quantized_dynamically(one_thread: None) -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, y).relu() + F.linear(x, y[0, 0]).sum()

    example = (torch.randn(1, 2, 3, 3), torch.randn(2, 2, 3, 3))
    qdq = xnnpack_ptq(Product().eval(), example, is_dynamic=True)
    assert not any("quantize" in op for op in op_counts(qdq))
