"""The address of the repository: one place, and everything else says what stands there."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from common import DISTRIBUTION
from tests.notebook_rules import MAX_CODE_LINES
from tools import english, repository

ROOT = Path(__file__).resolve().parent.parent
LESSON = "notebooks/M08-2_lowering.ipynb"


def test_everything_says_what_pyproject_says() -> None:
    found = repository.faults()
    assert not found, "\n".join([*found, "run: python -m tools.repository"])


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = english.read(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_the_bootstrap_cell_is_one_text_and_comes_before_all_code() -> None:
    """Written without the tool."""
    paths = sorted((ROOT / "notebooks").rglob("*.ipynb"))
    first = [
        next(cell for cell in cells(path) if cell["cell_type"] == "code")
        for path in paths
        if ".ipynb_checkpoints" not in path.parts
    ]
    assert len(first) >= 8
    assert {cell["id"] for cell in first} == {"bootstrap"}
    assert len({cell["source"] for cell in first}) == 1
    assert not any(cell["outputs"] for cell in first)
    lines = [line for line in first[0]["source"].splitlines() if line.strip()]
    assert len(lines) <= MAX_CODE_LINES


def test_the_bootstrap_cell_asks_for_the_declared_versions() -> None:
    where = repository.address()
    assert where.distribution == DISTRIBUTION
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, version in where.oldest.items():
        (line,) = re.findall(rf'^    "({name}>=[^"]+)",$', lines, re.MULTILINE)
        assert Requirement(line).specifier.contains(".".join(map(str, version)))
        older = (*version[:-1], version[-1] - 1)
        assert not Requirement(line).specifier.contains(".".join(map(str, older)))


# --- A copy that gets another address


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that carry the address, without an address, and what the lessons link to."""
    for name in repository.TEXTS:
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    assert repository.main([repository.UNKNOWN, "--ref", "main"], tmp_path) == 0
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    paths = (
        path for path in folder.rglob("*") if path.suffix in (".md", ".toml", ".cff", ".ipynb")
    )
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in paths}


def stale(folder: Path) -> list[str]:
    editions = [english.edition(path) for path in repository.notebooks(folder)]
    return [piece.name for one in editions for piece in one.pieces if piece.state != "current"]


def test_one_command_writes_the_address_everywhere_and_back(copy: Path) -> None:
    before = texts(copy)
    assert repository.main(["some-one/m.08_x", "--ref", "v1.2.0"], copy) == 0
    assert repository.faults(copy) == []
    after = texts(copy)
    left = {name for name, text in after.items() if repository.UNKNOWN in text}
    assert left == {"pyproject.toml"}, "only the comment that says what OWNER/REPO means"
    assert not stale(copy), "a new address makes no prose stale"
    assert "git+https://github.com/some-one/m.08_x@v1.2.0" in after[LESSON]
    link = "colab.research.google.com/github/some-one/m.08_x/blob/v1.2.0/notebooks/"
    assert after[LESSON].count(f"{link}M08-2_lowering.ipynb") == 1
    twin = after[LESSON.replace("notebooks/", "notebooks/en/")]
    assert twin.count(f"{link}en/M08-2_lowering.ipynb") == 1
    assert "https://github.com/some-one/m.08_x\n" in after["CITATION.cff"]
    assert repository.main([repository.UNKNOWN, "--ref", "main"], copy) == 0
    assert texts(copy) == before


def test_without_an_address_there_is_nothing_to_install_from(copy: Path) -> None:
    """A stranger may own the name that stands for it."""
    source = next(c for c in cells(copy / LESSON) if c["id"] == "bootstrap")["source"]
    assert f'"{repository.UNKNOWN}"' in source
    assert "//" not in source


def test_stale_prose_stays_stale(copy: Path) -> None:
    path = copy / LESSON
    nb = english.read(path.read_text(encoding="utf-8"))
    header = next(cell for cell in nb["cells"] if cell["id"] == "header")
    header["source"] += "\n\n新的一句。"
    path.write_text(english.written(nb), encoding="utf-8")
    assert repository.main(["some/one"], copy) == 0
    assert stale(copy) == ["M08-2:header"]


