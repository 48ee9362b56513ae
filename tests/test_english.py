"""The English edition is in step with the Chinese one, and each way to fall behind is noticed.

The first part looks at notebooks/en. The others change copies in one place at a time, and expect
tools/english.py to name that place.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import english, execute_notebooks, parity

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
SOURCES = english.sources(FOLDER)
NOTEBOOKS = [source for source in SOURCES if source.suffix == ".ipynb"]
LESSONS = [source for source in NOTEBOOKS if re.match(r"M08-\d_", source.name)]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)")


def name(path: Path) -> str:
    return path.name


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


# --- The edition


def test_every_lesson_and_page_has_its_twin() -> None:
    there = {path.name for path in (FOLDER / "en").iterdir()} - {".ipynb_checkpoints"}
    assert there == {source.name for source in SOURCES}
    assert there >= {"README.md", "symptoms.md", "ops.md"}
    assert len(LESSONS) == 4


@pytest.mark.parametrize("source", NOTEBOOKS, ids=name)
def test_all_but_the_prose_is_the_same(source: Path) -> None:
    """Written without the tool: ids, order, types, tags, code and outputs."""
    ours, theirs = (json.loads(p.read_text("utf-8")) for p in (source, english.twin(source)))
    for nb in (ours, theirs):
        for cell in nb["cells"]:
            if cell["cell_type"] == "markdown":
                del cell["source"]
                cell["metadata"].get("m08", {}).pop("source_sha256", None)
                if not cell["metadata"].get("m08", True):
                    del cell["metadata"]["m08"]
    assert theirs == ours


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_prose_is_neither_new_nor_stale_and_agrees(source: Path) -> None:
    found = english.edition(source).faults()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_each_language_links_to_the_other_at_the_top(source: Path) -> None:
    for path, link in (
        (source, f"[English](en/{source.name})"),
        (english.twin(source), f"[繁體中文](../{source.name})"),
    ):
        if source.suffix == ".ipynb":
            top = "".join(cells_of(path)[0]["source"])
        else:
            top = re.sub(r"<!--.*?-->\n", "", path.read_text(encoding="utf-8"))
        assert link in top.splitlines()[2], f"the line below the title of {path.name}"


def english_texts() -> dict[str, str]:
    pieces = (piece for source in SOURCES for piece in english.edition(source).pieces)
    return {piece.name: piece.english or "" for piece in pieces}


def test_links_to_a_lesson_give_its_title_and_the_overview_its_minutes() -> None:
    titles = {
        source.name: parity.headings("".join(cells_of(english.twin(source))[0]["source"]))[0][1]
        for source in NOTEBOOKS
    }
    texts = english_texts()
    given = [
        (text, target)
        for markdown in texts.values()
        for text, target in LINK.findall(markdown)
        if target in titles and ": " in text
    ]
    assert len(given) >= 10
    assert all(text == titles[target] for text, target in given)
    (road,) = (text for text in texts.values() if "| Minutes |" in text)
    for source in LESSONS:
        header = texts[f"{source.stem[:5]}:header"]
        run, reading = (
            re.findall(rf"about (\d+) minutes to {w}", header)[0] for w in ("run", "read")
        )
        (row,) = (line for line in road.splitlines() if f"({source.name})" in line)
        assert row.endswith(f"| run {run}, read {reading} |")


def test_symptoms_have_the_same_literal_headings() -> None:
    ours, theirs = (
        parity.headings(path.read_text(encoding="utf-8"))
        for path in (FOLDER / "symptoms.md", FOLDER / "en" / "symptoms.md")
    )
    literal = [text for _, text in ours if re.fullmatch("`[^`]+`", text)]
    assert len(literal) >= 20
    assert [text for _, text in theirs if re.fullmatch("`[^`]+`", text)] == literal


def test_nbval_leaves_the_english_lessons_alone(request: pytest.FixtureRequest) -> None:
    """Same code and same outputs: what runs the Chinese ones has verified them."""
    ignored = request.config.hook.pytest_ignore_collect
    for source in NOTEBOOKS:
        assert ignored(collection_path=english.twin(source), config=request.config)
        assert not ignored(collection_path=source, config=request.config)


def test_the_writers_of_notebooks_agree_on_the_form() -> None:
    for source in NOTEBOOKS:
        text = source.read_text(encoding="utf-8")
        assert english.written(english.read(text)) == text


def test_the_tool_needs_no_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import tools.english, tools.glossary; "
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "sys.exit(str(sorted(tops - sys.stdlib_module_names - {'tools'} or '')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


# --- A copy of the edition that falls behind


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the notebooks; what they link to stands beside it."""
    skipped = shutil.ignore_patterns(".ipynb_checkpoints")
    shutil.copytree(FOLDER, tmp_path / "notebooks", ignore=skipped)
    for other in ("README.md", "docs", "tools"):
        (tmp_path / other).symlink_to(ROOT / other)
    return tmp_path / "notebooks"


