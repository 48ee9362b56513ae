"""The form of a notebook, as functions that look and tell.

Each rule takes a notebook and its path and returns its violations as sentences, an empty list
where all is well. A violation names the cell by its id. `RULES` holds them all;
tests/test_notebook_rules.py applies them to the lessons and shows that each one can fail.

Numbers, names and word lists that may change stand at the top of the part that uses them.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import statistics
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbformat.v4 import reads_json

from tests.wording import CHINESE, faults
from tools import parity

Rule = Callable[[NotebookNode, Path], list[str]]
RULES: list[Rule] = []

LESSONS = ("M08-1_quantizer", "M08-2_lowering", "M08-3_partition", "M08-4_speed")
# What a reader copies for their own model. It needs no exercises; all other rules hold.
TEMPLATES = ("M08-own-model",)
TIMING_LESSON = "M08-4_speed"

IGNORE_TAG = "nbval-ignore-output"
EXERCISE_TAG = "exercise"
BOOTSTRAP = "bootstrap"  # the cell that is the same in every notebook; see tools/repository.py
TAGS = frozenset({IGNORE_TAG, EXERCISE_TAG})


def rule(function: Rule) -> Rule:
    """Enter a function in `RULES`."""
    RULES.append(function)
    return function


# --- Reading a notebook ---------------------------------------------------------------------


def read(path: Path) -> NotebookNode:
    """A notebook as it stands on disk: nbformat.read would repair ids before a rule sees them."""
    return reads_json(path.read_text(encoding="utf-8"))


def language(path: Path) -> str:
    """`en` for notebooks/en/…, `zh` for the rest."""
    return "en" if path.parent.name == "en" else "zh"


def name_of(cell: NotebookNode) -> str:
    """How a violation names a cell."""
    return f"cell {cell.get('id', '(without id)')!r}"


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    """The code cells in order."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def markdown_cells(nb: NotebookNode) -> list[NotebookNode]:
    """The Markdown cells in order."""
    return [cell for cell in nb.cells if cell.cell_type == "markdown"]


def syntax_tree(cell: NotebookNode) -> ast.Module | None:
    """The code of a cell, IPython's magics translated; None if it is no Python."""
    try:
        return ast.parse(TransformerManager().transform_cell(cell.source))
    except SyntaxError:
        return None


def asserts(cell: NotebookNode) -> int:
    """How many `assert` statements a code cell holds."""
    tree = syntax_tree(cell)
    return 0 if tree is None else sum(isinstance(node, ast.Assert) for node in ast.walk(tree))


def code_lines(cell: NotebookNode) -> int:
    """Lines of a code cell that are not blank."""
    return sum(1 for line in cell.source.splitlines() if line.strip())


def without_fences(markdown: str) -> str:
    """Markdown without its fenced code."""
    return parity.FENCE.sub("", markdown)


def headings(cell: NotebookNode) -> list[tuple[int, str]]:
    """(level, text) of the headings of a Markdown cell."""
    return parity.headings(cell.source)


def sections(nb: NotebookNode) -> list[tuple[str, list[NotebookNode]]]:
    """The H2 sections with their cells, from the first H2 on."""
    found: list[tuple[str, list[NotebookNode]]] = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            found += [(text, []) for level, text in headings(cell) if level == 2]
        if found:
            found[-1][1].append(cell)
    return found


def words(markdown: str) -> int:
    """Length of prose: Latin words, and Chinese at 1.5 characters a word.

    Left out: fenced code, folded parts, tags, and the targets of links.
    """
    text = re.sub(r"<details>.*?</details>", "", without_fences(markdown), flags=re.DOTALL)
    text = re.sub(r"<[^>]+>|\]\([^)]*\)", " ", text)
    chinese = len(re.findall(CHINESE, text))
    latin = len(re.findall(r"[A-Za-z0-9][\w.'-]*", re.sub(CHINESE, " ", text), re.ASCII))
    return latin + round(chinese / 1.5)


