"""The check of a program in another process, by a fork and by a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

from common import _isolated
from common._isolated import check_isolated, look_in_worker
from common._pte_file import read_description
from common._trial import Problem, Trial, find_problem, from_line, to_line
from common.executorch_utils import PteFormatError, PteLoadError, PteRunner, save_pte
from tests.programs import Program, portable
from tools.corrupt_pte import Damaged, Sample, trials

ROOT = Path(__file__).resolve().parent.parent
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")


@pytest.fixture(autouse=True)
def no_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_isolated, "_VERDICTS", {})


@pytest.fixture(scope="module", autouse=True)
def no_worker_left() -> Iterator[None]:
    yield
    if _isolated._worker is not None:
        _isolated._worker.end()
        _isolated._worker = None


@needs_fork
def test_a_deadly_program_is_refused(conv: Program, deadly: bytes) -> None:
    damaged = [Damaged(Sample("conv", conv.pte, conv.example), "height", 0, deadly)]
    assert trials("raw", damaged) == ["killed"], "or ExecuTorch has mended it"
    assert trials("guarded", damaged) == ["killed"], "or this needs no child process"
    said = r"a child process that loaded it and ran it on zeros was ended by SIG\w+\. It was not"
    with pytest.raises(PteFormatError, match=said):
        PteRunner(deadly, isolated_check=True)


@needs_fork
@pytest.mark.parametrize("name", ["conv", "conv_dynamic", "conv_int8"])
def test_a_whole_program_runs_as_without_the_check(
    name: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    program = request.getfixturevalue(name)
    checked = PteRunner(program.pte, isolated_check=True)
    assert torch.equal(checked(*program.example), PteRunner(program.pte)(*program.example))
    assert capfd.readouterr() == ("", "")


@needs_fork
def test_values_of_every_kind_and_state(many_values: Program, counter: bytes) -> None:
    PteRunner(many_values.pte, isolated_check=True)(*many_values.example)
    runner = PteRunner(counter, isolated_check=True)
    assert runner(torch.ones(2, 3))[0, 0] == 1, "the child's calls do not count here"


@needs_fork
def test_each_program_is_tried_once(conv: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def look(trial: Trial, seconds: float) -> Problem | None:
        tried.append(trial.wanted)
        return None if len(tried) == 1 else Problem("damage", "bad")

    monkeypatch.setattr(_isolated, "LOOK", look)
    for _ in range(3):
        PteRunner(conv.pte, isolated_check=True)
    PteRunner(conv.pte)
    assert tried == ["forward"]
    for _ in range(3):
        with pytest.raises(PteFormatError, match=r"^bad$"):
            PteRunner(conv.pte + b"\0", isolated_check=True)
    assert tried == ["forward", "forward"]


def test_what_the_runtime_refuses_is_a_load_error(
    conv: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("load", "the program cannot be loaded: 量化")
    assert from_line(to_line(problem)) == problem
    assert from_line(to_line(None)) is None
    monkeypatch.setattr(_isolated, "LOOK", lambda trial, seconds: problem)
    with pytest.raises(PteLoadError, match=r"^the program cannot be loaded: 量化$"):
        PteRunner(conv.pte, isolated_check=True)


@needs_fork
def test_a_missing_backend_is_told_as_without_the_check(conv: Program) -> None:
    pte = conv.pte.replace(b"XnnpackBackend", b"VulkanXBackend")
    with pytest.raises(PteLoadError, match="needs the backend VulkanXBackend, which"):
        PteRunner(pte, isolated_check=True)


def test_a_program_that_fails_politely_is_refused(conv: Program) -> None:
    """Loading and running fail in words in the trial itself, here without another process."""
    runner = PteRunner(conv.pte)
    trial = Trial(conv.pte, {"forward": runner.inputs}, "forward", ())
    assert find_problem(trial) is None
    wrong = Trial(conv.pte, {"forward": ()}, "forward", ())
    found = find_problem(wrong)
    assert found is not None
    assert found.kind == "failure"
    assert "loads, but forward fails on zeros: an argument is invalid (0x12)" in found.text
    unknown = find_problem(Trial(conv.pte, {"other": ()}, "other", ()))
    assert unknown is not None
    assert unknown.kind == "load"
    both = {"other": (), "forward": runner.inputs}
    assert find_problem(Trial(conv.pte, both, "forward", ())) is None


# --- how a child may end


def check_with(conv: Program, monkeypatch: pytest.MonkeyPatch, in_child: Any) -> None:
    monkeypatch.setattr(_isolated, "find_problem", lambda trial: in_child())
    PteRunner(conv.pte, isolated_check=True)


@needs_fork
@pytest.mark.parametrize(
    ("in_child", "said"),
    [
        (os.abort, "was ended by SIGABRT"),
        (lambda: os._exit(3), "ended before its time with status 0x3"),
        (lambda: sys.exit("any exception"), r"ended before its time\."),
    ],
)
def test_a_child_that_ends(
    conv: Program,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    in_child,
    said,
) -> None:
    with pytest.raises(PteFormatError, match=said):
        check_with(conv, monkeypatch, in_child)
    assert capfd.readouterr() == ("", "")


@needs_fork
def test_a_new_program_that_kills_is_not_called_damaged(
    conv: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_isolated, "find_problem", lambda trial: os.abort())
    program = read_description(conv.pte)
    with pytest.raises(PteFormatError, match=r"^the program is damaged: a child .*copy the file"):
        check_isolated(conv.pte, program, "forward")
    with pytest.raises(PteFormatError) as new:
        check_isolated(conv.pte, program, "forward", may_fail=True)
    assert str(new.value).startswith("the program ends the process that runs it: a child process")
    assert "damaged" not in str(new.value)
    assert "file" not in str(new.value)


@needs_fork
def test_a_child_that_hangs_is_undecided_and_tried_again(
    conv: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_isolated, "SECONDS", 0.2)
    with pytest.raises(PteLoadError, match=r"^undecided .* took more than 0 s\. .* not loaded"):
        check_with(conv, monkeypatch, threading.Event().wait)
    assert not _isolated._VERDICTS
    monkeypatch.undo()
    PteRunner(conv.pte, isolated_check=True)


@needs_fork
def test_a_child_that_the_system_ends_is_undecided(
    conv: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PteLoadError, match=r"undecided .* was ended by the system, perhaps"):
        check_with(conv, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))


@needs_fork
def test_without_a_process_to_be_had(conv: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(_isolated.os, "fork", no_fork)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(PteLoadError, match=r"undecided .* could not start \(no more processes\)"):
        PteRunner(conv.pte, isolated_check=True)
    assert len(os.listdir("/proc/self/fd")) == before


def children() -> set[str]:
    """Numbers of the processes that this one has started."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@needs_fork
