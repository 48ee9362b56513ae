"""Time `draw` on a large graph: the whole of it, and a neighbourhood.

    python tools/bench_viz.py [--nodes 500] [--repeats 7]

Prints the best and the median of the repeats in seconds. The budget for 500 nodes is 0.5 s.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import fx, nn

from common.viz import Drawing, draw


def residual_chain(nodes: int) -> fx.GraphModule:
    """Return a graph of about ``nodes`` nodes: convolutions with weights, ReLU, residual adds."""
    root = nn.Module()
    graph = fx.Graph()
    x = graph.placeholder("x")
    while len(graph.nodes) < nodes - 1:
        name = f"weight_{len(graph.nodes)}"
        root.register_buffer(name, torch.zeros(3, 3, 1, 1))
        weight = graph.create_node("get_attr", name)
        y = graph.call_function(torch.ops.aten.conv2d.default, (x, weight))
        y = graph.call_function(torch.ops.aten.relu.default, (y,))
        x = graph.call_function(torch.ops.aten.add.Tensor, (x, y))
    graph.output(x)
    return fx.GraphModule(root, graph)


def main() -> None:
    """Read the options, time, print one line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    gm = residual_chain(options.nodes)
    middle = [node.name for node in gm.graph.nodes if node.op == "call_function"]
    focus = middle[len(middle) // 2]
    notes = {node.name: "註解 note" for node in list(gm.graph.nodes)[::5]}
    cases: dict[str, Callable[[], Drawing]] = {
        "whole": lambda: draw(gm, max_nodes=2 * options.nodes, notes=notes, show_shapes=True),
        "focus": lambda: draw(gm, focus=focus),
    }
    for case, run in cases.items():
        drawing = run()
        seconds: list[float] = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        print(
            f"draw {case}: {len(drawing.nodes)} of {len(gm.graph.nodes)} nodes, "
            f"best {min(seconds):.3f} s, median {statistics.median(seconds):.3f} s, {drawing!r}"
        )


if __name__ == "__main__":
    main()
