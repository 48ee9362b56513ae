"""All variants, in the order of the table; which of them can run here."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from tools.runtimes import onnx_files, pte, pytorch, tflite
from tools.runtimes.variant import Variant

BASE = "int8 .pte"
"""The variant that every other is compared with."""

_ONNX = ("onnx", "onnxscript", "onnxruntime")
_LITERT = ("ai-edge-litert", "ai-edge-quantizer", "litert-torch")


def _pte(name: str, file: str) -> Variant:
    return Variant(name, (), pte.load(file), pte.build, file)


def _onnxruntime(name: str, file: str) -> Variant:
    return Variant(name, _ONNX, onnx_files.onnxruntime(file), onnx_files.build, file)


def _openvino(name: str, file: str) -> Variant:
    needs = (*_ONNX, "openvino")
    return Variant(name, needs, onnx_files.openvino(file), onnx_files.build, file)


def _litert(name: str, file: str) -> Variant:
    return Variant(name, _LITERT, tflite.load(file), tflite.build, file)


VARIANTS = (
    Variant("eager fp32", (), pytorch.eager),
    Variant("torch.compile fp32", (), pytorch.compiled, compiler=True),
    _pte("fp32 .pte", pte.FP32),
    _pte(BASE, pte.INT8),
    _pte("int8 .pte, channels_last", pte.CHANNELS_LAST),
    _pte("int8 .pte, int8 in/out", pte.INT8_ENDS),
    _pte("int8 .pte, both", pte.BOTH),
    _onnxruntime("ONNX Runtime fp32", onnx_files.FP32),
    _onnxruntime("ONNX Runtime int8", onnx_files.INT8),
    _onnxruntime("ONNX Runtime int8, 7-bit weights", onnx_files.INT8_SAFE),
    _openvino("OpenVINO fp32", onnx_files.FP32),
    _openvino("OpenVINO int8", onnx_files.INT8),
    _openvino("OpenVINO int8, 7-bit weights", onnx_files.INT8_SAFE),
    _litert("LiteRT fp32", tflite.FP32),
    _litert("LiteRT int8", tflite.INT8),
    _litert("LiteRT int8, int8 in/out", tflite.INT8_ENDS),
)
BY_NAME = {variant.name: variant for variant in VARIANTS}


@dataclass(frozen=True)
class Skipped:
    """Variants that cannot run here, and why; as text, the sentence that says so."""

    names: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"Not measured: {', '.join(self.names)}: {self.why}."


def available(variants: Iterable[Variant] = VARIANTS) -> tuple[list[Variant], list[Skipped]]:
    """Sort the variants into those that can run here and those that cannot.

    Args:
        variants: what to look at.

    Returns:
        The variants that can run, in their order, and the others grouped by reason.
    """
    usable: list[Variant] = []
    lacking: dict[str, list[str]] = {}
    for variant in variants:
        why = _hindrance(variant)
        if why:
            lacking.setdefault(why, []).append(variant.name)
        else:
            usable.append(variant)
    return usable, [Skipped(tuple(names), why) for why, names in lacking.items()]


def _hindrance(variant: Variant) -> str:
    missing = [name for name in variant.needs if not installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{', '.join(missing)} {verb} not installed (uv sync --group runtimes)"
    if variant.compiler and not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        return "no C++ compiler was found"
    return ""


def installed(distribution: str) -> bool:
    """Say whether a distribution is installed."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
