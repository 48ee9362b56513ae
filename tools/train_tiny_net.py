"""Train the course model on the digits and report its held-out accuracy.

uv run python tools/train_tiny_net.py            # train and report
uv run python tools/train_tiny_net.py --write    # and replace the weights inside common
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import common.data
from common.data import digits
from common.models import TinyConvNet


def train(*, seed: int = 0, epochs: int = 10, batch: int = 32) -> TinyConvNet:
    """Train a ``TinyConvNet`` from scratch; the result is in ``eval()`` mode."""
    data = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TinyConvNet()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            for index in torch.randperm(len(data.train_images)).split(batch):
                loss = F.cross_entropy(model(data.train_images[index]), data.train_labels[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


@torch.no_grad()
def held_out_accuracy(model: torch.nn.Module) -> float:
    """Return the share of held-out digits that the model names correctly, 0 to 1."""
    data = digits()
    return (model(data.test_images).argmax(1) == data.test_labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the weights inside common")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = train(seed=args.seed)
    print(f"seed {args.seed}: {held_out_accuracy(model):.2%} of the held-out digits")
    if args.write:
        path = Path(common.data.__file__).with_name(common.data.WEIGHTS)
        np.savez(path, **{name: t.numpy() for name, t in model.state_dict().items()})
        print(f"wrote {path.name}, {path.stat().st_size:,} B")


if __name__ == "__main__":
    main()