class _Elements(HTMLParser):
    """Collects the elements and the text of a piece of HTML or SVG."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


_DATA_URI = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/=\s]+)")


def _open_data_uris(html: str) -> str:
    """HTML with the SVG pictures it embeds written out and other embedded data left out."""

    def opened(match: re.Match[str]) -> str:
        if match[1] != "image/svg+xml":
            return ""
        return base64.b64decode(match[2]).decode("utf-8", "replace").replace('"', "&quot;")

    return _DATA_URI.sub(opened, html)


def embedded_svgs(html: str) -> list[str]:
    """The SVG pictures that a piece of HTML embeds."""
    return [
        base64.b64decode(data).decode("utf-8", "replace")
        for mime, data in _DATA_URI.findall(html)
        if mime == "image/svg+xml"
    ]


def output_texts(cell: NotebookNode) -> Iterator[str]:
    """All text that the outputs of a cell hold, embedded SVG included, pixels left out."""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield "\n".join([output.ename, output.evalue, *output.traceback])
        else:
            for mime, data in output.data.items():
                if mime in ("image/png", "image/jpeg"):
                    continue
                text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
                yield _open_data_uris(text) if mime == "text/html" else text


def rich_outputs(nb: NotebookNode) -> Iterator[tuple[NotebookNode, NotebookNode]]:
    """(cell, output) for all outputs that carry data by MIME type."""
    for cell in code_cells(nb):
        for output in cell.outputs:
            if output.output_type in ("display_data", "execute_result"):
                yield cell, output


def html_sources(nb: NotebookNode) -> Iterator[tuple[NotebookNode, str]]:
    """(cell, HTML) for raw HTML in Markdown, HTML outputs and the SVG pictures in them."""
    for cell in markdown_cells(nb):
        yield cell, re.sub(r"`[^`\n]*`", "", without_fences(cell.source))
    for cell, output in rich_outputs(nb):
        html = output.data.get("text/html", "")
        yield cell, html
        for svg in [*embedded_svgs(html), output.data.get("image/svg+xml", "")]:
            yield cell, svg


# --- The file and its cells -----------------------------------------------------------------


@rule
def file_name(nb: NotebookNode, path: Path) -> list[str]:
    """The file is one of the four lessons, or the template."""
    names = LESSONS + TEMPLATES
    if path.suffix == ".ipynb" and path.stem in names:
        return []
    return [f"{path.name}: a lesson is called one of {', '.join(names)}, .ipynb"]


@rule
def file_format(nb: NotebookNode, path: Path) -> list[str]:
    """nbformat 4.5, valid."""
    if (nb.get("nbformat"), nb.get("nbformat_minor")) != (4, 5):
        return [f"nbformat {nb.get('nbformat')}.{nb.get('nbformat_minor')}, expected 4.5"]
    try:
        nbformat.validate(nbformat.from_dict(nb))
    except nbformat.ValidationError as error:
        return [f"not valid: {str(error).splitlines()[0]}"]
    return []


# nbformat makes eight hex digits, JupyterLab a UUID: neither says what the cell is for.
_RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,4}(-?[0-9a-f]{12})?")
_ID = re.compile(r"(?=.*[a-z])[a-z0-9-]{1,40}")


@rule
def cell_ids(nb: NotebookNode, path: Path) -> list[str]:
    """Ids are unique and made by a person: they link the two languages and name a failure."""
    found = []
    seen: set[str] = set()
    for number, cell in enumerate(nb.cells):
        identity = cell.get("id", "")
        if not _ID.fullmatch(identity):
            found.append(
                f"cell {identity!r} (number {number}): an id is 1 to 40 of a-z, 0-9 and -, "
                "with a letter"
            )
        elif _RANDOM_ID.fullmatch(identity):
            found.append(f"cell {identity!r} (number {number}): a random id; give it a name")
        if identity in seen:
            found.append(f"cell {identity!r} (number {number}): the id is there twice")
        seen.add(identity)
    return found


@rule
def metadata(nb: NotebookNode, path: Path) -> list[str]:
    """Kernel python3; no widget state, versions or time stamps."""
    found = []
    kernel = nb.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        found.append(f"kernelspec {kernel!r}, expected 'python3'")
    if "widgets" in nb.metadata:
        found.append("the notebook stores widget state")
    if "version" in nb.metadata.get("language_info", {}):
        found.append("language_info holds a Python version, which changes from machine to machine")
    for cell in nb.cells:
        for key in {"execution", "ExecuteTime"} & set(cell.metadata):
            found.append(f"{name_of(cell)}: metadata {key!r} holds time stamps")
    return found


@rule
def known_tags(nb: NotebookNode, path: Path) -> list[str]:
    """Tags come from the list: nbval ignores a misspelt one, and nbval-skip checks nothing."""
    return [
        f"{name_of(cell)}: tag {tag!r} is not one of {', '.join(sorted(TAGS))}"
        for cell in nb.cells
        for tag in tags(cell)
        if tag not in TAGS or (tag == IGNORE_TAG and cell.cell_type != "code")
    ]


@rule
def nbval_comments(nb: NotebookNode, path: Path) -> list[str]:
    """Markers for nbval are tags: as comments they stand in the reader's way."""
    return [
        f"{name_of(cell)}: a comment for nbval; use a tag"
        for cell in code_cells(nb)
        if re.search(r"#.*\bNBVAL_|PYTEST_VALIDATE_", cell.source, re.IGNORECASE)
    ]


