"""Programs between export and `.pte`: what ExecuTorch does with them, and what the helper does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.nn import functional as F

from common._exported import (
    check_inputs_unchanged,
    check_quantized_float32,
    functional_where_needed,
    make_contiguous,
    without_ignored_arguments,
)
from common._lowering_words import in_words
from common._state import changed_in_place, with_state_outside
from common.executorch_utils import (
    LoweringError,
    PteRunner,
    lower_to_xnnpack,
    xnnpack_ptq,
)
from common.graph_utils import op_counts
from common.metrics import sqnr_db
from tests.programs import Program, image, linear, portable, quantized_conv, raw, rows
from tests.test_float_nodes import raw_ptq

CHANNELS_LAST: Any = {"memory_format": torch.channels_last}

# --- weights in another layout (the raw failure: test_symptoms.py::test_channels_last_weights)


def test_channels_last_weights_lower_to_the_same_bytes(conv_int8: Program) -> None:
    graph = quantized_conv().to(**CHANNELS_LAST)
    before = {name: t.stride() for name, t in graph.state_dict().items()}
    assert lower_to_xnnpack(graph, (image(),), verify=False).pte == conv_int8.pte
    assert {name: t.stride() for name, t in graph.state_dict().items()} == before


class Layouts(nn.Module):
    """Parameters, buffers and plain tensors in every layout, two of them tied."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        base = torch.randn(4, 4, generator=generator)
        self.turned = nn.Parameter(base.t())
        self.tied = self.turned
        self.register_buffer("expanded", base[:1].expand(4, 4))
        self.register_buffer("overlapping", base.flatten()[:10].as_strided((4, 4), (2, 1)))
        self.register_buffer("steps", torch.randn(8, 8, generator=generator)[::2, ::2])
        self.register_buffer("lazy", torch._neg_view(base), persistent=False)
        self.plain_tensor = base.t() * 1
        self.kernel = torch.randn(4, 4, 1, 1, 1).to(memory_format=torch.channels_last_3d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: Any = F.linear(x, self.turned) + F.linear(x, self.tied)
        for part in (self.expanded, self.overlapping, self.steps, self.lazy, self.plain_tensor):
            y = y + part
        return y + self.kernel.sum()


def test_every_layout_of_a_constant_is_made_contiguous() -> None:
    model, x = Layouts().eval(), torch.randn(4, 4)
    program = torch.export.export(model, (x,))
    make_contiguous(program)
    stored = [*program.state_dict.values(), *program.constants.values()]
    placed = [t for t in stored if isinstance(t, torch.Tensor)]
    assert all(t.is_contiguous() and not t.is_neg() for t in placed)
    tied = {id(program.state_dict[name]) for name in ("turned", "tied")}
    assert len(tied) == 1
    assert not model.turned.is_contiguous(), "the caller's model keeps its own"
    assert torch.allclose(program.module()(x), model(x), atol=1e-6)
    pte = lower_to_xnnpack(model, (x,), verify=False).pte
    assert torch.allclose(PteRunner(pte)(x), model(x), atol=1e-5)


# --- layouts that portable kernels do not know


class Flip(nn.Module):
    """An op that XNNPACK does not take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(3)


def test_a_channels_last_example_and_a_portable_kernel(one_thread: None) -> None:
    x = image().to(**CHANNELS_LAST)
    wrong = raw(portable(Flip().eval(), (x,)), x)[0]
    assert sqnr_db(x.flip(3), wrong) < 10, "mended in ExecuTorch"
    with pytest.raises(ValueError, match=r"flip.* stays outside .*not contiguous \(the input x\)"):
        lower_to_xnnpack(Flip().eval(), (x,))
    runner = PteRunner(lower_to_xnnpack(Flip().eval(), (x.contiguous(),)).pte)
    assert torch.equal(runner(x), x.flip(3))


class NonZero(nn.Module):
    """Its number of rows depends on the values."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.nonzero(), torch.argwhere(x > 1).float().sum(0)


def test_nonzero_of_two_dimensions(one_thread: None) -> None:
    class Only(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    x = torch.tensor([[0.0, 2, 1], [1, 0, 0], [0, 0, 3]])
    assert not torch.equal(raw(portable(Only().eval(), (x,)), x)[0], x.nonzero()), "mended"
    runner = PteRunner(lower_to_xnnpack(NonZero().eval(), (x,), verify=False).pte)
    for value in (x, torch.eye(3), 2 - 2 * torch.eye(3)):
        for expected, actual in zip(NonZero()(value), runner(value), strict=True):
            assert torch.equal(expected, actual)


# --- inputs that forward changes (the raw program: test_lowering.py)


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[0:3].mul_(2)
    return x + 1


def by_index(x: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 7
    return x * 2


def in_place_relu(x: torch.Tensor) -> torch.Tensor:
    return nn.ReLU(inplace=True)(x) + 1


class Residual(nn.Module):
    """A ReLU in place behind a layer whose input is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(self.conv(x)) + x


class Applied(nn.Module):
    """A function behind its second input, and a layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.fc = function, nn.Linear(6, 3)

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.function(x) + y)


@pytest.mark.parametrize("function", [through_a_view, in_place_relu])
def test_an_input_that_changes_is_refused_in_quantization(function: Any) -> None:
    x, y = rows(2), rows(2, 1)
    torch.export.export(Applied(function).eval(), (y, x)).module()(y, changed := x.clone())
    assert not torch.equal(changed, x), "the raw graph changes the calibration data"
    model, copied = Applied(function).eval(), x.clone()
    with pytest.raises(ValueError, match=r"changes its input x in place\..*x = x\.clone\(\)"):
        xnnpack_ptq(model, (y, x), calibration=[(y, x)])
    with pytest.raises(ValueError, match="changes its input x in place"):
        lower_to_xnnpack(model, (y, x))
    assert torch.equal(x, copied)


def test_changes_in_place_of_what_is_no_input(one_thread: None) -> None:
    """Quantize nodes stand before the change: the raw graph has the values from before it."""
    x, y = rows(2), rows(2, 1)
    model = Applied(lambda value: by_index(value.clone())).eval()
    assert sqnr_db(model(y, x), raw_ptq(model, (y, x))(y, x)) < 22, "mended in torchao"
    qdq = xnnpack_ptq(model, (y, x), calibration=[(y, x)])
    assert sqnr_db(model(y, x), qdq(y, x)) > 30


SILENT_VIEWS: dict[str, Any] = {  # the first three have schemas that do not say so
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "feature_dropout": lambda x: F.dropout2d(x.view(1, 2, 2, 3), 0.5, training=False),
    "atleast_1d": torch.atleast_1d,
    "chunk": lambda x: x.chunk(2)[1],
    "reshape": lambda x: x.reshape(-1)[1:3],
}


class Doubled(nn.Module):
    """Changes what a function returns."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(x)
        y.mul_(2)
        return y + 1


@pytest.mark.parametrize("name", SILENT_VIEWS)
def test_views_that_do_not_say_so(name: str) -> None:
    model, x = Doubled(SILENT_VIEWS[name]).eval(), rows(2)
    model(changed := x.clone())
    assert not torch.equal(changed, x)
    with pytest.raises(ValueError, match="changes its input x in place"):
        check_inputs_unchanged(torch.export.export(model, (x,)))


def test_what_is_not_seen_elsewhere_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ReLU in place behind a layer: to decompose the program would take longer than to export."""
    layers = [nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU6(inplace=True)]
    program = torch.export.export(nn.Sequential(*layers * 2).eval(), (image(),))
    for node in program.graph.nodes:
        assert changed_in_place(node) <= {"batch_norm", "batch_norm_1"}
    monkeypatch.delattr(torch.export.ExportedProgram, "run_decompositions")
    check_inputs_unchanged(program)
    assert with_state_outside(program) == (program, [])


def test_a_relu_in_place_is_exported_as_ever() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace=True), nn.Conv2d(3, 3, 1)).eval()
    residual = Residual().eval()
    for net in (model, residual):
        program = torch.export.export(net, (image(),))
        assert functional_where_needed(program) is program


