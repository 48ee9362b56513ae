"""Profiles: their rows against the program's own lists, their sums against ExecuTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common import profiling
from common.executorch_utils import PteRunner, pte_contents, save_pte
from common.profiling import Profile, profile
from tests.programs import Program, image


def event(name: str, *ms: float, delegated: bool = False) -> Any:
    """What the Inspector makes of one recorded event."""
    return SimpleNamespace(
        name=name, is_delegated_op=delegated, perf_data=SimpleNamespace(raw=list(ms))
    )


@pytest.fixture(scope="module")
def of_cumsum(cumsum: Program) -> Profile:
    """A delegate, a portable op, a delegate; five runs."""
    return profile(cumsum.pte, *cumsum.example, runs=5)


def test_rows_are_the_kernels_in_order(of_cumsum: Profile, cumsum: Program) -> None:
    where = [kernel.delegate for kernel in of_cumsum.kernels]
    assert sorted(set(where), key=where.index) == [0, None, 1]
    outside = [k.name for k in of_cumsum.kernels if k.delegate is None]
    assert [f"aten::{name}" for name in outside] == list(pte_contents(cumsum.pte).operators)
    for delegate in (0, 1):
        names = [k.name for k in of_cumsum.kernels if k.delegate == delegate]
        assert sum(name.startswith("Convolution (NHWC, QC8)") for name in names) == 1
    assert {k.backend for k in of_cumsum.kernels} == {"XnnpackBackend", "portable"}


def test_numbers_fit_together(of_cumsum: Profile) -> None:
    assert of_cumsum.runs == 5
    assert sum(kernel.share for kernel in of_cumsum.kernels) == pytest.approx(1)
    assert all(0 <= kernel.best <= kernel.microseconds for kernel in of_cumsum.kernels)
    # Kernels run one after the other. Each clock tick may add 1 us.
    assert of_cumsum.kernel_sum <= of_cumsum.best + len(of_cumsum.kernels)
    assert of_cumsum.best <= of_cumsum.total


def test_kernels_account_for_the_call_of_their_delegate(cumsum: Program) -> None:
    runner = profiling._Recorder(cumsum.pte)
    runner(*cumsum.example)
    inside, calls = 0.0, 0
    for recorded in runner.events():
        (ms,) = recorded.perf_data.raw
        if recorded.is_delegated_op:
            inside += ms
        elif recorded.name == "DELEGATE_CALL":
            calls += 1
            assert 0 < inside <= ms + 0.005, "clocks of whole microseconds"
            inside = 0.0
    assert calls == 2


def test_table_shows_all_and_the_same_in_html(of_cumsum: Profile) -> None:
    shown = str(of_cumsum)
    assert "5 runs, recorded (slower than without)" in shown
    assert all(kernel.name in shown for kernel in of_cumsum.kernels)
    for word in ("delegate 0", "portable", "delegate 1", "sum of kernels", "whole run"):
        assert word in shown
    bundle = of_cumsum._repr_mimebundle_()
    assert bundle["text/plain"] == shown
    assert "<td" in bundle["text/html"]


def test_inputs_are_prepared_as_by_the_runner(conv: Program, tmp_path: Path) -> None:
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    x = image().to(memory_format=torch.channels_last).requires_grad_()
    assert {k.backend for k in profile(path, x, runs=1).kernels} == {"XnnpackBackend"}
    recorded = profiling._Recorder(conv.pte)
    assert torch.equal(recorded(x), PteRunner(conv.pte)(image()))
    with pytest.raises(ValueError, match=r"input 0: expected shape \(1, 3, 8, 8\)"):
        profile(conv.pte, image(size=9))


def test_runs_must_be_positive(conv: Program) -> None:
    with pytest.raises(ValueError, match="expected runs >= 1, got 0"):
        profile(conv.pte, *conv.example, runs=0)


def test_nothing_is_printed(
    conv: Program, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    profile(conv.pte, *conv.example, runs=1)
    assert capfd.readouterr() == ("", "")
    # Python shows deprecations to the module at fault only.
    assert not [w for w in recwarn.list if not issubclass(w.category, DeprecationWarning)]


# --- events of other shapes


def read(events: Sequence[Any], *delegates: str, runs: int = 3) -> Profile:
    return profiling._read(events, delegates, runs)


def test_nested_times_count_once_and_warm_up_runs_do_not() -> None:
    events = [
        event("Convolution (NHWC, F32) IGEMM #1", 9, 0.004, 0.002, 0.003, delegated=True),
        event("DELEGATE_CALL", 9, 0.005, 0.004, 0.005),
        event("native_call_mean.out", 9, 0.001, 0.001, 0.004),
        event("OPERATOR_CALL", 9, 0.002, 0.002, 0.005),
        event("Method::execute", 9, 0.010, 0.020, 0.015),
    ]
    conv, mean = read(events, "XnnpackBackend").kernels
    assert (conv.name, conv.delegate) == ("Convolution (NHWC, F32) IGEMM", 0)
    assert (conv.microseconds, conv.best, conv.share) == pytest.approx((3, 2, 2 / 3))
    assert (mean.name, mean.delegate, mean.backend) == ("mean.out", None, "portable")
    assert (mean.microseconds, mean.best, mean.share) == pytest.approx((1, 1, 1 / 3))
    whole = read(events, "XnnpackBackend")
    assert (whole.total, whole.best, whole.kernel_sum) == pytest.approx((15, 10, 3))


def test_a_delegate_that_records_nothing_is_one_row() -> None:
    events = [event("DELEGATE_CALL", 0.002, 0.001, 0.003), event("Method::execute", 1, 1, 1)]
    (row,) = read(events, "OtherBackend").kernels
    assert (row.name, row.delegate, row.microseconds) == ("OtherBackend", 0, pytest.approx(2))


def test_times_below_the_clock_have_a_share_of_nothing() -> None:
    events = [event("x #1", 0, 0, 0, delegated=True), event("DELEGATE_CALL", 1, 1, 1)]
    (row,) = read([*events, event("Method::execute", 1, 1, 1)], "XnnpackBackend").kernels
    assert (row.name, row.microseconds, row.share) == ("x", 0, 0)