def change(path: Path, cell_id: str, old: str, new: str) -> None:
    """Put a word in place of another in one cell."""
    nb = english.read(path.read_text(encoding="utf-8"))
    (cell,) = (cell for cell in nb["cells"] if cell["id"] == cell_id)
    assert old in cell["source"]
    cell["source"] = cell["source"].replace(old, new, 1)
    path.write_text(english.written(nb), encoding="utf-8")


def change_page(path: Path, old: str, new: str) -> None:
    """Put a word in place of another on a page."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def stale(file: str, who: str) -> str:
    return f"en/{file}: {who} is stale: render the Chinese text, then --renewed {who}"


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_word_changed_in_a_chinese_cell_names_the_english_one(lesson: Path, copy: Path) -> None:
    change(copy / lesson.name, "header", "你會學到", "你會明白")
    expected = [stale(lesson.name, f"{lesson.stem[:5]}:header")]
    assert english.edition(copy / lesson.name).faults() == expected


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_number_changed_in_an_english_cell_names_it(lesson: Path, copy: Path) -> None:
    text = english_texts()[f"{lesson.stem[:5]}:header"]
    minutes = re.findall(r"about (\d+) minutes to read", text)[0]
    change(copy / "en" / lesson.name, "header", f"about {minutes} minutes", "about 37 minutes")
    assert english.edition(copy / lesson.name).faults() == [
        f"en/{lesson.name}: {lesson.stem[:5]}:header: numbers: {minutes} only in Chinese",
        f"en/{lesson.name}: {lesson.stem[:5]}:header: numbers: 37 only in English",
    ]


@pytest.mark.parametrize(
    ("page", "old", "new", "who"),
    [
        ("README.md", "只答對 50 張", "僅答對 50 張", "README:1"),
        ("symptoms.md", "先呼叫 `model.float()`", "請先呼叫 `model.float()`", "symptoms:6"),
        ("ops.md", "差別只有一個參數", "差別就是一個參數", "ops:1"),
    ],
)
def test_a_word_changed_in_a_chinese_page_names_the_english_section(
    page: str, old: str, new: str, who: str, copy: Path
) -> None:
    change_page(copy / page, old, new)
    assert english.edition(copy / page).faults() == [stale(page, who)]


def test_a_number_changed_in_an_english_page_names_the_section(copy: Path) -> None:
    change_page(copy / "en" / "README.md", "only 50 answers", "only 51 answers")
    assert english.edition(copy / "README.md").faults() == [
        "en/README.md: README:1: numbers: 50 only in Chinese",
        "en/README.md: README:1: numbers: 51 only in English",
    ]


def test_every_number_is_guarded() -> None:
    """Each number in digits and each from three on in words is changed, and that is noticed."""
    number = re.compile(
        r"(?<![\w.,-])(?:(\d+)|three|four|five|six|seven|eight|nine|ten|twelve)(?![\w.,-])"
    )
    digits = words = 0
    for source in SOURCES:
        for piece in english.edition(source).pieces:
            ours, theirs = parity.plain(piece.chinese), parity.plain(piece.english or "")
            for match in number.finditer(theirs):
                other = f"{match[0]}7" if match[1] else "nineteen"
                changed = theirs[: match.start()] + other + theirs[match.end() :]
                assert parity.number_differences(ours, changed), f"{piece.name}: {match[0]}"
                digits, words = digits + bool(match[1]), words + (not match[1])
    assert digits > 300
    assert words > 40


# --- A small edition


PAGE = """\
# 症狀

