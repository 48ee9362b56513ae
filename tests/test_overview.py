"""The overview page: its code runs, its numbers are measured again, its pictures are made again.

A number is checked by building the sentence or the row of the page from what is measured here.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from common.data import digits
from common.graph_utils import is_qdq, op_counts, short
from tests.notebook_rules import markdown_cells, read
from tests.programs import Program, image
from tools import make_images

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
PAGE = (FOLDER / "README.md").read_text("utf-8")
CODE: list[str] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)]+)\)")


def part(heading: str) -> str:
    """The text below the heading that contains the given words, up to the next one."""
    (found,) = re.findall(rf"^## [^\n]*{heading}[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return found


def rows(markdown: str) -> list[list[str]]:
    """Cells of the table in a text, without its head."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[2:]


@cache
def lessons() -> dict[str, str]:
    """{M08-2: its prose}, of the lessons that are there."""
    texts = {}
    for path in sorted(FOLDER.glob("M08-[1-9]_*.ipynb")):
        texts[path.stem[:5]] = "\n\n".join(cell.source for cell in markdown_cells(read(path)))
    return texts


# --- links, pictures, language


@pytest.mark.parametrize("target", sorted({target for _, target in LINK.findall(PAGE)}))
def test_link_leads_somewhere(target: str) -> None:
    path, _, anchor = target.partition("#")
    file = FOLDER / unquote(path)
    assert file.exists()
    if anchor:
        headings = re.findall(r"^#+ +(.+)$", file.read_text("utf-8"), re.M)
        slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert anchor in slugs


def test_lessons_that_are_there_are_linked_and_others_are_not() -> None:
    listed = {cells[0].strip("[")[:5]: cells[0].startswith("[") for cells in rows(part("四課"))}
    assert listed == {f"M08-{n}": f"M08-{n}" in lessons() for n in range(1, 5)}


def test_titles_and_minutes_are_those_of_the_lessons() -> None:
    for cells in rows(part("四課")):
        if not cells[0].startswith("["):
            continue
        ((title, target),) = LINK.findall(cells[0])
        text = lessons()[target[:5]]
        assert f"# {title}" in text.splitlines()
        run, reading = (re.findall(rf"{what}約 (\d+) 分鐘", text)[0] for what in ("執行", "閱讀"))
        assert cells[2] == f"執行 {run}，閱讀 {reading}"


def test_pictures_are_there_with_alt_texts() -> None:
    pictures = IMAGE.findall(PAGE)
    assert [target for _, target in pictures] == ["images/road.svg"]
    for alt, target in pictures:
        texts = ElementTree.parse(FOLDER / target).getroot().itertext()
        numbers = set(re.findall(r"(?<![\w-])\d[\d,]*", " ".join(texts)))
        assert numbers, "the picture shows figures"
        assert numbers <= set(re.findall(r"\d[\d,]*", alt)), "and the alt text tells them"


def test_road_is_what_the_tool_makes() -> None:
    assert (FOLDER / "images/road.svg").read_text("utf-8") == make_images.road()


def test_lowered_network_is_what_the_tool_makes(cumsum: Program) -> None:
    stored = (FOLDER / "images/lowered.svg").read_text("utf-8")
    assert stored == make_images.lowered(cumsum.edge)


def test_every_picture_has_its_maker() -> None:
    assert {path.stem for path in (FOLDER / "images").iterdir()} == set(make_images.IMAGES)


def test_road_is_readable_on_a_phone() -> None:
    svg = ElementTree.fromstring(make_images.road())
    width, height = (float(svg.get(side, "")) for side in ("width", "height"))
    assert width <= 390
    used = {name for element in svg.iter() for name in element.attrib}
    assert not used & {"style", "class"}, "viewers drop them"
    backdrop = svg.find("{*}rect")
    assert backdrop is not None
    assert [backdrop.get(a) for a in ("width", "height", "fill")] == [
        svg.get("width"), svg.get("height"), "#fff",
    ]  # fmt: skip
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        size, x, y = (float(text.get(name, "")) for name in ("font-size", "x", "y"))
        assert size >= 13
        wide = 0.61 * size * len(text.text or "")
        left = x - wide / 2 if text.get("text-anchor") == "middle" else x
        assert left >= 4, text.text
        assert left + wide <= width, text.text
        assert y <= height, text.text


