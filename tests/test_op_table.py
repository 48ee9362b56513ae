"""The op table: what stands on the page is what the installed quantizer and partitioner answer.

All rows take a minute and a half, so a run asks again for a fixed core and for a twelfth of the
rest, another one each day; `tools/make_op_table.py --check` asks for all.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
import torch

from common.executorch_utils import PteExecutionError, PteRunner, delegation_summary
from tests.programs import portable
from tools import make_op_table
from tools.make_op_table import HEADERS, Answer, Branches
from tools.op_rows import GROUPS, ROWS, Row

PAGE = make_op_table.PAGES[0].read_text("utf-8")
NAMED = {row.name: row for row in ROWS}

# One of each kind of answer.
CORE = (
    "Conv2d", "Conv3d", "Conv2d + ReLU6", "Linear", "x + y", "x + 1", "Sigmoid",
    "MaxPool2d, stride > kernel", "mean((2, 3))", "cumsum", "cat of 2", "chunk, split",
)  # fmt: skip

# Rules for which no other row gets another answer, each with the test that shows it.
SHOWN_BY_A_TEST = {"max(2).values": "test_an_accepted_op_that_does_not_lower"}


def todays() -> list[Row]:
    rest = [row for row in ROWS if row.name not in CORE]
    part = datetime.datetime.now(datetime.UTC).date().toordinal() % 12
    return [NAMED[name] for name in CORE] + rest[part::12]


@pytest.fixture(scope="module")
def stored() -> dict[str, list[str]]:
    """{op: its cells} as the page has them."""
    lines = [line for group in GROUPS for line in make_op_table.places(PAGE)[group].splitlines()]
    rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`")}


@pytest.fixture(scope="module")
def answers(one_thread: None) -> dict[str, Answer]:
    return make_op_table.ask(todays())


def test_the_page_has_every_row_in_its_place() -> None:
    places = make_op_table.places(PAGE)
    assert list(places) == [*GROUPS, "reasons"]
    assert len(NAMED) == len(ROWS), "two rows of one name"
    for group, rows in GROUPS.items():
        lines = places[group].splitlines()
        assert lines[0] == f"| {' | '.join(HEADERS)} |"
        named = [re.match(r"\| `(.+?)` \|", line) for line in lines[2:]]
        assert [found and found[1] for found in named] == [row.name for row in rows]


def test_answers_are_those_of_the_page(
    answers: dict[str, Answer], stored: dict[str, list[str]]
) -> None:
    found = {name: [*answer.cells(), NAMED[name].rule] for name, answer in answers.items()}
    assert found == {name: stored[name] for name in answers}, "run tools/make_op_table.py"


def test_reasons_are_those_of_the_page(answers: dict[str, Answer]) -> None:
    said: dict[str, set[str]] = {}
    for line in make_op_table.places(PAGE)["reasons"].splitlines()[2:]:
        reason, names = line.strip("| ").split(" | ")
        for name in re.findall(r"`(.+?)`", names):
            said.setdefault(name, set()).add(reason.strip("`"))
    for name, answer in answers.items():
        assert set(answer.reasons) == said.get(name, set()), name


@pytest.mark.parametrize("row", [row for row in ROWS if row.rule], ids=lambda row: row.name)
def test_rule_has_a_row_that_gets_another_answer(row: Row, stored: dict[str, list[str]]) -> None:
    if row.name in SHOWN_BY_A_TEST:
        assert SHOWN_BY_A_TEST[row.name] in globals()
        return
    assert stored[row.against][:4] != stored[row.name][:4]


def test_a_row_that_differs_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stored: dict[str, Any]
) -> None:
    """Without asking: the answers are read from the page, one of them with an error."""

    class FromPage(list):
        reasons = ()

        def cells(self) -> list[str]:
            return self[:4]

    made = {name: FromPage(cells) for name, cells in stored.items()}
    made["cumsum"][0] = "fp32"
    monkeypatch.setattr(make_op_table, "ask", lambda rows: made)
    monkeypatch.setattr("sys.argv", ["make_op_table.py", "--check"])
    assert make_op_table.main() == 1
    printed = capsys.readouterr().out
    assert "ops.md: | `cumsum` | fp32 | no |" in printed
    assert "`Conv2d`" not in printed
    assert make_op_table.PAGES[0].read_text("utf-8") == PAGE, "--check writes nothing"


# --- asking tells the truth: some rows are lowered


def test_a_lowered_program_agrees(
    one_thread: None, stored: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is outside, and what XNNPACK itself gets as int8 and as float32."""
    from executorch.backends.xnnpack import xnnpack_preprocess
    from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNDatatype

    from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq

    graphs = []
    serialize = xnnpack_preprocess.serialize_xnnpack_binary

    def keeping(graph: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.append(graph)
        return serialize(graph, *args, **kwargs)

    monkeypatch.setattr(xnnpack_preprocess, "serialize_xnnpack_binary", keeping)
    names = ["Conv2d + SiLU", "MaxPool2d", "mean((2, 3))", "max(2, keepdim=True).values"]
    assert [stored[name][2] for name in names] == [
        "**int8** + fp32", "**int8**", "outside: `mean`", "fp32",
    ]  # fmt: skip
    model = Branches([NAMED[name] for name in names])
    example = model.example()
    qdq = xnnpack_ptq(model, example, calibration=[example])
    edge, pte = lower_to_xnnpack(qdq, example)
    by_op = delegation_summary(edge).by_op
    outside = {op for op, (_, n) in by_op.items() if n} - {"getitem", "alloc"}
    assert outside == {"aten_mean_dim"}

    kinds: dict[str, set[str]] = {}
    for graph in graphs:
        values = {v.xvalue_union.id_out: v.xvalue_union for v in map(plain, graph.xvalues)}
        for node in (n.xnode_union for n in graph.xnodes):
            output = values[node.output_id]
            kinds.setdefault(type(node).__name__, set()).add(XNNDatatype(output.datatype).name)
    int8, fp32 = {"xnn_datatype_qint8"}, {"xnn_datatype_fp32"}
    assert kinds["XNNConv2d"] == int8
    assert kinds["XNNSigmoid"] == fp32
    assert kinds["XNNMaxPooling2d"] == int8 | fp32, "the pooling, and max(2), which becomes one"
    for got, want in zip(PteRunner(pte)(*example), qdq(*example), strict=True):
        assert torch.allclose(got, want, atol=0.02)


def plain(value: Any) -> Any:
    """A value of XNNPACK's graph; a quantized one wraps the plain one."""
    inner = getattr(value.xvalue_union, "tensor_value", None)
    if inner is not None:
        value.xvalue_union = inner
    return value


def test_an_accepted_op_that_does_not_lower(one_thread: None) -> None:
    """The partitioner takes every `max(dim)`, and the backend then refuses some."""
    from common.executorch_utils import lower_to_xnnpack

    example = (torch.rand(1, 4, 8, 8),)
    with pytest.raises(RuntimeError, match=r"amax\.default only supports keep_dim == True"):
        lower_to_xnnpack(NAMED["max(2).values"].make().eval(), example)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Conv3d", "3-D or 4-D, but got, 5"),
        ("pad, negative", "Padding values must be non-negative"),
    ],
)
def test_an_op_outside_that_fails_when_it_runs(name: str, said: str) -> None:
    row = NAMED[name]
    assert "outside it fails when it runs" in row.rule
    example = tuple(make_op_table.inputs_of(row))
    runner = PteRunner(portable(row.make().eval(), example))
    with pytest.raises(PteExecutionError, match=said):
        runner(*example)


# --- the prose


def test_numbers_and_claims_of_the_prose(stored: dict[str, list[str]]) -> None:
    from importlib.metadata import version

    assert f"ExecuTorch {version('executorch')}" in PAGE
    keep, without = stored["mean((2, 3), keepdim=True)"], stored["mean((2, 3))"]
    assert (keep[2], without[2]) == ("**int8**", "outside: `mean`")
    assert stored["x + 1"][0].endswith("outside: `_to_dim_order_copy`")
    assert stored["x + 1"][2] == "**int8**"
    assert stored["x + 1.0"][0] == "fp32"
    refused = ("Conv2d + ReLU", "Conv2d, depthwise", "Conv1d")
    assert {stored[name][3] for name in refused} == {"as fp32"}
    assert stored["Linear + ReLU"][3] == "**int8** + fp32"
