"""Ops that lower and then fail in ExecuTorch's portable kernels: found early, named with a line."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from common._errors import LoweringError
from common._runtime import missing_operators
from common._source_line import source_line
from common._state import changed_in_place
from common.graph_utils import short

_REFUSED = re.compile(r"in operator (?P<name>\w+::\w+)(?:\.(?P<overload>\w+))?")
_WEIGHTED = ("linear", "conv", "addmm", "mm", "matmul", "prelu", "batch_norm")


def check_kernels_take(program: torch.export.ExportedProgram) -> None:
    """Refuse, before anything is lowered, what no kernel of ExecuTorch 1.5.1 computes.

    Raises:
        LoweringError: naming the op and its line.
    """
    check_no_renorm(program)
    state = _state_nodes(program)
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = short(node.target)
        if name.startswith(_WEIGHTED) and (changed := state.intersection(node.all_input_nodes[1:])):
            weight = program.graph_signature.inputs_to_buffers[changed.pop().name]
            raise LoweringError(
                f"{name}{source_line(node)} has the buffer {weight} for a weight, and forward "
                "changes it: XNNPACK packs weights once, and the program would end the process. "
                f"Compute with a copy, self.{weight}.clone()."
            )
        if name in ("conv3d", "conv_transpose3d") or (name == "convolution" and _rank(node) == 5):
            raise LoweringError(
                f"{name}{source_line(node)} is a 3-D convolution: neither XNNPACK nor ExecuTorch's "
                "own kernel computes it. Write it as a sum of Conv2d over the slices of one axis, "
                "or compute this part outside the program."
            )
        if name in ("pad", "constant_pad_nd") and _is_negative(node.args[1]):
            raise LoweringError(
                f"{name}{source_line(node)} has the negative padding {node.args[1]}: neither "
                "XNNPACK nor ExecuTorch's own kernel takes it. Cut off with a slice, "
                "x[..., 1:-1], and pad the rest."
            )


def check_no_renorm(program: torch.export.ExportedProgram) -> None:
    """Refuse an embedding that changes its weight when it is called.

    Raises:
        LoweringError: naming its line.
    """
    for node in program.graph.nodes:
        if node.op == "call_function" and short(node.target).startswith("embedding_renorm"):
            raise LoweringError(
                f"{short(node.target)}{source_line(node)}: an embedding with max_norm shortens its "
                "own rows whenever it is called, which a program cannot. Do it once before: "
                "embedding.weight.data.renorm_(2, 0, embedding.max_norm), then "
                "embedding.max_norm = None."
            )


def check_kernels_exist(program: Any) -> None:
    """Refuse a program with an op that this runtime has no kernel for.

    Args:
        program: what ``to_executorch()`` returns.

    Raises:
        LoweringError: naming each such op and its line.
    """
    used = {name: node for node in _nodes(program) if (name := _operator(node))}
    missing = missing_operators(sorted(used))
    if missing:
        ops = ", ".join(f"{name}{source_line(used[name])}" for name in missing)
        raise LoweringError(
            f"ExecuTorch's runtime has no kernel for {ops}. Write it in other ops, or compute this "
            "part outside the program. verify=False returns the program for another runtime."
        )


def refused_by_a_kernel(program: Any, said: str) -> LoweringError | None:
    """Name the op whose kernel refused to run, if that is what ExecuTorch says.

    Args:
        program: what ``to_executorch()`` returns.
        said: by a runner that failed.
    """
    found = _REFUSED.search(said)
    if found is None:
        return None
    name = ".".join(filter(None, found.groups()))
    lines = [source_line(node) for node in _nodes(program) if _operator(node) == name]
    which = " or ".join(sorted({line.strip() for line in lines if line}))
    return LoweringError(
        f"the program lowers, and fails when it runs: ExecuTorch's kernel {name} refuses what it "
        f"is given{f', at {which}' if which else ''}. Write this op in another way, or compute it "
        f"outside the program. {said}"
    )


def _nodes(program: Any) -> list[fx.Node]:
    return list(program.exported_program().graph.nodes)


def _operator(node: fx.Node) -> str | None:
    """Return the name of an op's kernel, as the runtime's registry spells it."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or "::" not in schema.name:
        return None
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _state_nodes(program: torch.export.ExportedProgram) -> set[fx.Node]:
    """Return the placeholders of buffers that forward changes."""
    signature = program.graph_signature
    written = set().union(*map(changed_in_place, program.graph.nodes))
    changed = set(signature.buffers_to_mutate.values())
    return {
        node
        for node in program.graph.find_nodes(op="placeholder")
        if (name := signature.inputs_to_buffers.get(node.name)) is not None
        and (node.name in written or name in changed)
    }


def _rank(node: fx.Node) -> int:
    weight = node.args[1]
    value = weight.meta.get("val") if isinstance(weight, fx.Node) else None
    return getattr(value, "ndim", 0)


def _is_negative(pads: Any) -> bool:
    return any(isinstance(pad, int) and pad < 0 for pad in pads)
