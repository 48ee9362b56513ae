"""Only float32 is quantized, and layers only whose weight is fixed: the rest stays as it is.

``XNNPACKQuantizer`` annotates every ``add``, ``mul``, ``cat`` and what follows them, and turns the
number in ``ids + 1`` into a float tensor. Indices then arrive at an embedding as floats, and an
observer gets integers, for which it has no histogram.

It also takes the second argument of every ``linear`` and convolution for a stored weight. One that
is computed from an input (``F.linear(x, y)``) is then quantized at run time, by a kernel that ends
the process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from common._journal import note
from common._state import changed_in_place
from common.graph_utils import short

_KEY = "quantization_annotation"
_LAYERS = ("linear", "conv")


class FloatNodesOnly:
    """A quantizer that leaves nodes alone which read or return another dtype than float32.

    It also leaves layers alone whose weight is computed when the program runs.

    Args:
        quantizer: any PT2E quantizer; it is not changed.
    """

    def __init__(self, quantizer: Any) -> None:
        self._quantizer = quantizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quantizer, name)

    def transform_for_annotation(self, model: fx.GraphModule) -> fx.GraphModule:
        """Let the quantizer transform the graph; numbers in integer arithmetic stay numbers."""
        before = {node: node.args for node in model.graph.nodes if not _is_float32(node)}
        transformed: fx.GraphModule = self._quantizer.transform_for_annotation(model)
        if transformed is not model:
            return transformed
        for node, args in before.items():
            if node.args != args:
                added = [n for n in node.all_input_nodes if n.op == "get_attr"]
                node.args = args
                for constant in added:
                    if not constant.users:
                        model.graph.erase_node(constant)
                        delattr(model, str(constant.target))
        model.recompile()
        return model

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Let the quantizer annotate, and take back what is not for float32."""
        self._quantizer.annotate(model)
        left = _with_computed_weights(model.graph)
        if left:
            note("Layers whose weight is computed from an input stay in float32.")
        for node in left:
            del node.meta[_KEY]
        while taken := {node for node in model.graph.nodes if _is_to_be_left(node, left)}:
            if not all(map(_all_float32, taken)):
                note(
                    "The quantizer had annotated ops on integers or next to them; they were left "
                    "as they are."
                )
            for node in taken:
                del node.meta[_KEY]
            left |= taken
        return model


def _is_to_be_left(node: fx.Node, left: set[fx.Node]) -> bool:
    annotation = node.meta.get(_KEY)
    if annotation is None:
        return False
    if not _all_float32(node):
        return True
    inputs = annotation.input_qspec_map or {}
    # The ReLU of a fused pair has an output alone; its layer has the inputs.
    if not inputs and left.intersection(node.all_input_nodes):
        return True
    # Two nodes may share one range: without the first, the second has none.
    specs = [*inputs.values(), annotation.output_qspec]
    return any(_shared_nodes(spec) & left for spec in specs)


def _with_computed_weights(graph: fx.Graph) -> set[fx.Node]:
    """Return the annotated layers whose weight is not the same at every call."""
    fixed: set[fx.Node] = set()
    names = set().union(*map(changed_in_place, graph.nodes))
    state = {node.target for node in graph.nodes if node.op == "get_attr" and node.name in names}
    found = set()
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in state:
            fixed.add(node)
        if node.op != "call_function":
            continue
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        # What reads nothing, such as torch.ones, is not folded by convert_pt2e either.
        if node.all_input_nodes and fixed.issuperset(node.all_input_nodes) and not random:
            fixed.add(node)
        if node.meta.get(_KEY) is None or not short(node.target).startswith(_LAYERS):
            continue
        weight = (*node.args, None)[1]
        if isinstance(weight, fx.Node) and weight not in fixed:
            found.add(node)
    return found


def _all_float32(node: fx.Node) -> bool:
    read = getattr(node.meta[_KEY], "input_qspec_map", None) or ()
    return all(_is_float32(n) for n in (node, *read))


def _shared_nodes(spec: Any) -> set[fx.Node]:
    shared = getattr(spec, "edge_or_node", None)
    return set(shared) if isinstance(shared, tuple) else {shared} if shared is not None else set()


def _is_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype == torch.float32
