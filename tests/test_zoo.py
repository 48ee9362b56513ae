"""The zoo: its page in the ordinary run, its models with `pytest -m zoo`.

The models take half an hour and want `uv sync --group zoo`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common._agreement import MARGIN_DB, TELLING_DB
from common._op_rows import ReportedOp
from common._source_line import SourceLine
from tools import zoo_page
from tools.zoo import PAGE, is_installed, unexpected
from tools.zoo_measure import Found, Left, grouped, measure
from tools.zoo_models import BY_NAME, ENTRIES, Entry
from tools.zoo_page import OUTSIDE, PROGRAMS, REFUSED

ROOT = Path(__file__).resolve().parent.parent
TABLES = zoo_page.tables(PAGE.read_text("utf-8"))
FOUND = Found(
    "U-Net", 1000, 1, 42, 2, (Left("mul", 2, "no rule for it", "a | b", "net.py:7"),),
    20_880, 45_968, 44.0, 31.0, 1, 1.0, 34.3, 137.0,
    {"export": 1.0, "quantize": 2.0, "lower": 3.0, "verify": 0.5},
)  # fmt: skip


def by_model(headers: tuple[str, ...]) -> dict[str, list[dict[str, str]]]:
    rows: dict[str, list[dict[str, str]]] = {}
    for row in TABLES[headers]:
        rows.setdefault(row["model"], []).append(row)
    return rows


# --- the page


def test_the_page_has_every_model() -> None:
    programs, refused = by_model(PROGRAMS), by_model(REFUSED)
    assert len(BY_NAME) == len(ENTRIES), "two models of one name"
    assert len(programs) >= 25
    assert [*programs, *(name for name in refused if name not in programs)] == sorted(
        BY_NAME, key=lambda name: (name not in programs, list(BY_NAME).index(name))
    )


def test_no_disagreement_on_the_page() -> None:
    for name, (row,) in by_model(PROGRAMS).items():
        assert not BY_NAME[name].refused, name
        if row["SQNR to Q/DQ"] != "equal" and row["max LSB"] not in ("0", "1"):
            assert float(row["SQNR to Q/DQ"]) >= float(row["at least"]), name
            assert float(row["at least"]) >= TELLING_DB, f"{name}: any program would pass"


def test_what_is_refused_on_the_page_is_expected() -> None:
    said = {(row["model"], row["what is refused"]): row["the sentence"] for row in TABLES[REFUSED]}
    kinds = {(e.name, kind): p for e in ENTRIES for kind, p in e.refusals() if p}
    assert list(said) == list(kinds)
    for key, pattern in kinds.items():
        assert re.search(pattern, said[key]), key


def test_a_program_that_is_far_from_fp32_has_a_note() -> None:
    poor = [n for n, (row,) in by_model(PROGRAMS).items() if float(row["SQNR to fp32"]) < 10]
    assert [name for name in poor if not BY_NAME[name].note] == []


def test_every_op_outside_has_a_line_and_a_reason() -> None:
    counts: dict[str, int] = {}
    for row in TABLES[OUTSIDE]:
        assert row["why"], row
        assert re.fullmatch(r"`.+`", row["line of the model"]), row
        assert re.fullmatch(r"[\w/]+\.py:\d+", row["where"]), row
        counts[row["model"]] = counts.get(row["model"], 0) + int(row["times"])
    outside = {name: int(row["ops outside"]) for name, (row,) in by_model(PROGRAMS).items()}
    assert counts == {name: n for name, n in outside.items() if n}


def test_the_lines_of_our_own_networks_stand_where_the_page_says() -> None:
    lines = (ROOT / "tools/zoo_networks.py").read_text("utf-8").splitlines()
    checked = 0
    for row in TABLES[OUTSIDE]:
        file, _, number = row["where"].partition(":")
        if file == "tools/zoo_networks.py":
            assert row["line of the model"].strip("`") == zoo_page._cut(
                lines[int(number) - 1].strip()
            )
            checked += 1
    assert checked


def test_the_table_can_be_read_again() -> None:
    page = f"# Title\n\n{zoo_page.markdown([FOUND])}"
    tables = zoo_page.tables(page)
    assert list(tables) == [PROGRAMS, OUTSIDE, REFUSED, zoo_page.NOTES]
    (row,) = tables[PROGRAMS]
    assert tuple(row.values()) == zoo_page.program(FOUND)
    assert row["int8 KB"] == "20.9"
    assert row["share"] == "45%"
    (row,) = tables[OUTSIDE]
    assert row["line of the model"] == "`a | b`"


# --- what is expected, and what is not


@pytest.mark.parametrize(
    ("refused", "expected", "fault"),
    [
        ("", "", ""),
        ("LoweringError: a dtype", "dtype", ""),
        ("LoweringError: a dtype", "", "refused, LoweringError: a dtype"),
        ("LoweringError: a dtype", "shape", "refused, LoweringError: a dtype"),
        ("", "dtype", "expected a refusal with 'dtype'"),
    ],
)
@pytest.mark.parametrize("kind", ["refused", "refused_fp32"])
def test_only_the_expected_sentence_is_right(
    kind: str, refused: str, expected: str, fault: str
) -> None:
    asked: dict[str, Any] = {kind: expected}
    said: dict[str, Any] = {kind: refused}
    faults = unexpected(replace(BY_NAME["U-Net"], **asked), replace(FOUND, **said))
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


def test_ops_are_counted_by_reason_and_line() -> None:
    line = SourceLine("net.py", 7, "y = x.cumsum(1)")
    one = ReportedOp(
        name="cumsum",
        op="cumsum",
        module="block",
        line=line,
        annotated=False,
        unmarked="",
        delegates=(),
        computes=(),
        outside=("cumsum",),
        why=("no rule",),
        advice=None,
    )
    inside = replace(one, delegates=(0,), computes=("int8",), outside=(), why=())
    nowhere = replace(one, line=None)
    assert grouped([one, inside, one, nowhere]) == (
        Left("cumsum", 2, "no rule", "y = x.cumsum(1)", "net.py:7"),
        Left("cumsum", 1, "no rule", "", "block"),
    )


# --- every model


@pytest.mark.zoo
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_model_does_what_the_page_says(entry: Entry, one_thread: None) -> None:
    if not is_installed(entry):
        pytest.skip(f"needs {entry.package}: uv sync --group zoo")
    found = measure(entry)
    assert not unexpected(entry, found)
    kinds = [row[2] for row in zoo_page.refusals(found)]
    assert kinds == [row["what is refused"] for row in by_model(REFUSED).get(entry.name, [])]
    if found.refused:
        return
    left = [dict(zip(OUTSIDE, row, strict=True)) for row in zoo_page.left(found)]
    assert left == by_model(OUTSIDE).get(entry.name, [])
    (stored,) = by_model(PROGRAMS)[entry.name]
    now = dict(zip(PROGRAMS, zoo_page.program(found), strict=True))
    for header in ("from", "int8", "parameters", "delegates", "nodes inside", "ops outside"):
        assert now[header] == stored[header], header
    for header in ("int8 KB", "fp32 KB"):
        assert number(now[header]) == pytest.approx(number(stored[header]), rel=0.01), header
    assert number(now["SQNR to fp32"]) == pytest.approx(number(stored["SQNR to fp32"]), abs=3)
    # Rounding borders fall otherwise on another processor, and what is nearly equal varies most:
    # so it need not be better than what rounding makes of the graph itself.
    rounding = number(stored["at least"]) + MARGIN_DB
    before, after = number(stored["SQNR to Q/DQ"]), number(now["SQNR to Q/DQ"])
    assert after > min(before - 6, rounding)


def number(cell: str) -> float:
    return float("inf") if cell in ("equal", "refused") else float(cell.replace(",", ""))
