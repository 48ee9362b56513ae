"""The memory plan of a lowered program: which tensor lies where, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor in the arena.

    Attributes:
        name: node that makes it.
        offset: first byte in the arena.
        size: bytes, padding included.
        first: step at which it is written.
        last: last step at which it is read.
    """

    name: str
    offset: int
    size: int
    first: int
    last: int


def memory_plan(edge: Any) -> tuple[PlannedTensor, ...]:
    """Return what memory planning decided for the tensors outside the delegates.

    Tensors whose lifetimes do not meet share bytes. What a delegate needs inside is its own
    business and not in this plan.

    Args:
        edge: the first item that ``lower_to_xnnpack`` returns, or what ``to_executorch()``
            returns.

    Returns:
        The planned tensors, by first step. The arena is as large as the largest
        ``offset + size``; with an XNNPACK delegate ExecuTorch adds 64 bytes, since XNNPACK may
        read past the end of a tensor.

    Raises:
        ValueError: memory has not been planned: ``to_executorch()`` was not called.

    Example:
        >>> import torch
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> edge, _ = lower_to_xnnpack(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
        >>> [(t.name, t.offset, t.size) for t in memory_plan(edge)]
        [('input_1', 16, 16), ('getitem', 0, 16)]
    """
    found: dict[tuple[int, int, int, int], PlannedTensor] = {}
    for node in edge.exported_program().graph.nodes:
        specs = node.meta.get("spec")
        for spec in specs if isinstance(specs, (tuple, list)) else [specs]:
            offset = getattr(spec, "mem_offset", None)
            if offset is None or node.op == "output" or not spec.allocated_memory:
                continue
            tensor = PlannedTensor(node.name, offset, spec.allocated_memory, *spec.lifetime)
            # an op writes into the tensor that its alloc node made: keep the op's name
            found[offset, tensor.size, tensor.first, tensor.last] = tensor
    if not found:
        raise ValueError("no memory plan: call to_executorch() first, as lower_to_xnnpack does")
    return tuple(sorted(found.values(), key=lambda t: (t.first, t.offset)))
