"""A look at a program in another process: what damage ends is that process, not the caller's.

On Linux a fork of this process looks: it has everything loaded, and its memory lies where the
caller's does. Elsewhere a fork is not available or not safe, and a worker is started that looks at
one program after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import hashlib
import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn

from common._errors import PteFormatError, PteLoadError
from common._pte_file import ScalarSpec, TensorSpec, operator_names, value_spec
from common._runtime import LOCK, runtime
from common._shapes import read_bounds
from common._trial import Problem, Trial, find_problem, from_line, to_line, to_request

SECONDS = 20.0
"""Time for one program, and a second more for each 10 MB: it is loaded and run twice."""
START_SECONDS = 180.0
"""Time for a worker to start, which imports torch."""

_DAMAGED = ("the program is damaged", "Export it again, or copy the file again.")
_NEW = (
    "the program ends the process that runs it",
    "An op outside the delegates or a delegate meets what it cannot compute: lower parts of the "
    "model to find it.",
)

_VERDICTS: dict[tuple[bytes, str], Problem | None] = {}
_CHECKING = threading.Lock()


class _Undecided(Exception):
    """No answer: too slow, or no process to be had. The message goes on after "the check"."""


class _Ended(Exception):
    """The process that looked is dead. The message goes on after "a child process"."""


def check_isolated(data: bytes, program: Any, method: str, *, may_fail: bool = False) -> None:
    """Load and run a program in another process, once in the life of this one.

    Args:
        data: the program.
        program: what ``read_description(data)`` returned.
        method: the method that is wanted; the others are tried as well.
        may_fail: the program was made just now. A method that fails on zeros with an error code
            is accepted: nothing is wrong with a program for which zeros are no valid input. And
            one that ends the process is not called damaged.

    Raises:
        PteFormatError: the program ends that process or fails in it.
        PteLoadError: the runtime refuses it, or nothing was found out in the time there is.
    """
    key = hashlib.sha256(data).digest(), method
    with _CHECKING:
        if key not in _VERDICTS:
            _VERDICTS[key] = _look(_trial(data, program, method))
        problem = _VERDICTS[key]
    if problem is None or (may_fail and problem.kind == "failure"):
        return
    said = problem.text
    if problem.kind == "death":
        what, then = _NEW if may_fail else _DAMAGED
        said = f"{what}: {said} {then}"
    raise (PteLoadError if problem.kind == "load" else PteFormatError)(said)


def _trial(data: bytes, program: Any, method: str) -> Trial:
    plans = program.execution_plan
    try:
        inputs = {p.name: _inputs(program, p) for p in plans}
    except (IndexError, KeyError, AttributeError) as error:
        raise PteFormatError(f"the program is damaged: {error!r}") from error
    return Trial(data, inputs, method, tuple(n for p in plans for n in operator_names(p)))


def _inputs(program: Any, plan: Any) -> tuple[TensorSpec | ScalarSpec, ...]:
    """Describe what a method takes, in the largest shapes that fit together."""
    specs = [value_spec(plan.values[i].val) for i in plan.inputs]
    bounds = read_bounds(program, plan)
    for i, shape in enumerate(bounds.sample() if bounds else ()):
        spec = specs[i]
        if shape is not None and isinstance(spec, TensorSpec):
            specs[i] = replace(spec, shape=shape)
    return tuple(specs)


def _look(trial: Trial) -> Problem | None:
    try:
        return LOOK(trial, SECONDS + len(trial.data) / 1e7)
    except _Undecided as why:
        raise PteLoadError(
            f"undecided whether the program is whole: the check in a child process {why}. The "
            "program was not loaded. Try again on a less busy machine, or load it without "
            "isolated_check."
        ) from None
    except _Ended as how:
        return Problem(
            "death",
            f"a child process that loaded it and ran it on zeros {how}. It was not loaded here.",
        )


def _raise_for(code: int | None) -> NoReturn:
    """Say how a process ended; ``code`` is that of ``subprocess``: minus the signal's number."""
    if code == -9:
        raise _Undecided("was ended by the system, perhaps for lack of memory")
    if code is None or code >= 0:
        raise _Ended("ended before its time" + (f" with status {code:#x}" if code else ""))
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    raise _Ended(f"was ended by {name}")


# --- a fork of this process


