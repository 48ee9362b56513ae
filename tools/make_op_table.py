"""Ask the installed quantizer and partitioner about many ops: the tables in notebooks/ops.md.

uv run python tools/make_op_table.py            # write the tables (about 1.5 minutes)
uv run python tools/make_op_table.py --check    # only compare; exit code 1 if a row differs

Each op gets the product of two inputs, which the quantizer always takes: in the quantized program
its input is int8, as in the middle of a network. All ops are branches of one model, so the fp32,
the static and the dynamic program are exported and partitioned once each; nothing is lowered.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from common._support import Partitioned, partition
from common.executorch_utils import xnnpack_ptq
from common.graph_utils import is_qdq
from common.pt2e import export_graph, get_xnnpack_quantizer
from tools.op_rows import GROUPS, ROWS, Row, Shape

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
PAGES = (FOLDER / "ops.md", FOLDER / "en" / "ops.md")
HEADERS = ("op", "fp32", "quantizer", "static int8", "dynamic int8", "constraint")

_PLACE = re.compile(r"<!-- table: (\w+) -->\n(.*?)\n?<!-- end -->", re.DOTALL)

AT_A_TIME = 30  # the quantizer's time grows faster than the number of branches


class Branches(nn.Module):
    """All rows as branches of one model, behind the products of its inputs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self.own = rows
        self._slots = sorted({slot for row in rows for slot in slots(row)})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.rows = nn.ModuleList(row.make() for row in rows)
        self.eval()

    def example(self) -> tuple[torch.Tensor, ...]:
        """One input for each shape, twice where an op takes two of them."""
        generator = torch.Generator().manual_seed(0)
        return tuple(
            torch.rand(shape, generator=generator) + 0.1 if shape else torch.tensor([[1, 2]])
            for shape, _ in self._slots
        )

    def forward(self, *inputs: torch.Tensor) -> list[Any]:
        """Return one output, or several, for each row."""
        fronts = {
            slot: x * x if x.is_floating_point() else x
            for slot, x in zip(self._slots, inputs, strict=True)
        }
        return [
            module(*(fronts[slot] for slot in slots(row)))
            for row, module in zip(self.own, self.rows, strict=True)
        ]


def slots(row: Row) -> list[tuple[Shape, int]]:
    """Which inputs of the model a row gets: (shape, how many of this shape came before)."""
    return [(shape, row.inputs[:i].count(shape)) for i, shape in enumerate(row.inputs)]


# --- what came out


class Ops(NamedTuple):
    """The ops that a row became, by where they are computed."""

    int8: tuple[str, ...]
    fp32: tuple[str, ...]
    outside: tuple[str, ...]

    def __str__(self) -> str:
        inside = " + ".join(["**int8**"] * bool(self.int8) + ["fp32"] * bool(self.fp32))
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(self.outside))
        return "; ".join([inside] * bool(inside) + [f"outside: {names}"] * bool(names)) or "nothing"


class Answer(NamedTuple):
    """What quantizer and partitioner said of a row.

    Attributes:
        fp32, static, dynamic: where the ops went; no ``dynamic`` where that quantizer left the
            row alone.
        annotated: whether the static quantizer took it.
        reasons: the partitioner's words.
    """

    fp32: Ops
    annotated: bool
    static: Ops
    dynamic: Ops | None
    reasons: tuple[str, ...]

    def cells(self) -> tuple[str, str, str, str]:
        """The four middle cells of the table."""
        dynamic = "as fp32" if self.dynamic is None else str(self.dynamic)
        return str(self.fp32), "yes" if self.annotated else "no", str(self.static), dynamic


def ask(rows: Sequence[Row]) -> dict[str, Answer]:
    """Ask the installed quantizer and partitioner about these rows."""
    answers: dict[str, Answer] = {}
    for i in range(0, len(rows), AT_A_TIME):
        answers |= _ask(rows[i : i + AT_A_TIME])
    return answers


