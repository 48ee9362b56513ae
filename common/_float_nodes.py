"""Only float32 is quantized: integer arithmetic in a model stays as it is.

``XNNPACKQuantizer`` annotates every ``add``, ``mul``, ``cat`` and what follows them, and turns the
number in ``ids + 1`` into a float tensor. Indices then arrive at an embedding as floats, and an
observer gets integers, for which it has no histogram.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from common._journal import note

_KEY = "quantization_annotation"


class FloatNodesOnly:
    """A quantizer that leaves nodes alone which read or return another dtype than float32.

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
        left: set[fx.Node] = set()
        while taken := {node for node in model.graph.nodes if _is_to_be_left(node, left)}:
            for node in taken:
                del node.meta[_KEY]
                note(
                    "The quantizer had annotated ops on integers or next to them; they were left "
                    "as they are."
                )
            left |= taken
        return model


def _is_to_be_left(node: fx.Node, left: set[fx.Node]) -> bool:
    annotation = node.meta.get(_KEY)
    if annotation is None:
        return False
    read = list(getattr(annotation, "input_qspec_map", None) or ())
    if not all(_is_float32(n) for n in (node, *read)):
        return True
    # Two nodes may share one range: without the first, the second has none.
    specs = [*(annotation.input_qspec_map or {}).values(), annotation.output_qspec]
    return any(_shared_nodes(spec) & left for spec in specs)


def _shared_nodes(spec: Any) -> set[fx.Node]:
    shared = getattr(spec, "edge_or_node", None)
    return set(shared) if isinstance(shared, tuple) else {shared} if shared is not None else set()


def _is_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype == torch.float32
