"""XNNPACK's partitioner, without two of its faults that give silently wrong programs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch
from torch import fx

from common._journal import step
from common.graph_utils import is_qdq, short


def partitioner() -> Any:
    """Return the partitioner; it says when it is asked."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    class Partitioner(XnnpackPartitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            with step("partition"), _only_taken_nodes_marked():
                return super().partition(exported_program)

    return Partitioner()


@contextlib.contextmanager
def _only_taken_nodes_marked() -> Generator[None, None, None]:
    """Let the rule for matrix products mark the nodes around those that it takes, and no others.

    It marks a dequantize node as part of a quantized product before it knows whether it takes the
    product. Of ``a @ b`` with a computed ``b``, which it refuses, ``a`` then leaves the delegate
    as zeros: nothing writes it.
    """
    from executorch.backends.xnnpack.partition.config import gemm_configs

    mark = gemm_configs.tag_as_implicit_q_dq
    original: Any = gemm_configs.GEMMConfig.get_deps

    def get_deps(self: Any, node: fx.Node, program: Any) -> tuple[bool, list[fx.Node]]:
        taken, around = original(self, node, program)
        for other in around if taken else ():
            if is_qdq(other):
                mark(other)
        return taken, around

    with (
        mock.patch.object(gemm_configs, "tag_as_implicit_q_dq"),
        mock.patch.object(gemm_configs.GEMMConfig, "get_deps", get_deps),
    ):
        yield


def one_reader_each(program: torch.export.ExportedProgram) -> None:
    """Give each reader of a dequantized activation a dequantize node of its own.

    Where one reader wants channels last, as pooling does, XNNPACK's passes turn the layout for
    all: a value that is an output as well comes out in another shape.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if not (is_qdq(node) and short(node.target).startswith("dequantize")):
            continue
        if not (isinstance(node.args[0], fx.Node) and is_qdq(node.args[0])):
            continue
        for user in list(node.users)[1:]:
            with graph.inserting_after(node):
                copy = graph.node_copy(node)
            user.replace_input_with(node, copy)
            for spec in program.graph_signature.output_specs:
                if user.op == "output" and spec.arg.name == node.name:
                    spec.arg.name = copy.name
    program.graph_module.recompile()
