"""The course model, against its description and against the same computation written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from common.models import TinyConvNet, example_inputs


def number_of_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_layers_are_those_of_the_description() -> None:
    model = TinyConvNet()
    assert number_of_parameters(model) == 9_940
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    channels = [(m.in_channels, m.out_channels) for m in convolutions]
    assert channels == [(3, 16), (16, 16), (16, 16), (16, 32)]
    for m in convolutions:
        assert (m.kernel_size, m.padding, m.bias) == ((3, 3), (1, 1), None)
    norms = [m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms == [16, 16, 16, 32]
    assert (model.fc.in_features, model.fc.out_features) == (32, 4)


def test_forward_is_the_computation_of_the_description() -> None:
    torch.manual_seed(0)
    m = TinyConvNet()
    for _ in range(3):  # batch norms with statistics that are not 0 and 1
        m(*example_inputs(8))
    m.eval()

    def block(x: torch.Tensor, n: int) -> torch.Tensor:
        norm = getattr(m, f"bn{n}")
        y = F.conv2d(x, getattr(m, f"conv{n}").weight, padding=1)
        y = (y - norm.running_mean[:, None, None]) / (
            norm.running_var[:, None, None] + norm.eps
        ).sqrt()
        return y * norm.weight[:, None, None] + norm.bias[:, None, None]

    (x,) = example_inputs(2)
    with torch.no_grad():
        first = F.max_pool2d(F.relu(block(x, 1)), 2)
        y = F.relu(block(first, 2))
        y = F.max_pool2d(F.relu(block(y, 3) + first), 2)
        y = F.relu(block(y, 4)).mean((2, 3))
        expected = y @ m.fc.weight.T + m.fc.bias
        assert torch.allclose(m(x), expected, atol=1e-5)
        assert m(x).shape == (2, 4)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_width_multiplies_the_channels(width: int) -> None:
    c, last = 16 * width, 32 * width
    convolutions = 9 * (3 * c + 2 * c * c + c * last)
    norms, linear = 2 * (3 * c + last), 4 * last + 4
    model = TinyConvNet(width=width).eval()
    assert number_of_parameters(model) == convolutions + norms + linear
    assert model(*example_inputs(1)).shape == (1, 4)


@pytest.mark.parametrize("width", [0, -1, 1.0, "1", True, None])
def test_width_must_be_a_positive_integer(width) -> None:
    with pytest.raises(ValueError, match=r"width: expected a positive integer, got"):
        TinyConvNet(width=width)


def test_other_image_sizes_fit() -> None:
    assert TinyConvNet().eval()(torch.zeros(1, 3, 64, 48)).shape == (1, 4)


@pytest.mark.parametrize("batch", [1, 5])
def test_example_inputs_are_the_same_at_each_call(batch: int) -> None:
    state = torch.get_rng_state()
    (x,), (again,) = example_inputs(batch), example_inputs(batch)
    assert x.shape == (batch, 3, 16, 16)
    assert x.dtype == torch.float32
    assert torch.equal(x, again)
    assert x is not again
    assert torch.equal(torch.get_rng_state(), state), "the global generator moved"


@pytest.mark.parametrize("batch", [0, -2, 1.5, "2", True])
def test_batch_must_be_a_positive_integer(batch) -> None:
    with pytest.raises(ValueError, match=r"batch: expected a positive integer, got"):
        example_inputs(batch)
