"""How a model's ``forward`` is called: positional and keyword inputs, lists and dicts of them.

A program takes its inputs as one flat row: the positional ones, then the keyword ones in the
order of the export, containers opened. The ``.pte`` holds the structure, as PyTorch's pytrees
write it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

# What stands for several inputs, not for one.
CONTAINERS = (dict, list, tuple)
_OF_ANOTHER_TOOL = (
    AttributeError, KeyError, NotImplementedError, RecursionError, TypeError, ValueError
)  # fmt: skip


class Inputs(NamedTuple):
    """One call of a model that takes keyword inputs: ``model(*args, **kwargs)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(model: Any, inputs: Inputs | tuple[Any, ...]) -> Any:
    """Call a model with a tuple of positional inputs, or with ``Inputs``."""
    if isinstance(inputs, Inputs):
        return model(*inputs.args, **inputs.kwargs)
    return model(*inputs)


def is_pair(batch: Any) -> bool:
    """Tell whether this is ``(args, kwargs)``, as for a model that takes inputs by name."""
    return (
        isinstance(batch, tuple)
        and len(batch) == 2
        and isinstance(batch[0], tuple)
        and isinstance(batch[1], dict)
    )


@dataclass(frozen=True)
class Signature:
    """The structure of what ``forward`` takes.

    Attributes:
        args: structure of each positional input.
        kwargs: structure of each keyword input, by name, in the program's order.
        labels: what to call each flat input in a message: ``input 2 (mask)``.
    """

    args: tuple[pytree.TreeSpec, ...]
    kwargs: dict[str, pytree.TreeSpec]
    labels: tuple[str, ...]

    @property
    def is_flat(self) -> bool:
        """Whether the inputs are positional values without a container."""
        return not self.kwargs and all(spec.is_leaf() for spec in self.args)

    def flatten(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Put the inputs of a call into the program's order.

        Args:
            args: positional inputs, as ``forward`` takes them; or all inputs in the program's
                order, none of them a container.
            kwargs: keyword inputs.

        Raises:
            ValueError: a number of inputs or a name does not fit; the message lists the expected.
            TypeError: a list, tuple or dict was expected, or not expected.
        """
        leaves: list[Any] = []
        flat = not kwargs and len(args) == len(self.labels)
        if flat and not any(isinstance(value, CONTAINERS) for value in args):
            return list(args)
        if len(args) != len(self.args) or kwargs.keys() != self.kwargs.keys():
            raise ValueError(f"expected {self}, got {_got(args, kwargs)}")
        for i, (spec, value) in enumerate(zip(self.args, args, strict=True)):
            _flatten(spec, value, f"positional input {i}", leaves)
        for name, spec in self.kwargs.items():
            _flatten(spec, kwargs[name], name, leaves)
        return leaves

    def __str__(self) -> str:
        parts = [f"{len(self.args)} positional input{'s' * (len(self.args) != 1)}"]
        if self.kwargs:
            parts.append(f"the keyword input{'s' * (len(self.kwargs) != 1)} {_list(self.kwargs)}")
        return " and ".join(parts)


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Signature:
    """Return the structure of a call."""
    return _signature(pytree.tree_structure((args, kwargs or {})))


def read_signature(plan: Any) -> Signature | None:
    """Read the structure of a method's inputs; None where the file does not hold a usable one."""
    try:
        found = _signature(pytree.treespec_loads(plan.container_meta_type.encoded_inp_str))
    except _OF_ANOTHER_TOOL:
        return None
    return found if len(found.labels) == len(plan.inputs) else None


def _signature(spec: pytree.TreeSpec) -> Signature:
    positional, keyword = spec.children()
    if positional.type is not tuple or keyword.type is not dict:
        raise ValueError("no structure of a call")
    args = tuple(positional.children())
    kwargs = dict(zip(map(str, keyword.context), keyword.children(), strict=True))
    paths: list[str] = []
    for i, child in enumerate(args):
        paths += _paths(child, f"[{i}]" if not child.is_leaf() else "")
    for name, child in kwargs.items():
        paths += _paths(child, name)
    labels = tuple(f"input {i} ({path})" if path else f"input {i}" for i, path in enumerate(paths))
    return Signature(args, kwargs, labels)


def _paths(spec: pytree.TreeSpec, path: str) -> list[str]:
    if spec.is_leaf():
        return [path]
    keys = spec.context if isinstance(spec.context, list) else range(spec.num_children)
    return [
        found
        for key, child in zip(keys, spec.children(), strict=True)
        for found in _paths(child, f"{path}[{key!r}]")
    ]


def _flatten(spec: pytree.TreeSpec, value: Any, where: str, leaves: list[Any]) -> None:
    if spec.is_leaf():
        if isinstance(value, CONTAINERS):
            raise TypeError(f"{where}: expected one input, got a {type(value).__name__}")
        leaves.append(value)
    elif isinstance(spec.context, list) and isinstance(value, dict):
        if value.keys() != set(spec.context):
            raise ValueError(
                f"{where}: expected the keys {_list(spec.context)}, got {_list(value)}"
            )
        for key, child in zip(spec.context, spec.children(), strict=True):
            _flatten(child, value[key], f"{where}[{key!r}]", leaves)
    elif spec.type in (list, tuple) and type(value) in (list, tuple):
        if len(value) != spec.num_children:
            raise ValueError(f"{where}: expected {spec.num_children} values, got {len(value)}")
        for i, (child, part) in enumerate(zip(spec.children(), value, strict=True)):
            _flatten(child, part, f"{where}[{i}]", leaves)
    elif spec.type is type(value):  # a type that the caller registered with pytree
        try:
            leaves += spec.flatten_up_to(value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    else:
        expected = getattr(spec.type, "__name__", spec.type)
        raise TypeError(f"{where}: expected a {expected}, got {type(value).__name__}")


def _got(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    return f"{len(args)} positional" + (f" and {_list(kwargs)}" if kwargs else "")


def _list(names: Any) -> str:
    return ", ".join(str(name) for name in names) or "none"


def input_nodes(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the placeholders of what ``forward`` takes: no parameters, buffers or constants."""
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    return [
        node
        for node, spec in zip(placeholders, specs, strict=True)
        if spec.kind == InputKind.USER_INPUT
    ]


# --- before an export


def in_order_of_forward(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> dict[str, Any]:
    """Put keyword inputs into the order of ``forward``'s parameters.

    The program takes its inputs in the order of the export. In the order in which a caller
    happened to write them, a positional call would exchange them silently.

    Raises:
        TypeError: ``kwargs`` is no dict with names as keys.
        ValueError: ``forward`` cannot be called like that.
    """
    if kwargs is None:
        return {}
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError(
            f"example_kwargs: expected a dict of keyword inputs, got {type(kwargs).__name__}"
        )
    parameters = inspect.signature(model.forward)
    try:
        parameters.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"the example does not fit forward{parameters}: {error}. It was given "
            f"{len(args)} positional inputs and the keyword inputs {_list(kwargs)}."
        ) from None
    known = [name for name in parameters.parameters if name in kwargs]
    return {name: kwargs[name] for name in [*known, *(n for n in kwargs if n not in known)]}


def check_graph_takes(graph: torch.fx.GraphModule, example: Inputs) -> None:
    """Compare an example with what a graph was exported for, as far as its inputs tell.

    Raises:
        ValueError: another number of inputs, other names, another dtype or another number.
    """
    info = getattr(graph.graph._codegen, "pytree_info", None)
    placeholders = graph.graph.find_nodes(op="placeholder")
    leaves = pytree.tree_leaves(example)
    if info is None:
        return
    expected = _signature(info.in_spec)
    if len(leaves) != len(placeholders) or example.kwargs.keys() != expected.kwargs.keys():
        raise ValueError(
            f"the example does not fit the graph: expected {expected}, "
            f"got {_got(example.args, example.kwargs)}"
        )
    for label, value, node in zip(expected.labels, leaves, placeholders, strict=True):
        like = node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor):
            if value.dtype != like.dtype:
                raise ValueError(
                    f"example {label}: dtype {value.dtype}, but the graph takes {like.dtype}"
                )
        elif "val" in node.meta and (type(value) is not type(like) or value != like):
            raise ValueError(
                f"example {label}: {_shown(value)}, but the graph was exported for {_shown(like)}"
            )


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)


def check_storable(program: torch.export.ExportedProgram) -> None:
    """Refuse what a ``.pte`` cannot store of the inputs and outputs of ``forward``.

    Raises:
        ValueError: a container of a type that has no name in the file; a text.
    """
    for name, spec in (
        ("inputs", program.call_spec.in_spec),
        ("outputs", program.call_spec.out_spec),
    ):
        if spec is None:
            continue
        try:
            pytree.treespec_dumps(spec)
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                f"the {name} of forward hold a container that a .pte cannot store: {error} "
                "Use tuples, lists and dicts."
            ) from None
    signature = program.graph_signature
    for kind, specs in (("takes", signature.input_specs), ("returns", signature.output_specs)):
        for spec in specs:
            value = getattr(spec.arg, "value", None)
            if isinstance(value, str):
                raise ValueError(
                    f"forward {kind} the text {value!r}, which ExecuTorch's runtime cannot pass "
                    "on. Fix it in the model: wrap it in a module whose forward does without."
                )
