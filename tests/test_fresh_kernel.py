"""What only a fresh process can show, and what a Jupyter kernel shows of it.

One kernel does all of it, since its imports take 20 s. tests/in_fresh_kernel.py is what runs there.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tests.programs import Program, portable
from tools.execute_notebooks import execute

ROOT = Path(__file__).parents[1]

CELLS = (
    # 0: import, quantize, lower, load, run, be refused
    """
    from pathlib import Path
    from tests.in_fresh_kernel import find_facts
    find_facts(Path(FOLDER))
    """,
    # 1: Python, C and a child process
    """
    import os, subprocess, sys
    from common.env import capture_stderr
    with capture_stderr() as log:
        print("python", file=sys.stderr)
        os.write(2, b"c\\n")
        subprocess.run([sys.executable, "-S", "-c", "import sys; sys.stderr.write('child')"])
    assert log.text == "python\\nc\\nchild", log.text
    """,
    # 2: right inputs and wrong ones
    """
    import torch
    from common.executorch_utils import PteError, PteRunner
    pte = Path(FOLDER, "portable_quantized_conv.pte").read_bytes()
    runner = PteRunner(pte)
    assert runner(torch.zeros(1, 3, 8, 8)).shape == (1, 4, 8, 8)
    for bad in (torch.zeros(4, 3, 8, 8), torch.zeros(1, 3, 8, 8).double(), None):
        try:
            runner(bad)
        except (ValueError, TypeError):
            continue
        raise AssertionError("accepted")
    """,
    # 3: a log of C++ that becomes an exception of the package
    """
    runner._checks = (lambda value: True,)
    try:
        runner(torch.zeros(4, 3, 8, 8))
    except PteError as error:
        assert "resize" in str(error), error
    else:
        raise AssertionError("accepted")
    """,
    # 4: ExecuTorch's own API inside a capture
    """
    from executorch.runtime import Runtime
    program = Runtime.get().load_program(pte)
    method = program.load_method("forward")
    with capture_stderr() as log:
        try:
            method.execute([torch.zeros(4, 3, 8, 8)])
        except RuntimeError:
            pass
    assert "resize" in log.text, log.text
    """,
    # 5: late lines would arrive here
    """
    import time
    time.sleep(0.5)
    """,
    # 6: the control: outside a capture the same call does write into the cell
    """
    try:
        method.execute([torch.zeros(4, 3, 8, 8)])
    except RuntimeError:
        pass
    time.sleep(0.5)
    """,
)


@dataclass(frozen=True)
class Fresh:
    """What was found, and the cells with their outputs."""

    facts: dict[str, Any]
    cells: list[NotebookNode]


@pytest.fixture(scope="module")
def fresh(conv_int8: Program, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    folder = tmp_path_factory.mktemp("fresh")
    # Without a delegate: its weights stay in the bytes, and are not copied when it is loaded.
    plain = portable(conv_int8.model, conv_int8.example)
    (folder / "conv.pte").write_bytes(plain)
    import executorch.kernels.quantized  # noqa: F401  (for the next line to lower)

    quantized = portable(conv_int8.qdq, conv_int8.example)
    (folder / "portable_quantized_conv.pte").write_bytes(quantized)
    sources = [dedent(source).strip().replace("FOLDER", repr(str(folder))) for source in CELLS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "123")
        cells = execute(
            new_notebook(cells=[new_code_cell(s) for s in sources]), ROOT
        ).notebook.cells
    return Fresh(json.loads((folder / "facts.json").read_text()), cells)


def test_nothing_leaks_into_a_cell(fresh: Fresh) -> None:
    """Neither from Python nor from C++, except in the last cell, the control."""
    *silent, control = fresh.cells
    assert [cell.outputs for cell in silent] == [[]] * len(silent)
    shown = "".join(output.get("text", "") for output in control.outputs)
    assert "resize" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there may be nothing to hide")
def test_quiet_is_still_needed(fresh: Fresh) -> None:
    assert fresh.facts["hidden"], "the libraries are silent by themselves: quiet can do less"
    assert set(fresh.facts["hidden"]) <= {"torchao", "torch.utils._pytree"}


def test_quiet_twice_adds_each_filter_once(fresh: Fresh) -> None:
    filters = fresh.facts["filters"]
    assert filters == {"experimental API": 1, "torchao": 1, "torch.utils._pytree": 1}


def test_lowering_gives_the_same_bytes_in_every_process(fresh: Fresh, conv_int8: Program) -> None:
    """With another hash seed, and after other imports."""
    assert fresh.facts["checksum"] == hashlib.sha256(conv_int8.pte).hexdigest()


def test_quantized_kernels_are_imported_when_a_program_needs_them(fresh: Fresh) -> None:
    assert fresh.facts["quantized kernels"] < 1e-6


@pytest.mark.parametrize("dropped", ["without its program", "without its file"])
def test_a_runner_needs_nothing_of_the_callers(dropped: str, fresh: Fresh) -> None:
    """The raw API ends the process in both cases."""
    errors = fresh.facts[dropped]
    assert len(errors) >= 3
    assert max(errors) < 1e-5


@pytest.mark.parametrize("where", ["identifier", "operator name"])
def test_names_that_are_not_utf8_do_not_end_the_process(where: str, fresh: Fresh) -> None:
    assert fresh.facts[where] == "PteFormatError"
