"""The `.pte` variants: fp32, int8, int8 with a channels_last input, int8 at both ends."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.runtimes.variant import Call

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tools.runtimes.networks import Network

FP32, INT8 = "fp32.pte", "int8.pte"
CHANNELS_LAST, INT8_ENDS = "int8_channels_last.pte", "int8_ends.pte"
BOTH = "int8_ends_channels_last.pte"


def build(network: Network, folder: Path, file: str) -> None:
    """Lower the network as it is, or quantize it as the lessons do and lower it in the way named.

    A program lowered with a channels_last example takes that order, with an int8 example int8.
    """
    import torch

    from common.executorch_utils import lower_to_xnnpack

    model: torch.nn.Module = network.model if file == FP32 else _quantized(network)
    (x,) = network.example
    if file in (CHANNELS_LAST, BOTH):
        x = x.to(memory_format=torch.channels_last)
    if file in (INT8_ENDS, BOTH):
        model, ends = without_float_ends(model)
        (folder / file).with_suffix(".json").write_text(json.dumps(ends))
        x = quantize(x, *ends["input"])
    (folder / file).write_bytes(lower_to_xnnpack(model, (x,)).pte)


@cache
def _quantized(network: Network) -> torch.fx.GraphModule:
    from common.executorch_utils import xnnpack_ptq

    return xnnpack_ptq(network.model, network.example, calibration=network.calibration_tuples())


def without_float_ends(
    graph: Any,
) -> tuple[torch.fx.GraphModule, dict[str, tuple[float, int]]]:
    """Take the first quantize and the last dequantize off a Q/DQ graph.

    What is left takes int8 and gives int8: the caller does the two steps, or, when the numbers
    come from a camera and only the largest score matters, leaves them out.

    Args:
        graph: from `xnnpack_ptq`, with one input that only a quantize reads and one output that
            a dequantize writes.

    Returns:
        A changed copy, and ``{"input": (scale, zero point), "output": (scale, zero point)}``.

    Raises:
        ValueError: the graph does not begin with quantize or end with dequantize.
    """
    import torch

    ops: Any = torch.ops.quantized_decomposed
    graph = copy.deepcopy(graph)
    nodes = graph.graph
    (x,) = nodes.find_nodes(op="placeholder")
    (last,) = nodes.output_node().all_input_nodes
    readers = [user for user in x.users if user.op == "call_function"]  # not export's guard
    if [user.target for user in readers] != [
        ops.quantize_per_tensor.default
    ] or last.target != ops.dequantize_per_tensor.default:
        names = ", ".join(user.name for user in readers)
        raise ValueError(f"expected one quantize first, dequantize last; got {names}; {last.name}")
    (first,) = readers
    ends = {"input": (first.args[1], first.args[2]), "output": (last.args[1], last.args[2])}
    first.replace_all_uses_with(x)
    last.replace_all_uses_with(last.args[0])
    nodes.erase_node(first)
    nodes.erase_node(last)
    graph.recompile()
    return graph, ends


def quantize(x: torch.Tensor, scale: float, zero_point: int) -> torch.Tensor:
    """Return ``round(x / scale) + zero_point`` as int8, in the memory order of ``x``."""
    import torch

    return ((x / scale).round() + zero_point).clamp(-128, 127).to(torch.int8)


def load(file: str) -> Callable[[str, Path, int], Call]:
    """Return the loader of one of the files."""

    def loader(name: str, folder: Path, threads: int) -> Call:
        return _load(folder / file, threads)

    return loader


def _load(file: Path, threads: int) -> Call:
    import torch

    from common.executorch_utils import PteRunner, set_threads

    set_threads(threads)
    torch.set_num_threads(threads)
    runner = PteRunner(file)
    memory_format = (
        torch.channels_last if file.name in (CHANNELS_LAST, BOTH) else torch.contiguous_format
    )
    ends: dict[str, tuple[float, int]] = {}
    if file.with_suffix(".json").exists():
        ends = json.loads(file.with_suffix(".json").read_text())

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        # Without the checks of `runner(x)`: the others have none either. The runner must live.
        return runner._method.execute(inputs)

    def prepare(x: np.ndarray) -> list[torch.Tensor]:
        t = torch.from_numpy(x).contiguous(memory_format=memory_format)
        return [quantize(t, *ends["input"]) if ends else t]

    def result(outputs: list[torch.Tensor]) -> np.ndarray:
        (y,) = outputs
        if ends:
            scale, zero_point = ends["output"]
            y = (y.float() - zero_point) * scale
        return y.numpy()

    return Call(run, prepare, result)
