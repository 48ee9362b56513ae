"""Damage programs on purpose, run them, and count dead processes and silently wrong results.

    python tools/corrupt_pte.py [--count 2000] [--seed 0] [--kinds] [--ways raw guarded ...]

Five programs are damaged in nine ways that happen to files: flipped bits, overwritten bytes,
a copy that stopped, a transfer as text, lost and exchanged blocks, bytes added. Half of the places
are drawn from the whole file, half from the part that is no weights, where damage does more. Each
damaged file is then loaded and run, in a child process with a time limit:

    raw        by ExecuTorch's own API
    guarded    by `PteRunner`, as it is
    child      by `PteRunner(..., isolated_check=True)`
    checksum   by `PteRunner` from a file that `save_pte` wrote before the damage

One line for each way: how many files ended (or froze) the process, how many ran with a result that
is not the clean program's, bit for bit, how many were refused, and how many ran with the right one.
The same seed gives the same damage. Runs where processes can be forked, so not on Windows.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import select
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common._isolated import enter_child, fork
from common._pte_file import pte_contents
from common.executorch_utils import PteRunner, save_pte

LIMIT = {"child": 60.0}
"""Seconds that one file may take; more than the check in a child process allows itself."""
OTHER_LIMIT = 10.0
BATCH = 64
"""Files that one child process tries, until one of them ends it."""


@dataclass(frozen=True)
class Sample:
    """A whole program, inputs for it, and what it returns for them."""

    name: str
    pte: bytes
    inputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Damaged:
    """A program after one seeded corruption."""

    sample: Sample
    kind: str
    seed: int
    data: bytes

    def __str__(self) -> str:
        return f"{self.sample.name}, {self.kind}, seed {self.seed}"


# --- the damage


class Bytes:
    """A program's bytes, and where to damage them.

    Half of the places are drawn from the whole file, the others from what is no weights.
    """

    def __init__(self, data: bytes, rng: random.Random) -> None:
        self.data, self.rng = data, rng
        self._head = _size_without_weights(data)

    def place(self, length: int = 1) -> int:
        """Draw the start of a block."""
        end = self.rng.choice((len(self.data), self._head))
        return self.rng.randrange(max(1, end - length))

    def with_block(self, at: int, new: bytes) -> bytes:
        """Return the bytes with a block overwritten."""
        return (self.data[:at] + new + self.data[at + len(new) :])[: len(self.data)]


@functools.cache
def _size_without_weights(data: bytes) -> int:
    contents = pte_contents(data)
    return contents.size - contents.weights


def flip_a_bit(b: Bytes) -> bytes:
    """Flip one bit."""
    at = b.place()
    return b.with_block(at, bytes([b.data[at] ^ 1 << b.rng.randrange(8)]))


def set_a_byte(b: Bytes) -> bytes:
    """Set one byte to 0xff."""
    return b.with_block(b.place(), b"\xff")


def clear_a_byte(b: Bytes) -> bytes:
    """Set one byte to 0."""
    return b.with_block(b.place(), b"\0")


def change_a_byte(b: Bytes) -> bytes:
    """Set one byte to any value."""
    return b.with_block(b.place(), b.rng.randbytes(1))


def cut_off(b: Bytes) -> bytes:
    """Keep the beginning only."""
    return b.data[: b.place()]


def transfer_as_text(b: Bytes) -> bytes:
    """Exchange line ends, in the whole file or from somewhere on."""
    at = b.rng.choice((0, b.place()))
    old, new = b.rng.choice(
        ((b"\n", b"\r\n"), (b"\r", b"\n"), (b"\n", b"\r"), (b"\r", b""), (b"\n", b""))
    )
    return b.data[:at] + b.data[at:].replace(old, new)


def lose_a_block(b: Bytes) -> bytes:
    """Fill a block with zeros."""
    length = b.rng.choice((4, 16, 64, 512))
    return b.with_block(b.place(length), bytes(length))


def exchange_blocks(b: Bytes) -> bytes:
    """Exchange two blocks."""
    length = b.rng.choice((4, 16, 64, 256))
    one, two = b.place(length), b.place(length)
    first, second = b.data[one : one + length], b.data[two : two + length]
    other = Bytes.with_block(b, one, second)
    return (other[:two] + first + other[two + length :])[: len(b.data)]


def add_bytes(b: Bytes) -> bytes:
    """Append random bytes."""
    return b.data + b.rng.randbytes(b.rng.randrange(1, 5000))


KINDS: dict[str, Callable[[Bytes], bytes]] = {
    "bit flipped": flip_a_bit,
    "byte to 0xff": set_a_byte,
    "byte to 0": clear_a_byte,
    "byte changed": change_a_byte,
    "cut off": cut_off,
    "as text": transfer_as_text,
    "block of zeros": lose_a_block,
    "blocks exchanged": exchange_blocks,
    "bytes added": add_bytes,
}


def damage(sample: Sample, kind: str, seed: int) -> Damaged:
    """Damage a program; the same arguments give the same bytes, and never the clean ones."""
    rng = random.Random(f"{sample.name} {kind} {seed}")
    place = Bytes(sample.pte, rng)
    while (data := KINDS[kind](place)) == sample.pte:
        pass
    return Damaged(sample, kind, seed, data)


def damages(samples: Sequence[Sample], count: int, *, seed: int = 0) -> list[Damaged]:
    """Damage programs, each in turn and in each way in turn."""
    kinds = list(KINDS)
    return [
        damage(samples[i % len(samples)], kinds[i // len(samples) % len(kinds)], seed + i)
        for i in range(count)
    ]


# --- the ways to load and run


def run_raw(data: bytes, inputs: Sequence[torch.Tensor], folder: Path) -> list[Any]:
    """Load and run by ExecuTorch's own API."""
    from executorch.runtime import Runtime

    method = (program := Runtime.get().load_program(data)).load_method("forward")
    assert method is not None
    outputs = list(method.execute(inputs))
    del method, program
    return outputs


