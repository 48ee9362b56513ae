"""The least time that a network needs on this machine: its work over what the machine can do.

A model does a number of multiply-adds and moves a number of bytes. The machine does so many of
each per second, at best. The larger of the two quotients is a floor that no program gets below.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import copy
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from common._lowering import lower_to_xnnpack, xnnpack_ptq
from common._runner import PteRunner
from common._table import ShownAsTable, Table, table
from common._threads import get_threads
from common.pt2e import check_example
from common.timing import compare

__all__ = ["Floor", "MachinePeak", "count_macs", "floor", "machine_peak"]

# What fits into the caches, and is over before a neighbour interrupts it: 1 to 2 ms on one thread.
# Several layers in a row, so that the conversions at both ends weigh little.
_LAYERS, _WIDTH = 4, 256  # of the linear layers, as many rows
_CONVOLUTIONS, _CHANNELS, _SIZE = 2, 64, 32
# Many times larger than the caches, and read in pieces that take less than a millisecond.
_ARRAY_BYTES, _PIECES = 256 << 20, 64
_TRAFFIC = {"read": 1, "copy": 2}  # a copied piece is read once and written once


@dataclass(frozen=True)
class MachinePeak(ShownAsTable):
    """What the machine did at best while `machine_peak` measured it.

    Attributes:
        threads: of ExecuTorch's pool.
        fp32: multiply-adds per second of XNNPACK in float32 (linear layers).
        int8: multiply-adds per second of XNNPACK in int8 (convolutions, weights per channel).
        torch_fp32: multiply-adds per second of ``torch.mm``, another library: the check on
            ``fp32``.
        bytes_per_second: read from or copied in memory.
    """

    threads: int
    fp32: float
    int8: float
    torch_fp32: float
    bytes_per_second: float

    def _table(self) -> Table:
        rows = [
            ("XNNPACK fp32", f"{self.fp32 / 1e9:.1f}", "G multiply-adds/s"),
            ("XNNPACK int8", f"{self.int8 / 1e9:.1f}", "G multiply-adds/s"),
            ("torch.mm fp32", f"{self.torch_fp32 / 1e9:.1f}", "G multiply-adds/s"),
            ("memory", f"{self.bytes_per_second / 1e9:.1f}", "GB/s"),
        ]
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return table(rows, ("peak", "value", "unit"), title=f"measured on {threads}")


@dataclass(frozen=True)
class Floor:
    """The least time for some work.

    Attributes:
        compute_seconds: for the multiply-adds.
        memory_seconds: for the bytes.
    """

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The floor: both may go on at once, so the longer of the two."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def limited_by(self) -> str:
        """``"compute"`` or ``"memory"``."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    def __str__(self) -> str:
        compute, memory = self.compute_seconds * 1e6, self.memory_seconds * 1e6
        return (
            f"at least {self.seconds * 1e6:,.1f} us, limited by {self.limited_by} "
            f"(compute {compute:,.1f} us, memory {memory:,.1f} us)"
        )


def count_macs(module: torch.nn.Module, inputs: tuple[Any, ...]) -> int:
    """Count the multiply-adds of one call.

    ``torch.utils.flop_counter`` counts convolutions, linear layers, matrix products and attention
    (two operations for each multiply-add). Additions, activations, pooling and normalization are
    not counted: their arithmetic is small, though their time need not be. A Q/DQ graph has the
    same count as its model.

    Args:
        module: a model or a graph; a copy of it runs once.
        inputs: a tuple with one value per parameter of ``forward``.

    Returns:
        Multiply-adds, for the whole batch.

    Raises:
        TypeError: ``inputs`` is not a tuple.

    Example:
        >>> count_macs(torch.nn.Linear(10, 3), (torch.zeros(2, 10),))
        60
    """
    check_example(inputs)
    module, inputs = copy.deepcopy((module, inputs))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2


def floor(
    macs: int, nbytes: int, peak: MachinePeak, *, dtype: torch.dtype = torch.float32
) -> Floor:
    """Return the least time in which this machine does some work.

    Args:
        macs: multiply-adds, see `count_macs`.
        nbytes: bytes that must come from memory or go there: what does not stay in the caches
            from one call to the next. For a network larger than the caches at least its weights;
            for a small one that runs again and again, 0.
        peak: what the machine can do.
        dtype: of the multiply-adds, ``torch.float32`` or ``torch.int8``.

    Returns:
        A `Floor`.

    Raises:
        ValueError: negative work, or another dtype.

    Example:
        >>> peak = MachinePeak(1, fp32=4e10, int8=8e10, torch_fp32=4e10, bytes_per_second=1e10)
        >>> print(floor(2_000_000, 400_000, peak))
        at least 50.0 us, limited by compute (compute 50.0 us, memory 40.0 us)
        >>> print(floor(2_000_000, 400_000, peak, dtype=torch.int8))
        at least 40.0 us, limited by memory (compute 25.0 us, memory 40.0 us)
    """
    speeds = {torch.float32: peak.fp32, torch.int8: peak.int8}
    if dtype not in speeds:
        raise ValueError(f"expected torch.float32 or torch.int8, got {dtype}")
    if macs < 0 or nbytes < 0:
        raise ValueError(f"expected macs and nbytes >= 0, got {macs} and {nbytes}")
    return Floor(macs / speeds[dtype], nbytes / peak.bytes_per_second)


