"""Which patterns ``without_unused_patterns`` keeps. That the bytes stay the same is shown in
test_overview, which lowers the course model without the helpers."""

from collections.abc import Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
from torch import nn
from torch.nn import functional

from common._unused_patterns import without_unused_patterns

X = torch.zeros(1, 3, 8, 8)


class Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def in_branches(x: torch.Tensor) -> torch.Tensor:
    branches = (lambda x: x.softmax(-1), lambda x: x + 1)
    return torch.cond(x.sum() > 0, *branches, (x,))


@pytest.mark.parametrize(
    ("function", "attention", "bilinear"),
    [
        (functional.relu, False, False),
        (lambda x: functional.scaled_dot_product_attention(x, x, x), True, False),
        (lambda x: (x @ x.transpose(-1, -2)).softmax(-1) @ x, True, False),
        (in_branches, True, False),
        (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), False, True),
        (lambda x: x[:, :, torch.tensor([0, 0, 1])], False, True),
    ],
    ids=["relu", "attention", "attention by hand", "in a branch", "bilinear", "by index"],
)
def test_a_pattern_is_kept_where_it_may_match(
    function: Callable[[torch.Tensor], torch.Tensor], attention: bool, bilinear: bool
) -> None:
    originals = sdpa.get_graphs, bilinear_2d.get_graphs_dict
    program = torch.export.export(Calls(function), (X,))
    with without_unused_patterns(program):
        assert (sdpa.get_graphs is originals[0]) == attention
        assert (bilinear_2d.get_graphs_dict is originals[1]) == bilinear
        if not attention:
            assert sdpa.get_graphs() == []
        if not bilinear:
            assert bilinear_2d.get_graphs_dict() == {}
    assert (sdpa.get_graphs, bilinear_2d.get_graphs_dict) == originals
