"""Does a program that takes a size of 1 compute for it what the model computes?"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from common._samples import with_a_size_of_one
from common._signature import Inputs, call
from common._state import unchanged
from common.metrics import sqnr_db


def check_size_one(
    model: torch.nn.Module, program: torch.export.ExportedProgram, example: Inputs
) -> None:
    """Run model and program with each dynamic dimension at 1, where its range begins there.

    torch.export traces a dynamic size as one of at least 2. Of ``if len(x) == 1`` and of
    ``squeeze()`` the program silently holds what is right from 2 on.

    Raises:
        ValueError: the two differ; naming the sizes.
    """
    leaves, spec = pytree.tree_flatten(example)
    graph = program.module()
    for values in with_a_size_of_one(program, leaves):
        inputs = pytree.tree_unflatten(values, spec)
        try:
            expected, got = _run(model, inputs), _run(graph, inputs)
        except Exception:  # either may refuse the size; so will the program then
            continue
        if not _is_same(expected, got):
            shapes = ", ".join(str(tuple(x.shape)) for x in values if isinstance(x, torch.Tensor))
            raise ValueError(
                f"forward computes something else for inputs of the shapes {shapes} than the "
                "exported program, which holds what is right for dynamic sizes of 2 and more. "
                "Give the Dim min=2, or leave out what depends on a size of 1 (an if on the "
                "batch size, squeeze() without a dimension)."
            )


def _run(module: torch.nn.Module, inputs: Inputs) -> Any:
    with unchanged(module), torch.no_grad():
        copied = pytree.tree_map_only(torch.Tensor, torch.clone, inputs)
        return pytree.tree_map_only(torch.Tensor, torch.clone, call(module, copied))


def _is_same(expected: Any, got: Any) -> bool:
    ours, structure = pytree.tree_flatten(expected)
    theirs, other = pytree.tree_flatten(got)
    return structure == other and all(map(_is_close, ours, theirs))


def _is_close(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    a, b = (torch.nan_to_num(x.double(), nan=0, posinf=0, neginf=0) for x in (a, b))
    return sqnr_db(a, b) > 40 or bool((a - b).abs().max() <= 1e-6)
