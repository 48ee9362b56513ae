"""nbval is what re-verifies every stored output; these tests show that it does.

They run nbval inside this process, on notebooks of a few cells, with the real conftest.py.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from types import SimpleNamespace

import nbformat
import nbval.kernel
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

import conftest
from tools.execute_notebooks import execute

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
STRICT = ("--nbval", "--nbval-current-env", "--nbval-cell-timeout=60")

Outcomes = dict[str, str]
Nbval = Callable[..., Outcomes]


def lesson(*sources: str) -> NotebookNode:
    """A notebook whose cells say that they ran and showed nothing."""
    return new_notebook(
        cells=[
            new_code_cell(source, id=f"cell-{n}", execution_count=n)
            for n, source in enumerate(sources, start=1)
        ]
    )


def shows(cell: NotebookNode, text: str) -> None:
    """Store a line on stdout as the output of a cell."""
    cell.outputs = [new_output("stream", name="stdout", text=text)]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Nbval:
    """Runs nbval over notebooks given by name; gives `{"name::cell": outcome}` and the report."""
    pytester.makeini("[pytest]")

    def nbval_on(*options: str, **notebooks: NotebookNode) -> Outcomes:
        for name, nb in notebooks.items():
            nbformat.write(nb, pytester.path / f"{name}.ipynb")
        files = [f"{name}.ipynb" for name in notebooks]
        recorder = pytester.inline_run(
            *(options or STRICT), "--color=no", "-p", "no:cacheprovider", *files,
            plugins=[conftest],
        )  # fmt: skip
        outcomes: Outcomes = {}
        for report in recorder.getreports("pytest_runtest_logreport"):
            if report.when == "call" or report.outcome != "passed":
                name = report.nodeid.replace(".ipynb::Cell ", "::")
                outcomes[name] = f"{report.outcome} {report.longreprtext}".strip()
        return outcomes

    return nbval_on


def verdicts(outcomes: Outcomes) -> dict[str, str]:
    return {name: outcome.split()[0] for name, outcome in outcomes.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """What the one writer of outputs stores for cells on which nbval alone would differ."""
    nb = lesson(
        "3 * 7",
        "3 * 7",
        "3 * 7;",
        "import os, time\n_ = os.write(1, b'from fd 1')\ntime.sleep(1)",
    )
    return execute(nb, tmp_path_factory.mktemp("written")).notebook


def test_one_changed_digit_fails_and_what_was_stored_passes(
    run: Nbval, written: NotebookNode
) -> None:
    changed = nbformat.from_dict(written)
    changed.cells[1].outputs[0].data["text/plain"] = "22"

    outcomes = run(changed=changed)

    assert verdicts(outcomes) == {
        "changed::0": "passed",
        "changed::1": "failed",
        "changed::2": "passed",
        "changed::3": "passed",
    }
    assert "Cell outputs differ" in outcomes["changed::1"]


def test_without_the_repairs_the_same_notebook_fails(
    run: Nbval, written: NotebookNode, released_nbval: None
) -> None:
    """Once nbval is repaired this fails, and two of the patches in conftest.py can go."""
    outcomes = run(stored=written)

    assert verdicts(outcomes) == {
        "stored::0": "passed",
        "stored::1": "passed",
        "stored::2": "failed",  # the `;` hides nothing
        "stored::3": "failed",  # fd 1 is not captured
    }


def test_a_dead_kernel_costs_seconds_and_not_the_time_limit(run: Nbval) -> None:
    begin = time.monotonic()
    outcomes = run(dead=lesson("x = 1", "import os\nos._exit(1)", "x"))

    assert verdicts(outcomes) == {"dead::0": "passed", "dead::1": "failed", "dead::2": "failed"}
    assert "the kernel died while it ran this cell" in outcomes["dead::1"]
    assert time.monotonic() - begin < 30  # STRICT allows 60 s a cell


def test_nbval_as_released_would_wait_for_the_time_limit() -> None:
    """Once nbval looks for a dead kernel by itself, the third patch can go."""
    waits: list[float] = []

    def nothing_comes(timeout: float) -> None:
        waits.append(timeout)
        raise Empty

    dead = SimpleNamespace(kc=SimpleNamespace(get_shell_msg=nothing_comes), is_alive=lambda: False)

    with pytest.raises(Empty):
        conftest.released_get_message(dead, "shell", timeout=300)
    with pytest.raises(RuntimeError, match="the kernel died"):
        conftest.get_message(dead, "shell", timeout=300)
    assert waits == [300, conftest.LOOK_EVERY]


@pytest.fixture
def released_nbval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "patch_nbval", lambda: None)
    kernel = nbval.kernel
    monkeypatch.setattr(kernel, "start_new_kernel", conftest.released_start_new_kernel)
    monkeypatch.setattr(
        kernel.RunningKernel, "execute_cell_input", conftest.released_execute_cell_input
    )


def test_the_patches_are_in_place_and_fit_the_installed_nbval() -> None:
    """conftest.py leaves another nbval alone: see what that one needs, then say so there."""
    assert importlib.metadata.version("nbval") == conftest.PATCHED_NBVAL
    assert nbval.kernel.start_new_kernel is conftest.start_new_kernel
    assert nbval.kernel.RunningKernel.execute_cell_input is conftest.execute_cell_input
    assert nbval.kernel.RunningKernel.get_message is conftest.get_message


def test_cells_that_nbval_passes_unchecked(run: Nbval) -> None:
    """Why tests/notebook_rules.py asks for execution counts, and for tags from a list."""
    source = "print('new')"
    nb = lesson(source, source, source, source + "  # NBVAL_IGNORE_OUTPUT because it varies")
    unrun, tagged, upper, comment = nb.cells
    unrun.execution_count = None
    tagged.metadata.tags = ["nbval-ignore-output"]
    upper.metadata.tags = ["NBVAL_IGNORE_OUTPUT"]
    for cell in (tagged, upper, comment):
        shows(cell, "old\n")

    assert verdicts(run(cells=nb)) == {
        "cells::0": "passed",
        "cells::1": "passed",
        "cells::2": "failed",  # an upper-case tag is no tag
        "cells::3": "failed",  # nor is a comment with words after the marker
    }


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", False),
        ("darwin", "arm64", False),
        ("win32", "AMD64", False),
    ],
)
def test_where_outputs_are_comparable(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, expected: bool
) -> None:
    pretend(monkeypatch, system, machine)
    assert conftest.outputs_are_comparable() is expected


def test_elsewhere_the_asserts_hold_and_outputs_may_differ(
    run: Nbval, monkeypatch: pytest.MonkeyPatch
) -> None:
    nb = lesson("print('as here')", "assert 1 + 1 == 3")
    shows(nb.cells[0], "as on Linux x86-64\n")
    pretend(monkeypatch, "darwin", "arm64")

    assert verdicts(run(other=nb)) == {"other::0": "passed", "other::1": "failed"}


def pretend(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(conftest, "sys", SimpleNamespace(platform=system))
    monkeypatch.setattr(platform, "machine", lambda: machine)


# The name of each sanitizer with a pair of outputs that it makes equal and a pair that it must
# leave different.
SANITIZED: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {}


def test_every_sanitizer_hides_what_it_should_and_no_more() -> None:
    text = (ROOT / "tests" / "nbval_sanitize.ini").read_text(encoding="utf-8")
    names = re.findall(r"^\[(.+)\]$", text, re.MULTILINE)
    patterns = get_sanitize_patterns(text)
    assert len(names) == len(patterns)
    assert set(names) == set(SANITIZED)
    for name, (regex, replace) in zip(names, patterns, strict=True):
        (same_a, same_b), (other_a, other_b) = SANITIZED[name]
        assert re.sub(regex, replace, same_a) == re.sub(regex, replace, same_b)
        assert re.sub(regex, replace, other_a) != re.sub(regex, replace, other_b)


def test_the_path_of_the_sanitizers_holds_from_any_folder(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = pytester.makefile(".ini", masks="# none")
    monkeypatch.chdir(pytester.mkdir("below"))
    config = pytester.parseconfig("--nbval-sanitize-with=masks.ini", f"--rootdir={masks.parent}")

    conftest.pytest_configure(config)

    assert Path(config.option.nbval_sanitize_with) == masks