# --- arguments that XNNPACK's lowering does not look at


class Arguments(nn.Module):
    """Products with factors, and upsampling by factors that the sizes do not show."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(3, 6, 2, generator=generator)
        self.w, self.v, self.u = (nn.Parameter(w.clone()) for w in weights)
        self.b, self.nan = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((2,), torch.nan))
        self.c = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.addmm(self.b, x, self.w, beta=0.5, alpha=2),
            torch.addmm(self.nan, x, self.v, beta=0, alpha=2),
            torch.addmm(self.c, x, self.u),
            F.interpolate(y, scale_factor=1.7, mode="bilinear"),
            F.interpolate(y, scale_factor=2, mode="bilinear"),
            F.interpolate(y, scale_factor=1.7, mode="bilinear", align_corners=True),
        )


def test_arguments_that_lowering_ignores(one_thread: None) -> None:
    example = (rows(2), image()[..., :5].contiguous())
    program = torch.export.export(Arguments(), example)
    wanted = Arguments()(*example)

    def wrong(pte: bytes) -> list[int]:
        found = PteRunner(pte)(*example)
        return [
            i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if not sqnr_db(a, b) > 80
        ]

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    assert wrong(edge.to_executorch().buffer) == [0, 1, 3]  # ExecuTorch itself
    assert wrong(lower_to_xnnpack(Arguments().eval(), example).pte) == []
    mended = op_counts(without_ignored_arguments(program).graph_module)
    assert (mended["addmm"], mended["upsample_bilinear2d"]) == (1, 2)
    plain = torch.export.export(nn.Linear(6, 2), (rows(2),))
    assert without_ignored_arguments(plain) is plain


# --- outputs


class Outputs(nn.Module):
    """Outputs that are also used inside, views, one twice, an input, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("constant", torch.arange(3.0))

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.f(x)
        z = torch.relu(y)
        return (z, y, z, self.g(z), y.view(-1), y.t(), x, x.view(-1), self.constant,
                torch.cat([y, x], 1))  # fmt: skip