# --- Execution and outputs ------------------------------------------------------------------

IGNORED_SHARE = 0.10
IGNORED_SHARE_TIMING_LESSON = 0.40
MIME_TYPES = frozenset(
    {"text/plain", "text/html", "text/latex", "text/markdown", "image/png", "image/svg+xml"}
)


@rule
def executed(nb: NotebookNode, path: Path) -> list[str]:
    """Counts 1..n in order: nbval passes a cell with a null count without looking."""
    return [
        f"{name_of(cell)}: execution count {cell.get('execution_count')}, expected {number}"
        for number, cell in enumerate(code_cells(nb), start=1)
        if cell.get("execution_count") != number
    ]


@rule
def python_code(nb: NotebookNode, path: Path) -> list[str]:
    """Code cells hold Python."""
    return [
        f"{name_of(cell)}: {'empty' if not cell.source.strip() else 'not valid Python'}"
        for cell in code_cells(nb)
        if not cell.source.strip() or syntax_tree(cell) is None
    ]


@rule
def errors_and_stderr(nb: NotebookNode, path: Path) -> list[str]:
    """No stored error (it stops "Run all"), nothing on stderr."""
    found = []
    for cell in code_cells(nb):
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"{name_of(cell)}: stores an error, {output.ename}")
            elif output.output_type == "stream" and output.name != "stdout":
                found.append(f"{name_of(cell)}: stores {output.name}: {output.text[:60]!r}")
    return found


@rule
def ignored_outputs(nb: NotebookNode, path: Path) -> list[str]:
    """Few outputs go uncompared, and each of those cells asserts what it claims."""
    ignored = [cell for cell in code_cells(nb) if IGNORE_TAG in tags(cell)]
    share = IGNORED_SHARE_TIMING_LESSON if path.stem == TIMING_LESSON else IGNORED_SHARE
    found = [
        f"{name_of(cell)}: tagged {IGNORE_TAG} and asserts nothing"
        for cell in ignored
        if not asserts(cell)
    ]
    if len(ignored) > share * len(code_cells(nb)):
        names = ", ".join(cell.get("id", "?") for cell in ignored)
        found.append(
            f"{len(ignored)} of {len(code_cells(nb))} code cells are tagged {IGNORE_TAG}, "
            f"at most {share:.0%}: {names}"
        )
    return found


_WARNING_FILTERS = re.compile(
    r"\bsimplefilter\b|\bfilterwarnings\b|\blogging\.disable\b|\.setLevel\(|%%capture"
    r"|\bPYTHONWARNINGS\b|\bredirect_stderr\b|\bdevnull\b|\bDEVNULL\b|2>"
)


@rule
def warning_filters(nb: NotebookNode, path: Path) -> list[str]:
    """Nothing is silenced in front of the reader; common.pt2e.quiet names what it hides."""
    return [
        f"{name_of(cell)}: {match[0]!r} silences warnings or messages"
        for cell in code_cells(nb)
        if (match := _WARNING_FILTERS.search(cell.source))
    ]


_FOLDERS = "|".join(("tmp", "home", "root", "Users", "private", "mnt", "opt", "usr", "var"))
_MACHINE = re.compile(
    rf"(?<![\w.])/(?:{_FOLDERS})(?=/|\b)"
    r"|\b[A-Z]:\\+(?:Users|Windows|Program|Temp|Documents)"
    r"|\bsite-packages\b|\bdist-packages\b|\bipykernel_\w*"
)


@rule
def machine_paths(nb: NotebookNode, path: Path) -> list[str]:
    """No path of a machine in code or outputs."""
    found = []
    for cell in code_cells(nb):
        for where, text in [("code", cell.source), *(("output", t) for t in output_texts(cell))]:
            if match := _MACHINE.search(text):
                found.append(f"{name_of(cell)}: {match[0]!r} in the {where}")
    return found


