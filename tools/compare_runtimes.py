"""Compare ExecuTorch with other runtimes: the same network, data and threads, in turn.

    python tools/compare_runtimes.py [--models tiny mobilenet_v2 resnet18] [--threads 1] [--write]

Each variant is a process of its own; all are alive and take turns on the same input. The figure is
the time relative to the int8 `.pte`: the median of the ratios within each round, with its
quartiles, and beside it how well the result agrees with eager fp32. Variants whose packages are
not installed are named and left out; `uv sync --group runtimes` installs them all. With `--write`
the tables replace those in docs/runtimes.md.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from tools.runtimes import machine, table
from tools.runtimes.catalogue import BASE, BY_NAME, available, installed
from tools.runtimes.networks import CALIBRATION_IMAGES, NETWORKS, TEST_IMAGES
from tools.runtimes.turns import CLOCKS, ChildError, Measured, measure

PAGE = Path(__file__).resolve().parent.parent / "docs" / "runtimes.md"
TORCHVISION = ("mobilenet_v2", "resnet18")


def main() -> int:
    """Read the options, measure, print and perhaps write; return the exit status."""
    options = _options()
    usable, skipped = available([BY_NAME[name] for name in options.variants])
    names = [variant.name for variant in usable]
    if BASE not in names:
        names.insert(0, BASE)
    sections = [_conditions(options, names)]
    print(sections[0])
    for network in options.models:
        if network in TORCHVISION and not installed("torchvision"):
            sections.append(
                f"Not measured: {network}: torchvision is not installed "
                "(uv sync --group runtimes).\n"
            )
        else:
            print(f"{network}: making {len(names)} variants ...", file=sys.stderr, flush=True)
            try:
                measured = _measure(network, names, options)
            except ChildError as error:
                print(f"{network}: {error}", file=sys.stderr)
                return 1
            failed = [f"Failed: {name}: {why}." for name, why in measured.failed.items()]
            notes = [*map(str, skipped), *failed]
            sections.append(table.markdown(NETWORKS[network], table.rows(measured), notes))
        print(sections[-1], flush=True)
    if options.write:
        table.write(PAGE, "\n".join(sections))
    return 0


def _measure(network: str, names: list[str], options: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary, network)
        folder.mkdir(parents=True, exist_ok=True)
        return measure(
            network,
            names,
            folder,
            threads=options.threads,
            rounds=options.rounds,
            seconds=options.seconds,
            clock=options.clock,
        )


def _conditions(options: argparse.Namespace, names: list[str]) -> str:
    """Return the paragraph above the tables: how, when and on what they were made."""
    needed = dict.fromkeys(d for name in names for d in BY_NAME[name].needs)
    clock = "" if options.clock == "wall" else f" of {options.clock} time"
    calibration = ", ".join(f"{n} {CALIBRATION_IMAGES[n]}" for n in options.models)
    test = ", ".join(f"{n} {TEST_IMAGES[n]}" for n in options.models)
    return (
        f"{datetime.date.today().isoformat()}, `tools/compare_runtimes.py`: "
        f"{options.threads} thread{'s' * (options.threads > 1)}, {options.rounds} rounds, "
        f"turns of about {options.seconds} s{clock}, batch 1. "
        f"Calibration images: {calibration}; test images: {test}.\n\n"
        f"- {machine.processor()}\n"
        f"- {machine.versions(['torch', 'torchao', 'executorch', 'torchvision', *needed])}\n"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    choose = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument(
        "--models", choices=NETWORKS, default=list(NETWORKS), help=", ".join(NETWORKS), **choose
    )
    parser.add_argument(
        "--variants", choices=BY_NAME, default=list(BY_NAME), help=", ".join(BY_NAME), **choose
    )
    parser.add_argument("--threads", type=int, default=1, help="for each runtime")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each variant")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu leaves out the waiting on a busy machine; for one thread only",
    )
    parser.add_argument(
        "--keep",
        metavar="FOLDER",
        help="leave the files there; those that are there are used again",
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/runtimes.md")
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads > 1:
        parser.error("--clock cpu adds up the threads: expected --threads 1")
    if options.threads < 1 or options.rounds < 1 or options.seconds <= 0:
        parser.error("expected --threads and --rounds of at least 1, --seconds above 0")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
