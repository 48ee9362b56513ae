"""A model as torch.export can hold it: names, the mode in which it was made, the default dtype."""

from __future__ import annotations

import copy
import keyword
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._text import torch_name

M = TypeVar("M", bound=torch.nn.Module)

# An exported graph is a GraphModule, and the exported program hangs these on it as well.
_OF_THE_PROGRAM = {"shape_env", "_guards_fn", "_in_spec", "_out_spec"}


def check_names(model: torch.nn.Module) -> None:
    """Refuse names of submodules, parameters and buffers that a graph has no place for.

    Raises:
        ValueError: naming the first one.
    """
    if isinstance(model, fx.GraphModule):
        return
    empty = fx.GraphModule(torch.nn.Module(), fx.Graph())
    named = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    for name, _ in named:
        first, *rest = name.split(".")
        reserved = first in _OF_THE_PROGRAM or hasattr(empty, first)
        if reserved or any(map(keyword.iskeyword, (first, *rest))):
            bad = first if reserved else next(filter(keyword.iskeyword, (first, *rest)))
            raise ValueError(
                f"{name}: the name {bad!r} is taken in an exported graph "
                f"({'a keyword of Python' if keyword.iskeyword(bad) else 'one of its own'}), so "
                "that torch.export cannot keep the model's part of this name. Give it another name "
                f"in the model, for instance {bad + '_layer'!r}."
            )


def check_default_dtype() -> None:
    """Refuse another default dtype than float32: the libraries make their constants in it.

    Raises:
        ValueError: saying how to set it.
    """
    dtype = torch.get_default_dtype()
    if dtype != torch.float32:
        raise ValueError(
            f"torch's default dtype is {torch_name(dtype)}, in which quantization and lowering "
            "would make their constants. Call torch.set_default_dtype(torch.float32) first."
        )


def without_inference_tensors(model: M) -> M:
    """Return the model, or a copy of one that was made under ``torch.inference_mode()``.

    Its tensors cannot be traced.
    """
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model) if any(t.is_inference() for t in tensors) else model


def plain_tensors(values: Any) -> Any:
    """Return inputs in which tensors made under ``torch.inference_mode()`` are copied."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.clone() if t.is_inference() else t, values
    )
