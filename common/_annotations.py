"""Quantizer annotations as short text, read by duck typing from ``node.meta``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from common._fx_view import arguments, dtype_name, is_compute
from common.graph_utils import fx_graph

_KEY = "quantization_annotation"
_ARGUMENTS = {"weight": "w", "bias": "bias"}


def annotation_notes(gm: Any, unlabeled: bool = False) -> dict[str, str]:
    """Describe what a quantizer wrote on the nodes of a graph.

    Run it after ``quantizer.annotate(gm)``, and give the result to ``draw(gm, notes=…)``.

    Args:
        gm: a ``GraphModule``, a ``Graph`` or an ``ExportedProgram``.
        unlabeled: also name the compute nodes that the quantizer left alone. A node between two
            ends of one fused pattern (the batch norm of conv, batch norm, ReLU) is told apart.

    Returns:
        ``{node name: text}`` in the order of the graph. ``in``, ``w`` and ``bias`` are the
        inputs, ``out`` the output; ``i8 affine`` is int8 with a zero point, ``i8 sym/ch0`` is
        symmetric with one scale per slice of axis 0, ``dyn`` is measured at run time. A fused
        pattern carries its inputs on the first node (``fused to relu``) and its output on the
        last (``fused from conv2d``).

    Raises:
        TypeError: ``gm`` has no FX graph.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(torch.nn.ReLU())
        >>> int8 = SimpleNamespace(
        ...     dtype=torch.int8, quant_min=-128, quant_max=127, is_dynamic=False,
        ...     qscheme=torch.per_tensor_affine, ch_axis=None)
        >>> node = list(gm.graph.nodes)[1]
        >>> node.meta["quantization_annotation"] = SimpleNamespace(
        ...     _annotated=True, input_qspec_map={node.args[0]: int8}, output_qspec=int8)
        >>> annotation_notes(gm)
        {'relu': 'in: i8 affine  out: i8 affine'}
    """
    nodes = list(fx_graph(gm).nodes)
    ends = dict(_fused_pairs(nodes))
    starts = {last: first for first, last in ends.items()}
    inside = {node: (first, last) for first, last in ends.items() for node in _between(first, last)}
    notes = {}
    for node in nodes:
        note = _annotation(node)
        parts = [] if note is None else _parts(node, note)
        if node in ends:
            parts.append(f"fused to {ends[node].name}")
        if node in starts:
            parts.append(f"fused from {starts[node].name}")
        if parts:
            notes[node.name] = "  ".join(parts)
        elif unlabeled and note is None and is_compute(node):
            within = inside.get(node)
            notes[node.name] = "not annotated" + (
                f"  inside {within[0].name} … {within[1].name}" if within else ""
            )
    return notes


def _annotation(node: fx.Node) -> Any:
    note = node.meta.get(_KEY)
    return note if getattr(note, "_annotated", False) else None


def _parts(node: fx.Node, note: Any) -> list[str]:
    names = {
        value: argument for argument, value in arguments(node).items() if isinstance(value, fx.Node)
    }
    inputs: dict[tuple[str, str], int] = {}
    for source, spec in note.input_qspec_map.items():
        key = (_ARGUMENTS.get(names.get(source, ""), "in"), _spec(spec, source))
        inputs[key] = inputs.get(key, 0) + 1
    parts = [
        f"{where}: {text}" + (f" ×{count}" if count > 1 else "")
        for (where, text), count in inputs.items()
    ]
    if note.output_qspec is not None:
        parts.append(f"out: {_spec(note.output_qspec, node)}")
    said = {part.partition(": ")[2] for part in parts}
    if len(said) == 1 and len(parts) > 1 and (text := said.pop()).startswith("shared"):
        return [text]
    return parts


def _spec(spec: Any, tensor: fx.Node) -> str:
    if spec is None:
        return dtype_name(getattr(tensor.meta.get("val"), "dtype", "float"))
    partner = getattr(spec, "edge_or_node", None)
    if partner is not None:
        # An edge (a, b) stands for the tensor that a hands to b.
        owner = partner[0] if isinstance(partner, tuple) else partner
        return f"shared with {owner.name}"
    dtype = dtype_name(spec.dtype)
    low, high = getattr(spec, "quant_min", None), getattr(spec, "quant_max", None)
    if low is not None and high is not None and spec.dtype.itemsize * 8 > (high - low).bit_length():
        dtype += f"[{low}..{high}]"
    derived = getattr(spec, "derived_from", None)
    if derived is not None:
        return f"{dtype} derived"
    scheme = str(getattr(spec, "qscheme", ""))
    words = [dtype]
    if "symmetric" in scheme or "affine" in scheme:
        words.append("sym" if "symmetric" in scheme else "affine")
    axis = getattr(spec, "ch_axis", None)
    if "per_channel" in scheme and axis is not None:
        words[-1] += f"/ch{axis}"
    if isinstance(getattr(spec, "scale", None), float):
        words.append(f"s={spec.scale:.3g} zp={spec.zero_point}")
    if getattr(spec, "is_dynamic", False):
        words.append("dyn")
    return " ".join(words)


def _fused_pairs(nodes: list[fx.Node]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Find patterns whose inputs are annotated on one node and whose output on a later one."""
    for first in nodes:
        note = _annotation(first)
        if note is None or note.output_qspec is not None or not note.input_qspec_map:
            continue
        last = first
        while len(last.users) == 1:
            last = next(iter(last.users))
            end = _annotation(last)
            if end is not None:
                if end.output_qspec is not None and not end.input_qspec_map:
                    yield first, last
                break


def _between(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    node = next(iter(first.users))
    while node is not last:
        yield node
        node = next(iter(node.users))