# --- the raw API in one page


@dataclass(frozen=True)
class Road:
    """What the first code block of the page left behind."""

    names: dict[str, Any]
    printed: str
    saved: bytes
    observers: Counter[str]
    xnnpack: Any


@pytest.fixture(scope="module")
def road(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Road:
    """Run the code block of the page, and look at two things that it passes through."""
    from common.pt2e import quiet

    quiet()
    import executorch.backends.xnnpack.xnnpack_preprocess as preprocess
    import torchao.quantization.pt2e.quantize_pt2e as pt2e

    observers: Counter[str] = Counter()
    graphs = []
    convert, serialize = pt2e.convert_pt2e, preprocess.serialize_xnnpack_binary

    def counting(prepared: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        calls = [n for n in prepared.graph.nodes if n.op == "call_module"]
        modules = [prepared.get_submodule(str(n.target)) for n in calls if n.target != "_guards_fn"]
        observers.update(type(module).__name__ for module in modules)
        return convert(prepared, *args, **kwargs)

    def keeping(graph: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.append(graph)
        return serialize(graph, *args, **kwargs)

    code = CODE[0]
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(pt2e, "convert_pt2e", counting)
        patch.setattr(preprocess, "serialize_xnnpack_binary", keeping)
        patch.chdir(tmp_path_factory.mktemp("raw"))
        exec(compile(code, "notebooks/README.md", "exec"), names)
        saved = Path("tiny_int8.pte").read_bytes()
    (graph,) = graphs
    return Road(names, out.getvalue(), saved, observers, graph)


def test_code_of_the_page_needs_no_helper() -> None:
    assert set(re.findall(r"common\.\w+", "".join(CODE))) == {"common.data"}
    assert len("".join(CODE).splitlines()) <= 60


def test_code_that_records_the_time_of_each_op(
    road: Road, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (recording,) = CODE[1:]
    exec(compile(recording, "notebooks/README.md", "exec"), dict(road.names))
    printed = capsys.readouterr().out.splitlines()
    names = [line.rpartition(" ")[0] for line in printed]
    assert sum("Convolution" in name for name in names) == 4
    assert names[-1] == "Method::execute"
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in printed)


def test_code_of_the_page_makes_the_bytes_of_the_helpers(road: Road, course: Program) -> None:
    assert road.saved == road.names["pte"] == course.pte
    label = digits().test_labels[0]
    assert road.printed == f"20,880 B, label {label}, answer {label}\n"


def test_helpers_that_the_page_names_exist() -> None:
    from common import executorch_utils, layers, profiling, pt2e, timing

    named = {
        name for cells in rows(part("不用 helper")) for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert named == {"quiet", "xnnpack_ptq", "lower_to_xnnpack", "save_pte", "PteRunner"}
    (others,) = (text for text in part("不用 helper").splitlines() if text.startswith("要看裡面"))
    named |= set(re.findall(r"[用、] ?`(\w+)`", others))
    offered = {*executorch_utils.__all__, *pt2e.__all__}
    offered |= {*layers.__all__, *timing.__all__, *profiling.__all__}
    assert named <= offered
    hidden = len(pt2e._LOG_MESSAGES) + len(pt2e._WARNINGS)
    assert f"丟掉 {hidden} 種已知的雜訊訊息" in PAGE


def test_layout_of_the_opening(road: Road) -> None:
    from common.executorch_utils import PteRunner

    data, execute = digits(), road.names["method"].execute
    images = data.test_images.split(1)
    turned = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in images]
    assert all(torch.equal(x, y) for x, y in zip(images, turned, strict=True))
    runner = PteRunner(road.names["pte"])

    def right(answers: list[torch.Tensor]) -> int:
        return int((torch.cat(answers).argmax(1) == data.test_labels).sum())

    good, bad = right([execute([x])[0] for x in images]), right([execute([x])[0] for x in turned])
    # an image or two lies on the edge, and other processors observe other last bits
    assert abs(good - 215) <= 2
    assert abs(bad - 50) <= 2
    assert right([runner(x) for x in turned]) == good
    assert len(images) == 216
    assert "答對 215 張" in PAGE
    assert f"只答對 50 張。四個答案亂猜，也能猜對 {216 // 4} 張" in PAGE


# --- the words


def test_numbers_of_the_observers(road: Road) -> None:
    kinds = road.observers
    weights = kinds["PerChannelMinMaxObserver"]
    text = f"插入 {kinds.total()} 個：{kinds['HistogramObserver']} 個看資料，{weights} 個看權重"
    assert text in PAGE
    first = next(n for n in road.names["qdq"].graph.nodes if "quantize_per_tensor" in n.name)
    assert first.args[1:3] == (1 / 256, -128)
    assert "scale 1/256、zero point −128" in PAGE


def test_numbers_of_the_graphs(course: Program, cumsum: Program) -> None:
    from common.executorch_utils import delegation_summary, pte_contents

    nodes, coders = sizes(course.qdq)
    assert f"{nodes} 個節點裡有 {coders} 個是 q/dq" in PAGE
    tiny, split = delegation_summary(course.edge), delegation_summary(cumsum.edge)
    assert tiny.n_delegated == nodes
    assert f"{nodes} 個節點全在 {tiny.n_delegates} 個 delegate 裡" in PAGE
    assert {"adaptive_avg_pool2d", "flatten"} <= set(op_counts(course.qdq))
    assert {"aten_mean_dim", "aten_view_copy_default"} <= set(tiny.by_op)
    total, inside = sizes(cumsum.qdq)[0], split.n_delegated
    assert f"{total} 個節點有 {inside} 個在裡面，分成 {split.n_delegates} 個 delegate" in PAGE
    (operator,) = pte_contents(cumsum.pte).operators
    assert f"只需要一個：`{operator}`" in PAGE


def test_numbers_of_the_file(course: Program) -> None:
    from common.executorch_utils import memory_plan, pte_contents

    c, plan = pte_contents(course.pte), memory_plan(course.edge)
    parts = (
        f"{c.size:,} 位元組是：權重 {c.weights:,}，delegate {sum(c.delegate_blobs):,}，"
        f"程式 {c.program:,}，對齊 {c.padding:,}"
    )
    assert parts in PAGE
    into, out = (t.size for t in plan)
    assert into + out + 64 == c.arena
    assert (
        f"{c.size:,} 位元組的檔案要 {c.arena:,} 位元組：輸入 {into:,}，輸出 {out}，再加 64" in PAGE
    )
    assert course.pte[4:8] == b"ET12"


def test_numbers_of_the_road(course: Program) -> None:
    from common.executorch_utils import pte_contents

    drawn = make_images.road()
    nodes, coders = sizes(course.qdq)
    parameters = sum(p.numel() for p in course.model.parameters())
    arena = pte_contents(course.pte).arena
    for text in (
        f"{nodes} nodes, {coders} of them q/dq",
        f"{parameters:,} parameters",
        f"{len(course.pte):,} B, arena {arena:,} B",
        f"{course.model(*course.example).shape[1]} scores",
    ):
        assert f">{text}<" in drawn


def test_numbers_taken_from_a_lesson_stand_there() -> None:
    assert "45%，不是 25%" in part("四課")
    assert "45%，不是 25%" in lessons()["M08-2"]


def sizes(qdq: fx.GraphModule) -> tuple[int, int]:
    """Nodes that compute, and those of them that quantize or dequantize."""
    return sum(op_counts(qdq).values()), sum(map(is_qdq, qdq.graph.nodes))


# --- where q/dq go


def test_numbers_of_the_xnnpack_graph(road: Road) -> None:
    qdq = road.names["qdq"]
    before, (nodes, coders) = op_counts(qdq), sizes(qdq)
    after = Counter(type(node.xnode_union).__name__ for node in road.xnnpack.xnodes)
    limits = [node.output_min_max for node in road.xnnpack.xnodes if node.output_min_max]
    assert len(limits) == before["relu"], "each ReLU is a lower limit of an op"
    assert all(limit.output_min == 0 for limit in limits)
    moved, converted = after["XNNStaticTranspose"], after["XNNConvert"]
    clamps = after["XNNClamp"]
    expected = [
        ("q/dq，轉換", coders, converted),
        ("`relu`", before["relu"], clamps),
        ("其他運算", nodes - coders - before["relu"], after.total() - converted - moved - clamps),
        ("改變布局（layout）", 0, moved),
        ("合計", nodes, after.total()),
    ]
    assert rows(part("q/dq 去了哪裡")) == [[str(cell) for cell in row] for row in expected]
    edge = op_counts(road.names["edge"])
    assert edge == {"executorch_call_delegate": 1, "getitem": 1}
    assert f"頂層只剩 {sum(edge.values())} 個節點" in PAGE


# --- the last bit


class TwoLinear(nn.Module):
    """The same input, a layer with bias and one without: one file serves both."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.biased, self.plain = nn.Linear(64, 32), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.biased(x), self.plain(x)


class Chain(nn.Module):
    """16 convolutions with ReLU, He initialized; returns what comes out at three depths."""

    DEPTHS = (1, 4, 16)

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.convs = nn.ModuleList(
                nn.Conv2d(channels, 8, 3, padding=1) for channels in [3, *15 * [8]]
            )
            for weight in (p for p in self.parameters() if p.dim() == 4):
                nn.init.kaiming_normal_(weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = []
        for depth, conv in enumerate(self.convs, start=1):
            x = torch.relu(conv(x))
            if depth in self.DEPTHS:
                outputs.append(x)
        return tuple(outputs)


@dataclass(frozen=True)
class Quantizer:
    """One quantize node: scale and zero point."""

    scale: float
    zero: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The integers that it makes of x."""
        return ((x * (1 / self.scale)).round() + self.zero).clamp(-128, 127)


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer of a Q/DQ graph, with what stands around it."""

    convolves: bool
    into: Quantizer
    out: Quantizer
    weight: torch.Tensor
    s_w: torch.Tensor
    bias: torch.Tensor | None
    relu: bool

    @property
    def steps(self) -> torch.Tensor:
        """Bias in units of the accumulator, not rounded."""
        assert self.bias is not None
        return self.bias / (self.into.scale * self.s_w)

    @property
    def m(self) -> torch.Tensor:
        """Factor of the requantization, float32."""
        return torch.tensor(self.into.scale) * self.s_w / torch.tensor(self.out.scale)

    def __call__(self, x_q: torch.Tensor) -> torch.Tensor:
        """The layer by the formula of the page; integers in, integers out."""
        # float64 holds these sums of products exactly
        x, w = (x_q - self.into.zero).double(), self.weight.double()
        b_q = None if self.bias is None else self.steps.round().double()
        acc = F.conv2d(x, w, b_q, padding=1) if self.convolves else F.linear(x, w, b_q)
        m = self.m.view(-1, 1, 1) if self.convolves else self.m
        y_q = (acc.float() * m).round() + self.out.zero
        return y_q.clamp(self.out.zero if self.relu else -128, 127)


def layers(qdq: fx.GraphModule) -> list[Layer]:
    """The convolutions and linear layers in the order of the graph."""
    return [
        layer(qdq, node)
        for node in qdq.graph.nodes
        if node.op == "call_function" and short(node.target) in ("conv2d", "linear")
    ]


def layer(qdq: fx.GraphModule, node: Any) -> Layer:
    """Read one layer: dq nodes before it, perhaps a ReLU and then a q node behind it."""
    before, dq_weight, *bias = node.args[:3]
    behind = next(iter(node.users))
    relu = short(behind.target) == "relu"
    q = next(iter(behind.users)) if relu else behind
    return Layer(
        convolves=short(node.target) == "conv2d",
        into=Quantizer(*before.args[1:3]),
        out=Quantizer(*q.args[1:3]),
        weight=attribute(qdq, dq_weight.args[0]),
        s_w=attribute(qdq, dq_weight.args[1]),
        bias=attribute(qdq, bias[0]) if bias else None,
        relu=relu,
    )


def attribute(qdq: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The tensor that a get_attr node stands for."""
    assert node.op == "get_attr"
    module, _, name = str(node.target).rpartition(".")
    tensor: torch.Tensor = getattr(qdq.get_submodule(module), name)
    return tensor.detach()


def test_numbers_of_the_last_bit(one_thread: None) -> None:
    from common.executorch_utils import PteRunner, lower_to_xnnpack, xnnpack_ptq

    generator = torch.Generator().manual_seed(0)
    example = (torch.randn(1000, 64, generator=generator),)
    inputs = torch.randn(4000, 64, generator=generator).split(1000)
    qdq = xnnpack_ptq(TwoLinear().eval(), example, calibration=[example])
    runner = PteRunner(lower_to_xnnpack(qdq, example).pte)
    with torch.no_grad():
        real, simulated = ([f(x) for x in inputs] for f in (runner, qdq))
    both, found = layers(qdq), []
    for i, one in enumerate(both):
        pte, graph = (one.out(torch.cat([y[i] for y in ys])) for ys in (real, simulated))
        formula = torch.cat([one(one.into(x)) for x in inputs])
        assert torch.equal(formula, pte), "the page's formula is what the file computes"
        off = (pte - graph).abs()
        assert off.max() <= 1
        found.append(int(off.sum()))
        assert pte.numel() == 128_000
    stated = [int(cells[1]) for cells in rows(part("最後一個位元"))[:3]]
    # the graph's own float32 sums differ in the last bit from processor to processor
    assert stated[0] == 0
    assert abs(found[0] - stated[1]) <= 6
    assert abs(found[1] - stated[2]) <= 4
    moved = (both[0].steps - both[0].steps.round()).abs()
    assert abs(moved.mean() - 1 / 4) < 0.02
    expected = (moved * both[0].m).mean().item() * 128_000
    assert f"應該有 {expected:.0f} 個輸出落到另一格，量到 {stated[1]} 個" in PAGE


def test_formula_is_what_a_convolution_computes(conv_int8: Program) -> None:
    from common.executorch_utils import PteRunner

    (one,) = layers(conv_int8.qdq)
    assert one.relu
    runner, inputs = PteRunner(conv_int8.pte), [image(seed) for seed in range(50)]
    assert torch.equal(
        one(one.into(torch.cat(inputs))), one.out(torch.cat(list(map(runner, inputs))))
    )


def test_numbers_of_the_depths(one_thread: None) -> None:
    from common.executorch_utils import xnnpack_ptq

    table = [cells for cells in rows(part("最後一個位元")) if cells[0].isdigit()]
    stated = {int(depth): [int(cell) for cell in cells] for depth, *cells in table}
    assert tuple(stated) == Chain.DEPTHS
    for seed in range(3):
        generator = torch.Generator().manual_seed(100)
        images = torch.randn(32, 3, 16, 16, generator=generator)
        calibration = [(x,) for x in images[:16].split(1)]
        qdq = xnnpack_ptq(Chain(seed).eval(), calibration[0], calibration=calibration)
        with torch.no_grad():
            outputs = [qdq(x) for x in images[16:].split(1)]
        chain = layers(qdq)
        x_q = chain[0].into(images[16:])
        for depth, one in enumerate(chain, start=1):
            x_q = one(x_q)
            if depth in stated:
                i = Chain.DEPTHS.index(depth)
                graph = one.out(torch.cat([values[i] for values in outputs]))
                worst, said = int((x_q - graph).abs().max()), stated[depth][seed]
                assert abs(worst - said) <= (0 if depth == 1 else max(1, said // 3))


# --- bias


def test_numbers_of_the_bias(road: Road) -> None:
    *_, last = layers(road.names["qdq"])
    assert last.bias is not None
    assert last.bias.dtype == torch.float32
    units = last.into.scale * last.s_w
    table = [
        [f"{b:.6f}", f"{unit * 1e5:.3f}", f"{steps:.2f}", f"{steps:.0f}"]
        for b, unit, steps in zip(
            last.bias.tolist(), units.tolist(), last.steps.tolist(), strict=True
        )
    ]
    assert [[c.replace("−", "-") for c in cells] for cells in rows(part("bias$"))] == table
    stored = last.steps.round().to(torch.int32).numpy().astype("<i4").tobytes()
    assert len(stored) == 16
    assert stored in road.names["pte"], "the four integers lie in the file"
    half = (units / 2).mean().item()
    assert f"約 {half:.6f}；輸出的一格是 {last.out.scale:.4f}，大一千多倍" in PAGE
    assert 1000 < last.out.scale / half < 2000
