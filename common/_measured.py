"""The parts of a report that run something: verification, layers, accuracy, latency."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._isolated import check_isolated
from common._pte_file import read_description
from common._reported import FP32_PTE, INT8_PTE, Accuracy
from common._runner import PteRunner
from common._signature import Inputs, call
from common.graph_utils import short
from common.layers import LayerErrors
from common.metrics import accuracy
from common.timing import Comparison, compare

FEW, MANY = 4, 16
"""Inputs that are compared: of large models, and of small ones."""
_ROUNDS = 15


class Kept:
    """An iterable that keeps the first items it hands out.

    Attributes:
        first: up to ``MANY`` of them.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self.first: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            if len(self.first) < MANY:
                self.first.append(item)
            yield item


def loaded(pte: bytes) -> PteRunner:
    """Load a program; on Linux another process has tried it before."""
    if sys.platform == "linux":  # elsewhere it takes longer than to lower a small model
        check_isolated(pte, read_description(pte), "forward", may_fail=True)
    return PteRunner(pte)


def labelled_batches(labelled: Any, example: Inputs) -> tuple[list[tuple[Any, ...]], torch.Tensor]:
    """Cut labelled data into batches of the example's size.

    Raises:
        TypeError, ValueError: they are no pair of tensors, or do not fit the example.
    """
    wrong = "labelled: expected a pair (inputs, labels): a tensor, or a tuple of one for each input"
    if not isinstance(labelled, tuple) or len(labelled) != 2:
        raise TypeError(f"{wrong}, and a tensor of classes; got {type(labelled).__name__}")
    inputs, labels = labelled
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(labels, torch.Tensor) or labels.dim() != 1 or labels.is_floating_point():
        raise TypeError("labelled: expected labels as a tensor (N,) of integers")
    wanted = pytree.tree_leaves(example)
    if example.kwargs or len(inputs) != len(wanted):
        raise ValueError(f"labelled: the model takes {len(wanted)} inputs, got {len(inputs)}")
    if not all(isinstance(x, torch.Tensor) and x.dim() for x in (*inputs, *wanted)):
        raise TypeError(wrong)
    size = wanted[0].shape[0]
    count = min(len(labels), *(len(x) for x in inputs)) // size * size
    if not count:
        raise ValueError(f"labelled: {len(labels)} inputs fill no batch of {size}")
    parts = [x[:count].split(size) for x in inputs]
    return list(zip(*parts, strict=True)), labels[:count]


def accuracies(
    graph: fx.GraphModule, qdq: fx.GraphModule, runner: PteRunner, labelled: Any, example: Inputs
) -> Accuracy:
    """Count right answers of the model, of its Q/DQ graph and of its program."""
    batches, labels = labelled_batches(labelled, example)
    size = len(labels) // len(batches)
    numbers = torch.arange(len(batches)).repeat_interleave(size)

    def share(model: Any) -> float:
        def scores(batch: torch.Tensor) -> torch.Tensor:
            found = pytree.tree_leaves(model(*batches[int(batch[0])]))[0]
            if found.dim() != 2 or len(found) != size:
                raise ValueError(
                    f"accuracy: expected scores ({size}, classes) as the first output, got shape "
                    f"{tuple(found.shape)}"
                )
            return found

        return accuracy(scores, numbers, labels, batch=size)

    return Accuracy(share(graph), share(qdq), share(runner), len(labels))


def of_ops(errors: LayerErrors, graph: fx.GraphModule) -> LayerErrors:
    """Name an output of an op with several, ``getitem_2``, after the op: ``max_1[0]``."""
    nodes = {node.name: node for node in graph.graph.nodes}
    layers = []
    for layer in errors.layers:
        node = nodes.get(layer.name)
        if node is not None and short(node.target) == "getitem":
            source, index = node.args
            assert isinstance(source, fx.Node)
            layer = replace(layer, name=f"{source.name}[{index}]", op=short(source.target))
        layers.append(layer)
    return LayerErrors(tuple(layers))


def latency(fp32: PteRunner, int8: PteRunner, example: Inputs, *, seconds: float) -> Comparison:
    """Time two programs in turn on the same input."""
    variants = {FP32_PTE: lambda: call(fp32, example), INT8_PTE: lambda: call(int8, example)}
    return compare(variants, rounds=_ROUNDS, seconds=seconds)


def to_compare(
    labelled: Any, kept: Sequence[Any], example: Inputs, *, count: int, paired: bool
) -> list[Inputs]:
    """Choose inputs: labelled ones, which are not those of calibration, then these, or the example.

    Args:
        labelled: as `report` takes it.
        kept: batches of calibration.
        example: is used where there is nothing else.
        count: how many at most.
        paired: whether the batches of calibration are pairs ``(args, kwargs)``.
    """
    if labelled is not None:
        try:
            return [Inputs(args, {}) for args in labelled_batches(labelled, example)[0][:count]]
        except (TypeError, ValueError):
            pass  # the accuracy says so
    batches = [Inputs(*batch) if paired else Inputs(batch, {}) for batch in kept[:count]]
    return batches or [example]