def test_a_new_notebook_gets_the_cell_before_its_first_section(copy: Path) -> None:
    blank = {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    new = [
        {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# Mine"},
        {"cell_type": "markdown", "id": "set-up", "metadata": {}, "source": "## 1 Set up"},
        {
            **{"cell_type": "code", "id": "imports", "metadata": {}, "source": "import torch"},
            **{"execution_count": 1, "outputs": []},
        },
    ]
    path = copy / "notebooks/M08-9_new.ipynb"
    path.write_text(json.dumps({**blank, "cells": new}), encoding="utf-8")
    assert repository.main([], copy) == 0
    assert [cell["id"] for cell in cells(path)] == ["title", "bootstrap", "set-up", "imports"]
    (fault,) = repository.faults(copy)
    assert fault == (
        "notebooks/M08-9_new.ipynb: no link to https://colab.research.google.com/github/"
        "OWNER/REPO/blob/main/notebooks/M08-9_new.ipynb"
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("CITATION.cff", "/OWNER/REPO", "/else/where", "CITATION.cff: the address else/where"),
        ("README.md", "github.com/OWNER/REPO", "example", "README.md: holds no address"),
        (LESSON, "github/OWNER/REPO", "github/else/where", "blob/main/notebooks/M08-2_lowering"),
        (LESSON, "def bootstrap", "def boots", f"{LESSON}: cell 'bootstrap' is not what"),
        (LESSON, '"id": "bootstrap"', '"id": "other"', "the first code cell is not 'bootstrap'"),
        (LESSON.replace("notebooks/", "notebooks/en/"), "notebooks/en/M08-2", "notebooks/M08-2",
         "notebooks/en/M08-2_lowering.ipynb: the link"),
    ],
    ids=["text", "no address", "link", "cell", "first", "other language"],
)  # fmt: skip
def test_another_address_is_named(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, expected: str
) -> None:
    path = copy / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    capsys.readouterr()
    assert repository.main(["--check"], copy) == 1
    assert expected in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == text.replace(old, new), "--check writes nothing"


@pytest.mark.parametrize("words", [["no-slash"], ["a/b c"], ['a/b"'], ["a/b", "--ref", "x y"]])
def test_what_is_no_address_changes_nothing(
    copy: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    before = texts(copy)
    assert repository.main(words, copy) == 2
    assert "expected owner/name" in capsys.readouterr().err
    assert texts(copy) == before


def test_a_workflow_compares_it_with_where_it_runs(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.main(["--check", "--here", "some/one"], copy) == 0
    assert capsys.readouterr().out.startswith("::warning::there is no address yet")
    repository.main(["some/one"], copy)
    assert repository.main(["--check", "--here", "Some/One"], copy) == 0
    capsys.readouterr()
    assert repository.main(["--check", "--here", "other/one"], copy) == 1
    said = capsys.readouterr().out
    assert (
        said
        == "pyproject.toml says some/one, this is other/one: python -m tools.repository other/one\n"
    )
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert 'python -m tools.repository --check --here "$GITHUB_REPOSITORY"' in workflow


# --- Files for people who come by


def parsed(path: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


FORMS = ("broken", "unclear", "translation")


@pytest.mark.parametrize("name", FORMS)
def test_issue_form(name: str) -> None:
    form = parsed(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert (
        {"name", "description", "body"} <= form.keys() <= {"name", "description", "labels", "body"}
    )
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids)
    for part in form["body"]:
        assert part["type"] in ("textarea", "input", "dropdown")
        assert part["attributes"]["label"]
        assert (part["type"] == "dropdown") == ("options" in part["attributes"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])
    assert {path.stem for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")} == {
        *FORMS,
        "config",
    }


def test_the_environment_report_of_the_form_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / ".github/ISSUE_TEMPLATE/broken.yml").read_text(encoding="utf-8")
    (command,) = re.findall(r'`python -c "(.+)"`', text)
    exec(compile(command, "broken.yml", "exec"), {})
    assert capsys.readouterr().out.startswith("env: ")


def test_citation_says_what_pyproject_says() -> None:
    citation = parsed("CITATION.cff")
    project = repository.tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == project["version"]
    assert [author["name"] for author in citation["authors"]] == [project["authors"][0]["name"]]
    assert " AND ".join(citation["license"]) == project["license"]
    assert citation["repository-code"] == project["urls"]["Repository"]


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    releases = [heading.split()[0] for heading in headings if heading != "Unreleased"]
    project = repository.tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert releases[0] == project["version"]


def test_pre_commit_has_the_ruff_of_the_lock() -> None:
    config = parsed(".pre-commit-config.yaml")
    (repo,) = config["repos"]
    lock = repository.tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    (ruff,) = (package for package in lock["package"] if package["name"] == "ruff")
    assert repo["rev"] == f"v{ruff['version']}"
    assert [hook["id"] for hook in repo["hooks"]] == ["ruff-check", "ruff-format"]
    assert all("jupyter" in hook["types_or"] for hook in repo["hooks"])


def test_commands_and_links_of_contributing_lead_somewhere() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    commands = "\n".join(re.findall(r"^ *```bash\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    files = re.findall(r"(?<![\w./-])(?:tools|tests|notebooks|common|\.ci)/[\w./-]+", commands)
    assert links
    assert len(files) >= 8
    assert not [name for name in [*links, *files] if not (ROOT / name).exists()]
    assert all(find_spec(name) for name in re.findall(r"python -m ([\w.]+)", commands))
