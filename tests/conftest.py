"""Programs that several test files look at, each made once a session."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.programs import (
    ConvRelu,
    Counter,
    ManyValues,
    Program,
    Siblings,
    image,
    portable,
    quantized_conv,
    shapes_of_siblings,
    siblings,
)
from tools.make_images import CumsumNet

collect_ignore = ["crashes.py"]  # a program of its own, which loads ExecuTorch without quiet()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Hear Ctrl-C: a shell that starts the tests in the background lets them ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
def deadly(conv: Program) -> bytes:
    """A program that ends the process when it runs: its convolution is 16 million rows high.

    The number stands inside the delegate, where nothing but XNNPACK reads it.
    """
    at = conv.pte.index((1).to_bytes(4, "little") + (3).to_bytes(4, "little") * 2) + 4
    assert at > conv.pte.index(b"XN01")
    return conv.pte[: at + 2] + b"\xff" + conv.pte[at + 3 :]


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
def siblings_fp32(one_thread: None) -> Program:
    """A model of nested, named and dynamic inputs, lowered from an example of batch 1."""
    from common.executorch_utils import lower_to_xnnpack

    model, (args, kwargs) = Siblings().eval(), siblings(1, 3)
    lowered = lower_to_xnnpack(
        model, args, example_kwargs=kwargs, dynamic_shapes=shapes_of_siblings()
    )
    return Program(model, args, None, *lowered)


@pytest.fixture(scope="session")
def siblings_int8(one_thread: None) -> Program:
    """The same model, quantized."""
    from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq

    model, (args, kwargs) = Siblings().eval(), siblings(1, 3)
    data, dynamic = [siblings(3, 5, seed) for seed in range(8)], shapes_of_siblings()
    options: dict[str, Any] = {"example_kwargs": kwargs, "dynamic_shapes": dynamic}
    qdq = xnnpack_ptq(model, args, calibration=data, **options)
    return Program(model, args, qdq, *lower_to_xnnpack(qdq, args, **options))


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
