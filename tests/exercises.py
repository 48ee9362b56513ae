"""The exercises of the lessons: their form, and the cells that try their answers.

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

`attempts` makes the cells that try each solution, which must pass, and each wrong answer, which
must not. conftest.py lets nbval run them behind the last cell of a lesson, in its kernel. That the
unfilled cells pass and print `to do` is what nbval verifies.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from tests import notebook_rules as rules

TO_DO = "to do"
_ANSWER = "# the answer stands here"


@dataclass(frozen=True)
class Exercise:
    """One exercise: its cell, the names to fill in, the cell without blanks, and two answers."""

    cell: NotebookNode
    blanks: frozenset[str]
    check: str
    solution: str
    wrong: str

    def filled(self, answer: str) -> str:
        """The code of the cell with an answer in place of the blanks."""
        return self.check.replace(_ANSWER, answer.rstrip(), 1)


def blanks_of(source: str) -> tuple[frozenset[str], str]:
    """The names that a cell sets to None at its top level, and the cell without these lines.

    A comment marks where the first of them stood.
    """
    names: set[str] = set()
    lines: list[str | None] = list(source.splitlines())
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)):
                first = not names
                names.add(name)
                for number in range(statement.lineno, (statement.end_lineno or 0) + 1):
                    lines[number - 1] = None
                if first:
                    lines[statement.lineno - 1] = _ANSWER
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


# Each runs in a copy of the globals, so that an answer leaves no trace.
_TRY_SOLUTION = """\
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as said:
    exec({source!r}, dict(globals()))
assert {to_do!r} not in said.getvalue(), "prints 'to do' with its solution in place"
"""
_TRY_WRONG = """\
try:
    exec({source!r}, dict(globals()))
except AssertionError as refusal:
    print("refused:", refusal)
else:
    raise RuntimeError("the check accepts the wrong answer")
"""


def attempts(nb: NotebookNode) -> list[NotebookNode]:
    """Cells that fail when a solution does not pass its check, or a wrong answer does."""
    cells = []
    for exercise in exercises_of(nb)[0]:
        solution = _TRY_SOLUTION.format(source=exercise.filled(exercise.solution), to_do=TO_DO)
        wrong = _TRY_WRONG.format(source=exercise.filled(exercise.wrong))
        name = exercise.cell.id[:30]
        cells.append(new_code_cell(solution, id=f"{name}-solution"))
        cells.append(new_code_cell(wrong, id=f"{name}-wrong"))
    return cells
