"""Real handwritten digits and the trained course model, both without a download.

The digits are the classes 0 to 3 of the "Optical Recognition of Handwritten Digits" data set,
which scikit-learn bundles. The trained weights lie beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import torch
from torch.nn import functional as F

from common.models import TinyConvNet

__all__ = ["Digits", "calibration_batches", "digits", "trained_tiny_net"]

WEIGHTS = "tiny_conv_net.npz"
_TEST_IMAGES = 216


@dataclass(frozen=True, repr=False)
class Digits:
    """Handwritten digits 0 to 3, split into training and held-out images.

    Attributes:
        train_images: ``(504, 3, 16, 16)`` float32, values 0 to 1.
        train_labels: ``(504,)`` int64, values 0 to 3.
        test_images: ``(216, 3, 16, 16)`` float32.
        test_labels: ``(216,)`` int64.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    def __repr__(self) -> str:
        n, m = len(self.train_images), len(self.test_images)
        shape = "x".join(map(str, self.train_images.shape[1:]))
        return f"Digits({n} to train with, {m} held out, each {shape} float32, classes 0-3)"


def digits() -> Digits:
    """Return the digits; every call gives fresh tensors with the same values and split.

    Example:
        >>> digits()
        Digits(504 to train with, 216 held out, each 3x16x16 float32, classes 0-3)
    """
    images, labels = _scans()
    x = torch.from_numpy(images).float()[:, None] / 16.0
    x = F.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)
    x = x.expand(-1, 3, -1, -1).contiguous()
    y = torch.from_numpy(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(8))
    test, train = order[:_TEST_IMAGES], order[_TEST_IMAGES:]
    return Digits(x[train], y[train], x[test], y[test])


def calibration_batches(batch: int = 1, *, images: int = 128) -> Iterator[tuple[torch.Tensor]]:
    """Yield training images as input tuples of the course model.

    Args:
        batch: images in each tuple. A graph with a static batch accepts no other number, so a
            last group that would be smaller is left out.
        images: how many of the 504 training images to use, from the first on; a larger ``batch``
            uses one group of its size.

    Yields:
        One-element tuples holding a ``(batch, 3, 16, 16)`` float32 tensor.

    Raises:
        ValueError: ``batch`` is not between 1 and the number of training images.

    Example:
        >>> len(list(calibration_batches(8)))
        16
    """
    pool = digits().train_images
    if not 1 <= batch <= len(pool):
        raise ValueError(f"batch: expected 1 to {len(pool)} images, got {batch!r}")
    if not 1 <= images <= len(pool):
        raise ValueError(f"images: expected 1 to {len(pool)}, got {images!r}")
    for start in range(0, max(images, batch) - batch + 1, batch):
        yield (pool[start : start + batch],)


def trained_tiny_net() -> TinyConvNet:
    """Return the trained course model in ``eval()`` mode, with the same weights everywhere.

    ``tools/train_tiny_net.py`` retrains it.

    Returns:
        A new ``TinyConvNet`` at each call; changing it does not change the next one.

    Example:
        >>> trained_tiny_net().training
        False
    """
    with resources.files("common").joinpath(WEIGHTS).open("rb") as f, np.load(f) as stored:
        state = {name: torch.from_numpy(stored[name]) for name in stored.files}
    model = TinyConvNet()
    model.load_state_dict(state)
    return model.eval()


@cache
def _scans() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # takes a second to import: only when used

    bunch = load_digits(n_class=4)
    return bunch["images"], bunch["target"]