def _ask(rows: Sequence[Row]) -> dict[str, Answer]:
    from torchao.quantization.pt2e import quantize_pt2e

    model = Branches(rows)
    example = model.example()
    dynamically = Branches([row for row, yes in zip(rows, annotated(model), strict=True) if yes])
    floats = partition(torch.export.export(model, example))
    # For a BatchNorm that stands alone, convert_pt2e exports 96 patterns of training, for a minute.
    with mock.patch.object(quantize_pt2e, "_fold_conv_bn_qat", _unchanged):
        qdq = xnnpack_ptq(model, example, calibration=[example])
    static = partition(torch.export.export(qdq, example))
    found = [read(floats, rows), read(static, rows)]
    if dynamically.rows:
        few = dynamically.example()
        qdq = xnnpack_ptq(dynamically, few, is_dynamic=True)
        found.append(read(partition(torch.export.export(qdq, few)), dynamically.own))
    answers = {}
    for row in rows:
        parts = [program[row.name] for program in found if row.name in program]
        reasons = dict.fromkeys(reason for part in parts for reason in part.reasons)
        answers[row.name] = Answer(
            parts[0].ops,
            parts[1].annotated,
            parts[1].ops,
            parts[2].ops if len(parts) > 2 else None,
            tuple(reasons),
        )
    return answers


def _unchanged(graph: fx.GraphModule) -> fx.GraphModule:
    return graph


def annotated(model: Branches) -> list[bool]:
    """Tell for each row whether the dynamic quantizer takes a node of it."""
    quantizer, _ = get_xnnpack_quantizer(is_dynamic=True)
    quantizer.SUPPORTED_PATTERNS = [p for p in quantizer.SUPPORTED_PATTERNS if not p.is_qat]
    graph = export_graph(model, model.example())
    quantizer.annotate(quantizer.transform_for_annotation(graph))
    taken = {
        row_number(node)
        for node in graph.graph.nodes
        if getattr(node.meta.get("quantization_annotation"), "_annotated", False)
    }
    return [i in taken for i in range(len(model.rows))]


class Part(NamedTuple):
    """What one program says of a row."""

    ops: Ops
    annotated: bool
    reasons: tuple[str, ...]


def read(asked: Partitioned, rows: Sequence[Row]) -> dict[str, Part]:
    """Sort the nodes of a partitioned program of `Branches` by row."""
    (output,) = [n for n in asked.program.graph.nodes if n.op == "output"]
    flat, front = list(output.args[0]), fronts(asked.program)
    parts = {}
    for i, row in enumerate(rows):
        count = len(pytree.tree_leaves(row.make().eval()(*inputs_of(row))))
        ends, flat = flat[:count], flat[count:]
        nodes = [n for n in ancestors(ends) if n not in front]
        names = {n.name for n in nodes}
        reasons = [
            refusal.reason
            for refusal in asked.refusals
            if refusal.node.name in names or row_number(refusal.node) == i
        ]
        parts[row.name] = Part(
            sort_ops(nodes, asked.taken), any(map(is_qdq, nodes)), tuple(dict.fromkeys(reasons))
        )
    assert not flat, "each output belongs to a row"
    return parts


def inputs_of(row: Row) -> list[torch.Tensor]:
    """Inputs for the row's module alone."""
    return [torch.rand(shape) + 0.1 if shape else torch.tensor([[1, 2]]) for shape in row.inputs]


def fronts(program: torch.export.ExportedProgram) -> set[fx.Node]:
    """The multiplications before the ops, with the q/dq nodes around them."""
    names, passed = set(program.graph_signature.user_inputs), dict[fx.Node, bool]()
    for node in program.graph.nodes:
        before = node.all_input_nodes
        if node.op == "placeholder" and node.name in names:
            passed[node] = False
        elif is_qdq(node) and before[0] in passed:
            passed[node] = passed[before[0]]
        elif op_name(node) == "mul" and all(passed.get(n) is False for n in before):
            passed[node] = True
    return set(passed)


