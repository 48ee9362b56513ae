"""The report: what it says is held against the source, the files, and runs of one's own."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import fx, nn

from common import _report_run, inspection
from common import report as module
from common._lowering import Lowered
from common._measured import labelled_batches
from common._op_rows import STOPS
from common._signature import Inputs
from common._support import NO_RULE
from common.data import digits, trained_tiny_net
from common.executorch_utils import (
    LoweringError,
    PteRunner,
    VerificationError,
    xnnpack_ptq,
)
from common.graph_utils import is_qdq
from common.inspection import inspect_pte
from common.metrics import sqnr_db
from common.models import example_inputs
from common.report import Failure, Report, main, report
from tests.programs import ConvRelu, Program, image

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")
IMAGES, LABELS = digits().test_images[:64], digits().test_labels[:64]


class Broken(nn.Module):
    """Runs, and has one of each problem."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn = nn.BatchNorm2d(8)
            self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
            self.act = nn.Hardswish()
            self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv1(x)))
        x = x.cumsum(1)
        return self.head(x)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.act(self.conv2(x)).chunk(2, 1)
        x = torch.cat([b, a], 1)
        x = x.mean((2, 3))
        return self.fc(x)


def there(part: T | Failure) -> T:
    """A part that has not failed."""
    assert not isinstance(part, Failure), part
    return part


def line_with(text: str) -> int:
    """Number of the line of `Broken` that holds a text, from its source."""
    code, first = inspect.getsourcelines(Broken)
    (number,) = (i for i, line in enumerate(code, start=first) if text in line)
    return number


def quantized_and_lowered(patch: pytest.MonkeyPatch, int8: Program, fp32: Program) -> None:
    """Let `report` find a model quantized and lowered."""
    lowered = {True: Lowered(int8.edge, int8.pte), False: Lowered(fp32.edge, fp32.pte)}
    patch.setattr(_report_run, "xnnpack_ptq", lambda *args, **kwargs: int8.qdq)
    patch.setattr(
        _report_run, "lower_to_xnnpack", lambda gm, *args, **kwargs: lowered[gm is int8.qdq]
    )


@pytest.fixture(scope="session")
def tiny(course: Program, course_fp32: Program) -> Report:
    """The course model: nothing to find."""
    with pytest.MonkeyPatch.context() as patch:
        quantized_and_lowered(patch, course, course_fp32)
        return report(course.model, course.example, labelled=(IMAGES, LABELS))


@dataclass
class Done:
    """What a report has called."""

    exported: list[Any] = field(default_factory=list)
    lowered: list[Any] = field(default_factory=list)
    partitioned: list[Any] = field(default_factory=list)


@pytest.fixture(scope="session")
def broken_and_done(one_thread: None) -> tuple[Report, Done]:
    """The report on `Broken`, every step of it real, and its steps counted."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    done = Done()

    def counted(owner: Any, name: str, calls: list[Any], which: int = 0) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(args[which])
            return original(*args, **kwargs)

        patch.setattr(owner, name, call)

    with pytest.MonkeyPatch.context() as patch:
        counted(torch.export, "export", done.exported)
        counted(_report_run, "lower_to_xnnpack", done.lowered)
        counted(XnnpackPartitioner, "partition", done.partitioned, which=1)
        return report(Broken().eval(), example_inputs(1), measure=False), done


@pytest.fixture(scope="session")
def broken(broken_and_done: tuple[Report, Done]) -> Report:
    return broken_and_done[0]


def layer() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model of `shortcut`."""
    return ConvRelu().eval(), (image(),)


