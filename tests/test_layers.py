"""SQNR layer by layer, against torchao's own debugger, hooks and numbers worked out by hand."""

from __future__ import annotations

import copy
import importlib
import math
from typing import Any

import pytest
import torch
from torch import fx, nn

from common.layers import LayerErrors, layer_sqnr
from common.metrics import sqnr_db
from common.pt2e import export_module, get_xnnpack_quantizer
from tests.programs import Inputs


class ConvBnLinear(nn.Module):
    """BatchNorm folded into a convolution, with and without ReLU, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.conv1, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.conv2, self.bn2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
            self.fc = nn.Linear(64, 5)
            self.train()
            self(3 * torch.rand(16, 3, 8, 8) - 1)  # statistics that are not 0 and 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.sigmoid(y).flatten(1))


@pytest.fixture(scope="module")
def model() -> ConvBnLinear:
    return ConvBnLinear().eval()


@pytest.fixture(scope="module")
def batches() -> list[Inputs]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(1, 3, 8, 8, generator=generator),) for _ in range(4)]


@pytest.fixture(scope="module")
def exported(model: ConvBnLinear, batches: list[Inputs]) -> fx.GraphModule:
    return export_module(model, batches[0], dynamic_batch=False)


@pytest.fixture(scope="module")
def prepared(one_thread: None, exported: fx.GraphModule, batches: list[Inputs]) -> fx.GraphModule:
    """The graph with calibrated observers: exactly the float model, BatchNorm folded."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    quantizer, _ = get_xnnpack_quantizer()
    quantizer.SUPPORTED_PATTERNS = [p for p in quantizer.SUPPORTED_PATTERNS if "bn" not in p.name]
    graph = prepare_pt2e(copy.deepcopy(exported), quantizer)
    for batch in batches:
        graph(*batch)
    return graph


@pytest.fixture(scope="module")
def qdq(prepared: fx.GraphModule) -> fx.GraphModule:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    return convert_pt2e(copy.deepcopy(prepared))


@pytest.fixture(scope="module")
def errors(model: ConvBnLinear, qdq: fx.GraphModule, batches: list[Inputs]) -> LayerErrors:
    return layer_sqnr(model, qdq, batches)


def test_layers_come_in_the_order_of_execution(errors: LayerErrors) -> None:
    assert [(e.name, e.op, e.module, e.quantized) for e in errors.layers] == [
        ("conv2d", "conv2d", "conv1", False),
        ("relu", "relu", "", True),
        ("conv2d_1", "conv2d", "conv2", True),
        ("sigmoid", "sigmoid", "", False),
        ("flatten", "flatten", "", True),
        ("linear", "linear", "fc", True),
    ]


def test_agrees_with_the_debugger_of_torchao(
    exported: fx.GraphModule, qdq: fx.GraphModule, batches: list[Inputs]
) -> None:
    """torchao compares a convolution before BatchNorm with one after it, where ours does not."""
    pt2e: Any = importlib.import_module("torchao.quantization.pt2e")
    exact, rounded = map(pt2e.prepare_for_propagation_comparison, (exported, qdq))
    exact(*batches[0])
    rounded(*batches[0])
    seen = map(pt2e.extract_results_from_loggers, (exact, rounded))
    theirs = {
        s.ref_node_name: float(s.results[0].sqnr) for s in pt2e.compare_results(*seen).values()
    }
    ours = {e.name: e.sqnr_db for e in layer_sqnr(exported, qdq, batches[:1]).layers}
    for name in ("relu", "sigmoid", "linear"):  # flatten: ours holds the next layer's rounding
        assert ours[name] == pytest.approx(theirs[name], abs=0.02)
    assert theirs["conv2d_1"] < 20 < 30 < ours["conv2d_1"]


