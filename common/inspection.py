"""Any ``.pte``, without its model: what is in it, and what changed from one to another.

In Python by `inspect_pte` and `compare_pte`; from a shell::

    python -m common.inspection model.pte
    python -m common.inspection before.pte after.pte --exit-code
    python -m common.inspection model.pte --json
    python -m common.inspection model.pte --html model.html

The command ends with status 0; 1 when a file is refused (it is no whole program, or its checksum
differs), or with ``--exit-code`` when two files differ; 2 when it was called wrongly.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from common._difference import Change, PteDifference, compare_pte, difference
from common._errors import PteError
from common._inspect_pte import inspect_pte
from common._inspected import (
    InspectedDelegate,
    InspectedMethod,
    InspectedOperator,
    InspectedStep,
    PteInspection,
)
from common._pte_bytes import Part, StoredData
from common._xnnpack_graph import XnnpackConstant, XnnpackGraph, XnnpackNode, XnnpackTensor
from common.pt2e import quiet

__all__ = [
    "Change",
    "InspectedDelegate",
    "InspectedMethod",
    "InspectedOperator",
    "InspectedStep",
    "Part",
    "PteDifference",
    "PteInspection",
    "StoredData",
    "XnnpackConstant",
    "XnnpackGraph",
    "XnnpackNode",
    "XnnpackTensor",
    "compare_pte",
    "inspect_pte",
    "main",
]

quiet()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: those of the command line; None for the process's own.

    Raises:
        SystemExit: with status 2, when the arguments are wrong.
    """
    options = _parser().parse_args(arguments)
    count = len(options.files)
    if count > 2 or (options.exit_code and count < 2):
        wanted = "two files" if options.exit_code else "one file or two"
        _parser().error(f"expected {wanted}, got {count}")
    try:
        found = [inspect_pte(file) for file in options.files]
        shown = found[0] if len(found) == 1 else difference(*found)
        if options.html:
            shown.to_html(options.html)
    except (PteError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.json:
        said = json.dumps(shown.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
    else:
        said = str(shown)
    sys.stdout.write(said + "\n")
    refused = [inspection.name for inspection in found if inspection.checksum == "differs"]
    for name in refused:
        sys.stderr.write(f"{name} differs from its .sha256 file\n")
    differ = options.exit_code and bool(shown)
    return int(bool(refused) or differ)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m common.inspection",
        description="Say what is in a .pte, or what changed from one to another. "
        "Nothing of the programs is loaded or executed.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="one .pte, or two to compare")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="OUT", help="also write a page that opens alone")
    parser.add_argument(
        "--exit-code", action="store_true", help="end with status 1 when two files differ"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
