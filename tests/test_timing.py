"""The arithmetic of comparisons, on given times and on a clock that the tests move."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import pytest

from common.timing import Comparison, compare

TIMES = Comparison(
    {"base": (4.0, 8.0, 2.0, 6.0), "half": (2.0, 2.0, 1.0, 6.0), "same": (4.0, 8.0, 2.0, 6.0)}
)


class Machine:
    """Calls take a given time on a clock of its own; the first after another call takes longer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def call(self, name: str, seconds: float, *, cold: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            warm = bool(self.calls) and self.calls[-1] == name
            self.now += seconds if warm else seconds + cold
            self.calls.append(name)

        return run


def test_statistics_agree_with_numpy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, 31), rng.uniform(1, 2, 31)
    times = Comparison({"a": tuple(a), "b": tuple(b)})
    assert times.median("a") == pytest.approx(np.median(a))
    assert times.minimum("a") == a.min()
    assert times.quartiles("a") == pytest.approx(np.percentile(a, [25, 75]))
    assert times.ratio("a", "b") == pytest.approx(np.median(a / b))
    assert times.ratio_range("a", "b") == pytest.approx(np.percentile(a / b, [25, 75]))


def test_ratio_pairs_the_rounds() -> None:
    # The ratio of the medians would be 5 / 2.
    assert TIMES.ratio("base", "half") == 2.0


def test_one_round_has_quartiles() -> None:
    times = Comparison({"a": (3.0,), "b": (1.5,)})
    assert times.quartiles("a") == (3.0, 3.0)
    assert times.ratio_range("a", "b") == (2.0, 2.0)
    assert "2.00" not in str(times)
    assert "0.50 [0.50 - 0.50]" in str(times)


@pytest.mark.parametrize("ask", ["median", "minimum", "quartiles"])
def test_unknown_name_is_told(ask: str) -> None:
    with pytest.raises(KeyError, match="'other' was not measured; there are: base, half, same"):
        getattr(TIMES, ask)("other")


@pytest.mark.parametrize("ask", ["ratio", "ratio_range", "faster"])
def test_unknown_second_name_is_told(ask: str) -> None:
    with pytest.raises(KeyError, match="'other' was not measured"):
        getattr(TIMES, ask)("base", "other")


@pytest.mark.parametrize(
    ("won", "lost", "ties", "expected"),
    [
        (7, 0, 0, None),  # 2 of 128 cases
        (8, 0, 0, True),  # 2 of 256
        (0, 8, 5, False),
        (23, 7, 0, True),
        (22, 8, 0, None),
        (0, 0, 30, None),
    ],
)
def test_faster_needs_rounds_enough(won: int, lost: int, ties: int, expected: bool | None) -> None:
    a = (1.0,) * (won + lost + ties)
    b = (2.0,) * won + (0.5,) * lost + (1.0,) * ties
    times = Comparison({"a": a, "b": b})
    assert times.faster("a", "b") is expected
    assert times.faster("b", "a") is (None if expected is None else not expected)


def test_faster_seldom_names_a_winner_where_there_is_none() -> None:
    rng = np.random.default_rng(1)
    verdicts = [
        Comparison({"a": tuple(rng.uniform(1, 2, 30)), "b": tuple(rng.uniform(1, 2, 30))}).faster(
            "a", "b"
        )
        for _ in range(1000)
    ]
    assert sum(verdict is not None for verdict in verdicts) <= 20


def test_table_shows_all_and_the_same_in_html() -> None:
    shown = str(TIMES)
    assert shown.splitlines()[0] == "4 rounds, the variants in turn"
    cells = ("half", "2,000,000.0", "1,000,000.0", "1,750,000.0", "3,000,000.0", "0.50", "ratio to")
    for cell in cells:
        assert cell in shown
    bundle = TIMES._repr_mimebundle_()
    assert bundle["text/plain"] == shown
    assert all(cell in bundle["text/html"] for cell in cells)


def test_time_per_call_is_that_of_the_clock() -> None:
    machine = Machine()
    variants = {"a": machine.call("a", 0.25), "b": machine.call("b", 0.5)}
    times = compare(variants, rounds=5, seconds=10, clock=machine.clock)
    assert times.seconds == {"a": (0.25,) * 5, "b": (0.5,) * 5}
    assert machine.now == pytest.approx(10, rel=0.3)


def test_what_the_neighbour_left_in_the_caches_is_not_timed() -> None:
    machine = Machine()
    variants = {name: machine.call(name, 0.25, cold=4.0) for name in "ab"}
    times = compare(variants, rounds=5, seconds=0, clock=machine.clock)
    assert times.seconds == {"a": (0.25,) * 5, "b": (0.25,) * 5}


def test_every_round_runs_all_and_the_order_changes() -> None:
    def orders() -> list[tuple[str, ...]]:
        machine = Machine()
        variants = {name: machine.call(name, 1.0) for name in "abc"}
        compare(variants, rounds=20, seconds=0, clock=machine.clock)
        measured = machine.calls[6:]  # two calls of each before the first round
        turns = measured[::2]
        assert turns == measured[1::2]  # one untimed, one timed call
        return [tuple(turns[i : i + 3]) for i in range(0, 60, 3)]

    first = orders()
    assert all(sorted(order) == ["a", "b", "c"] for order in first)
    assert len(set(first)) > 3
    assert orders() == first


def test_variants_are_called_as_often_as_the_time_allows() -> None:
    machine = Machine()
    variants = {"short": machine.call("short", 0.01), "long": machine.call("long", 1.0)}
    compare(variants, rounds=10, seconds=20, clock=machine.clock)
    assert machine.calls.count("long") == 2 + 2 * 10  # a round cannot be shorter than this
    assert machine.calls.count("short") == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize(("variants", "rounds"), [({}, 3), ({"a": int}, 0)])
def test_nothing_to_measure_is_refused(variants: dict[str, type], rounds: int) -> None:
    with pytest.raises(ValueError, match=f"got {len(variants)} and {rounds}"):
        compare(variants, rounds=rounds)


def test_real_clock_measures_seconds() -> None:
    times = compare({"sum": lambda: sum(range(100_000))}, rounds=5, seconds=0.05)
    assert 1e-5 < statistics.median(times.seconds["sum"]) < 10


def test_one_interrupted_call_does_not_shorten_the_blocks() -> None:
    machine = Machine()
    steady, delays = machine.call("interrupted", 0.01), [0.0, 0.5]  # of the first calls

    def interrupted() -> None:
        machine.now += delays.pop(0) if delays else 0.0
        steady()

    variants = {"calm": machine.call("calm", 0.01), "interrupted": interrupted}
    compare(variants, rounds=10, seconds=20, clock=machine.clock)
    calls = machine.calls
    assert calls.count("interrupted") == pytest.approx(calls.count("calm"), rel=0.05)
