"""What becomes of each op of a model: its line, its place, what it is computed in, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from common._advice import FLOAT, OUTSIDE, Advice, advice_for
from common._fx_view import is_delegate
from common._source_line import SourceLine, line_of
from common._support import NO_RULE, Partitioned, Refusal, rules
from common._unmarked import why_unmarked
from common._xnnpack_graph import XNNPACK, XnnpackNode, debug_handles, read_xnnpack
from common.graph_utils import is_qdq, short

INT8 = "int8"
STOPS = "lowering fails at it, or at an op like it"
_NOT_AN_OP = re.compile(r"getitem|alloc|sym_\w+|_assert\w*|_guards_fn|executorch_call_delegate")


@dataclass(frozen=True)
class ReportedOp:
    """One op of the exported model.

    Attributes:
        name: of its node in the exported program.
        op: short name of the op.
        module: path of the submodule that it belongs to; empty for a call in ``forward``.
        line: the line of the model's source; None where the trace holds torch's own lines only.
        annotated: whether the quantizer marked it; None where nothing was quantized, and of an op
            that was folded into another one before, as a BatchNorm.
        unmarked: why it did not, from its own rules; empty where it did.
        delegates: numbers of the delegates that compute it, or parts of it.
        computes: what it is computed in inside of them, ``int8``, ``float32`` or both.
        outside: ops that a portable kernel computes for it, as the Edge dialect names them.
        why: the partitioner's reasons for these; where lowering failed at it, this.
        advice: what to try, where something is known.
    """

    name: str
    op: str
    module: str
    line: SourceLine | None
    annotated: bool | None
    unmarked: str
    delegates: tuple[int, ...]
    computes: tuple[str, ...]
    outside: tuple[str, ...]
    why: tuple[str, ...]
    advice: Advice | None

    @property
    def place(self) -> str:
        """Where it is computed, and in what: ``int8 in delegate 0``."""
        parts = []
        if self.delegates:
            numbers = ", ".join(map(str, self.delegates))
            plural = "s" if len(self.delegates) > 1 else ""
            computes = " and ".join(self.computes)
            parts.append(f"{computes} in delegate{plural} {numbers}".strip())
        if self.outside:
            parts.append(f"outside: {', '.join(dict.fromkeys(self.outside))}")
        return "; ".join(parts) or "nothing is left to compute"


@dataclass(frozen=True)
class Border:
    """A tensor that goes from a delegate to what is outside of it, or to another one.

    Attributes:
        source: what computes it: ``delegate 0``, or the name of an op.
        target: what reads it.
        dtype: ``float32``.
        shape: sizes; of a dynamic dimension the largest is not known here, and its name stands.
        bytes: of the tensor; 0 where a dimension is dynamic.
    """

    source: str
    target: str
    dtype: str
    shape: tuple[int | str, ...]
    bytes: int


@dataclass
class _Fate:
    """What has been found for one op."""

    delegates: dict[int, None] = field(default_factory=dict)
    computes: dict[str, None] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    why: dict[str, None] = field(default_factory=dict)


def op_rows(
    program: torch.export.ExportedProgram,
    qdq: fx.GraphModule | None,
    edge: Any,
    refused: Sequence[Refusal],
) -> tuple[ReportedOp, ...]:
    """Follow each op of a model into a lowered program.

    Args:
        program: the exported model.
        qdq: what it was quantized to, if it was.
        edge: what ``lower_to_xnnpack`` returned first.
        refused: the partitioner's answers meanwhile.
    """
    lowered = edge.exported_program()
    names = _op_names(program)
    fates = {name: _Fate() for name in names}
    for number, (inside, blob) in enumerate(_delegates(lowered)):
        types = _types(inside, blob)
        for node in inside.nodes:
            origin = _origin(node, names)
            if origin is not None and _is_op(node) and not is_qdq(node):
                fates[origin].delegates[number] = None
                if found := types.get(node):
                    fates[origin].computes[found] = None
    said = _reasons(refused, names)
    for node in lowered.graph.nodes:
        origin = _origin_outside(node, names) if _is_op(node) else None
        if origin is not None:
            fates[origin].outside.append(_edge_name(node))
            _add_reasons(fates[origin], origin, node, said)
    _add_early_reasons(fates, refused, names)
    return _rows(program, qdq, fates)


def asked_rows(
    program: torch.export.ExportedProgram,
    qdq: fx.GraphModule | None,
    asked: Partitioned,
    failure: str,
) -> tuple[ReportedOp, ...]:
    """Do the same where nothing was lowered, with what the partitioner would take.

    Args:
        program: the exported model.
        qdq: what it was quantized to, if it was.
        asked: the partitioner's answer.
        failure: what lowering raised; ops that it names are given it as a reason.
    """
    names = _op_names(program)
    fates = {name: _Fate() for name in names}
    said = _reasons(asked.refusals, names)
    tags: dict[str, int] = {}
    for node in asked.program.graph.nodes:
        origin = _origin_outside(node, names) if _is_op(node) else None
        if origin is None:
            continue
        if node.name in asked.taken:
            if not is_qdq(node):
                number = tags.setdefault(str(node.meta.get("delegation_tag")), len(tags))
                fates[origin].delegates[number] = None
        else:
            fates[origin].outside.append(_edge_name(node))
            _add_reasons(fates[origin], origin, node, said)
        if _is_named(node, failure, taken=node.name in asked.taken):
            fates[origin].why[STOPS] = None
    _add_early_reasons(fates, asked.refusals, names)
    return _rows(program, qdq, fates)


def unplaced(edge: Any, program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Name the ops outside of every delegate that belong to no op of the model."""
    names = _op_names(program)
    nodes = edge.exported_program().graph.nodes
    return tuple(n.name for n in nodes if _is_op(n) and _origin_outside(n, names) is None)


