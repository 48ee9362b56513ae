"""Does a wrong ``.pte`` get caught, and does a right one pass?"""

from __future__ import annotations

import copy
import pickle
import re
import struct
import sys
import threading
from typing import Any

import pytest
import torch
from torch import fx, nn

from common import _lowering, _verification
from common._agreement import Output, check_output, not_telling
from common._rounding import in_float64, input_ranges, output_scales, without_rounding
from common._samples import fresh_inputs
from common._verification import is_small, verify_lowered
from common.data import digits
from common.executorch_utils import (
    Lowered,
    PteRunner,
    VerificationError,
    lower_to_xnnpack,
    verify,
    xnnpack_ptq,
)
from common.graph_utils import is_qdq, op_counts
from common.metrics import sqnr_db
from tests.programs import (
    ConvRelu,
    Counter,
    ManyValues,
    Program,
    Siamese,
    image,
    last_scale,
    linear,
    portable,
    rows,
    siblings,
)


def images(n: int) -> list[tuple[torch.Tensor]]:
    return [(x[None],) for x in digits().test_images[:n]]


# --- what is reported


@torch.no_grad()
def test_the_figures_are_those_of_the_outputs(course: Program) -> None:
    inputs = images(16)
    found = verify(course.pte, course.qdq, inputs, fp32=course.model)
    runner = PteRunner(course.pte)
    got, graph, fp32 = (
        torch.cat([module(*x) for x in inputs]) for module in (runner, course.qdq, course.model)
    )
    (output,) = found.outputs
    assert output.sqnr == pytest.approx(sqnr_db(graph, got))
    assert output.sqnr_fp32 == pytest.approx(sqnr_db(fp32, got))
    steps = ((got - graph).abs() / last_scale(course.qdq)).round()
    assert output.max_lsb == steps.max()
    assert output.equal == (got == graph).double().mean()
    assert output.top1 == (got.argmax(1) == graph.argmax(1)).double().mean()
    assert found.n_inputs == 16
    assert output.least < output.sqnr
    assert f"{output.sqnr:.1f} dB" in str(found)
    assert ".pte against its graph, 16 inputs" in str(found)
    assert "<table" in found._repr_mimebundle_()["text/html"]


def test_lower_returns_two_values_and_what_was_found() -> None:
    lowered = lower_to_xnnpack(linear(), (rows(1),))
    edge, pte = lowered
    assert isinstance(lowered, Lowered)
    assert (edge, pte) == (lowered.edge, lowered.pte)
    assert lowered.verification is not None
    assert lowered.verification.outputs[0].sqnr > 100
    assert lowered.verification.n_inputs == 4
    assert Lowered(edge, pte).verification is None
    assert lowered._replace(pte=b"other").verification is None
    assert copy.copy(lowered).verification is lowered.verification
    with pytest.raises(TypeError, match=r"cannot be pickled.*save_pte\(lowered\.pte, path\)"):
        pickle.dumps(lowered)


def test_lower_verifies_with_inputs_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compare = _verification.compare
    monkeypatch.setattr(
        _verification, "compare", lambda *args, **kw: seen.append(args[3]) or compare(*args, **kw)
    )
    inputs = [(rows(1, seed),) for seed in range(3)]
    layer = nn.ReLU().eval()
    lowered = lower_to_xnnpack(layer, (rows(1),), verify=iter(inputs))
    assert lowered.verification is not None
    assert seen == [inputs]
    assert lower_to_xnnpack(layer, (rows(1),), verify=False).verification is None
    with pytest.raises(ValueError, match="at least one tuple of inputs, got none"):
        verify(lowered.pte, layer, [])


def test_what_counts_as_small() -> None:
    assert is_small(torch.export.export(nn.Linear(2000, 2400), (torch.zeros(1, 2000),)))
    assert not is_small(torch.export.export(nn.Linear(2000, 2600), (torch.zeros(1, 2000),)))


# --- wrong programs


def test_a_bias_used_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data = [(torch.randn(1, 8), 3 * torch.randn(1, 8)) for _ in range(8)]
    qdq = xnnpack_ptq(Siamese(nn.Linear(8, 8)).eval(), data[0], calibration=data)
    monkeypatch.setattr(_lowering, "unshare", lambda gm: gm)  # as ExecuTorch does it
    with pytest.raises(VerificationError, match=r"does not compute what its graph .* output 0 agr"):
        lower_to_xnnpack(qdq, data[0])


