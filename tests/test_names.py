"""Models that torch.export cannot hold as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from common.executorch_utils import PteRunner, lower_to_xnnpack, xnnpack_ptq
from tests.programs import linear, rows


class Named(nn.Module):
    """A layer under any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.get_submodule(self.name)(x)
        return y


def test_torch_itself_fails_at_such_a_name() -> None:
    with pytest.raises(RuntimeError, match="nonexistent attribute"):  # mended in torch?
        torch.export.export(Named("code").eval(), (rows(2),)).module()


@pytest.mark.parametrize("name", ["code", "graph", "meta", "_graph", "recompile", "shape_env",
                                  "_guards_fn", "_in_spec", "_out_spec", "class"])  # fmt: skip
def test_a_name_that_a_graph_has_itself_is_refused(name: str) -> None:
    said = rf"^{name}\.weight: the name '{name}' is taken .* for instance '{name}_layer'"
    with pytest.raises(ValueError, match=said):
        xnnpack_ptq(Named(name).eval(), (rows(2),), calibration=[(rows(2),)])
    with pytest.raises(ValueError, match=said):
        lower_to_xnnpack(Named(name).eval(), (rows(2),))


def test_such_a_name_further_inside_is_right() -> None:
    model = nn.Sequential(Named("code"), nn.ReLU()).eval()
    qdq = xnnpack_ptq(model, (rows(2),), calibration=[(rows(2),)])
    assert torch.allclose(qdq(rows(2)), model(rows(2)), atol=0.1)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_another_default_dtype_is_refused(float64_by_default: None) -> None:
    model, x = nn.Linear(6, 3).float().eval(), torch.zeros(2, 6, dtype=torch.float32)
    for call in (
        lambda: xnnpack_ptq(model, (x,), calibration=[(x,)]),
        lambda: lower_to_xnnpack(model, (x,)),
    ):
        with pytest.raises(ValueError, match=r"default dtype is float64.*set_default_dtype\(torch"):
            call()


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_and_data_made_in_inference_mode(inside: bool, one_thread: None) -> None:
    with torch.inference_mode():
        model, x = linear(), rows(2) * 1
    assert all(p.is_inference() for p in model.parameters())
    with torch.inference_mode(inside):
        qdq = xnnpack_ptq(model, (x,), calibration=[(x,)])
        pte = lower_to_xnnpack(qdq if inside else model, (x,)).pte
        assert torch.allclose(PteRunner(pte)(x), model(x), atol=0.1)