def machine_peak(*, rounds: int = 150) -> MachinePeak:
    """Measure what this machine can do, on as many threads as ExecuTorch's pool has.

    Multiply-adds: programs that fit into the caches and have far more arithmetic than memory
    traffic, of the layers for which XNNPACK came nearest to the peak where this was written. In
    fp32 four linear layers (256 to 256, 256 rows), and the same products by ``torch.mm``. In int8
    two 3x3 convolutions (64 to 64 channels, 32x32 pixels), with the conversion of their input and
    output (about 3 %). Memory: an array of 256 MB is summed, and its one half copied to the other,
    in pieces; the faster counts.

    The best round counts, since a peak is what the machine can do when nobody disturbs it. What
    it is not: the peak in the processor's data sheet, which no kernel here reaches; the peak of
    the caches, so ``bytes_per_second`` says nothing about weights that stay in them. A processor
    that slows down when it gets warm, or that is never left alone, has a lower peak than this in
    one minute and a higher one in the next: measure the peak close to what is compared with it. A
    kernel for which XNNPACK is better still, without the conversions around it, may be faster: by
    a tenth where this was written.

    The two programs are made once a process, which takes some seconds. While this runs, torch
    has as many threads as the pool.

    Args:
        rounds: measurements of each; 150 take about 2 s on an idle machine.

    Returns:
        A `MachinePeak`.

    Raises:
        ValueError: ``rounds`` is not positive.
    """
    threads, before = get_threads(), torch.get_num_threads()
    fp32, int8 = (PteRunner(pte) for pte in _programs())
    (layers, x), (convolutions, image) = _linear_layers(), _convolutions()
    weights = [weight.detach().t().contiguous() for weight in layers.parameters()]
    pieces = torch.ones(_ARRAY_BYTES // 4).chunk(_PIECES)
    # One after the other, so that a piece has left the caches when its turn comes again.
    to_read = itertools.cycle(pieces)
    to_copy = itertools.cycle(zip(pieces[: _PIECES // 2], pieces[_PIECES // 2 :], strict=True))

    def read() -> object:
        return next(to_read).sum()

    def copy_half() -> object:
        target, source = next(to_copy)
        return target.copy_(source)

    torch.set_num_threads(threads)
    try:
        work = compare(
            {
                "fp32": lambda: fp32(x),
                "int8": lambda: int8(image),
                "torch": lambda: functools.reduce(torch.mm, weights, x),
            },
            rounds=rounds,
            seconds=0,  # one call a round: the shorter, the more rounds are undisturbed
        )
        moved = {}
        for n in {1, threads}:  # what one thread can move, several can
            torch.set_num_threads(n)
            moved[n] = compare({"read": read, "copy": copy_half}, rounds=rounds, seconds=0)
    finally:
        torch.set_num_threads(before)
    piece = _ARRAY_BYTES / _PIECES
    speeds = [times / m.minimum(name) for m in moved.values() for name, times in _TRAFFIC.items()]
    return MachinePeak(
        threads,
        count_macs(layers, (x,)) / work.minimum("fp32"),
        count_macs(convolutions, (image,)) / work.minimum("int8"),
        count_macs(layers, (x,)) / work.minimum("torch"),
        piece * max(speeds),
    )


def _linear_layers() -> tuple[torch.nn.Module, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)]
        return torch.nn.Sequential(*layers).eval(), torch.randn(_WIDTH, _WIDTH)


def _convolutions() -> tuple[torch.nn.Module, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1) for _ in range(_CONVOLUTIONS)]
        return torch.nn.Sequential(*layers).eval(), torch.randn(1, _CHANNELS, _SIZE, _SIZE)


@functools.cache
def _programs() -> tuple[bytes, bytes]:
    """The linear layers in fp32, the convolutions in int8."""
    (layers, x), (convolutions, image) = _linear_layers(), _convolutions()
    qdq = xnnpack_ptq(convolutions, (image,), calibration=[(image,)])
    return lower_to_xnnpack(layers, (x,)).pte, lower_to_xnnpack(qdq, (image,)).pte
