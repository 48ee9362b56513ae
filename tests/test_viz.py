"""Pictures: what they show, what they leave out, and what happens without a ``dot`` program."""

from __future__ import annotations

import base64
import copy
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import unicodedata
import xml.etree.ElementTree as ET
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from torch import fx, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from common import _dot
from common._text import em, wrap
from common.models import TinyConvNet, example_inputs
from common.viz import DotError, annotation_notes, draw, table
from tools.make_images import CumsumNet

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "golden"
QD = torch.ops.quantized_decomposed
ATEN = torch.ops.aten
CONV2D: Any = ATEN.conv2d.default  # set_operator_type asks for a packet, and compares overloads
LINEAR: Any = ATEN.linear.default
KEY = "quantization_annotation"
PER_CHANNEL = get_symmetric_quantization_config(is_per_channel=True)
posix_only = pytest.mark.skipif(os.name == "nt", reason="the fake dot is a shell script")


class AsAnnotated(Quantizer):
    """Keeps the annotations that are there: XNNPACKQuantizer takes 3 to 5 s each time."""

    def annotate(self, model):
        return model

    def validate(self, model):
        pass


def exported(model):
    return torch.export.export(model.eval(), example_inputs(1)).module()


def annotated(gm, chosen):
    gm = chosen.transform_for_annotation(gm)
    chosen.annotate(gm)
    return gm


def labels(gm):
    """Return what is asserted on an annotated graph, before preparing changes it."""
    marked = [n.name for n in gm.graph.nodes if n.op == "call_function" and KEY in n.meta]
    unlabeled = annotation_notes(gm, unlabeled=True)
    return SimpleNamespace(
        notes=annotation_notes(gm),
        unlabeled=unlabeled,
        marked=marked,
        picture=draw(gm, notes=unlabeled),
    )


@pytest.fixture(scope="module")
def course_labels():
    whole = XNNPACKQuantizer().set_global(PER_CHANNEL)
    return labels(annotated(exported(TinyConvNet()), whole))


@pytest.fixture(scope="module")
def qdq():
    torch.manual_seed(0)
    # prepare_pt2e folds the batch norms before it annotates, so this one annotates anew.
    gm = prepare_pt2e(exported(TinyConvNet()), XNNPACKQuantizer().set_global(PER_CHANNEL))
    gm(*example_inputs(1))
    return convert_pt2e(gm)


@pytest.fixture(scope="module")
def cumsum_model():
    torch.manual_seed(0)
    only = XNNPACKQuantizer().set_operator_type(CONV2D, PER_CHANNEL)
    gm = annotated(exported(CumsumNet()), only)
    seen = labels(gm)
    gm = prepare_pt2e(gm, AsAnnotated())
    seen.observed = draw(gm)
    gm(*example_inputs(1))
    seen.qdq = convert_pt2e(gm)
    return seen


@pytest.fixture(scope="module")
def qdq_drawing(qdq):
    return draw(qdq, title="Q/DQ")


@pytest.fixture(scope="module")
def edge(cumsum_model):
    program = torch.export.export(cumsum_model.qdq, example_inputs(1))
    return to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])


def hand_made():
    """Return a graph whose numbers are typed here, so that no machine changes them."""
    root = nn.Module()
    root.register_buffer("w", torch.zeros(4, 3, 3, 3, dtype=torch.int8))
    root.register_buffer("w_scale", torch.ones(4))
    root.register_buffer("w_zero_point", torch.zeros(4, dtype=torch.int64))
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1, 3, 16, 16, device="meta")
    w, s, z = (graph.create_node("get_attr", name) for name in ("w", "w_scale", "w_zero_point"))
    per_tensor = (0.012345678, -4, -128, 127, torch.int8)
    q = graph.call_function(QD.quantize_per_tensor.default, (x, *per_tensor))
    dq = graph.call_function(QD.dequantize_per_tensor.default, (q, *per_tensor))
    per_channel = (0, -127, 127, torch.int8)
    dqw = graph.call_function(QD.dequantize_per_channel.default, (w, s, z, *per_channel))
    conv = graph.call_function(ATEN.conv2d.default, (dq, dqw), name="conv2d")
    conv.meta["val"] = torch.empty(1, 4, 14, 14, device="meta")
    graph.output((graph.call_function(ATEN.relu.default, (conv,), name="relu"),))
    return fx.GraphModule(root, graph)


