"""Examples that are safe to trace: no tensor twice, no dynamic dimension of size 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from common._example import traceable
from common._signature import Inputs

B, W = Dim("b", max=8), Dim("w", max=9)


class Forms(nn.Module):
    """Parameters of every kind."""

    def forward(self, x: Any, *more: Any, y: Any = None, **rest: Any) -> Any:
        return x


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


CASES: dict[str, tuple[Inputs, Any, Any]] = {
    "one": (Inputs((ones(1, 3),), {}), ({0: B},), [(2, 3)]),
    "not 1": (Inputs((ones(3, 3),), {}), ({0: B},), [(3, 3)]),
    "static": (Inputs((ones(1, 1),), {}), ({0: Dim.STATIC, 1: 1},), [(1, 1)]),
    "negative": (Inputs((ones(3, 1),), {}), ({-1: W},), [(3, 2)]),
    "hint": (Inputs((ones(1, 1),), {}), ((Dim.AUTO, None),), [(2, 1)]),
    "most is 1": (Inputs((ones(1),), {}), ({0: Dim("k", max=1)},), [(1,)]),
    "by name": (Inputs((ones(1),), {"y": ones(1)}), {"y": {0: B}, "x": None}, [(1,), (2,)]),
    "shared with a keyword": (
        Inputs((ones(1, 1),), {"y": ones(1)}), ({0: B}, {0: B}), [(2, 1), (2,)],
    ),
    "derived": (Inputs((ones(1),), {"y": ones(2)}), ({0: B}, {0: 2 * B}), [(2,), (4,)]),
    "derived, plus": (Inputs((ones(1),), {"y": ones(4)}), ({0: B}, {0: B + 3}), [(2,), (5,)]),
    "derived only": (Inputs((ones(2),), {}), ({0: 2 * B},), [(4,)]),
    "nested": (
        Inputs(({"a": [ones(1), ones(1)]},), {}), ({"a": [{0: B}, None]},), [(2,), (1,)],
    ),
    "variadic": (
        Inputs((ones(1), ones(1), ones(2)), {"z": ones(1)}),
        {"x": {0: B}, "more": ({0: B}, {0: W}), "rest": {"z": {0: B}}},
        [(2,), (2,), (2,), (2,)],
    ),
    "no shapes": (Inputs((ones(1),), {"y": None}), None, [(1,), None]),
    "other count": (Inputs((), {}), ({0: B},), []),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_dynamic_sizes_of_one_are_doubled(kind: str) -> None:
    example, dynamic_shapes, expected = CASES[kind]
    found = traceable(Forms(), example, dynamic_shapes)
    leaves = [*found.args, *found.kwargs.values()]
    if kind == "nested":
        leaves = leaves[0]["a"]
    assert [x if x is None else tuple(x.shape) for x in leaves] == expected
    assert list(found.kwargs) == list(example.kwargs)
    if kind not in ("no shapes", "other count", "nested", "most is 1"):
        torch.export.export(Forms(), *found, dynamic_shapes=dynamic_shapes)


def test_a_repeated_example_keeps_its_values_and_its_memory_order() -> None:
    x = torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last)
    (wide,), _ = traceable(Forms(), Inputs((x,), {}), ({0: B},))
    assert torch.equal(wide, torch.cat([x, x]))
    assert wide.dim_order() == (0, 2, 3, 1)


def test_a_tensor_given_twice_is_given_once() -> None:
    x = ones(2)
    (a, pair), kwargs = traceable(Forms(), Inputs((x, [x]), {"y": x}), None)
    assert len({id(t) for t in (a, pair[0], kwargs["y"])}) == 3


def test_a_shapes_collection() -> None:
    x = ones(1, 3)
    shapes = torch.export.ShapesCollection()
    shapes[x] = {0: B}
    (wide,), _ = traceable(Forms(), Inputs((x,), {}), shapes)
    assert wide.shape == (2, 3)
