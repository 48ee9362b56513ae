"""The exercises of the lessons keep their form, and the check of their answers can fail.

The answers themselves are tried behind each lesson by nbval, see tests/exercises.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests import notebook_rules as rules
from tests.exercises import TO_DO, attempts, exercises_of
from tools.execute_notebooks import execute

ROOT = Path(__file__).parents[1]
# Those with exercises: they are numbered, the template for the reader's own model is not.
LESSONS = sorted((ROOT / "notebooks").glob("M08-[1-9]_*.ipynb"))


def failures(nb: NotebookNode, folder: Path) -> list[str]:
    """Execute a notebook and the attempts at its exercises; say which of these failed."""
    tries = attempts(nb)
    ran = execute(new_notebook(cells=[*nb.cells, *tries]), folder, allow_errors=True).notebook
    return [
        f"{rules.name_of(cell)}: {out.ename}: {out.evalue}"
        for cell in ran.cells[len(nb.cells) :]
        for out in cell.outputs
        if out.output_type == "error"
    ]


# --- The lessons ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_every_exercise_has_the_form_and_its_answers_are_tried(path: Path) -> None:
    good, bad = exercises_of(rules.read(path))
    assert not bad, "\n".join(bad)
    assert len(attempts(rules.read(path))) == 2 * len(good) > 0


def test_nbval_tries_the_answers(request: pytest.FixtureRequest) -> None:
    """Collected behind the cells of each lesson."""
    from nbval.plugin import IPyNbFile

    (lesson, *_) = LESSONS
    file = IPyNbFile.from_parent(request.session, path=lesson)
    names = [item.name for item in file.collect()]
    wanted = [cell.id for cell in attempts(rules.read(lesson))]
    assert names[-len(wanted) :] == wanted


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
        "cell 'unsolved-solution': AssertionError: one more than n",
        "cell 'lenient-wrong': RuntimeError: the check accepts the wrong answer",
        "cell 'broken-wrong': ZeroDivisionError: division by zero",
        "cell 'still-blank-solution': AssertionError: prints 'to do' with its solution in place",
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
    given = CELL.replace("answer = None", "n = 3\nanswer = None\nother = None")
    (exercise,), bad = exercises_of(
        new_notebook(
            cells=exercise_cells(
                "count", source=given, solution="other = answer = n + 1", wrong="other = answer = 0"
            )
        )
    )
    assert not bad
    assert exercise.blanks == {"answer", "other"}
    filled = exercise.filled(exercise.solution)
    assert filled == CELL.replace("answer = None", "n = 3\nother = answer = n + 1")
