"""The structure of inputs, as a file holds it; test_runner.py calls a program with it."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from common._signature import Inputs, read_signature, signature_of


def plan(text: Any, inputs: int) -> Any:
    """An execution plan, as far as it is read."""
    return SimpleNamespace(
        container_meta_type=SimpleNamespace(encoded_inp_str=text), inputs=list(range(inputs))
    )


CALLS = {
    "flat": ((1, 2), {}),
    "none": ((), {}),
    "names": ((1,), {"b": 2, "a": 3}),
    "nested": (([1, {"z": 2, "a": (3,)}],), {"k": [4, 5]}),
    "ordered": ((OrderedDict(z=1, a=2),), {}),
    "keys": (({1: 1, "1": 2},), {}),
    "empty": (({}, 1), {"k": []}),
}


@pytest.mark.parametrize("kind", CALLS)
def test_written_and_read(kind: str) -> None:
    args, kwargs = CALLS[kind]
    leaves, spec = pytree.tree_flatten((args, kwargs))
    found = read_signature(plan(pytree.treespec_dumps(spec), len(leaves)))
    assert found == signature_of(args, kwargs)
    assert found is not None
    assert found.flatten(args, dict(reversed(kwargs.items()))) == leaves
    assert found.flatten(leaves, {}) == leaves
    assert found.is_flat == (kind in ("flat", "none"))


def test_labels() -> None:
    labels = signature_of((1, [2, {"a": 3}]), {"k": 4, "m": [5]}).labels
    assert labels == (
        "input 0", "input 1 ([1][0])", "input 2 ([1][1]['a'])", "input 3 (k)", "input 4 (m[0])"
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", None, "{", "[1]", "[1, {}]", '[2, {"type": null}]', "[]", "[1, 5]", "\0", "[" * 9999],
)
def test_what_is_no_structure_is_left_alone(text: Any) -> None:
    assert read_signature(plan(text, 1)) is None


def test_a_structure_of_another_call_is_left_alone() -> None:
    text = pytree.treespec_dumps(pytree.tree_structure(((1, 2), {})))
    assert read_signature(plan(text, 2)) is not None
    assert read_signature(plan(text, 3)) is None
    for other in ((1, 2), ([1], {}), ((1,), []), 1):
        text = pytree.treespec_dumps(pytree.tree_structure(other))
        assert read_signature(plan(text, 2)) is None


def test_inputs_are_a_pytree() -> None:
    inputs = Inputs((torch.ones(1),), {"k": 2})
    doubled = pytree.tree_map(lambda x: x * 2, inputs)
    assert isinstance(doubled, Inputs)
    assert doubled.kwargs == {"k": 4}