一句話，1 個。

## `Error 1`
<!-- test: test_one -->

第一句。

## `Error 2`
<!-- test: test_two -->

第二句。

## 表

<!-- table: products -->
| op | int8 |
<!-- end -->
"""
ENGLISH_PAGE = """\
# Symptoms

One sentence, 1 of them.

## `Error 1`
<!-- test: -->

A first sentence.

## `Error 2`
<!-- test: -->

A second sentence.

## Table

<!-- table: products -->
<!-- end -->
"""


def markdown(cell_id: str, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": source}


def code(cell_id: str, source: str, shown: str) -> dict[str, Any]:
    output = {"name": "stdout", "output_type": "stream", "text": [shown]}
    return {
        "cell_type": "code", "execution_count": 1, "id": cell_id, "metadata": {},
        "outputs": [output], "source": source,
    }  # fmt: skip


def notebook(*cells: dict[str, Any]) -> str:
    return english.written({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with one lesson and one page, in step."""
    folder = tmp_path / "notebooks"
    lesson = notebook(
        markdown("title", "# 課"), code("sum", "40 + 2", "42\n"), markdown("after", "得到 42。")
    )
    folder.mkdir()
    (folder / "M08-2_x.ipynb").write_text(lesson, encoding="utf-8")
    (folder / "symptoms.md").write_text(PAGE, encoding="utf-8")
    (folder / "en").mkdir()
    (folder / "en" / "symptoms.md").write_text(ENGLISH_PAGE, encoding="utf-8")
    prose = tmp_path / "M08-2.json"
    prose.write_text(json.dumps({"title": "# Lesson", "after": "It gives 42."}))
    assert english.main(["--prose", str(prose), "--renewed", "symptoms:*"], folder) == 0
    return folder


Check = Callable[[], list[str]]


