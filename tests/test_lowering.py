"""Quantizing and lowering, against the raw calls, eager PyTorch and ExecuTorch's own counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import fx, nn
from torch.export import Dim

from common import _lowering
from common.data import calibration_batches
from common.executorch_utils import (
    PteExecutionError,
    PteRunner,
    QuantizationError,
    TensorSpec,
    delegation_summary,
    lower_to_xnnpack,
    pte_contents,
    xnnpack_ptq,
)
from common.graph_utils import is_qdq, op_counts
from common.metrics import lsb_distance, sqnr_db
from common.pt2e import get_xnnpack_quantizer
from tests.programs import (
    ConvRelu,
    Program,
    Siblings,
    TwoLinear,
    image,
    last_scale,
    linear,
    portable,
    quantized_conv,
    raw,
    rows,
    siblings,
)

Batches = list[tuple[torch.Tensor, ...]]


# --- xnnpack_ptq: what it computes


def test_quantization_equals_the_raw_calls(one_thread: None) -> None:
    """Bit by bit, with a BatchNorm, whose patterns xnnpack_ptq takes from the quantizer.

    Here the raw quantizer goes without those that ExecuTorch itself marks as for training.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model(image(batch=8))
    model.eval()
    data: Batches = [(image(seed),) for seed in range(4)]
    quantizer, _ = get_xnnpack_quantizer()
    quantizer.SUPPORTED_PATTERNS = [p for p in quantizer.SUPPORTED_PATTERNS if not p.is_qat]
    prepared = prepare_pt2e(torch.export.export(model, data[0]).module(), quantizer)
    for batch in data:
        prepared(*batch)
    expected = convert_pt2e(prepared)
    actual = xnnpack_ptq(model, data[0], calibration=data)
    assert op_counts(actual) == op_counts(expected)
    for seed in range(10, 15):
        assert torch.equal(actual(image(seed)), expected(image(seed)))


def test_every_batch_is_used_and_a_generator_is_enough() -> None:
    taken = []

    def batches() -> Iterator[tuple[torch.Tensor]]:
        for seed in range(5):
            taken.append(seed)
            yield (rows(2, seed) * (100 if seed == 4 else 1),)

    qdq = xnnpack_ptq(linear(), (rows(2),), calibration=batches())
    assert taken == [0, 1, 2, 3, 4]
    first = next(n for n in qdq.graph.nodes if is_qdq(n) and "quantize_per_tensor" in n.name)
    assert first.args[1] > 0.5, "the range of the last batch is missing"


def test_per_tensor_and_per_channel_weights() -> None:
    data: Batches = [(rows(2, seed),) for seed in range(3)]
    per_channel = op_counts(xnnpack_ptq(linear(), data[0], calibration=data))
    per_tensor = op_counts(xnnpack_ptq(linear(), data[0], calibration=data, is_per_channel=False))
    assert per_channel["dequantize_per_channel"] == 1
    assert "dequantize_per_channel" not in per_tensor
    assert per_tensor["dequantize_per_tensor"] == per_channel["dequantize_per_tensor"] + 1


def test_a_quantizer_of_the_callers_own() -> None:
    """Only one of the two layers is quantized; the caller's quantizer is not changed."""
    quantizer, config = get_xnnpack_quantizer()
    quantizer.set_global(None).set_module_name("a", config)
    patterns = [p.name for p in quantizer.SUPPORTED_PATTERNS]
    data: Batches = [(rows(2, seed), rows(2, seed + 9)) for seed in range(3)]
    counts = op_counts(
        xnnpack_ptq(TwoLinear().eval(), data[0], calibration=data, quantizer=quantizer)
    )
    assert counts["linear"] == 2
    assert counts["dequantize_per_channel"] == 1
    assert [p.name for p in quantizer.SUPPORTED_PATTERNS] == patterns


def test_the_batch_of_the_example_is_that_of_the_graph() -> None:
    data: Batches = [(rows(4, seed),) for seed in range(3)]
    qdq = xnnpack_ptq(linear(), data[0], calibration=data)
    assert sqnr_db(linear()(rows(4, 9)), qdq(rows(4, 9))) > 25
    with pytest.raises(AssertionError, match="Guard"):
        qdq(rows(1))


