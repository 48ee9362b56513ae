"""Models that `prepare_pt2e` changes: the raw calls are silently wrong, xnnpack_ptq says so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from common._prepared import check_unchanged
from common.executorch_utils import QuantizationError, xnnpack_ptq
from common.metrics import sqnr_db
from common.pt2e import get_xnnpack_quantizer
from tests.programs import image

X = (image(),)


class Net(nn.Module):
    """Two convolutions and two BatchNorms with statistics of their own."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
            self.a, self.b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
            for norm in (self.a, self.b):
                assert norm.running_mean is not None
                norm.running_mean.normal_()
                nn.init.uniform_(norm.weight, 0.5, 2)


class TwoNorms(Net):
    """One convolution in front of two BatchNorms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.a(y) + self.b(y)


class CalledTwice(Net):
    """One convolution called twice, each time in front of another BatchNorm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.conv(x)) + self.b(self.conv(2 * x))


class ReadBesides(Net):
    """What goes into the BatchNorm is also used as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.a(y) + y


class Tied(Net):
    """Another convolution has the same weights and no BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.other.weight = self.conv.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.conv(x)) + self.other(x)


@pytest.mark.parametrize("kind", [TwoNorms, CalledTwice, ReadBesides, Tied])
def test_a_layer_with_a_batch_norm_and_another_use(kind: type[Net], one_thread: None) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    model: Any = kind().eval()
    quantizer, _ = get_xnnpack_quantizer()
    quantizer.SUPPORTED_PATTERNS = [p for p in quantizer.SUPPORTED_PATTERNS if not p.is_qat]
    prepared = prepare_pt2e(torch.export.export(model, X).module(), quantizer)
    assert sqnr_db(model(*X), prepared(*X)) < 30, "mended in torchao"
    with pytest.raises(QuantizationError, match=r"output 0 keeps .* dB\. .*it \((conv|other)\),"):
        xnnpack_ptq(model, X, calibration=[X])


def test_a_layer_for_each_batch_norm_is_right(one_thread: None) -> None:
    class Mended(TwoNorms):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(self.conv(x)) + self.b(self.other(x))

    model = Mended()
    model.other = copy.deepcopy(model.conv)
    qdq = xnnpack_ptq(model.eval(), X, calibration=[X])
    assert sqnr_db(TwoNorms().eval()(*X), qdq(*X)) > 30


def test_random_numbers_are_the_same_in_both_runs(one_thread: None) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + torch.rand_like(x)

    before = torch.random.get_rng_state()
    xnnpack_ptq(Noisy().eval(), X, calibration=[X, X])
    assert torch.equal(torch.random.get_rng_state()[:8], before[:8])


def test_comparison_of_every_kind_of_output() -> None:
    x = torch.tensor([1.0, 2, 3])
    infinite = torch.tensor([1.0, torch.inf, -torch.inf])
    turned = torch.complex(x, x)
    same = [x, x > 1, x.long(), None, 3, turned, torch.zeros(0), infinite]
    check_unchanged(same, [y + 1e-7 if y is x else y for y in same], [])
    for place, wrong in ((0, x * torch.nan), (1, x > 2), (2, x.long() + 1), (5, turned.conj())):
        after = list(same)
        after[place] = wrong
        with pytest.raises(QuantizationError, match=f"output {place} keeps"):
            check_unchanged(same, after, [])
