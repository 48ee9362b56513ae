"""Strip uv.lock to package names and versions, so that it can be committed.

A lock that uv writes holds the address of every file on the index it was resolved from. The
committed one holds none: uv completes it from whichever index or mirror is set up on the reader's
machine, and keeps exactly these versions.

    python tools/strip_lock.py            strip uv.lock in place
    python tools/strip_lock.py --check    exit 1 if uv.lock is not stripped, change nothing
    python tools/strip_lock.py --stdout   print the stripped text, change nothing
"""

import argparse
import sys
import tomllib
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "uv.lock"
HEAD = """\
# Names and versions only; uv adds the rest on your machine. `python tools/strip_lock.py` removes
# it again.
"""


def strip(text: str) -> str:
    """Return the lock with nothing but names and versions.

    uv re-resolves such a lock and prefers the versions in it; edges, markers and hashes come from
    the index. A package with two versions (one for older Pythons) keeps both.

    Args:
        text: A uv.lock, complete or stripped.

    Returns:
        The stripped lock; stripping it again gives the same text.

    Raises:
        ValueError: If a package comes from a place other than an index, as its version alone would
            not find it again.
    """
    lock = tomllib.loads(text)
    lines = [
        HEAD,
        f"version = {lock['version']}\n",
        f'requires-python = "{lock["requires-python"]}"\n',
    ]
    for package in lock["package"]:
        source = package["source"]
        if "editable" in source or "virtual" in source:  # the project itself
            continue
        if "registry" not in source:
            raise ValueError(f"{package['name']} comes from {source}, expected an index")
        lines.append(
            f'\n[[package]]\nname = "{package["name"]}"\nversion = "{package["version"]}"\n'
            'source = { registry = "." }\n'
        )
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="exit 1 if it is not stripped")
    how.add_argument("--stdout", action="store_true", help="print, change nothing")
    args = parser.parse_args()

    before = LOCK.read_bytes().decode("utf-8")
    after = strip(before)
    if args.stdout:
        sys.stdout.write(after)
    elif args.check and before != after:
        print("uv.lock holds more than names and versions; run: python tools/strip_lock.py")
        return 1
    elif before != after:
        LOCK.write_bytes(after.encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
