"""PT2E quantization up to the Q/DQ graph: export, quantizer, and the libraries' known noise."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from typing import Any

import torch
from torch import fx

from common.env import check_versions

__all__ = ["export_module", "get_xnnpack_quantizer", "quiet"]

# torch's and torchao's messages, each with the logger that writes it: they concern GPU kernels and
# the libraries' own registration, and say nothing about the reader's code.
_LOG_MESSAGES = {
    "torchao": re.compile(r"^Failed to load .*\.so"),
    "torch.utils._pytree": re.compile(r"KernelPreference.* is an Enum subclass"),
}
_WARNINGS = (
    # raised inside torch.export by copying a tree spec
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
    # raised once when the runtime is imported
    (r"This API is experimental and subject to change without notice", DeprecationWarning),
)

_QUANTIZERS = {
    "executorch": "executorch.backends.xnnpack.quantizer.xnnpack_quantizer",
    "torchao": "torchao.testing.pt2e._xnnpack_quantizer",
}

check_versions()


class _KnownNoise(logging.Filter):
    """Drops one message of one logger and lets everything else through."""

    def __init__(self, message: re.Pattern[str]) -> None:
        super().__init__()
        self._message = message

    def filter(self, record: logging.LogRecord) -> bool:
        return not self._message.search(record.getMessage())


def quiet() -> None:
    """Silence the known noise of torch, torchao and executorch, and nothing else.

    These messages are dropped: torchao's "Failed to load ….so", torch's note on
    ``KernelPreference`` and its deprecation of ``LeafSpec``, and executorch's note that its
    runtime API is experimental.
    Call it before the first import of an ``executorch`` module: they are written during it.
    Calling it again changes nothing. ``common.executorch_utils`` calls it when it is imported.

    Example:
        >>> quiet()
        >>> logging.getLogger("torchao").isEnabledFor(logging.WARNING)
        True
    """
    for name, message in _LOG_MESSAGES.items():
        logger = logging.getLogger(name)
        if not any(isinstance(f, _KnownNoise) for f in logger.filters):
            logger.addFilter(_KnownNoise(message))
    for text, category in _WARNINGS:
        warnings.filterwarnings("ignore", message=text, category=category)


def export_module(
    model: torch.nn.Module, example_inputs: tuple[Any, ...], dynamic_batch: bool = True
) -> fx.GraphModule:
    """Export a model and return its graph as a callable ``GraphModule``.

    Args:
        model: in ``eval()`` mode.
        example_inputs: one tensor (or other value) per parameter of ``forward``; dimension 0 of
            each tensor is the batch.
        dynamic_batch: ``True`` lets the batch vary. An example of batch 1 is then traced with two
            rows, since torch.export takes a size of 1 for a constant. ``False`` fixes the batch
            to that of the example, as the XNNPACK road needs it.

    Returns:
        The graph in ATen ops, with parameters and buffers; PT2E takes it as it is.

    Raises:
        TypeError: ``example_inputs`` is not a tuple.
        ValueError: the model, or a part of it, is in training mode.

    Example:
        >>> from common.models import TinyConvNet, example_inputs
        >>> gm = export_module(TinyConvNet().eval(), example_inputs(1))
        >>> gm(*example_inputs(3)).shape
        torch.Size([3, 4])
    """
    check_example(example_inputs)
    check_eval(model)
    shapes = None
    if dynamic_batch:
        batch = torch.export.Dim("batch", min=1)
        example_inputs = tuple(_two_rows(value) for value in example_inputs)
        shapes = tuple({0: batch} if _has_batch(v) else None for v in example_inputs)
    return export_graph(model, example_inputs, shapes)


def get_xnnpack_quantizer(
    source: str = "executorch",
    is_per_channel: bool = True,
    *,
    is_dynamic: bool = False,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
) -> tuple[Any, Any]:
    """Return a configured ``XNNPACKQuantizer`` and its quantization config.

    Args:
        source: ``"executorch"`` for the quantizer that the XNNPACK backend is made for;
            ``"torchao"`` for the deprecated copy that torchao keeps for its own tests.
        is_per_channel: one weight scale per output channel instead of one per tensor.
        is_dynamic: quantize activations at run time instead of calibrating them.
        weight_qmin: smallest weight integer; ``-8`` with ``weight_qmax=7`` gives 4-bit weights.
        weight_qmax: largest weight integer.

    Returns:
        ``(quantizer, config)``; the config is already set as the quantizer's global one.

    Raises:
        ValueError: an unknown ``source``, or dynamic quantization with per-tensor weights.

    Example:
        >>> quantizer, config = get_xnnpack_quantizer("executorch", is_per_channel=True)
        >>> config.weight.quant_min, config.weight.quant_max
        (-127, 127)
    """
    if is_dynamic and not is_per_channel:
        raise ValueError(
            "dynamic quantization needs per-channel weights: XNNPACK does not take the per-tensor "
            "form, which would run on slow portable kernels. Use is_per_channel=True."
        )
    if source not in _QUANTIZERS:
        raise ValueError(f'source: expected "executorch" or "torchao", got {source!r}')
    quiet()
    module: Any = importlib.import_module(_QUANTIZERS[source])
    config = module.get_symmetric_quantization_config(
        is_per_channel=is_per_channel,
        is_dynamic=is_dynamic,
        weight_qmin=weight_qmin,
        weight_qmax=weight_qmax,
    )
    return module.XNNPACKQuantizer().set_global(config), config


def export_graph(
    model: torch.nn.Module, example_inputs: tuple[Any, ...], dynamic_shapes: Any = None
) -> fx.GraphModule:
    """Return the graph of ``torch.export.export``, with its guard on the inputs' shapes."""
    gm = torch.export.export(model, example_inputs, dynamic_shapes=dynamic_shapes).module()
    assert isinstance(gm, fx.GraphModule)
    return gm


def check_example(example_inputs: object) -> None:
    """Make sure that the example inputs are a tuple."""
    if not isinstance(example_inputs, tuple):
        how = " Write (x,) for one tensor." if isinstance(example_inputs, torch.Tensor) else ""
        raise TypeError(
            f"example_inputs: expected a tuple, got {type(example_inputs).__name__}.{how}"
        )


def check_eval(model: torch.nn.Module) -> None:
    """Refuse a model in training mode: dropout and batch statistics would be exported."""
    if isinstance(model, fx.GraphModule):
        return  # an exported graph has its mode built in; the flag means nothing
    training = [name or "the model itself" for name, m in model.named_modules() if m.training]
    if training:
        raise ValueError(
            f"the model is in training mode ({', '.join(training[:3])}"
            f"{', …' if len(training) > 3 else ''}): dropout and batch statistics would become "
            "part of the graph. Call model.eval() first."
        )


def _has_batch(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _two_rows(value: Any) -> Any:
    return torch.cat([value, value]) if _has_batch(value) and value.shape[0] == 1 else value
