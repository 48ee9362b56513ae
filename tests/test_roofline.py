"""Counted work against hand counts; the peak against what a machine can be."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
import torch
from torch import nn

from common import roofline
from common.executorch_utils import get_threads
from common.models import TinyConvNet, example_inputs
from common.profiling import profile
from common.roofline import Floor, MachinePeak, count_macs, floor, machine_peak
from tests.programs import Program

PEAK = MachinePeak(threads=1, fp32=100.0, int8=400.0, torch_fp32=90.0, bytes_per_second=10.0)


def conv_macs(c_in: int, c_out: int, pixels: int, *, kernel: int = 9, groups: int = 1) -> int:
    return kernel * c_in // groups * c_out * pixels


# --- counting


def test_course_model_by_hand() -> None:
    # 16x16 pixels, pooled to 8x8, pooled to 4x4; a linear layer at the end.
    expected = conv_macs(3, 16, 256) + 2 * conv_macs(16, 16, 64) + conv_macs(16, 32, 16) + 32 * 4
    assert count_macs(TinyConvNet().eval(), example_inputs(1)) == expected == 479_360
    assert count_macs(TinyConvNet().eval(), example_inputs(3)) == 3 * expected


def test_quantized_graph_has_the_count_of_its_model(course: Program) -> None:
    assert count_macs(course.qdq, course.example) == count_macs(course.model, course.example)


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (nn.Linear(10, 3), (5, 10), 150),
        (nn.Conv2d(8, 8, 3, padding=1, groups=8), (1, 8, 6, 6), conv_macs(8, 8, 36, groups=8)),
        (nn.Conv2d(4, 6, 1, stride=2), (1, 4, 8, 8), conv_macs(4, 6, 16, kernel=1)),
        (nn.ReLU(), (4, 4), 0),
    ],
    ids=["linear", "depthwise", "stride", "nothing"],
)
def test_layers_by_hand(module: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    assert count_macs(module, (torch.zeros(shape),)) == expected


def test_counting_leaves_the_model_as_it_was() -> None:
    norm, x = nn.BatchNorm2d(3).train(), torch.randn(2, 3, 4, 4)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    count_macs(norm, (x,))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_inputs_must_be_a_tuple() -> None:
    with pytest.raises(TypeError, match="tuple"):
        count_macs(nn.Linear(2, 2), torch.zeros(1, 2))  # pyrefly: ignore[bad-argument-type]


# --- the floor


def test_floor_is_the_longer_of_the_two() -> None:
    compute = floor(200, 10, PEAK)
    assert (compute.compute_seconds, compute.memory_seconds) == (2.0, 1.0)
    assert (compute.seconds, compute.limited_by) == (2.0, "compute")
    memory = floor(200, 10, PEAK, dtype=torch.int8)
    assert (memory.compute_seconds, memory.seconds, memory.limited_by) == (0.5, 1.0, "memory")
    assert floor(0, 0, PEAK).seconds == 0.0


def test_floor_speaks() -> None:
    said = str(Floor(1e-6, 2.5e-3))
    assert said == "at least 2,500.0 us, limited by memory (compute 1.0 us, memory 2,500.0 us)"


@pytest.mark.parametrize(
    ("macs", "nbytes", "dtype", "said"),
    [
        (-1, 0, torch.int8, "-1 and 0"),
        (0, -1, torch.int8, "0 and -1"),
        (1, 1, torch.float16, "torch.float16"),
    ],
)
def test_floor_refuses(macs: int, nbytes: int, dtype: torch.dtype, said: str) -> None:
    with pytest.raises(ValueError, match=f"got {said}"):
        floor(macs, nbytes, PEAK, dtype=dtype)


# --- the peak


def test_peak_table_counts_in_billions() -> None:
    shown = str(replace(PEAK, fp32=42.5e9, bytes_per_second=12.25e9, threads=2))
    assert shown.startswith("measured on 2 threads\n")
    assert "XNNPACK fp32    42.5  G multiply-adds/s" in shown
    assert "12.2  GB/s" in shown
    assert "measured on 1 thread\n" in str(PEAK)
    assert PEAK._repr_mimebundle_()["text/plain"] == str(PEAK)


def test_peak_of_this_machine(one_thread: None) -> None:
    before = torch.get_num_threads()
    peak = machine_peak(rounds=3)
    assert peak.threads == get_threads()
    assert torch.get_num_threads() == before
    # From a slow core under an emulator to a large server: units and counts, not speed.
    assert all(1e7 < speed < 1e14 for speed in astuple(peak)[1:])


def test_peak_uses_the_kernels_it_says(one_thread: None) -> None:
    examples = (roofline._linear_layers()[1], roofline._convolutions()[1])
    fp32, int8 = (
        [kernel.name for kernel in profile(pte, x, runs=1).kernels]
        for pte, x in zip(roofline._programs(), examples, strict=True)
    )
    assert fp32 == ["Fully Connected (NC, F32) GEMM"] * 4
    convolution = "Convolution (NHWC, QC8) IGEMM"
    assert [name for name in int8 if not name.startswith("Transpose")] == [
        "Convert (NC)",
        *[convolution] * 2,
        "Convert (NC)",
    ]