def test_outputs_that_are_used_inside_and_aliases(one_thread: None) -> None:
    """ExecuTorch 1.5.1 has no wrong one; if this fails, a version does."""
    torch.manual_seed(0)
    model, data = Outputs().eval(), [(rows(2, n), rows(2)) for n in range(3)]
    qdq = xnnpack_ptq(model, data[0], calibration=data)
    runner = PteRunner(lower_to_xnnpack(qdq, data[0], verify=False).pte)
    for expected, actual in zip(qdq(*data[1]), runner(*data[1]), strict=True):
        assert sqnr_db(expected, actual) > 40


class WeightOut(nn.Module):
    """Returns a weight beside the result."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.fc(x), self.fc.weight


class Complex(nn.Module):
    """Complex arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.tensor([1j]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x * self.turn)


class State(nn.Module):
    """Returns a copy of what it has just changed."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.seen.clone()


REFUSED: dict[str, tuple[nn.Module, torch.Tensor, str]] = {
    "a copy of state": (State(), rows(2), r"Write self\.buffer \+ 0\.0, or return self\.buffer it"),
    "a weight": (WeightOut(), rows(2), r"returns a weight as it is\. .*self\.weight\.clone\(\)"),
    "complex": (Complex(), rows(2), r"turn is complex64\. Call \.float\(\)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_executorch_cannot_lower_is_said_in_words(kind: str, one_thread: None) -> None:
    model, x, said = REFUSED[kind]
    with pytest.raises(LoweringError, match=f"ExecuTorch cannot lower this program: .*{said}"):
        lower_to_xnnpack(model.eval(), (x,))


SAID = {  # by ExecuTorch 1.5.1
    "XNNPACK backend amax.default only supports keep_dim == True": r"Write x\.max\(d, keepdim=T",
    "graph_output_allocated not set": "forward must return at least one tensor",
    "Operator torch._ops.aten._unique2.default is not in Core ATen opset": "has no kernel",
    "Could not guard on data-dependent expression u7 < 1": "depends on the values of an input",
    "Attempting to convert non-NHWC compatible node to NHWC": r"conv2d on x\.unsqueeze\(2\)",
}


@pytest.mark.parametrize("said", SAID)
def test_advice_for_what_executorch_says(said: str) -> None:
    program = torch.export.export(linear(), (rows(2),))
    first = f"cannot lower this program: {re.escape(said)}\\. .*{SAID[said]}"
    with pytest.raises(LoweringError, match=first), in_words(program):
        raise RuntimeError("a pass failed") from AssertionError(said)


# --- dtypes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float_programs_of_another_dtype_are_right(dtype: torch.dtype, one_thread: None) -> None:
    """float16 in a delegate, the others (float64 as well, measured) by portable kernels."""
    model, x = linear().to(dtype), rows(2).to(dtype)
    y = PteRunner(lower_to_xnnpack(model, (x,), verify=False).pte)(x)
    assert y.dtype == dtype
    least = 25 if dtype == torch.bfloat16 else 50
    assert sqnr_db(model(x).double(), y.double()) > least


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_quantized_graph_of_another_dtype_is_refused(dtype: torch.dtype) -> None:
    """Its kernels end the process: tests/crashes.py."""

    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ops: Any = torch.ops.quantized_decomposed
            q = ops.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(q, 0.1, 0, -128, 127, torch.int8, out_dtype=dtype)

    name = str(dtype).removeprefix("torch.")
    program = torch.export.export(Rounded(), (rows(2),))
    with pytest.raises(ValueError, match=rf"dequantize_per_tensor.* is {name}: .*\.float\(\)"):
        check_quantized_float32(program)
