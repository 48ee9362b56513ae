"""Programs that several test files look at, each made once a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import (
    ConvRelu,
    Counter,
    CumsumNet,
    ManyValues,
    Program,
    image,
    portable,
    quantized_conv,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Torch with one thread: with more, the histogram observers of a busy machine crawl."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def course(one_thread: None) -> Program:
    """The trained course model, quantized as M08-2 does it, lowered."""
    from common.data import trained_tiny_net
    from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq
    from common.models import example_inputs

    model, example = trained_tiny_net(), example_inputs(1)
    qdq = xnnpack_ptq(model, example)
    return Program(model, example, qdq, *lower_to_xnnpack(qdq, example))


@pytest.fixture(scope="session")
def course_fp32(course: Program) -> Program:
    """The same model, lowered without quantization."""
    from common.executorch_utils import lower_to_xnnpack

    lowered = lower_to_xnnpack(course.model, course.example)
    return Program(course.model, course.example, None, *lowered)


@pytest.fixture(scope="session")
def cumsum(one_thread: None) -> Program:
    """The model of M08-3, quantized with the course's digits, lowered."""
    from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq
    from common.models import example_inputs

    model, example = CumsumNet().eval(), example_inputs(1)
    qdq = xnnpack_ptq(model, example)
    return Program(model, example, qdq, *lower_to_xnnpack(qdq, example))


@pytest.fixture(scope="session")
def conv(one_thread: None) -> Program:
    """One fp32 convolution, exported with a contiguous example."""
    from common.executorch_utils import lower_to_xnnpack

    model, example = ConvRelu().eval(), (image(),)
    return Program(model, example, None, *lower_to_xnnpack(model, example))


@pytest.fixture(scope="session")
def conv_channels_last(one_thread: None) -> Program:
    """The same convolution, exported with a channels_last example."""
    from common.executorch_utils import lower_to_xnnpack

    model, example = ConvRelu().eval(), (image().to(memory_format=torch.channels_last),)
    return Program(model, example, None, *lower_to_xnnpack(model, example))


@pytest.fixture(scope="session")
def conv_dynamic(one_thread: None) -> Program:
    """The same convolution for a batch of 1 to 8, lowered from an example of batch 1."""
    from common.executorch_utils import lower_to_xnnpack

    model, example = ConvRelu().eval(), (image(),)
    batch = torch.export.Dim("batch", max=8)
    lowered = lower_to_xnnpack(model, example, dynamic_shapes=({0: batch},))
    return Program(model, example, None, *lowered)


@pytest.fixture(scope="session")
def conv_int8(one_thread: None) -> Program:
    """The same convolution, quantized."""
    from common.executorch_utils import lower_to_xnnpack

    qdq, example = quantized_conv(), (image(),)
    return Program(ConvRelu().eval(), example, qdq, *lower_to_xnnpack(qdq, example))


@pytest.fixture(scope="session")
def counter(one_thread: None) -> bytes:
    """A program that counts its calls."""
    return portable(Counter().eval(), (torch.ones(2, 3),))


@pytest.fixture(scope="session")
def many_values(one_thread: None) -> Program:
    """A program with inputs and outputs of several kinds."""
    x, ids, mask = torch.randn(3, 4), torch.tensor([2, 0]), torch.tensor([True, False])
    model, example = ManyValues().eval(), (x, ids, mask, 3, 0.5)
    return Program(model, example, None, None, portable(model, example))


@dataclass(frozen=True)
class Fresh:
    """What tests/in_fresh_process.py found, and what it wrote to stderr."""

    facts: dict[str, Any]
    stderr: str


@pytest.fixture(scope="session")
def fresh(conv_int8: Program, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """One fresh process does all that only a fresh process can show: it takes 20 s of imports."""
    folder = tmp_path_factory.mktemp("fresh")
    # Without a delegate: its weights stay in the bytes, and are not copied when it is loaded.
    plain = portable(conv_int8.model, conv_int8.example)
    (folder / "conv.pte").write_bytes(plain)
    import executorch.kernels.quantized  # noqa: F401  (for the next line to lower)

    quantized = portable(conv_int8.qdq, conv_int8.example)
    (folder / "portable_quantized_conv.pte").write_bytes(quantized)
    script = Path(__file__).with_name("in_fresh_process.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
    return Fresh(json.loads(done.stdout.splitlines()[-1]), done.stderr)
