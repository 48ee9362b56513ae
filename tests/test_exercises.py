"""The exercises of the lessons: each solution passes its check, each wrong answer does not.

The form of an exercise, in three neighbouring cells:

1. Markdown: the task, with difficulty and minutes.
2. Code, tagged `exercise`: the blanks, then the check. A blank is a line `NAME = None`. While a
   blank is None the check prints `to do`, so that "Run all" passes; otherwise it asserts, and
   every assert has a message that helps:

       answer = None
       if answer is None:
           print("to do")
       else:
           assert answer == 4, "count the dequantize nodes as well"
           print("right")

   The metadata of the cell hold `{"m08": {"wrong": "answer = 3"}}`: code that fills the blanks
   with a mistake a reader may make, and that the check must refuse. The reader does not see it.
3. Markdown: `<details><summary>…</summary>` with a hint, then a second `<details>` with the
   solution in one fence of ```python. The solution fills the blanks and leaves out the check.

Here each lesson is executed once more, with every exercise filled in by its solution, and with its
wrong answer tried behind it in a copy of the kernel's variables. That the unfilled cells pass and
print `to do` is what nbval verifies.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests import notebook_rules as rules
from tools.execute_notebooks import execute

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("M08-*.ipynb"))
TO_DO = "to do"
WRONG_SUFFIX = "-wrong"


@dataclass(frozen=True)
class Exercise:
    """One exercise: its cell, the names to fill in, the rest of the cell, and two answers."""

    cell: NotebookNode
    blanks: frozenset[str]
    check: str
    solution: str
    wrong: str

    def filled(self, answer: str) -> str:
        """The code of the cell with an answer in place of the blanks."""
        return f"{answer.rstrip()}\n\n{self.check}"


def blanks_of(source: str) -> tuple[frozenset[str], str]:
    """The names that a cell sets to None at its top level, and the cell without these lines."""
    names: set[str] = set()
    lines: list[str | None] = list(source.splitlines())
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)):
                names.add(name)
                for number in range(statement.lineno, (statement.end_lineno or 0) + 1):
                    lines[number - 1] = None
    return frozenset(names), "\n".join(line for line in lines if line is not None) + "\n"


def names_set_by(source: str) -> set[str]:
    """The names that a piece of code binds at its top level."""
    names: set[str] = set()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        names |= {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return names


def exercises_of(nb: NotebookNode) -> tuple[list[Exercise], list[str]]:
    """The exercises of a notebook that have the form above, and what is wrong with the others."""
    good: list[Exercise] = []
    bad: list[str] = []
    for number, cell in enumerate(nb.cells):
        if rules.EXERCISE_TAG in rules.tags(cell):
            after = nb.cells[number + 1] if number + 1 < len(nb.cells) else None
            result = _parse(cell, after)
            if isinstance(result, Exercise):
                good.append(result)
            else:
                bad += [f"{rules.name_of(cell)}: {text}" for text in result]
    return good, bad


def _parse(cell: NotebookNode, after: NotebookNode | None) -> Exercise | list[str]:
    try:
        blanks, check = blanks_of(cell.source)
    except SyntaxError:
        return ["an exercise is plain Python, without magics"]
    bad = []
    if not blanks:
        bad.append("no blank (a line NAME = None)")
    statements = [node for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Assert)]
    if not statements:
        bad.append("the check asserts nothing")
    if any(statement.msg is None for statement in statements):
        bad.append("an assert without a message that helps")
    if TO_DO not in check:
        bad.append(f"the check does not print {TO_DO!r}")

    folded = _folded(after)
    fences = re.findall(r"^```python\n(.*?)^```", folded[-1], re.M | re.S) if folded else []
    if len(folded) != 2 or len(fences) != 1 or "```python" in folded[0]:
        bad.append(
            "the next cell has to hold two <details> with a <summary> each: a hint, and the "
            "solution in one fence of ```python"
        )
    wrong = str(cell.metadata.get("m08", {}).get("wrong", ""))
    for what, answer in (("solution", "".join(fences)), ("wrong answer (m08.wrong)", wrong)):
        try:
            missing = blanks - names_set_by(answer)
        except SyntaxError:
            bad.append(f"the {what} is not valid Python")
        else:
            if missing:
                bad.append(f"the {what} does not set {', '.join(sorted(missing))}")
    return bad or Exercise(cell, blanks, check, fences[0], wrong)


def _folded(cell: NotebookNode | None) -> list[str]:
    """The insides of the <details> of a Markdown cell, the summaries left out."""
    if cell is None or cell.cell_type != "markdown":
        return []
    return re.findall(r"<details>\s*<summary>[^<]+</summary>(.*?)</details>", cell.source, re.S)


# Runs behind the solution. The copy of the globals keeps the wrong answer from later cells.
_TRY_WRONG = """\
try:
    exec({source!r}, dict(globals()))
except AssertionError as refusal:
    print("refused:", refusal)
else:
    raise RuntimeError("the check accepts the wrong answer")
