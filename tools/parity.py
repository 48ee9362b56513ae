"""No command: in what two texts agree of which one is the English rendering of the other.

`differences` takes a piece of Chinese prose and its English rendering. It compares what is no
matter of language: the levels of headings, code, links, numbers, tables and HTML tags. It cannot
see whether the sentences say the same; that is what the recorded SHA-256 is for, see english.py.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote

CHINESE = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")

FENCE = re.compile(r"^(```|~~~)[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)[^)]*\)")
_TAG = re.compile(r"</?([a-z][a-z0-9]*)\b[^>]*>")

# Links from one language to the other are named in the language to which they lead.
SWITCH = {"zh": "English", "en": "繁體中文"}


def differences(
    chinese: str, english: str, *, source: Path | None = None, target: Path | None = None
) -> list[str]:
    """What is not the same in a piece of Chinese prose and in its English rendering.

    Args:
        chinese: Markdown.
        english: Markdown.
        source: The file that holds the Chinese text; with `target`, links are compared as well.
        target: The file that holds the English text, in the folder `en` beside `source`.

    Returns:
        Sentences, an empty list where all is well.
    """
    found = []
    for what, ours, theirs in (
        ("levels of headings", levels(chinese), levels(english)),
        ("code blocks", fences(chinese), fences(english)),
        ("shapes of tables", tables(chinese), tables(english)),
    ):
        if ours != theirs:
            found.append(f"{what}: {_shown(theirs)}, in Chinese {_shown(ours)}")
    found += code_differences(inline_code(chinese), inline_code(english))
    found += _bags("HTML tags", html_tags(chinese), html_tags(english))
    found += number_differences(plain(chinese), plain(english))
    if source and target:
        found += link_differences(chinese, english, source, target)
    if foreign := CHINESE.findall(plain(english).replace(SWITCH["en"], "")):
        found.append(f"{''.join(foreign[:12])} in English prose")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _bags(what: str, ours: Counter[str], theirs: Counter[str]) -> list[str]:
    found = []
    if missing := ours - theirs:
        found.append(f"{what}: {_listed(missing)} only in Chinese")
    if extra := theirs - ours:
        found.append(f"{what}: {_listed(extra)} only in English")
    return found


def _listed(bag: Counter[str]) -> str:
    return ", ".join(bag.elements())


# --- Parts of a Markdown text


def without_code(markdown: str) -> str:
    """Markdown without code blocks, inline code and comments."""
    return _CODE.sub(" ", _COMMENT.sub("", FENCE.sub("", markdown)))


def plain(markdown: str) -> str:
    """The words of a Markdown text: no code, no targets of links, no HTML."""
    return _TAG.sub(" ", _LINK.sub("]", without_code(markdown)))


def headings(markdown: str) -> list[tuple[int, str]]:
    """(level, text) of the headings."""
    text = _COMMENT.sub("", FENCE.sub("", markdown))
    found = re.findall(r"^(#{1,6})[ \t]+(.+?)[ \t]*#*$", text, re.MULTILINE)
    return [(len(marks), words) for marks, words in found]


def levels(markdown: str) -> list[int]:
    """The levels of the headings."""
    return [level for level, _ in headings(markdown)]


def fences(markdown: str) -> list[str]:
    """The code blocks, their fences included."""
    return [match[0] for match in FENCE.finditer(markdown)]


def inline_code(markdown: str) -> Counter[str]:
    """How often each inline code stands there."""
    text = _COMMENT.sub("", FENCE.sub("", markdown))
    return Counter(" ".join(match[2].split()) for match in _CODE.finditer(text))


def code_differences(ours: Counter[str], theirs: Counter[str]) -> list[str]:
    """Inline code that is not the same; code that holds Chinese stands in English words."""
    spoken = Counter({code: n for code, n in ours.items() if CHINESE.search(code)})
    renderings = theirs - ours
    if renderings.total() == spoken.total():
        ours, theirs = ours - spoken, theirs - renderings
    return _bags("inline code", ours, theirs)


def html_tags(markdown: str) -> Counter[str]:
    """How often each HTML tag stands there."""
    return Counter(match[0] for match in _TAG.finditer(without_code(markdown)))


def tables(markdown: str) -> list[int]:
    """Cells in each row of the tables."""
    rows = [line for line in FENCE.sub("", markdown).splitlines() if line.startswith("|")]
    return [len(re.findall(r"(?<!\\)\|", _CODE.sub("", row))) - 1 for row in rows]


# --- Links


def anchors(markdown: str) -> list[str]:
    """What a link can name behind `#`, for each heading, as GitHub makes it."""
    found: list[str] = []
    seen: Counter[str] = Counter()
    for _, text in headings(markdown):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        slug = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
        found.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def link_targets(markdown: str) -> list[str]:
    """The targets of links and pictures, in their order."""
    text = without_code(markdown)
    return _LINK.findall(text) + re.findall(r'(?:href|src)="([^"]+)"', text)


def link_differences(chinese: str, english: str, source: Path, target: Path) -> list[str]:
    """Links that do not lead to the same place, to nothing, or out of the English edition."""
    found = []
    places: list[Counter[str]] = []
    for text, file in ((chinese, source), (english, target)):
        bag: Counter[str] = Counter()
        for link in link_targets(text):
            place, complaint = _place(link, file, source.parent)
            bag[place] += 1
            if complaint and file is target:
                found.append(f"the link {link!r} {complaint}")
        places.append(bag)
    return found + _bags("links", *places)


def _place(link: str, file: Path, chinese_folder: Path) -> tuple[str, str]:
    """Where a link leads, in terms of the Chinese edition, and what is wrong with it."""
    if re.match(r"[A-Za-z][\w+.-]*:", link):
        return link.replace("/notebooks/en/", "/notebooks/"), ""  # a lesson in Colab
    path, _, anchor = unquote(link).partition("#")
    there = Path(normpath(file.parent / path)) if path else file
    if not there.exists():
        return link, "leads nowhere"
    complaint = ""
    if anchor and there.suffix == ".md":
        known = anchors(there.read_text(encoding="utf-8"))
        if anchor not in known:
            return link, "leads to no heading of that page"
        anchor = str(known.index(anchor))  # its heading has another name in the other language
    folder = chinese_folder / "en"
    leaves = file.parent == folder and there.parent == chinese_folder and there.name != file.name
    if leaves and (folder / there.name).exists():
        complaint = "leads out of the English edition"
    if there.parent == folder:
        there = chinese_folder / there.name
    return f"{PurePosixPath(there)}{'#' if anchor else ''}{anchor}", complaint


# --- Numbers

_DIGITS = re.compile(
    r"(?:(?<![\w.,)])[-−])?(?<![A-Za-z_.\d])(?<!\d,)"
    r"(\d{1,3}(?:,\d{3})+(?!\d)|\d+)(\.\d+)?(?:\s*(million|thousand|萬|千萬|百萬))?"
)
_NAMES = re.compile(r"\bM\d\d-\d\b|\bINT\d\b")  # of a lesson: no quantity

_UNITS = {"million": 1e6, "thousand": 1e3, "萬": 1e4, "百萬": 1e6, "千萬": 1e7}

_WORDS: dict[str, float] = {
    word: value
    for value, words in enumerate(
        (
            "zero", "one once first", "two twice double doubles doubled second both pair",
            "three third thirds", "four fourth fourths quarter quarters quartile quartiles",
            "five fifth fifths", "six sixth", "seven seventh", "eight eighth", "nine ninth",
            "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
            "seventeen", "eighteen", "nineteen",
        )
    )
    for word in words.split()
}  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS |= {word: 10.0 * n for n, word in enumerate(_TENS, start=2)}
_VAGUE = re.compile(r"\b(?:few|several) (?:hundred|thousand|million)")
_FACTORS = {"hundred": 100.0, "thousand": 1000.0, "thousandth": 1000.0, "million": 1e6}

_CHINESE_DIGITS = {char: float(n) for n, char in enumerate("零一二三四五六七八九")} | {"兩": 2.0}
_CHINESE_FACTORS = {"十": 10.0, "百": 100.0, "千": 1000.0, "萬": 1e4}
_CHINESE_NUMERAL = re.compile(r"[零一二兩三四五六七八九十百千萬]+(?:到?[一二兩三四五六七八九]?成)?")
# Numerals that count nothing.
_NO_COUNT = re.compile(
    r"百分之|百分點|三角|萬一|千萬(?=不|別)|十分(?!之)|四捨五入|[幾數][十百千萬]+"
)
SMALL = 3  # 一 and 兩, one and two are also articles and pronouns


def digits(text: str) -> Counter[str]:
    """The numbers that are written with digits; `1.5 million` is 1500000."""
    found: Counter[str] = Counter()
    for match in _DIGITS.finditer(_NAMES.sub(" ", text)):
        value = float(match[1].replace(",", "") + (match[2] or "")) * _UNITS.get(match[3] or "", 1)
        sign = "-" if match[0][0] in "-−" else ""
        found[sign + _name(value)] += 1
    return found


def _name(value: float) -> str:
    return f"{value:.10g}" if value != int(value) else str(int(value))


def english_words(text: str) -> Counter[str]:
    """The numbers that an English text writes as words."""
    found: Counter[str] = Counter()
    total, part, before = 0.0, 0.0, ""  # `before`: the last word, if the number may go on
    text = _VAGUE.sub(" ", _DIGITS.sub(" . ", text.lower()))
    for word in [*re.findall(r"[a-z]+|[^\sa-z-]", text), ""]:
        if word == "and" and before in _FACTORS:
            continue
        goes_on = before in _FACTORS or (before in _TENS and _WORDS.get(word, 10) < 10)
        if word in _FACTORS:
            if word == "hundred":
                part = (part or 1) * 100
            else:
                total, part = total + (part or 1) * _FACTORS[word], 0.0
        elif word in _WORDS and goes_on:
            part += _WORDS[word]
        else:
            if before:
                found[_name(total + part)] += 1
            total, part = 0.0, _WORDS.get(word, 0.0)
        before = word if word in _WORDS or word in _FACTORS else ""
    return found


def chinese_words(text: str) -> list[frozenset[str]]:
    """The numbers that a Chinese text writes as numerals, each with the ways to read it.

    七成 is seven tenths and 70 per cent, 二三十 is twenty or thirty.
    """
    found: list[frozenset[str]] = []
    text = _NO_COUNT.sub(" ", re.sub(r"\d[\d,.]*\s*[百千]?萬?", " ", text))
    for match in _CHINESE_NUMERAL.finditer(text):
        tenths = match[0].endswith("成")
        for numeral in re.split(r"到", match[0].removesuffix("成")):
            for value in _values(numeral):
                found.append(frozenset({_name(value)} | ({_name(value * 10)} if tenths else set())))
    return found


def _values(numeral: str) -> list[float]:
    beside = re.fullmatch(r"([一二三四五六七八九])([一二三四五六七八九])([十百千萬]*)", numeral)
    if beside:
        return [value for first in beside.groups()[:2] for value in _values(first + beside[3])]
    total, part, last = 0.0, 0.0, 0.0
    for char in numeral:
        if char in _CHINESE_DIGITS:
            last = _CHINESE_DIGITS[char]
        elif char == "萬":
            total, part, last = (total + part + last or 1) * 1e4, 0.0, 0.0
        else:
            part, last = part + (last or 1) * _CHINESE_FACTORS[char], 0.0
    return [total + part + last]


def number_differences(chinese: str, english: str) -> list[str]:
    """Numbers of one language that the other has not.

    Numbers in digits are counted. One that stands in digits in one language may be a word in the
    other. Of the numbers in words, from three on, each has to be in the other text at least once.
    """
    ours, theirs = digits(chinese), digits(english)
    our_words, their_words = chinese_words(chinese), english_words(english)
    readings = Counter(name for names in our_words for name in names)
    found = []
    if left := ours - theirs - their_words:
        found.append(f"numbers: {_listed(left)} only in Chinese")
    if left := theirs - ours - readings:
        found.append(f"numbers: {_listed(left)} only in English")
    for names in dict.fromkeys(our_words):
        if min(map(float, names)) >= SMALL and not names & (theirs | their_words).keys():
            found.append(f"numbers in words: {' or '.join(sorted(names))} only in Chinese")
    for name in their_words:
        if float(name) >= SMALL and name not in ours | readings:
            found.append(f"numbers in words: {name} only in English")
    return found
