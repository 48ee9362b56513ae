"""The public names, and the facts about the two models of the lessons.

The figures were measured with executorch 1.5.1 and torchao 0.18; the lessons state them.
"""

from __future__ import annotations

import platform
import sys
from collections import Counter

import pytest
import torch

from common import executorch_utils
from common.data import digits
from common.env import capture_stderr
from common.executorch_utils import PteRunner, delegation_summary, pte_contents
from common.graph_utils import op_counts, short
from common.metrics import accuracy, lsb_distance, sqnr_db
from common.models import example_inputs
from tests.programs import Program, last_scale

on_linux_x86 = pytest.mark.skipif(
    not (sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")),
    reason="sizes and last bits were measured on Linux x86-64",
)
HELD_OUT = 216

# --- the public names


def test_public_names_are_there_and_documented() -> None:
    for name in executorch_utils.__all__:
        assert getattr(executorch_utils, name).__doc__, name
    assert executorch_utils.__all__ == sorted(executorch_utils.__all__)
    fixed = {"PteRunner", "delegation_summary", "lower_to_xnnpack", "xnnpack_ptq"}
    assert fixed <= set(executorch_utils.__all__)


# --- M08-2: the course model


@pytest.fixture(scope="module")
def course_runner(course: Program) -> PteRunner:
    return PteRunner(course.pte)


def test_course_qdq_graph(course: Program) -> None:
    counts = op_counts(course.qdq)
    assert sum(counts.values()) == 42
    qdq = {op: n for op, n in counts.items() if "quantize" in op}
    assert qdq == {
        "quantize_per_tensor": 11, "dequantize_per_tensor": 12, "dequantize_per_channel": 5
    }  # fmt: skip
    assert sum(qdq.values()) == 28


def test_course_is_one_delegate(course: Program) -> None:
    summary = delegation_summary(course.edge)
    assert (summary.n_delegates, summary.n_delegated) == (1, 42)
    assert {op: n for op, (_, n) in summary.by_op.items() if n} == {"getitem": 1}
    inside = {op: n for op, (n, _) in summary.by_op.items() if n and "quantize" not in op}
    assert inside == {
        "aten_add_tensor": 1,
        "aten_convolution_default": 4,
        "aten_linear_default": 1,
        "aten_max_pool2d_default": 2,
        "aten_mean_dim": 1,
        "aten_relu_default": 4,
        "aten_view_copy_default": 1,
    }


@on_linux_x86
def test_course_sizes(course: Program, course_fp32: Program) -> None:
    assert len(course.pte) == 20_880
    assert len(course_fp32.pte) == 45_968
    assert 4 * sum(p.numel() for p in course.model.parameters()) == 39_760


def test_course_int8_is_less_than_half(course: Program, course_fp32: Program) -> None:
    assert 0.4 < len(course.pte) / len(course_fp32.pte) < 0.5
    int8, fp32 = pte_contents(course.pte), pte_contents(course_fp32.pte)
    assert int8.weights < 0.4 * fp32.weights
    assert int8.delegates == fp32.delegates == ("XnnpackBackend",)
    assert int8.operators == fp32.operators == ()


@torch.no_grad()
def test_course_program_is_within_one_step_of_its_graph(
    course: Program, course_runner: PteRunner
) -> None:
    images = digits().test_images
    graph = torch.cat([course.qdq(x) for x in images.split(1)])
    program = torch.cat([course_runner(x) for x in images.split(1)])
    assert lsb_distance(program, graph, last_scale(course.qdq)).max() <= 1
    assert not torch.equal(program, torch.zeros_like(program))


@torch.no_grad()
def test_course_fp32_program_is_the_model(course_fp32: Program) -> None:
    runner = PteRunner(course_fp32.pte)
    for x in digits().test_images[:20].split(1):
        assert torch.allclose(runner(x), course_fp32.model(x), atol=1e-4)


@torch.no_grad()
def test_course_accuracy_and_sqnr(course: Program, course_runner: PteRunner) -> None:
    d = digits()
    fp32 = accuracy(course.model, d.test_images, d.test_labels, batch=1)
    int8 = accuracy(course_runner, d.test_images, d.test_labels, batch=1)
    assert abs(fp32 - int8) * HELD_OUT < 2.5
    outputs = torch.cat([course_runner(x) for x in d.test_images.split(1)])
    assert sqnr_db(course.model(d.test_images), outputs) > 35


def test_course_of_another_batch_fails_in_the_raw_api(
    course: Program, course_runner: PteRunner
) -> None:
    """The log has both shapes; the exception has a code. The runner says it in a sentence."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(course.pte).load_method("forward")
    assert method is not None
    with capture_stderr() as log, pytest.raises(RuntimeError, match=r"set_inputs.*0x10|0x10"):
        method.execute(list(example_inputs(4)))
    assert "static" in log.text
    assert "resize" in log.text
    for shape in ("4, 3, 16, 16", "1, 3, 16, 16"):
        assert shape.replace(" ", "") in log.text.replace(" ", "")
    said = r"expected shape \(1, 3, 16, 16\), got \(4, 3, 16, 16\): dimension 0 is 4, not 1"
    with pytest.raises(ValueError, match=said):
        course_runner(*example_inputs(4))


# --- M08-3: an op that XNNPACK does not take


def test_cumsum_qdq_graph(cumsum: Program) -> None:
    counts = op_counts(cumsum.qdq)
    assert sum(counts.values()) == 14
    assert counts["cumsum"] == 1


def test_cumsum_is_outside_between_two_delegates(cumsum: Program) -> None:
    summary = delegation_summary(cumsum.edge)
    assert (summary.n_delegates, summary.n_delegated) == (2, 13)
    outside = {op: n for op, (_, n) in summary.by_op.items() if n}
    assert outside == {"aten_cumsum_default": 1, "alloc": 1, "getitem": 2}
    assert pte_contents(cumsum.pte).operators == ("aten::cumsum.out",)


def test_op_counts_and_summary_name_the_same_ops_outside(cumsum: Program) -> None:
    """Planning turns the op into its out variant, which is no op of the Edge dialect."""
    outside = {op: n for op, (_, n) in delegation_summary(cumsum.edge).by_op.items() if n}
    counts = op_counts(cumsum.edge)
    assert counts.pop("executorch_call_delegate") == 2
    assert Counter(counts) == Counter(
        {op.removeprefix("aten_").removesuffix("_default"): n for op, n in outside.items()}
    )


def test_cumsum_gets_and_gives_float32(cumsum: Program) -> None:
    nodes = list(cumsum.edge.exported_program().graph.nodes)
    (node,) = [n for n in nodes if n.op == "call_function" and short(n.target) == "cumsum"]
    assert node.args[0].meta["val"].dtype == torch.float32
    assert node.meta["val"].dtype == torch.float32


@torch.no_grad()
def test_cumsum_program_is_nearly_bit_equal_to_its_graph(cumsum: Program) -> None:
    """Each delegate rounds once more; one step at the first can be no more than one at the end."""
    runner, scale = PteRunner(cumsum.pte), last_scale(cumsum.qdq)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1, 3, 16, 16, generator=generator) for _ in range(64)]
    steps = torch.cat([lsb_distance(runner(x), cumsum.qdq(x), scale) for x in inputs])
    assert (steps == 0).double().mean() >= 0.99
    assert steps.max() <= 1
