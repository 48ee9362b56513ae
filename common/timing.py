"""Comparing the speed of several ways to compute the same thing, on a machine that others use too.

One run of each variant in turn, again and again: what slows the machine down slows all of them.
The result is a ratio. Bare milliseconds say more about the machine than about the code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """Times of several variants, measured in turn.

    Attributes:
        seconds: ``{variant: seconds per call, one entry a round}``.
    """

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Median seconds per call of one variant."""
        return statistics.median(self._of(name))

    def ratio(self, slow: str, fast: str) -> float:
        """How many times longer ``slow`` takes than ``fast``: the median over the rounds.

        Raises:
            KeyError: a name that was not measured.
        """
        pairs = zip(self._of(slow), self._of(fast), strict=True)
        return statistics.median(a / b for a, b in pairs)

    def __str__(self) -> str:
        width = max(map(len, self.seconds))
        base = next(iter(self.seconds))
        return "\n".join(
            f"{name:{width}}  {self.median(name) * 1e6:9,.1f} us  x{self.ratio(name, base):.2f}"
            for name in self.seconds
        )

    def _of(self, name: str) -> tuple[float, ...]:
        if name not in self.seconds:
            raise KeyError(f"{name!r} was not measured; there are: {', '.join(self.seconds)}")
        return self.seconds[name]


def compare(
    variants: Mapping[str, Callable[[], object]], *, rounds: int = 30, seconds: float = 2.0
) -> Comparison:
    """Time several callables in turn.

    Each is called once to warm up and once to find out how often it must be called for a round to
    be well above the clock's resolution.

    Args:
        variants: ``{name: callable without arguments}``, the first is what others are compared to.
        rounds: measurements of each variant; more make the median steadier.
        seconds: rough time for the whole comparison, at least one call per round and variant.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: no variant, or ``rounds`` is not positive.

    Example:
        >>> result = compare({"short": lambda: sum(range(9)), "long": lambda: sum(range(9999))})
        >>> result.ratio("long", "short") > 3
        True
    """
    if not variants or rounds < 1:
        raise ValueError(f"expected variants and rounds >= 1, got {len(variants)} and {rounds}")
    calls = {}
    for name, variant in variants.items():
        variant()
        once = _time(variant, 1)
        calls[name] = max(1, int(seconds / len(variants) / rounds / max(once, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            times[name].append(_time(variant, calls[name]))
    return Comparison({name: tuple(values) for name, values in times.items()})


def _time(variant: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        variant()
    return (time.perf_counter() - start) / calls
