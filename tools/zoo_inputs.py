"""Seeded inputs for the zoo that have a structure: images, clips, text, sound, measurements.

Noise alone would not do: averaged over an image it is the same for every image, and an untrained
network then gives nearly the same output for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

from common.data import digits

Inputs = tuple[torch.Tensor, ...]
Make = Callable[[torch.Generator], Inputs]
"""Makes one input tuple of batch 1."""


def image(size: int, channels: int = 3) -> Make:
    """Patches of colour, two shapes with edges, a little noise; about zero mean, unit variance."""

    def make(generator: torch.Generator) -> Inputs:
        return (_image(size, channels, generator),)

    return make


def digit(generator: torch.Generator) -> Inputs:
    """One of the course's training digits: ``(1, 3, 16, 16)``."""
    images = digits().train_images
    n = int(torch.randint(len(images), (), generator=generator))
    return (images[n : n + 1],)


def image_pair(size: int, channels: int = 3) -> Make:
    """Two images; the second is the first with noise and another brightness."""

    def make(generator: torch.Generator) -> Inputs:
        x = _image(size, channels, generator)
        noise = torch.randn(x.shape, generator=generator)
        return x, 0.8 * x + 0.3 * noise + _uniform(-0.5, 0.5, generator)

    return make


def clip(frames: int, size: int) -> Make:
    """One image that moves over a few frames: ``(1, 3, frames, size, size)``."""

    def make(generator: torch.Generator) -> Inputs:
        x = _image(size, 3, generator)
        return (torch.stack([x.roll((n, 2 * n), (2, 3)) for n in range(frames)], dim=2),)

    return make


def ids(length: int, words: int) -> Make:
    """Token numbers, int64 ``(1, length)``; a few are frequent, as in a text."""

    def make(generator: torch.Generator) -> Inputs:
        frequency = 1 / torch.arange(1, words + 1)
        return (torch.multinomial(frequency, length, replacement=True, generator=generator)[None],)

    return make


def sound(samples: int) -> Make:
    """A tone with overtones that rises or falls and dies away: ``(1, 1, samples)``."""

    def make(generator: torch.Generator) -> Inputs:
        t = torch.arange(samples) / samples
        start, change = _uniform(20, 120, generator), _uniform(-40, 40, generator)
        phase = 2 * math.pi * (start * t + change * t * t / 2)
        tone = sum(torch.sin(n * phase) / n for n in (1, 2, 3))
        x = tone * torch.exp(-_uniform(0, 4, generator) * t)
        return ((x + 0.05 * torch.randn(samples, generator=generator))[None, None],)

    return make


def spectrum(steps: int, bands: int) -> Make:
    """Bands of energy that move over time: ``(1, 1, steps, bands)``."""

    def make(generator: torch.Generator) -> Inputs:
        t, f = torch.arange(steps)[:, None] / steps, torch.arange(bands)[None] / bands
        x = torch.zeros(steps, bands)
        for _ in range(3):
            centre = _uniform(0, 1, generator) + _uniform(-0.5, 0.5, generator) * t
            x += torch.exp(-(((f - centre) / 0.1) ** 2))
        return ((2 * x - 1 + 0.2 * torch.randn(steps, bands, generator=generator))[None, None],)

    return make


def series(steps: int, width: int) -> Make:
    """Measurements that drift and swing: ``(1, steps, width)``."""

    def make(generator: torch.Generator) -> Inputs:
        walk = torch.randn(steps, width, generator=generator).cumsum(0) / math.sqrt(steps)
        t = torch.arange(steps)[:, None] / steps
        swing = torch.sin(2 * math.pi * (_uniform(1, 4, generator) * t + torch.arange(width) / 7))
        return ((walk + swing)[None],)

    return make


def points(count: int) -> Make:
    """Points on an ellipsoid: ``(1, 3, count)``."""

    def make(generator: torch.Generator) -> Inputs:
        x = F.normalize(torch.randn(1, 3, count, generator=generator), dim=1)
        return (x * (0.5 + torch.rand(1, 3, 1, generator=generator)),)

    return make


def features(width: int) -> Make:
    """A row of a table whose columns depend on each other: ``(1, width)``."""

    def make(generator: torch.Generator) -> Inputs:
        causes = torch.randn(1, 4, generator=generator)
        mixing = torch.randn(4, width, generator=torch.Generator().manual_seed(0))
        return (causes @ mixing / 2 + 0.1 * torch.randn(1, width, generator=generator),)

    return make


def _image(size: int, channels: int, generator: torch.Generator) -> torch.Tensor:
    x = torch.zeros(1, channels, size, size)
    for cells in (2, 4, 8):
        coarse = torch.randn(1, channels, cells, cells, generator=generator)
        x += F.interpolate(coarse, size=(size, size), mode="bilinear") * (2 / cells) ** 0.5
    for _ in range(2):
        top, left, height, width = torch.randint(size // 2, (4,), generator=generator).tolist()
        colour = torch.randn(1, channels, 1, 1, generator=generator)
        x[:, :, top : top + height + 2, left : left + width + 2] = colour
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator).item()
