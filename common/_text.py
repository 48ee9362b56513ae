"""Text measured without a font: width in em, width in terminal columns, line breaking."""

from __future__ import annotations

import re
import unicodedata

NARROW_EM = 0.61
"""Advance of one character in the monospace fonts that pictures ask for (0.55 to 0.61 em)."""

# A line must not begin with closing punctuation, so it stays with the character before it.
_CLOSING = "，。、；：？！）」』】》〉％…"
_WORD = re.compile(rf"\s+|[\u2e80-\uffef][{_CLOSING}]*|[^\s\u2e80-\uffef]+[{_CLOSING}]*")
# Where a long name may be broken, best place first: after a dot, after an underscore, anywhere.
_PARTS = (re.compile(r"[^./]*[./]+|[^./]+"), re.compile(r"[^_-]*[_-]+|[^_-]+"), re.compile(r"."))
_ILLEGAL_IN_XML = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def torch_name(value: object) -> str:
    """Return the name of a dtype or a layout without its module.

    Example:
        >>> import torch
        >>> torch_name(torch.float32)
        'float32'
    """
    return str(value).removeprefix("torch.")


def columns(text: str) -> int:
    """Return the terminal columns that one line takes: wide characters count 2, combining 0.

    Example:
        >>> columns("q 量化")
        6
    """
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def em(text: str) -> float:
    """Return the width of one line in em: 1.0 for a wide character, 0.61 for another.

    Example:
        >>> em("量化"), em("q")
        (2.0, 0.61)
    """
    if text.isascii():
        return len(text) * NARROW_EM
    widths = (0.0, NARROW_EM, 1.0)
    return sum(widths[_columns_of(char)] for char in text)


def clean(text: str) -> str:
    r"""Replace what neither XML nor DOT can hold; tabs become spaces.

    Example:
        >>> clean("a\tb") + clean("\x00")
        'a b�'
    """
    return _ILLEGAL_IN_XML.sub("\ufffd", text.replace("\r\n", "\n").replace("\t", " "))


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill a line with spaces up to ``width`` terminal columns.

    Example:
        >>> pad("量", 4, right=True)
        '  量'
    """
    fill = " " * max(0, width - columns(text))
    return fill + text if right else text + fill


def wrap(text: str, limit: float) -> list[str]:
    """Break text into lines of at most ``limit`` em.

    Two spaces are the preferred place to break, then one space, punctuation inside a name, and
    between two Chinese characters.

    Example:
        >>> wrap("in: i8 affine  w: i8 sym/ch0", 12)
        ['in: i8 affine', 'w: i8 sym/ch0']
        >>> wrap("features.0.weight", 7)
        ['features.0.', 'weight']
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for chunk in re.split(r"\s{2,}", paragraph.strip()):
            joined = f"{line}  {chunk}" if line else chunk
            if em(joined) <= limit:
                line = joined
                continue
            if line:
                lines.append(line)
            *full, line = _fill(chunk, limit)
            lines += full
        lines.append(line)
    return lines


def _fill(chunk: str, limit: float) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in _WORD.findall(chunk):
        for piece in _pieces(word, limit):
            if line and em((line + piece).rstrip()) > limit:
                lines.append(line.rstrip())
                line = ""
            line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()]


def _pieces(word: str, limit: float, level: int = 0) -> list[str]:
    if em(word) <= limit or level == len(_PARTS):
        return [word]
    parts = _PARTS[level].findall(word)
    return [piece for part in parts for piece in _pieces(part, limit, level + 1)]


def _columns_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in {"Cf", "Me", "Mn"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
