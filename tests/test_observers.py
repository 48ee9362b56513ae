"""What calibration cannot digest: NaN, infinities and masks, in weights, buffers and results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import fx, nn

from common._observers import check_scales
from common._source_line import named, source_line
from common.executorch_utils import QuantizationError, xnnpack_ptq
from common.metrics import sqnr_db
from tests.test_float_nodes import raw_ptq

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


class Scores(nn.Module):
    """A layer, and a mask above the diagonal."""

    mask: torch.Tensor

    def __init__(self, masked: float = -math.inf) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.fc = nn.Linear(4, 4)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), masked), 1))


class Added(Scores):
    """The mask is added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.fc(x) + self.mask, -1)


class Filled(Scores):
    """The mask is filled in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.fc(x).masked_fill(self.mask < 0, -math.inf), -1)


class Logarithm(Scores):
    """An infinity that comes up inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.relu(self.fc(x))) + x


class Layer(Scores):
    """The layer alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def ptq(model: nn.Module, *shape: Any, **options: Any) -> fx.GraphModule:
    return xnnpack_ptq(model.eval(), (X,), calibration=[(X,)], **options)


@pytest.mark.filterwarnings("ignore:torch.inf not supported|torch.*inf")
@pytest.mark.parametrize("masked", [-math.inf, -1e4, torch.finfo(torch.float32).min])
def test_a_mask_that_is_added(masked: float, one_thread: None) -> None:
    model = Added(masked).eval()
    assert sqnr_db(model(X), raw_ptq(model, (X,))(X)) < 20, "mended in torchao"
    said = (
        r"buffer or constant mask, which add \(\"return torch.softmax\(self.fc\(x\) \+ self.mask, "
        r"-1\)\", line \d+ of test_observers.py\) reads, holds -inf: .*masked_fill"
        if math.isinf(masked)
        else r"output of add \(.*numbers as large as .* to the output of linear .*vanish.*masked_fi"
    )
    with pytest.raises(QuantizationError, match=said):
        ptq(model)


def test_a_mask_that_is_filled_in_is_right(one_thread: None) -> None:
    model = Filled().eval()
    assert sqnr_db(model(X), ptq(model)(X)) > 40


def test_an_op_left_in_float32_may_have_a_mask(one_thread: None) -> None:
    from common.pt2e import get_xnnpack_quantizer

    quantizer, _ = get_xnnpack_quantizer()
    quantizer.set_filter_function(lambda node: "add" not in node.name)
    model = Added().eval()
    assert sqnr_db(model(X), ptq(model, quantizer=quantizer)(X)) > 40


@pytest.mark.filterwarnings("ignore:torch.inf not supported|torch.*inf")
def test_an_infinity_that_comes_up_inside(one_thread: None) -> None:
    model = Logarithm().eval()
    assert not torch.equal(model(X).isinf(), raw_ptq(model, (X,))(X).isinf()), "mended in torchao"
    with pytest.raises(QuantizationError, match=r"the output of log \(.*, which add .* holds -inf"):
        ptq(model)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_weights_that_are_no_numbers(value: float, is_dynamic: bool, one_thread: None) -> None:
    model = Layer()
    with torch.no_grad():
        model.fc.weight[0, 0] = value
    said = rf"constant fc\.weight, which linear .* reads, holds {value}: .*Repair the weights"
    with pytest.raises(QuantizationError, match=said):
        ptq(model, is_dynamic=is_dynamic)


def test_a_range_that_float32_cannot_hold(one_thread: None) -> None:
    model = Added()
    model.mask = torch.tensor([3e38, -3e38, 0, 0]).expand(4, 4).clone()
    with pytest.raises(QuantizationError, match=r"scale is \[inf\]|numbers as large as 3e\+38"):
        ptq(model)


def test_zeros_are_an_ordinary_range(one_thread: None) -> None:
    model = Layer()
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    assert torch.equal(ptq(model)(X), torch.zeros(4, 4))


def test_a_small_constant_beside_large_numbers_is_no_mask(one_thread: None) -> None:
    class Shifted(Scores):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * 1e5 + 1e-5

    model = Shifted().eval()
    assert sqnr_db(model(X), ptq(model)(X)) > 30


def test_batches_without_a_row(one_thread: None) -> None:
    empty: Any = ({0: torch.export.Dim("b", min=0, max=8)},)
    with pytest.raises(QuantizationError, match="calibration has shown no value of it"):
        xnnpack_ptq(Layer().eval(), (X,), calibration=[(X[:0],)], dynamic_shapes=empty)


def test_scales_of_any_observer_are_looked_at(one_thread: None) -> None:
    qdq = ptq(Layer())
    check_scales(qdq)
    for scale in (math.nan, math.inf, 0.0, -1.0):
        node = next(n for n in qdq.graph.nodes if "quantize_per_tensor" in n.name)
        node.args = (node.args[0], scale, *node.args[2:])
        with pytest.raises(QuantizationError, match="the input x: its scale is"):
            check_scales(qdq)


def test_a_node_is_named_with_its_line() -> None:
    graph = torch.export.export(Layer().eval(), (X,)).module().graph
    node = next(n for n in graph.nodes if n.op == "call_function" and "linear" in n.name)
    assert named(node).startswith('the output of linear ("')
    assert source_line(node).endswith(".py)")
    node.meta["stack_trace"] = 'File "/a/net.py", line 7, in forward\n    y = self.fc(x)'
    assert named(node) == 'the output of linear ("y = self.fc(x)", line 7 of net.py)'
    node.meta.pop("stack_trace")
    assert named(node) == "the output of linear"