@pytest.fixture
def check(small: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """What `--check` says of the small edition; it must not change a file."""

    def run() -> list[str]:
        files = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
        capsys.readouterr()
        exit_code = english.main(["--check"], small)
        said = capsys.readouterr().out.splitlines()
        assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == files
        in_step = said == ["the English edition renders the present Chinese one"]
        assert exit_code == int(not in_step)
        return [] if in_step else said

    return run


def test_the_first_edition(small: Path, check: Check) -> None:
    assert check() == []
    title, total, after = cells_of(small / "en" / "M08-2_x.ipynb")
    assert title["source"] == ["# Lesson"]
    assert total == cells_of(small / "M08-2_x.ipynb")[1]
    digest = hashlib.sha256("得到 42。".encode()).hexdigest()
    assert after["metadata"] == {"m08": {"source_sha256": digest}}
    page = (small / "en" / "symptoms.md").read_text(encoding="utf-8")
    assert re.sub(r"<!-- renders sha256: [0-9a-f]{64} -->\n", "", page) == (
        ENGLISH_PAGE.replace("test: -->", "test: test_one -->", 1)
        .replace("test: -->", "test: test_two -->")
        .replace("products -->\n", "products -->\n| op | int8 |\n")
    )


def test_prose_is_stale_until_somebody_says_that_it_is_renewed(small: Path, check: Check) -> None:
    change(small / "M08-2_x.ipynb", "after", "得到", "得出")
    change_page(small / "symptoms.md", "第二句", "第二個句子")
    expected = [stale("M08-2_x.ipynb", "M08-2:after"), stale("symptoms.md", "symptoms:3")]
    assert check() == expected
    assert english.main([], small) == 0, "it keeps the prose, stale as it is"
    assert check() == expected
    assert english.main(["--renewed", "M08-2:after", "symptoms:3"], small) == 0
    assert check() == []


Edit = Callable[[list[dict[str, Any]]], None]


def _output(cells: list[dict[str, Any]]) -> None:
    cells[1]["outputs"][0]["text"] = ["43\n"]


def _code(cells: list[dict[str, Any]]) -> None:
    cells[1]["source"] = ["40 + 3"]


def _tag(cells: list[dict[str, Any]]) -> None:
    cells[1]["metadata"]["tags"] = ["new"]


def _count(cells: list[dict[str, Any]]) -> None:
    cells[1]["execution_count"] = None


def _type(cells: list[dict[str, Any]]) -> None:
    cells[1] = {key: cells[1][key] for key in ("id", "metadata", "source")} | {"cell_type": "raw"}


def _order(cells: list[dict[str, Any]]) -> None:
    cells.reverse()


def _id(cells: list[dict[str, Any]]) -> None:
    cells[1]["id"] = "other"


def _gone(cells: list[dict[str, Any]]) -> None:
    del cells[1]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (_output, "outputs of cell 'sum' differs"),
        (_code, "code of cell 'sum' differs"),
        (_tag, "metadata of cell 'sum' differs"),
        (_count, "execution_count of cell 'sum' differs"),
        (_type, "cell_type of cell 'sum' differs"),
        (_order, "ids or order of cells differ"),
        (_id, "ids or order of cells differ"),
        (_gone, "ids or order of cells differ"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("edition", ["", "en"], ids=["zh", "en"])
def test_all_but_prose_is_copied_from_the_chinese_lesson(
    edition: str, edit: Edit, expected: str, small: Path, check: Check
) -> None:
    ours = small / "M08-2_x.ipynb"
    stored, changed = ours.read_text(encoding="utf-8"), small / edition / ours.name
    nb = json.loads(changed.read_text(encoding="utf-8"))
    edit(nb["cells"])
    text = json.dumps(nb, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    changed.write_text(text, encoding="utf-8")

    assert check() == [f"en/{ours.name}: {expected}: run tools/english.py"]
    assert english.main([], small) == 0
    assert check() == []
    assert ours.read_text(encoding="utf-8") == (stored if edition else text)
    prose = [c["source"] for c in cells_of(small / "en" / ours.name) if c["id"] == "after"]
    assert prose == [["It gives 42."]]


def test_executing_a_lesson_copies_its_outputs(
    small: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = small / "M08-2_x.ipynb", small / "en" / "M08-2_x.ipynb"

    def executed(nb: Any, folder: Path, **options: object) -> execute_notebooks.Run:
        nb.cells[1].outputs[0].text = "42.0\n"
        return execute_notebooks.Run(nb, 0.0, None)

    monkeypatch.setattr(execute_notebooks, "execute", executed)
    assert execute_notebooks.main([str(small)]) == 0
    assert '"42.0\\n"' in ours.read_text(encoding="utf-8")
    assert '"42.0\\n"' in theirs.read_text(encoding="utf-8")
    assert check() == []
    with pytest.raises(execute_notebooks.NotFound, match=r"gets its outputs from .*M08-2_x"):
        execute_notebooks.find_notebooks([theirs])


def test_a_new_cell_is_listed_and_gets_its_prose_from_a_file(
    small: Path, check: Check, tmp_path: Path
) -> None:
    path = small / "M08-2_x.ipynb"
    nb = english.read(path.read_text(encoding="utf-8"))
    nb["cells"].insert(1, markdown("extra", "多 3 個位元組。"))
    path.write_text(english.written(nb), encoding="utf-8")

    new = (
        "en/M08-2_x.ipynb: M08-2:extra is new: render the Chinese text, then --renewed M08-2:extra"
    )
    assert check()[0] == new
    assert english.main([], small) == 0
    assert check() == [new]
    assert cells_of(small / "en" / path.name)[1]["source"] == ["多 3 個位元組。"]

    prose = tmp_path / "M08-2.json"
    prose.write_text(json.dumps({"extra": "4 bytes more."}))
    assert english.main(["--prose", str(prose)], small) == 0
    assert [said.partition("extra: ")[2] for said in check()] == [
        "numbers: 3 only in Chinese", "numbers: 4 only in English"
    ]  # fmt: skip
    prose.write_text(json.dumps({"extra": "3 bytes more."}))
    assert english.main(["--prose", str(prose)], small) == 0
    assert check() == []


def test_sections_of_a_page_come_go_and_move(small: Path, check: Check) -> None:
    page = small / "symptoms.md"
    stored = (small / "en" / page.name).read_text(encoding="utf-8")
    first, second, third = (PAGE.index(f"## {start}") for start in ("`Error 1", "`Error 2", "表"))

    moved = PAGE[:first] + PAGE[second:third] + PAGE[first:second] + PAGE[third:]
    page.write_text(moved, encoding="utf-8")
    assert english.main([], small) == 0
    assert check() == []
    page.write_text(PAGE, encoding="utf-8")
    assert english.main([], small) == 0
    assert (small / "en" / page.name).read_text(encoding="utf-8") == stored

    added = "## `Error 3`\n<!-- test: test_three -->\n\n一句話。\n\n"
    page.write_text(PAGE[:third] + added + PAGE[third:], encoding="utf-8")
    assert check()[0].startswith("en/symptoms.md: symptoms:4 is new")
    page.write_text(PAGE, encoding="utf-8")
    assert check() == []


def test_an_english_section_without_a_chinese_one_is_refused(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = small / "en" / "symptoms.md"
    text = page.read_text(encoding="utf-8") + "\n## More\n\nOf my own.\n"
    page.write_text(text, encoding="utf-8")
    assert english.main([], small) == 2
    assert "the English section '## More' has no Chinese one" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(("old", "new"), [("| int8 |", "| fp32 |"), ("test_two", "test_none")])
def test_tables_and_names_of_tests_are_copied_and_make_nothing_stale(
    old: str, new: str, small: Path, check: Check
) -> None:
    change_page(small / "symptoms.md", old, new)
    (said,) = check()
    assert re.fullmatch(r"en/symptoms.md: line \d+ differs: run tools/english.py", said)
    assert english.main([], small) == 0
    assert new in (small / "en" / "symptoms.md").read_text(encoding="utf-8")
    assert check() == []


def test_a_section_without_the_place_of_a_table_is_named(small: Path, check: Check) -> None:
    change_page(small / "en" / "symptoms.md", "<!-- table: products -->\n", "")
    assert check()[0] == "en/symptoms.md: symptoms:4: copied are ['products'], places []"


@pytest.mark.parametrize(
    "words", [["--renewed", "M08-2:no-such-cell"], ["--renewed", "M08-2"], ["--prose", "x.json"]]
)
def test_a_name_that_is_not_there_is_refused(
    words: list[str],
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text('{"title": "# Title"}')
    assert english.main(words, small) == 2
    assert re.search(r"there is no \w+ prose called (M08-2|x:title)", capsys.readouterr().err)


# --- In what two texts agree

AGREE = [
    ("四個 3×3 卷積", "four 3×3 convolutions"),
    ("第 7 節，約 2 分鐘", "section 7, about 2 min"),
    ("三分之二、四分之一", "two thirds, a quarter"),
    ("快兩成左右，一到四成", "about twenty percent faster, ten to forty"),
    ("七成", "70%"),
    ("十五萬個，一百六十萬", "150,000 and 1.6 million"),
    ("兩千五百萬個參數", "twenty-five million parameters"),
    ("二三十 dB", "twenty or thirty dB"),
    ("幾百位元組，兩個百分點", "a few hundred bytes, two percentage points"),
    ("−6 dB，1,024 B，0.5", "−6 dB, 1,024 B, 0.5"),
    ("int8 比 fp32 好，看 M08-3", "M08-3 says int8 beats fp32"),
    ("10 萬位元組", "100 thousand bytes"),
    ("5 個", "five"),
    ("五個", "5"),
]
DIFFER = [
    ("3 個", "4 of them", ["3", "4"]),
    ("3 個 3", "3", ["3"]),
    ("四個", "five", ["4", "5"]),
    ("−6 dB", "6 dB", ["-6", "6"]),
    ("1,024 B", "1,042 B", ["1024", "1042"]),
    ("45%，不是 25%", "45%, not 35%", ["25", "35"]),
    ("一百六十萬", "a million and a half", ["1600000", "1000000"]),
]


@pytest.mark.parametrize(("chinese", "english_text"), AGREE)
def test_numbers_that_agree(chinese: str, english_text: str) -> None:
    assert parity.number_differences(chinese, english_text) == []


@pytest.mark.parametrize(("chinese", "english_text", "expected"), DIFFER)
def test_numbers_that_differ(chinese: str, english_text: str, expected: list[str]) -> None:
    found = parity.number_differences(chinese, english_text)
    assert re.findall(r"(-?\d+) only", "\n".join(found)) == expected


@pytest.mark.parametrize(
    ("chinese", "english_text", "expected"),
    [
        ("## 一", "### One", "levels of headings: [3], in Chinese [2]"),
        ("## 一", "## One\n\n## Two", "levels of headings: [2, 2], in Chinese [2]"),
        ("`relu` 和 `add`", "`relu` and `mul`", "inline code: add only in Chinese"),
        ("`relu`", "`relu` `relu`", "inline code: relu only in English"),
        ("`f(名稱)`", "a name", "inline code: f(名稱) only in Chinese"),
        ("```python\nx = 1\n```", "```python\nx = 2\n```", "code blocks: "),
        ("| a | b |\n|---|---|", "| a |\n|---|", "shapes of tables: [1, 1], in Chinese [2, 2]"),
        ("<details>", "", "HTML tags: <details> only in Chinese"),
        ("捨入", "捨入 it", "捨入 in English prose"),
        ("捨入", "rounding，so", "， in English prose"),
    ],
)
def test_what_else_differs(chinese: str, english_text: str, expected: str) -> None:
    found = parity.differences(chinese, english_text)
    assert any(text.startswith(expected) for text in found), found


def test_what_else_agrees() -> None:
    chinese = "## 一　`f(名稱)`\n\n[English](en/a.md) `relu`\n\n```python\n# 1\n```\n\n| a |\n|---|"
    text = "## 1. `f(name)`\n\n[繁體中文](../a.md) `relu`\n\n```python\n# 1\n```\n\n| b |\n|---|"
    assert parity.differences(chinese, text) == []


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](b.md#two)", []),
        ("[a](../b.md) [a](b.md#two)", ["the link '../b.md' leads out", "links: "]),
        ("[a](b.md#one)", ["links: ", "links: "]),
        ("[a](b.md#zwei)", ["the link 'b.md#zwei' leads to no heading", "links: ", "links: "]),
        ("[a](../b.md#二)", ["the link '../b.md#二' leads out of the English edition"]),
        ("[a](c.md)", ["the link 'c.md' leads nowhere", "links: ", "links: "]),
    ],
)
def test_links_lead_to_the_same_place_in_the_own_language(
    link: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "en").mkdir()
    (tmp_path / "b.md").write_text("# 一\n\n## 二\n", encoding="utf-8")
    (tmp_path / "en" / "b.md").write_text("# One\n\n## Two\n", encoding="utf-8")
    source, target = tmp_path / "a.md", tmp_path / "en" / "a.md"
    found = parity.link_differences("[甲](b.md#二)", link, source, target)
    assert len(found) == len(expected), found
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found
