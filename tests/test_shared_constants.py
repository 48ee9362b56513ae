"""Layers used twice: what ExecuTorch makes of their bias, and what the helper does about it."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import fx, nn

from common._shared_constants import unshare
from common.executorch_utils import PteLoadError, PteRunner, lower_to_xnnpack, xnnpack_ptq
from common.metrics import sqnr_db


class Siamese(nn.Module):
    """Each layer sees both inputs, whose ranges differ."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) - layer(y) for layer in self.layers)


def pairs(*shape: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(shape, generator=generator), 3 * torch.randn(shape, generator=generator))
        for _ in range(8)
    ]


def quantized(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> fx.GraphModule:
    return xnnpack_ptq(model.eval(), data[0], calibration=data)


def raw_pte(gm: nn.Module, example: tuple[torch.Tensor, ...]) -> bytes:
    program = torch.export.export(gm, example)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    return edge.to_executorch().buffer


@torch.no_grad()
def worst_sqnr(
    pte: bytes, gm: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[float]:
    runner = PteRunner(pte)
    got = [out if isinstance(out, tuple) else (out,) for out in (runner(*pair) for pair in data)]
    want = [gm(*pair) for pair in data]
    columns = zip(zip(*want, strict=True), zip(*got, strict=True), strict=True)
    return [sqnr_db(torch.cat(w), torch.cat(g)) for w, g in columns]


def test_a_linear_used_twice() -> None:
    torch.manual_seed(0)
    data = pairs(1, 8)
    qdq = quantized(Siamese(nn.Linear(8, 8)), data)
    (raw,) = worst_sqnr(raw_pte(qdq, data[0]), qdq, data)
    assert raw < 20, "ExecuTorch is silently wrong; if this fails it has been mended"
    (ours,) = worst_sqnr(lower_to_xnnpack(qdq, data[0]).pte, qdq, data)
    assert ours > 45


def test_convolutions_used_twice() -> None:
    torch.manual_seed(0)
    data = pairs(1, 8, 6, 6)
    model = Siamese(nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 4, 3), nn.Conv2d(8, 8, 3, groups=8))
    qdq = quantized(model, data)
    with pytest.raises(PteLoadError):  # ExecuTorch; if this fails it has been mended
        PteRunner(raw_pte(qdq, data[0]))
    assert min(worst_sqnr(lower_to_xnnpack(qdq, data[0]).pte, qdq, data)) > 45


def test_only_a_graph_with_a_shared_bias_is_copied() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    x = (torch.randn(1, 8),)
    once = xnnpack_ptq(Once().eval(), x, calibration=[x])
    assert unshare(once) is once
    model = Siamese(nn.Linear(8, 8)).eval()
    assert unshare(model) is model, "a float model needs no copy"
    data = pairs(1, 8)
    shared = quantized(model, data)
    before = [str(node) for node in shared.graph.nodes]
    mended = unshare(shared)
    assert mended is not shared
    assert [str(node) for node in shared.graph.nodes] == before, "the caller's graph is not changed"
    torch.testing.assert_close(mended(*data[1]), shared(*data[1]), rtol=0, atol=0)
