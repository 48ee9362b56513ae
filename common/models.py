"""The course model: a small residual convolution network for 16×16 RGB images."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["TinyConvNet", "example_inputs"]


class TinyConvNet(nn.Module):
    """Four 3×3 convolutions with BatchNorm and ReLU, one residual add, one linear layer.

    Channels 3→16→16→16→32; ``MaxPool2d(2)`` after the first block and after the residual add;
    global average pooling; ``Linear(32, 4)``. 9,940 parameters at ``width=1``.

    Args:
        width: multiplies the channel counts 16 and 32. The parameters grow with its square, so
            one model gives a ladder of sizes.

    Shape:
        input ``(N, 3, H, W)`` float32, output ``(N, 4)`` float32; the course uses 16×16.

    Raises:
        ValueError: ``width`` is not a positive integer.

    Example:
        >>> sum(p.numel() for p in TinyConvNet().parameters())
        9940
    """

    def __init__(self, *, width: int = 1) -> None:
        super().__init__()
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise ValueError(f"width: expected a positive integer, got {width!r}")
        c, last = 16 * width, 32 * width
        self.conv1, self.bn1 = _conv3x3(3, c), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = _conv3x3(c, c), nn.BatchNorm2d(c)
        self.conv3, self.bn3 = _conv3x3(c, c), nn.BatchNorm2d(c)
        self.conv4, self.bn4 = _conv3x3(c, last), nn.BatchNorm2d(last)
        self.pool = nn.MaxPool2d(2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(last, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the four class scores of each image."""
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        y = torch.relu(self.bn2(self.conv2(x)))
        y = torch.relu(self.bn3(self.conv3(y)) + x)
        y = self.pool(y)
        y = torch.relu(self.bn4(self.conv4(y)))
        return self.fc(torch.flatten(self.avgpool(y), 1))


def example_inputs(batch: int = 1) -> tuple[torch.Tensor]:
    """Return a tuple with one ``(batch, 3, 16, 16)`` float32 tensor, the same at each call.

    Raises:
        ValueError: ``batch`` is not a positive integer.

    Example:
        >>> example_inputs(2)[0].shape
        torch.Size([2, 3, 16, 16])
    """
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ValueError(f"batch: expected a positive integer, got {batch!r}")
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(batch, 3, 16, 16, generator=generator),)


def _conv3x3(c_in: int, c_out: int) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel_size=3, padding=1, bias=False)