_VOLATILE = re.compile(r"\bat 0x[0-9a-fA-F]{4,}|\r|\d(?:it|B)/s\b|%\|")


@rule
def volatile_outputs(nb: NotebookNode, path: Path) -> list[str]:
    """No addresses, no progress bars, no widgets, no scripts in an output."""
    found = [
        f"{name_of(cell)}: an output holds {match[0]!r} (an address or a progress bar)"
        for cell in code_cells(nb)
        for text in output_texts(cell)
        if (match := _VOLATILE.search(text))
    ]
    found += [
        f"{name_of(cell)}: output of type {mime}; allowed are {', '.join(sorted(MIME_TYPES))}"
        for cell, output in rich_outputs(nb)
        for mime in output.data
        if mime not in MIME_TYPES
    ]
    return found


# --- Size -----------------------------------------------------------------------------------

MAX_CODE_LINES = 35
MAX_CELLS = 60
MAX_FILE_BYTES = 300_000
MAX_OUTPUT_BYTES = 64_000
# Targets are 6 lines and 120 words. A test fails at about one and a half times that, so that an
# exception here and there does not cost the author a fight.
MAX_MEDIAN_CODE_LINES = 8
MAX_PROSE_WORDS = {"zh": 180, "en": 200}  # the same cell has more words in English


@rule
def sizes(nb: NotebookNode, path: Path) -> list[str]:
    """Cells, outputs and file stay small."""
    found = [
        f"{name_of(cell)}: {code_lines(cell)} lines of code, at most {MAX_CODE_LINES}"
        for cell in code_cells(nb)
        if code_lines(cell) > MAX_CODE_LINES
    ]
    for cell in code_cells(nb):
        for output in cell.outputs:
            size = len(json.dumps(output, ensure_ascii=False).encode())
            if size > MAX_OUTPUT_BYTES:
                found.append(
                    f"{name_of(cell)}: an output of {size:,} bytes, at most {MAX_OUTPUT_BYTES:,}"
                )
    if len(nb.cells) > MAX_CELLS:
        found.append(f"{len(nb.cells)} cells, at most {MAX_CELLS}")
    stored = len(nbformat.writes(nb, version=nbformat.NO_CONVERT).encode())
    if stored > MAX_FILE_BYTES:
        found.append(f"the file has {stored:,} bytes, at most {MAX_FILE_BYTES:,}")
    return found


@rule
def short_cells(nb: NotebookNode, path: Path) -> list[str]:
    """One idea per cell."""
    most = MAX_PROSE_WORDS[language(path)]
    found = [
        f"{name_of(cell)}: {words(cell.source)} words of prose, at most {most}"
        for cell in markdown_cells(nb)
        if words(cell.source) > most
    ]
    lines = [code_lines(cell) for cell in code_cells(nb) if cell.get("id") != BOOTSTRAP]
    if lines and statistics.median(lines) > MAX_MEDIAN_CODE_LINES:
        longest = max(code_cells(nb), key=code_lines)
        found.append(
            f"the median code cell has {statistics.median(lines):g} lines, at most "
            f"{MAX_MEDIAN_CODE_LINES} (the longest is {name_of(longest)})"
        )
    return found


# --- The way through a lesson ---------------------------------------------------------------

HEADER = {
    "zh": ("你會做", "你會學到", "你需要"),
    "en": ("You will do", "You will learn", "You need"),
}
NEIGHBOURS = {"zh": ("上一", "下一"), "en": ("Previous", "Next")}
MINUTES = {"zh": r"\d\s*分鐘", "en": r"\d\s*min"}
MEMORY = r"\d\s*[MG]i?B"
EXERCISES = {"zh": "練習", "en": "Exercise"}
DIFFICULTY = {"zh": "難度", "en": "[Dd]ifficulty"}
PREDICTION = {"zh": r"猜|預測|預期|你覺得", "en": r"guess|predict|expect|do you think"}
MIN_PREDICTIONS = 3


@rule
def one_title(nb: NotebookNode, path: Path) -> list[str]:
    """The first cell is Markdown and holds the only H1."""
    titled = [cell for cell in markdown_cells(nb) for level, _ in headings(cell) if level == 1]
    found = [f"{name_of(cell)}: another H1; a lesson has one" for cell in titled[1:]]
    if not titled or titled[0] is not nb.cells[0]:
        found.append("the first cell is not Markdown with an H1")
    return found


