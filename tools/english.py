"""Keep the English edition in step with the Chinese one: the one writer of notebooks/en.

    python tools/english.py                     # copy what is copied, list the prose to renew
    python tools/english.py --check             # change nothing; 1 if the editions differ
    python tools/english.py --renewed M08-1:title "ops:*"   # this prose renders the Chinese again
    python tools/english.py --prose M08-1.json  # take prose from {cell id: Markdown}

An English lesson has the code, outputs, ids, tags and order of the Chinese one, byte for byte;
its prose alone is written by people. So has a page (README.md, symptoms.md, ops.md) the tables and
the names of tests. The unit of prose is a Markdown cell of a lesson, a section of a page. Each
stores the SHA-256 of the Chinese text that it renders: a cell in its metadata under
`m08.source_sha256`, a section in a comment above its heading. When the Chinese text changes, the
English prose stays, and is stale until somebody renews it and says so with `--renewed`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tools import parity

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
LANGUAGE = "en"
PAGES = ("README.md", "symptoms.md", "ops.md")
# These differ from language to language, see glossary.py.
RENDERED_TABLES = ("glossary",)


class Refused(Exception):
    """What was asked for does not fit the files."""


@dataclass(frozen=True)
class Piece:
    """A Markdown cell of a lesson or a section of a page, in both languages.

    Attributes:
        name: How a person names it: `M08-1:title`, `symptoms:12`.
        chinese: The Chinese text.
        english: The English text; None where there is none yet.
        sha256: SHA-256 of the Chinese text that the English one renders.
    """

    name: str
    chinese: str
    english: str | None
    sha256: str | None

    @property
    def state(self) -> str:
        """`new`, `stale` or `current`."""
        if self.english is None or self.sha256 is None:
            return "new"
        return "current" if self.sha256 == sha256(self.chinese) else "stale"

    def renewed(self, english: str | None = None) -> Piece:
        """This piece with prose that renders the present Chinese text."""
        text = self.english if english is None else english
        return replace(self, english=text, sha256=sha256(self.chinese))


def sha256(chinese: str) -> str:
    """SHA-256 of a Chinese text, without what is copied from it."""
    return hashlib.sha256(_COPIED.sub("", chinese).encode()).hexdigest()


def twin(path: Path) -> Path:
    """Where the English edition of a Chinese file stands."""
    return path.parent / LANGUAGE / path.name


def is_copy(path: Path) -> bool:
    """Whether a file belongs to the English edition of another."""
    return path.parent.name == LANGUAGE and (path.parents[1] / path.name).exists()


def sources(folder: Path) -> list[Path]:
    """The Chinese files that have an English edition."""
    pages = [folder / name for name in PAGES]
    return [*sorted(folder.glob("*.ipynb")), *(page for page in pages if page.exists())]


def store(path: Path, text: str) -> None:
    """Write by temporary file and rename, so that no reader ever sees half a file."""
    path.parent.mkdir(exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if path.exists():
            shutil.copymode(path, temporary)
        else:
            os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# --- Lessons. They are plain JSON here: to import nbformat takes seconds.

Notebook = dict[str, Any]


def read(text: str) -> Notebook:
    """A notebook with the source of each cell as one string."""
    nb: Notebook = json.loads(text)
    for cell in nb["cells"]:
        cell["source"] = "".join(cell["source"])
    return nb


def written(nb: Notebook) -> str:
    """The text of a notebook as tools/execute_notebooks.py stores it."""
    cells = [{**cell, "source": cell["source"].splitlines(keepends=True)} for cell in nb["cells"]]
    return json.dumps({**nb, "cells": cells}, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _lesson_pieces(chinese: Notebook, english: Notebook | None, stem: str) -> list[Piece]:
    own = {cell.get("id"): cell for cell in (english["cells"] if english else [])}
    pieces = []
    for cell in chinese["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        name, other = f"{stem.partition('_')[0]}:{cell['id']}", own.get(cell["id"])
        if other is None or other["cell_type"] != "markdown":
            pieces.append(Piece(name, cell["source"], None, None))
        else:
            recorded = other["metadata"].get("m08", {}).get("source_sha256")
            pieces.append(Piece(name, cell["source"], other["source"], recorded))
    return pieces


def _lesson(chinese: Notebook, pieces: Sequence[Piece]) -> str:
    """The English lesson: everything from the Chinese one, except the prose."""
    prose = iter(pieces)
    cells = []
    for cell in chinese["cells"]:
        if cell["cell_type"] == "markdown":
            piece, metadata = next(prose), dict(cell["metadata"])
            if piece.sha256 is not None:
                metadata["m08"] = {**metadata.get("m08", {}), "source_sha256": piece.sha256}
            text = cell["source"] if piece.english is None else piece.english
            cell = {**cell, "source": text, "metadata": metadata}
        cells.append(cell)
    return written({**chinese, "cells": cells})


# --- Pages

# What is copied from a Chinese section: tables that a tool makes, the line that names tests.
_COPIED = re.compile(
    r"^<!-- table: (?P<table>\w+) -->\n.*?^<!-- end -->$|^<!-- (?P<tests>test):[^\n]*-->$",
    re.MULTILINE | re.DOTALL,
)
_SOURCE = re.compile(r"^<!-- renders sha256: (\w+) -->\n", re.MULTILINE)


def sections(page: str) -> list[tuple[str | None, str]]:
    """(recorded SHA-256, text) of the sections of a page: a heading and what stands below it."""
    fenced = [match.span() for match in parity.FENCE.finditer(page)]
    starts = [
        match.start()
        for match in re.finditer(rf"(?:{_SOURCE.pattern})?^#{{1,6}} ", page, re.MULTILINE)
        if not any(begin <= match.start() < end for begin, end in fenced)
    ]
    found = []
    for begin, end in zip(starts, [*starts[1:], len(page)], strict=True):
        text = page[begin:end].strip("\n")
        recorded = _SOURCE.match(text)
        found.append((recorded[1] if recorded else None, _SOURCE.sub("", text, count=1)))
    if page[: starts[0] if starts else len(page)].strip():
        raise Refused("a page starts with a heading: text before it belongs to no section")
    return found


def _page_pieces(chinese: str, english: str | None, stem: str) -> list[Piece]:
    """Pair the sections: by the recorded hash first, the others by their neighbours."""
    ours = [text for _, text in sections(chinese)]
    theirs = sections(english or "")
    hashes = [recorded for recorded, _ in theirs]
    partners: dict[int, int] = {}
    for i, text in enumerate(ours):
        if (wanted := sha256(text)) in hashes:
            partners[i] = hashes.index(wanted)
    taken, before = set(partners.values()), -1
    for i in range(len(ours)):
        if i not in partners and before + 1 < len(theirs) and before + 1 not in taken:
            partners[i] = before + 1
        before = partners.get(i, before)
    for j, (_, text) in enumerate(theirs):
        if j not in partners.values():
            first = text.partition("\n")[0]
            raise Refused(f"{stem}: the English section {first!r} has no Chinese one: remove it")
    pieces = []
    for i, text in enumerate(ours):
        recorded, other = theirs[partners[i]] if i in partners else (None, None)
        pieces.append(Piece(f"{stem}:{i + 1}", text, other, recorded))
    return pieces


def _page(pieces: Sequence[Piece]) -> str:
    parts = []
    for piece in pieces:
        comment = f"<!-- renders sha256: {piece.sha256} -->\n" if piece.sha256 else ""
        english = piece.chinese if piece.english is None else piece.english
        parts.append(comment + with_copied_parts(piece.chinese, english))
    return "\n\n".join(parts) + "\n"


def with_copied_parts(chinese: str, english: str) -> str:
    """An English section with the tables and the names of tests of the Chinese one."""
    tables = {m["table"]: m[0] for m in _COPIED.finditer(chinese) if m["table"]}
    tests = [match[0] for match in _COPIED.finditer(chinese) if match["tests"]]

    def copied(match: re.Match[str]) -> str:
        if match["tests"]:
            return tests.pop(0) if tests else match[0]
        if match["table"] in RENDERED_TABLES:
            return match[0]
        return tables.get(match["table"], match[0])

    return _COPIED.sub(copied, english)


# --- Both


@dataclass(frozen=True)
class Edition:
    """One file in both languages.

    Attributes:
        source: The Chinese file.
        pieces: Its prose.
        text: What the English file should hold.
        stored: What it holds; None if it does not exist.
    """

    source: Path
    pieces: tuple[Piece, ...]
    text: str
    stored: str | None

    @property
    def path(self) -> Path:
        """The English file."""
        return twin(self.source)

    def with_pieces(self, pieces: Iterable[Piece]) -> Edition:
        """The same file with other prose."""
        pieces = tuple(pieces)
        if self.source.suffix == ".ipynb":
            chinese = read(self.source.read_text(encoding="utf-8"))
            return replace(self, pieces=pieces, text=_lesson(chinese, pieces))
        return replace(self, pieces=pieces, text=_page(pieces))

    def faults(self) -> list[str]:
        """Prose that is new, stale or does not agree, by name; and what was not copied."""
        found: list[str] = []
        here = f"{LANGUAGE}/{self.path.name}"
        for piece in self.pieces:
            if piece.state != "current":
                what = f"{piece.state}: render the Chinese text, then --renewed {piece.name}"
                found.append(f"{here}: {piece.name} is {what}")
            else:
                found += [f"{here}: {piece.name}: {text}" for text in self._disagreements(piece)]
        if self.text != self.stored:
            found.append(f"{here}: {_first_difference(self)}: run tools/english.py")
        return found

    def _disagreements(self, piece: Piece) -> list[str]:
        ours, theirs = piece.chinese, piece.english or ""
        names = [[m["table"] or "test" for m in _COPIED.finditer(t)] for t in (ours, theirs)]
        found = [] if names[0] == names[1] else [f"copied are {names[0]}, places {names[1]}"]
        ours, theirs = (_COPIED.sub("", text) for text in (ours, theirs))
        return found + parity.differences(ours, theirs, source=self.source, target=self.path)


def _first_difference(edition: Edition) -> str:
    """Where the English file is not what it should be."""
    if edition.stored is None:
        return "missing"
    if edition.source.suffix == ".ipynb":
        want, have = read(edition.text), read(edition.stored)
        ids = [[cell.get("id") for cell in nb["cells"]] for nb in (want, have)]
        if ids[0] != ids[1]:
            return "ids or order of cells differ"
        for one, other in zip(want["cells"], have["cells"], strict=True):
            for key in ("cell_type", "source", "outputs", "metadata", "execution_count"):
                if one.get(key) != other.get(key):
                    return f"{key.replace('source', 'code')} of cell {one['id']!r} differs"
        return "metadata or layout of the file differ"
    lines = zip(edition.text.splitlines(), edition.stored.splitlines(), strict=False)
    return next(
        (f"line {n} differs" for n, (one, other) in enumerate(lines, 1) if one != other),
        "the length differs",
    )


def edition(source: Path) -> Edition:
    """Read a Chinese file and its English edition.

    Raises:
        Refused: A section of an English page has no Chinese counterpart.
    """
    path, stem = twin(source), source.stem
    text = source.read_text(encoding="utf-8")
    stored = path.read_text(encoding="utf-8") if path.exists() else None
    if source.suffix == ".ipynb":
        pieces = _lesson_pieces(read(text), None if stored is None else read(stored), stem)
    else:
        pieces = _page_pieces(text, stored, stem)
    return Edition(source, (), "", stored).with_pieces(pieces)


def write(one: Edition) -> None:
    """Store the English file if it differs."""
    if one.text != one.stored:
        store(one.path, one.text)


def follow(source: Path) -> None:
    """Copy code and outputs of a Chinese lesson to its English edition, if there is one."""
    if twin(source).exists():
        write(edition(source))


def _with_prose(editions: list[Edition], files: Iterable[Path]) -> list[Edition]:
    prose: dict[str, str] = {}
    for file in files:
        texts = json.loads(file.read_text(encoding="utf-8"))
        prose |= {f"{file.stem.partition('_')[0]}:{key}": text for key, text in texts.items()}
    names = {piece.name for one in editions for piece in one.pieces}
    if unknown := sorted(prose.keys() - names):
        raise Refused(f"there is no Chinese prose called {', '.join(unknown)}")
    return [
        one.with_pieces(
            piece.renewed(prose[piece.name]) if piece.name in prose else piece
            for piece in one.pieces
        )
        for one in editions
    ]


def _renewed(editions: list[Edition], patterns: Sequence[str]) -> list[Edition]:
    names = [piece.name for one in editions for piece in one.pieces if piece.english is not None]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise Refused(f"there is no English prose called {pattern}")
    return [
        one.with_pieces(
            piece.renewed()
            if piece.english is not None and any(fnmatchcase(piece.name, p) for p in patterns)
            else piece
            for piece in one.pieces
        )
        for one in editions
    ]


def main(argv: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Entry point; returns the exit code (1: `--check` found something; 2: usage)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 if something differs"
    )
    parser.add_argument(
        "--renewed", nargs="+", default=[], metavar="NAME", help="accept this prose"
    )
    parser.add_argument("--prose", nargs="+", default=[], type=Path, metavar="JSON")
    options = parser.parse_args(argv)
    try:
        editions = [edition(source) for source in sources(folder)]
        if not options.check:
            editions = _renewed(_with_prose(editions, options.prose), options.renewed)
            for one in editions:
                write(one)
            editions = [edition(one.source) for one in editions]
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    faults = [fault for one in editions for fault in one.faults()]
    print("\n".join(faults or ["the English edition renders the present Chinese one"]))
    return int(options.check and bool(faults))


if __name__ == "__main__":
    sys.exit(main())
