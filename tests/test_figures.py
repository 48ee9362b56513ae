"""Limits that a report must hold."""

from __future__ import annotations

import argparse

import pytest

from common._figures import NAMES, Limit, add_limits, limits


@pytest.mark.parametrize(
    ("name", "limit", "value", "holds"),
    [
        ("delegates", 1, 1, True),
        ("delegates", 1, 2, False),
        ("sqnr", 30, 29.9, False),
        ("sqnr", 30, float("inf"), True),
        ("sqnr", 30, float("nan"), False),
        ("outside", 0, 0, True),
        ("accuracy", 0.98, 0.99, True),
        ("accuracy_drop", -0.5, -0.25, False),
        ("speedup", 2, 1.5, False),
    ],
)
def test_a_limit(name: str, limit: float, value: float, holds: bool) -> None:
    failure = Limit(name, limit).failure({name: value})
    assert (failure == "") is holds
    assert holds or f"it is {value:.6g}" in failure


def test_a_figure_that_is_not_known_does_not_hold() -> None:
    assert Limit("accuracy", 0.9).failure({"accuracy": "no data"}) == "--min-accuracy 0.9: no data"
    assert "not known of a file" in Limit("accuracy", 0.9).failure({})


def test_options() -> None:
    parser = argparse.ArgumentParser()
    add_limits(parser)
    given = parser.parse_args(["--min-sqnr", "3e1", "--max-float-ops=2", "--max-outside", "0"])
    assert limits(given) == [Limit("outside", 0), Limit("float_ops", 2), Limit("sqnr", 30)]
    text = " ".join(parser.format_help().split())
    for name, words in NAMES.items():
        assert name.endswith("fp32") or words in text