@rule
def opening(nb: NotebookNode, path: Path) -> list[str]:
    """Something concrete, then what the reader will do, learn and need, and what it costs."""
    first = nb.cells[0] if nb.cells else None
    if first is None or first.cell_type != "markdown":
        return ["the first cell is not Markdown"]
    tongue = language(path)
    found = []
    body = [line for line in first.source.splitlines() if not re.match(r"#|\s*$|\[", line)]
    concrete = [line for line in body if not re.search(MINUTES[tongue], line)]
    if not any(re.search(r"\d|`", line) for line in concrete):
        found.append(f"{name_of(first)}: opens with nothing concrete (a number, a failure)")

    before_code = ""
    for cell in nb.cells:
        if cell.cell_type == "code":
            break
        before_code += cell.source + "\n"
    for phrase in (*HEADER[tongue], *NEIGHBOURS[tongue]):
        if phrase.lower() not in before_code.lower():
            found.append(f"{name_of(first)}: no {phrase!r} before the first code cell")
    for what, pattern in (("minutes", MINUTES[tongue]), ("memory", MEMORY)):
        if not re.search(pattern, before_code):
            found.append(f"{name_of(first)}: no measured {what} before the first code cell")
    return found


@rule
def predict_run_check(nb: NotebookNode, path: Path) -> list[str]:
    """The reader guesses, and what is shown is asserted: in every section that runs something."""
    tongue = language(path)
    found = []
    for title, cells in sections(nb):
        code = [c for c in cells if c.cell_type == "code" and EXERCISE_TAG not in tags(c)]
        if code and not any(asserts(cell) for cell in code):
            found.append(f"section {title!r} ({name_of(code[0])}): runs code and asserts nothing")
    asking = [c for c in markdown_cells(nb) if re.search(PREDICTION[tongue], c.source, re.I)]
    if len(asking) < MIN_PREDICTIONS:
        names = ", ".join(cell.get("id", "?") for cell in asking) or "none"
        found.append(
            f"{len(asking)} cells ask for a guess, at least {MIN_PREDICTIONS} should: {names}"
        )
    return found


@rule
def exercises_at_the_end(nb: NotebookNode, path: Path) -> list[str]:
    """Exercises stand in the last or last but one section, each with difficulty and minutes."""
    tongue = language(path)
    last = [cells for title, cells in sections(nb)[-2:] if EXERCISES[tongue] in title]
    inside = {id(cell) for cells in last for cell in cells}
    exercises = [cell for cell in nb.cells if EXERCISE_TAG in tags(cell)]
    if path.stem in TEMPLATES and not exercises:
        return []
    if not exercises or not last:
        return [f"no section {EXERCISES[tongue]!r} with cells tagged {EXERCISE_TAG!r} at the end"]
    found = [
        f"{name_of(cell)}: an exercise outside the section {EXERCISES[tongue]!r}"
        for cell in exercises
        if id(cell) not in inside
    ]
    for before, cell in zip(nb.cells, nb.cells[1:], strict=False):
        if EXERCISE_TAG not in tags(cell):
            continue
        text = before.source if before.cell_type == "markdown" else ""
        for what, pattern in (("difficulty", DIFFICULTY[tongue]), ("minutes", MINUTES[tongue])):
            if not re.search(pattern, text):
                found.append(f"{name_of(cell)}: the Markdown cell above it gives no {what}")
    return found


@rule
def relative_links(nb: NotebookNode, path: Path) -> list[str]:
    """Links into the repository lead to something."""
    found = []
    for cell in markdown_cells(nb):
        text = without_fences(cell.source)
        targets = re.findall(r"\]\(\s*<?([^)\s>]+)", text)
        targets += [
            value
            for _, attributes in _Elements(text).elements
            for key, value in attributes.items()
            if key in ("href", "src") and value
        ]
        for target in targets:
            if re.match(r"[A-Za-z][\w+.-]*:|#|//", target):
                continue
            file = unquote(re.split(r"[#?]", target)[0])
            if file.startswith("/") or not (path.parent / file).exists():
                found.append(f"{name_of(cell)}: the link {target!r} leads nowhere")
    return found


# --- Pictures and HTML ----------------------------------------------------------------------

_FORBIDDEN_ELEMENTS = frozenset({"style", "script", "iframe", "object", "embed", "link"})


