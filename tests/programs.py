"""Small models, their programs, and ExecuTorch's own API, shared by the tests of `common`.

conftest.py lowers each of them once a session: a lowering takes 2 to 4 s.
Nothing here imports executorch at the top: a subprocess imports this file before `quiet()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """A model on its road: eager, as Q/DQ graph (or None), lowered."""

    model: Any
    example: Inputs
    qdq: Any
    edge: Any
    pte: bytes


class ConvRelu(nn.Module):
    """One convolution with ReLU; the same weights in every process."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class Counter(nn.Module):
    """Returns the input times the number of calls so far: a model that keeps state."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.calls


class ManyValues(nn.Module):
    """Inputs and outputs of several kinds, nested outputs included."""

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, times: int, plus: float
    ) -> Any:
        return x[ids] * times + plus, {"not": ~mask, "pair": [x.sum(), ids + 1]}


class Siblings(nn.Module):
    """Inputs by position and by name, in a dict and a list, whose sizes depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(
        self,
        x: torch.Tensor,
        pair: dict[str, Any],
        extra: Any = None,
        *,
        mask: torch.Tensor,
        times: int = 2,
    ) -> Any:
        h = self.a(x) + self.b(pair["right"][0])
        rows = torch.relu(pair["rows"])  # two for each of the batch
        return {"sum": h * times, "rest": (rows, ~mask, [extra, times, 0.5, True])}


class Smoother(nn.Module):
    """Mixes its input with what it returned before; starts from something that is not zero."""

    level: torch.Tensor
    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.fc = nn.Linear(6, 6)
        self.register_buffer("level", torch.full((1, 6), 2.0))
        self.register_buffer("steps", torch.full((1,), 5.0), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.steps.add_(1)
        self.level.mul_(0.5).add_(self.fc(x))
        return self.fc(self.level), self.steps * 2


class Siamese(nn.Module):
    """Each layer sees both inputs, whose ranges differ."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) - layer(y) for layer in self.layers)


class TwoLinear(nn.Module):
    """A model of two inputs that are easily exchanged for one another."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.a(x) - self.b(y)


def image(seed: int = 0, *, batch: int = 1, size: int = 8) -> torch.Tensor:
    """A random image `(batch, 3, size, size)`, another for each seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, size, size, generator=generator)


def siblings(batch: int, length: int, seed: int = 0) -> tuple[Inputs, dict[str, Any]]:
    """Inputs of Siblings."""
    g = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(batch, length, 6, generator=g) for _ in range(2))
    table = torch.randn(2 * batch, 3, generator=g)
    mask = torch.rand(4, generator=g) > 0.5
    return (x, {"right": [y], "rows": table}), {"mask": mask, "times": 3, "extra": None}


def shapes_of_siblings() -> dict[str, Any]:
    """Its dynamic shapes: the batch from 1 to 4, the length from 2 to 8."""
    batch = torch.export.Dim("batch", min=1, max=4)
    length = torch.export.Dim("length", min=2, max=8)
    sequence = {0: batch, 1: length}
    pair = {"right": [sequence], "rows": {0: 2 * batch}}
    return {"x": sequence, "pair": pair, "extra": None, "mask": None, "times": None}


def quantized_conv() -> Any:
    """The Q/DQ graph of ConvRelu, calibrated with its one image."""
    from common.executorch_utils import xnnpack_ptq

    x = (image(),)
    return xnnpack_ptq(ConvRelu().eval(), x, calibration=[x])


def last_scale(qdq: Any) -> float:
    """Scale of the last quantize node: one LSB of the output."""
    nodes = [n for n in qdq.graph.nodes if "quantize_per_tensor" in str(n.target)]
    return nodes[-1].args[1]


def portable(model: Any, example: Inputs = ()) -> bytes:
    """Lower a model, or what was exported of it, without a delegate, by ExecuTorch's own calls."""
    from executorch.exir import to_edge

    exported = isinstance(model, torch.export.ExportedProgram)
    program = model if exported else torch.export.export(model, example)
    return to_edge(program).to_executorch().buffer


def raw(pte: bytes, *inputs: Any) -> list[Any]:
    """Run `forward` by ExecuTorch's own API; its log is dropped."""
    from executorch.runtime import Runtime

    from common.env import capture_stderr

    with capture_stderr():
        method = Runtime.get().load_program(pte).load_method("forward")
        assert method is not None
        return list(method.execute(list(inputs)))


def rows(n: int, seed: int = 0) -> torch.Tensor:
    """Input of `linear`."""
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


def linear() -> nn.Module:
    """One layer with a ReLU, the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
