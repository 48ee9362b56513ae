"""Render notebooks/glossary.toml: the tables of terms in both overviews.

    python tools/glossary.py            # write the tables
    python tools/glossary.py --check    # change nothing; 1 if a table is not that of the file

`terms` and `table` serve whoever shows the glossary elsewhere; the tests take the terms that are
not to be written from `forbidden`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
FILE = FOLDER / "glossary.toml"
PAGES = {"zh": "README.md", "en": "en/README.md"}
HEADERS = {
    "zh": ("中文", "English", "一句話", "課"),
    "en": ("English", "中文", "In a sentence", "Lesson"),
}
OVERVIEW = {"zh": "總覽", "en": "overview"}

_PLACE = re.compile(r"(?<=<!-- table: glossary -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """One term of the course.

    Attributes:
        chinese: The term in Traditional Chinese.
        english: The term in English.
        lesson: Where it is met first: `M08-1` to `M08-4`, or `overview`.
        means: One sentence in Chinese.
        in_english: The sentence in English.
        not_chinese: Regular expressions for what is not written for it in Chinese.
        not_english: The same in English.
    """

    chinese: str
    english: str
    lesson: str
    means: str
    in_english: str
    not_chinese: tuple[str, ...] = ()
    not_english: tuple[str, ...] = ()


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def terms() -> tuple[Term, ...]:
    """The terms in the order of the file, which is that of the road."""
    entries = [dict(entry) for entry in _file()["term"]]
    return tuple(
        Term(
            not_chinese=tuple(entry.pop("not", ())),
            not_english=tuple(entry.pop("not_english", ())),
            **entry,
        )
        for entry in entries
    )


@cache
def forbidden(language: str) -> dict[str, str]:
    """{regular expression: what to write instead}, for `zh` or `en`."""
    if language == "en":
        return {wrong: term.english for term in terms() for wrong in term.not_english}
    own = {wrong: term.chinese for term in terms() for wrong in term.not_chinese}
    return own | _file()["mainland"]


def table(language: str) -> str:
    """The Markdown table of the terms, in the order of the file, for `zh` or `en`."""
    rows: list[Sequence[str]] = [HEADERS[language], ["---"] * 4]
    for term in terms():
        where = term.lesson.removeprefix("M08-").replace("overview", OVERVIEW[language])
        if language == "zh":
            rows.append((term.chinese, term.english, term.means, where))
        else:
            rows.append((term.english, term.chinese, term.in_english, where))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def filled(page: str, language: str) -> str:
    """A page with the table between its markers."""
    return _PLACE.sub(lambda _: table(language), page)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a table differs")
    check = parser.parse_args(argv).check
    wrong = 0
    for language, name in PAGES.items():
        path = FOLDER / name
        page = path.read_text(encoding="utf-8")
        new = filled(page, language)
        if new != page:
            wrong += 1
            print(f"{name}: the glossary {'differs' if check else 'is renewed'}")
            if not check:
                path.write_text(new, encoding="utf-8", newline="\n")
    return int(check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
