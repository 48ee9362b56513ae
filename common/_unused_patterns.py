"""Lowering sooner: XNNPACK's passes look for no pattern that a graph cannot hold."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from unittest import mock

import torch
from torch import fx

from common.graph_utils import short


@contextlib.contextmanager
def without_unused_patterns(program: torch.export.ExportedProgram) -> Generator[None, None, None]:
    """Let XNNPACK's passes skip attention and bilinear upsampling where a graph has none.

    At the first lowering of a process ExecuTorch exports five small models to have their graphs as
    patterns, which takes about as long as to lower the course model. Then it searches each
    delegate for each of them.

    Args:
        program: what ``torch.export`` made, before it is lowered.
    """
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa

    graphs = [gm.graph for gm in program.graph_module.modules() if isinstance(gm, fx.GraphModule)]
    ops = {short(n.target) for graph in graphs for n in graph.nodes if n.op == "call_function"}
    with contextlib.ExitStack() as stack:
        # Attention may be written out: what all ways to write it have in common is a softmax.
        if not any("attention" in op or "softmax" in op for op in ops):
            stack.enter_context(mock.patch.object(sdpa, "get_graphs", list))
        # Written out, bilinear upsampling gathers its four neighbours by index.
        if not any("upsample" in op or "index" in op for op in ops):
            stack.enter_context(mock.patch.object(bilinear_2d, "get_graphs_dict", dict))
        yield