"""


def solved(nb: NotebookNode, exercises: list[Exercise]) -> NotebookNode:
    """A copy in which each exercise is solved, and followed by the attempt of its wrong answer.

    Cells tagged `slow` are left out: nbval has run them, and no exercise needs them.
    """
    by_id = {exercise.cell.id: exercise for exercise in exercises}
    copy = from_dict(nb)
    cells = []
    for cell in copy.cells:
        if rules.SLOW_TAG in rules.tags(cell):
            continue
        cells.append(cell)
        if exercise := by_id.get(cell.id):
            cell.source = exercise.filled(exercise.solution)
            attempt = _TRY_WRONG.format(source=exercise.filled(exercise.wrong))
            cells.append(new_code_cell(attempt, id=cell.id[:40] + WRONG_SUFFIX))
    copy.cells = cells
    return copy


def failures(nb: NotebookNode, folder: Path) -> list[str]:
    """Execute a notebook with its exercises solved; say which cells did not do what they should."""
    exercises, bad = exercises_of(nb)
    if not exercises:
        return bad
    ran = execute(solved(nb, exercises), folder, allow_errors=True).notebook
    solutions = {exercise.cell.id for exercise in exercises}
    for cell in rules.code_cells(ran):
        errors = [out for out in cell.outputs if out.output_type == "error"]
        bad += [f"{rules.name_of(cell)}: {error.ename}: {error.evalue}" for error in errors]
        printed = "".join(rules.output_texts(cell))
        if cell.id in solutions and not errors and TO_DO in printed:
            bad.append(f"{rules.name_of(cell)}: prints {TO_DO!r} with its solution in place")
    return bad


# --- The lessons ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_solutions_pass_and_wrong_answers_fail(path: Path) -> None:
    found = failures(rules.read(path), path.parent)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_the_unfilled_exercises_are_stored_as_to_do(path: Path) -> None:
    for exercise in exercises_of(rules.read(path))[0]:
        assert TO_DO in "".join(rules.output_texts(exercise.cell)), exercise.cell.id


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_the_english_twin_has_the_same_exercises(path: Path) -> None:
    """So that it need not be executed as well."""
    twin = path.parent / "en" / path.name
    if not twin.exists():
        pytest.skip(f"{path.stem} is not translated yet")
    own, _ = exercises_of(rules.read(path))
    others, bad = exercises_of(rules.read(twin))
    assert not bad, "\n".join(bad)
    assert [(e.cell.source, e.solution, e.wrong) for e in others] == [
        (e.cell.source, e.solution, e.wrong) for e in own
    ]


# --- The test itself can fail ---------------------------------------------------------------

CELL = """answer = None
if answer is None:
    print("to do")
else:
    assert answer == n + 1, "one more than n"
    print("right")
"""


def exercise_cells(
    name: str, *, source: str = CELL, solution: str = "answer = 4", wrong: str = "answer = 3"
) -> list[NotebookNode]:
    answers = (
        "<details><summary>Hint</summary>\n\nCount.\n\n</details>\n"
        f"<details><summary>Solution</summary>\n\n```python\n{solution}\n```\n\n</details>"
    )
    metadata = {"tags": ["exercise"], "m08": {"wrong": wrong}}
    return [
        new_code_cell(source, id=name, metadata=metadata),
        new_markdown_cell(answers, id=f"{name}-answers"),
    ]


def test_each_way_to_get_an_exercise_wrong_is_named(tmp_path: Path) -> None:
    function = CELL.replace("answer == n + 1", "answer(n) == n + 1")
    nb = new_notebook(
        cells=[
            new_code_cell("n = 3", id="setup"),
            *exercise_cells("good"),
            new_code_cell("assert answer == 4", id="wrong-answer-leaves-no-trace"),
            *exercise_cells(
                "function",
                source=function,
                solution="def answer(x):\n    return x + 1",
                wrong="def answer(x):\n    return x",
            ),
            *exercise_cells("unsolved", solution="answer = 5"),
            *exercise_cells("lenient", wrong="answer = 4.0"),
            *exercise_cells("broken", wrong="answer = 1 / 0"),
            *exercise_cells("still-blank", solution="answer = None"),
        ]
    )
    assert failures(nb, tmp_path) == [
        "cell 'unsolved': AssertionError: one more than n",
        "cell 'lenient-wrong': RuntimeError: the check accepts the wrong answer",
        "cell 'broken-wrong': ZeroDivisionError: division by zero",
        "cell 'still-blank': prints 'to do' with its solution in place",
    ]


@pytest.mark.parametrize(
    ("spoilt", "expected"),
    [
        ({"source": "%time answer = None"}, "an exercise is plain Python, without magics"),
        ({"source": CELL.replace("answer = None", "answer = 0")}, "no blank (a line NAME = None)"),
        ({"source": 'answer = None\nprint("to do")'}, "the check asserts nothing"),
        (
            {"source": CELL.replace(', "one more than n"', "")},
            "an assert without a message that helps",
        ),
        ({"source": CELL.replace("to do", "todo")}, "the check does not print 'to do'"),
        ({"solution": "answer = = 4"}, "the solution is not valid Python"),
        ({"solution": "result = 4"}, "the solution does not set answer"),
        ({"wrong": ""}, "the wrong answer (m08.wrong) does not set answer"),
        ({"solution": "```\n```python"}, "the next cell has to hold two <details>"),
    ],
)
def test_the_form_is_checked_before_anything_runs(spoilt: dict[str, str], expected: str) -> None:
    good, bad = exercises_of(new_notebook(cells=exercise_cells("count", **spoilt)))
    assert good == []
    assert any(text.startswith(f"cell 'count': {expected}") for text in bad), bad


def test_answers_are_missed_when_another_cell_follows() -> None:
    nb = new_notebook(cells=[exercise_cells("count")[0], new_code_cell("x = 1", id="other")])
    _, bad = exercises_of(nb)
    assert bad[0].startswith("cell 'count': the next cell has to hold two <details>")


def test_a_solution_takes_the_place_of_the_blanks_alone() -> None:
    (exercise,), bad = exercises_of(new_notebook(cells=exercise_cells("count")))
    assert not bad
    assert exercise.blanks == {"answer"}
    assert exercise.filled("answer = 4") == "answer = 4\n\n" + CELL.removeprefix("answer = None\n")
