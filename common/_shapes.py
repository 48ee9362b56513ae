"""Bounds of dynamic shapes that travel inside the ``.pte``.

A ``.pte`` stores the largest size of each dimension and nothing else: not the smallest, not which
dimensions move, not that two of them must agree. ``lower_to_xnnpack`` adds what is missing as a
constant method, ``__shapes_of_forward`` for ``forward``, and only where shapes are dynamic. Other
tools see a method without inputs that returns one text::

    shapes-1 <CRC-32 of what follows, 8 hex digits> {"symbols": {"s0": [0, 0, 1, 0]},
    "inputs": [[[1, 8, "s0"], 3], [[2, 16, "2*s0"], 4], null], "outputs": [[[1, 8], 4]],
    "guards": []}

- ``inputs``: for each input of the method its dimensions, or null where it is no tensor. A number
  is a fixed size, ``[low, high]`` a range, ``[low, high, text]`` a range and what the size must
  be: an expression in the symbols.
- ``symbols``: where a symbol is read off, ``[input, dimension, times, plus]``: the size there is
  ``times · symbol + plus``.
- ``guards``: conditions between the symbols that ``torch.export`` relied on, such as
  ``"(s0 + s1) % 2 == 0"``.
- ``outputs``: as ``inputs``, without expressions.

Expressions hold integers, symbols, ``+ - * // %``, comparisons, ``and or not``, ``min`` and
``max``, written as in Python.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common._errors import PteFormatError
from common._signature import input_nodes

PREFIX = "__shapes_of_"
TAG = "shapes-1 "
LONGEST = 10_000  # characters of an expression; more is no work of ours
TRIES = 20_000

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Dimension:
    """One dimension of an input or output: its range, and what it must be, where that is known."""

    low: int
    high: int
    expression: str | None = None


@dataclass(frozen=True)
class Symbol:
    """Where a symbol is read off: the size there is ``times · symbol + plus``."""

    input: int
    dim: int
    times: int
    plus: int


Dimensions = tuple[Dimension, ...]


@dataclass(frozen=True)
class Bounds:
    """What a method's shapes must satisfy beyond the sizes that every ``.pte`` stores."""

    inputs: tuple[Dimensions | None, ...]
    outputs: tuple[Dimensions | None, ...]
    symbols: Mapping[str, Symbol]
    guards: tuple[str, ...]

    def __post_init__(self) -> None:
        names = set(self.symbols)
        dims = itertools.chain.from_iterable(d or () for d in self.inputs)
        for text in (*(d.expression for d in dims if d.expression is not None), *self.guards):
            _check_expression(text, names)

    @property
    def relate(self) -> bool:
        """Whether there is more to check than each dimension by itself."""
        dims = itertools.chain.from_iterable(d or () for d in self.inputs)
        expressions = [dim.expression for dim in dims if dim.expression is not None]
        return (
            bool(self.guards)
            or len(expressions) > len(set(expressions))
            or any(expression not in self.symbols for expression in expressions)
        )

    def check(self, values: Sequence[Any], labels: Sequence[str]) -> None:
        """Compare sizes with each other; each is already known to be in its range.

        Args:
            values: one for each input; what is no tensor is passed over.
            labels: what to call each input in a message.

        Raises:
            ValueError: the first size that does not fit the others.
        """
        problem = self.find_problem([getattr(value, "shape", ()) for value in values], labels)
        if problem:
            raise ValueError(problem)

    def find_problem(self, shapes: Sequence[Sequence[int]], labels: Sequence[str]) -> str | None:
        """Say which size does not fit the others; ``None`` where all do."""
        found: dict[str, int] = {}
        for name, where in self.symbols.items():
            size = shapes[where.input][where.dim]
            found[name], rest = divmod(size - where.plus, where.times)
            if rest:
                return (
                    f"{labels[where.input]}: dimension {where.dim} is {size}, but must be "
                    f"{_affine(name, where)} with a whole number {name}"
                )
        for i, dims in enumerate(self.inputs):
            for d, dim in enumerate(dims or ()):
                if dim.expression is None:
                    continue
                expected, got = _evaluate(dim.expression, found), shapes[i][d]
                if expected != got:
                    wrong = f"{labels[i]}: dimension {d} is {got}, but must be "
                    where = self.symbols.get(dim.expression)
                    if where and _affine(dim.expression, where) == dim.expression:
                        same = f"dimension {where.dim} of {labels[where.input]}"
                        return f"{wrong}{expected}, as {same}"
                    explained = self._explain(dim.expression, found, labels)
                    return f"{wrong}{dim.expression} = {expected}, {explained}"
        for guard in self.guards:
            if not _evaluate(guard, found):
                return (
                    f"the shapes do not fit together: {guard} must hold, "
                    f"{self._explain(guard, found, labels)}"
                )
        return None

    def sample(self) -> list[Sizes | None]:
        """Return shapes that satisfy all of it, as large as can be found in some tries."""
        ranges = []
        for where in self.symbols.values():
            dim = (self.inputs[where.input] or ())[where.dim]
            high = (dim.high - where.plus) // where.times
            low = -((where.plus - dim.low) // where.times)
            ranges.append(range(high, low - 1, -1))
        for values in itertools.islice(itertools.product(*ranges), TRIES):
            found = dict(zip(self.symbols, values, strict=True))
            shapes = self._shapes(found)
            inside = all(
                dim.low <= n <= dim.high
                for dims, shape in zip(self.inputs, shapes, strict=True)
                for dim, n in zip(dims or (), shape or (), strict=True)
            )
            if inside and all(_evaluate(guard, found) for guard in self.guards):
                return shapes
        return self._shapes({})

    def _shapes(self, found: Mapping[str, int]) -> list[Sizes | None]:
        """Return the shapes for these symbols; without any, the largest sizes."""
        shapes: list[Sizes | None] = []
        for dims in self.inputs:
            if dims is None:
                shapes.append(None)
                continue
            sizes = [
                _evaluate(dim.expression, found) if dim.expression and found else dim.high
                for dim in dims
            ]
            shapes.append(tuple(sizes))
        return shapes

    def _explain(self, text: str, found: Mapping[str, int], labels: Sequence[str]) -> str:
        said = []
        for name in _names(text):
            where = self.symbols[name]
            place = f"dimension {where.dim} of {labels[where.input]}"
            shown = _affine(name, where)
            said.append(
                f"{name} = {found[name]} is {place}"
                if shown == name
                else f"{name} = {found[name]} since {place} is {shown}"
            )
        return f"where {', '.join(said)}"


def _affine(name: str, where: Symbol) -> str:
    times = name if where.times == 1 else f"{where.times}*{name}"
    return f"{times} + {where.plus}" if where.plus else times


# --- expressions


_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS = {"min": min, "max": max}


def _evaluate(text: str, values: Mapping[str, int]) -> int:
    try:
        return _value(_parse(text), values)
    except ZeroDivisionError:
        return 0  # a condition that divides by the size of an empty dimension does not hold


def _check_expression(text: Any, names: Iterable[str]) -> None:
    """Raise ValueError for what is no expression in these names."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ValueError("an expression is no text or too long")
    try:
        _evaluate(text, dict.fromkeys(names, 1))
    except (SyntaxError, RecursionError, MemoryError, KeyError, TypeError):
        raise ValueError(f"{text[:80]!r} is no expression in sizes") from None


@functools.lru_cache(256)
def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    """Evaluate; raise KeyError or TypeError for what is not allowed."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp):
        operand = _value(node.operand, values)
        return {ast.USub: -operand, ast.Not: int(not operand)}[type(node.op)]  # type: ignore[index]
    if isinstance(node, ast.BoolOp):  # all of it, so that a check of syntax sees every part
        parts = [bool(_value(part, values)) for part in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare):
        terms = [_value(term, values) for term in (node.left, *node.comparators)]
        tests = [_COMPARE[type(op)] for op in node.ops]
        return all(
            [test(a, b) for test, (a, b) in zip(tests, itertools.pairwise(terms), strict=True)]
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _CALLS[node.func.id](*[_value(part, values) for part in node.args])
    raise TypeError(type(node).__name__)


def _names(text: str) -> list[str]:
    found = {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}
    return sorted(found - set(_CALLS))


# --- reading


def is_entry(method: str) -> bool:
    """Tell whether a method of a program is such an entry."""
    return method.startswith(PREFIX)


def read_bounds(program: Any, plan: Any) -> Bounds | None:
    """Read what a program says of the shapes of one of its methods.

    Args:
        program: as ``executorch.exir.schema.Program``.
        plan: the execution plan of the method.

    Returns:
        ``None`` where there is no entry, or one of another tool or a later form.

    Raises:
        PteFormatError: the entry is damaged, or contradicts the program.
    """
    plans = [p for p in program.execution_plan if p.name == PREFIX + str(plan.name)]
    if not plans:
        return None
    try:
        text = plans[0].values[plans[0].outputs[0]].val.string_val
    except (AttributeError, IndexError, TypeError):
        return None
    if not isinstance(text, str) or not text.startswith(TAG):
        return None
    try:
        checksum, _, content = text.removeprefix(TAG).partition(" ")
        if checksum != _checksum(content):
            raise ValueError("its checksum is wrong")
        bounds = _from_json(json.loads(content))
        _check_against(plan, bounds)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise PteFormatError(
            f"the program is damaged: its bounds of shapes cannot be used ({error}). "
            "Export it again, or copy the file again."
        ) from None
    # XNNPACK returns sizes that nobody set for a tensor without elements, or ends the process.
    return _not_empty(bounds) if plan.delegates else bounds


def _checksum(content: str) -> str:
    return f"{zlib.crc32(content.encode()):08x}"


def _from_json(content: Any) -> Bounds:
    symbols = {
        str(name): Symbol(*map(_integer, where)) for name, where in content["symbols"].items()
    }
    bounds = Bounds(
        tuple(map(_dimensions, content["inputs"])),
        tuple(map(_dimensions, content["outputs"])),
        symbols,
        tuple(content["guards"]),
    )
    for where in symbols.values():
        dims = bounds.inputs[where.input]
        if where.times < 1 or min(where.input, where.dim) < 0 or dims is None:
            raise ValueError("a symbol stands nowhere")
        dims[where.dim]
    return bounds


def _dimensions(dims: Any) -> Dimensions | None:
    if dims is None:
        return None
    found = []
    for dim in dims:
        low, high, *rest = dim if isinstance(dim, list) else (dim, dim)
        if not 0 <= _integer(low) <= _integer(high):
            raise ValueError(f"a dimension goes from {low} to {high}")
        found.append(Dimension(low, high, *rest))
    return tuple(found)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _check_against(plan: Any, bounds: Bounds) -> None:
    """Compare with the sizes that the program itself stores."""
    for indices, found in ((plan.inputs, bounds.inputs), (plan.outputs, bounds.outputs)):
        for i, dims in zip(indices, found, strict=True):
            value = plan.values[i].val
            sizes = list(value.sizes) if hasattr(value, "sizes") else None
            if sizes != (None if dims is None else [dim.high for dim in dims]):
                raise ValueError(f"they say {dims} of a tensor of the sizes {sizes}")


def _not_empty(bounds: Bounds) -> Bounds:
    def raised(all_dims: Iterable[Dimensions | None]) -> tuple[Dimensions | None, ...]:
        return tuple(
            dims
            and tuple(
                Dimension(max(dim.low, min(1, dim.high)), dim.high, dim.expression) for dim in dims
            )
            for dims in all_dims
        )

    return Bounds(raised(bounds.inputs), raised(bounds.outputs), bounds.symbols, bounds.guards)


# --- writing


def shapes_entry(program: torch.export.ExportedProgram, method: str = "forward") -> dict[str, str]:
    """Return the entry for a program as ``constant_methods``; empty where no input is dynamic."""
    signature = program.graph_signature
    inputs = [node.meta.get("val") for node in input_nodes(program)]
    (output,) = program.graph.find_nodes(op="output")
    outputs = [
        node.meta.get("val") if isinstance(node, torch.fx.Node) else node
        for node, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT
    ]
    writer = _Writer(program.range_constraints, inputs)
    if not writer.sources:
        return {}
    content = json.dumps(
        {
            "symbols": {writer.name(s): list(where) for s, where in writer.sources.items()},
            "inputs": [_each(value, writer.dimension) for value in inputs],
            "outputs": [_each(value, writer.range) for value in outputs],
            "guards": writer.guards(inputs),
        }
    )
    return {PREFIX + method: f"{TAG}{_checksum(content)} {content}"}


def _each(value: Any, write: Any) -> list[Any] | None:
    return [write(size) for size in value.shape] if isinstance(value, torch.Tensor) else None


class _Writer:
    """Writes sizes that hold the symbols of ``torch.export``."""

    def __init__(self, ranges: Mapping[Any, Any], inputs: Sequence[Any]) -> None:
        self._ranges = ranges
        self.sources: dict[Any, tuple[int, int, int, int]] = {}
        sizes = [
            (_expression(size), i, d)
            for i, value in enumerate(inputs)
            for d, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ())
            if not isinstance(size, int)
        ]
        for plain in (True, False):  # where a symbol stands alone it is read off
            for expression, i, d in sizes:
                source = _read_off(expression, plain)
                if source:
                    symbol, times, plus = source
                    self.sources.setdefault(symbol, (i, d, times, plus))

    def name(self, symbol: Any) -> str:
        """Name symbols in order: those of torch.export differ from export to export."""
        return f"s{list(self.sources).index(symbol)}"

    def range(self, size: Any) -> Any:
        """Write a size as a number or a range."""
        if isinstance(size, int):
            return size
        from torch.utils._sympy.value_ranges import bound_sympy

        expression = _expression(size)
        found = self._ranges.get(expression) or bound_sympy(expression, dict(self._ranges))
        return [max(0, int(found.lower)), int(found.upper)]

    def dimension(self, size: Any) -> Any:
        """Write a size as a number, or as a range and an expression."""
        written = self.range(size)
        text = None if isinstance(size, int) else self._text(_expression(size))
        return [*written, text] if text else written

    def guards(self, inputs: Sequence[Any]) -> list[str]:
        """Write the conditions between symbols that the export relied on."""
        dynamic = (v for v in inputs if isinstance(v, torch.Tensor) and self._is_dynamic(v))
        environment = getattr(getattr(next(dynamic), "fake_mode", None), "shape_env", None)
        found = []
        for guard in getattr(environment, "guards", ()):
            if _is_about_one(guard.expr) or self._is_in_range(guard.expr):
                continue
            text = self._text(guard.expr)
            if text and text not in found:
                found.append(text)
        return found

    def _is_dynamic(self, value: torch.Tensor) -> bool:
        return any(not isinstance(size, int) for size in value.shape)

    def _is_in_range(self, condition: Any) -> bool:
        """Tell whether a condition on one symbol holds for its whole range."""
        import sympy

        symbols = list(condition.free_symbols)
        if len(symbols) != 1 or symbols[0] not in self._ranges:
            return not symbols
        bounds = self._ranges[symbols[0]]
        low, high = max(1, int(bounds.lower)), int(bounds.upper)
        return high - low < TRIES // 20 and all(
            condition.subs(symbols[0], n) is sympy.true for n in range(low, high + 1)
        )

    def _text(self, expression: Any) -> str | None:
        """Write an expression; None where it holds what the form does not allow."""
        import sympy
        from torch.utils._sympy.printers import PythonPrinter

        if not expression.free_symbols <= set(self.sources):
            return None
        names = {s: sympy.Symbol(self.name(s), integer=True) for s in expression.free_symbols}
        text: str = PythonPrinter().doprint(expression.xreplace(names))
        try:
            _check_expression(text, map(str, names.values()))
        except ValueError:
            return None
        return text


def _expression(size: Any) -> Any:
    return size.node.expr


def _read_off(expression: Any, plain: bool) -> tuple[Any, int, int] | None:
    """Return (symbol, times, plus) of ``times · symbol + plus``."""
    import sympy

    if expression.is_Symbol:
        return (expression, 1, 0) if plain else None
    if plain or len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    try:
        times, plus = sympy.Poly(expression, symbol).all_coeffs()
    except (ValueError, sympy.PolynomialError):
        return None
    if not (times.is_Integer and plus.is_Integer and times > 0):
        return None
    return symbol, int(times), int(plus)


def _is_about_one(condition: Any) -> bool:
    """Tell whether a condition says that a size is not 0 or 1.

    torch.export takes any size for at least 2 while it traces. The program is right for 1 as well
    wherever the declared range allows 1.
    """
    sides = condition.args
    return (
        condition.is_Relational
        and condition.rel_op != "=="
        and any(side.is_Integer and 0 <= side <= 2 for side in sides)
    )
