"""torch.export takes a dynamic size for 2 or more: what that does, and that it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from common._signature import Inputs
from common._size_one import check_size_one
from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq


class Branch(nn.Module):
    """Takes the first input's batch of 1 for another case."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() * (2 if x.shape[0] == 1 else 3) + y.sum()


class Second(nn.Module):
    """Takes the second input's batch of 1 for another case, where the first is larger."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y.shape[0] == 1:
            return x.sum() + y.sum() * (5 if x.shape[0] > 1 else 3)
        return x.sum() + y.sum() * 3


class NoBranch(nn.Module):
    """Counts its calls, and computes the same for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.mean(0) * self.calls + y.sum()


X, Y = torch.arange(6.0).reshape(3, 2), torch.ones(4, 2)


def exported(model: nn.Module, **bounds: Any) -> torch.export.ExportedProgram:
    shapes = ({0: Dim("n", **{"max": 5, **bounds})}, {0: Dim("m", max=5)})
    return torch.export.export(model, (X, Y), dynamic_shapes=shapes)


def test_torch_itself_exports_the_other_branch() -> None:
    program = exported(Branch())
    assert program.module()(X[1:2], Y) == 3 * X[1].sum() + Y.sum()
    assert Branch()(X[1:2], Y) == 2 * X[1].sum() + Y.sum()


@pytest.mark.parametrize(
    ("model", "shapes"),
    [(Branch(), r"\(1, 2\), \(1, 2\)"), (Second(), r"\(3, 2\), \(1, 2\)")],
    ids=["first", "second"],
)
def test_another_branch_for_one_is_refused(model: nn.Module, shapes: str) -> None:
    with pytest.raises(ValueError, match=rf"of the shapes {shapes} than .* Give the Dim min=2"):
        check_size_one(model, exported(model), Inputs((X, Y), {}))


def test_what_is_right_passes() -> None:
    model = NoBranch()
    check_size_one(model, exported(model), Inputs((X, Y), {}))
    assert not model.calls
    check_size_one(Branch(), exported(Branch(), min=2), Inputs((X, Y), {}))
    static = torch.export.export(Branch(), (X, Y))
    check_size_one(Branch(), static, Inputs((X, Y), {}))


class Scaled(nn.Module):
    """A layer whose result is scaled for a batch of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * (2.0 if x.shape[0] == 1 else 1.0)


def test_both_functions_refuse_it() -> None:
    model, shapes = Scaled().eval(), ({0: Dim("n", max=5)},)
    with pytest.raises(ValueError, match="forward computes something else"):
        lower_to_xnnpack(model, (X,), dynamic_shapes=shapes)
    with pytest.raises(ValueError, match="forward computes something else"):
        xnnpack_ptq(model, (X,), calibration=[(X,)], dynamic_shapes=shapes)