def fork() -> int:
    """Call ``os.fork``; the child must call ``enter_child`` first and then only what is safe."""
    # Ctrl-C must not raise in the child, which would go on as a second copy of the caller.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        with warnings.catch_warnings():
            # Python 3.12 and later warn of locks that other threads hold. The child takes none of
            # theirs, and one that hangs all the same is ended.
            message = r".*multi-threaded, use of fork\(\)"
            warnings.filterwarnings("ignore", message, DeprecationWarning)
            pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def enter_child(seconds: float) -> None:
    """Make a forked child quiet, and mortal even when its parent is gone."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the child
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds) + 5)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    sys.settrace(None)
    gc.disable()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    sys.stdout = sys.stderr = io.StringIO()


def look_in_fork(trial: Trial, seconds: float) -> Problem | None:
    """Make a trial in a fork of this process."""
    runtime()  # not in the child: it imports, and starts threads
    given_up = threading.Event()
    # A thread looks, because Ctrl-C raises in the main one alone, and there at any step: also at
    # one where a child exists whose number nobody knows yet.
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(_fork_and_ask, trial, seconds, given_up).result()
        finally:
            given_up.set()


def _fork_and_ask(trial: Trial, seconds: float, given_up: threading.Event) -> Problem | None:
    read, write = os.pipe()
    try:
        try:
            # With the lock: another thread might hold it, and in the child for ever.
            with LOCK:
                pid = fork()
                if pid == 0:
                    _be_the_child(trial, seconds, write)
        except OSError as error:
            raise _Undecided(f"could not start ({error})") from None
        finally:
            os.close(write)
        line, code = _answer_of(pid, read, seconds, given_up)
    finally:
        os.close(read)
    if not line.endswith(b"\n"):
        _raise_for(code)
    return from_line(line)


def _be_the_child(trial: Trial, seconds: float, write: int) -> NoReturn:
    try:
        enter_child(seconds)
        os.write(write, to_line(find_problem(trial)))
    finally:
        os._exit(0)


def _answer_of(
    pid: int, read: int, seconds: float, given_up: threading.Event
) -> tuple[bytes, int | None]:
    """Return what the child wrote, and how it ended where that is known."""
    line, code, end = b"", None, time.monotonic() + seconds
    poll = select.poll()
    poll.register(read, select.POLLIN)
    try:
        while not line.endswith(b"\n"):
            if given_up.is_set() or time.monotonic() > end:
                raise _Undecided(f"took more than {seconds:.0f} s")
            if not poll.poll(50):  # ms
                continue
            part = os.read(read, 65536)
            if not part:
                break
            line += part
    except _Undecided:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        # There is nothing to wait for where SIGCHLD is ignored or another thread waits for all.
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return line, code


# --- a worker


class _Worker:
    """A process of its own that makes trials, one after the other."""

    def __init__(self) -> None:
        self.owner, self.trials = os.getpid(), 0
        code = f"import sys; sys.path[:] = {sys.path!r}; from common._trial import serve; serve()"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._exchange(b"", START_SECONDS)
        except (OSError, _Ended) as error:
            raise _Undecided(f"could not start ({error})") from None
        atexit.register(self.end)

    def look(self, trial: Trial, seconds: float) -> Problem | None:
        """Let the worker make a trial; when this raises, the worker is gone."""
        self.trials += 1
        return from_line(self._exchange(to_request(trial), seconds))

    def end(self) -> None:
        """End the worker."""
        atexit.unregister(self.end)
        self._process.kill()
        self._process.communicate()

    def _exchange(self, request: bytes, seconds: float) -> bytes:
        """Send a request and return the line that answers it."""
        answer: list[bytes] = []
        # A thread, because Windows cannot wait for a pipe with a time limit. Writing may block,
        # too, while the worker does not read.
        thread = threading.Thread(target=self._talk, args=(request, answer), daemon=True)
        try:
            thread.start()
            thread.join(seconds)
            if thread.is_alive():
                raise _Undecided(f"took more than {seconds:.0f} s")
            if not answer:
                # Its pipes are closed; a system that writes a report on it takes its time.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(60)
                _raise_for(self._process.returncode)
        except BaseException:  # Ctrl-C as well
            self._process.kill()
            thread.join()
            self.end()
            raise
        return answer[0]

    def _talk(self, request: bytes, answer: list[bytes]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it is dead: no answer
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if line.endswith(b"\n"):
                answer.append(line)


_worker: _Worker | None = None


def look_in_worker(trial: Trial, seconds: float) -> Problem | None:
    """Make a trial in the worker, which is started when there is none."""
    global _worker
    while True:
        if _worker is None or _worker.owner != os.getpid():  # a fork has not its parent's worker
            _worker = _Worker()
        worker, _worker = _worker, None
        try:
            found = worker.look(trial, seconds)
        except _Ended:
            # An earlier program may have left damage behind: only a new worker's death counts.
            if worker.trials == 1:
                raise
        else:
            _worker = worker
            return found


LOOK: Callable[[Trial, float], Problem | None] = (
    look_in_fork if sys.platform == "linux" else look_in_worker
)
