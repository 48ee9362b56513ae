"""The lessons keep to the form of a notebook, and each rule of that form can fail.

The second half makes a small lesson on which every rule is content, then spoils it in one place
at a time and expects the rule in question, and only a sentence that names the place, to say so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests import notebook_rules as rules

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(
    path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
)
FINISHED = ("M08-1_quantizer", "M08-2_lowering", "M08-3_partition", "M08-4_speed")


def test_no_finished_lesson_is_missing() -> None:
    there = {path.stem for path in NOTEBOOKS if rules.language(path) == "zh"}
    if not there:
        pytest.skip("there is no lesson yet")
    assert set(FINISHED) <= there


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.relative_to(ROOT).as_posix())
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda r: r.__name__)
def test_lesson_keeps_the_rule(rule: rules.Rule, path: Path) -> None:
    found = rule(rules.read(path), path)
    assert not found, "\n".join([f"{path.relative_to(ROOT)}: {rule.__doc__}", *found])


# --- A lesson on which every rule is content ------------------------------------------------

OPENING = """# M08-2 降階
少了一行 `eval()`，輸出就差了 37 LSB。

- **你會做**：把量化圖變成 `.pte`
- **你會學到**：partitioner
- **你需要**：M08-1

實測 2 分鐘，記憶體 800 MB。上一課：[總覽](README.md)，下一課：M08-3。
"""

ENGLISH_OPENING = """# M08-2 Lowering
Without `eval()` the output is off by 37 LSB.

**You will do** this, **you will learn** that, **you need** M08-1. Measured: 2 min, 800 MB.
Previous: [overview](../README.md). Next: M08-3.
"""

EXERCISE = """answer = None
if answer is None:
    print("to do")
else:
    assert answer == 4, "count again"
