"""ONNX files, and the two runtimes that read them: ONNX Runtime and OpenVINO.

OpenVINO gets the very file that ONNX Runtime quantized, so both have the same scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.runtimes.variant import Call

if TYPE_CHECKING:
    import numpy as np

    from tools.runtimes.networks import Network

FP32, INT8, INT8_SAFE = "fp32.onnx", "int8.onnx", "int8_7bit.onnx"


def build(network: Network, folder: Path, file: str) -> None:
    """Export the fp32 file, or quantize it with ONNX Runtime's tool.

    Static, Q/DQ, activations uint8, weights int8 per channel, ranges by minimum and maximum.
    `INT8_SAFE` uses 7 of the 8 bits of a weight. Both runtimes multiply with vpmaddubsw where the
    processor has no vnni; it adds two products in 16 bits and stops at 32767, which
    2 · 255 · 127 exceeds and 2 · 255 · 63 does not.
    """
    if not (folder / FP32).exists():
        _export(network, folder)
    if file != FP32:
        _quantize(network, folder, file)


def _export(network: Network, folder: Path) -> None:
    import torch

    torch.onnx.export(
        network.model,
        network.example,
        folder / FP32,
        input_names=["x"],
        output_names=["y"],
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _quantize(network: Network, folder: Path, file: str) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    prepared = folder / "prepared.onnx"
    shape_inference.quant_pre_process(folder / FP32, prepared, skip_symbolic_shape=True)
    images: Iterator[Any] = iter(network.calibration.split(1))

    class Images(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            x = next(images, None)
            return None if x is None else {"x": x.numpy()}

    quantization.quantize_static(
        prepared,
        folder / file,
        Images(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        reduce_range=file == INT8_SAFE,
    )


def onnxruntime(file: str) -> Callable[[str, Path, int], Call]:
    """Return the loader of one of the files into ONNX Runtime."""

    def loader(name: str, folder: Path, threads: int) -> Call:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = ort.InferenceSession(
            str(folder / file), options, providers=["CPUExecutionProvider"]
        )
        return Call(
            lambda feed: session.run(None, feed),
            prepare=lambda x: {"x": x},
            result=lambda outputs: outputs[0],
        )

    return loader


def openvino(file: str) -> Callable[[str, Path, int], Call]:
    """Return the loader of one of the files into OpenVINO."""

    def loader(name: str, folder: Path, threads: int) -> Call:
        import openvino as ov

        core = ov.Core()
        compiled = core.compile_model(
            core.read_model(folder / file),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
                # bf16 where the processor has it would not be fp32
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        request = compiled.create_infer_request()

        def run(x: Any) -> Any:
            request.set_input_tensor(x)
            request.infer()
            return request.get_output_tensor().data

        # `data` is a view into the request: copy before the next call.
        return Call(run, prepare=lambda x: ov.Tensor(x), result=lambda y: y.copy())

    return loader
