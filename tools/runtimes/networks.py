"""The networks that are compared, their calibration data and their test inputs.

Nothing is downloaded, so the torchvision networks are untrained: seeded weights, and BatchNorm
statistics from a few batches in training mode, which keep the activations in an ordinary range.
Speed does not depend on the values; the agreement with fp32 does, and compares the runtimes only
with one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NETWORKS = {
    "tiny": "TinyConvNet, trained, 16×16 digits",
    "mobilenet_v2": "MobileNetV2, seeded weights, 224×224 seeded images",
    "resnet18": "ResNet18, seeded weights, 224×224 seeded images",
}
"""Names that the command takes, and what stands behind them."""
CALIBRATION_IMAGES = {"tiny": 128, "mobilenet_v2": 16, "resnet18": 16}
DATA, WEIGHTS = "data.npz", "weights.pt"
TEST_IMAGES = {"tiny": 216, "mobilenet_v2": 32, "resnet18": 32}


@dataclass(frozen=True, eq=False)
class Network:
    """A network in `eval()` mode with the data that every runtime gets.

    Attributes:
        model: takes and returns one float32 tensor, batch 1.
        calibration: ``(N, 3, H, W)`` float32; what static quantization looks at.
        inputs: ``(M, 3, H, W)`` float32; none of them is in `calibration`.
    """

    model: torch.nn.Module
    calibration: torch.Tensor
    inputs: torch.Tensor

    @property
    def example(self) -> tuple[torch.Tensor]:
        """The first test input as a batch of one."""
        return (self.inputs[:1],)

    def calibration_tuples(self) -> list[tuple[torch.Tensor]]:
        """Return the calibration images one by one, as input tuples."""
        return [(x,) for x in self.calibration.split(1)]


def make(name: str) -> Network:
    """Build a network and its data; the same values at each call on one machine.

    Raises:
        ValueError: not one of `NETWORKS`.
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; there are: {', '.join(NETWORKS)}")
    if name == "tiny":
        from common.data import digits, trained_tiny_net

        data = digits()
        return Network(
            trained_tiny_net(),
            data.train_images[: CALIBRATION_IMAGES[name]],
            data.test_images[: TEST_IMAGES[name]],
        )
    import torch

    torch.manual_seed(0)
    model = _torchvision(name)()
    _set_batch_norm(model)
    return Network(
        model, images(CALIBRATION_IMAGES[name], seed=1), images(TEST_IMAGES[name], seed=2)
    )


def images(count: int, *, seed: int) -> torch.Tensor:
    """Return seeded images ``(count, 3, 224, 224)``: soft blobs with some fine grain.

    Smooth, as photographs are; white noise would average out in every convolution.
    """
    import torch
    from torch.nn import functional as F

    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 8, 8, generator=generator)
    grain = torch.randn(count, 3, 224, 224, generator=generator)
    return F.interpolate(coarse, size=(224, 224), mode="bicubic") + 0.2 * grain


def save(network: Network, folder: Path) -> None:
    """Write weights, data and fp32 results, for processes that must not make them again."""
    import numpy as np
    import torch

    with torch.no_grad():
        reference = torch.cat([network.model(x) for x in network.inputs.split(1)])
    torch.save(network.model.state_dict(), folder / WEIGHTS)
    np.savez(
        folder / DATA,
        calibration=network.calibration.numpy(),
        inputs=network.inputs.numpy(),
        reference=reference.numpy(),
    )


def load(name: str, folder: Path) -> Network:
    """Read what `save` wrote."""
    import numpy as np
    import torch

    model = _architecture(name)
    model.load_state_dict(torch.load(folder / WEIGHTS))
    with np.load(folder / DATA) as data:
        calibration, inputs = (torch.from_numpy(data[k]) for k in ("calibration", "inputs"))
    return Network(model.eval(), calibration, inputs)


def _architecture(name: str) -> torch.nn.Module:
    if name == "tiny":
        from common.models import TinyConvNet

        return TinyConvNet()
    return _torchvision(name)()


def _torchvision(name: str) -> Callable[[], torch.nn.Module]:
    import torchvision

    models: Any = torchvision.models
    return lambda: models.get_model(name, weights=None)


def _set_batch_norm(model: torch.nn.Module) -> None:
    """Fill the running statistics: mean and variance over four batches of images."""
    import torch

    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average
    model.train()
    with torch.no_grad():
        for batch in range(4):
            model(images(8, seed=100 + batch))
    model.eval()