def ancestors(ends: Sequence[fx.Node]) -> list[fx.Node]:
    """The call_function nodes from which these are computed, themselves included."""
    found: dict[fx.Node, None] = {}
    waiting = [node for node in ends if isinstance(node, fx.Node)]
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and node not in found:
            found[node] = None
            waiting += node.all_input_nodes
    return sorted(found, key=list(ends[0].graph.nodes).index)


def sort_ops(nodes: Sequence[fx.Node], taken: frozenset[str]) -> Ops:
    """Sort the nodes of a row by where they are computed."""
    int8, fp32, outside = list[str](), list[str](), list[str]()
    quantized = set[fx.Node]()
    for node in nodes:
        name = op_name(node)
        if node.name not in taken:
            outside += [name] * (name != "getitem")
        elif is_qdq(node) or name in ("getitem", "choose_qparams"):
            continue
        elif is_int8(node, quantized):
            quantized.add(node)
            int8.append(name)
        else:
            fp32.append(name)
    return Ops(tuple(int8), tuple(fp32), tuple(outside))


def is_int8(node: fx.Node, before: set[fx.Node]) -> bool:
    """Tell whether XNNPACK gets this node of a delegate as an int8 op.

    A convolution or linear layer does when its weight is dequantized, any other when it stands
    between dq and q nodes; an activation between the two is fused.
    """
    if op_name(node) in ("convolution", "linear"):
        return is_qdq(node.all_input_nodes[1])
    values = [n for n in node.all_input_nodes if n.op == "call_function"]
    if not all(is_qdq(n) or n in before for n in values) or len(node.users) != 1:
        return False
    (user,) = node.users
    if op_name(user) in ("relu", "hardtanh") and len(user.users) == 1:
        (user,) = user.users
    return is_qdq(user)


def op_name(node: fx.Node) -> str:
    """The op without dialect and overload: ``aten.mean.dim`` is ``mean``."""
    name = str(getattr(node.target, "__name__", node.target))
    return name.split(".")[-2] if "." in name else name


def row_number(node: fx.Node) -> int | None:
    """The row in whose module a node was traced, if the graph still tells."""
    stack = node.meta.get("nn_module_stack") or {}
    numbers = [re.search(r"\brows\.(\d+)", str(path)) for path, _ in stack.values()]
    return next((int(found[1]) for found in numbers if found), None)


# --- the page


def tables(answers: dict[str, Answer]) -> dict[str, str]:
    """Return the Markdown tables of the page, by the name of their place."""
    made = {}
    for group, rows in GROUPS.items():
        cells = [[f"`{row.name}`", *answers[row.name].cells(), row.rule] for row in rows]
        made[group] = markdown(HEADERS, cells)
    said: dict[str, list[str]] = {}
    for row in ROWS:
        for reason in answers[row.name].reasons:
            said.setdefault(reason, []).append(f"`{row.name}`")
    lines = [[f"`{reason}`", ", ".join(names)] for reason, names in sorted(said.items())]
    return {**made, "reasons": markdown(("reason", "op"), lines)}


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def places(page: str) -> dict[str, str]:
    """Return what stands between the markers of a page, by name."""
    return dict(re.findall(_PLACE.pattern, page, re.DOTALL))


def filled(page: str, made: dict[str, str]) -> str:
    """Return the page with these tables between its markers."""
    return _PLACE.sub(
        lambda place: f"<!-- table: {place[1]} -->\n{made[place[1]]}\n<!-- end -->", page
    )


def main() -> int:
    """Write or compare the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a row differs")
    check = parser.parse_args().check
    made, wrong = tables(ask(ROWS)), 0
    for path in filter(Path.exists, PAGES):
        page = path.read_text("utf-8")
        new = filled(page, made)
        for line in sorted(set(new.splitlines()) - set(page.splitlines())):
            print(f"{path.parent.name}/{path.name}: {line}")
        wrong += new != page
        if not check:
            path.write_text(new, "utf-8", newline="\n")
    return int(check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
