"""Time a report against quantizing, lowering and running the same model without one.

    python tools/bench_report.py [--large] [--rounds 3] [--check]

Both take turns, in CPU seconds of this process. Without a report the model is quantized once,
lowered in int8 and in fp32, and both programs run once; verification is as by default. Prints one
line for each model, then where the seconds of its last report went. With `--check` the exit status
is 1 when a report takes over 30 % more. `--large` adds a network like MobileNetV2: one round, which
takes a minute.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from common.data import digits, trained_tiny_net
from common.env import env_summary
from common.executorch_utils import PteRunner, lower_to_xnnpack, xnnpack_ptq
from common.report import Report, report

BUDGET = 1.3
Model = tuple[nn.Module, tuple[torch.Tensor, ...], list[tuple[torch.Tensor, ...]]]
# expansion, channels, blocks, stride, as in MobileNetV2
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
           (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def tiny() -> Model:
    """Return the course model, its example and calibration."""
    images = digits().train_images[:128]
    return trained_tiny_net(), (images[:1],), [(image,) for image in images.split(1)]


class Block(nn.Module):
    """An inverted residual."""

    def __init__(self, c_in: int, c_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = c_in * expansion
        self.adds = stride == 1 and c_in == c_out
        self.layers = nn.Sequential(
            *_conv(c_in, wide, 1), *_conv(wide, wide, 3, stride, wide), *_conv(wide, c_out, 1)[:-1]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, added to its input where it has the same shape."""
        y: torch.Tensor = self.layers(x)
        return x + y if self.adds else y


class Mobile(nn.Module):
    """A network of the size of MobileNetV2, with seeded weights."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv(3, 32, 3, 2)]
        channels = 32
        for expansion, c_out, blocks, stride in _STAGES:
            for i in range(blocks):
                layers.append(Block(channels, c_out, 1 if i else stride, expansion))
                channels = c_out
        self.body = nn.Sequential(*layers, *_conv(channels, 1280, 1))
        self.fc = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return 1,000 scores of each image."""
        return self.fc(self.body(x).mean((2, 3), keepdim=True).flatten(1))


def large() -> Model:
    """Return a network like MobileNetV2, its example and calibration."""
    torch.manual_seed(0)
    model = Mobile()
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 96, 96))  # statistics for BatchNorm
    batches: list[tuple[torch.Tensor, ...]]
    batches = [(torch.randn(1, 3, 224, 224),) for _ in range(8)]
    return model.eval(), batches[0], batches


def _conv(c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(c_out), nn.ReLU6()]


def without(model: nn.Module, example: tuple[Any, ...], batches: list[Any]) -> None:
    """Do what a report has to do anyway."""
    qdq = xnnpack_ptq(model, example, calibration=batches)
    for gm in (qdq, model):
        PteRunner(lower_to_xnnpack(gm, example).pte)(*example)


def measure(made: Model, rounds: int) -> tuple[float, float, Report]:
    """Return the medians of CPU seconds without and with a report, and the last report."""
    model, example, batches = made
    bases: list[float] = []
    reports: list[float] = []
    found: list[Report] = []
    for _ in range(rounds):
        bases.append(_timed(lambda: without(model, example, batches)))
        ask = lambda: found.append(report(model, example, calibration=batches))  # noqa: E731
        reports.append(_timed(ask))
    return statistics.median(bases), statistics.median(reports), found[-1]


def _timed(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> int:
    """Read the options, time, print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="also a network like MobileNetV2")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--check", action="store_true", help=f"fail above {BUDGET} times")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(env_summary())
    without(*tiny())  # imports and caches of the first time
    models = {"TinyConvNet": (tiny, options.rounds)}
    if options.large:
        models["like MobileNetV2"] = (large, 1)
    over = False
    for name, (make, rounds) in models.items():
        base, took, found = measure(make(), rounds)
        over |= took > BUDGET * base
        print(f"{name}: {base:.1f} s without, {took:.1f} s with a report, {took / base:.2f} times")
        for step, seconds in found.seconds.items():
            if seconds >= 0.05:
                print(f"    {seconds:6.2f} s  {step}")
    return int(options.check and over)


if __name__ == "__main__":
    raise SystemExit(main())
