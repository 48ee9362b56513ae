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