def test_dynamic_quantization_needs_no_data() -> None:
    qdq = xnnpack_ptq(linear(), (rows(3),), is_dynamic=True)
    counts = op_counts(qdq)
    assert (counts["choose_qparams"], counts["dequantize_per_channel"]) == (1, 1)
    assert sqnr_db(linear()(rows(3, 7)), qdq(rows(3, 7))) > 30
    with pytest.raises(ValueError, match="needs per-channel weights"):
        xnnpack_ptq(linear(), (rows(3),), is_dynamic=True, is_per_channel=False)


# --- xnnpack_ptq: data


@pytest.mark.parametrize("batch", [1, 8])
def test_without_calibration_the_digits_are_taken(batch: int, one_thread: None) -> None:
    """In groups of the example's batch, for a model with the input of the course."""
    model, x = ConvRelu().eval(), image(batch=batch, size=16)
    default = xnnpack_ptq(model, (x,))
    digits = xnnpack_ptq(model, (x,), calibration=calibration_batches(batch))
    other = xnnpack_ptq(model, (x,), calibration=[(10 * x,)])
    assert torch.equal(default(x), digits(x))
    assert not torch.equal(default(x), other(x))


@pytest.mark.parametrize(
    "example",
    [(torch.zeros(1, 3, 8, 8),), (torch.zeros(1, 1, 16, 16),), (torch.zeros(3, 16, 16),),
     (torch.zeros(1, 3, 16, 16), torch.zeros(1)), (3,), ()],
)  # fmt: skip
def test_another_input_is_refused_without_data(example: tuple[Any, ...]) -> None:
    with pytest.raises(QuantizationError, match=r"calibration: this model needs data of its own"):
        xnnpack_ptq(ConvRelu().eval(), example)


X = rows(2)

BAD_DATA: dict[str, tuple[Any, type[Exception], str]] = {
    "empty": ([], QuantizationError, "calibration: got no batch"),
    "empty generator": ((x for x in ()), QuantizationError, "calibration: got no batch"),
    "tensor": (X, TypeError, r"iterable of input tuples, got a tensor\. Write \[\(x,\) for x in"),
    "number": (5, TypeError, "calibration: expected an iterable of input tuples, got int"),
    "tensors": ([X], TypeError, r"batch 0: expected a tuple of inputs, got Tensor\. Write \(x,\)"),
    "lists": ([[X]], TypeError, "batch 0: expected a tuple of inputs, got list"),
    "dicts": ([{"input": X}], TypeError, "batch 0: expected a tuple of inputs, got dict"),
    "text": ("abc", TypeError, "batch 0: expected a tuple of inputs, got str"),
    "numpy": ([(X.numpy(),)], TypeError, "batch 0, input 0: expected a tensor, got ndarray"),
    "two inputs": ([(X, X)], QuantizationError, "batch 0: expected 1 inputs, got 2"),
    "no input": ([()], QuantizationError, "batch 0: expected 1 inputs, got 0"),
    "another batch": (
        [(rows(3),)], QuantizationError,
        r"batch 0, input 0: shape \(3, 6\), but the graph is exported for \(2, 6\)",
    ),
    "another rank": ([(X[0],)], QuantizationError, r"batch 0, input 0: shape \(6,\), but"),
    "float64": (
        [(X.double(),)], TypeError,
        "batch 0, input 0: dtype float64, but the example is float32",
    ),
    "int64": ([(X.long(),)], TypeError, "batch 0, input 0: dtype int64, but"),
    "NaN": ([(X * torch.nan,)], QuantizationError, "batch 0, input 0: holds a NaN or an infinity"),
    "infinity": ([(X / 0,)], QuantizationError, "batch 0, input 0: holds a NaN or an infinity"),
    "NaN later": ([(X,), (X,), (X * torch.nan,)], QuantizationError, "batch 2, input 0: holds a"),
    "shape later": ([(X,), (rows(1),)], QuantizationError, r"batch 1, input 0: shape \(1, 6\)"),
    "type later": ([(X,), X], TypeError, "batch 1: expected a tuple of inputs, got Tensor"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_calibration_data_is_a_sentence_with_the_batch(kind: str) -> None:
    data, error, said = BAD_DATA[kind]
    model = linear()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=said):
        xnnpack_ptq(model, (X,), calibration=data)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((rows(9),), r"calibration batch 0 does not fit: .*<= 8"),
        ((torch.zeros(2, 7),), r"calibration batch 0 does not fit: .*== 6"),
        ((torch.zeros(6),), r"batch 0, input 0: shape \(6,\)"),
        ((X, X), "batch 0: expected 1 inputs, got 2"),
    ],
)
def test_bad_calibration_data_of_a_dynamic_graph(
    batch: tuple[torch.Tensor, ...], said: str
) -> None:
    with pytest.raises(QuantizationError, match=said):
        xnnpack_ptq(linear(), (X,), calibration=[batch], dynamic_shapes=({0: Dim("b", max=8)},))


