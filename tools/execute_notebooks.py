"""Execute notebooks from the first cell to the last and store what they show.

    python tools/execute_notebooks.py notebooks                 # run, store the outputs
    python tools/execute_notebooks.py --check notebooks         # run, compare, write nothing

This is the only writer of stored outputs: no time stamps, no versions, no widget state, streams
joined, execution counts 1..n, so that a diff of a notebook shows what changed in the lesson. A
notebook is replaced as a whole, and only if every cell ran: a cell that raises leaves the file as
it was. The English edition is not run: tools/english.py copies code and outputs to it.

`--check` compares more than nbval does, the PNG pictures included. It ignores the cells tagged
`nbval-ignore-output`, whose outputs are measurements of one machine.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from tools import english

IGNORE_TAG = "nbval-ignore-output"
SECONDS_PER_CELL = 600.0

# Each of these, when set by whoever starts the kernel, changes what a cell shows: ipykernel does
# not capture file descriptors 1 and 2 under PYTEST_CURRENT_TEST, tables follow COLUMNS, colour
# codes follow NO_COLOR, and figures vanish when MPLBACKEND is not the inline backend.
_CHANGES_OUTPUTS = ("PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "NO_COLOR", "MPLBACKEND")

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
_CELL_METADATA_DROPPED = ("execution", "ExecuteTime")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class CellFailed(Exception):
    """A cell raised, ran out of time, or took the kernel down with it."""


class NotFound(Exception):
    """A path on the command line leads to no notebook."""


@dataclass(frozen=True)
class Run:
    """What one execution of a notebook gave.

    Attributes:
        notebook: The executed copy, in the form in which it is stored.
        seconds: Wall time, the start of the kernel included.
        peak_bytes: Peak memory of the kernel process; None where no cell could be measured.
    """

    notebook: NotebookNode
    seconds: float
    peak_bytes: int | None

    def __str__(self) -> str:
        memory = "?" if self.peak_bytes is None else f"{self.peak_bytes / 2**20:,.0f} MiB"
        return f"{len(self.notebook.cells)} cells, {self.seconds:.1f} s, peak memory {memory}"


class _ThisPython(KernelSpecManager):
    """Every kernel name means the interpreter that runs this program.

    A `python3` kernelspec left in the user's home by another environment would win otherwise.
    """

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def kernel_env() -> dict[str, str]:
    """The environment for a kernel: the present one without what would change outputs.

    One OpenMP thread: two kernels at a time on two cores would wait for each other's threads,
    which makes a histogram observer ten times slower.
    """
    present = {k: v for k, v in os.environ.items() if k not in _CHANGES_OUTPUTS}
    return {"OMP_NUM_THREADS": "1", **present}


def _memory(pid: int) -> int | None:
    """Peak memory of a process in bytes; on macOS, which keeps no peak, the present memory."""
    try:
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(peak[1]) * 1024 if peak else None
    except OSError:
        pass
    psutil: Any = importlib.import_module("psutil")
    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return int(getattr(info, "peak_wset", info.rss))


def execute(
    nb: NotebookNode,
    folder: Path,
    *,
    timeout: float = SECONDS_PER_CELL,
    allow_errors: bool = False,
) -> Run:
    """Run a copy of a notebook in a fresh kernel.

    Args:
        nb: The notebook; it is not changed.
        folder: Working directory of the kernel, the folder of the notebook.
        timeout: Seconds for one cell.
        allow_errors: Go on after a cell that raises, and keep its `error` output.

    Returns:
        The executed copy with seconds and memory.

    Raises:
        CellFailed: A cell raised (without `allow_errors`), took longer than `timeout`, or the
            kernel died in it.
    """
    nb = nbformat.from_dict(nb)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=_ThisPython())
    current: list[NotebookNode] = []
    seen: list[int] = []

    def started(cell: NotebookNode, cell_index: int) -> None:
        current[:] = [cell]

    def executed(cell: NotebookNode, cell_index: int, execute_reply: object) -> None:
        pid = getattr(manager.provisioner, "pid", None)
        used = _memory(pid) if pid else None
        if used:
            seen.append(used)

    client = NotebookClient(
        nb,
        km=manager,
        timeout=timeout,
        allow_errors=allow_errors,
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        on_cell_start=started,
        on_cell_executed=executed,
        # ipykernel warns on the terminal, once a kernel, that local TCP is not encrypted.
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    begin = time.perf_counter()
    try:
        client.execute(env=kernel_env(), cleanup_kc=True)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        where = f"cell {current[0].get('id', '?')!r}" if current else "the start of the kernel"
        raise CellFailed(f"{where}: {_in_words(error, timeout)}") from error
    seconds = time.perf_counter() - begin
    return Run(_tidy(nb), seconds, max(seen, default=None))


def _in_words(error: Exception, timeout: float) -> str:
    if isinstance(error, CellExecutionError):
        trace = _ANSI.sub("", error.traceback).strip()
        return f"{error.ename}: {error.evalue}\n{trace}"
    if isinstance(error, CellTimeoutError):
        return f"not done after {timeout:g} s (--timeout sets the limit)"
    return "the kernel died"


def _tidy(nb: NotebookNode) -> NotebookNode:
    nb.metadata.pop("widgets", None)
    nb.metadata.update(nbformat.from_dict(_METADATA))
    for cell in nb.cells:
        for key in _CELL_METADATA_DROPPED:
            cell.metadata.pop(key, None)
    return nb


def canonical(nb: NotebookNode) -> str:
    """The text of a notebook as it is stored: keys sorted, characters unescaped, one newline."""
    return str(nbformat.writes(nb, version=nbformat.NO_CONVERT)).rstrip("\n") + "\n"


def changed_cells(
    before: NotebookNode, after: NotebookNode, *, skip_ignored: bool = False
) -> list[str]:
    """Ids of the code cells whose outputs or execution count differ between two runs.

    Args:
        before: The stored notebook.
        after: The same notebook after another run.
        skip_ignored: Leave out the cells tagged `nbval-ignore-output`.

    Returns:
        Cell ids, in the order of the notebook.
    """
    changed = []
    for old, new in zip(before.cells, after.cells, strict=True):
        if new.cell_type != "code":
            continue
        if skip_ignored and IGNORE_TAG in new.metadata.get("tags", []):
            continue
        if (old.execution_count, old.outputs) != (new.execution_count, new.outputs):
            changed.append(str(new.get("id", "?")))
    return changed


def find_notebooks(paths: Iterable[Path]) -> list[Path]:
    """The notebooks that a command line names: files as they are, folders searched recursively.

    The English edition is not among them: it gets code and outputs from the Chinese one.

    Raises:
        NotFound: A path does not exist, is no notebook, is an English copy, or is a folder
            without a notebook.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
            if not inside:
                raise NotFound(f"no .ipynb below the folder {path}")
            found += [p for p in inside if not english.is_copy(p)]
        elif not path.exists():
            raise NotFound(f"{path} does not exist")
        elif path.suffix != ".ipynb":
            raise NotFound(f"{path} is no notebook: its name does not end in .ipynb")
        elif english.is_copy(path):
            raise NotFound(f"{path} gets its outputs from {path.parents[1] / path.name}: name that")
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def process(path: Path, *, check: bool = False, timeout: float = SECONDS_PER_CELL) -> bool:
    """Execute one notebook, report on it, and store it unless `check`.

    Returns:
        False if `check` found an output that differs; True otherwise.

    Raises:
        CellFailed: See `execute`; the file is as it was.
    """
    stored = path.read_text(encoding="utf-8")
    before = nbformat.reads(stored, as_version=nbformat.NO_CONVERT)
    try:
        run = execute(before, path.parent, timeout=timeout)
    except CellFailed as error:
        raise CellFailed(f"{path}, {error}") from error
    changed = changed_cells(before, run.notebook, skip_ignored=check)
    word = "differ" if check else "changed"
    print(f"{path}: {run}; outputs {word}: {', '.join(changed) or 'none'}", flush=True)
    if check:
        return not changed
    text = canonical(run.notebook)
    if text != stored:
        english.store(path, text)
    english.follow(path)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code (1: a cell failed or an output differs; 2: usage)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="notebook or folder")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument(
        "--timeout", type=float, default=SECONDS_PER_CELL, help="seconds for one cell"
    )
    options = parser.parse_args(argv)
    try:
        same = [
            process(path, check=options.check, timeout=options.timeout)
            for path in find_notebooks(options.paths)
        ]
    except NotFound as error:
        print(error, file=sys.stderr)
        return 2
    except CellFailed as error:
        print(f"{error}\nThe file is unchanged.", file=sys.stderr)
        return 1
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