def test_a_scale_that_is_wrong_by_a_twentieth_is_caught(course: Program) -> None:
    quantize = [n for n in course.qdq.graph.nodes if n.name.startswith("quantize_per_tensor")]
    for index, caught in ((0, True), (1, True), (3, True), (-1, False)):
        scale = quantize[index].args[1]
        wrong = course.pte.replace(struct.pack("<f", scale), struct.pack("<f", scale * 1.05))
        assert wrong != course.pte
        if caught:
            with pytest.raises(
                VerificationError, match=r"where rounding explains no less than 3\d"
            ):
                verify(wrong, course.qdq, images(8))
        else:  # the last one: a coarser step, no other value
            assert verify(wrong, course.qdq, images(8)).outputs[0].max_lsb == 1


def test_a_slightly_wrong_weight_is_caught_in_fp32(course_fp32: Program) -> None:
    model = copy.deepcopy(course_fp32.model)
    inputs = images(4)
    assert verify(course_fp32.pte, model, inputs).outputs[0].sqnr > 100
    with torch.no_grad():
        next(model.parameters())[0, 0, 1, 1] *= 1.1
    with pytest.raises(VerificationError, match="no less than 60"):
        verify(course_fp32.pte, model, inputs)


def test_a_nan_that_gets_lost_is_caught(conv_int8: Program) -> None:
    x = image()
    x[0, 0, 4, 4] = torch.nan
    with pytest.raises(VerificationError, match=r"0 NaN or infinite values in the \.pte, \d+ in"):
        verify(conv_int8.pte, ConvRelu().eval(), [(x,)])


def test_infinities_at_the_same_places_are_right() -> None:
    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.log()

    pte = portable(Log(), (torch.ones(4),))
    assert verify(pte, Log(), [(torch.tensor([0.0, 1.0, -1.0, 2.0]),)]).outputs[0].sqnr > 100


def test_the_sign_of_an_infinity_counts() -> None:
    class Inverse(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign = sign

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.sign / x

    pte, x = portable(Inverse(1.0), (torch.ones(2),)), torch.tensor([0.0, 1.0])
    with pytest.raises(VerificationError, match="not the same at the same places"):
        verify(pte, Inverse(-1.0), [(x,)])


class Masked(nn.Module):
    """A layer, some of whose results are replaced by a number that stands for minus infinity."""

    def __init__(self, hidden: float, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.hidden, self.factor = nn.Linear(6, 4), hidden, factor
        self.register_buffer("mask", torch.tensor([True, False, False, False]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.fc(x) * self.factor).masked_fill(self.mask, self.hidden)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, -torch.inf])
def test_a_mask_does_not_hide_what_is_wrong(hidden: float) -> None:
    pte = portable(Masked(hidden), (rows(3),))
    assert verify(pte, Masked(hidden), [(rows(3),)]).outputs[0].sqnr > 100
    with pytest.raises(VerificationError, match="does not compute what its graph computes"):
        verify(pte, Masked(hidden, factor=1.1), [(rows(3),)])


def test_another_structure_of_the_outputs_is_caught() -> None:
    class Nested(nn.Module):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, {self.key: x + 2}

    pte = portable(Nested("a"), (rows(1),))
    assert verify(pte, Nested("a"), [(rows(1),)]).outputs[1].sqnr > 100
    with pytest.raises(VerificationError, match=r"(?s)the structure .*'a'.*, its graph .*'b'"):
        verify(pte, Nested("b"), [(rows(1),)])


def test_other_outputs_are_caught(conv: Program, many_values: Program) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = ConvRelu()

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x), x

    class Double(Two):
        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x).double()

    with pytest.raises(VerificationError, match=r"the \.pte has 1 outputs, its graph 2"):
        verify(conv.pte, Two().eval(), [conv.example])
    with pytest.raises(VerificationError, match=r"input 0, output 0: .*float32, its graph .*64"):
        verify(conv.pte, Double().eval(), [conv.example])
    found = verify(many_values.pte, many_values.model, [many_values.example])
    assert all(o.sqnr > 100 for o in found.outputs)

    class OtherMask(ManyValues):
        def forward(self, x, ids, mask, times, plus):
            first, rest = super().forward(x, ids, mask, times, plus)
            return first, {**rest, "not": mask}

    with pytest.raises(VerificationError, match="output 1 agrees"):
        verify(many_values.pte, OtherMask(), [many_values.example])


def test_a_program_that_does_not_run_is_caught(conv: Program) -> None:
    with pytest.raises(VerificationError, match=r"does not run on inputs .*expected shape \(1, 3"):
        verify(conv.pte, ConvRelu().eval(), [(image(batch=2),)])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no child process looks first")
def test_a_program_that_ends_the_process_is_caught(conv: Program, deadly: bytes) -> None:
    with pytest.raises(VerificationError, match="was ended by SIG"):
        verify(deadly, ConvRelu().eval(), [conv.example])