@pytest.mark.parametrize("moment", ["running", "forked"])
def test_ctrl_c_ends_the_child(conv: Program, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def wait() -> None:
        if moment == "running":
            os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait()

    def fork_and_interrupt() -> int:
        pid = fork()
        if pid:  # before anybody else knows the number
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return pid

    fork, before = _isolated.fork, children()
    if moment == "forked":
        monkeypatch.setattr(_isolated, "fork", fork_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_with(conv, monkeypatch, wait)
    assert children() <= before
    assert not _isolated._VERDICTS
    assert _isolated._CHECKING.acquire(blocking=False)
    _isolated._CHECKING.release()


@needs_fork
def test_where_children_are_not_waited_for(conv: Program) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        PteRunner(conv.pte, isolated_check=True)
    finally:
        signal.signal(signal.SIGCHLD, before)


@needs_fork
def test_no_hang_beside_openmp_and_other_threads(tmp_path: Path) -> None:
    """Torch's threads are in use, others write, load and hold locks; inputs and outputs are large.

    In a process of its own, so that a hang is an end by the time limit.
    """
    code = dedent("""
        import pathlib, sys, threading, time, warnings
        import torch
        from common import _isolated
        from common._runtime import LOCK
        from common.executorch_utils import PteRunner

        torch.set_num_threads(4)
        x = torch.zeros(1, 3, 600, 600)
        pte = pathlib.Path(sys.argv[1]).read_bytes()
        PteRunner(pte)  # imports, which may warn
        busy = True

        def work() -> None:
            while busy:
                x.add(1)
                time.sleep(0.001)

        def lock() -> None:
            while busy:
                with LOCK:
                    time.sleep(0.001)

        threads = [threading.Thread(target=t) for t in (work, work, lock)]
        [t.start() for t in threads]
        try:
            warnings.simplefilter("error")
            for i in range(2):
                PteRunner(pte + bytes(i), isolated_check=True)(x)
        finally:
            busy = False
        print("done", len(_isolated._VERDICTS))
        """)
    path = save_pte(portable(nn.ReLU().eval(), (torch.zeros(1, 3, 600, 600),)), tmp_path / "x.pte")
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.split() == ["done", "2"], done.stderr


# --- the worker


def test_a_worker_is_reused_and_replaced(
    conv: Program, deadly: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_isolated, "LOOK", look_in_worker)
    monkeypatch.setattr(_isolated, "_worker", None)
    with pytest.raises(
        PteFormatError, match=r"a child process that .* (was ended by SIG|ended before)"
    ):
        PteRunner(deadly, isolated_check=True)
    assert _isolated._worker is None
    x = conv.example[0]
    assert torch.equal(PteRunner(conv.pte, isolated_check=True)(x), PteRunner(conv.pte)(x))
    worker = _isolated._worker
    assert worker is not None
    PteRunner(conv.pte + b"\0", isolated_check=True)
    assert _isolated._worker is worker
    assert worker.trials == 2
    worker.end()
    assert worker._process.returncode not in (None, 0)


class FakeWorker:
    """Ends at every trial but the first of `lives`."""

    lives = 0
    started = 0

    def __init__(self) -> None:
        self.owner, self.trials = os.getpid(), 0
        FakeWorker.started += 1

    def look(self, trial: Any, seconds: float) -> Problem | None:
        self.trials += 1
        if FakeWorker.lives:
            FakeWorker.lives -= 1
            return None
        raise _isolated._Ended("was ended by SIGSEGV")


def test_only_the_death_of_a_new_worker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has tried other programs may die of what they left."""
    monkeypatch.setattr(_isolated, "_Worker", FakeWorker)
    monkeypatch.setattr(_isolated, "_worker", None)
    FakeWorker.lives, FakeWorker.started = 1, 0
    trial: Any = None
    assert look_in_worker(trial, 1.0) is None
    with pytest.raises(_isolated._Ended):
        look_in_worker(trial, 1.0)
    assert FakeWorker.started == 2
    FakeWorker.lives = 1
    assert look_in_worker(trial, 1.0) is None
    assert FakeWorker.started == 3
    monkeypatch.setattr(_isolated._worker, "owner", -1)
    FakeWorker.lives = 1
    assert look_in_worker(trial, 1.0) is None
    assert FakeWorker.started == 4, "a fork starts its own"


@pytest.mark.parametrize(("name", "value"), [("path", []), ("executable", "/nowhere/python")])
def test_a_worker_that_does_not_start_is_undecided(
    conv: Program, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    PteRunner(conv.pte)  # what is imported late needs the path
    monkeypatch.setattr(_isolated, "LOOK", look_in_worker)
    monkeypatch.setattr(_isolated, "_worker", None)
    monkeypatch.setattr(sys, name, value)
    with pytest.raises(PteLoadError, match=r"undecided .* could not start \("):
        PteRunner(conv.pte, isolated_check=True)


def test_a_worker_that_is_late_is_ended(conv: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_isolated, "START_SECONDS", 0.01)
    start = time.monotonic()
    with pytest.raises(_isolated._Undecided, match="took more than 0 s"):
        _isolated._Worker()
    assert time.monotonic() - start < 60
