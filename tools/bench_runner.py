"""Time `runner(x)` against ExecuTorch's own `method.execute([x])` on the same program.

    python tools/bench_runner.py [--rounds 400] [--seconds 4] [--check]

Short blocks of calls take turns, so that a busy machine slows both down. Prints one line for each
program: the median of the ratios of neighbouring blocks with its budget, the ratio of the fastest
blocks, and as a measure of the noise the same median for the raw call against itself. With
`--check` the exit status is 1 when a median is over its budget.
"""

from __future__ import annotations

import argparse

import torch

from common.data import trained_tiny_net
from common.env import env_summary
from common.executorch_utils import PteRunner, lower_to_xnnpack, xnnpack_ptq
from common.models import TinyConvNet, example_inputs
from common.timing import Comparison, compare


def int8_course_model() -> tuple[bytes, torch.Tensor]:
    """Return the program of M08-2, some 15 µs long, and an input."""
    example = example_inputs(1)
    qdq = xnnpack_ptq(trained_tiny_net(), example)
    return lower_to_xnnpack(qdq, example).pte, example[0]


def larger_model() -> tuple[bytes, torch.Tensor]:
    """Return a program of some milliseconds, and an input."""
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return lower_to_xnnpack(TinyConvNet(width=4).eval(), (x,)).pte, x


PROGRAMS = {
    "int8 TinyConvNet": (int8_course_model, 1.25),
    "fp32 TinyConvNet(width=4) at 64x64": (larger_model, 1.02),
}
"""Each program with the most that `runner(x)` may take, as a multiple of the raw call."""


def measure(pte: bytes, x: torch.Tensor, *, rounds: int, seconds: float) -> Comparison:
    """Time both ways to run a program."""
    runner = PteRunner(pte)
    # The runner's own method: a second one would lie elsewhere in memory, which costs more.
    execute = runner._method.execute
    ways = {
        "raw": lambda: execute([x]),
        "runner": lambda: runner(x),
        "raw again": lambda: execute([x]),
    }
    return compare(ways, rounds=rounds, seconds=seconds)


def main() -> int:
    """Read the options, time, print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=400, help="pairs of blocks")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each program")
    parser.add_argument("--check", action="store_true", help="exit status 1 when over budget")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(env_summary())
    over = False
    for name, (make, budget) in PROGRAMS.items():
        times = measure(*make(), rounds=options.rounds, seconds=options.seconds)
        ratio, noise = times.ratio("runner", "raw"), times.ratio("raw again", "raw")
        fastest = {way: min(seconds) for way, seconds in times.seconds.items()}
        over |= ratio > budget
        print(
            f"{name}: runner(x) / method.execute([x]) = {ratio:.3f} (budget {budget}; "
            f"fastest blocks {fastest['runner'] / fastest['raw']:.3f}; raw again / raw "
            f"{noise:.3f}); raw {times.median('raw') * 1e6:,.1f} us, "
            f"fastest {fastest['raw'] * 1e6:,.1f} us"
        )
    return int(over and options.check)


if __name__ == "__main__":
    raise SystemExit(main())
