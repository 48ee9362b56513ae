"""tools/execute_notebooks.py: what it stores, what it compares, and that it never half-writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import execute_notebooks as tool

TAG = {"tags": ["nbval-ignore-output"]}


def save(path: Path, *sources: str) -> Path:
    """A notebook of code cells `cell-1`, `cell-2`, …, as someone's editor left it."""
    nb = new_notebook(
        cells=[new_markdown_cell("# 標題", id="title")]
        + [new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(sources, start=1)]
    )
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nb, path)
    return path


def cells(path: Path) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def text_of(cell: NotebookNode) -> str:
    (output,) = cell.outputs
    return output.text if output.output_type == "stream" else output.data["text/plain"]


def test_store_check_change_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(
        tmp_path / "notebooks" / "lesson.ipynb",
        "import os, sys\nprint(os.path.basename(os.getcwd()), sys.executable)",
        "for n in range(3):\n    print(n, flush=True)",
        "6 * 7",
        "6 * 7;",
        "sorted({'PYTEST_CURRENT_TEST', 'COLUMNS', 'NO_COLOR'} & set(os.environ))",
    )
    dirty = nbformat.read(path, as_version=4)
    dirty.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "mine", "name": "no-such-kernel"},
            "language_info": {"name": "python", "version": "3.0.0"},
            "widgets": {},
            "kept": 1,
        }
    )
    dirty.cells[1].metadata = nbformat.from_dict({"execution": {"iopub.status.busy": "now"}})
    dirty.cells[3].outputs = [new_output("stream", text="old")]
    dirty.cells[3].execution_count = 17
    nbformat.write(dirty, path)
    path.chmod(0o640)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")

    assert tool.main([str(path)]) == 0

    report = capsys.readouterr().out
    assert report.startswith(f"{path}: 6 cells, ")
    assert "outputs changed: cell-1, cell-2, cell-3, cell-4, cell-5\n" in report
    stored = cells(path)
    assert text_of(stored["cell-1"]) == f"notebooks {sys.executable}\n"
    assert text_of(stored["cell-2"]) == "0\n1\n2\n"
    assert text_of(stored["cell-3"]) == "42"
    assert stored["cell-4"].outputs == []
    assert text_of(stored["cell-5"]) == "[]"
    assert [stored[f"cell-{n}"].execution_count for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert stored["cell-1"].metadata == {}
    metadata = nbformat.read(path, as_version=4).metadata
    assert metadata.kernelspec.name == "python3"
    assert "version" not in metadata.language_info
    assert "widgets" not in metadata
    assert metadata.kept == 1
    text = path.read_text(encoding="utf-8")
    assert "標題" in text
    assert text.endswith("}\n")
    assert text == tool.canonical(nbformat.reads(text, as_version=4))
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o640

    before = path.stat()
    assert tool.main(["--check", str(path)]) == 0
    assert "outputs differ: none\n" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before.st_mtime_ns

    text = text.replace('"42"', '"43"').replace('"2\\n"', '"3\\n"')
    nb = nbformat.reads(text, as_version=4)
    nb.cells[2].metadata = nbformat.from_dict(TAG)
    path.write_text(tool.canonical(nb), encoding="utf-8")
    assert tool.main(["--check", str(path)]) == 1
    assert "outputs differ: cell-3\n" in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == tool.canonical(nb)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise ValueError('no such op')", "ValueError: no such op"),
        ("import time\ntime.sleep(60)", "not done after 4 s"),
        ("import os\nos._exit(1)", "the kernel died"),
    ],
)
def test_a_cell_that_fails_leaves_the_file_and_names_itself(
    source: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "lesson.ipynb", "print('new')", source, "print('never')")
    before = path.read_bytes()

    assert tool.main(["--timeout", "4", str(path)]) == 1

    message = capsys.readouterr().err
    assert message.startswith(f"{path}, cell 'cell-2': {expected}")
    assert message.endswith("The file is unchanged.\n")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "lesson.ipynb", "x = 1")
    before = path.read_bytes()

    def full(source: object, target: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tool.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        tool.english.store(path, "half")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_changed_cells_compares_counts_data_and_pictures() -> None:
    def one(count: int | None, png: str) -> NotebookNode:
        picture = new_output("display_data", data={"image/png": png, "text/plain": "bars"})
        return new_notebook(
            cells=[
                new_markdown_cell("text", id="prose"),
                new_code_cell("plot()", id="plot", execution_count=count, outputs=[picture]),
                new_code_cell(
                    "clock()",
                    id="clock",
                    outputs=[new_output("stream", text=f"{png} us")],
                    metadata=TAG,
                ),
            ]
        )

    assert tool.changed_cells(one(1, "AAAA"), one(1, "AAAA")) == []
    assert tool.changed_cells(one(1, "AAAA"), one(1, "AAAB")) == ["plot", "clock"]
    assert tool.changed_cells(one(1, "AAAA"), one(1, "AAAB"), skip_ignored=True) == ["plot"]
    assert tool.changed_cells(one(None, "AAAA"), one(1, "AAAA")) == ["plot"]


def test_folders_are_searched_and_checkpoints_skipped(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    b = save(tmp_path / "notebooks" / "b.ipynb")
    a = save(tmp_path / "notebooks" / "en" / "a.ipynb")
    save(tmp_path / "notebooks" / ".ipynb_checkpoints" / "b-checkpoint.ipynb")
    (tmp_path / "notebooks" / "README.md").write_text("overview")

    assert tool.find_notebooks([tmp_path / "notebooks"]) == [b, a]
    assert tool.find_notebooks([a, tmp_path, a]) == [a, b]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing.ipynb", "does not exist"),
        ("README.md", "is no notebook: its name does not end in .ipynb"),
        ("empty", "no .ipynb below the folder"),
    ],
)
def test_a_path_without_a_notebook_is_refused_before_anything_runs(
    name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = save(tmp_path / "lesson.ipynb", "x = 1")
    before = good.read_bytes()
    (tmp_path / "README.md").write_text("overview")
    (tmp_path / "empty").mkdir()

    assert tool.main([str(good), str(tmp_path / name)]) == 2

    assert expected in capsys.readouterr().err
    assert good.read_bytes() == before
