"""Short names and counts of ops, against counting by hand and ExecuTorch's own spelling."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn

from common.graph_utils import QDQ_OPS, fx_graph, is_qdq, op_counts, short
from tests.programs import Program

QD = torch.ops.quantized_decomposed


# --- short


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (torch.ops.aten.conv2d.default, "conv2d"),
        (torch.ops.aten.add.Tensor, "add"),
        (torch.ops.aten.add_.Tensor, "add_"),
        (torch.ops.aten.add, "add"),
        (operator.getitem, "getitem"),
        (torch.relu, "relu"),
        ("lowered_module_0", "lowered_module_0"),
        ("conv1.weight", "conv1.weight"),
        (torch.ops.higher_order.cond, "cond"),
    ],
)
def test_short_name_of_a_target(target, expected: str) -> None:
    assert short(target) == expected


def test_short_name_of_quantize_ops(conv_int8: Program) -> None:
    """They exist once torchao is imported, which quantizing does."""
    assert short(QD.quantize_per_tensor.default) == "quantize_per_tensor"
    assert short(QD.dequantize_per_channel.default) == "dequantize_per_channel"


def test_edge_ops_keep_the_spelling_of_executorch(conv_int8: Program) -> None:
    """Inside the delegate nothing has been turned into out variants yet."""
    counts = op_counts(
        conv_int8.edge.exported_program().graph_module.lowered_module_0.original_module
    )
    assert counts["aten_convolution_default"] == 1
    assert counts["quantized_decomposed_quantize_per_tensor_default"] == 2


# --- op_counts


def test_op_counts_counts_call_functions_alone() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    w = graph.create_node("get_attr", "w")
    y = graph.call_function(torch.ops.aten.conv2d.default, (x, w))
    y = graph.call_function(torch.ops.aten.relu.default, (y,))
    y = graph.call_function(torch.ops.aten.add.Tensor, (y, x))
    y = graph.call_function(torch.ops.aten.add.Scalar, (y, 1))
    y = graph.call_module("norm", (y,))
    graph.output(graph.call_method("relu", (y,)))
    root = nn.Module()
    root.register_buffer("w", torch.zeros(1))
    root.norm = nn.BatchNorm2d(3)
    expected = {"add": 2, "conv2d": 1, "relu": 1}
    for form in (graph, fx.GraphModule(root, graph)):
        assert op_counts(form) == expected
        assert list(op_counts(form)) == sorted(expected)


def test_op_counts_takes_every_form_of_a_program(conv_int8: Program) -> None:
    exported = torch.export.export(conv_int8.model, conv_int8.example)
    assert op_counts(exported) == {"conv2d": 1, "relu": 1}
    assert op_counts(exported.module()).items() >= {"conv2d": 1, "relu": 1}.items()
    edge = conv_int8.edge
    lowered = edge.exported_program()
    assert op_counts(edge) == op_counts(lowered) == op_counts(lowered.graph_module)
    assert op_counts(edge) == {"executorch_call_delegate": 1, "getitem": 1}


@pytest.mark.parametrize(
    ("thing", "named"), [(nn.ReLU(), "ReLU"), (b"pte", "bytes"), (None, "NoneType"), ((), "tuple")]
)
def test_what_has_no_graph_is_refused(thing, named: str) -> None:
    with pytest.raises(TypeError, match=rf"got {named}\. Export the model first: torch.export"):
        op_counts(thing)


# --- is_qdq


def test_is_qdq_in_every_dialect(conv_int8: Program) -> None:
    """Counted independently by what the op's text holds."""
    delegate = conv_int8.edge.exported_program().graph_module.lowered_module_0.original_module
    for gm, expected in ((conv_int8.qdq, 5), (delegate, 5)):
        nodes = [n for n in fx_graph(gm).nodes if n.op == "call_function"]
        assert [n.name for n in nodes if is_qdq(n)] == [
            n.name for n in nodes if "quantize_per" in str(n.target)
        ]
        assert sum(map(is_qdq, nodes)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "quantize_per_tensor.default", "quantize_per_tensor.tensor", "quantize_per_tensor.tensor2",
        "dequantize_per_tensor.default", "dequantize_per_tensor.tensor",
        "dequantize_per_tensor.tensor2", "quantize_per_channel.default",
        "dequantize_per_channel.default", "quantize_per_token.default",
        "dequantize_per_token.default",
    ],
)  # fmt: skip
def test_is_qdq_knows_every_overload(name: str, conv_int8: Program) -> None:
    from executorch.exir.dialects._ops import ops

    op, overload = name.split(".")
    assert op in QDQ_OPS
    graph = fx.Graph()
    aten = getattr(getattr(QD, op), overload)
    edge = getattr(getattr(ops.edge.quantized_decomposed, op), overload)
    assert is_qdq(graph.call_function(aten))
    assert is_qdq(graph.call_function(edge))


def test_is_qdq_leaves_the_rest_alone() -> None:
    graph = fx.Graph()
    x = graph.placeholder("quantize_per_tensor")
    assert not is_qdq(x)
    assert not is_qdq(graph.call_function(torch.ops.aten.add.Tensor, (x, x)))
    assert not is_qdq(graph.create_node("get_attr", "quantize_per_tensor"))
