"""What XNNPACK's partitioner would take of a program, and why it refuses the rest.

The partitioner says its reasons only to a logger, at level DEBUG. Asking it needs no backend:
the program goes through ``to_edge_transform_and_lower`` up to the partitioner and stops there.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from common.graph_utils import short

# The loggers of its rules are below this one.
_LOGGER = "executorch.backends.xnnpack.partition.config"
NO_RULE = "XNNPACK's partitioner has no rule for it"


class Refusal(NamedTuple):
    """One answer of the partitioner.

    Attributes:
        node: the node that it refused. An op that was refused before its decomposition is no
            longer in the final graph.
        reason: ExecuTorch's own words.
    """

    node: fx.Node
    reason: str


@dataclass(frozen=True)
class Partitioned:
    """A program as the partitioner saw it; nothing is lowered.

    Attributes:
        program: in the Edge dialect.
        taken: names of the nodes that would go into a delegate.
        refusals: the answers with a reason, in the order in which they came.
    """

    program: torch.export.ExportedProgram
    taken: frozenset[str]
    refusals: tuple[Refusal, ...]

    def __str__(self) -> str:
        ops = [n for n in self.program.graph.nodes if n.op == "call_function"]
        return f"{len(self.taken)} of {len(ops)} nodes would be delegated"


@contextlib.contextmanager
def refusals() -> Generator[list[Refusal], None, None]:
    """Collect why the partitioner refuses nodes while the block runs.

    It works around ``lower_to_xnnpack`` as well.

    Yields:
        A list that grows; a node that is asked twice stands in it once.
    """
    found: list[Refusal] = []
    handler, logger = _Listener(found), logging.getLogger(_LOGGER)
    before = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def partition(program: torch.export.ExportedProgram) -> Partitioned:
    """Ask the partitioner about an exported program, without lowering it.

    Args:
        program: as ``torch.export.export`` returns it, of a Q/DQ graph or a float32 model.

    Returns:
        The Edge program with what would be taken and why the rest would not.

    Example:
        >>> model = torch.nn.Softmax(dim=1).eval()
        >>> asked = partition(torch.export.export(model, (torch.zeros(1, 3, 2),)))
        >>> print(asked)
        0 of 1 nodes would be delegated
        >>> why_not(asked)
        {'aten__softmax_default': 'dim must be the last dim, got dim = 1 for tensor of rank 3'}
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    class Stop(Exception):
        pass

    class Asked(XnnpackPartitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            tagged.append(super().partition(exported_program).tagged_exported_program)
            raise Stop

    tagged: list[torch.export.ExportedProgram] = []
    with refusals() as found, contextlib.suppress(Stop):
        to_edge_transform_and_lower(program, partitioner=[Asked()])
    (edge,) = tagged
    taken = (n.name for n in edge.graph.nodes if n.op == "call_function" and _is_tagged(n))
    return Partitioned(edge, frozenset(taken), tuple(found))


def why_not(asked: Partitioned) -> dict[str, str]:
    """Say for each node that stays outside every delegate why it does.

    Returns:
        ``{node name: reason}`` in the order of the graph, ``getitem`` left out. Where the
        partitioner gave no reason, the text says whether it knows the op at all.
    """
    said = {refusal.node.name: refusal.reason for refusal in asked.refusals}
    reasons = {}
    for node in asked.program.graph.nodes:
        if node.op != "call_function" or node.name in asked.taken:
            continue
        if short(node.target) == "getitem":
            continue
        reasons[node.name] = said.get(node.name) or unsaid(_rule_name(node))
    return reasons


def unsaid(op: str) -> str:
    """Say in the partitioner's place why it refused an op, spelled ``cumsum.default``."""
    return "refused without a reason" if op in rules() else NO_RULE


class _Listener(logging.Handler):
    def __init__(self, found: list[Refusal]) -> None:
        super().__init__(logging.DEBUG)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        # The message is an object that the partitioner fills in anew for each node.
        answer: Any = record.msg
        if isinstance(getattr(answer, "node", None), fx.Node):
            refusal = Refusal(answer.node, str(answer.reason))
            if refusal not in self._found:
                self._found.append(refusal)


@functools.cache
def rules() -> frozenset[str]:
    """Return the ops that the partitioner has rules for, spelled ``cumsum.default``."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return frozenset(XnnpackPartitioner().target_partitioner_configs)


def _rule_name(node: fx.Node) -> str:
    name = str(getattr(node.target, "__name__", node.target))
    return name.split(".", 1)[1] if name.count(".") > 1 else name


def _is_tagged(node: fx.Node) -> bool:
    return "delegation_tag" in node.meta
