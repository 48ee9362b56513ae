"""Take every model of the zoo from PyTorch to a verified int8 `.pte`, and say what became of it.

    python tools/zoo.py [NAME ...] [--keep FOLDER] [--write]

Each model is quantized, lowered and compared with its graph; an fp32 program is made beside it.
A model that lowers must agree, one that is refused must be refused with the expected sentence;
anything else is reported and makes the exit status 1. With `--keep` each result is stored in the
folder, and what is there is not measured again, so that a run can be continued. With `--write` the
tables replace those in docs/zoo.md. `uv sync --group zoo` installs torchvision and timm; without
them only our own models are taken.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tools.runtimes import machine, table

if TYPE_CHECKING:
    from tools.zoo_measure import Found
    from tools.zoo_models import Entry

PAGE = Path(__file__).resolve().parent.parent / "docs" / "zoo.md"


def main() -> int:
    """Read the options, measure, print and perhaps write; return the exit status."""
    from common.pt2e import quiet

    quiet()
    import torch

    from tools import zoo_page
    from tools.zoo_models import BY_NAME, ENTRIES

    torch.set_num_threads(1)
    options = _options()
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        print(f"no such model: {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
        return 2
    entries = [BY_NAME[name] for name in options.names] or list(ENTRIES)
    missing = [entry.name for entry in entries if not is_installed(entry)]
    if missing:
        print(f"Not measured: {', '.join(missing)}: run `uv sync --group zoo` first.")
    found: list[Found] = []
    wrong: list[str] = []
    for entry in entries:
        if entry.name not in missing:
            result = _stored(entry, options.keep)
            found.append(result)
            faults = unexpected(entry, result)
            wrong += faults
            print(_line(result), *faults, sep="\n  ", flush=True)
    if options.write and (missing or options.names):
        print("docs/zoo.md is written only with all models: install the group, give no names.")
        return 2
    if options.write:
        table.write(PAGE, f"{_conditions()}\n{zoo_page.markdown(found)}")
    print(f"{len(found)} models, {len(wrong)} unexpected")
    return 1 if wrong else 0


def unexpected(entry: Entry, found: Found) -> list[str]:
    """Return a sentence for whatever is not as the entry says."""
    faults = []
    said = found.refused, found.refused_fp32
    for (kind, pattern), sentence in zip(entry.refusals(), said, strict=True):
        if pattern and not sentence:
            faults.append(
                f"{entry.name}, {kind}: expected a refusal with {pattern!r}, but it lowers"
            )
        elif sentence and not (pattern and re.search(pattern, sentence)):
            faults.append(f"{entry.name}, {kind}: refused, {sentence}")
    return faults


def is_installed(entry: Entry) -> bool:
    """Tell whether the package of a model is there."""
    return entry.package == "own" or find_spec(entry.package) is not None


def _stored(entry: Entry, folder: Path | None) -> Found:
    from tools.zoo_measure import Found, measure

    path = (
        None
        if folder is None
        else folder / f"{re.sub(r'[^a-z0-9]+', '-', entry.name.lower())}.json"
    )
    if path is not None and path.exists():
        return Found.from_json(json.loads(path.read_text("utf-8")))
    print(f"{entry.name} ...", file=sys.stderr, flush=True)
    found = measure(entry)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found.to_json(), indent=1) + "\n", "utf-8")
    return found


def _line(found: Found) -> str:
    if found.refused:
        return f"{found.name}: refused: {found.refused}"
    agrees = "equal" if found.sqnr is None else f"{found.sqnr:.1f} dB"
    return (
        f"{found.name}: {found.delegates} delegates, {found.inside} nodes inside, "
        f"{found.outside} outside; {found.int8:,} B, fp32 {found.fp32:,} B; "
        f"{agrees} to Q/DQ, {found.sqnr_fp32:.1f} dB to fp32; "
        f"{sum((found.seconds or {}).values()):.0f} s"
    )


def _conditions() -> str:
    packages = ["torch", "torchao", "executorch", "torchvision", "timm"]
    return (
        f"{datetime.date.today().isoformat()}, `tools/zoo.py`: 1 thread, seconds of processor "
        f"time.\n\n- {machine.processor()}\n- {machine.versions(packages)}\n"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="results are stored here")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/zoo.md")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
