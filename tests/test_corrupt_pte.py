"""The command that damages programs, and what it finds: `pytest -m corruptions`.

The ordinary run tests the command itself with a few files; M08_CORRUPTIONS sets the number of the
other one.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from typing import Any

import pytest

from tests.programs import Program
from tools import corrupt_pte
from tools.corrupt_pte import KINDS, Damaged, Sample, damages, trials

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture(scope="module")
def sample(conv: Program) -> Sample:
    return Sample("conv", conv.pte, conv.example)


def test_the_same_seed_gives_the_same_damage(sample: Sample) -> None:
    first, again = damages([sample], 27), damages([sample], 27)
    assert [d.data for d in first] == [d.data for d in again]
    assert all(d.data != sample.pte for d in first)
    assert [d.kind for d in first] == list(KINDS) * 3
    assert len({d.data for d in first + damages([sample], 27, seed=27)}) > 50
    lengths = {
        kind: {len(d.data) - len(sample.pte) for d in first if d.kind == kind} for kind in KINDS
    }
    assert all(n < 0 for n in lengths["cut off"])
    assert all(n > 0 for n in lengths["bytes added"])
    assert lengths["byte changed"] == lengths["blocks exchanged"] == {0}


def test_every_outcome_is_told(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial is on its own: what comes after a death is still tried."""

    def run(data: bytes, inputs: Any, folder: Any) -> Any:
        clean = corrupt_pte.run_raw(sample.pte, sample.inputs, folder)
        return {
            b"dies": lambda: os.abort(),
            b"hangs": lambda: time.sleep(60),
            b"raises": lambda: [][1],
            b"right": lambda: clean,
            b"differs": lambda: [clean[0] + 1],
            b"shape": lambda: [clean[0][0]],
        }[data]()

    monkeypatch.setitem(corrupt_pte.WAYS, "raw", run)
    plan = [b"right", b"dies", b"raises", b"hangs", b"differs", b"dies", b"shape", b"right"]
    damaged = [Damaged(sample, "", i, data) for i, data in enumerate(plan)]
    assert trials("raw", damaged, limit=3.0) == [
        "right", "killed", "refused", "killed", "wrong", "killed", "wrong", "right",
    ]  # fmt: skip


def test_damage_that_ours_refuses_and_raw_does_not(sample: Sample) -> None:
    """A few files, by every way: ours kills never, and a checksum leaves nothing wrong."""
    damaged = damages([sample], 36, seed=random.Random(1).randrange(1000))
    found = {way: Counter(trials(way, damaged)) for way in corrupt_pte.WAYS}
    assert found["raw"]["wrong"] > 0, "or ExecuTorch has mended it"
    assert found["child"]["killed"] == 0
    assert found["checksum"] == {"refused": len(damaged)}
    assert found["guarded"]["wrong"] <= found["raw"]["wrong"]


@pytest.mark.corruptions
@pytest.mark.skipif(sys.platform != "linux", reason="the check in a fork is that of Linux")
def test_no_corruption_kills_or_passes_the_checksum(one_thread: None) -> None:
    count = int(os.environ.get("M08_CORRUPTIONS", "2000"))
    damaged = damages(corrupt_pte.samples(), count)
    found = {}
    for way in corrupt_pte.WAYS:
        outcomes = trials(way, damaged)
        found[way] = Counter(outcomes)
        print(way, dict(found[way]))
        if way in ("child", "checksum"):
            dead = [str(d) for d, o in zip(damaged, outcomes, strict=True) if o == "killed"]
            assert not dead
    assert found["checksum"] == {"refused": count}
    assert found["raw"]["wrong"] > 2 * found["guarded"]["wrong"]
    assert found["guarded"]["killed"] <= found["raw"]["killed"]
    assert found["raw"]["killed"] > 0 or count < 1000, "or ExecuTorch has mended it"