def test_a_folded_convolution_is_compared_with_its_batch_norm(
    model: ConvBnLinear, qdq: fx.GraphModule, errors: LayerErrors, batches: list[Inputs]
) -> None:
    exact: list[torch.Tensor] = []
    hook = model.bn2.register_forward_hook(lambda module, inputs, output: exact.append(output))
    conv = next(node for node in qdq.graph.nodes if node.name == "conv2d_1")
    (quantize,) = conv.users
    (dequantize,) = quantize.users
    cut = fx.Graph()  # the Q/DQ graph up to the dequantize node
    copies: dict[fx.Node, fx.Node] = {}
    for node in qdq.graph.nodes:
        if node.op != "output":
            copies[node] = cut.node_copy(node, lambda n: copies[n])
    cut.output(copies[dequantize])
    part = fx.GraphModule(qdq, cut)
    with torch.no_grad():
        rounded = torch.cat([part(*batch) for batch in batches])
        for batch in batches:
            model(*batch)
    hook.remove()
    expected = sqnr_db(torch.cat(exact), rounded)
    found = {e.name: e.sqnr_db for e in errors.layers}
    assert found["conv2d_1"] == pytest.approx(expected, abs=0.01)


def test_the_last_layer_is_the_sqnr_of_the_output(
    model: ConvBnLinear, qdq: fx.GraphModule, errors: LayerErrors, batches: list[Inputs]
) -> None:
    with torch.no_grad():
        exact, rounded = (torch.cat([m(*b) for b in batches]) for m in (model, qdq))
    assert errors.layers[-1].sqnr_db == pytest.approx(sqnr_db(exact, rounded), abs=0.01)


def test_the_exported_graph_serves_as_well_as_the_model(
    exported: fx.GraphModule, qdq: fx.GraphModule, errors: LayerErrors, batches: list[Inputs]
) -> None:
    assert layer_sqnr(exported, qdq, iter(batches)) == errors


def test_a_graph_compared_with_itself_has_no_error(
    prepared: fx.GraphModule, batches: list[Inputs]
) -> None:
    errors = layer_sqnr(prepared, prepared, batches)
    assert {e.sqnr_db for e in errors.layers} == {math.inf}


def test_several_outputs_of_one_op_are_compared_one_by_one() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=1)
            return a * b

    graph = export_module(Halves().eval(), (torch.ones(1, 4),), dynamic_batch=False)
    assert [e.op for e in layer_sqnr(graph, graph, [(torch.rand(1, 4),)]).layers] == [
        "getitem",
        "getitem",
        "mul",
    ]


def test_neither_graph_is_changed(
    model: ConvBnLinear, qdq: fx.GraphModule, batches: list[Inputs]
) -> None:
    before = [str(node) for node in qdq.graph.nodes], copy.deepcopy(model.state_dict())
    layer_sqnr(model, qdq, batches)
    assert [str(node) for node in qdq.graph.nodes] == before[0]
    assert all(torch.equal(t, before[1][name]) for name, t in model.state_dict().items())


def test_what_is_shown(errors: LayerErrors) -> None:
    lines = str(errors).splitlines()
    assert lines[0].split() == ["node", "module", "quantized", "SQNR"]
    assert lines[2].split()[:3] == ["conv2d", "conv1", "no"]
    assert len(lines) == 2 + len(errors.layers)
    assert errors._repr_mimebundle_()["text/plain"] == str(errors)
    assert errors.worst.sqnr_db == min(e.sqnr_db for e in errors.layers)
    assert errors.worst.name in repr(errors)


def test_wrong_calls_are_refused(
    model: ConvBnLinear, qdq: fx.GraphModule, batches: list[Inputs]
) -> None:
    with pytest.raises(ValueError, match="at least one tuple of inputs"):
        layer_sqnr(model, qdq, [])
    with pytest.raises(TypeError, match=r"batch 0: expected a tuple .* got Tensor\. Write \(x,\)"):
        layer_sqnr(model, qdq, [batches[0][0]])
    with pytest.raises(ValueError, match="no op in common: pass the model that"):
        layer_sqnr(nn.Tanh().eval(), qdq, batches)
    with pytest.raises(ValueError, match="training mode"):
        layer_sqnr(ConvBnLinear(), qdq, batches)
    with pytest.raises(TypeError, match=r"expected a torch\.fx GraphModule"):
        layer_sqnr(model, model, batches)  # pyrefly: ignore[bad-argument-type]
