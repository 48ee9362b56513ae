"""Making example inputs safe to trace."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from common._journal import note
from common._signature import Inputs


def traceable(model: torch.nn.Module, example: Inputs, dynamic_shapes: Any) -> Inputs:
    """Return an example with no tensor given twice and no dynamic dimension of size 1.

    ``torch.export`` takes the same object at two places for one input, silently, and a size of 1
    for a constant.
    """
    if hasattr(dynamic_shapes, "dynamic_shapes"):  # a ShapesCollection, which knows objects
        dynamic_shapes = dynamic_shapes.dynamic_shapes(model, example.args, example.kwargs)
    seen: set[int] = set()

    def once(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            note("One tensor was given for two inputs; the second was traced with a copy of it.")
            value = value.clone()
        seen.add(id(value))
        return value

    example = pytree.tree_map(once, example)
    if not dynamic_shapes:
        return example
    try:
        bound = inspect.signature(model.forward).bind(*example.args, **example.kwargs)
    except TypeError:
        return example  # torch.export says what is wrong
    by_name = bound.arguments
    if isinstance(dynamic_shapes, Mapping):
        dims = {name: dynamic_shapes.get(name) for name in by_name}
    else:
        dims = dict(zip(by_name, dynamic_shapes, strict=False))
    wider = _roots_to_double(list(_pairs(by_name, dims)))
    if wider:
        note(
            f"The example has a size of 1 for {', '.join(sorted(wider))}, which torch.export takes "
            "for fixed; it was traced with 2."
        )
    for name, value in by_name.items():
        by_name[name] = _resized(value, dims.get(name), wider)
    # bind() counts a keyword input among the positional ones where forward would take it there
    named = {**bound.kwargs, **by_name}
    args = bound.args[: len(example.args)]
    return Inputs(args, {name: named[name] for name in example.kwargs})


def _pairs(value: Any, dims: Any) -> Iterator[tuple[int, Any]]:
    """Yield (size, Dim) for each dimension that is said to move."""
    if isinstance(value, torch.Tensor):
        for d, dim in _moving(dims):
            if -value.dim() <= d < value.dim():
                yield value.shape[d], dim
        return
    for key, part in _parts(value):
        yield from _pairs(part, _part(dims, key))


def _moving(dims: Any) -> list[tuple[int, Any]]:
    if not dims:
        return []
    items = dims.items() if isinstance(dims, Mapping) else enumerate(dims)
    static = torch.export.Dim.STATIC
    return [(d, dim) for d, dim in items if not (dim is None or type(dim) is int or dim == static)]


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, (list, tuple)) else []


def _part(dims: Any, key: Any) -> Any:
    if isinstance(dims, Mapping):
        return dims.get(key)
    inside = isinstance(dims, Sequence) and isinstance(key, int) and key < len(dims)
    return dims[key] if inside else None


def _size_at(dim: Any, n: int) -> int:
    """Return the size of a dimension when its root is ``n``: ``2 * batch`` is derived of one."""
    return dim.fn(n) if hasattr(dim, "fn") else n


def _root(dim: Any) -> str | None:
    """Return the name of what a dimension is, or is derived of; None for ``Dim.AUTO``."""
    return getattr(getattr(dim, "root", dim), "__name__", None)


def _roots_to_double(pairs: list[tuple[int, Any]]) -> set[str]:
    """Name the Dims that are 1 in the example."""
    found = set()
    for size, dim in pairs:
        root = _root(dim)
        most = getattr(getattr(dim, "root", dim), "max", None)
        if root and size == _size_at(dim, 1) and (most is None or most >= 2):
            found.add(root)
    return found


def _resized(value: Any, dims: Any, wider: set[str]) -> Any:
    if isinstance(value, torch.Tensor):
        for d, dim in _moving(dims):
            if not -value.dim() <= d < value.dim() or value.shape[d] != _size_at(dim, 1):
                continue
            root = _root(dim)
            if root is None or root in wider:
                value = _repeated(value, d, _size_at(dim, 2))
        return value
    if isinstance(value, dict):
        return {key: _resized(part, _part(dims, key), wider) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resized(part, _part(dims, i), wider) for i, part in enumerate(value))
    return value


def _repeated(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Repeat a tensor along one dimension up to a size, in the memory order that it has."""
    order = x.dim_order()
    longer = x.index_select(dim, torch.arange(size) % x.shape[dim])
    back = [order.index(d) for d in range(x.dim())]
    return longer.permute(order).contiguous().permute(back)
