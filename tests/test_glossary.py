"""notebooks/glossary.toml: its tables, its terms in the lessons, and the words nobody writes."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests import wording
from tools import english, glossary
from tools.glossary import Term
from tools.parity import plain

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
PROSE = sorted({*FOLDER.glob("*.md"), *FOLDER.glob("en/*.md")})
_LINK_TEXT = re.compile(r"!?\[[^\]]*\]")
_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)


def running_text(markdown: str) -> str:
    """Prose without headings, code and links: lessons have titles of their own."""
    return _LINK_TEXT.sub("", plain(_HEADING.sub("", markdown)))


@cache
def lessons(language: str) -> dict[str, list[str]]:
    """{M08-2: the running text of its cells}."""
    folder = FOLDER / "en" if language == "en" else FOLDER
    texts = {}
    for path in sorted(folder.glob("M08-[1-9]_*.ipynb")):
        cells = english.read(path.read_text(encoding="utf-8"))["cells"]
        prose = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
        texts[path.stem[:5]] = [running_text(text) for text in prose]
    return texts


def test_the_tables_are_those_of_the_file() -> None:
    assert glossary.main(["--check"]) == 0, "run: uv run python tools/glossary.py"
    for name in glossary.PAGES.values():
        assert "<!-- table: glossary -->\n| " in (FOLDER / name).read_text(encoding="utf-8")


def test_a_changed_term_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in glossary.PAGES.values():
        page = (FOLDER / name).read_text(encoding="utf-8")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(page.replace("multiply-add |", "MAC |"), encoding="utf-8")
    monkeypatch.setattr(glossary, "FOLDER", tmp_path)
    assert glossary.main(["--check"]) == 1
    assert glossary.main([]) == 0
    assert glossary.main(["--check"]) == 0


def test_it_is_short_and_has_each_term_once() -> None:
    terms = glossary.terms()
    assert 25 <= len(terms) <= 50
    for names in ([t.chinese for t in terms], [t.english for t in terms]):
        assert max(Counter(names).values()) == 1
    assert all(t.means and t.in_english for t in terms)


@pytest.mark.parametrize("term", glossary.terms(), ids=lambda term: term.english)
def test_term(term: Term) -> None:
    assert term.lesson == first_met(term)
    if term.lesson != "overview":
        own = " ".join(lessons("en")[term.lesson]).lower()
        assert term.english.lower() in own, f"the English {term.lesson} does not use it"
    for text in (overview(), lessons("zh").get(term.lesson, [])):
        uses = [cell for cell in text if term.chinese in cell]
        if uses and uses[0] == text[0] and len(text) > 1 and not stands_beside(term, uses[0]):
            uses = uses[1:]  # the title cell shows what went wrong; what words mean comes after it
        assert not uses or stands_beside(term, uses[0]), f"English at first use: {uses[0][:200]}"


@cache
def overview() -> list[str]:
    """The running text of the overview above the glossary, as if it were one cell."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    return [running_text(page.partition("<!-- table: glossary -->")[0])]


def first_met(term: Term) -> str:
    """The lesson in which a term is first met, in one language or the other."""
    word = re.compile(
        rf"{re.escape(term.chinese)}|(?<!\w){re.escape(term.english)}(?!\w)", re.IGNORECASE
    )
    return next(
        (name for name, cells in lessons("zh").items() if any(map(word.search, cells))), "overview"
    )


def stands_beside(term: Term, text: str) -> bool:
    """Whether the English term stands behind the first Chinese one, or just before it."""
    before, _, after = text.partition(term.chinese)
    english = re.escape(term.english)
    return bool(
        re.match(rf"(（[^）]*|，){english}", after, re.IGNORECASE)
        or re.search(rf"{english}（[^）]*$", before, re.IGNORECASE)
    )


# --- the words that nobody writes


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_page_has_the_words_of_the_glossary(path: Path) -> None:
    assert not wording.faults(path.read_text(encoding="utf-8"), language(path))


def test_readme_has_the_words_of_the_glossary() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    chinese = "\n".join(re.findall(rf"^.*{wording.CHINESE}.*$", text, re.MULTILINE))
    assert chinese
    assert not wording.faults(chinese, "zh")


def language(path: Path) -> str:
    return "en" if path.parent.name == "en" else "zh"


def test_what_nobody_writes_is_found() -> None:
    assert wording.faults("这個模型占的內存", "zh") == ["Simplified 这", "內存, in Taiwan 記憶體"]
    assert wording.faults("A Zero-point of 3", "en") == ["Zero-point, in the glossary zero point"]
    assert not wording.faults("`内存` and `QDQ`\n\n```text\n内存 QDQ\n```\n", "zh")
    assert not wording.faults("`QDQ` [here](QDQ.md)", "en")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("這個模型會設定記憶體裡的權重，並輸出結果；后里、台灣、干擾、面積、系統", ""),
        ("这个模型会设置内存里的权重并输出结果", "这个会设内权输结并"),
        ("图 边 标 误 为 发 们 后", "图边标误为发们"),
    ],
)
def test_simplified_characters_are_told_from_shared_ones(text: str, expected: str) -> None:
    assert {c for c in text if wording.is_simplified(c)} == set(expected)


@pytest.mark.parametrize(
    "term", ["運算子", "離線程式", "改進程式", "不變量", "目標量化", "對比特別", "最低有效位元"]
)
def test_a_taiwan_phrase_that_holds_a_mainland_word_passes(term: str) -> None:
    assert wording.mainland_terms(f"這是{term}的例子") == []


@pytest.mark.parametrize("tongue", ["zh", "en"])
def test_each_wrong_word_is_found_and_its_replacement_is_not_one(tongue: str) -> None:
    find = {"zh": wording.mainland_terms, "en": wording.english_variants}[tongue]
    for pattern, instead in glossary.forbidden(tongue).items():
        word = re.sub(r"\(\?[^)]*\)|\\b", "", pattern)
        assert word in dict(find(f" {word} ")), word
        assert find(f" {instead} ") == [], instead
