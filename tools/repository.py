"""Write the address of the repository wherever it stands, and the bootstrap cell of each notebook.

    python -m tools.repository                      # write what pyproject.toml says
    python -m tools.repository NAME/REPOSITORY      # change it there first; --ref for the branch
    python -m tools.repository --check              # write nothing; 1 if something differs
    python -m tools.repository --check --here X/Y   # and compare with the repository it runs in

`[tool.m08]` in pyproject.toml is the one place that says where the project lives. From it come
the links that open a notebook in Colab, the addresses in the files of `TEXTS`, and the first code
cell of each notebook, made from bootstrap_cell.txt, which installs the package in Colab. As long
as there is no address the links say OWNER/REPO and the cell has nothing to install from.

Needs no package. Outputs are not touched: the bootstrap cell shows none where all is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

from tools import english

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN = "OWNER/REPO"
CELL = "bootstrap"
TEMPLATE = ROOT / "tools/bootstrap_cell.txt"
INSTALLED_FIRST = ("torch", "torchao", "executorch")
# Every address on GitHub in these files is ours.
TEXTS = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CITATION.cff")

_NAME = re.compile(r"[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?/[\w.-]*\w")
_REF = re.compile(r"\w[\w./-]*")
_GITHUB = re.compile(r"(github\.com/)([\w.-]+/[\w.-]*\w)")
_COLAB = re.compile(r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]*\w)/blob/[^\s()]*\.ipynb")
_SETTING = r'^({key} = ")[^"\n]*(")'


class Refused(Exception):
    """An argument or a file is not what it has to be."""


@dataclass(frozen=True)
class Address:
    """Where the project lives, as `[tool.m08]` in pyproject.toml says.

    Attributes:
        repository: `owner/name`.
        ref: Branch or tag from which notebooks are opened and the package is installed.
        distribution: Name of the package for pip.
        oldest: Oldest version of each library with which the package works.
    """

    repository: str
    ref: str
    distribution: str
    oldest: dict[str, tuple[int, ...]]

    @property
    def source(self) -> str:
        """What pip installs. Without an address: a word that pip takes to no server."""
        if self.repository == UNKNOWN:
            return UNKNOWN
        return f"git+https://github.com/{self.repository}@{self.ref}"

    def colab(self, path: str) -> str:
        """The link that opens a notebook in Colab; `path` is seen from the root."""
        return f"https://colab.research.google.com/github/{self.repository}/blob/{self.ref}/{path}"

    def bootstrap(self) -> str:
        """The code of the first code cell of each notebook."""
        cell = Template(TEMPLATE.read_text(encoding="utf-8"))
        oldest = ", ".join(f'"{name}": {version}' for name, version in self.oldest.items())
        return cell.substitute(
            source=self.source, distribution=self.distribution, oldest=f"{{{oldest}}}"
        ).rstrip("\n")


def address(root: Path = ROOT) -> Address:
    """Read pyproject.toml.

    Raises:
        Refused: The name of the repository or the branch is none.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = {}
    for name in INSTALLED_FIRST:
        (line,) = (d for d in project["project"]["dependencies"] if re.match(rf"{name}>=", d))
        lower = line.removeprefix(f"{name}>=").partition(",")[0]
        oldest[name] = tuple(int(number) for number in lower.split("."))
    said = project["tool"]["m08"]
    found = Address(said["repository"], said["ref"], project["project"]["name"], oldest)
    if not _NAME.fullmatch(found.repository) or not _REF.fullmatch(found.ref):
        raise Refused(
            f"[tool.m08] in pyproject.toml names {found.repository!r} at {found.ref!r}; "
            "expected are owner/name and a branch or tag"
        )
    return found


# --- Texts


def with_address(text: str, where: Address) -> str:
    """A text in which every address on GitHub is that of the project."""
    return _GITHUB.sub(lambda match: match[1] + where.repository, text)


def _text_faults(name: str, text: str, where: Address) -> list[str]:
    found = [match[2] for match in _GITHUB.finditer(text)]
    if not found:
        return [f"{name}: holds no address github.com/{where.repository}"]
    others = sorted(set(found) - {where.repository})
    return [f"{name}: the address {other}, expected {where.repository}" for other in others]


# --- Notebooks


def with_links(prose: str, path: str, where: Address) -> str:
    """Markdown in which links to Colab open this notebook."""
    return _COLAB.sub(where.colab(path).partition("//")[2].replace("\\", r"\\"), prose)


def with_bootstrap(nb: dict[str, Any], where: Address) -> dict[str, Any]:
    """A notebook with the bootstrap cell as it has to be; a new one goes before the first section.

    A new cell has no execution count: tools/execute_notebooks.py gives it one.
    """
    cells: list[dict[str, Any]] = list(nb["cells"])
    new: dict[str, Any] = {"cell_type": "code", "execution_count": None, "id": CELL}
    new |= {"metadata": {}, "outputs": [], "source": where.bootstrap()}
    for i, cell in enumerate(cells):
        if cell.get("id") == CELL:
            count = cell.get("execution_count")
            cells[i] = {**new, "execution_count": count, "metadata": cell["metadata"]}
            return {**nb, "cells": cells}
    starts = (
        i
        for i, cell in enumerate(cells)
        if cell["cell_type"] == "code" or re.search("^## ", cell["source"], re.MULTILINE)
    )
    cells.insert(next(starts, len(cells)), new)
    return {**nb, "cells": cells}


