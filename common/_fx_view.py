"""What a picture of an FX graph shows: which nodes, in which role, with which words.

Reads graphs by duck typing and imports no ExecuTorch: a delegate is known by its call, a lifted
parameter by the program's signature.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import fx

from common.graph_utils import fx_graph, is_qdq, short

_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
}
_PLUMBING = re.compile(r"getitem|alloc|sym_\w+|_assert\w*|aten__assert\w*")
_PURPOSES = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "var"}
_LISTED_OP_KINDS = 8
_SHOWN_CANDIDATES = 5


class Role(StrEnum):
    """What a node is for the reader of a picture."""

    INPUT = "input"
    QUANTIZE = "quantize"
    DEQUANTIZE = "dequantize"
    OP = "op"
    OBSERVER = "observer"
    WEIGHT = "weight"
    DELEGATE = "delegate"
    FALLBACK = "fallback"
    PLUMBING = "plumbing"
    OUTPUT = "output"


@dataclass(frozen=True)
class Box:
    """One drawn node: the name to ask for, the words in it, and where its values come from.

    ``constant`` tells that nothing but constants flows into it; ``cut_in`` and ``cut_out`` count
    the edges to nodes that are not drawn.
    """

    name: str
    role: Role
    head: str
    details: tuple[str, ...]
    inputs: tuple[str, ...]
    note: str = ""
    constant: bool = False
    focused: bool = False
    cut_in: int = 0
    cut_out: int = 0


@dataclass(frozen=True)
class View:
    """The drawn part of a graph, in the order of execution."""

    boxes: tuple[Box, ...]
    total: int
    focus: tuple[str, ...] = ()
    hops: int = 0

    @property
    def edges(self) -> list[tuple[str, str]]:
        return [(source, box.name) for box in self.boxes for source in box.inputs]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(box.role for box in self.boxes)
        return {role.value: found[role] for role in Role if found[role]}


@dataclass
class _Source:
    """A graph with what is needed to name its constants."""

    graph: fx.Graph
    root: Any
    lifted: Mapping[str, str] = field(default_factory=dict)


def view(
    gm: Any,
    *,
    focus: str | Iterable[str] | None,
    hops: int,
    notes: Mapping[str, Any] | None,
    show_shapes: bool,
    max_nodes: int,
) -> View:
    """Choose and describe the nodes to draw; raises the errors that ``draw`` documents."""
    source = _source(gm)
    nodes = list(source.graph.nodes)
    hidden = _machinery(nodes, source)
    shown = [node for node in nodes if node.name not in hidden]
    if not shown:
        raise ValueError("the graph has no nodes, there is nothing to draw.")
    words = _check_notes(notes, nodes, hidden)
    roles = _roles(shown, source)
    names = _check_focus(focus, shown, hidden, roles)
    if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
        raise ValueError(f"hops must be an integer of 0 or more, got {hops!r}.")
    kept = _neighbourhood(shown, hidden, names, hops) if names else {n.name for n in shown}
    if len(kept) > max_nodes:
        raise ValueError(_too_many(len(kept), max_nodes, names, hops, shown, roles))
    boxes = []
    constants: set[str] = set()
    for node in shown:
        fed = {n.name for n in node.all_input_nodes if n.name not in hidden}
        if roles[node.name] is Role.WEIGHT or (fed and fed <= constants):
            constants.add(node.name)
        if node.name not in kept:
            continue
        sources = [n.name for n in node.all_input_nodes if n.name not in hidden]
        users = [n.name for n in node.users if n.name not in hidden]
        head, details = _label(node, roles[node.name], source)
        if show_shapes and (shape := _shape(node, source)):
            details = (*details, shape)
        boxes.append(
            Box(
                name=node.name,
                role=roles[node.name],
                head=head,
                details=details,
                inputs=tuple(name for name in sources if name in kept),
                note=words.get(node.name, ""),
                constant=node.name in constants,
                focused=node.name in names,
                cut_in=sum(name not in kept for name in sources),
                cut_out=sum(name not in kept for name in users),
            )
        )
    return View(tuple(boxes), len(shown), names, hops)


# --- which nodes -----------------------------------------------------------------------------


def _source(gm: Any) -> _Source:
    exported = getattr(gm, "exported_program", None)
    if callable(exported):
        gm = exported()
    graph = fx_graph(gm)
    signature = getattr(gm, "graph_signature", None)
    lifted: dict[str, str] = {}
    for kind in ("parameters", "buffers", "lifted_tensor_constants", "lifted_custom_objs"):
        lifted.update(getattr(signature, f"inputs_to_{kind}", None) or {})
    root = getattr(gm, "graph_module", gm)
    return _Source(graph, graph.owning_module if root is graph else root, lifted)


def _is_constant(node: fx.Node, source: _Source) -> bool:
    return node.op == "get_attr" or (node.op == "placeholder" and node.name in source.lifted)


def _is_plumbing(node: fx.Node) -> bool:
    return node.op == "call_function" and _PLUMBING.fullmatch(short(node.target)) is not None


def _is_observer(node: fx.Node) -> bool:
    return node.op == "call_module" and "post_process" in str(node.target)


def is_delegate(node: fx.Node) -> bool:
    """Tell whether a node calls a lowered module."""
    return node.op == "call_function" and short(node.target) == "executorch_call_delegate"


def is_compute(node: fx.Node) -> bool:
    """Tell whether a node computes: an op that is neither q/dq nor plumbing."""
    return node.op == "call_function" and not is_qdq(node) and not _is_plumbing(node)


def _machinery(nodes: list[fx.Node], source: _Source) -> set[str]:
    """Names of the nodes that carry nothing a reader looks for."""
    hidden = {n.name for n in nodes if n.op == "call_module" and n.target == "_guards_fn"}
    for node in nodes:
        if not _is_constant(node, source):
            continue
        users = [user for user in node.users if user.name not in hidden]
        if all(
            _is_plumbing(user)
            or (is_qdq(user) and arguments(user).get("input") is not node)
            or (is_delegate(user) and user.args[0] is node)
            for user in users
        ):
            hidden.add(node.name)
    return hidden


def _neighbourhood(
    shown: list[fx.Node], hidden: set[str], names: tuple[str, ...], hops: int
) -> set[str]:
    by_name = {node.name: node for node in shown}
    kept, rim = set(names), list(names)
    for _ in range(hops):
        beyond = []
        for name in rim:
            node = by_name[name]
            for other in (*node.all_input_nodes, *node.users):
                if other.name not in kept and other.name not in hidden:
                    kept.add(other.name)
                    beyond.append(other.name)
        rim = beyond
    return kept


# --- what callers may ask for ----------------------------------------------------------------


def _check_focus(
    focus: str | Iterable[str] | None,
    shown: list[fx.Node],
    hidden: set[str],
    roles: Mapping[str, Role],
) -> tuple[str, ...]:
    if focus is None:
        return ()
    names = (focus,) if isinstance(focus, str) else tuple(focus)
    if not names:
        raise ValueError("focus is empty; give a node name, several names, or None for all nodes.")
    known = {node.name for node in shown}
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"focus takes node names (str), got {type(name).__name__}.")
        if name in known:
            continue
        if name in hidden:
            raise ValueError(f"focus: {name!r} belongs to the machinery that is not drawn.")
        raise ValueError(f"focus: the graph has no node {name!r}. {_closest(name, shown, roles)}")
    return tuple(dict.fromkeys(names))


def _check_notes(
    notes: Mapping[str, Any] | None, nodes: list[fx.Node], hidden: set[str]
) -> dict[str, str]:
    if notes is None:
        return {}
    if not isinstance(notes, Mapping):
        raise TypeError(f"notes must map node names to text, got {type(notes).__name__}.")
    known = {node.name for node in nodes}
    for name in notes:
        if name not in known:
            shown = [node for node in nodes if node.name not in hidden]
            raise ValueError(f"notes: the graph has no node {name!r}. {_closest(name, shown, {})}")
        if name in hidden:
            raise ValueError(f"notes: {name!r} belongs to the machinery that is not drawn.")
    return {name: str(text) for name, text in notes.items()}


def _closest(name: str, shown: list[fx.Node], roles: Mapping[str, Role]) -> str:
    # A reader may type what stands in the picture ("q_3") instead of the node's name.
    spoken = {_qdq_head(node): node.name for node in shown if is_qdq(node)}
    if name in spoken:
        return f"{name} in the picture is {spoken[name]}."
    names = [node.name for node in shown]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"Closest: {', '.join(near)}." if near else _candidates(shown, roles)


def _too_many(
    count: int,
    limit: int,
    names: tuple[str, ...],
    hops: int,
    shown: list[fx.Node],
    roles: Mapping[str, Role],
) -> str:
    if names:
        return (
            f"{hops} hops around {', '.join(names)} are {count} nodes, more than "
            f"max_nodes={limit}. Give fewer hops or a larger max_nodes."
        )
    return (
        f"the graph has {count} nodes to draw, more than max_nodes={limit}: too many to read. "
        f"Give focus=<node name> (and hops). {_candidates(shown, roles)}"
    )


def _candidates(shown: list[fx.Node], roles: Mapping[str, Role]) -> str:
    telling = [
        [n.name for n in shown if roles.get(n.name) in kinds]
        for kinds in ((Role.FALLBACK, Role.DELEGATE), (Role.OP,))
    ]
    ops = telling[1] or [node.name for node in shown]
    step = max(1, len(ops) // _SHOWN_CANDIDATES)
    names = [*telling[0], *ops[::step]][:_SHOWN_CANDIDATES]
    return f"For example: {', '.join(names)}."


# --- roles and words -------------------------------------------------------------------------


def _roles(shown: list[fx.Node], source: _Source) -> dict[str, Role]:
    lowered = any(is_delegate(node) for node in shown)
    return {node.name: _role(node, source, lowered) for node in shown}


def _role(node: fx.Node, source: _Source, lowered: bool) -> Role:
    if node.op == "output":
        return Role.OUTPUT
    if _is_constant(node, source):
        return Role.WEIGHT
    if node.op == "placeholder":
        return Role.INPUT
    if is_qdq(node):
        return Role.DEQUANTIZE if "dequantize" in short(node.target) else Role.QUANTIZE
    if is_delegate(node):
        return Role.DELEGATE
    if _is_plumbing(node):
        return Role.PLUMBING
    if _is_observer(node):
        return Role.OBSERVER
    return Role.FALLBACK if lowered else Role.OP


def _label(node: fx.Node, role: Role, source: _Source) -> tuple[str, tuple[str, ...]]:
    match role:
        case Role.INPUT:
            return node.name, ("input",)
        case Role.OUTPUT:
            return "output", ()
        case Role.QUANTIZE | Role.DEQUANTIZE:
            return _qdq_label(node)
        case Role.WEIGHT:
            return _weight_label(node, source)
        case Role.DELEGATE:
            return _delegate_label(node, source)
        case Role.OBSERVER:
            observer = _attribute(source.root, str(node.target))
            number = re.search(r"\d+$", node.name)
            kind = type(observer).__name__ if observer is not None else node.name
            return f"observer {number.group() if number else 0}", (kind,)
        case Role.PLUMBING:
            return node.name, ()
        case Role.OP | Role.FALLBACK:
            name = short(node.target) if node.op == "call_function" else str(node.target)
            details = ("fallback",) if role is Role.FALLBACK else ()
            # "aten_sum_dim_int_list" says "aten_sum_dim_intlist" already.
            said = name.replace("_", "").lower() in node.name.replace("_", "").lower()
            return node.name, details if said else (name, *details)


def _qdq_head(node: fx.Node) -> str:
    kind = "dq" if "dequantize" in short(node.target) else "q"
    channel = "_ch" if "per_channel" in short(node.target) else ""
    number = re.search(r"_(\d+)$", node.name)
    return f"{kind}{channel}{number.group() if number else ''}"


def _qdq_label(node: fx.Node) -> tuple[str, tuple[str, ...]]:
    given = arguments(node)
    head = f"{_qdq_head(node)} → {dtype_name(_qdq_dtype(node))}"
    if "axis" in given:
        return head, (f"axis {given['axis']}",)
    scale, zero = given.get("scale"), given.get("zero_point")
    if isinstance(scale, float | int) and isinstance(zero, int):
        return head, (f"s={scale:.3g} zp={zero}",)
    return head, ()


def _qdq_dtype(node: fx.Node) -> Any:
    given = arguments(node)
    if "dequantize" in short(node.target):
        return given.get("out_dtype") or torch.float32
    return given.get("dtype")


def _weight_label(node: fx.Node, source: _Source) -> tuple[str, tuple[str, ...]]:
    path = source.lifted.get(node.name, str(node.target))
    value = _attribute(source.root, path) if node.op == "get_attr" else node.meta.get("val")
    if isinstance(value, torch.nn.Module):
        return "subgraph", (path,)
    dtype = getattr(value, "dtype", None)
    head = f"{_purpose(node)} {dtype_name(dtype)}" if dtype is not None else _purpose(node)
    return head, (path,)


def _purpose(node: fx.Node) -> str:
    """Name a constant after the argument that it becomes: weight, bias, mean, var."""
    user = next(iter(node.users))
    value: fx.Node = node
    while user.users and (is_qdq(user) or _is_observer(user)):
        value, user = user, next(iter(user.users))
    for argument, given in arguments(user).items():
        if given is value and argument in _PURPOSES:
            return _PURPOSES[argument]
    return "const"


def _delegate_label(node: fx.Node, source: _Source) -> tuple[str, tuple[str, ...]]:
    handle = node.args[0]
    path = str(handle.target) if isinstance(handle, fx.Node) else ""
    number = re.search(r"\d+$", path)
    head = f"delegate {number.group()}" if number else node.name
    lowered = _attribute(source.root, path)
    backend = getattr(lowered, "backend_id", None)
    details = [backend] if isinstance(backend, str) else []
    inside = getattr(lowered, "original_module", None)
    if inside is None:
        return head, tuple(details)
    calls = [n for n in fx_graph(inside).nodes if n.op == "call_function"]
    coders = sum(is_qdq(n) for n in calls)
    details.append(f"{len(calls)} ops inside")
    if coders:
        details.append(f"{coders} q/dq")
    kinds = sorted(Counter(short(n.target) for n in calls if not is_qdq(n)).items())
    details += [f"{count} {kind}" for kind, count in kinds[:_LISTED_OP_KINDS]]
    if len(kinds) > _LISTED_OP_KINDS:
        details.append(f"… {len(kinds) - _LISTED_OP_KINDS} more kinds")
    return head, tuple(details)


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by their names in the op's schema."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in getattr(schema, "arguments", ())]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def dtype_name(dtype: Any) -> str:
    """Return a short dtype name.

    Example:
        >>> dtype_name(torch.int8), dtype_name(torch.bool)
        ('i8', 'bool')
    """
    return _DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def _shape(node: fx.Node, source: _Source) -> str:
    """Return ``f32[1,3,16,16]``, or an empty string where the graph does not tell."""
    if node.op == "output":
        return ""
    value = _value(node, source)
    if value is None and is_qdq(node):
        sizes = _sizes(node, source)
        return "" if sizes is None else f"{dtype_name(_qdq_dtype(node))}{_dims(sizes)}"
    return _describe(value)


def _sizes(node: Any, source: _Source) -> Any:
    # PT2E inserts q/dq without metadata: their shape is that of the operand.
    while isinstance(node, fx.Node):
        value = _value(node, source)
        if value is not None or not is_qdq(node):
            return getattr(value, "shape", None)
        node = arguments(node).get("input")
    return None


def _value(node: fx.Node, source: _Source) -> Any:
    for key in ("val", "tensor_meta"):
        if node.meta.get(key) is not None:
            return node.meta[key]
    return _attribute(source.root, str(node.target)) if node.op == "get_attr" else None


def _describe(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_describe(item) for item in value]
        return "  ".join(part for part in parts if part)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{dtype_name(value.dtype)}{_dims(value.shape)}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return str(value)
    return ""


def _dims(shape: Iterable[Any]) -> str:
    return f"[{','.join(str(size) for size in shape)}]"


def _attribute(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part, None)
        if root is None:
            return None
    return root
