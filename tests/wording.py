"""The words of the prose: Taiwan's Chinese, and the terms of notebooks/glossary.toml.

Functions that look and tell, for the lessons (tests/notebook_rules.py) and the pages.
"""

from __future__ import annotations

import re

from tools import glossary
from tools.parity import plain

CHINESE = r"[\u3400-\u9fff\uf900-\ufaff]"

# Simplified forms that Big5 happens to hold as well, so that `is_simplified` needs them named.
_SIMPLIFIED_IN_BIG5 = frozenset("与么万优体儿听圣坏复宁并庄怀怜惊扑扰机构气洁洒离")


def is_simplified(character: str) -> bool:
    """Whether a character is of Simplified Chinese alone.

    The mainland's character set (GB 2312) has it and Taiwan's (Big5) has not. Characters that
    both use (里, 后, 台, 干) pass: whether they are right depends on the word.
    """
    if character in _SIMPLIFIED_IN_BIG5:
        return True
    return bool(re.match(CHINESE, character)) and (
        _encodable(character, "gb2312") and not _encodable(character, "big5")
    )


def _encodable(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def mainland_terms(text: str) -> list[tuple[str, str]]:
    """(word found, Taiwan's word) for the mainland words in a Chinese text."""
    return _found(text, glossary.forbidden("zh"))


def english_variants(text: str) -> list[tuple[str, str]]:
    """(spelling found, the one of the glossary) in an English text."""
    return _found(text, glossary.forbidden("en"))


def _found(text: str, patterns: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (match[0], instead)
        for pattern, instead in patterns.items()
        if (match := re.search(pattern, text, re.IGNORECASE))
    ]


def faults(markdown: str, language: str) -> list[str]:
    """What the prose of a text should not hold: Simplified characters, words not to be written."""
    text = plain(markdown)
    if language == "en":
        return [f"{word}, in the glossary {term}" for word, term in english_variants(text)]
    found = []
    if simplified := dict.fromkeys(c for c in text if is_simplified(c)):
        found.append(f"Simplified {''.join(simplified)}")
    return found + [f"{word}, in Taiwan {taiwan}" for word, taiwan in mainland_terms(text)]
