"""Models with state: buffers that ``forward`` changes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Iterable
from typing import Any

import torch
from torch import fx

from common._journal import note


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
        if not any(changed_in_place(node) in buffers for node in program.graph.nodes):
            return program, []
        functional = program.run_decompositions({})
    changed = list(functional.graph_signature.buffers_to_mutate.values())
    return (functional, changed) if changed else (program, [])


def changed_in_place(node: fx.Node) -> str | None:
    """Return the name of the node whose memory an op changes, looking through views."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return None
    changed: Any = node
    while isinstance(changed, fx.Node) and changed.op == "call_function" and changed.args:
        changed = changed.args[0]
    return changed.name if isinstance(changed, fx.Node) else None


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
