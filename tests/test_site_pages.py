"""The pages of the site before Sphinx sees them; tests/browser/ looks at what comes out."""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
import subprocess
from pathlib import Path

import pytest

from tools import build_site, site_pages
from tools.site_pages import Page, with_links

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", params=site_pages.LANGUAGES)
def pages(request: pytest.FixtureRequest) -> dict[str, Page]:
    """All pages of one language by name."""
    return {page.name: page for page in site_pages.pages(request.param)}


def entries(page: Page) -> list[str]:
    """The pages that the toctrees of a page list."""
    blocks = re.findall(r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```", page.text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    names = [re.sub(r"^.*<(.*)>$", r"\1", line) for line in lines]
    return [posixpath.join(posixpath.dirname(page.name), name) for name in names]


# --- which pages there are


def test_every_page_is_in_one_toctree(pages: dict[str, Page]) -> None:
    listed = [name for page in pages.values() for name in entries(page)]
    assert sorted([*listed, "index"]) == sorted(pages)


def test_every_lesson_page_and_module_has_a_page(pages: dict[str, Page]) -> None:
    expected = {path.stem for path in (ROOT / "notebooks").glob("M08-*.ipynb")}
    expected |= {path.stem for path in (ROOT / "notebooks").glob("*.md")} - {"README"}
    expected |= {path.stem for path in (ROOT / "docs").glob("*.md")}
    expected |= {f"api/{p.stem}" for p in (ROOT / "common").glob("[!_]*.py")}
    assert set(pages) == expected | {"index", "glossary", "outputs", "project", "api/index"}


def test_both_languages_have_the_same_pages_and_differ() -> None:
    chinese, english = ({p.name: p for p in site_pages.pages(x)} for x in site_pages.LANGUAGES)
    assert list(chinese) == list(english)
    same = {name for name in chinese if chinese[name].text == english[name].text}
    assert same == {name for name in chinese if re.match("api/(?!index)", name)}


def test_links_between_pages_lead_to_a_page(pages: dict[str, Page]) -> None:
    files = {f"{page.name}{page.suffix}" for page in pages.values()}
    files |= {f"images/{path.name}" for path in (ROOT / "notebooks/images").iterdir()}
    found = []
    for page in pages.values():
        texts = [page.text]
        if page.suffix == ".ipynb":
            cells = json.loads(page.text)["cells"]
            texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
        for link in re.findall(r"\]\(([^)#\s]+)", "\n".join(texts)):
            if "://" not in link:
                found.append(link)
                path = posixpath.normpath(posixpath.join(posixpath.dirname(page.name), link))
                assert path in files, f"{page.name}: {link}"
    assert len(found) > 20


def test_written_pages_replace_older_ones(tmp_path: Path) -> None:
    old, kept = tmp_path / "old.md", tmp_path / "index.md"
    old.write_text("# Old\n")
    made = site_pages.write(tmp_path, "en")
    assert not old.exists()
    assert sum(1 for path in tmp_path.rglob("*") if path.suffix in (".md", ".ipynb")) == len(made)
    os.utime(kept, (1, 1))
    site_pages.write(tmp_path, "en")
    assert kept.stat().st_mtime == 1, "a page that is the same was written again"


# --- links


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("notebooks/ops.md", "[a](README.md#x)", "[a](index.md#x)"),
        ("notebooks/ops.md", "[a](M08-2_lowering.ipynb)", "[a](M08-2_lowering.ipynb)"),
        ("notebooks/en/ops.md", "[a](M08-2_lowering.ipynb)", "[a](M08-2_lowering.ipynb)"),
        ("notebooks/en/README.md", "![p](../images/road.svg)", "![p](images/road.svg)"),
        ("notebooks/README.md", "[a](../README.md#two-commands)", "[a](project.md#two-commands)"),
        ("README.md", "[`common`](common)", "[`common`](api/index.md)"),
        ("README.md", '<p>\n<img src="a/x.svg"\n alt="b"></p>', "![b](images/x.svg)"),
        ("README.md", '<a href="docs/runtimes.md">', '<a href="runtimes.html">'),
        ("README.md", "[the `tools`](tools)", "the `tools`"),
        ("README.md", "[a](https://example.com/x) [b](#c)", "[a](https://example.com/x) [b](#c)"),
        (
            "README.md",
            "`[a](tools)`\n```\n[a](tools)\n```\n",
            "`[a](tools)`\n```\n[a](tools)\n```\n",
        ),
        ("notebooks/ops.md", "# T\n\n[English](en/ops.md)\n\ntext", "# T\n\ntext"),
        (
            "notebooks/x.md",
            "[![Open](https://e.com/b.svg)](https://e.com/x)",
            "[Open](https://e.com/x)",
        ),
        ("notebooks/x.md", "[![Open](https://e.com/b)](https://e.com/OWNER/REPO)", ""),
    ],
)
def test_links_lead_to_the_page_of_the_file(
    source: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_pages, "repository", lambda: None)
    assert with_links(text, source=source, page="here", language="zh") == expected


def test_what_the_site_does_not_show_is_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_pages, "repository", lambda: "us/it")
    text = "[tools](../tools) [one](../tools/english.py#L1) [glossary](README.md)"
    assert with_links(text, source="docs/x.md", page="api/x", language="en") == (
        "[tools](https://github.com/us/it/tree/main/tools) "
        "[one](https://github.com/us/it/blob/main/tools/english.py#L1) "
        "[glossary](https://github.com/us/it/blob/main/docs/README.md)"
    )


def test_a_page_has_one_title() -> None:
    one = "# A\n\n## B\n```\n# no heading\n```\n"
    assert site_pages.one_title(one) == one
    two = "# A\n\n# B\n\n## C\n```\n# no heading\n```\n"
    assert site_pages.one_title(two) == "# A\n\n## B\n\n### C\n```\n# no heading\n```\n"


# --- lessons


def test_alt_texts_stand_where_the_site_looks_for_them() -> None:
    pictures = 0
    for path in sorted((ROOT / "notebooks").glob("M08-*.ipynb")):
        text = path.read_text(encoding="utf-8")
        made = site_pages.lesson(text, source=f"notebooks/{path.name}", page="x", language="zh")
        for cell in json.loads(made)["cells"]:
            for output in cell.get("outputs", []):
                if "image/png" in output.get("data", {}):
                    alt = output["metadata"]["image/png"]["alt"]
                    assert cell["metadata"]["mystnb"] == {"image": {"alt": alt}}
                    pictures += 1
    assert pictures


def notebook(prose: str, output: str) -> str:
    """A small notebook as JSON text."""
    text = [{"output_type": "stream", "text": [output]}]
    cells = [
        {"cell_type": "markdown", "source": [prose], "metadata": {}},
        {
            "cell_type": "code",
            "source": ["print(1)\n", "assert True\n", "assert not False"],
            "metadata": {"tags": ["nbval-ignore-output"]},
            "outputs": text,
            "execution_count": 1,
        },
        {
            "cell_type": "code",
            "source": ["x = 1"],
            "metadata": {},
            "outputs": [],
            "execution_count": 2,
        },
        {
            "cell_type": "code",
            "source": [],
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        },
    ]
    return json.dumps({"cells": cells})


def test_the_cell_for_colab_is_folded() -> None:
    cells = [{"id": x, "cell_type": "code", "metadata": {}} for x in ("bootstrap", "other")]
    text = json.dumps({"cells": cells})
    made = site_pages.lesson(text, source="notebooks/x.ipynb", page="x", language="zh")
    assert [c["metadata"] for c in json.loads(made)["cells"]] == [{"tags": ["hide-input"]}, {}]


def test_outputs_date_from_the_commit_that_brought_them(tmp_path: Path) -> None:
    file = tmp_path / "a.ipynb"
    line = "env: Linux x86_64, 2 CPUs (AVX2), Python 3.11.7, torch 2.14.1 torchao 0.18.0\n"

    def commit(text: str, day: str) -> None:
        file.write_text(text, encoding="utf-8")
        who = {f"GIT_{x}_{y}": "a@b" for x in ("AUTHOR", "COMMITTER") for y in ("NAME", "EMAIL")}
        when = {f"GIT_{x}_DATE": f"{day}T12:00:00Z" for x in ("AUTHOR", "COMMITTER")}
        words = ["git", "-c", "commit.gpgsign=false"]
        for rest in (["add", "."], ["commit", "-qm", "x"]):
            subprocess.run([*words, *rest], cwd=tmp_path, env=os.environ | who | when, check=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(notebook("old", "env: other\n"), "2026-01-01")
    commit(notebook("old", line), "2026-01-02")
    commit(notebook("new prose", line), "2026-01-03")
    facts = site_pages.stored("a.ipynb", tmp_path)
    assert facts.since == "2026-01-02"
    assert (facts.cells, facts.with_output, facts.compared, facts.asserts) == (3, 1, 1, 2)
    versions = [facts.version(x) for x in ("Python", "torch", "torchao", "executorch")]
    assert versions == ["3.11.7", "2.14.1", "0.18.0", ""]

    file.write_text(notebook("new prose", "env: newer\n"), encoding="utf-8")
    assert site_pages.stored("a.ipynb", tmp_path).since == ""


def test_the_page_of_outputs_names_every_lesson(pages: dict[str, Page]) -> None:
    text = pages["outputs"].text
    for path in (ROOT / "notebooks").glob("M08-*.ipynb"):
        label = path.stem.partition("_")[0]
        rows = re.findall(rf"^\| \[{label}\]\({path.name}\) \|.*$", text, re.M)
        assert len(rows) == 2
        assert re.search(r"\| \d+\.\d+\.\d+ \|", rows[0]), "no version: where is its env line?"


# --- building


def test_an_asset_from_elsewhere_is_found(tmp_path: Path) -> None:
    """A link to another host is none; what the browser would fetch is one."""
    page, style = tmp_path / "a.html", tmp_path / "a.css"
    page.write_text('<a href="https://e.com/x.js">x</a> <img src="a.png"> <script src="b.js">')
    style.write_text("a { background: url(c.png) } /* https://e.com */")
    assert build_site.foreign_assets(tmp_path) == []
    page.write_text(
        '<img alt="x" src="https://e.com/b.svg"><link rel="stylesheet" href="//e.com/c">'
    )
    style.write_text("a { background: url('https://e.com/c.png') }")
    assert len(build_site.foreign_assets(tmp_path)) == 3


def test_conf_is_python_and_runs_no_notebook() -> None:
    tree = ast.parse((ROOT / "site/conf.py").read_text(encoding="utf-8"))
    values = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    assert values["nb_execution_mode"] == "off"