def test_a_model_with_state_is_compared_from_state_to_state(counter: bytes) -> None:
    model, x = Counter().eval(), (torch.ones(2, 3),)
    assert verify(counter, model, [x] * 3).outputs[0].equal == 1
    assert model.calls == 0, "a copy ran"
    model(*x)
    with pytest.raises(VerificationError):
        verify(counter, model, [x])


class Cumulative(nn.Module):
    """Returns the buffer that it changes, itself and not a copy."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total


def test_a_model_that_returns_its_state_itself() -> None:
    model = Cumulative()
    found = verify(portable(model, (rows(2),)), model, [(rows(2, n),) for n in range(3)])
    assert found.outputs[0].sqnr > 100
    assert not model.total.any()


def test_a_model_that_cannot_be_copied() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.fc = threading.Lock(), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.fc(x)
            return self.last * 2

    model = Locked().eval()
    assert verify(portable(model, (rows(2),)), model, [(rows(2),)]).outputs[0].sqnr > 100


def test_inputs_by_name_come_in_pairs(siblings_int8: Program) -> None:
    args, kwargs = siblings(3, 5)
    found = verify(siblings_int8.pte, siblings_int8.qdq, [(args, kwargs)])
    assert found.outputs[0].max_lsb in (0, 1, None)
    with pytest.raises(TypeError, match=r"item 0: expected a pair \(args, kwargs\) of a tuple and"):
        verify(siblings_int8.pte, siblings_int8.qdq, [args])
    with pytest.raises(TypeError, match=r"item 0: expected a tuple of inputs, got Tensor\. Write"):
        verify(siblings_int8.pte, siblings_int8.qdq, [torch.ones(1)])  # type: ignore[list-item]


# --- the bound


def output(graph: torch.Tensor, pte: torch.Tensor, exact: torch.Tensor | None, **kind: Any) -> Any:
    kind = {"scale": None, "is_quantized": False, "by_row": False, **kind}
    return Output(pte=pte, graph=graph, exact=exact, fp32=None, **kind)


def test_the_bound_is_the_rounding_of_the_graph_itself() -> None:
    torch.manual_seed(0)
    exact = torch.randn(500, 4)
    for noise in (1e-2, 1e-3, 1e-6):
        graph = exact + noise * torch.randn_like(exact)
        check = check_output(0, output(graph, graph + noise * torch.randn_like(exact), exact))
        assert check.least == pytest.approx(min(60, sqnr_db(exact, graph) - 6))
        wrong = graph + max(3 * noise, 3e-3) * torch.randn_like(exact)
        with pytest.raises(VerificationError):
            check_output(0, output(graph, wrong, exact))
    half = output(graph.half(), graph.half(), exact)
    assert check_output(0, half).least == pytest.approx(sqnr_db(exact, graph.half()) - 18, abs=0.1)


def test_where_rounding_drowns_all_nothing_is_proven() -> None:
    torch.manual_seed(0)
    exact = torch.randn(500, 4)
    graph = exact + torch.randn_like(exact)
    noise = output(graph, graph + torch.randn_like(exact), exact, is_quantized=True)
    check = check_output(3, noise)
    assert not check.is_telling
    assert re.search(r"cannot tell whether output 3 .*the bound is -5\.", not_telling(check))
    decided = check_output(0, output(graph, graph + 1e-4, None, is_quantized=True))
    assert "values decide how many results there are" in not_telling(decided)
    assert check_output(0, output(graph, graph.clone(), exact)).is_telling


class Residue(nn.Module):
    """What is left of one after subtracting one: nothing but rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).sum(-1) - 1


def test_an_output_of_nothing_but_rounding_is_let_through_with_a_warning() -> None:
    x = 3 * rows(50)
    with pytest.warns(UserWarning, match="verify cannot tell whether output 0 of the .pte"):
        found = verify(portable(Residue(), (x,)), Residue(), [(x,)])
    assert "cannot tell" in str(found)


def test_kernels_of_16_bits_sum_up_in_them() -> None:
    layer, x = nn.Linear(64, 64).bfloat16().eval(), torch.randn(4, 64).bfloat16()
    found = verify(portable(layer, (x,)), layer, [(x,)]).outputs[0]
    assert found.least < found.sqnr < 60
    with torch.no_grad():
        layer.weight[0] += 0.1
    with pytest.raises(VerificationError):
        verify(portable(nn.Linear(64, 64).bfloat16().eval(), (x,)), layer, [(x,)])


def test_a_graph_in_float64_computes_the_same() -> None:
    class Types(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.shift = nn.Linear(6, 3), torch.ones(3) / 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x).to(torch.float32) + self.shift + torch.zeros(3)
            return y + torch.tensor([0.1, 0.2, 0.3])

    model = Types().eval()
    graph = torch.export.export(model, (rows(5),)).module()
    exact = in_float64(graph)(rows(5).double())
    assert exact.dtype == torch.float64
    assert 120 < sqnr_db(exact, model(rows(5))) < 200
    assert graph(rows(5)).dtype == torch.float32, "the caller's graph is not changed"