def _notebook(text: str, path: str, where: Address) -> str:
    nb = with_bootstrap(english.read(text), where)
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = with_links(cell["source"], path, where)
    return english.written(nb)


def _notebook_faults(text: str, path: str, where: Address) -> list[str]:
    nb = english.read(text)
    code = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    found = []
    if not code or code[0].get("id") != CELL:
        found.append(f"{path}: the first code cell is not {CELL!r}")
    elif code[0]["source"] != where.bootstrap():
        found.append(f"{path}: cell {CELL!r} is not what tools/bootstrap_cell.txt gives")
    prose = "\n".join(cell["source"] for cell in nb["cells"] if cell["cell_type"] == "markdown")
    links = [f"https://{match[0]}" for match in _COLAB.finditer(prose)]
    if not links:
        found.append(f"{path}: no link to {where.colab(path)}")
    return found + [
        f"{path}: the link {link}, expected {where.colab(path)}"
        for link in links
        if link != where.colab(path)
    ]


def _write_notebook(source: Path, where: Address) -> None:
    """Write a Chinese notebook and its English edition.

    A new address does not make the English prose stale: it is written into both.
    """
    twin = english.twin(source)
    current = (
        {piece.name for piece in english.edition(source).pieces if piece.state == "current"}
        if twin.exists()
        else set()
    )
    stored = source.read_text(encoding="utf-8")
    text = _notebook(stored, f"notebooks/{source.name}", where)
    if text != stored:
        english.store(source, text)
    if twin.exists():
        edition = english.edition(source)
        pieces = []
        for piece in edition.pieces:
            if piece.english is not None:
                path = f"notebooks/{english.LANGUAGE}/{source.name}"
                piece = replace(piece, english=with_links(piece.english, path, where))
            pieces.append(piece.renewed() if piece.name in current else piece)
        english.write(edition.with_pieces(pieces))


# --- All of it


def notebooks(root: Path) -> list[Path]:
    """The Chinese notebooks."""
    return sorted((root / "notebooks").glob("*.ipynb"))


def write(root: Path = ROOT) -> None:
    """Write what pyproject.toml says everywhere.

    Raises:
        Refused: See `address`.
    """
    where = address(root)
    for name in TEXTS:
        text = (root / name).read_text(encoding="utf-8")
        if (new := with_address(text, where)) != text:
            english.store(root / name, new)
    for source in notebooks(root):
        _write_notebook(source, where)


def faults(root: Path = ROOT) -> list[str]:
    """Where something else stands than pyproject.toml says; a sentence each."""
    where = address(root)
    found: list[str] = []
    for name in TEXTS:
        found += _text_faults(name, (root / name).read_text(encoding="utf-8"), where)
    for source in notebooks(root):
        for path in (source, english.twin(source)):
            if path.exists():
                name = path.relative_to(root).as_posix()
                found += _notebook_faults(path.read_text(encoding="utf-8"), name, where)
    return found


def _set(root: Path, key: str, value: str) -> None:
    path = root / "pyproject.toml"
    head, mark, table = path.read_text(encoding="utf-8").partition("[tool.m08]\n")
    pattern = _SETTING.format(key=key)
    table, count = re.subn(pattern, rf"\g<1>{value}\g<2>", table, count=1, flags=re.MULTILINE)
    if count != 1:
        raise Refused(f"pyproject.toml has no {key} in [tool.m08]")
    english.store(path, head + mark + table)


def _differs(here: str, where: Address) -> str:
    """What is wrong with the address, seen from the repository in which a workflow runs."""
    if where.repository == UNKNOWN or where.repository.lower() == here.lower():
        return ""
    return (
        f"pyproject.toml says {where.repository}, this is {here}: python -m tools.repository {here}"
    )


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Entry point; returns the exit code (1: `--check` found something; 2: usage)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", metavar="NAME/REPOSITORY", help="the new address")
    parser.add_argument("--ref", help="the branch or tag to open and install")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--here", metavar="NAME/REPOSITORY", help="where a workflow runs")
    options = parser.parse_args(argv)
    new = {"repository": options.name, "ref": options.ref}
    try:
        for (key, value), form in zip(new.items(), (_NAME, _REF), strict=True):
            if value and not form.fullmatch(value):
                raise Refused(f"{value} is no {key}: expected owner/name, or a branch or tag")
        if not options.check:
            for key, value in new.items():
                if value:
                    _set(root, key, value)
            write(root)
        where, found = address(root), faults(root)
    except (Refused, english.Refused) as error:
        print(error, file=sys.stderr)
        return 2
    if options.here and (sentence := _differs(options.here, where)):
        found.append(sentence)
    if options.here and where.repository == UNKNOWN:
        print(f"::warning::there is no address yet: python -m tools.repository {options.here}")
    print("\n".join(found or [f"everything says {where.repository} at {where.ref}"]))
    return int(options.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
