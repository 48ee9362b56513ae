"""Where the error of a Q/DQ graph arises: SQNR of every layer, from input to output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from common._table import ShownAsTable, Table, table
from common.graph_utils import fx_graph, is_qdq, short
from common.pt2e import check_eval, export_graph

__all__ = ["LayerErrors", "LayerSqnr", "layer_sqnr"]


@dataclass(frozen=True)
class LayerSqnr:
    """The error of one node of a Q/DQ graph.

    Attributes:
        name: of the node, the same in both graphs.
        op: short name of the op.
        module: path of the submodule that the node comes from, empty for a call in ``forward``.
        sqnr_db: decibels against the float32 model, all batches together.
        quantized: whether the output is quantized; ``sqnr_db`` then includes that rounding.
    """

    name: str
    op: str
    module: str
    sqnr_db: float
    quantized: bool


@dataclass(frozen=True, repr=False)
class LayerErrors(ShownAsTable):
    """What ``layer_sqnr`` returns: the layers in the order of execution.

    ``str(errors)`` is a table; Jupyter shows it as one.
    """

    layers: tuple[LayerSqnr, ...]

    @property
    def worst(self) -> LayerSqnr:
        """The layer with the lowest SQNR."""
        return min(self.layers, key=lambda layer: layer.sqnr_db)

    def __repr__(self) -> str:
        worst = self.worst
        return f"LayerErrors({len(self.layers)} layers, worst {worst.name} {worst.sqnr_db:.1f} dB)"

    def _table(self) -> Table:
        rows = [
            (e.name, e.module or "-", "yes" if e.quantized else "no", f"{e.sqnr_db:.1f} dB")
            for e in self.layers
        ]
        return table(rows, ["node", "module", "quantized", "SQNR"])


def layer_sqnr(
    model: torch.nn.Module, qdq: fx.GraphModule, batches: Iterable[tuple[Any, ...]]
) -> LayerErrors:
    """Compare every layer of a Q/DQ graph with the same layer of the float32 model.

    Both run on the same inputs, so the error of a layer includes what the layers before it did:
    the value judged is the one that the next layer receives, after quantize and dequantize where
    the output is quantized. A convolution into which BatchNorm was folded is compared with the
    output of that BatchNorm. Nodes are matched by name, which exporting the same model again
    reproduces.

    Args:
        model: the float32 model that ``qdq`` was made from, in ``eval()`` mode, or its exported
            graph.
        qdq: the result of ``xnnpack_ptq`` or ``convert_pt2e``.
        batches: input tuples, all with the shapes that ``qdq`` accepts. Memory holds the layers
            of one batch.

    Returns:
        One entry for every op with a float output that both graphs have; ``inf`` where they agree
        exactly.

    Raises:
        TypeError: a batch is not a tuple, or ``qdq`` has no FX graph.
        ValueError: there is no batch, the model is in training mode, or the graphs have no op in
            common.

    Example:
        >>> from common.data import calibration_batches, trained_tiny_net
        >>> from common.executorch_utils import xnnpack_ptq
        >>> from common.models import example_inputs
        >>> model = trained_tiny_net()
        >>> qdq = xnnpack_ptq(model, example_inputs(1))
        >>> errors = layer_sqnr(model, qdq, calibration_batches(1, images=4))
        >>> [layer.name for layer in errors.layers if layer.module == "fc"]
        ['linear']
    """
    check_eval(model)
    quantized = fx_graph(qdq)
    sums: dict[str, list[float]] = {}
    pairs: dict[str, tuple[fx.Node, fx.Node, fx.Node]] = {}
    reference: fx.GraphModule | None = model if isinstance(model, fx.GraphModule) else None
    for n, batch in enumerate(batches):
        if not isinstance(batch, tuple):
            raise TypeError(
                f"batch {n}: expected a tuple of inputs, got {type(batch).__name__}. "
                "Write (x,) for one tensor."
            )
        if reference is None:
            reference = export_graph(model, batch)
        if not pairs:
            pairs = _pairs(reference.graph, quantized)
        exact = _values(reference, {ref for _, ref, _ in pairs.values()}, batch)
        rounded = _values(qdq, {value for _, _, value in pairs.values()}, batch)
        for name, (_, ref, value) in pairs.items():
            _add_powers(sums, name, exact[ref], rounded[value])
    if reference is None:
        raise ValueError("batches: expected at least one tuple of inputs, got none")
    if not sums:
        raise ValueError(
            "the two graphs have no op in common: pass the model that the Q/DQ graph was made from"
        )
    return LayerErrors(
        tuple(
            LayerSqnr(
                name,
                short(op.target),
                _module(op),
                _decibel(*sums[name]),
                quantized=value is not op,
            )
            for name, (op, _, value) in pairs.items()
            if name in sums
        )
    )


def _pairs(reference: fx.Graph, quantized: fx.Graph) -> dict[str, tuple[fx.Node, fx.Node, fx.Node]]:
    """Return ``{name: (op, its float32 node, the node that holds its value)}``."""
    by_name = {node.name: node for node in reference.nodes if node.op == "call_function"}
    names = {node.name for node in quantized.nodes}
    pairs = {}
    for op in quantized.nodes:
        ref = by_name.get(op.name)
        if op.op != "call_function" or is_qdq(op) or ref is None:
            continue
        user = next(iter(ref.users), None)
        if len(ref.users) == 1 and user is not None and _is_folded(user, names):
            ref = user
        pairs[op.name] = (op, ref, _value_of(op))
    return pairs


def _is_folded(user: fx.Node, names: set[str]) -> bool:
    return "batch_norm" in short(user.target) and user.name not in names


def _value_of(op: fx.Node) -> fx.Node:
    """Return the dequantize node behind an op, or the op itself where its output stays float."""
    for q in filter(is_qdq, op.users):
        for dq in filter(is_qdq, q.users):
            return dq
    return op


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    return paths[-1] if paths else ""


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps the values of some of its nodes."""

    def __init__(self, gm: fx.GraphModule, wanted: set[fx.Node]) -> None:
        super().__init__(gm)
        self._wanted = wanted
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self._wanted:
            self.values[n] = result
        return result


def _values(
    gm: fx.GraphModule, wanted: set[fx.Node], batch: tuple[Any, ...]
) -> Mapping[fx.Node, Any]:
    recorder = _Recorder(gm, wanted)
    with torch.no_grad():
        # flat, so that keyword inputs and containers of inputs find their places
        recorder.run(*pytree.tree_leaves(batch), enable_io_processing=False)
    return recorder.values


def _add_powers(sums: dict[str, list[float]], name: str, exact: Any, rounded: Any) -> None:
    if not (isinstance(exact, torch.Tensor) and isinstance(rounded, torch.Tensor)):
        return  # several outputs: the getitem nodes behind the op are compared
    if not exact.is_floating_point() or exact.shape != rounded.shape:
        return
    signal, result = exact.double(), rounded.double()
    powers = sums.setdefault(name, [0.0, 0.0])
    powers[0] += signal.square().sum().item()
    powers[1] += (signal - result).square().sum().item()


def _decibel(signal: float, noise: float) -> float:
    if not math.isfinite(signal + noise):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
