"""Ops that ExecuTorch lowers and cannot run, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from common._portable import refused_by_a_kernel
from common.executorch_utils import (
    LoweringError,
    PteRunner,
    lower_to_xnnpack,
    xnnpack_ptq,
)
from common.metrics import sqnr_db
from tests.programs import Program, portable, raw, rows


class Applied(nn.Module):
    """A function, a layer, and state that can be a weight."""

    state: torch.Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.conv = function, nn.Conv3d(1, 2, 2)
        self.register_buffer("state", torch.rand(6, 6))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def three_axes(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.conv(x.view(1, 1, 2, 2, 3))


def cropped(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (-1, 2)) * 2


def changed_weight(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = F.linear(x, self.state)
    self.state.mul_(0.5)
    return y


def changed_factor(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x @ self.state
    self.state.mul_(0.5)
    return y


REFUSED = {
    three_axes: r'conv3d \("return self\.conv\(x.*", line \d+ of test_portable\.py\) is a 3-D conv',
    cropped: r'pad \("return F\.pad.* has the negative padding .* slice',
    changed_weight: r"linear .*has the buffer state for a weight.*self\.state\.clone\(\)",
    changed_factor: r"matmul .*has the buffer state for a weight",
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_no_kernel_computes_is_refused_with_its_line(function: Callable[..., Any]) -> None:
    with pytest.raises(LoweringError, match=REFUSED[function]):
        lower_to_xnnpack(Applied(function).eval(), (rows(2),))


@pytest.mark.parametrize("function", [three_axes, cropped])
def test_executorch_itself_refuses_when_it_runs(
    function: Callable[..., Any], one_thread: None
) -> None:
    pte = portable(Applied(function).eval(), (rows(2),))
    with pytest.raises(RuntimeError, match="0x12"):  # mended in ExecuTorch?
        raw(pte, rows(2))


def test_a_copy_of_a_changed_weight_is_right(one_thread: None) -> None:
    def copied(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.state.clone())
        self.state.mul_(0.5)
        return y

    runner = PteRunner(lower_to_xnnpack(Applied(copied).eval(), (rows(2),)).pte)
    model = Applied(copied).eval()
    for seed in range(3):
        assert sqnr_db(model(rows(2, seed)), runner(rows(2, seed))) > 80


def test_an_op_without_a_kernel_is_named_with_its_line(one_thread: None) -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sort(-1).values

    with pytest.raises(
        LoweringError, match=r'no kernel for aten::sort\.values \("return x\.sort.*verify=False'
    ):
        lower_to_xnnpack(Sorted().eval(), (rows(2),))


def test_a_kernel_that_refuses_is_named_with_its_line(cumsum: Program) -> None:
    said = "failed while it ran: KernelCall failed at instruction 0:3 in operator aten::cumsum.out"
    error = refused_by_a_kernel(cumsum.edge, f"{said}: 0x12")
    assert str(error).startswith(
        "the program lowers, and fails when it runs: ExecuTorch's kernel aten::cumsum.out refuses "
        'what it is given, at ("'
    )
    assert str(error).endswith("0x12")
    assert refused_by_a_kernel(cumsum.edge, "something else") is None


def test_an_embedding_that_changes_its_weight_is_refused() -> None:
    ids = torch.tensor([1, 2])
    model = nn.Embedding(20, 8, max_norm=0.5).eval()
    before = model.weight.detach().clone()
    for call in (
        lambda: lower_to_xnnpack(model, (ids,)),
        lambda: xnnpack_ptq(model, (ids,), calibration=[(ids,)]),
    ):
        with pytest.raises(LoweringError, match=r"max_norm shortens .* embedding\.max_norm = None"):
            call()
    assert torch.equal(model.weight, before)
