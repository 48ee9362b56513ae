"""Models with state, against eager PyTorch; and what ExecuTorch and torchao make of them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from common._state import unchanged, with_state_outside
from common.executorch_utils import PteRunner, lower_to_xnnpack, xnnpack_ptq
from common.metrics import sqnr_db
from common.pt2e import get_xnnpack_quantizer
from tests.programs import Smoother, portable, raw, rows

INPUTS = [rows(1, seed) for seed in range(6)]


def outputs(module: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of one call after the other."""
    with torch.no_grad():
        return [tuple(t.clone() for t in module(x)) for x in INPUTS]


def test_state_starts_from_the_models_values(one_thread: None) -> None:
    model = Smoother().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # ExecuTorch's, about a lost initial state
        _, pte = lower_to_xnnpack(model, (INPUTS[0],))
    assert model.steps.item() == 5, "lowering and verification run copies"
    runner, expected = PteRunner(pte), outputs(Smoother().eval())
    for _ in range(2):
        for ours, theirs in zip(outputs(runner), expected, strict=True):
            assert torch.allclose(ours[0], theirs[0], atol=1e-5)
            assert torch.equal(ours[1], theirs[1])
        runner.reset()


@pytest.mark.filterwarnings("ignore:Mutation on a buffer in the model is detected")
def test_executorch_itself_starts_from_zero(one_thread: None) -> None:
    with torch.no_grad():
        pte = portable(Smoother().eval(), (INPUTS[0],))
    assert raw(pte, INPUTS[0])[1].item() == 2, "mended in ExecuTorch: 12 is right"


def test_quantized_state_goes_on(one_thread: None) -> None:
    model = Smoother().eval()
    data = [(x,) for x in INPUTS]
    qdq = xnnpack_ptq(model, (INPUTS[0],), calibration=data)
    assert (model.steps.item(), model.level[0, 0].item()) == (5, 2), "calibration left no trace"
    _, pte = lower_to_xnnpack(qdq, (INPUTS[0],))
    in_pte, in_graph = outputs(PteRunner(pte)), outputs(qdq)
    assert (model.steps.item(), model.level[0, 0].item()) == (5, 2), "the graph has its own state"
    expected = outputs(Smoother().eval())
    for i in (0, 1):
        ours, graphs, theirs = (torch.cat([o[i] for o in runs]) for runs in (
            in_pte, in_graph, expected
        ))  # fmt: skip
        assert sqnr_db(theirs, graphs) > 20
        assert sqnr_db(graphs, ours) > 30


def test_torchao_itself_freezes_the_state(one_thread: None) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    model = Smoother().eval()
    graph = torch.export.export(model, (INPUTS[0],)).module()
    quantizer, _ = get_xnnpack_quantizer()
    patterns = quantizer.SUPPORTED_PATTERNS  # those with BatchNorm take seconds
    quantizer.SUPPORTED_PATTERNS = [p for p in patterns if "bn" not in p.name]
    prepared = prepare_pt2e(graph, quantizer)
    outputs(prepared)
    assert model.steps.item() == 5 + len(INPUTS), "mended: calibration changed the model"
    frozen = outputs(convert_pt2e(prepared))
    assert torch.equal(frozen[0][1], frozen[-1][1]), "mended in torchao"


class Seen(nn.Module):
    """Changes in place its state and what other ops read: both have to be written out."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = Smoother().fc
        self.register_buffer("steps", torch.full((1, 6), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        z = torch.relu(y)
        y[:, 0] = 0
        self.steps.add_(1)
        return z + y + self.steps


def test_state_beside_another_change_in_place(one_thread: None) -> None:
    model = Seen().eval()
    qdq = xnnpack_ptq(model, (INPUTS[0],), calibration=[(x,) for x in INPUTS])
    assert model.steps[0, 0].item() == 2
    with torch.no_grad():
        ours = torch.cat([qdq(x) for x in INPUTS])
        assert model.steps[0, 0].item() == 2
        theirs = torch.cat([model(x) for x in INPUTS])
    assert sqnr_db(theirs, ours) > 25


@pytest.mark.parametrize("inplace", [False, True])
def test_a_model_without_state_is_exported_as_it_is(inplace: bool) -> None:
    """An op in place on something else, and a buffer that is only read."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=inplace)).eval()
    program = torch.export.export(model, (torch.zeros(1, 3, 4, 4),))
    assert with_state_outside(program) == (program, [])


def test_a_model_is_afterwards_what_it_was() -> None:
    class Remembers(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.full((2,), torch.nan))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x
            self.seen = self.seen * 2
            self.calls, self.last = self.calls + 1, x
            return x

    model = nn.Sequential(Remembers(), Remembers())
    buffers = dict(model.named_buffers())
    with torch.no_grad(), unchanged(model):
        buffers["0.seen"].zero_()
        model(torch.ones(2))
        assert model[0].calls == 1
    assert dict(model.named_buffers()).keys() == buffers.keys()
    assert all(now is buffers[name] for name, now in model.named_buffers())
    assert all(bool(b.isnan().all()) for b in model.buffers())
    assert model[0].calls == model[1].calls == 0
    assert not hasattr(model[0], "last")