@rule
def alt_texts(nb: NotebookNode, path: Path) -> list[str]:
    """Every picture has words for those who cannot see it."""
    found = []
    for cell in markdown_cells(nb):
        if re.search(r"!\[\s*\]", without_fences(cell.source)):
            found.append(f"{name_of(cell)}: a Markdown picture without alt text")
    for cell, html in html_sources(nb):
        for tag, attributes in _Elements(html).elements:
            if tag == "img" and not (attributes.get("alt") or "").strip():
                found.append(f"{name_of(cell)}: an <img> without alt text")
    for cell, output in rich_outputs(nb):
        if "image/png" in output.data and "text/html" not in output.data:
            about = output.metadata.get("image/png", {})
            if not str(about.get("alt", "")).strip():
                found.append(
                    f"{name_of(cell)}: a PNG output without alt text in its metadata "
                    "(output.metadata['image/png']['alt'], which nbconvert renders)"
                )
    return found


@rule
def html_survives_sanitizers(nb: NotebookNode, path: Path) -> list[str]:
    """No styles, scripts or frames: viewers strip them and what depends on them breaks."""
    found = []
    for cell, html in html_sources(nb):
        for tag, attributes in _Elements(html).elements:
            if tag in _FORBIDDEN_ELEMENTS:
                found.append(f"{name_of(cell)}: <{tag}> in HTML")
            for key in attributes:
                if key == "style" or key.startswith("on"):
                    found.append(f"{name_of(cell)}: attribute {key}= in <{tag}>")
    return list(dict.fromkeys(found))


@rule
def pictures_have_facts(nb: NotebookNode, path: Path) -> list[str]:
    """Beside each picture stands text: it is read by those who see no picture, and by nbval."""
    found = []
    for cell, output in rich_outputs(nb):
        text = str(output.data.get("text/plain", "")).strip()
        if "image/svg+xml" in output.data and "text/html" not in output.data:
            found.append(f"{name_of(cell)}: an untrusted notebook does not show image/svg+xml")
        if "text/html" in output.data and (not text or re.match(r"<[\w.]+ object\b", text)):
            found.append(f"{name_of(cell)}: text/html without a text/plain of the same facts")
        if "image/png" in output.data and (not text or text.startswith("<Figure")):
            timing = path.stem == TIMING_LESSON and IGNORE_TAG in tags(cell)
            if not timing:
                found.append(f"{name_of(cell)}: a PNG whose text/plain says no fact ({text!r})")
    return found


# --- Language -------------------------------------------------------------------------------

# Characters beyond ASCII that read the same in both languages.
SYMBOLS = frozenset(
    "\u00a0←↑→↓↔⇒×÷·±−≤≥≠≈∞∈∑√²³°µμσΔ½¼¾…–—•│─┌┐└┘├┤┬┴┼═█▓▒░▁▂▃▄▅▆▇▏▎▍▌▋▊▉■□●○▲△▼▽✓✗★☆"
)


@rule
def neutral_code_and_outputs(nb: NotebookNode, path: Path) -> list[str]:
    """Code and outputs are the same in both languages: ASCII and symbols."""
    found = []
    for cell in code_cells(nb):
        for where, text in [("code", cell.source), *(("output", t) for t in output_texts(cell))]:
            foreign = dict.fromkeys(c for c in text if not c.isascii() and c not in SYMBOLS)
            if foreign:
                shown = " ".join(f"{c} (U+{ord(c):04X})" for c in list(foreign)[:5])
                found.append(f"{name_of(cell)}: {shown} in the {where}")
    return found


@rule
def taiwan_chinese(nb: NotebookNode, path: Path) -> list[str]:
    """Taiwan's terms and no Simplified character; no Chinese in English; the glossary's terms."""
    found = []
    tongue = language(path)
    for cell in markdown_cells(nb):
        text = re.sub(r"\[[^\]]*\]\([^)]*\)", "", without_fences(cell.source))
        if tongue == "en" and (chinese := re.findall(CHINESE, text)):
            found.append(f"{name_of(cell)}: {''.join(chinese[:10])} in English prose")
        found += [f"{name_of(cell)}: {text}" for text in faults(cell.source, tongue)]
    return found


def violations(nb: NotebookNode, path: Path) -> list[str]:
    """What all rules together find."""
    return [f"{check.__name__}: {text}" for check in RULES for text in check(nb, path)]
