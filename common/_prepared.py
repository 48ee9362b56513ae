"""Does ``prepare_pt2e`` leave a model as it was? It should add observers and nothing else.

torchao folds each BatchNorm into the layer in front of it by changing that layer's weights. Where
the layer or its weights are used a second time (two BatchNorms behind one convolution, a
convolution whose output is read besides, tied weights), that use gets the changed weights too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._errors import QuantizationError
from common.graph_utils import short
from common.metrics import sqnr_db

LEAST_DB = 40.0
"""Folding a BatchNorm correctly leaves more than 100 dB."""


def run_float(call: Callable[[], Any]) -> list[Any]:
    """Run a graph with a seed of its own, and return its outputs as a flat list."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        outputs = pytree.tree_leaves(call())
    return [y.clone() if isinstance(y, torch.Tensor) else y for y in outputs]


def folded_twice(graph: fx.GraphModule) -> list[str]:
    """Name the layers in front of a BatchNorm that something else uses as well."""
    found = []
    for node in graph.graph.nodes:
        if node.op != "call_function" or "batch_norm" not in short(node.target):
            continue
        layer = node.args[0]
        if not isinstance(layer, fx.Node) or not short(layer.target).startswith(("conv", "linear")):
            continue
        weight = layer.args[1]
        if not isinstance(weight, fx.Node):
            continue
        if len(layer.users) > 1 or len(weight.users) > 1:
            found.append(str(weight.target).rpartition(".")[0] or str(weight.target))
    return sorted(set(found))


def check_unchanged(before: list[Any], after: list[Any], folded: list[str]) -> None:
    """Compare the outputs of a graph before and after ``prepare_pt2e``, on one batch.

    Raises:
        QuantizationError: naming the output, its SQNR, and the layers that are likely the cause.
    """
    for i, (expected, actual) in enumerate(zip(before, after, strict=True)):
        if not isinstance(expected, torch.Tensor) or not expected.numel():
            continue
        a, b = (_numbers(y) for y in (expected, actual))
        finite = torch.isfinite(a)
        a, b = a[finite], b[finite]
        # NaN in b makes the SQNR NaN: the comparison is written so that this counts as changed
        if torch.equal(a, b) or (sqnr := sqnr_db(a, b)) >= LEAST_DB:
            continue
        which = f" ({', '.join(folded)})" if folded else ""
        raise QuantizationError(
            f"preparing the model for quantization changed what it computes: output {i} keeps "
            f"{sqnr:.1f} dB. torchao folds a BatchNorm into the layer in front of it{which}, and "
            "what else uses this layer or its weights then gets the folded ones. Give each "
            "BatchNorm a layer of its own: copy.deepcopy(layer)."
        )


def _numbers(y: torch.Tensor) -> torch.Tensor:
    y = y.detach()
    return (torch.view_as_real(y.resolve_conj()) if y.is_complex() else y).double().flatten()