"""


def picture(svg: str = "<svg><text>conv2d</text></svg>", alt: str = "graph: 2 nodes") -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def markdown(name: str, source: str) -> NotebookNode:
    return new_markdown_cell(source, id=name)


def code(
    name: str, source: str, *outputs: NotebookNode, tags: tuple[str, ...] = ()
) -> NotebookNode:
    metadata = {"tags": list(tags)} if tags else {}
    return new_code_cell(source, id=name, outputs=list(outputs), metadata=metadata)


def printed(text: str) -> NotebookNode:
    return new_output("stream", name="stdout", text=text)


def shown(**data: str) -> NotebookNode:
    """A display output; `text_html` stands for `text/html`."""
    return new_output(
        "display_data", data={key.replace("_", "/", 1): value for key, value in data.items()}
    )


def good_lesson() -> NotebookNode:
    png = shown(image_png="iVBORw0KGgo=", text_plain="2 bars: 20,880 B, 45,968 B")
    png.metadata["image/png"] = {"alt": "bar chart, int8 45 % of fp32"}
    nb = new_notebook(
        cells=[
            markdown("title", OPENING),
            markdown("first-section", "## 一、先看圖\n先猜：有幾個 delegate？"),
            code("draw-graph", "n = 1\nassert n == 1", shown(text_html=picture(), text_plain="g")),
            code("print-size", "print('20,880 B → 45 %')", printed("20,880 B → 45 %\n")),
            markdown("second-section", "## 二、大小\n你預測多大？"),
            code("plot-size", "assert 45_968 > 20_880", png),
            markdown("third-guess", "再猜一次：省了幾成？"),
            *(code(f"step-{n}", f"step = {n}") for n in range(7)),
            code(
                "measure",
                "t = 1.0\nassert t > 0",
                printed("30 us\n"),
                tags=("nbval-ignore-output",),
            ),
            markdown("exercises", "## 練習\n**1.** 數一數（難度 ★，2 分鐘）"),
            code("exercise-count", EXERCISE, printed("to do\n"), tags=("exercise",)),
        ],
        metadata={"kernelspec": {"display_name": "Python 3", "name": "python3"}},
    )
    for number, cell in enumerate(rules.code_cells(nb), start=1):
        cell.execution_count = number
    return nb


def cell_of(nb: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in nb.cells if cell.id == name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notebooks = tmp_path / "notebooks"
    (notebooks / "en").mkdir(parents=True)
    (notebooks / "README.md").write_text("overview")
    return notebooks


def test_every_rule_is_content_with_the_good_lesson(folder: Path) -> None:
    assert rules.violations(good_lesson(), folder / "M08-2_lowering.ipynb") == []


def test_every_rule_is_content_with_its_english_twin(folder: Path) -> None:
    nb = good_lesson()
    cell_of(nb, "title").source = ENGLISH_OPENING
    cell_of(nb, "first-section").source = "## 1. The graph\nGuess: how many delegates?"
    cell_of(nb, "second-section").source = "## 2. Size\nWhat do you expect?"
    cell_of(nb, "third-guess").source = "Predict the share."
    cell_of(nb, "exercises").source = "## Exercises\n**1.** Count (Difficulty ★, 2 min)"
    assert rules.violations(nb, folder / "en" / "M08-2_lowering.ipynb") == []


def test_a_lesson_on_disk_is_read_as_it_stands(tmp_path: Path) -> None:
    """nbformat.read gives repeated ids new random ones, and the rule would look at those."""
    nb = good_lesson()
    nb.cells[1].id = nb.cells[0].id
    path = tmp_path / "M08-2_lowering.ipynb"
    path.write_text(nbformat.v4.writes(nb), encoding="utf-8")
    assert rules.read(path) == nb


# --- Each rule fails on what it is there for ------------------------------------------------

Spoil = Callable[[NotebookNode], None]
CASES: list[tuple[rules.Rule, str, Spoil]] = []


def case(rule: rules.Rule, expected: str) -> Callable[[Spoil], Spoil]:
    """Enter a way to spoil the good lesson: `rule` must object, and say `expected`."""

    def enter(spoil: Spoil) -> Spoil:
        CASES.append((rule, expected, spoil))
        return spoil

    return enter


def source(rule: rules.Rule, name: str, text: str, expected: str) -> None:
    """Spoil by the source of a cell; `expected` is looked for beside the name of the cell."""

    def spoil(nb: NotebookNode) -> None:
        cell_of(nb, name).source = text

    CASES.append((rule, f"cell {name!r}: {expected}", spoil))


def output(rule: rules.Rule, out: NotebookNode, expected: str, name: str = "print-size") -> None:
    """Spoil by one more output of a cell."""

    def spoil(nb: NotebookNode) -> None:
        cell_of(nb, name).outputs.append(out)

    CASES.append((rule, f"cell {name!r}: {expected}", spoil))


def metadatum(rule: rules.Rule, name: str, key: str, value: object, expected: str) -> None:
    """Spoil by the metadata of a cell."""

    def spoil(nb: NotebookNode) -> None:
        cell_of(nb, name).metadata[key] = value

    CASES.append((rule, f"cell {name!r}: {expected}", spoil))


@case(rules.file_format, "nbformat 4.4, expected 4.5")
def _(nb: NotebookNode) -> None:
    nb.nbformat_minor = 4


@case(rules.file_format, "not valid")
def _(nb: NotebookNode) -> None:
    nb.cells[2].outputs[0]["output_type"] = "picture"


@case(rules.cell_ids, "'title' (number 1): the id is there twice")
def _(nb: NotebookNode) -> None:
    nb.cells[1].id = "title"


for random_id in ("0a1b2c3d", "dfe1c0a9-52a8-4a1c-9a52-0c2ea2b0a111"):

    @case(rules.cell_ids, f"cell {random_id!r} (number 2): a random id")
    def _(nb: NotebookNode, random_id: str = random_id) -> None:
        nb.cells[2].id = random_id


for bad_id in ("Draw", "draw_graph", "42", "x" * 41, ""):

    @case(rules.cell_ids, f"cell {bad_id!r} (number 2): an id is 1 to 40")
    def _(nb: NotebookNode, bad_id: str = bad_id) -> None:
        nb.cells[2].id = bad_id


@case(rules.metadata, "kernelspec 'm08', expected 'python3'")
def _(nb: NotebookNode) -> None:
    nb.metadata.kernelspec.name = "m08"


@case(rules.metadata, "stores widget state")
def _(nb: NotebookNode) -> None:
    nb.metadata.widgets = {}


@case(rules.metadata, "language_info holds a Python version")
def _(nb: NotebookNode) -> None:
    nb.metadata.language_info = {"name": "python", "version": "3.11.7"}


@case(rules.executed, "cell 'print-size': execution count None, expected 2")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "print-size").execution_count = None


@case(rules.executed, "cell 'draw-graph': execution count 2, expected 1")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "draw-graph").execution_count = 2


@case(rules.ignored_outputs, "2 of 12 code cells are tagged nbval-ignore-output, at most 10%")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "draw-graph").metadata.tags = ["nbval-ignore-output"]


@case(rules.sizes, "61 cells, at most 60")
def _(nb: NotebookNode) -> None:
    nb.cells += [markdown(f"more-{n}", "x") for n in range(61 - len(nb.cells))]


@case(rules.sizes, "bytes, at most 300,000")
def _(nb: NotebookNode) -> None:
    for name in ("step-0", "step-1", "step-2", "step-3", "step-4"):
        cell_of(nb, name).outputs.append(printed("x" * 60_000))


@case(rules.short_cells, "the median code cell has 9 lines, at most 8 (the longest is cell")
def _(nb: NotebookNode) -> None:
    for cell in rules.code_cells(nb):
        cell.source = "x = 1\n" * 9


@case(rules.one_title, "cell 'second-section': another H1")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "second-section").source += "\n# Again"


@case(rules.one_title, "the first cell is not Markdown with an H1")
def _(nb: NotebookNode) -> None:
    nb.cells.insert(0, code("install", "x = 1"))


@case(rules.opening, "the first cell is not Markdown")
def _(nb: NotebookNode) -> None:
    nb.cells.insert(0, code("install", "x = 1"))


@case(rules.opening, "cell 'title': opens with nothing concrete")
def _(nb: NotebookNode) -> None:
    cell = cell_of(nb, "title")
    cell.source = cell.source.replace("`", "").replace("37", "").replace("M08-1", "")
    cell.source = cell.source.replace("少了一行 eval()，輸出就差了  LSB。", "量化很重要。")


for phrase in ("你會做", "你會學到", "你需要", "上一", "下一"):

    @case(rules.opening, f"cell 'title': no {phrase!r} before the first code cell")
    def _(nb: NotebookNode, phrase: str = phrase) -> None:
        cell_of(nb, "title").source = OPENING.replace(phrase, "")


for what, phrase in (("minutes", "2 分鐘"), ("memory", "800 MB")):

    @case(rules.opening, f"cell 'title': no measured {what} before the first code cell")
    def _(nb: NotebookNode, phrase: str = phrase) -> None:
        cell_of(nb, "title").source = OPENING.replace(phrase, "")


@case(
    rules.predict_run_check, "section '二、大小' (cell 'plot-size'): runs code and asserts nothing"
)
def _(nb: NotebookNode) -> None:
    cell_of(nb, "plot-size").source = "print('assert')  # assert"
    cell_of(nb, "measure").source = "t = 1.0"


@case(rules.predict_run_check, "2 cells ask for a guess, at least 3 should: first-section, ")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "second-section").source = "## 二、大小"


@case(rules.exercises_at_the_end, "no section '練習' with cells tagged 'exercise' at the end")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "exercise-count").metadata.tags = []


@case(rules.exercises_at_the_end, "no section '練習' with cells tagged 'exercise' at the end")
def _(nb: NotebookNode) -> None:
    nb.cells += [markdown(f"more-{n}", f"## 其他 {n}") for n in (1, 2)]


@case(rules.exercises_at_the_end, "cell 'plot-size': an exercise outside the section '練習'")
def _(nb: NotebookNode) -> None:
    cell_of(nb, "plot-size").metadata.tags = ["exercise"]


for what, phrase in (("difficulty", "難度"), ("minutes", "2 分鐘")):

    @case(
        rules.exercises_at_the_end,
        f"cell 'exercise-count': the Markdown cell above it gives no {what}",
    )
    def _(nb: NotebookNode, phrase: str = phrase) -> None:
        cell = cell_of(nb, "exercises")
        cell.source = cell.source.replace(phrase, "")


metadatum(rules.metadata, "title", "execution", {}, "metadata 'execution' holds time stamps")
for tag in ("NBVAL_IGNORE_OUTPUT", "nbval-skip", "raises-exception", "exercize"):
    metadatum(rules.known_tags, "draw-graph", "tags", [tag], f"tag {tag!r} is not one of")
metadatum(rules.known_tags, "title", "tags", ["nbval-ignore-output"], "tag 'nbval-ignore-output'")
source(
    rules.ignored_outputs, "measure", "t = 1.0", "tagged nbval-ignore-output and asserts nothing"
)
source(rules.nbval_comments, "step-0", "x = 1  # NBVAL_IGNORE_OUTPUT", "a comment for nbval")
source(rules.nbval_comments, "step-0", "# nbval_skip\nx = 1", "a comment for nbval")
source(rules.python_code, "step-0", "x = = 1", "not valid Python")
source(rules.python_code, "step-0", "\n", "empty")
source(rules.sizes, "step-0", "x = 1\n" * 36, "36 lines of code, at most 35")
output(rules.sizes, printed("x" * 64_001), "an output of 64,0")
source(rules.short_cells, "second-section", "字" * 272, "181 words of prose, at most 180")
source(rules.short_cells, "second-section", "word " * 181, "181 words of prose, at most 180")
output(
    rules.errors_and_stderr,
    new_output("error", ename="ValueError", evalue="x", traceback=[]),
    "stores an error, ValueError",
)
output(rules.errors_and_stderr, new_output("stream", name="stderr", text="W1"), "stores stderr: 'W")

for silencer in (
    "import warnings\nwarnings.simplefilter('ignore')",
    "import warnings\nwarnings.filterwarnings('ignore')",
    "import logging\nlogging.disable()",
    "import logging\nlogging.getLogger('torchao').setLevel(40)",
    "%%capture\nimport torch",
    "!python train.py 2>/dev/null",
):
    source(rules.warning_filters, "step-0", silencer, "")

for place in ("tmp/x.pte", "home/me/x.pte", "root", "Users/me"):
    source(
        rules.machine_paths, "step-0", f"p = '/{place}'", f"'/{place.split('/')[0]}' in the code"
    )
    output(
        rules.machine_paths, printed(f"saved /{place}\n"), f"'/{place.split('/')[0]}' in the out"
    )
output(rules.machine_paths, printed(r"C:\Users\me"), r"'C:\\Users' in the output")
output(rules.machine_paths, printed("lib/site-packages/torch"), "'site-packages' in the output")
output(rules.machine_paths, printed("ipykernel_123/4.py:1"), "'ipykernel_123' in the output")
output(
    rules.machine_paths,
    shown(text_html=picture("<svg><text>/tmp/a.pte</text></svg>"), text_plain="x"),
    "'/tmp' in the output",
)

output(
    rules.volatile_outputs, printed("<Obj object at 0x7f00aa11>"), "an output holds 'at 0x7f00aa1"
)
output(rules.volatile_outputs, printed(" 10%\r 20%"), r"an output holds '\r'")
output(rules.volatile_outputs, printed("100%|####| 3/3"), "an output holds '%|'")
for mime in ("application/vnd.jupyter.widget-view+json", "application/javascript"):
    output(
        rules.volatile_outputs,
        new_output("display_data", data={mime: "w", "text/plain": "w"}),
        f"output of type {mime}",
    )

source(
    rules.relative_links, "second-section", "[M08-3](M08-3_partition.ipynb)", "the link 'M08-3_p"
)
source(
    rules.relative_links, "second-section", "![g](figures/g.png#1)", "the link 'figures/g.png#1'"
)
source(rules.relative_links, "second-section", '<a href="no.md">no</a>', "the link 'no.md'")
source(rules.relative_links, "second-section", "[root](/README.md)", "the link '/README.md'")

source(rules.alt_texts, "second-section", "![](README.md)", "a Markdown picture without alt text")
source(rules.alt_texts, "second-section", '<img src="README.md">', "an <img> without alt text")
output(rules.alt_texts, shown(text_html=picture(alt=" "), text_plain="x"), "an <img> without alt")
output(rules.alt_texts, shown(image_png="iVBORw0KGgo=", text_plain="x"), "a PNG output without alt")

for html, expected in (
    ("<style>td {color: red}</style>", "<style> in HTML"),
    ("<script>1</script>", "<script> in HTML"),
    ('<iframe src="x"></iframe>', "<iframe> in HTML"),
    ('<td style="color: red">1</td>', "attribute style= in <td>"),
    ('<td onclick="f()">1</td>', "attribute onclick= in <td>"),
    (picture('<svg><g style="fill: red"/></svg>'), "attribute style= in <g>"),
):
    output(rules.html_survives_sanitizers, shown(text_html=html, text_plain="x"), expected)
    if "svg" not in html:
        source(rules.html_survives_sanitizers, "second-section", html, expected)

output(rules.pictures_have_facts, shown(text_html=picture()), "text/html without a text/plain")
output(
    rules.pictures_have_facts,
    shown(text_html=picture(), text_plain="<IPython.core.display.HTML object>"),
    "text/html without a text/plain",
)
output(
    rules.pictures_have_facts,
    new_output("display_data", data={"image/svg+xml": "<svg/>", "text/plain": "g"}),
    "an untrusted notebook does not show image/svg+xml",
)
output(
    rules.pictures_have_facts,
    shown(image_png="iVBORw0KGgo=", text_plain="<Figure size 640x480 with 1 Axes>"),
    "a PNG whose text/plain says no fact",
)

source(
    rules.neutral_code_and_outputs, "step-0", "x = 1  # 註解", "註 (U+8A3B) 解 (U+89E3) in the code"
)
output(rules.neutral_code_and_outputs, printed("大小\n"), "大 (U+5927) 小 (U+5C0F) in the output")
output(rules.neutral_code_and_outputs, printed("ｘ"), "ｘ (U+FF58) in the output")
output(
    rules.neutral_code_and_outputs,
    shown(text_html=picture("<svg><text>圖</text></svg>"), text_plain="g"),
    "圖 (U+5716) in the output",
)

source(rules.taiwan_chinese, "second-section", "## 大小\n这个模型", "Simplified 这个")
source(rules.taiwan_chinese, "second-section", "模型占的內存", "內存, in Taiwan 記憶體")


def case_name(value: object) -> str:
    return getattr(value, "__name__", None) or str(value)


@pytest.mark.parametrize(("rule", "expected", "spoil"), CASES, ids=case_name)
def test_the_rule_objects(rule: rules.Rule, expected: str, spoil: Spoil, folder: Path) -> None:
    nb = good_lesson()
    spoil(nb)
    found = rule(nb, folder / "M08-2_lowering.ipynb")
    assert any(expected in text for text in found), found


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _, _ in CASES} | {rules.file_name} == set(rules.RULES)


@pytest.mark.parametrize("name", ["M08-2.ipynb", "M08-5_more.ipynb", "m08-2_lowering.ipynb"])
def test_other_file_names_are_refused(name: str, folder: Path) -> None:
    (text,) = rules.file_name(good_lesson(), folder / name)
    assert text.startswith(f"{name}: a lesson is called one of M08-1_quantizer, ")


# --- What depends on the lesson or the language ---------------------------------------------


def test_the_template_may_have_no_exercises(folder: Path) -> None:
    nb = good_lesson()
    nb.cells = nb.cells[:-2]
    (said,) = rules.violations(nb, folder / "M08-2_lowering.ipynb")
    assert said.startswith("exercises_at_the_end: no section")
    (template,) = rules.TEMPLATES
    assert rules.violations(nb, folder / f"{template}.ipynb") == []
    nb = good_lesson()
    cell_of(nb, "exercises").source = "## 練習"
    assert "gives no difficulty" in "".join(rules.violations(nb, folder / f"{template}.ipynb"))


def test_the_timing_lesson_may_ignore_more_outputs_and_show_plain_figures(folder: Path) -> None:
    nb = good_lesson()
    for name in ("draw-graph", "plot-size"):
        cell_of(nb, name).metadata.tags = ["nbval-ignore-output"]
    cell_of(nb, "plot-size").outputs[0].data["text/plain"] = "<Figure size 640x480 with 1 Axes>"
    ordinary, timing = folder / "M08-2_lowering.ipynb", folder / "M08-4_speed.ipynb"
    assert rules.ignored_outputs(nb, ordinary)
    assert rules.pictures_have_facts(nb, ordinary)
    assert rules.ignored_outputs(nb, timing) == []
    assert rules.pictures_have_facts(nb, timing) == []


def test_chinese_left_in_english_prose_is_found_and_a_link_to_the_twin_is_not(folder: Path) -> None:
    nb = good_lesson()
    nb.cells = [markdown("title", "# Lowering\n[中文](../README.md)"), markdown("rest", "降階 it")]
    (text,) = rules.taiwan_chinese(nb, folder / "en" / "M08-2_lowering.ipynb")
    assert text == "cell 'rest': 降階 in English prose"


def test_words_counts_two_languages_and_skips_what_is_folded_or_code() -> None:
    assert rules.words("one two-three `op` 4.5") == 4
    assert rules.words("一二三四五六") == 4
    assert rules.words("one\n```python\nmany words here\n```\ntwo") == 2
    assert rules.words("[one](far/away.md) <details><summary>a</summary>b c</details>") == 1