def test_a_number_in_a_batch_is_that_of_the_example() -> None:
    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return self.fc(x) * n

    model = Times().eval()
    qdq = xnnpack_ptq(model, (X, 2), calibration=[(X, 2)])
    assert op_counts(qdq)["linear"] == 1
    for other, shown in ((3, "3"), (2.0, "2.0"), (True, "True"), (None, "None"), (X, "a tensor")):
        said = rf"batch 0, input 1: {shown}, but the graph is exported for 2: .* is fixed at export"
        with pytest.raises(QuantizationError, match=said):
            xnnpack_ptq(model, (X, 2), calibration=[(X, other)])
    for example, said in (
        ((X, 3), "example input 1: 3, but the graph was exported for 2"),
        ((X, 2.0), r"example input 1: 2\.0, but the graph was exported for 2"),
        ((X, X), "example input 1: a tensor, but the graph was exported for 2"),
        ((X.double(), 2), "example input 0: dtype torch.float64, but the graph takes torch.float3"),
        ((X,), "does not fit the graph: expected 2 positional inputs, got 1 positional$"),
        ((X[:1], 2), r"does not fit the graph: Guard failed: .* == 2\. A graph takes the shapes"),
    ):
        with pytest.raises(ValueError, match=said):
            lower_to_xnnpack(qdq, example)
    with pytest.raises(ValueError, match="for dynamic_shapes, quantize the model anew"):
        lower_to_xnnpack(qdq, (X, 2), dynamic_shapes=({0: BATCH}, None))


# --- xnnpack_ptq: models