def borders(edge: Any) -> tuple[Border, ...]:
    """List the tensors that enter or leave a delegate in the middle of a program."""
    graph = edge.exported_program().graph
    made_by = producers(graph)
    numbers: dict[fx.Node, int] = {}
    found = []
    for node in graph.nodes:
        if is_delegate(node):
            numbers[node] = len(numbers)
        if node.op != "call_function" or short(node.target) in ("getitem", "alloc"):
            continue
        for value in node.all_input_nodes:
            source = made_by.get(value, node)
            if source is node or not (is_delegate(source) or is_delegate(node)):
                continue
            tensor = value.meta.get("val")
            if isinstance(tensor, torch.Tensor):
                source_name, name = _place_name(source, numbers), _place_name(node, numbers)
                found.append(_border(source_name, name, tensor))
    return tuple(found)


def producers(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return for each value of a lowered graph the op or delegate that computes it.

    An op with several outputs writes them into what ``alloc`` has made, and its readers read that.
    """
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function" or short(node.target) == "alloc":
            continue
        if short(node.target) == "getitem":
            source = node.all_input_nodes[0]
            if source in found:
                found[node] = found[source]
            continue
        found[node] = node
        written = [*node.kwargs.values(), *node.args]
        for value in written:
            if isinstance(value, fx.Node) and _is_alloc(value):
                found[value] = node
    return found


def _is_alloc(node: fx.Node) -> bool:
    return node.op == "call_function" and short(node.target) == "alloc"


# --- from a lowered node to the model's


def _op_names(program: torch.export.ExportedProgram) -> dict[str, fx.Node]:
    return {node.name: node for node in program.graph.nodes if _is_op(node)}


def _is_op(node: fx.Node) -> bool:
    return node.op == "call_function" and not _NOT_AN_OP.fullmatch(short(node.target))


def _origin(node: fx.Node, names: Mapping[str, Any]) -> str | None:
    """Return the op of the model that a node was made from, by torch's record of its passes."""
    chain = [node.name]
    sources = node.meta.get("from_node")
    while sources:
        source = sources[0]
        chain.append(source.name)
        sources = source.from_node
    # the oldest name is that of the model's own graph; younger ones may mean another op there
    return chain[-1] if chain[-1] in names else None


def _origin_outside(node: fx.Node, names: Mapping[str, Any]) -> str | None:
    """Return the origin of a node; of one that a pass has added, that of its neighbour."""
    nearest: list[fx.Node] = [node]
    for _ in range(4):
        for near in nearest:
            if (found := _origin(near, names)) is not None:
                return found
        nearest = [n for near in nearest for n in (*near.all_input_nodes, *near.users)]
    return None


def _edge_name(node: fx.Node) -> str:
    """Name an op without its dialect: an Edge op calls itself ``aten.cumsum.default``."""
    name = str(getattr(node.target, "__name__", ""))
    return name.split(".")[1] if name.count(".") > 1 else short(node.target)


def _unsaid(name: str) -> str:
    """Say why an op was refused without a reason; memory planning keeps its node's name only."""
    op = re.sub(r"_\d+$", "", name)
    known = {f"aten_{rule.replace('.', '_').lower()}" for rule in rules()}
    return "refused without a reason" if op in known else NO_RULE


def _reasons(
    refused: Sequence[Refusal], names: Mapping[str, Any]
) -> Mapping[tuple[str, str], dict[str, None]]:
    """Return what was said by the op of the model and the op that it became.

    Not by the node: ``to_executorch`` numbers nodes anew.
    """
    said: dict[tuple[str, str], dict[str, None]] = {}
    for refusal in refused:
        origin = _origin_outside(refusal.node, names)
        if origin is not None:
            said.setdefault((origin, _edge_name(refusal.node)), {})[refusal.reason] = None
    return said


def _add_reasons(
    fate: _Fate, origin: str, node: fx.Node, said: Mapping[tuple[str, str], dict[str, None]]
) -> None:
    fate.why.update(said.get((origin, _edge_name(node))) or {_unsaid(node.name): None})


def _add_early_reasons(
    fates: Mapping[str, _Fate], refused: Sequence[Refusal], names: Mapping[str, Any]
) -> None:
    """Add what was said of an op before it was decomposed, where part of it is outside."""
    for refusal in refused:
        origin = _origin(refusal.node, names)
        if origin is not None and fates[origin].outside:
            fates[origin].why.setdefault(refusal.reason)
    for fate in fates.values():
        if len(fate.why) > 1:
            fate.why.pop(NO_RULE, None)


def _is_named(node: fx.Node, failure: str, *, taken: bool) -> bool:
    """Whether an error is about ops like this one.

    XNNPACK names what it has taken ``amax.default``, and ExecuTorch what is outside ``aten::amax``.
    """
    if not taken:
        return re.search(rf"aten::{_edge_name(node)}\b", failure) is not None
    full = str(getattr(node.target, "__name__", "")).partition(".")[2]
    full = "amax.default" if full == "max.dim" else full  # as XNNPACK rewrites it
    return bool(full) and re.search(rf"\b{re.escape(full)}\b", failure) is not None


def _rows(
    program: torch.export.ExportedProgram, qdq: fx.GraphModule | None, fates: Mapping[str, _Fate]
) -> tuple[ReportedOp, ...]:
    nodes: list[fx.Node] = []
    if qdq is not None:
        nodes = [node for node in qdq.graph.nodes if node.op == "call_function"]
    # of what is quantized at run time all values stay float32
    static = qdq is not None and not any("choose_qparams" in short(n.target) for n in nodes)
    there, marked = {n.name for n in nodes}, {n.name for n in nodes if _is_annotated(n)}
    rows = []
    for name, node in _op_names(program).items():
        fate = fates[name]
        advice = None
        if fate.outside:
            advice = advice_for(node, OUTSIDE)
        elif static and FLOAT in fate.computes:
            advice = advice_for(node, FLOAT)
        rows.append(
            ReportedOp(
                name,
                short(node.target),
                _module(node),
                line_of(node),
                name in marked if name in there else None,
                "" if name in marked or name not in there else why_unmarked(node, marked),
                tuple(fate.delegates),
                tuple(fate.computes),
                tuple(fate.outside),
                tuple(fate.why),
                advice,
            )
        )
    return tuple(rows)


def _is_annotated(node: fx.Node) -> bool:
    return bool(getattr(node.meta.get("quantization_annotation"), "_annotated", False))


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    return paths[-1] if paths else ""


# --- inside of delegates


def _delegates(lowered: torch.export.ExportedProgram) -> Iterator[tuple[fx.Graph, bytes]]:
    """Yield for each delegate, in the order of execution, its graph and XNNPACK's bytes."""
    for node in lowered.graph.nodes:
        if is_delegate(node):
            module = getattr(lowered.graph_module, str(node.args[0].target))
            blob = module.processed_bytes if module.backend_id == XNNPACK else b""
            yield module.original_module.graph, blob


def _types(inside: fx.Graph, blob: bytes) -> dict[fx.Node, str]:
    """Tell what XNNPACK computes each node of a delegate in.

    XNNPACK's nodes carry the number of the node that they were made for. One that was fused into
    the node before it, as a ReLU, has none, and is computed in what that one is.
    """
    by_handle: dict[int, list[XnnpackNode]] = {}
    if blob:
        for handle, node in zip(debug_handles(blob), read_xnnpack(blob).nodes, strict=True):
            by_handle.setdefault(handle, []).append(node)
    found: dict[fx.Node, str] = {}
    for node in inside.nodes:
        if node.op != "call_function":
            continue
        made = by_handle.get(node.meta.get("debug_handle", -1), [])
        made = [n for n in made if n.kind != "Convert"]  # a border of int8, not the op
        if made and not is_qdq(node):
            found[node] = _type(made)
            continue
        before = [found[n] for n in node.all_input_nodes if n in found]
        if before:
            found[node] = before[0]
    return found


def _type(nodes: Sequence[XnnpackNode]) -> str:
    types = {tensor.dtype for node in nodes for tensor in (*node.inputs, *node.outputs)}
    return INT8 if INT8 in types else FLOAT


# --- borders


def _place_name(node: fx.Node, numbers: Mapping[fx.Node, int]) -> str:
    return f"delegate {numbers[node]}" if node in numbers else _edge_name(node)


def _border(source: str, target: str, tensor: torch.Tensor) -> Border:
    shape: list[int | str] = [s if type(s) is int else str(s) for s in tensor.shape]
    sizes = [size for size in shape if isinstance(size, int)]
    size = math.prod(sizes) * tensor.dtype.itemsize if len(sizes) == len(shape) else 0
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Border(source, target, dtype, tuple(shape), size)