def test_without_rounding_is_the_float_network_with_int8_weights(conv_int8: Program) -> None:
    exact = without_rounding(conv_int8.qdq)
    assert exact is not None
    assert op_counts(exact)["clamp"] == 2  # the input, and the output of conv and ReLU
    weights = [n for n in exact.graph.nodes if is_qdq(n)]
    assert len(weights) == 1
    (quantized, dequantized), *_ = [(n.args[0], n) for n in weights]
    assert quantized.op == "get_attr"
    scale, zero_point = (getattr(exact, str(dequantized.args[i].target)) for i in (1, 2))
    assert not zero_point.any()
    weight = getattr(exact, quantized.target).float() * scale[:, None, None, None]
    (limits,) = input_ranges(conv_int8.qdq)
    assert limits is not None
    low, high = limits
    x = image(7) * 2
    with torch.no_grad():
        want = nn.functional.conv2d(x.clamp(low, high), weight, ConvRelu().conv.bias, padding=1)
        got = exact(x)
    (step,) = output_scales(conv_int8.qdq)
    assert step == last_scale(conv_int8.qdq)
    torch.testing.assert_close(got, want.relu().clamp(0, 255 * step))
    assert op_counts(conv_int8.qdq).get("clamp") is None, "the caller's graph is not changed"
    assert without_rounding(fx.symbolic_trace(nn.ReLU())) is None


def test_dynamic_quantization_is_compared_without_rounding() -> None:
    model, x = linear(), (rows(4),)
    lowered = lower_to_xnnpack(xnnpack_ptq(model, x, is_dynamic=True), x, fp32=model)
    found = lowered.verification
    assert found is not None
    assert found.reference == "graph without rounding"
    assert found.outputs[0].sqnr_fp32 is not None
    assert found.outputs[0].sqnr_fp32 > 30
    with pytest.raises(VerificationError):
        verify(
            lowered.pte, xnnpack_ptq(nn.Sequential(nn.Linear(6, 4)).eval(), x, is_dynamic=True), [x]
        )


# --- fresh inputs


def exported(example, shapes=None) -> torch.export.ExportedProgram:
    class All(nn.Module):
        def forward(self, x, ids, mask, times: int):
            return x.sum() * times, ids + 1, ~mask

    return torch.export.export(All(), example, dynamic_shapes=shapes)


def test_fresh_inputs_keep_what_is_valid() -> None:
    x, ids, mask = torch.randn(2, 5), torch.tensor([3, 7, 9]), torch.tensor([True, False])
    batch = torch.export.Dim("batch", min=2, max=6)
    example = (x, ids, mask, 3)
    program = exported(example, ({0: batch}, None, None, None))
    before = torch.get_rng_state()
    made = list(fresh_inputs(program, example, [None] * 4, count=4))
    again = list(fresh_inputs(program, example, [None] * 4, count=4))
    assert torch.equal(torch.get_rng_state(), before)
    assert [m[0].shape for m in made] == [(2, 5), (6, 5), (2, 5), (6, 5)]
    for one, other in zip(made, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
        assert set(one[1].tolist()) <= {3, 7, 9}
        assert one[1].shape == (3,)
        assert one[2].dtype == torch.bool
        assert one[3] == 3
        assert one[0].abs().max() <= x.abs().max()
    assert not torch.equal(made[2][0], x)
    assert made[0][0] is not x


def test_fresh_inputs_of_an_example_that_tells_nothing() -> None:
    example = (torch.zeros(2, 5), torch.tensor([0]), torch.tensor([True]), 3)
    program = exported(example)
    _, drawn, *_ = fresh_inputs(program, example, [(-1.0, 3.0), None, None, None], count=3)
    assert drawn[0].std() > 0.3
    assert drawn[0].min() >= -1
    assert drawn[0].max() <= 3
    _, drawn, *_ = fresh_inputs(program, example, [None] * 4, count=3)
    assert drawn[0].std() > 0.3


def test_inputs_that_the_graph_does_not_take_are_left_out() -> None:
    x = (torch.tensor([2.0, 3.0]),)
    model = nn.ReLU()
    program = torch.export.export(model, x)
    found = verify_lowered(portable(program), model, program, x)
    assert found.n_inputs == 4

    class Refuses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_exporting() and x[0] != 2:
                raise RuntimeError("not for me")
            return x.relu()

    program = torch.export.export(Refuses(), x)
    found = verify_lowered(portable(program), Refuses(), program, x)
    assert found.n_inputs == 1
