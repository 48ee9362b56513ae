"""`.tflite` files, made by litert-torch and ai-edge-quantizer, run by LiteRT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.runtimes.variant import Call

if TYPE_CHECKING:
    import numpy as np

    from tools.runtimes.networks import Network

FP32, INT8, INT8_ENDS = "fp32.tflite", "int8.tflite", "int8_ends.tflite"


def build(network: Network, folder: Path, file: str) -> None:
    """Convert with litert-torch, or quantize what that made: static, weights int8 per channel.

    The files take NCHW, as the network does.
    """
    if not (folder / FP32).exists():
        import litert_torch

        litert_torch.convert(network.model, network.example).export(str(folder / FP32))
    if file == FP32:
        return
    from ai_edge_quantizer import qtyping, quantizer, recipe

    tool = quantizer.Quantizer(str(folder / FP32), recipe.static_wi8_ai8())
    if file == INT8:
        for end in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
            tool.update_quantization_recipe(
                regex=".*", operation_name=end, algorithm_key="no_quantize"
            )
    ranges: dict[str, Any] = {}
    for x in network.calibration.split(1):
        _widen(ranges, tool.calibrate({"serving_default": [{"args_0": x.numpy()}]}))
    tool.quantize(ranges).export_model(str(folder / file), overwrite=True)


def _widen(ranges: dict[str, Any], seen: dict[str, Any]) -> None:
    """Take the extremes over the images.

    Of several images in one call the tool takes a moving average, which clips: 18 dB instead of
    39 on the course model.
    """
    import numpy as np

    for tensor, found in seen.items():
        known = ranges.setdefault(tensor, found)
        if found:
            ranges[tensor] = known | {
                "min": np.minimum(known["min"], found["min"]),
                "max": np.maximum(known["max"], found["max"]),
            }


def load(file: str) -> Callable[[str, Path, int], Call]:
    """Return the loader of one of the files."""

    def loader(name: str, folder: Path, threads: int) -> Call:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(folder / file), num_threads=threads)
        interpreter.allocate_tensors()
        (to,), (source,) = interpreter.get_input_details(), interpreter.get_output_details()
        input_index, output_index = to["index"], source["index"]

        def run(x: np.ndarray) -> np.ndarray:
            interpreter.set_tensor(input_index, x)
            interpreter.invoke()
            return interpreter.get_tensor(output_index)

        return Call(run, prepare=_quantizer(to), result=_dequantizer(source))

    return loader


def _quantizer(details: Any) -> Callable[[np.ndarray], np.ndarray]:
    import numpy as np

    scale, zero_point = details["quantization"]
    if not scale:
        return lambda x: x
    return lambda x: np.clip(np.round(x / scale) + zero_point, -128, 127).astype(np.int8)


def _dequantizer(details: Any) -> Callable[[np.ndarray], np.ndarray]:
    scale, zero_point = details["quantization"]
    if not scale:
        return lambda y: y
    return lambda y: (y.astype("float32") - zero_point) * scale