def test_the_model_and_the_data_are_not_changed(one_thread: None) -> None:
    """Folding a BatchNorm changes weights: those of a copy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model(image(batch=8))
    model.eval()
    before = copy.deepcopy(model.state_dict())
    data = [(image(seed),) for seed in range(3)]
    copied = copy.deepcopy(data)
    xnnpack_ptq(model, data[0], calibration=data)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(data, copied, strict=True))


def test_a_model_in_training_mode_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout()).eval()
    model[1].train()
    for convert in (lambda: xnnpack_ptq(model, (X,), calibration=[(X,)]),
                    lambda: lower_to_xnnpack(model, (X,))):  # fmt: skip
        with pytest.raises(ValueError, match=r"training mode \(1\): dropout .* model\.eval\(\)"):
            convert()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_dtype_than_float32_is_refused(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        ValueError, match=rf"0\.weight is {name}: quantization starts from a float32"
    ):
        xnnpack_ptq(linear().to(dtype), (X.to(dtype),), calibration=[(X.to(dtype),)])
    with pytest.raises(ValueError, match=rf"example input 0 is {name}: .*float32 data"):
        xnnpack_ptq(linear(), (X.to(dtype),), calibration=[(X,)])


def test_a_buffer_of_another_dtype_is_refused() -> None:
    model = linear()
    model.register_buffer("shift", torch.zeros(1).double())
    model.register_buffer("steps", torch.zeros(1).long())  # an integer is no obstacle
    with pytest.raises(ValueError, match="shift is float64"):
        xnnpack_ptq(model, (X,), calibration=[(X,)])


@pytest.mark.parametrize(
    ("example", "said"),
    [(X, r"expected a tuple, got Tensor\. Write \(x,\)"), ([X], "expected a tuple, got list")],
)
def test_the_example_must_be_a_tuple(example: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"example_inputs: {said}"):
        xnnpack_ptq(linear(), example, calibration=[(X,)])
    with pytest.raises(TypeError, match=f"example_inputs: {said}"):
        lower_to_xnnpack(linear(), example)


def test_the_same_tensor_for_two_inputs() -> None:
    """torch.export takes one object at two places for one input, without a word."""
    model, y = TwoLinear().eval(), rows(2, 5)
    merged = torch.export.export(model, (X, X)).module()
    assert not torch.allclose(merged(X, y), model(X, y), atol=0.1), "mended in torch.export"
    qdq = xnnpack_ptq(model, (X, X), calibration=[(X, y), (y, X)])
    assert sqnr_db(model(X, y), qdq(X, y)) > 25


# --- lower_to_xnnpack: what it exports (lowering itself is left out: it takes seconds)


class Exported(BaseException):
    """Carries the program that was about to be lowered, past all that turns errors into words."""


@pytest.fixture
def exported_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.export.ExportedProgram]:
    from executorch import exir

    def stop(program: torch.export.ExportedProgram, **_: object) -> None:
        raise Exported(program)

    def export(*words: Any, **options: Any) -> torch.export.ExportedProgram:
        with pytest.raises(Exported) as caught:
            lower_to_xnnpack(*words, **options)
        return caught.value.args[0]

    monkeypatch.setattr(exir, "to_edge_transform_and_lower", stop)
    return export


def shapes(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """Sizes of the inputs; a dynamic one is (smallest, largest)."""
    found = []
    names = program.graph_signature.user_inputs
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            sizes: list[Any] = []
            for n in node.meta["val"].shape:
                if isinstance(n, int):
                    sizes.append(n)
                else:
                    bounds = program.range_constraints[n.node.expr]
                    sizes.append((int(bounds.lower), int(bounds.upper)))
            found.append(tuple(sizes))
    return found


BATCH = Dim("batch", max=8)


@pytest.mark.parametrize(
    "dynamic_shapes",
    [
        ({0: BATCH}, {0: BATCH}),
        [{0: BATCH}, {0: BATCH}],
        {"x": {0: BATCH}, "y": {0: BATCH}},
        {"y": {0: BATCH}, "x": {0: BATCH}},
        ((BATCH, Dim.STATIC), (BATCH, Dim.STATIC)),
        ({0: Dim.AUTO(max=8)}, {0: Dim.AUTO(max=8)}),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_forms_of_dynamic_shapes(exported_by, dynamic_shapes: Any, batch: int) -> None:
    x, y = rows(batch), rows(batch, 1)
    program = exported_by(TwoLinear().eval(), (x, y), dynamic_shapes=dynamic_shapes)
    assert [(upper, width) for (_, upper), width in shapes(program)] == [(8, 6), (8, 6)]


def test_only_what_is_dynamic_is_traced_with_two_rows(exported_by) -> None:
    """By name and in another order; static sizes of 1 stay 1."""

    class Outer(nn.Module):
        def forward(self, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
            return row * column

    row, column = torch.ones(1, 6), torch.ones(1, 1)
    wide = Dim("wide", max=9)
    named = exported_by(
        Outer().eval(), (row, column), dynamic_shapes={"column": None, "row": {1: wide}}
    )
    assert [s[0] for s in shapes(named)] == [1, 1]
    assert shapes(named)[1] == (1, 1)
    static = exported_by(
        Outer().eval(), (row, column), dynamic_shapes=({0: Dim.STATIC, 1: wide}, None)
    )
    assert shapes(static)[0][0] == 1
    assert shapes(static)[1] == (1, 1)


@pytest.mark.parametrize("unbounded", [Dim("batch"), Dim.AUTO, Dim.DYNAMIC])
def test_a_dimension_without_a_bound_is_refused(unbounded: Any) -> None:
    said = r'no upper bound, .* torch\.export\.Dim\("batch", max=8\)'
    with pytest.raises(ValueError, match=said):
        lower_to_xnnpack(linear(), (X,), dynamic_shapes=({0: unbounded},))


def test_executorch_itself_invents_a_bound(one_thread: None) -> None:
    dynamic = torch.export.export(linear(), (X,), dynamic_shapes=({0: Dim("batch")},))
    (spec,) = pte_contents(portable(dynamic)).inputs
    assert isinstance(spec, TensorSpec)
    assert spec.shape[0] < 100, "mended in ExecuTorch"


def test_the_same_tensor_for_two_inputs_of_a_float_model(exported_by) -> None:
    model, y = TwoLinear().eval(), rows(2, 5)
    program = exported_by(model, (X, X))
    assert torch.allclose(program.module()(X, y), model(X, y), atol=1e-6)


# --- lower_to_xnnpack: what it makes


def test_lowering_equals_the_three_raw_calls(conv_int8: Program) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(conv_int8.qdq, conv_int8.example)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    program = edge.to_executorch()
    assert program.buffer == conv_int8.pte
    plan = program.executorch_program.execution_plan[0]
    assert pte_contents(conv_int8.pte).arena == sum(plan.non_const_buffer_sizes)
    assert delegation_summary(edge) == delegation_summary(conv_int8.edge)


def test_lowered_convolutions_compute_what_the_models_do(conv: Program, conv_int8: Program) -> None:
    for seed in range(10):
        x = image(seed)
        assert torch.allclose(PteRunner(conv.pte)(x), conv.model(x), atol=1e-5)
        steps = lsb_distance(
            PteRunner(conv_int8.pte)(x), conv_int8.qdq(x), last_scale(conv_int8.qdq)
        )
        assert steps.max() <= 1


def test_lowering_leaves_its_input_as_it_was(conv: Program, conv_int8: Program) -> None:
    """Compared with a model and a graph that were never lowered."""
    untouched = quantized_conv()
    for lowered, new in ((conv_int8.qdq, untouched), (conv.model, ConvRelu())):
        weights = new.state_dict()
        assert all(torch.equal(t, weights[name]) for name, t in lowered.state_dict().items())
        assert len(weights) == len(lowered.state_dict())
    nodes = [str(n) for n in conv_int8.qdq.graph.nodes]
    assert nodes == [str(n) for n in untouched.graph.nodes]
    assert torch.equal(conv_int8.qdq(image(4)), untouched(image(4)))


def test_a_quantized_model_of_dynamic_batch_and_height(one_thread: None) -> None:
    dynamic: Any = ({0: Dim("batch", max=8), 2: Dim("height", min=4, max=16)},)
    data: Batches = [(image(seed, batch=4),) for seed in range(3)]
    qdq = xnnpack_ptq(ConvRelu().eval(), (image(),), calibration=data, dynamic_shapes=dynamic)
    edge, pte = lower_to_xnnpack(qdq, (image(),), dynamic_shapes=dynamic)
    assert delegation_summary(edge).n_delegates == 1
    runner = PteRunner(pte)
    for batch, height in ((8, 16), (1, 4), (3, 8)):
        x = image(batch, batch=batch, size=16)[:, :, :height, :8]
        y = runner(x)
        assert y.shape == (batch, 4, height, 8)
        assert lsb_distance(y, qdq(x), last_scale(qdq)).max() <= 1
    assert str(runner.inputs[0]) == "float32 (1…8, 3, 4…16, 8)"
    assert str(runner.outputs[0]) == "float32 (1…8, 4, 4…16, 8)"
    with pytest.raises(ValueError, match="dimension 2 is 3, at least 4"):
        runner(image(batch=2)[:, :, :3])
    with pytest.raises(ValueError, match="dimension 0 is 9, at most 8"):
        runner(image(batch=9))


# --- inputs by name


def test_keyword_inputs_are_ordered_as_forward_has_them(exported_by) -> None:
    """Otherwise a call by position would exchange them, silently."""
    model, (args, kwargs) = Siblings().eval(), siblings(2, 3)
    for given in (kwargs, dict(reversed(kwargs.items()))):
        program = exported_by(model, args, example_kwargs=given)
        assert program.graph_signature.user_inputs == (
            "x", "pair_right_0", "pair_rows", None, "mask", 3
        )  # fmt: skip


def test_the_quantized_graph_takes_keywords(siblings_int8: Program) -> None:
    (x, pair), kwargs = siblings(2, 3)
    before = {name: value for name, value in kwargs.items()}
    y = siblings_int8.qdq(x, pair, **dict(reversed(kwargs.items())))
    assert sqnr_db(siblings_int8.model(x, pair, **kwargs)["sum"], y["sum"]) > 20
    assert kwargs == before
    with pytest.raises(ValueError, match=r"does not fit forward.*: missing a required argument"):
        lower_to_xnnpack(siblings_int8.qdq, (x, pair), example_kwargs={"mask": kwargs["mask"]})


ARGS, KWARGS = siblings(2, 3)
NAN = torch.full((4, 3), torch.nan)

BAD_PAIRS: dict[str, tuple[Any, type[Exception], str]] = {
    "tuple": (ARGS, TypeError, r"batch 0: expected a pair \(args, kwargs\) of a tuple"),
    "list": (([*ARGS], KWARGS), TypeError, "batch 0: expected a pair"),
    "name": ((ARGS, {**KWARGS, "no": 1}), QuantizationError, "batch 0: expected 2 pos.*, no"),
    "key": (((ARGS[0], {}), KWARGS), QuantizationError, "expected the keys right, rows, got none"),
    "NaN": (
        ((ARGS[0], {**ARGS[1], "rows": NAN}), KWARGS), QuantizationError,
        r"batch 0, input 2 \(\[1\]\['rows'\]\): holds a NaN",
    ),
    "dtype": (
        (ARGS, {**KWARGS, "mask": torch.zeros(4)}), TypeError,
        r"input 4 \(mask\): dtype float32, but the example is bool",
    ),
    "number": (
        (ARGS, {**KWARGS, "times": 2}), QuantizationError,
        r"input 5 \(times\): 2, but the graph is exported for 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_PAIRS)
def test_bad_calibration_pairs(kind: str) -> None:
    batch, error, said = BAD_PAIRS[kind]
    with pytest.raises(error, match=said):
        xnnpack_ptq(Siblings().eval(), ARGS, calibration=[batch], example_kwargs=KWARGS)


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ([1], TypeError, "example_kwargs: expected a dict of keyword inputs, got list"),
        ({1: 1}, TypeError, "example_kwargs: expected a dict"),
        ({"mask": 1, "no": 1}, ValueError, r"does not fit forward\(x: .*unexpected .* 'no'"),
        ({"x": 1}, ValueError, r"does not fit forward.*multiple values for argument 'x'"),
        ({"times": 2}, ValueError, r"does not fit forward.*missing a required .*argument: 'mask'"),
    ],
)
def test_bad_example_kwargs(kwargs: Any, error: type[Exception], said: str) -> None:
    for convert in (xnnpack_ptq, lower_to_xnnpack):
        with pytest.raises(error, match=said):
            convert(Siblings().eval(), ARGS, example_kwargs=kwargs)


def test_float64_is_found_in_nested_and_named_inputs() -> None:
    args = (ARGS[0], {**ARGS[1], "rows": ARGS[1]["rows"].double()})
    with pytest.raises(ValueError, match=r"example input 2 \(\[1\]\['rows'\]\) is float64"):
        xnnpack_ptq(Siblings().eval(), args, calibration=[(args, KWARGS)], example_kwargs=KWARGS)


class Named(NamedTuple):
    one: torch.Tensor


class Odd(nn.Module):
    """Takes and returns what a .pte cannot hold."""

    def forward(self, x: torch.Tensor, kind: str = "") -> Any:
        return Named(x + 1) if kind == "" else (x, "text") if kind == "out" else x * 2


def test_what_a_pte_cannot_store_is_refused() -> None:
    model, x = Odd().eval(), torch.ones(2)
    with pytest.raises(ValueError, match=r"outputs of forward hold a container .*Named.* dicts\.$"):
        lower_to_xnnpack(model, (x,))
    with pytest.raises(ValueError, match=r"forward takes the text 'in', .* Fix it in the model"):
        lower_to_xnnpack(model, (x, "in"))
    with pytest.raises(ValueError, match="forward takes the text 'out'"):
        lower_to_xnnpack(model, (x,), example_kwargs={"kind": "out"})


class InPlace(nn.Module):
    """Changes its second input."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        return x * state