def chain(length):
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(torch.relu, (node,))
    graph.output(node)
    return fx.GraphModule(nn.Module(), graph)


class Images(HTMLParser):
    """Collects every tag of a piece of HTML with its attributes."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def html_of(shown):
    return shown._repr_mimebundle_()["text/html"]


def line_of(drawing, name):
    (line,) = [line for line in str(drawing).splitlines() if line.split()[0] == name]
    return line


def svg_root(drawing) -> ET.Element:
    assert drawing.svg is not None
    return ET.fromstring(drawing.svg)


def svg_texts(drawing) -> list[str]:
    texts = [element.text or "" for element in svg_root(drawing).findall(".//{*}text")]
    assert texts
    return texts


def number(element, name) -> float:
    return float(element.get(name))


# --- the whole picture -----------------------------------------------------------------------


def test_dot_source_is_as_stored():
    drawing = draw(
        hand_made(),
        notes={"conv2d": '第一層卷積\n"a" <b> & \\', "relu": "ReLU"},
        show_shapes=True,
        title="golden",
    )
    for name, text in (("viz_dot.txt", drawing.dot), ("viz_text.txt", f"{drawing}\n")):
        if os.environ.get("M08_UPDATE_GOLDEN") == "1":
            (GOLDEN / name).write_text(text, encoding="utf-8", newline="\n")
        assert text == (GOLDEN / name).read_text(encoding="utf-8"), (
            f"tests/golden/{name} differs; if the change is meant, run this test again with "
            "M08_UPDATE_GOLDEN=1 and look at the difference"
        )


def test_every_node_has_its_role(qdq, qdq_drawing):
    calls = [n for n in qdq.graph.nodes if n.op == "call_function"]
    names = Counter(str(n.target).split(".")[1].partition("_per_")[0] for n in calls)
    assert len(calls) == 42
    assert qdq_drawing.counts == {
        "input": 1,
        "quantize": names["quantize"],
        "dequantize": names["dequantize"],
        "op": len(calls) - names["quantize"] - names["dequantize"],
        "weight": 5 + 5,  # int8 weights and float biases of four convolutions and one linear
        "output": 1,
    }
    assert sum(qdq_drawing.counts.values()) == len(qdq_drawing.nodes) == 54


def test_text_and_alt_hold_the_counts_and_every_edge(qdq, qdq_drawing):
    wanted = "1 input, 11 quantize, 17 dequantize, 14 ops, 10 weights, 1 output"
    assert wanted in qdq_drawing.alt
    assert wanted in str(qdq_drawing)
    assert "54 nodes" in qdq_drawing.alt
    assert "conv2d, relu, max_pool2d, conv2d_1" in qdq_drawing.alt
    for node in qdq.graph.nodes:
        if node.name in qdq_drawing.nodes:
            drawn = [n.name for n in node.all_input_nodes if n.name in qdq_drawing.nodes]
            _, arrow, sources = line_of(qdq_drawing, node.name).partition("<- ")
            assert sources == ", ".join(drawn)
            assert bool(arrow) == bool(drawn)


def test_machinery_is_left_out(qdq, qdq_drawing):
    hidden = {n.name for n in qdq.graph.nodes} - set(qdq_drawing.nodes)
    # Five per-channel weights have a scale and a zero point each.
    assert "_guards_fn" in hidden
    assert {re.sub(r"_?\d+$", "", name) for name in hidden} == {
        "_guards_fn",
        "_scale",
        "_zero_point",
    }
    assert len(hidden) == 1 + 5 + 5
    assert not any("_guards_fn" in text or "_scale_" in text for text in svg_texts(qdq_drawing))


def test_labels_say_scale_zero_point_axis_and_dtype():
    drawing = draw(hand_made())
    texts = svg_texts(drawing)
    assert "s=0.0123 zp=-4" in texts
    assert "axis 0" in texts
    assert "weight i8" in texts
    assert {"q → i8", "dq → f32"} <= {re.sub(r"_ch|_\d+", "", text) for text in texts}


def test_shapes_are_those_of_the_tensors(qdq):
    drawing = draw(qdq, show_shapes=True)
    assert "f32[1,3,16,16]" in line_of(drawing, "x")
    assert "i8[1,3,16,16]" in line_of(drawing, "quantize_per_tensor_default")
    assert "f32[1,3,16,16]" in line_of(drawing, "dequantize_per_tensor_default")
    assert "i8[16,3,3,3]" in line_of(drawing, "quantize_per_channel_default")
    assert "f32[16,3,3,3]" in line_of(drawing, "dequantize_per_channel_default")
    for node in qdq.graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            sizes = ",".join(map(str, node.meta["val"].shape))
            assert f"f32[{sizes}]" in line_of(drawing, node.name)


def test_symbolic_sizes_keep_their_names():
    dims = ({0: torch.export.Dim("batch", max=8)},)
    program = torch.export.export(nn.Linear(4, 2), (torch.zeros(3, 4),), dynamic_shapes=dims)
    (x,) = [n for n in program.graph.nodes if n.name == "input"]
    symbol = str(x.meta["val"].shape[0])
    assert not symbol.isdigit()
    assert f"f32[{symbol},4]" in line_of(draw(program, show_shapes=True), "input")


def test_exported_program_parameters_are_weights_not_inputs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(2)
            self.c = torch.ones(2, 1, 1)

        def forward(self, x):
            return self.bn(x) + self.c

    drawing = draw(torch.export.export(Net().eval(), (torch.zeros(1, 2, 3, 3),)))
    # Two parameters, two running statistics and one lifted constant; the counter of batches
    # feeds nothing.
    assert drawing.counts == {"input": 1, "op": 2, "weight": 5, "output": 1}
    assert line_of(drawing, "p_bn_bias").split()[1:3] == ["weight", "bias"]
    assert "bn.running_mean" in line_of(drawing, "b_bn_running_mean")


def test_observers_of_a_prepared_graph(cumsum_model):
    # Input, ReLU, cumsum and output; the weights of two convolutions.
    assert cumsum_model.observed.counts["observer"] == 6
    texts = svg_texts(cumsum_model.observed)
    assert texts.count("HistogramObserver") == 4
    assert texts.count("PerChannelMinMaxObserver") == 2


# --- delegates -------------------------------------------------------------------------------


def test_delegates_fallback_and_plumbing(edge):
    drawing = draw(edge)
    assert drawing.counts == {
        "input": 1,
        "delegate": 2,
        "fallback": 1,
        "plumbing": 2,
        "output": 1,
    }
    assert not any("lowered_module" in name for name in drawing.nodes)
    module = edge.exported_program().graph_module.lowered_module_0
    inside = [n for n in module.original_module.graph.nodes if n.op == "call_function"]
    line = line_of(drawing, "executorch_call_delegate")
    assert f"delegate 0  {module.backend_id}  {len(inside)} ops inside" in line
    assert "1 aten_convolution_default" in line
    assert {"delegate 0", "delegate 1", "fallback", "aten_cumsum_default"} <= set(
        svg_texts(drawing)
    )
    assert "delegate 0, aten_cumsum_default (fallback), delegate 1" in drawing.alt


def test_all_forms_of_a_program_give_the_same_picture(edge):
    program = edge.exported_program()
    assert draw(program) == draw(edge)
    assert draw(program.graph_module).svg == draw(edge).svg
    assert draw(program.graph).svg == draw(edge).svg


def test_after_memory_planning_alloc_is_plumbing(edge):
    program = copy.deepcopy(edge).to_executorch()
    drawing = draw(program)
    assert "alloc" in drawing.nodes
    assert drawing.counts["plumbing"] == 3
    assert drawing.counts["fallback"] == 1


def test_without_a_delegate_nothing_is_a_fallback(qdq_drawing):
    assert "fallback" not in qdq_drawing.counts


# --- focus -----------------------------------------------------------------------------------


def test_focus_draws_the_nodes_within_so_many_hops(qdq):
    whole = draw(qdq)
    near = {"add"}
    neighbours = {n.name: {m.name for m in (*n.all_input_nodes, *n.users)} for n in qdq.graph.nodes}
    for hops in range(4):
        drawing = draw(qdq, focus="add", hops=hops)
        assert set(drawing.nodes) == near
        assert f"{len(near)} of {len(whole.nodes)} nodes" in drawing.alt
        near = near.union(*(neighbours[name] for name in near)) & set(whole.nodes)


def test_cut_edges_are_counted():
    drawing = draw(hand_made(), focus="conv2d", hops=0)
    assert drawing.nodes == ("conv2d",)
    assert "<- … 2" in line_of(drawing, "conv2d")
    assert "-> … 1" in line_of(drawing, "conv2d")
    assert sorted(svg_texts(drawing)) == ["conv2d", "…", "… 2"]


def test_several_focus_nodes(qdq):
    drawing = draw(qdq, focus=["conv2d", "linear"], hops=1)
    one = draw(qdq, focus="conv2d", hops=1).nodes
    other = draw(qdq, focus="linear", hops=1).nodes
    assert set(drawing.nodes) == set(one) | set(other)
    assert drawing.dot.count("penwidth=3") == 2


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"focus": "conv2"}, ValueError, "no node 'conv2'. Closest: conv2d"),
        ({"focus": "q_3"}, ValueError, "q_3 in the picture is quantize_per_tensor_default_3"),
        ({"focus": "zzzzzzzz"}, ValueError, "For example: conv2d"),
        ({"focus": "_guards_fn"}, ValueError, "machinery"),
        ({"focus": []}, ValueError, "focus is empty"),
        ({"focus": [3]}, TypeError, "node names"),
        ({"focus": "add", "hops": -1}, ValueError, "hops must be an integer of 0 or more, got -1"),
        ({"focus": "add", "hops": 1.5}, ValueError, "got 1.5"),
        ({"focus": "add", "hops": 60, "max_nodes": 20}, ValueError, "fewer hops"),
        ({"notes": {"conv2": "x"}}, ValueError, "notes: the graph has no node 'conv2'. Closest"),
        ({"notes": {"_guards_fn": "x"}}, ValueError, "machinery"),
        ({"notes": ["add"]}, TypeError, "must map node names to text"),
    ],
)
def test_refusals_say_what_to_do(qdq, arguments, error, words):
    with pytest.raises(error, match=re.escape(words)):
        draw(qdq, **arguments)


def test_what_is_no_graph_is_refused():
    with pytest.raises(TypeError, match="Linear"):
        draw(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(fx.Graph())


def test_a_large_graph_asks_for_a_focus():
    gm = chain(79)
    with pytest.raises(ValueError, match=r"81 nodes.*max_nodes=80.*focus.*For example: relu"):
        draw(gm)
    assert len(draw(gm, max_nodes=81).nodes) == 81
    assert len(draw(gm, focus="relu_40").nodes) == 5
    assert len(draw(chain(78)).nodes) == 80


# --- the bytes -------------------------------------------------------------------------------


PICTURE = dedent("""
    import sys, torch
    from torch import fx
    from common import viz

    def picture():
        graph = fx.Graph()
        x = graph.placeholder("x")
        root = torch.nn.Module()
        for i in range(6):
            root.register_buffer(f"w{i}", torch.zeros(3, 3, 1, 1))
            w = graph.create_node("get_attr", f"w{i}")
            conv = graph.call_function(torch.ops.aten.conv2d.default, (x, w))
            x = graph.call_function(torch.ops.aten.add.Tensor, (x, conv))
        graph.output((x, conv))
        notes = {"add_tensor": "註", "w0": "a", "conv2d_default": "b"}
        gm = fx.GraphModule(root, graph)
        drawing = viz.draw(gm, focus=["w0", "w5"], hops=4, notes=notes, title="t")
        return "\\n".join([drawing.dot, drawing.svg, drawing.alt, drawing.text])
