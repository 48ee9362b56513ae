"""Models with state: buffers that ``forward`` changes."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Generator, Iterable
from typing import Any

import torch
from torch import fx

from common._journal import note
from common.graph_utils import short

# These may return their input or a view of it, and their schema does not say so: found by calling
# all ops of ATen in torch 2.14.
_SILENT_VIEWS = {
    *("_unsafe_view", "alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d"),
    *("broadcast_tensors", "cartesian_prod", "conj_physical", "data", "dequantize", "dropout"),
    *("einsum", "feature_alpha_dropout", "feature_dropout", "lift", "linalg_diagonal"),
    *("meshgrid", "moveaxis", "sum_to_size", "to_dense", "type_as"),
    *("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"),
}


@contextlib.contextmanager
def state_kept(model: torch.nn.Module, names: Iterable[str]) -> Generator[None, None, None]:
    """Restore these buffers of a model after the block: its exported graph shares them."""
    before = [(buffer, buffer.detach().clone()) for buffer in map(model.get_buffer, names)]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Generator[None, None, None]:
    """Let a model run in the block, and be afterwards what it was: buffers and attributes.

    A copy would do, but what holds a lock, or a weight computed by a hook, cannot be copied.
    """
    attributes = [(m, dict(m.__dict__), dict(m._buffers)) for m in model.modules()]
    values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, before, buffers in attributes:
            _restore(module.__dict__, before)
            _restore(module._buffers, buffers)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _restore(values: dict[str, Any], before: dict[str, Any]) -> None:
    for name in values.keys() - before.keys():
        del values[name]
    for name, value in before.items():
        if name not in values or values[name] is not value:
            values[name] = value


def with_state_outside(
    program: torch.export.ExportedProgram,
) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Write the changes of buffers as ``copy_`` at the end of the graph.

    torchao folds what it takes for constant, and takes ``buffer.add_(1)`` for constant: the state
    would be frozen, silently. It knows ``copy_``.

    Returns:
        The program, itself where it has no state, and the names of the buffers that it changes.
    """
    signature = program.graph_signature
    buffers = set(signature.inputs_to_buffers)
    functional = program
    if not signature.buffers_to_mutate:  # there they are where the program is functional already
        if not any(changed_in_place(node) & buffers for node in program.graph.nodes):
            return program, []
        functional = program.run_decompositions({})
    changed = list(functional.graph_signature.buffers_to_mutate.values())
    return (functional, changed) if changed else (program, [])


def changed_in_place(node: fx.Node) -> set[str]:
    """Return the names of the nodes whose memory an op may change, looking through views.

    An op that returns memory of its own ends the search: a ReLU in place behind a convolution
    changes the convolution's output, and no input.
    """
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return set()
    found: set[str] = set()
    seen: set[fx.Node] = set()
    waiting = _written(node, schema)
    while waiting:
        changed = waiting.pop()
        if changed in seen:
            continue
        seen.add(changed)
        if passes_memory_on(changed):
            waiting += changed.all_input_nodes
        else:
            found.add(changed.name)
    return found


def passes_memory_on(node: fx.Node) -> bool:
    """Tell whether what an op returns may lie in the memory of what it reads."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return passes_memory_on(node.all_input_nodes[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None or short(node.target) in _SILENT_VIEWS:
        return True
    return any(result.alias_info is not None for result in schema.returns)


def _written(node: fx.Node, schema: Any) -> list[fx.Node]:
    """Return the arguments that a schema says an op writes to."""
    values = [
        node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        for i, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    nodes: list[fx.Node] = []
    fx.map_arg(values, nodes.append)
    return nodes


def own_buffers(graph: torch.nn.Module, model: torch.nn.Module, names: Iterable[str]) -> None:
    """Give a graph its own copies of a model's buffers: running it must not change the model."""
    for name in names:
        parent, _, last = name.rpartition(".")
        graph.get_submodule(parent)._buffers[last] = model.get_buffer(name).detach().clone()


def keep_initial_state(program: torch.export.ExportedProgram) -> None:
    """Mark buffers whose first value is to be in the ``.pte``.

    ExecuTorch stores shape and dtype only of a buffer that ``forward`` changes, and starts it
    with zeros, with a warning. Those that are zero are left alone, so that a large cache does
    not make a large file.
    """
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    values = {**program.constants, **program.state_dict}
    for node in program.graph.nodes:
        name = signature.inputs_to_buffers.get(node.name) if node.op == "placeholder" else None
        if name in changed and bool(torch.as_tensor(values[name] != 0).any()):
            node.meta["et_init_buffer"] = True
            note("The first value of a buffer that forward changes was stored in the program.")


@contextlib.contextmanager
def without_state_warning() -> Generator[None, None, None]:
    """Drop ExecuTorch's warning about state, after ``keep_initial_state``."""
    with warnings.catch_warnings():
        message = r"Mutation on a buffer in the model is detected"
        warnings.filterwarnings("ignore", message, UserWarning)
        yield
