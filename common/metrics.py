"""How far apart two results are: SQNR in decibel, distance in LSB, accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["accuracy", "lsb_distance", "sqnr_db"]


def sqnr_db(reference: torch.Tensor, actual: torch.Tensor) -> float:
    """Signal-to-quantization-noise ratio: ``10·log10(Σ reference² / Σ (reference − actual)²)``.

    Args:
        reference: the result that counts as exact; any shape, any real dtype.
        actual: the result to judge, same shape.

    Returns:
        Decibels; 6 dB are one bit. ``inf`` when both are equal, ``-inf`` when the reference is
        zero and the actual result is not, ``nan`` when either holds a NaN or an infinity.

    Raises:
        ValueError: the shapes differ, or there is no element.

    Example:
        >>> sqnr_db(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.9])) > 22
        True
    """
    _same_shape(reference, actual)
    # double: the noise of a good result is lost in float32
    signal, result = reference.detach().double(), actual.detach().double()
    noise_power, signal_power = (signal - result).square().sum(), signal.square().sum()
    if not torch.isfinite(noise_power + signal_power):
        return math.nan
    if noise_power == 0:
        return math.inf
    return 10 * torch.log10(signal_power / noise_power).item()


def lsb_distance(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """Distance of two results in steps (LSB) of the quantizer that made them.

    Args:
        a: dequantized values, any shape.
        b: the values to compare with, same shape.
        scale: step of the last quantize node, in the unit of the values.

    Returns:
        int64 tensor of the same shape: ``round(|a − b| / scale)``.

    Raises:
        ValueError: the shapes differ, a value is not finite, or ``scale`` is not positive.

    Example:
        >>> lsb_distance(torch.tensor([0.5, 0.75]), torch.tensor([0.5, 0.5]), 0.25)
        tensor([0, 1])
    """
    _same_shape(a, b)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale: expected a positive number, got {scale}")
    steps = (a.detach().double() - b.detach().double()).abs() / scale
    if not torch.isfinite(steps).all():
        raise ValueError("a value is NaN or infinite: no distance in LSB exists")
    return steps.round().long()


def accuracy(
    model: Callable[[torch.Tensor], Any], images: torch.Tensor, labels: torch.Tensor, *, batch: int
) -> float:
    """Share of the images whose highest score is at the label's position.

    Args:
        model: takes ``(batch, …)`` and returns scores ``(batch, classes)``: a module, a graph,
            a ``PteRunner``.
        images: ``(N, …)``; ``batch`` must divide ``N``, since a static graph takes full batches.
        labels: ``(N,)`` integer.
        batch: images per call.

    Returns:
        0.0 to 1.0.

    Raises:
        ValueError: ``batch`` does not divide the number of images, or the labels do not fit.

    Example:
        >>> accuracy(lambda x: x, torch.eye(4), torch.tensor([0, 1, 2, 0]), batch=1)
        0.75
    """
    if batch < 1 or len(images) % batch or not len(images):
        raise ValueError(f"batch: {batch} does not divide {len(images)} images")
    if labels.shape != (len(images),):
        raise ValueError(f"labels: expected shape ({len(images)},), got {tuple(labels.shape)}")
    with torch.no_grad():
        guesses = torch.cat([model(x).argmax(1) for x in images.split(batch)])
    return (guesses == labels).double().mean().item()


def _same_shape(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {tuple(a.shape)} and {tuple(b.shape)}")
    if not a.numel():
        raise ValueError(f"expected at least one element, got shape {tuple(a.shape)}")
