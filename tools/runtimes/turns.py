"""One process for each variant, all alive at once, measured in turn.

In one process the thread pools, memory and loaded libraries of one runtime would disturb the
others. One after the other they would meet a different machine. Here every process waits for its
turn, and only one works at a time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.timing import Comparison
from tools.runtimes.catalogue import BASE, BY_NAME
from tools.runtimes.networks import DATA

if TYPE_CHECKING:
    import numpy as np

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""What a clock of the command means; ``cpu`` does not count waiting for a busy processor."""


class ChildError(Exception):
    """A process that was started here could not do its work; the message is its own."""


@dataclass(frozen=True)
class Measured:
    """What the processes gave for one network.

    Attributes:
        times: seconds per call, one entry a round for each variant.
        outputs: for each variant the results of all test inputs, ``(M, classes)`` float32.
        reference: the same by eager fp32, in the process that made the network.
        failed: variants that did not start or did not build, and why.
    """

    times: Comparison
    outputs: dict[str, np.ndarray]
    reference: np.ndarray
    failed: dict[str, str]


def measure(
    network: str,
    names: Sequence[str],
    folder: Path,
    *,
    threads: int = 1,
    rounds: int = 30,
    seconds: float = 0.1,
    clock: str = "wall",
) -> Measured:
    """Build the variants of a network, start a process for each, and time them in turn.

    Args:
        network: a name in `networks.NETWORKS`.
        names: variants, `BASE` among them.
        folder: for the files that the processes exchange; those that are there are used again.
        threads: for each runtime.
        rounds: turns of each variant.
        seconds: rough length of a turn; at least one call.
        clock: a name in `CLOCKS`.

    Raises:
        ChildError: the network or `BASE`, to which all others are compared, cannot be made.
    """
    import numpy as np

    # The first process to build, that of BASE and its relatives, makes the network as well.
    builders = dict.fromkeys([BY_NAME[BASE].build, *(BY_NAME[name].build for name in names)])
    failed: dict[str, str] = {}
    for build in builders:
        parts = [name for name in names if BY_NAME[name].build == build]
        if not (folder / DATA).exists() or any(_lacks(folder, name) for name in parts):
            with _child(folder, _build, network, parts, folder) as connection:
                failed |= _received(connection, f"building {', '.join(parts)}")
    with np.load(folder / DATA) as data:
        reference = data["reference"]
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker.started(name, network, folder, threads, clock))
            for name in names
            if name not in failed
        }
        for name, worker in list(workers.items()):
            try:
                worker.wait_until_ready()
            except ChildError as error:
                failed[name] = str(error)
                del workers[name]
        if BASE in failed:
            raise ChildError(f"{BASE}, to which all are compared, failed: {failed[BASE]}")
        outputs = {name: worker.outputs() for name, worker in workers.items()}
        calls = {name: worker.calls_for(seconds) for name, worker in workers.items()}
        times: dict[str, list[float]] = {name: [] for name in workers}
        order, shuffle = list(workers), random.Random(0).shuffle
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                times[name].append(workers[name].time(calls[name]))
    return Measured(
        Comparison({name: tuple(values) for name, values in times.items()}),
        outputs,
        reference,
        failed,
    )


@dataclass(frozen=True)
class Worker:
    """The near end of a process that holds one variant."""

    name: str
    connection: Connection

    @staticmethod
    @contextlib.contextmanager
    def started(
        name: str, network: str, folder: Path, threads: int, clock: str
    ) -> Generator[Worker, None, None]:
        """Start the process; end it with the block."""
        with _child(folder, _serve, name, network, folder, threads, clock) as connection:
            yield Worker(name, connection)
            with contextlib.suppress(OSError):  # it may have ended already
                connection.send(("stop", None))

    def wait_until_ready(self) -> None:
        """Wait until the process has loaded its variant and run it.

        Raises:
            ChildError: it could not.
        """
        self._answer()

    def time(self, calls: int) -> float:
        """Return the seconds per call of this many calls."""
        return self._ask("time", calls)

    def calls_for(self, seconds: float) -> int:
        """Return how many calls take about this long, after warming up."""
        once = min(self.time(1) for _ in range(3))
        return max(1, int(seconds / max(once, 1e-6)))

    def outputs(self) -> np.ndarray:
        """Return the results of all test inputs."""
        return self._ask("outputs", None)

    def _ask(self, what: str, value: object) -> Any:
        self.connection.send((what, value))
        return self._answer()

    def _answer(self) -> Any:
        return _received(self.connection, self.name)


# --- what runs in the processes


def _serve(
    connection: Connection, name: str, network: str, folder: Path, threads: int, clock: str
) -> None:
    import numpy as np

    # Before torch is imported; each runtime is told its threads in its own way as well.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    call = BY_NAME[name].load(network, folder, threads)
    with np.load(folder / DATA) as data:
        inputs = data["inputs"]
    run, now, x = call.run, CLOCKS[clock], call.prepare(inputs[:1])
    for _ in range(3):
        run(x)
    connection.send(("ready", None))
    while True:
        what, value = connection.recv()
        if what == "stop":
            return
        if what == "outputs":
            results = [
                call.result(run(call.prepare(inputs[i : i + 1]))) for i in range(len(inputs))
            ]
            connection.send((what, np.concatenate(results)))
        else:
            run(x)  # the caches are still those of the process that ran before
            start = now()
            for _ in range(value):
                run(x)
            connection.send((what, (now() - start) / value))


def _build(connection: Connection, network: str, names: list[str], folder: Path) -> None:
    import torch

    from tools.runtimes import networks

    torch.set_num_threads(1)  # with more, the observers of a busy machine crawl
    if not (folder / networks.DATA).exists():
        networks.save(networks.make(network), folder)
    made = networks.load(network, folder)
    failed = {}
    for name in names:
        variant = BY_NAME[name]
        try:
            if variant.build and variant.file and _lacks(folder, name):
                variant.build(made, folder, variant.file)
        except Exception as error:
            failed[name] = _said(error)
    connection.send(("built", failed))


def _lacks(folder: Path, name: str) -> bool:
    """Say whether the file of a variant is still to be made."""
    file = BY_NAME[name].file
    return file is not None and not (folder / file).exists()


# --- starting processes


@contextlib.contextmanager
def _child(folder: Path, target: Any, *arguments: Any) -> Generator[Connection, None, None]:
    """Run ``target(connection, *arguments)`` in a new interpreter while the block runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=_reporting, args=(there, folder / "log.txt", target, arguments), daemon=True
    )
    process.start()
    there.close()  # so that the death of the child ends a recv
    try:
        yield here
    finally:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
        here.close()


def _reporting(connection: Connection, log: Path, target: Any, arguments: tuple[Any, ...]) -> None:
    """Run the target; send an exception as a sentence. What the libraries print goes into a log."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        target(connection, *arguments)
    except Exception as error:
        connection.send(("failed", _said(error)))


def _received(connection: Connection, who: str) -> Any:
    try:
        what, value = connection.recv()
    except EOFError:
        raise ChildError(f"the process of {who} ended before it answered") from None
    if what == "failed":
        raise ChildError(value)
    return value


def _said(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line} ({Path(place.filename).name}:{place.lineno})"