def test_a_model_that_changes_an_input_is_refused_by_its_name(one_thread: None) -> None:
    x, state = torch.ones(2), torch.zeros(2)
    with pytest.raises(ValueError, match=r"changes its input state in place\..*Work on a copy"):
        lower_to_xnnpack(InPlace().eval(), (x, state))
    assert torch.equal(state, torch.zeros(2))
    outputs = raw(portable(InPlace().eval(), (x, state)), x, torch.zeros(2))
    assert len(outputs) == 2, "mended in ExecuTorch: the changed input was an output"


def test_quantize_ops_outside_every_delegate(
    one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XNNPACK does not take a 3-D convolution; its weight is dequantized outside."""
    monkeypatch.setattr(_lowering, "check_kernels_take", lambda program: None)
    torch.manual_seed(0)
    model, x = nn.Conv3d(2, 2, 1).eval(), torch.randn(1, 2, 2, 3, 3)
    qdq = xnnpack_ptq(model, (x,), calibration=[(x,)])
    edge, pte = lower_to_xnnpack(qdq, (x,), verify=False)
    outside = {op for op, (_, n) in delegation_summary(edge).by_op.items() if n}
    assert "quantized_decomposed_dequantize_per_channel_default" in outside
    assert "quantized_decomposed::dequantize_per_channel.out" in pte_contents(pte).operators
    # It loads, and its portable convolution then refuses five dimensions.
    with pytest.raises(PteExecutionError, match="3-D or 4-D, but got, 5"):
        PteRunner(pte)(x)


# --- delegation_summary


def count_by_hand(edge: Any) -> tuple[int, int, int]:
    """Delegates, call_functions inside them, call_functions outside without the calls of them."""
    gm = edge.exported_program().graph_module
    inside = [
        sum(n.op == "call_function" for n in module.original_module.graph.nodes)
        for name, module in gm.named_children()
        if name.startswith("lowered_module_")
    ]
    outside = [
        n for n in gm.graph.nodes
        if n.op == "call_function" and "executorch_call_delegate" not in str(n.target)
    ]  # fmt: skip
    return len(inside), sum(inside), len(outside)


@pytest.mark.parametrize("name", ["conv", "conv_int8"])
def test_summary_agrees_with_executorch_and_a_count_by_hand(
    name: str, request: pytest.FixtureRequest
) -> None:
    from executorch.devtools.backend_debug import get_delegation_info

    edge = request.getfixturevalue(name).edge
    summary = delegation_summary(edge)
    info = get_delegation_info(edge.exported_program().graph_module)
    assert summary[:3] == (
        info.num_delegated_subgraphs, info.num_delegated_nodes, info.num_non_delegated_nodes
    )  # fmt: skip
    assert summary[:3] == count_by_hand(edge)
    assert sum(inside for inside, _ in summary.by_op.values()) == summary.n_delegated
    assert sum(outside for _, outside in summary.by_op.values()) == summary.n_not_delegated
    assert list(summary.by_op) == sorted(summary.by_op)


def test_summary_is_a_tuple_with_names_and_a_line(conv: Program) -> None:
    n_delegates, n_delegated, n_not_delegated, by_op = delegation_summary(conv.edge)
    assert (n_delegates, n_delegated, n_not_delegated) == (1, 2, 1)
    assert by_op == {
        "aten_convolution_default": (1, 0), "aten_relu_default": (1, 0), "getitem": (0, 1)
    }  # fmt: skip
    assert str(delegation_summary(conv.edge)) == (
        "1 delegate, 2 of 3 nodes inside; outside: getitem 1"
    )


def test_summary_of_every_form_of_a_lowered_program(conv: Program) -> None:
    program = conv.edge.exported_program()
    expected = delegation_summary(conv.edge)
    assert delegation_summary(program) == expected
    assert delegation_summary(program.graph_module) == expected
    nothing = delegation_summary(torch.export.export(conv.model, conv.example))
    assert nothing[:2] == (0, 0)


@pytest.mark.parametrize("thing", [b"pte", None, nn.ReLU(), fx.Graph()])
def test_summary_of_something_else(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"edge: expected what lower_to_xnnpack returns first, got"):
        delegation_summary(thing)
