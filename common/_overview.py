"""A picture of a lowered program that stays readable: one node for each delegate."""

from __future__ import annotations

from typing import Any

from torch import fx

from common._fx_view import is_delegate
from common._op_rows import producers
from common.graph_utils import short
from common.viz import Drawing, draw

MOST = 80
_LISTED = 6


def overview(edge: Any, *, title: str) -> Drawing:
    """Draw delegates and the ops between them.

    What is neither (``getitem``, ``alloc``, constants) is left out. Where that is still too much,
    the ops between two delegates become one node that names them.

    Raises:
        ValueError: there are too many delegates to draw.
    """
    lowered = edge.exported_program()
    for together in (False, True):
        gm = _condensed(lowered, together=together)
        if len(gm.graph.nodes) <= MOST:
            return draw(gm, title=title, notes=_notes(gm), show_shapes=not together)
    count = sum(is_delegate(node) for node in lowered.graph.nodes)
    raise ValueError(f"{count} delegates are too many to draw; the table has all of them.")


def _condensed(lowered: Any, *, together: bool) -> fx.GraphModule:
    """Copy the graph without plumbing; neighbours outside of delegates as one node if wanted."""
    made_by = producers(lowered.graph)
    inputs_given = set(lowered.graph_signature.user_inputs)
    graph, new = fx.Graph(), dict[fx.Node, fx.Node | None]()
    group: list[fx.Node] = []

    def close() -> None:
        if not group:
            return
        read = [value for node in group for value in node.all_input_nodes if value not in group]
        inputs, names = _mapped(read, new), [short(node.target) for node in group]
        first, alone = group[0], len(group) == 1
        made = graph.create_node(
            "call_function",
            first.target if alone else ops_outside,
            tuple(inputs),
            name=first.name if alone else "ops_outside",
        )
        if "val" in first.meta and alone:
            made.meta["val"] = first.meta["val"]
        made.meta["names"] = names
        new.update(dict.fromkeys(group, made))
        group.clear()

    for node in lowered.graph.nodes:
        if node.op == "placeholder":
            given = node.name in inputs_given
            new[node] = graph.placeholder(node.name) if given else None
        elif node.op == "get_attr":
            new[node] = None
        elif node.op == "output":
            close()
            graph.output(tuple(_mapped(node.all_input_nodes, new)))
        elif short(node.target) == "alloc":
            new[node] = None
        elif short(node.target) == "getitem":
            if made_by.get(node) in group:
                group.append(node)
            else:
                new[node] = new.get(made_by.get(node, node))
        elif is_delegate(node):
            close()
            handle = graph.get_attr(str(node.args[0].target))
            inputs = _mapped(node.all_input_nodes[1:], new)
            new[node] = graph.call_function(node.target, (handle, *inputs))
        else:
            group.append(node)
            if not together:
                close()
        made = new.get(node)
        if made is not None and "val" in node.meta:
            made.meta.setdefault("val", node.meta["val"])
    return fx.GraphModule(lowered.graph_module, graph)


def _mapped(nodes: list[fx.Node], new: dict[fx.Node, fx.Node | None]) -> list[fx.Node]:
    found = (new.get(node) for node in nodes)
    return list(dict.fromkeys(node for node in found if node is not None))


def _notes(gm: fx.GraphModule) -> dict[str, str]:
    notes = {}
    for node in gm.graph.nodes:
        names = [name for name in node.meta.get("names", ()) if name != "getitem"]
        if len(names) > 1:
            more = f", … {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            notes[node.name] = f"{len(names)} ops: {', '.join(names[:_LISTED])}{more}"
    return notes


def ops_outside(*values: Any) -> Any:
    """Stand in a picture for several ops; nobody calls it."""
    raise NotImplementedError
