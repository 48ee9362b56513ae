"""Bounds of dynamic shapes: what is written, what is read, what damage leads to."""

from __future__ import annotations

import json
import random
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from common._pte_file import read_description
from common._shapes import PREFIX, TAG, Bounds, read_bounds, shapes_entry
from common.executorch_utils import PteError, PteFormatError, PteRunner, pte_contents
from tests.programs import Program, siblings


class Many(nn.Module):
    """Uses two vectors in ways that tie their sizes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if self.how == "add":
            return x + y
        if self.how == "product":
            return x.flatten() + y
        if self.how == "pairs":
            return torch.cat([x, y]).reshape(-1, 2)
        if self.how == "shorter":
            return x[: y.shape[0]] + y
        return x * 2, y.reshape(-1, 2), 3, None


def written(how: str, dynamic: Any, *sizes: tuple[int, ...]) -> dict[str, Any]:
    """What the entry for such a model says."""
    program = torch.export.export(
        Many(how), tuple(torch.zeros(s) for s in sizes), dynamic_shapes=dynamic
    )
    (text,) = shapes_entry(program).values()
    checksum, content = text.removeprefix(TAG).split(" ", 1)
    assert int(checksum, 16) == zlib.crc32(content.encode())
    found: dict[str, Any] = json.loads(content)
    return found


A, B = Dim("a", max=8), Dim("b", max=8)


def test_sizes_that_are_equal() -> None:
    assert written("add", ({0: A}, {0: A}), (4, 3), (4, 3)) == {
        "symbols": {"s0": [0, 0, 1, 0]},
        "inputs": [[[0, 8, "s0"], 3], [[0, 8, "s0"], 3]],
        "outputs": [[[0, 8], 3]],
        "guards": [],
    }


def test_sizes_that_are_derived() -> None:
    found = written("", ({0: A}, {0: 2 * A + 4}), (4,), (12,))
    assert found["inputs"][1] == [[4, 20, "4 + 2*s0"]]
    assert found["outputs"] == [[[0, 8]], [[2, 10], 2], None, None]
    only = written("", (None, {0: 2 * A}), (4,), (6,))
    assert only["symbols"] == {"s0": [1, 0, 2, 0]}
    assert only["inputs"] == [[4], [[0, 16, "2*s0"]]]


def test_a_size_that_is_a_product() -> None:
    auto = ({0: Dim.AUTO(max=8), 1: Dim.AUTO(max=5)}, {0: Dim.AUTO(max=40)})
    found = written("product", auto, (6, 4), (24,))
    assert found["inputs"][1][0][2] in ("s0*s1", "s1*s0")


@pytest.mark.parametrize(
    ("how", "good", "bad", "said"),
    [("pairs", (6, 4), (6, 3), "% 2"), ("shorter", (6, 4), (4, 6), "<=")],
)
def test_conditions_that_torch_export_relied_on(
    how: str, good: tuple[int, int], bad: tuple[int, int], said: str
) -> None:
    found = written(how, ({0: A}, {0: B}), (good[0],), (good[1],))
    assert len(found["guards"]) == 1
    bounds = bounds_of(found)
    labels = ("x", "y")
    assert bounds.find_problem([(n,) for n in good], labels) is None
    problem = bounds.find_problem([(n,) for n in bad], labels)
    assert problem is not None
    assert said in problem
    assert f"s0 = {bad[0]} is dimension 0 of x, s1 = {bad[1]} is dimension 0 of y" in problem
    shapes = bounds.sample()
    assert bounds.find_problem([shape or () for shape in shapes], labels) is None


def test_static_programs_have_no_entry(conv: Program, conv_dynamic: Program) -> None:
    assert shapes_entry(torch.export.export(Many("add"), (torch.zeros(3), torch.ones(3)))) == {}
    plans = {
        n: read_description(p.pte).execution_plan for n, p in (("s", conv), ("d", conv_dynamic))
    }
    assert [plan.name for plan in plans["s"]] == ["forward"]
    assert [plan.name for plan in plans["d"]] == ["forward", "__shapes_of_forward"]


def test_the_entry_is_a_method_that_other_tools_can_run(siblings_fp32: Program) -> None:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(siblings_fp32.pte).load_method("__shapes_of_forward")
    assert method is not None
    (text,) = method.execute([])
    assert text.startswith(TAG)
    assert siblings_fp32.edge.methods == {"forward"}


def test_the_entry_is_not_shown_as_a_method(siblings_fp32: Program) -> None:
    contents = pte_contents(siblings_fp32.pte)
    assert contents.methods == ("forward",)
    assert contents.inputs[0].minimum == (1, 2, 6)  # type: ignore[union-attr]
    assert "input 2: float32 (2…8, 3)" in str(contents)
    c = contents
    assert c.program + c.weights + sum(c.delegate_blobs) + c.padding == c.size
    for read in (PteRunner, pte_contents):
        with pytest.raises(ValueError, match=r"no method 'backward'; it has: forward$"):
            read(siblings_fp32.pte, method="backward")


def test_the_check_in_a_child_process(siblings_int8: Program) -> None:
    args, kwargs = siblings(2, 2)
    checked = PteRunner(siblings_int8.pte, isolated_check=True)
    plain = PteRunner(siblings_int8.pte)
    assert torch.equal(checked(*args, **kwargs)["sum"], plain(*args, **kwargs)["sum"])


# --- damage


def test_damage_to_the_entry_is_found_or_it_is_ignored(siblings_fp32: Program) -> None:
    pte = siblings_fp32.pte
    start = pte.index(TAG.encode())
    end = pte.index(b"\0", start)
    rng = random.Random(0)
    good = PteRunner(pte)
    refused = 0
    for at in [*range(start, start + 20), *rng.sample(range(start, end), 60)]:
        damaged = bytearray(pte)
        damaged[at] ^= 1 << rng.randrange(7)
        try:
            found = PteRunner(bytes(damaged))
        except PteError:
            refused += 1
        else:
            assert at < start + len(TAG)
            assert found.inputs[0] != good.inputs[0], "read as that of another tool"
    assert refused > 60


def bounds_of(content: Any) -> Bounds:
    """Read an entry beside a plan of the sizes that it says."""
    text = content if isinstance(content, str) else json.dumps(content)
    highs = [
        d and [n[1] if isinstance(n, list) else n for n in d]
        for part in ("inputs", "outputs")
        for d in (content[part] if isinstance(content, dict) else None) or ()
    ]
    values = [
        SimpleNamespace(val=SimpleNamespace(**({} if s is None else {"sizes": s}))) for s in highs
    ]
    n = len(content["inputs"] or ()) if isinstance(content, dict) else 0
    plan = SimpleNamespace(
        name="f", values=values, inputs=range(n), outputs=range(n, len(values)), delegates=[]
    )
    found = read_bounds(SimpleNamespace(execution_plan=[plan, entry(signed(text))]), plan)
    assert found is not None
    return found


def signed(content: str) -> str:
    return f"{TAG}{zlib.crc32(content.encode()):08x} {content}"


def entry(text: Any) -> Any:
    value = SimpleNamespace(val=SimpleNamespace(string_val=text))
    return SimpleNamespace(name=PREFIX + "f", values=[value], outputs=[0])


GOOD = {"symbols": {"s0": [0, 0, 1, 0]}, "inputs": [[[1, 8, "s0"]]], "outputs": [], "guards": []}

BAD: dict[str, Any] = {
    "no JSON": "{",
    "a list": [],
    "no inputs": {**GOOD, "inputs": None},
    "an unknown symbol": {**GOOD, "inputs": [[[1, 8, "s1"]]]},
    "a symbol of no input": {**GOOD, "symbols": {"s0": [1, 0, 1, 0]}},
    "a symbol of no dimension": {**GOOD, "symbols": {"s0": [0, 1, 1, 0]}},
    "a symbol of a negative place": {**GOOD, "symbols": {"s0": [-1, 0, 1, 0]}},
    "a symbol times 0": {**GOOD, "symbols": {"s0": [0, 0, 0, 0]}},
    "half a symbol": {**GOOD, "symbols": {"s0": [0, 0]}},
    "bounds the wrong way round": {**GOOD, "inputs": [[[9, 8, "s0"]]]},
    "a fraction": {**GOOD, "inputs": [[[0.5, 8]]]},
    "a text for a size": {**GOOD, "inputs": [["8"]]},
    "a power": {**GOOD, "guards": ["9**9**9**9"]},
    "a call": {**GOOD, "guards": ["open('x')"]},
    "an attribute": {**GOOD, "guards": ["s0.bit_length()"]},
    "a comprehension": {**GOOD, "guards": ["[s0 for s0 in s0]"]},
    "a float": {**GOOD, "guards": ["s0 < 1.5"]},
    "no expression": {**GOOD, "guards": ["s0 ="]},
    "deep": {**GOOD, "guards": ["(" * 3000 + "s0" + ")" * 3000]},
    "long": {**GOOD, "guards": ["s0" + "+s0" * 9000]},
    "no text": {**GOOD, "guards": [7]},
}


@pytest.mark.parametrize("kind", BAD)
def test_an_entry_that_makes_no_sense_is_refused(kind: str) -> None:
    bounds_of(GOOD)
    with pytest.raises(PteFormatError, match="its bounds of shapes cannot be used"):
        bounds_of(BAD[kind])


def test_an_entry_of_another_program_is_refused() -> None:
    tensor = SimpleNamespace(val=SimpleNamespace(sizes=[9]))
    plan = SimpleNamespace(name="f", values=[tensor], inputs=[0], outputs=[], delegates=[])
    program = SimpleNamespace(execution_plan=[plan, entry(signed(json.dumps(GOOD)))])
    with pytest.raises(PteFormatError, match=r"of a tensor of the sizes \[9\]"):
        read_bounds(program, plan)
    program.execution_plan.pop()
    assert read_bounds(program, plan) is None


@pytest.mark.parametrize("text", [None, 5, "", "shapes-2 later form", "something else"])
def test_an_entry_of_another_tool_is_ignored(text: Any) -> None:
    plan = SimpleNamespace(name="f")
    assert read_bounds(SimpleNamespace(execution_plan=[plan, entry(text)]), plan) is None
    other = SimpleNamespace(name=PREFIX + "f", values=[], outputs=[0])
    assert read_bounds(SimpleNamespace(execution_plan=[plan, other]), plan) is None