""")


def test_same_bytes_in_another_process_and_no_executorch(tmp_path):
    script = tmp_path / "picture.py"
    last = dedent("""
        text = picture()
        assert not [m for m in sys.modules if m.split(".")[0] in ("executorch", "torchao")]
        sys.stdout.buffer.write(text.encode())
    """)
    script.write_text(PICTURE + last, encoding="utf-8")
    env = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script], env=env, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    here = {}
    exec(PICTURE, here)
    assert done.stdout.decode() == here["picture"]()
    assert b"<svg" in done.stdout


def test_svg_is_plain_xml_without_styles(qdq):
    drawing = draw(qdq, notes={"add": "<&>"}, show_shapes=True, title="t")
    root = svg_root(drawing)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for element in root.iter():
        assert element.tag.partition("}")[2] in {"svg", "g", "path", "text"}
        assert not {"style", "class", "id"} & set(element.attrib)
    background = next(iter(root))
    width, height = root.get("width"), root.get("height")
    assert background.attrib == {"fill": "#fff", "d": f"M0 0h{width}v{height}h-{width}z"}


def test_nothing_is_drawn_outside_the_picture(qdq):
    drawing = draw(qdq, notes={"add": "註" * 30}, title="a long title " * 8)
    root = svg_root(drawing)
    width, height = number(root, "width"), number(root, "height")
    assert width == drawing.width
    groups = root.findall("{*}g")
    assert {group.get("font-size") for group in groups} == {"13", "12", "10"}
    for group in groups:
        size = number(group, "font-size")
        for text in group.findall("{*}text"):
            half = sum(
                1.0 if unicodedata.east_asian_width(c) == "W" else 0.6 for c in text.text or ""
            ) * (size / 2)
            assert half <= number(text, "x") <= width - half
            assert size <= number(text, "y") <= height


def test_svg_is_small_enough_for_a_notebook(qdq):
    drawing = draw(qdq, show_shapes=True)
    assert drawing.svg is not None
    assert len(drawing.svg.encode()) < 14_000
    assert len(html_of(drawing)) < 20_000


def test_html_is_one_image_with_alt_and_width(qdq_drawing):
    bundle = qdq_drawing._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    ((tag, attributes),) = Images(bundle["text/html"]).tags
    assert tag == "img"
    assert set(attributes) == {"class", "alt", "width", "src"}
    assert attributes["alt"] == qdq_drawing.alt
    assert attributes["width"] == str(qdq_drawing.width)
    kind, _, data = attributes["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == qdq_drawing.svg
    assert bundle["text/plain"] == str(qdq_drawing)


def test_special_characters_arrive_as_typed():
    title, note = 'a "b" <c> & \\n', 'say "x" <y> & \\ é\n第二行\x07'
    drawing = draw(hand_made(), title=title, notes={"relu": note})
    texts = svg_texts(drawing)
    assert title in texts
    assert {'say "x" <y> & \\ é', "第二行\ufffd"} <= set(texts)
    ((_, attributes),) = Images(html_of(drawing)).tags
    assert attributes["alt"].startswith(f"{title}: ")
    assert '第二行\ufffd"' in drawing.dot


def test_wide_characters_get_the_room_they_need():
    def width(note):
        dot = draw(hand_made(), notes={"relu": note}).dot
        (found,) = re.findall(r'"relu" \[.* width=([\d.]+) ', dot)
        return float(found) * 72

    assert width("量" * 12) >= 12 * 10  # 10 px letters, 1 em each
    assert 0.55 * 120 < width("a" * 12) - 16 < 0.65 * 120
    assert width("量" * 200) < 220  # broken into lines


@pytest.mark.parametrize(
    "text",
    [
        "量化後的權重（每個輸出通道一個 scale）",
        "aten__native_batch_norm_legit_no_training_default",
        "x" * 50,
    ],
)
@pytest.mark.parametrize("limit", [4.2, 11.0])
def test_broken_lines_fit_and_lose_nothing(text, limit):
    lines = wrap(text, limit)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(em(line) <= limit for line in lines)
    assert not any(line.startswith("）") for line in lines)


def test_roles_differ_in_outline_not_only_in_colour(qdq_drawing, cumsum_model, edge):
    outlines = {}
    for drawing in (qdq_drawing, draw(edge), cumsum_model.observed):
        for line in drawing.dot.splitlines():
            if match := re.match(r'  "([^"]+)" \[.*? (shape=.+?) fillcolor', line):
                role = line_of(drawing, match[1]).split()[1]
                outlines.setdefault(role, set()).add(match[2])
    assert {len(kinds) for kinds in outlines.values()} == {1}
    assert len({next(iter(kinds)) for kinds in outlines.values()}) == len(outlines) == 9


def test_a_drawing_cannot_be_changed(qdq_drawing):
    with pytest.raises(dataclasses.FrozenInstanceError):
        qdq_drawing.svg = ""
    assert repr(qdq_drawing) == f"Drawing(54 nodes, svg {len(qdq_drawing.svg):,} characters)"


# --- dot programs ----------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Take away every dot program; returns a folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    bundled = shutil.which("graphviz-pure", path=sysconfig.get_path("scripts"))
    monkeypatch.delenv("M08_DOT", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(_dot.sysconfig, "get_path", lambda *_: str(tmp_path / "none"))
    return SimpleNamespace(folder=folder, bundled=bundled)


def put(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_without_dot_there_is_the_text_and_one_line_of_advice(bare):
    drawing = draw(hand_made(), title="a <b>")
    assert drawing.svg is None
    assert drawing.width == 0
    assert str(drawing).splitlines()[-1] == _dot.ADVICE
    assert "8 nodes" in str(drawing)
    assert [tag for tag, _ in Images(html_of(drawing)).tags] == ["pre"]
    assert "a &lt;b&gt;" in html_of(drawing)
    assert repr(drawing) == "Drawing(8 nodes, no picture)"


@posix_only
def test_a_system_dot_is_the_second_choice(bare):
    wanted = draw(hand_made())
    assert wanted.svg is None
    put(bare.folder / "dot", f'exec "{bare.bundled}" "$@"')
    assert draw(hand_made()).svg is not None
    put(bare.folder / "graphviz-pure", "exit 1")
    assert draw(hand_made()).svg is not None  # the first choice fails, the next one draws


@posix_only
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo out of order >&2; exit 3", "dot stopped with exit code 3: out of order"),
        ("echo hello", "dot answered with something that is not a layout"),
        ("echo '{}'", "not a layout"),
        ("exec /bin/sleep 5", "did not finish within"),
    ],
)
def test_a_dot_that_fails_leaves_the_text_with_the_reason(bare, monkeypatch, script, words):
    monkeypatch.setattr(_dot, "TIMEOUT_S", 0.5)
    put(bare.folder / "dot", script)
    drawing = draw(hand_made())
    assert drawing.svg is None
    assert words in str(drawing).splitlines()[-1]


@posix_only
def test_m08_dot_comes_first_and_its_failure_is_an_error(bare, monkeypatch, tmp_path):
    put(bare.folder / "dot", "exit 1")
    monkeypatch.setenv("M08_DOT", str(put(tmp_path / "mine", f'exec "{bare.bundled}" "$@"')))
    assert draw(hand_made()).svg is not None
    put(tmp_path / "mine", "exit 4")
    with pytest.raises(DotError, match="mine stopped with exit code 4"):
        draw(hand_made())


def test_m08_dot_that_is_no_program(monkeypatch):
    monkeypatch.setenv("M08_DOT", "no/such/dot")
    with pytest.raises(DotError, match=r"M08_DOT is set to 'no/such/dot'.*unset M08_DOT"):
        draw(hand_made())
    monkeypatch.delenv("M08_DOT")
    assert draw(hand_made()).svg is not None


# --- annotations -----------------------------------------------------------------------------


def test_annotations_of_the_course_model(course_labels):
    notes = course_labels.notes
    assert notes["conv2d"] == "in: i8 affine  w: i8 sym/ch0  fused to relu"
    assert notes["relu"] == "out: i8 affine  fused from conv2d"
    assert notes["max_pool2d"] == "shared with relu"
    assert notes["adaptive_avg_pool2d"] == "shared with relu_3"  # one spec names an edge
    assert notes["add"] == "in: i8 affine ×2  fused to relu_2"
    assert notes["linear"] == "in: i8 affine  w: i8 sym/ch0  bias: f32  out: i8 affine"
    assert list(notes) == course_labels.marked


def test_unlabeled_names_what_the_quantizer_left_alone(course_labels, cumsum_model):
    left = set(cumsum_model.unlabeled) - set(cumsum_model.notes)
    assert left == {"cumsum"}
    assert cumsum_model.unlabeled["cumsum"] == "not annotated"
    # The batch norm inside conv, batch norm, relu has no annotation and is quantized with them.
    within = course_labels.unlabeled["batch_norm"]
    assert within == "not annotated  inside conv2d … relu"


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"is_per_channel": False}, "in: i8 affine  w: i8 sym  bias: f32  out: i8 affine"),
        (
            {"is_per_channel": True, "is_dynamic": True, "weight_qmin": -8, "weight_qmax": 7},
            "in: i8 affine dyn  w: i8[-8..7] sym/ch0  bias: f32",
        ),
    ],
)
def test_other_configurations(config, note):
    gm = torch.export.export(nn.Linear(4, 4), (torch.zeros(1, 4),)).module()
    chosen = XNNPACKQuantizer().set_operator_type(
        LINEAR, get_symmetric_quantization_config(**config)
    )
    assert annotation_notes(annotated(gm, chosen)) == {"linear": note}


def test_notes_go_into_the_picture(course_labels):
    drawing, notes = course_labels.picture, course_labels.unlabeled
    for name, note in notes.items():
        assert line_of(drawing, name).endswith(f"| {note}")
    shown = " ".join(text.replace("\xa0", " ") for text in svg_texts(drawing))
    assert {word for note in notes.values() for word in note.split()} <= set(shown.split())


def test_a_graph_without_annotations_has_no_notes():
    assert annotation_notes(hand_made()) == {}
    assert annotation_notes(hand_made(), unlabeled=True) == {
        "conv2d": "not annotated",
        "relu": "not annotated",
    }


# --- tables ----------------------------------------------------------------------------------


def test_plain_table_is_aligned_with_wide_characters():
    shown = table([("量化", 12), ("a", 3.5), ("é", "1,024")], ["層", "bytes"], title="表")
    title, *lines = str(shown).splitlines()
    assert title == "表"

    def columns(text):
        return sum(2 if unicodedata.east_asian_width(c) == "W" else 1 for c in text)

    assert lines[1] == "----  -----"
    # A right-aligned last column ends every line in the same place.
    assert {columns(line) for line in lines} == {11}
    assert lines[2] == "量化     12"


def test_html_table_is_escaped_and_uses_no_style():
    html = html_of(table([("<b>&", 1), ('"q"', -2)], ["na<me", "n"], title="a & b"))
    root = ET.fromstring(html)
    assert root.attrib == {"class": "dataframe"}
    assert root.findtext("caption") == "a & b"
    assert [cell.text for cell in root.iter("th")] == ["na<me", "n"]
    assert [cell.text for cell in root.iter("td")] == ["<b>&", "1", '"q"', "-2"]
    assert [cell.get("align") for cell in root.iter("td")] == ["left", "right"] * 2
    assert "style" not in html


@pytest.mark.parametrize("cell", [1, 2.5, "1,024", "45 %", "2.8×", "-3 dB", "0.5 ms", "1e-05"])
def test_numbers_stand_right(cell):
    assert html_of(table([(cell,), ("",)], ["n"])).count('align="right"') == 3


@pytest.mark.parametrize("cell", ["conv2d", True, None, "1 of 2", "ET12", "x"])
def test_words_stand_left(cell):
    assert html_of(table([(cell,)], ["n"])).count('align="left"') == 2


def test_cells_are_shown_as_given():
    shown = table([{"b": 20880, "a": 0.1, "c": "left out"}], ("a", "b"))
    assert shown.rows == (("0.1", "20880"),)
    assert str(table([("x\ny",)], ["a"])).splitlines()[-1] == "x y"
    assert str(table([], ["a", "bc"])) == "a  bc\n-  --"
    assert set(shown._repr_mimebundle_()) == {"text/html", "text/plain"}


@pytest.mark.parametrize(
    ("rows", "headers", "error", "words"),
    [
        ([(1, 2), (1,)], ["a", "b"], ValueError, "row 1 has 1 cells, expected 2 (a, b)"),
        ([{"a": 1}, {"b": 1}], ["a"], ValueError, "row 1 has no 'a'; it has ['b']"),
        (["ab"], ["a", "b"], TypeError, "row 0 must be a sequence of cells or a dict, got str"),
        ([5], ["a"], TypeError, "row 0 must be a sequence of cells or a dict, got int"),
        ([], [], ValueError, "headers must be"),
        ([], "ab", ValueError, "headers must be"),
    ],
)
def test_bad_tables_name_the_row(rows, headers, error, words):
    with pytest.raises(error, match=re.escape(words)):
        table(rows, headers)


def test_a_table_cannot_be_changed():
    shown = table([(1,)], ["a"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(shown, "rows", ())  # noqa: B010 - a type checker refuses the plain assignment
