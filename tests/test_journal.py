"""What a long call tells: its steps, their seconds, and what was mended."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common import _journal
from common._example import traceable
from common._exports import export, exports_kept
from common._journal import journal, note, step
from common._signature import Inputs


def test_seconds_of_inner_steps_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 10.0, 15.0])
    monkeypatch.setattr(_journal.time, "perf_counter", lambda: next(clock))
    began: list[str] = []
    with journal(began.append) as told:
        with step("a"), step("b"):  # a from 0, b from 1 to 3, a to 7
            pass
        with step("a"):  # from 10 to 15
            pass
    assert told.seconds == {"a": 1 + 4 + 5, "a: b": 2}
    assert began == ["a", "a: b", "a"]


def test_a_step_ends_with_its_exception() -> None:
    with journal() as told:
        with pytest.raises(KeyError), step("a"):
            raise KeyError
        with step("b"):
            pass
    assert list(told.seconds) == ["a", "b"]


def test_without_a_listener_nothing_is_kept() -> None:
    with step("a"):
        note("lost")
    with journal() as told:
        note("kept")
        note("kept")
    note("lost")
    assert told.notes == ["kept"]


def test_what_is_mended_is_told() -> None:
    x = torch.ones(1, 3)
    batch = torch.export.Dim("batch", max=4)
    with journal() as told:
        traceable(nn.Bilinear(3, 3, 2), Inputs((x, x), {}), ({0: batch}, {0: batch}))
    assert [text.split(";")[0] for text in told.notes] == [
        "One tensor was given for two inputs",
        "The example has a size of 1 for batch, which torch.export takes for fixed",
    ]


def test_a_model_is_exported_once() -> None:
    layer, inputs = nn.Linear(3, 2).eval(), Inputs((torch.ones(1, 3),), {})
    with exports_kept():
        first = export(layer, inputs, None)
        assert export(layer, inputs, None) is first
        assert export(nn.Linear(3, 2).eval(), inputs, None) is not first
        graph = first.module()
        assert export(graph, inputs, None) is not export(graph, inputs, None)
    assert export(layer, inputs, None) is not first
