"""How long each kernel of a ``.pte`` takes: ExecuTorch's event tracer (ETDump) as a table."""

from __future__ import annotations

import os
import statistics
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common._runner import PteRunner
from common._runtime import LOG, explain, log_taken, runtime
from common._table import ShownAsTable, Table, table
from common.env import capture_stderr

__all__ = ["KernelTime", "Profile", "profile"]

_WARM_UP = 2  # runs that fill caches and start threads
_PORTABLE = "native_call_"  # how a kernel that is called without a delegate is named


@dataclass(frozen=True)
class KernelTime:
    """Time of one kernel.

    Attributes:
        name: as the backend or ExecuTorch calls it: ``"Convolution (NHWC, QC8) IGEMM"``,
            ``"cumsum.out"``.
        delegate: which delegate called it, counted from 0 in the order in which they run;
            None for a portable kernel.
        backend: name of the delegate's backend, or ``"portable"``.
        microseconds: median over the runs.
        best: microseconds of the fastest run of this kernel.
        share: part of the sum of all kernels' ``best``, 0 to 1. On a busy machine the median of a
            kernel may be that of a pause: pauses come at regular times and so do runs.
    """

    name: str
    delegate: int | None
    backend: str
    microseconds: float
    best: float
    share: float


@dataclass(frozen=True)
class Profile(ShownAsTable):
    """Times of all kernels of a program, in the order in which they run.

    ``str(profile)`` and its display in a notebook are a table.

    Attributes:
        kernels: one `KernelTime` a call of a kernel.
        total: median microseconds of a whole run. What the kernels do not account for is spent
            on calling them, and on a busy machine on pauses.
        best: microseconds of the fastest run.
        runs: how many runs were measured.
    """

    kernels: tuple[KernelTime, ...]
    total: float
    best: float
    runs: int

    @property
    def kernel_sum(self) -> float:
        """Microseconds of all kernels together, each its ``best``."""
        return sum(kernel.best for kernel in self.kernels)

    def _table(self) -> Table:
        rows = [
            (
                k.name,
                "portable" if k.delegate is None else f"delegate {k.delegate}",
                f"{k.microseconds:,.0f}",
                f"{k.best:,.0f}",
                f"{k.share:.1%}",
            )
            for k in self.kernels
        ]
        medians = sum(k.microseconds for k in self.kernels)
        rows.append(("sum of kernels", "", f"{medians:,.0f}", f"{self.kernel_sum:,.0f}", ""))
        rows.append(("whole run", "", f"{self.total:,.0f}", f"{self.best:,.0f}", ""))
        title = f"us, {self.runs} runs, recorded (slower than without)"
        return table(rows, ("kernel", "where", "median", "min", "share of min"), title=title)


def profile(
    pte: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *inputs: Any,
    runs: int = 30,
    method: str = "forward",
) -> Profile:
    """Measure each kernel of a program.

    The program is loaded anew with the event tracer on, run twice to warm up, then ``runs``
    times. Inputs are checked and converted as by `PteRunner`.

    Recording takes time of its own (half of a run of 50 us): **no latency is to be quoted from a
    profile**. It tells which kernel the time goes to; how long a program takes is measured by
    ``common.timing.compare``. XNNPACK's clock ticks in microseconds, so a kernel may show 0.
    Each kernel's median and minimum are taken by themselves: their sums are not those of one run.

    Args:
        pte: path of a ``.pte``, or its bytes.
        inputs: one value for each input of the program.
        runs: measured runs.
        method: the method to run.

    Returns:
        A `Profile`.

    Raises:
        ValueError: ``runs`` is not positive; else as `PteRunner` and its call.

    Example:
        >>> import torch
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> example = (torch.zeros(8, 256),)
        >>> _, pte = lower_to_xnnpack(torch.nn.Linear(256, 256).eval(), example)
        >>> for kernel in profile(pte, *example, runs=3).kernels:
        ...     print(kernel.name, kernel.delegate, kernel.backend)
        Fully Connected (NC, F32) GEMM 0 XnnpackBackend
    """
    if runs < 1:
        raise ValueError(f"expected runs >= 1, got {runs}")
    runner = _Recorder(pte, method=method)
    for _ in range(_WARM_UP + runs):
        runner(*inputs)
    return _read(runner.events(), runner.delegates, runs)


class _Recorder(PteRunner):
    """A runner whose runs are recorded."""

    def _load_program(self) -> Any:
        return runtime().load_program(self._data, enable_etdump=True)

    def events(self) -> list[Any]:
        """What the runs have recorded. C++ crashes when it is asked twice."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "etdump"
            with log_taken():
                try:
                    self._program.write_etdump_result_to_file(str(path), "")
                except RuntimeError as error:
                    raise OSError(f"no ETDump: {explain(error, LOG.getvalue())}") from None
            with capture_stderr(), warnings.catch_warnings():
                # It speaks of intermediate tensors, which nobody asked to record.
                warnings.filterwarnings("ignore", message="Output Buffer not found")
                from executorch.devtools import Inspector

                blocks = Inspector(etdump_path=str(path)).event_blocks
        # A program that takes another path in some runs leaves several blocks.
        return max((b.events for b in blocks if b.name == "Execute"), key=_recorded_runs)


def _recorded_runs(events: Sequence[Any]) -> int:
    return len(events[-1].perf_data.raw)


def _read(events: Sequence[Any], delegates: Sequence[str], runs: int) -> Profile:
    """Make rows from events, which are nested: a call comes after what it consists of."""
    # name, delegate, backend, times
    found: list[tuple[str, int | None, str, list[float]]] = []
    inside: list[tuple[str, list[float]]] = []
    calls, whole = 0, [0.0]
    for event in events:
        times = [round(float(ms) * 1e3, 3) for ms in event.perf_data.raw[-runs:]]  # whole ns
        if event.is_delegated_op:
            inside.append((event.name.rpartition(" #")[0] or event.name, times))
        elif event.name == "DELEGATE_CALL":
            backend = delegates[calls] if calls < len(delegates) else "delegate"
            # A backend that records nothing itself: one row for the whole delegate.
            found += [(name, calls, backend, ts) for name, ts in inside or [(backend, times)]]
            inside.clear()
            calls += 1
        elif event.name.startswith(_PORTABLE):
            found.append((event.name.removeprefix(_PORTABLE), None, "portable", times))
        elif event.name == "Method::execute":
            whole = times
    all_best = sum(min(times) for *_, times in found) or 1.0
    kernels = [
        KernelTime(name, delegate, backend, statistics.median(ts), min(ts), min(ts) / all_best)
        for name, delegate, backend, ts in found
    ]
    return Profile(tuple(kernels), statistics.median(whole), min(whole), runs)
