"""Fresh inputs for a graph, made from the one example there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from common._signature import input_nodes

Values = list[Any]


def fresh_inputs(
    program: torch.export.ExportedProgram,
    example: Sequence[Any],
    ranges: Sequence[tuple[float, float] | None],
    *,
    count: int,
) -> Iterator[Values]:
    """Make inputs: the example, then changed ones, dynamic dimensions at both bounds.

    A tensor keeps the example's values, since no others are sure to be valid or typical: repeated
    to the shape that is wanted, shifted along each dimension, a float one also made fainter. A
    float tensor whose values are all equal tells nothing: it is drawn uniformly from the range
    that the graph was calibrated for, or normally where there is none.

    Args:
        program: tells which dimensions are dynamic, and their bounds.
        example: flat inputs.
        ranges: for each input the range it was calibrated for, or None.
        count: how many inputs to make.

    Yields:
        Flat inputs, the same ones in every process.
    """
    generator = torch.Generator().manual_seed(0)
    yield [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in example]
    for n in range(1, count):
        shapes = _shapes(program, _at_bounds(program, largest=n % 2 == 1))
        yield [
            _changed(x, shape or x.shape, limits, generator) if isinstance(x, torch.Tensor) else x
            for x, shape, limits in zip(example, shapes, ranges, strict=True)
        ]


def with_a_size_of_one(
    program: torch.export.ExportedProgram, example: Sequence[Any]
) -> Iterator[Values]:
    """Make inputs in which a dynamic dimension is 1: each that may be, and all that may be.

    Args:
        program: tells which dimensions are dynamic, and their bounds.
        example: flat inputs.
    """
    bounds = program.range_constraints
    one = {symbol: 1 for symbol, bound in bounds.items() if bound.lower <= 1 <= bound.upper}
    generator = torch.Generator().manual_seed(0)
    choices = [{symbol: 1} for symbol in one] if len(one) > 1 else []
    for sizes in [one, *choices] if one else []:
        shapes = _shapes(program, sizes)
        yield [
            _changed(x, shape, None, generator) if isinstance(x, torch.Tensor) and shape else x
            for x, shape in zip(example, shapes, strict=True)
        ]


def _at_bounds(program: torch.export.ExportedProgram, *, largest: bool) -> dict[Any, int]:
    bounds = program.range_constraints
    return {s: int(b.upper) if largest else max(1, int(b.lower)) for s, b in bounds.items()}


def _shapes(
    program: torch.export.ExportedProgram, sizes: dict[Any, int]
) -> list[tuple[int, ...] | None]:
    """Shape of each input for these sizes, or None where nothing is dynamic."""
    shapes: list[tuple[int, ...] | None] = []
    for node in input_nodes(program):
        value = node.meta.get("val")
        moves = isinstance(value, torch.Tensor) and not all(type(d) is int for d in value.shape)
        shapes.append(tuple(_size(d, sizes) for d in value.shape) if moves else None)
    return shapes


def _size(dim: Any, sizes: dict[Any, int]) -> int:
    if type(dim) is int:
        return dim
    size = dim.node.expr.subs(sizes)
    return int(size) if size.is_Integer else int(dim.node.hint)


def _changed(
    x: torch.Tensor,
    shape: Sequence[int],
    limits: tuple[float, float] | None,
    generator: torch.Generator,
) -> torch.Tensor:
    x = x.detach()
    if x.is_floating_point() and (not x.numel() or bool((x == x.reshape(-1)[0]).all())):
        if limits is None:
            return torch.randn(shape, generator=generator, dtype=x.dtype)
        low, high = limits
        return torch.rand(shape, generator=generator, dtype=x.dtype) * (high - low) + low
    if not x.numel():
        return x.new_zeros(shape)
    for dim, size in enumerate(shape):
        at = torch.arange(size) + torch.randint(size, (), generator=generator)
        x = x.index_select(dim, at % x.shape[dim])
    if x.is_floating_point():
        x = x * (0.5 + 0.5 * torch.rand((), generator=generator, dtype=x.dtype))
    return x