@pytest.fixture
def shortcut(conv: Program, conv_int8: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `report` find `layer` quantized and lowered."""
    quantized_and_lowered(monkeypatch, conv_int8, conv)


# --- each op


def test_every_op_outside_is_named_with_its_line(broken: Report) -> None:
    assert not isinstance(broken.int8, Failure)
    expected = {
        "cumsum": ("x = x.cumsum(1)", {"cumsum"}),
        "chunk": (".chunk(2, 1)", {"split_with_sizes_copy"}),
        "mean": ("x = x.mean((2, 3))", {"mean"}),
    }
    assert {op.op for op in broken.outside} == set(expected)
    for op in broken.outside:
        text, kernels = expected[op.op]
        assert op.line is not None
        assert (op.line.file.rsplit("/")[-1], op.line.number) == (
            Path(__file__).name,
            line_with(text),
        )
        assert text in op.line.code
        assert set(op.outside) == kernels
        assert op.why
        assert op.advice is not None
    # the file itself: what its kernels are, without a graph
    kernels = Counter(
        operator.name.removeprefix("aten::").split(".")[0]
        for method in inspect_pte(broken.int8.pte).methods
        for operator in method.operators
        for _ in range(operator.calls)
    )
    assert kernels == Counter(kernel for op in broken.outside for kernel in op.outside)
    reasons = {op.op: op.why for op in broken.outside}
    assert reasons["mean"] == ("mean.dim only supports keepdim=True",)
    assert reasons["cumsum"] == ("XNNPACK's partitioner has no rule for it",)


def test_lines_inside_of_other_functions_and_modules(broken: Report) -> None:
    lines = {op.name: op.line.number for op in there(broken.ops) if op.line}
    assert lines["conv2d"] == lines["batch_norm"] == lines["relu"] == line_with("torch.relu")
    assert lines["conv2d_1"] == lines["hardswish"] == line_with(".chunk(2, 1)")
    assert lines["linear"] == line_with("self.fc(x)")
    assert {op.name: op.module for op in there(broken.ops)}["conv2d_1"] == "conv2"


KINDS = {
    "conv2d": "Conv2d", "linear": "FullyConnected", "hardswish": "Hardswish", "add": "Add",
    "max_pool2d": "MaxPooling2d", "adaptive_avg_pool2d": "GlobalAvgPooling2d",
    "cat": "Concatenate2",
}  # fmt: skip


@pytest.mark.parametrize("name", ["tiny", "broken"])
def test_int8_or_float32_as_in_xnnpacks_own_graph(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Report = request.getfixturevalue(name)
    assert not isinstance(found.int8, Failure)
    in_file = Counter(
        (number, node.kind, node.outputs[0].dtype)
        for method in inspect_pte(found.int8.pte).methods
        for number, delegate in enumerate(method.delegates)
        for node in (delegate.graph.nodes if delegate.graph else ())
        if node.kind in KINDS.values() or node.kind == "HardSwish"
    )
    in_report = Counter(
        (delegate, KINDS[op.op], computes)
        for op in there(found.ops)
        if op.op in KINDS
        for delegate in op.delegates
        for computes in op.computes
    )
    assert {(n, kind.lower(), d): c for (n, kind, d), c in in_file.items()} == {
        (n, kind.lower(), d): c for (n, kind, d), c in in_report.items()
    }
    assert sum(in_file.values()) > 3


def test_what_is_fused_is_computed_with_what_it_is_fused_into(tiny: Report) -> None:
    for op in there(tiny.ops):
        assert (op.computes, op.delegates) == (
            ((), ()) if op.op == "batch_norm" else (("int8",), (0,))
        ), op
    assert {op.annotated for op in there(tiny.ops) if op.op != "batch_norm"} == {True}


def test_what_the_quantizer_left_is_said(broken: Report) -> None:
    annotated = {op.op for op in there(broken.ops) if op.annotated}
    assert {"conv2d", "relu", "linear", "cat"} <= annotated
    assert not {"cumsum", "hardswish", "chunk"} & annotated
    (act,) = (op for op in there(broken.ops) if op.op == "hardswish")
    assert (act.place, act.computes) == ("float32 in delegate 1", ("float32",))
    assert act.unmarked == "the quantizer has no pattern for it"
    assert act.advice is not None
    assert not act.advice.same
    for op in there(broken.ops):
        assert (op.unmarked == "") is (op.annotated in (True, None)), op


def test_borders_are_those_of_the_file(broken: Report) -> None:
    assert not isinstance(broken.int8, Failure)
    (method,) = inspect_pte(broken.int8.pte).methods
    tensors = [t for step in method.steps for t in (*step.inputs, *step.outputs)]
    inner = len(tensors) - len(method.inputs) - len(method.outputs)
    # each written once and read once here
    assert 2 * len(there(broken.borders)) == inner
    assert {str((b.dtype, b.shape)) for b in there(broken.borders)} == {
        str((t.split(" ")[0], tuple(map(int, re.findall(r"\d+", t.split("(")[1])))))
        for step in method.steps[1:]
        for t in step.inputs
    }
    ends = [(b.source, b.target) for b in there(broken.borders)]
    assert ends[:2] == [("delegate 0", "cumsum"), ("cumsum", "delegate 1")]
    assert ends.count(("split_with_sizes_copy", "delegate 2")) == 2


# --- figures


def test_figures_agree_with_runs_of_our_own(tiny: Report) -> None:
    assert not isinstance(tiny.int8, Failure)
    assert not isinstance(tiny.fp32, Failure)
    model, runner = trained_tiny_net(), PteRunner(tiny.int8.pte)
    with torch.no_grad():
        exact = torch.cat([model(x) for x in IMAGES.split(1)])
    got = torch.cat([runner(x) for x in IMAGES.split(1)])
    figures = tiny.figures
    assert figures["accuracy"] == (got.argmax(1) == LABELS).double().mean().item()
    assert figures["accuracy_fp32"] == (exact.argmax(1) == LABELS).double().mean().item()
    assert figures["sqnr"] == pytest.approx(sqnr_db(exact[:16], got[:16]))
    assert (figures["delegates"], figures["outside"], figures["float_ops"]) == (1, 0, 0)
    assert (figures["bytes"], figures["bytes_fp32"]) == (20_880, 45_968)
    assert figures["bytes_ratio"] == 20_880 / 45_968
    assert figures["arena"] == sum(inspect_pte(tiny.int8.pte).methods[0].arena)
    assert isinstance(figures["speedup"], float)
    assert set(figures) == set(module.NAMES)


def test_the_worst_layer(tiny: Report) -> None:
    assert not isinstance(tiny.layers, Failure)
    assert tiny.figures["layer_sqnr"] == min(layer.sqnr_db for layer in tiny.layers.layers)
    assert "conv2d_3" in {layer.name for layer in tiny.layers.layers}


def test_seconds_say_where_the_time_went(broken: Report) -> None:
    steps = {"export", "quantize: prepare", "quantize: calibrate", "quantize: convert"}
    for name in ("int8", "fp32"):
        lower = f"lower {name}"
        steps |= {f"{lower}: delegate: partition", f"{lower}: plan and serialize"}
    assert steps <= set(broken.seconds)
    assert "lower fp32: export" not in broken.seconds, "the model was exported before"


def test_no_step_is_done_twice(broken_and_done: tuple[Report, Done]) -> None:
    _, done = broken_and_done
    graphs = [gm for gm in done.exported if isinstance(gm, fx.GraphModule)]
    assert len([gm for gm in graphs if any(map(is_qdq, gm.graph.nodes))]) == 1
    assert sum(isinstance(module, Broken) for module in done.exported) == 1
    assert len(done.lowered) == 2
    assert len(done.partitioned) == 2


# --- parts that fail


def test_a_model_that_does_not_export() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    found = report(Branches().eval(), (torch.ones(1, 4),), calibration=[(torch.ones(1, 4),)])
    for part in (found.ops, found.int8, found.fp32, found.layers, found.latency, found.picture):
        assert isinstance(part, Failure)
        assert f"{Path(__file__).name}:" in part.sentence
        assert "return x if x.sum() > 0 else -x" in part.sentence
        assert "/" not in part.sentence.replace("tests/", "")
    assert isinstance(found.figures["bytes"], str)
    assert str(found).startswith("Branches: no int8 program\n")
    json.dumps(found.to_dict(), allow_nan=False)


def test_without_calibration_the_fp32_half_is_there(
    shortcut: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = layer()
    monkeypatch.setattr(_report_run, "xnnpack_ptq", xnnpack_ptq)
    found = report(model, x)
    assert isinstance(found.int8, Failure)
    assert "this model needs data of its own" in found.int8.sentence
    assert found.latency == found.layers == found.int8
    assert not isinstance(found.fp32, Failure)
    assert torch.allclose(PteRunner(found.fp32.pte)(*x), model(*x), atol=1e-6)
    for op in there(found.ops):
        assert (op.annotated, op.place, op.advice) == (None, "float32 in delegate 0", None)
    assert not found.quantized
    assert "what to change" not in str(found)


def test_in_training_mode() -> None:
    found = report(nn.Linear(4, 2), (torch.ones(1, 4),))
    assert isinstance(found.fp32, Failure)
    assert "Call model.eval() first" in found.fp32.sentence


@pytest.mark.parametrize(
    ("part", "name"),
    [("picture", "overview"), ("layers", "layer_sqnr"), ("borders", "borders"),
     ("ops", "op_rows"), ("latency", "latency")],
)  # fmt: skip
def test_a_part_fails_alone(
    part: str, name: str, monkeypatch: pytest.MonkeyPatch, shortcut: None
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no luck")

    model, x = layer()
    monkeypatch.setattr(_report_run, name, fails)
    found = report(model, x, calibration=[x])
    parts = ("picture", "layers", "borders", "ops", "latency", "int8", "fp32")
    failed = {p: getattr(found, p) for p in parts if isinstance(getattr(found, p), Failure)}
    assert set(failed) == {part}
    assert "no luck" in failed[part].sentence
    assert "no luck" in str(found) or part == "picture"
    json.dumps(found.to_dict(), allow_nan=False)
    assert "no luck" in found._repr_mimebundle_()["text/html"]


def test_where_lowering_fails_the_partitioner_is_asked(
    monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise LoweringError("mul.Tensor is not to be had")

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * x
            return x.cumsum(0)

    x = (torch.ones(2, 4),)
    monkeypatch.setattr(_report_run, "lower_to_xnnpack", fails)
    found = report(Sum().eval(), x, calibration=[x])
    assert found.int8 == found.fp32 == Failure("mul.Tensor is not to be had")
    assert [(op.op, op.place, op.annotated, op.why) for op in there(found.ops)] == [
        ("mul", "in delegate 0", True, (STOPS,)),
        ("cumsum", "outside: cumsum", False, (NO_RULE,)),
    ]
    assert "the partitioner would take 1 and leave 1 outside" in " ".join(str(found).split())
    assert f"why      {STOPS}" in str(found)


def test_a_program_that_disagrees(monkeypatch: pytest.MonkeyPatch, shortcut: None) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise VerificationError("the .pte does not compute what its graph computes: 3 dB")

    monkeypatch.setattr(_report_run, "compare", fails)
    model, x = layer()
    found = report(model, x, calibration=[x], measure=False)
    assert not isinstance(found.int8, Failure)
    assert isinstance(found.int8.verification, Failure)
    assert "does not compute" in str(found)
    assert found.figures["bytes"] == len(found.int8.pte)
    assert found.figures["sqnr"] == found.int8.verification.sentence


@pytest.mark.parametrize(
    ("labelled", "said"),
    [
        (image(batch=3), "expected a pair"),
        ((image(batch=3), torch.zeros(3)), "labels as a tensor"),
        ((image(batch=0), torch.zeros(0, dtype=torch.int64)), "fill no batch"),
        (((image(batch=3),) * 2, torch.zeros(3, dtype=torch.int64)), "takes 1 inputs, got 2"),
        ((image(batch=3), torch.zeros(3, dtype=torch.int64)), "expected scores (1, classes)"),
    ],
)
def test_wrong_labelled_data_costs_the_accuracy_only(
    labelled: Any, said: str, shortcut: None
) -> None:
    model, x = layer()
    found = report(model, x, calibration=[x], labelled=labelled, measure=False)
    assert isinstance(found.accuracy, Failure)
    assert said in found.accuracy.sentence
    assert not isinstance(found.int8, Failure)
    assert not isinstance(found.int8.verification, Failure)


def test_labelled_data_that_fill_no_last_batch_are_left_out() -> None:
    example = Inputs((torch.zeros(4, 2), torch.zeros(4)), {})
    data = (torch.arange(22.0).reshape(11, 2), torch.arange(11.0)), torch.arange(11)
    batches, labels = labelled_batches(data, example)
    assert [tuple(part.shape for part in batch) for batch in batches] == [((4, 2), (4,))] * 2
    assert torch.equal(torch.cat([b[1] for b in batches]), torch.arange(8.0))
    assert torch.equal(labels, torch.arange(8))


def test_wrong_calls_are_raised() -> None:
    model, x = layer()
    with pytest.raises(TypeError, match="expected a tuple"):
        report(model, x[0])  # type: ignore[arg-type]


# --- what was mended


def test_what_was_mended_and_pythons_warnings(
    one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            warnings.warn("beware", stacklevel=2)
            return self.fc(x) - self.fc(y)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not now")  # all that is mended has been by then

    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("executorch.exir.to_edge_transform_and_lower", fails)
    found = report(Twice().eval(), (x, x), calibration=[(x, x + 1)], measure=False)
    said = "\n".join(found.warnings)
    assert "One tensor was given for two inputs" in said
    assert "A bias or weight that several ops use was copied" in said
    assert "UserWarning: beware" in said
    assert found.figures["warnings"] == len(found.warnings) == 3
    assert "beware" in str(found)


# --- how it is shown


def test_json_round_trip(broken: Report) -> None:
    text = json.dumps(broken.to_dict(), allow_nan=False)
    data = json.loads(text)
    assert data["figures"]["delegates"] == 4
    assert [op["name"] for op in data["ops"]] == [op.name for op in there(broken.ops)]
    assert data["ops"][0]["line"]["number"] == getattr(there(broken.ops)[0].line, "number", None)
    assert data["latency"] == {"failure": "not asked for: measure=False"}
    assert data["int8"]["contents"]["size"] == data["int8"]["bytes"]
    assert data["seconds"] == pytest.approx(dict(broken.seconds))


def test_the_text_fits_a_terminal(broken: Report, tiny: Report) -> None:
    for found in (broken, tiny):
        assert max(map(len, str(found).splitlines())) <= 80
    assert str(tiny).startswith("TinyConvNet: 1 delegate, every op inside\n")
    text = " ".join(str(broken).split())
    for op in (*broken.outside, *broken.in_float):
        assert f"{op.op} {op.line}, {op.place}" in text
        assert "; ".join(op.why) or op.unmarked in text
        assert op.advice is not None
        assert " ".join(op.advice.after.split()) in text


def test_the_page_opens_alone(broken: Report, tmp_path: Path) -> None:
    page = broken.to_html(tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"<(script|link|iframe)|url\(|@import", page)
    assert {source[:5] for source in re.findall(r'src="([^"]*)"', page)} == {"data:"}
    assert "<h1>Broken: 4 delegates, 3 ops outside</h1>" in page
    assert 'name="viewport"' in page
    assert "color-scheme: light dark" in page
    for path in (str(ROOT), str(Path.home()), sys.prefix):
        assert path not in page
    assert page.count("x = x.cumsum(1)") >= 2


def test_a_cell_shows_it_without_styles(broken: Report) -> None:
    shown = broken._repr_mimebundle_()
    assert shown["text/plain"] == str(broken)
    assert not re.search(r"<style|style=", shown["text/html"])
    assert "self.triangle(x)" in shown["text/html"]


def test_the_picture_names_what_is_outside(broken: Report) -> None:
    assert not isinstance(broken.picture, Failure)
    assert broken.picture.counts["delegate"] == 4
    assert broken.picture.counts["fallback"] == 3
    assert "plumbing" not in broken.picture.counts
    lines = broken.picture.text.splitlines()
    (split,) = (line for line in lines if line.startswith("aten_split"))
    (after,) = (line for line in lines if line.startswith("executorch_call_delegate_2"))
    assert "<- executorch_call_delegate_1" in split
    assert after.endswith("<- aten_split_with_sizes_copy_default")


# --- the command


FACTORY = """
from tests.programs import ConvRelu, image

def pair():
    return ConvRelu().eval(), (image(),)

def whole():
    model, x = pair()
    return {"model": model, "example_inputs": x, "calibration": [x], "measure": False}

def raises():
    raise ValueError("of its own")

def more():
    return {**whole(), "speed": 3}
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that is found in the current folder, as for the command."""
    name = f"factory_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORY, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def test_the_command_in_a_process(factory: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "common.report", f"{factory}:whole", "--json"]
    done = subprocess.run(
        [*command, "--max-delegates=1", "--max-bytes=10", "--min-accuracy=0.9", "--html=page.html"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    size = data["figures"]["bytes"]
    assert done.stderr.splitlines() == [
        "not met: --min-accuracy 0.9: no labelled data was given",
        f"not met: --max-bytes 10: it is {size}",
    ]
    assert "ConvRelu: 1 delegate" in (tmp_path / "page.html").read_text("utf-8")


def test_a_limit_that_holds(
    factory: str, capsys: pytest.CaptureFixture[str], shortcut: None
) -> None:
    assert main([f"{factory}:whole", "--max-outside", "0", "--min-sqnr-graph", "20"]) == 0
    assert capsys.readouterr().out.startswith("ConvRelu: 1 delegate, every op inside\n")


def test_a_model_that_is_refused(
    factory: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shortcut: None,
) -> None:
    monkeypatch.setattr(_report_run, "xnnpack_ptq", xnnpack_ptq)
    assert main([f"{factory}:pair"]) == 1
    assert "this model needs data of its own" in " ".join(capsys.readouterr().out.split())


def test_what_a_factory_raises_is_not_hidden(factory: str) -> None:
    with pytest.raises(ValueError, match="of its own"):
        main([f"{factory}:raises"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}:whole", "--min-speed", "2"], "unrecognized arguments: --min-speed"),
        (["{}:whole", "--exit-code"], "expected one module:factory"),
        (["a.pte", "b.pte", "--max-bytes", "1"], "limits are for one file"),
        (["a.pte", "--exit-code"], "two with --exit-code"),
        (["a.pte", "b.pte", "c.pte"], "one .pte or two"),
        (["{}:more"], "report takes no speed"),
        (["{}:nobody"], "has no nobody"),
        (["nowhere:whole"], "No module named 'nowhere'"),
        (["{}"], "expected module:factory, or a .pte file"),
        (["{}:whole", "{}:pair"], "one or two .pte files"),
        (["{}:image"], "returned Tensor: expected (model, example_inputs)"),
        ([], "the following arguments are required"),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: list[str], said: str, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument.format(factory) for argument in arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_example_of_the_readme(
    tiny: Report,
    course: Program,
    course_fp32: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n# net.py\n(.*?)^```", text, re.M | re.S)
    (line,) = re.findall(r"^python -m common.report (net:.*)$", text, re.M)
    (tmp_path / "net.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    quantized_and_lowered(monkeypatch, course, course_fp32)
    assert main(line.split()) == 0
    assert capsys.readouterr().out.startswith("TinyConvNet: 1 delegate, every op inside")
    (tmp_path / "report.html").unlink()
    monkeypatch.setattr(module, "report", lambda **arguments: tiny)
    runpy.run_path("net.py", run_name="__main__")
    assert capsys.readouterr().out == f"{tiny}\n"
    assert (tmp_path / "report.html").exists()


def test_the_command_on_files(
    tiny: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not isinstance(tiny.int8, Failure)
    assert not isinstance(tiny.fp32, Failure)
    small, large, text = (str(tmp_path / f"{name}.pte") for name in ("int8", "fp32", "text"))
    Path(small).write_bytes(tiny.int8.pte)
    Path(large).write_bytes(tiny.fp32.pte)
    Path(text).write_text("no program")
    missing = str(tmp_path / "missing.pte")
    for arguments in (
        [small], [small, large], [small, "--json"], [small, large, "--json", "--exit-code"],
        [small, "--html", str(tmp_path / "page.html")], [text], [missing],
    ):  # fmt: skip
        said = []
        for command in (main, inspection.main):
            status = command(arguments)
            captured = capsys.readouterr()
            said.append((status, captured.out, captured.err))
        assert said[0] == said[1], arguments
    assert main([small, "--max-delegates", "1", "--max-bytes", "21000"]) == 0
    capsys.readouterr()
    assert main([small, "--max-arena", "10", "--min-sqnr", "30"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].endswith("--min-sqnr 30: it is not known of a file without its model")
    assert errors[1].startswith("not met: --max-arena 10: it is ")