def run_guarded(data: bytes, inputs: Sequence[torch.Tensor], folder: Path) -> list[Any]:
    """Load and run by the helper as it is."""
    return _listed(PteRunner(data)(*inputs))


def run_checked(data: bytes, inputs: Sequence[torch.Tensor], folder: Path) -> list[Any]:
    """Load and run by the helper, with the check in a child process."""
    return _listed(PteRunner(data, isolated_check=True)(*inputs))


def run_with_checksum(data: bytes, inputs: Sequence[torch.Tensor], folder: Path) -> list[Any]:
    """Load and run by the helper from a file that lies beside its checksum."""
    path = folder / "model.pte"
    path.write_bytes(data)
    return _listed(PteRunner(path)(*inputs))


WAYS = {
    "raw": run_raw,
    "guarded": run_guarded,
    "child": run_checked,
    "checksum": run_with_checksum,
}


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


# --- the trials

OUTCOMES = ("killed", "wrong", "refused", "right")


def trials(way: str, damaged: Sequence[Damaged], *, limit: float | None = None) -> list[str]:
    """Load and run damaged programs in child processes.

    Args:
        way: a key of ``WAYS``.
        damaged: what to try.
        limit: seconds for each; a program that takes longer counts as one that killed.

    Returns:
        For each program ``killed``, ``wrong``, ``refused`` or ``right``.
    """
    seconds = limit or LIMIT.get(way, OTHER_LIMIT)
    clean = {id(d.sample): _clean_outputs(d.sample) for d in damaged}
    outcomes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folders: dict[int, Path] = {}
        for d in damaged:
            if id(d.sample) not in folders:
                folder = folders[id(d.sample)] = Path(name) / str(len(folders))
                folder.mkdir()
                save_pte(d.sample.pte, folder / "model.pte")

        def one(d: Damaged) -> str:
            try:
                outputs = WAYS[way](d.data, d.sample.inputs, folders[id(d.sample)])
            except Exception:
                return "refused"
            return "right" if _as_bytes(outputs) == clean[id(d.sample)] else "wrong"

        while len(outcomes) < len(damaged):
            batch = damaged[len(outcomes) : len(outcomes) + BATCH]
            found = _in_one_child(one, batch, seconds)
            outcomes += found if len(found) == len(batch) else [*found, "killed"]
    return outcomes


def _in_one_child(
    one: Callable[[Damaged], str], batch: Sequence[Damaged], seconds: float
) -> list[str]:
    """Try programs in one child process; the list is shorter than the batch when it died."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            enter_child(seconds * len(batch))
            for d in batch:
                os.write(write, bytes([OUTCOMES.index(one(d))]))
        finally:
            os._exit(0)
    os.close(write)
    found: list[str] = []
    poll = select.poll()
    poll.register(read, select.POLLIN)
    while poll.poll(seconds * 1000) and (part := os.read(read, 1)):
        found.append(OUTCOMES[part[0]])
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return found


def _clean_outputs(sample: Sample) -> list[Any]:
    return _as_bytes(_listed(PteRunner(sample.pte)(*sample.inputs)))


def _as_bytes(outputs: Sequence[Any]) -> list[Any]:
    # Not torch.equal: in a forked child torch must not compute.
    return [
        (tuple(y.shape), str(y.dtype), y.numpy().tobytes()) if isinstance(y, torch.Tensor) else y
        for y in outputs
    ]


# --- the command


class PlainNet(nn.Module):
    """Convolution, linear layer and softmax, for the kernels outside of any delegate."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``(N, 3, 8, 8)`` to ``(N, 5)``."""
        return torch.softmax(self.linear(torch.relu(self.conv(x)).flatten(1)), 1)


def samples() -> list[Sample]:
    """Return the programs that the command damages."""
    from executorch.exir import to_edge

    from common.data import trained_tiny_net
    from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq
    from common.models import example_inputs
    from tools.make_images import CumsumNet

    model, digit = trained_tiny_net(), example_inputs(1)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain, cumsum = PlainNet().eval(), CumsumNet().eval()
    batch = torch.export.Dim("batch", max=8)

    def int8(net: nn.Module) -> bytes:
        return lower_to_xnnpack(xnnpack_ptq(net, digit), digit).pte

    dynamic = lower_to_xnnpack(plain, (x,), dynamic_shapes=({0: batch},)).pte
    portable = to_edge(torch.export.export(plain, (x,))).to_executorch().buffer
    return [
        Sample("int8 TinyConvNet", int8(model), digit),
        Sample("fp32 TinyConvNet", lower_to_xnnpack(model, digit).pte, digit),
        Sample("int8 net with a cumsum", int8(cumsum), digit),
        Sample("no delegate", portable, (x,)),
        Sample("dynamic batch", dynamic, (x,)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="damaged files (2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--list", action="store_true", help="name the files that killed or erred")
    options = parser.parse_args()
    torch.set_num_threads(1)
    damaged = damages(samples(), options.count, seed=options.seed)
    print(f"{len(damaged):,} damaged files of {len({id(d.sample) for d in damaged})} programs")
    for way in options.ways:
        start = time.monotonic()
        outcomes = trials(way, damaged)
        counts = Counter(outcomes)
        figures = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in OUTCOMES)
        print(f"{way:9}: {figures}; {time.monotonic() - start:.0f} s", flush=True)
        if options.list:
            for d, outcome in zip(damaged, outcomes, strict=True):
                if outcome in ("killed", "wrong"):
                    print(f"    {outcome}: {d}")


if __name__ == "__main__":
    main()
