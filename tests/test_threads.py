"""The number of ExecuTorch's threads, and why it may not change below a loaded program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from common import _threads
from common.executorch_utils import PteRunner, get_threads, set_threads
from tests.programs import Program

MOST = os.cpu_count() or 1
several = pytest.mark.skipif(MOST < 2, reason="needs two processors")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = get_threads()
    yield
    set_threads(before)


def other() -> int:
    return 1 if get_threads() != 1 else 2


@several
def test_programs_run_after_each_change(conv: Program) -> None:
    expected = conv.model(*conv.example)
    for n in (1, MOST, 1, 2):
        set_threads(n)
        assert get_threads() == n
        runner = PteRunner(conv.pte)
        torch.testing.assert_close(runner(*conv.example), expected, atol=1e-5, rtol=1e-5)
        del runner


@several
def test_refused_while_runners_exist(conv: Program) -> None:
    before, runners = get_threads(), [PteRunner(conv.pte), PteRunner(conv.pte)]
    with pytest.raises(RuntimeError, match=r"2 PteRunners exist\. Delete what holds them"):
        set_threads(other())
    runners.pop()
    with pytest.raises(RuntimeError, match=r"1 PteRunner exists\. Delete what holds it"):
        set_threads(other())
    assert get_threads() == before
    set_threads(before)  # changes nothing, so nothing can go wrong
    assert runners[0](*conv.example).shape == (1, 4, 8, 8)
    runners.clear()
    set_threads(other())
    assert get_threads() != before


@several
def test_a_runner_in_a_cycle_is_collected(conv: Program) -> None:
    runner = PteRunner(conv.pte)
    runner.itself = runner  # pyrefly: ignore[missing-attribute]
    del runner
    wanted = other()
    set_threads(wanted)
    assert get_threads() == wanted


def test_a_deleted_runner_is_gone_at_once(conv: Program) -> None:
    runner = PteRunner(conv.pte)
    runner(*conv.example)
    runner.reset()
    assert runner in _threads.ALIVE
    count = len(_threads.ALIVE)
    del runner
    assert len(_threads.ALIVE) == count - 1, "a reference cycle keeps it"


def test_a_runner_that_was_not_made_does_not_count(conv: Program) -> None:
    count = len(_threads.ALIVE)
    with pytest.raises(ValueError, match="no method"):
        PteRunner(conv.pte, method="other")
    assert len(_threads.ALIVE) == count


@pytest.mark.parametrize("n", [0, -1, MOST + 1, 10**6])
def test_outside_the_range(n: int) -> None:
    before = get_threads()
    with pytest.raises(ValueError, match=f"expected 1 to {MOST} threads .*, got {n}"):
        set_threads(n)
    assert get_threads() == before


@pytest.mark.parametrize("n", [1.0, "1", None, True])
def test_wrong_type(n: object) -> None:
    with pytest.raises(TypeError, match=f"as int, got {type(n).__name__}"):
        set_threads(n)  # pyrefly: ignore[bad-argument-type]


@several
def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    set_threads(other())
    assert capfd.readouterr() == ("", "")


@several
@pytest.mark.skipif(sys.platform != "linux", reason="forks; freed memory differs elsewhere")
def test_raw_api_hangs_or_crashes_below_a_loaded_program(conv: Program, tmp_path: Path) -> None:
    """When this fails, ExecuTorch has mended it, and `set_threads` need not refuse any more.

    What a use of freed memory does depends on what lies there: about one attempt in four survives
    it. So there are up to eight, each in a fork of its own with memory of another shape, until
    one does not. First the control: with the program dropped before each change all is well.
    """
    path = tmp_path / "conv.pte"
    path.write_bytes(conv.pte)
    code = dedent(f"""
        import os, resource, signal
        import torch
        from executorch.extension.pybindings import _C

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        data, x = open({str(path)!r}, "rb").read(), torch.zeros(1, 3, 8, 8)

        def load():
            program = _C._load_program_from_buffer(data)
            return program, program.load_method("forward")

        def attempt(number, drop):
            held = [torch.full((n,), number) for n in range(1, 60 * number)]
            program, method = load()
            method([x])
            for threads in (3, 9, 17, 33, 1, 2, 5, 60):
                if drop:
                    del program, method
                _C._unsafe_reset_threadpool(threads)
                if drop:
                    program, method = load()
                if number % 2:
                    held.append([torch.full((n,), -1) for n in range(1, 200)])
                for _ in range(5):
                    method([x])

        def ends_well(number, *, drop):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60 if drop else 2)  # no Python handler: it ends what holds the GIL
                attempt(number, drop)
                os._exit(0)
            return os.waitpid(pid, 0)[1] == 0

        print(ends_well(0, drop=True), all(ends_well(n, drop=False) for n in range(8)), flush=True)
        os._exit(0)
        """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout.split() == ["True", "False"]
