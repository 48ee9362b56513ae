"""Comparing the speed of several ways to compute the same thing, on a machine that others use too.

One run of each variant in turn, again and again: what slows the machine down slows all of them.
The result is a ratio. Bare milliseconds say more about the machine than about the code.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common._table import ShownAsTable, Table, table

__all__ = ["Comparison", "compare"]

_CHANCE = 0.01  # how often `faster` may name a winner where there is none


@dataclass(frozen=True)
class Comparison(ShownAsTable):
    """Times of several variants, measured in turn.

    ``str(comparison)`` and its display in a notebook are a table; the ratios in it are to the
    first variant, with their quartiles in brackets.

    Attributes:
        seconds: ``{variant: seconds per call, one entry a round}``.
    """

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Median seconds per call of one variant: what to expect on this machine, as busy as now.

        Raises:
            KeyError: a name that was not measured.
        """
        return statistics.median(self._of(name))

    def minimum(self, name: str) -> float:
        """Seconds per call in the best round: the nearest to the time on an idle machine.

        Raises:
            KeyError: a name that was not measured.
        """
        return min(self._of(name))

    def quartiles(self, name: str) -> tuple[float, float]:
        """Seconds per call between which the middle half of the rounds lies.

        Raises:
            KeyError: a name that was not measured.
        """
        return _quartiles(self._of(name))

    def ratio(self, slow: str, fast: str) -> float:
        """How many times longer ``slow`` takes than ``fast``: the median over the rounds.

        Raises:
            KeyError: a name that was not measured.
        """
        return statistics.median(self._ratios(slow, fast))

    def ratio_range(self, slow: str, fast: str) -> tuple[float, float]:
        """Quartiles of the ratio: the middle half of the rounds lies between them.

        Raises:
            KeyError: a name that was not measured.

        Example:
            >>> times = Comparison({"a": (4.0, 2.0, 3.0, 2.0, 5.0), "b": (2.0, 1.0, 1.0, 2.0, 2.0)})
            >>> times.ratio("a", "b"), times.ratio_range("a", "b")
            (2.0, (2.0, 2.5))
        """
        return _quartiles(self._ratios(slow, fast))

    def faster(self, name: str, other: str) -> bool | None:
        """Whether ``name`` takes less time than ``other``, as far as these rounds can tell.

        It counts who won each round (a sign test). A winner is named when the flips of a fair
        coin would be as one-sided in less than 1 of 100 cases; that takes at least 8 rounds.
        It does not say how much faster: see `ratio`. A difference of a few percent may come from
        where the memory of this process lies; another process may show another winner.

        Returns:
            True, False, or None: cannot tell.

        Raises:
            KeyError: a name that was not measured.

        Example:
            >>> times = Comparison({"a": (1.0,) * 8, "b": (1.1,) * 8, "c": (0.9, 1.1) * 4})
            >>> times.faster("a", "b"), times.faster("b", "a"), times.faster("a", "c")
            (True, False, None)
        """
        ratios = self._ratios(name, other)
        won, lost = sum(r < 1 for r in ratios), sum(r > 1 for r in ratios)
        rounds = won + lost
        tail = sum(math.comb(rounds, k) for k in range(min(won, lost) + 1))
        if 2 * tail >= _CHANCE * 2**rounds:
            return None
        return won > lost

    def _table(self) -> Table:
        base = next(iter(self.seconds))
        rows = []
        for name in self.seconds:
            quarter, three_quarters = self.quartiles(name)
            low, high = self.ratio_range(name, base)
            times = (self.median(name), self.minimum(name), quarter, three_quarters)
            rows.append(
                (name, *map(_us, times), f"{self.ratio(name, base):.2f} [{low:.2f} - {high:.2f}]")
            )
        rounds = len(self.seconds[base])
        headers = ("us per call", "median", "min", "1/4", "3/4", f"ratio to {base}")
        return table(rows, headers, title=f"{rounds} rounds, the variants in turn")

    def _ratios(self, slow: str, fast: str) -> list[float]:
        return [a / b for a, b in zip(self._of(slow), self._of(fast), strict=True)]

    def _of(self, name: str) -> tuple[float, ...]:
        if name not in self.seconds:
            raise KeyError(f"{name!r} was not measured; there are: {', '.join(self.seconds)}")
        return self.seconds[name]


def compare(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 30,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time several callables in turn.

    Each is called a few times before the measurement: once because the first call of most things
    is slower, then to find out how often it must be called for a round to be well above the
    clock's resolution. Each round runs all variants once, in a new random order (the same in each
    process). With a fixed order one variant always ran after the same neighbour, which leaves its
    data in the caches and its threads waiting for work. For the same reason each turn begins with
    one call that is not timed, so these are times of a program that runs again and again, not of
    one that is called once in a while.

    Args:
        variants: ``{name: callable without arguments}``, the first is what others are compared to.
        rounds: measurements of each variant; more make the median steadier.
        seconds: rough time for the whole comparison; each variant is called at least twice a
            round, however long that takes.
        clock: returns seconds. With ``time.process_time`` the time counts in which this process
            held a processor, not the time in which others did: steadier on a busy machine, and on
            an idle one the same. For variants of one thread only (those of several threads are
            added up), and not on Windows, where that clock ticks 64 times a second.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: no variant, or ``rounds`` is not positive.

    Example:
        >>> result = compare({"short": lambda: sum(range(9)), "long": lambda: sum(range(9999))})
        >>> result.ratio("long", "short") > 3
        True
        >>> result.faster("short", "long")
        True
    """
    if not variants or rounds < 1:
        raise ValueError(f"expected variants and rounds >= 1, got {len(variants)} and {rounds}")
    calls = {}
    for name, variant in variants.items():
        share = seconds / len(variants)
        variant()
        once = _fastest_call(variant, share / 10, clock)
        calls[name] = max(1, int(share / rounds / max(once, 1e-7)) - 1)
    times: dict[str, list[float]] = {name: [] for name in variants}
    order, shuffle = list(variants), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            variants[name]()
            times[name].append(_time(variants[name], calls[name], clock))
    return Comparison({name: tuple(values) for name, values in times.items()})


def _fastest_call(
    variant: Callable[[], object], seconds: float, clock: Callable[[], float]
) -> float:
    """Time single calls. One that was interrupted would make all blocks of this variant short.

    Short blocks are interrupted less often than long ones: the variant would seem faster.
    """
    times = [_time(variant, 1, clock)]
    while len(times) < 10 and sum(times) < seconds:
        times.append(_time(variant, 1, clock))
    return min(times)


def _time(variant: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        variant()
    return (clock() - start) / calls


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"
