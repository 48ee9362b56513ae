"""Two passes of XNNPACK: what they do to padding and softmax, and what is lowered instead."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from common import _lowering
from common.executorch_utils import PteRunner, VerificationError, lower_to_xnnpack, xnnpack_ptq
from common.metrics import sqnr_db
from tests.programs import image


class Padded(nn.Module):
    """A padded convolution as output, in front of a float op, and in front of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.same = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2, padding="same")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x)
        z = F.pad(y, (1, 1, 1, 0))
        # a window's shift, as in Swin
        shifted = torch.roll(F.pad(y.permute(0, 2, 3, 1), (0, 0, 0, 1)), (-1, -1), (1, 2))
        return z, z.sigmoid(), self.same(y), shifted


def test_padding_of_int8_values_loads_and_is_right(
    one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [(image(seed),) for seed in range(4)]
    qdq = xnnpack_ptq(Padded().eval(), data[0], calibration=data)
    runner = PteRunner(lower_to_xnnpack(qdq, data[0]).pte)
    for expected, actual in zip(qdq(*data[1]), runner(*data[1]), strict=True):
        assert sqnr_db(expected, actual) > 40
    monkeypatch.setattr(_lowering, "mended_passes", nullcontext)
    with pytest.raises(VerificationError, match="Failed to create StaticConstantPad"):
        lower_to_xnnpack(qdq, data[0])  # no longer? then ExecuTorch has mended it


class Softmax(nn.Module):
    """Softmax along the last of four dimensions, behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x)
        return y.softmax(-1), y.permute(0, 2, 3, 1).softmax(-1), y.relu()


def test_softmax_behind_a_convolution(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = Softmax().eval(), (image(),)
    runner = PteRunner(lower_to_xnnpack(model, data).pte)
    for expected, actual in zip(model(*data), runner(*data), strict=True):
        assert sqnr_db(expected, actual) > 80
    monkeypatch.setattr(_lowering, "mended_passes", nullcontext)
    wrong = PteRunner(lower_to_xnnpack(model, data, verify=False).pte)(*data)
    # no longer? then ExecuTorch has mended it
    assert [sqnr_db(a, b) > 80 for a, b in zip(model(*data), wrong, strict=True)] == [0, 0, 1]
