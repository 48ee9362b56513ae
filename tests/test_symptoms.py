"""The page of symptoms: each heading names a test that provokes it, and each test here is named.

`shows` compares what the raw API says with the heading, literally: "…" stands for any text.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.export import Dim

from common._support import partition
from common._unused_patterns import without_unused_patterns
from common.env import capture_stderr
from common.executorch_utils import (
    LoweringError,
    PteExecutionError,
    PteFormatError,
    PteLoadError,
    PteRunner,
    QuantizationError,
    TensorSpec,
    lower_to_xnnpack,
    pte_contents,
    xnnpack_ptq,
)
from common.graph_utils import is_qdq, op_counts, short
from common.metrics import sqnr_db
from common.pt2e import export_module, get_xnnpack_quantizer
from tests.notebook_rules import without_fences
from tests.programs import ConvRelu, Program, image, linear, portable, rows

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "notebooks" / "symptoms.md").read_text("utf-8")
HERE = "tests/test_symptoms.py"


@dataclass(frozen=True)
class Symptom:
    """One entry of the page."""

    heading: str
    tests: tuple[str, ...]
    text: str


def symptoms() -> list[Symptom]:
    found = []
    for entry in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        heading, comment, text = (*entry.split("\n", 2), "")[:3]
        named = re.fullmatch(r"<!-- test: (.+) -->", comment)
        assert named, f"{heading}: the line below names its test"
        found.append(Symptom(heading, tuple(named[1].split(", ")), text.partition("\n# ")[0]))
    return found


SYMPTOMS = symptoms()


@pytest.fixture
def shows(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a message of the raw API with the headings that name this test."""
    here = f"{HERE}::{request.node.originalname}"
    literals = [
        literal
        for symptom in SYMPTOMS
        if here in symptom.tests and symptom.heading.startswith("`")
        for literal in re.findall("`([^`]+)`", symptom.heading)[:1]
    ]

    def compare(message: str) -> None:
        assert any(matches(literal, message) for literal in literals), message

    return compare


def matches(literal: str, message: str) -> bool:
    """Whether a message holds the parts of a heading, in their order."""
    parts = [re.escape(part.strip()) for part in literal.split("…")]
    return re.search(".*?".join(parts), message, re.DOTALL) is not None


# --- the page


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.heading)
def test_the_page_names_tests_that_exist(symptom: Symptom) -> None:
    for test in symptom.tests:
        file, _, function = test.partition("::")
        assert function in functions(file), test


def test_every_test_that_provokes_is_named() -> None:
    about_the_page = {name for name in functions(HERE) if name.startswith("test_the_page_")}
    named = {test.removeprefix(f"{HERE}::") for s in SYMPTOMS for test in s.tests}
    ours = {name for name in functions(HERE) if name.startswith("test_")}
    assert ours - about_the_page - {"test_every_test_that_provokes_is_named"} <= named


def test_the_page_is_short_entries_each_once() -> None:
    assert len({s.heading for s in SYMPTOMS}) == len(SYMPTOMS) >= 40
    for symptom in SYMPTOMS:
        sentences = re.findall("[。？]|(?<=[a-z`)]):$", without_fences(symptom.text))
        assert 2 <= len(sentences) <= 10, symptom.heading
    parts = re.findall(r"^# (.+)$", without_fences(PAGE), re.M)
    assert parts[1:] == [
        "量化的時候",
        "降階的時候",
        "載入的時候",
        "執行的時候",
        "結果不對",
        "慢，或者檔案大",
    ]


def test_the_page_links_somewhere() -> None:
    slugs = {re.sub(r"[^\w -]", "", s.heading.lower()).replace(" ", "-") for s in SYMPTOMS}
    for path, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", PAGE):
        assert not path or (ROOT / "notebooks" / path).exists()
        assert path or anchor in slugs


# --- while quantizing


def raw_ptq(
    model: nn.Module,
    example: tuple[torch.Tensor, ...],
    *,
    calibrated: bool = True,
    is_dynamic: bool = False,
    is_per_channel: bool = True,
) -> Any:
    """torchao's own calls; the patterns for training, which cost seconds, are left out."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as module
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = module.get_symmetric_quantization_config(
        is_per_channel=is_per_channel, is_dynamic=is_dynamic
    )
    quantizer = module.XNNPACKQuantizer().set_global(config)
    quantizer.SUPPORTED_PATTERNS = [p for p in quantizer.SUPPORTED_PATTERNS if not p.is_qat]
    prepared = prepare_pt2e(torch.export.export(model, example).module(), quantizer)
    if calibrated:
        prepared(*example)
    return convert_pt2e(prepared)


def of(error: pytest.ExceptionInfo[BaseException]) -> str:
    return f"{error.type.__name__}: {error.value}"


def test_another_batch_into_a_graph(shows) -> None:
    graph = torch.export.export(linear(), (rows(2),)).module()
    with pytest.raises(AssertionError) as error:
        graph(rows(3))
    shows(of(error))
    said = r"batch 0, input 0: shape \(3, 6\), but the graph is exported for \(2, 6\)"
    with pytest.raises(QuantizationError, match=said):
        xnnpack_ptq(linear(), (rows(2),), calibration=[(rows(3),)])


def test_a_dynamic_batch_from_an_example_of_one(shows) -> None:
    with pytest.raises(Exception, match="batch") as error:
        torch.export.export(linear(), (rows(1),), dynamic_shapes=({0: Dim("batch", max=8)},))
    shows(of(error))
    assert export_module(linear(), (rows(1),))(rows(3)).shape == (3, 4)


def test_no_calibration(shows) -> None:
    example = (rows(2),)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        qdq = raw_ptq(linear(), example, calibrated=False)
    shows(" ".join(str(warning.message) for warning in heard))
    assert sqnr_db(linear()(*example), qdq(*example)) < 3
    with pytest.raises(QuantizationError, match="calibration: got no batch"):
        xnnpack_ptq(linear(), example, calibration=[])


def test_a_double_model(shows) -> None:
    example = (rows(2).double(),)
    with pytest.raises(AssertionError) as error:
        raw_ptq(linear().double(), example)
    shows(of(error))
    with pytest.raises(ValueError, match=r"0\.weight is float64: .*Call \.float\(\)"):
        xnnpack_ptq(linear().double(), example, calibration=[example])


def test_arithmetic_on_indices(shows) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids + 1))

    with pytest.raises(RuntimeError) as error:
        raw_ptq(Shifted().eval(), (torch.tensor([1, 2]),))
    shows(of(error))


def test_a_batch_norm_that_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a minute is only counted: patterns for four ops, 24 exports each."""
    from torchao.quantization.pt2e import qat_utils

    searched: list[Any] = []

    def search(graph: Any, op: Any, *_: Any, **__: Any) -> Any:
        searched.append(op)
        return graph

    monkeypatch.setattr(qat_utils, "_fold_conv_bn_qat_helper", search)
    convolution, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    for model, expected in (((convolution, norm), 0), ((norm, convolution), 4)):
        searched.clear()
        raw_ptq(nn.Sequential(*model).eval(), (image(),))
        assert len(searched) == expected


def test_dropout_in_training_mode() -> None:
    model, x = nn.Sequential(nn.Linear(6, 64), nn.Dropout()), rows(2)
    graph = torch.export.export(model, (x,)).module()
    model.eval()
    assert not torch.equal(graph(x), graph(x))
    with pytest.raises(ValueError, match=r"training mode .*model\.eval\(\)"):
        xnnpack_ptq(model.train(), (x,), calibration=[(x,)])


def test_a_wrong_range() -> None:
    model, data = linear(), [(rows(2, seed),) for seed in range(8)]
    x = torch.cat([batch[0] for batch in data])
    good = xnnpack_ptq(model, data[0], calibration=data)
    bad = xnnpack_ptq(model, data[0], calibration=[(batch[0] / 10,) for batch in data])
    outputs = [torch.cat([qdq(part) for part in x.split(2)]) for qdq in (good, bad)]
    right, wrong = (sqnr_db(model(x), y) for y in outputs)
    assert right > 30
    assert wrong < 8


def test_weights_of_different_ranges() -> None:
    """One channel is 300 times as large: with one scale the others round to nothing."""
    model = nn.Linear(6, 4, bias=False).eval()
    with torch.no_grad():
        model.weight[0] *= 300
    data, found = [(rows(2, seed),) for seed in range(4)], []
    for is_per_channel in (True, False):
        qdq = xnnpack_ptq(model, data[0], calibration=data, is_per_channel=is_per_channel)
        dq = next(n for n in qdq.graph.nodes if short(n.target) == "linear").args[1]
        assert is_qdq(dq)
        integers, scale = (
            getattr(qdq, str(arg.target)) if isinstance(arg, fx.Node) else torch.tensor([arg])
            for arg in dq.args[:2]
        )
        found.append(sqnr_db(model.weight[1:], (integers * scale[:, None])[1:]))
    per_channel, per_tensor = found
    assert per_channel > 40
    assert per_tensor < 3


def test_state_dict_is_not_smaller(conv_int8: Program) -> None:
    def size(module: nn.Module) -> int:
        return sum(t.numel() * t.element_size() for t in module.state_dict().values())

    assert size(conv_int8.qdq) > size(conv_int8.model)
    stored = conv_int8.qdq.state_dict()
    kinds = {t.dtype for name, t in stored.items() if t.numel() == 4 * 3 * 9}
    assert kinds == {torch.float32, torch.int8}
    assert pte_contents(conv_int8.pte).weights < size(conv_int8.model)


def test_a_qdq_graph_computes_in_float32(conv_int8: Program) -> None:
    model = torch.export.export(conv_int8.model, conv_int8.example)
    before, after = (sum(op_counts(graph).values()) for graph in (model, conv_int8.qdq))
    (entry,) = [s for s in SYMPTOMS if s.heading.startswith("Q/DQ 圖比 fp32")]
    assert f"{before} 個節點變成 {after} 個" in entry.text
    traced = torch.export.export(conv_int8.qdq, conv_int8.example)
    convolution = next(n for n in traced.graph.nodes if short(n.target) == "conv2d")
    values = [n.meta["val"].dtype for n in (convolution, *convolution.all_input_nodes[:2])]
    assert values == [torch.float32] * 3


# --- while lowering


def test_why_quantize_ops_are_left_outside() -> None:
    """Two of the three reasons, in the partitioner's words; the third is a `Conv3d`."""
    example = (rows(2),)
    per_tensor = raw_ptq(linear(), example, is_dynamic=True, is_per_channel=False)
    asked = partition(torch.export.export(per_tensor, example))
    assert "aten_linear_default" not in asked.taken
    assert any("per tensor quantized weights" in refusal.reason for refusal in asked.refusals)
    with pytest.raises(ValueError, match="needs per-channel weights"):
        get_xnnpack_quantizer(is_dynamic=True, is_per_channel=False)

    example = (rows(2).bfloat16(),)
    asked = partition(torch.export.export(raw_ptq(linear().bfloat16(), example), example))
    assert "aten_linear_default" not in asked.taken
    assert any(refusal.reason == "invalid dtype" for refusal in asked.refusals)
    with pytest.raises(ValueError, match=r"0\.weight is bfloat16"):
        xnnpack_ptq(linear().bfloat16(), example, calibration=[example])


def test_channels_last_weights(shows) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    model = ConvRelu().eval().to(memory_format=torch.channels_last)
    program = torch.export.export(model, (image(),))
    passed = pytest.raises(Exception, match="ChannelsLastTaggedReshapePass")
    with without_unused_patterns(program), passed as error:
        to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    shows(f"{error.value.__cause__}")


def test_an_unbounded_dimension() -> None:
    unbounded: Any = ({0: Dim("batch")},)
    exported = torch.export.export(linear(), (rows(5),), dynamic_shapes=unbounded)
    pte = portable(exported)
    (spec,) = pte_contents(pte).inputs
    assert isinstance(spec, TensorSpec)
    assert spec.shape == (5, 6), "mended in ExecuTorch"
    method = loaded(pte)
    assert method.execute([rows(4)])[0].shape == (4, 4)
    with capture_stderr(), pytest.raises(RuntimeError, match="0x10"):
        method.execute([rows(6)])
    with pytest.raises(ValueError, match="no upper bound"):
        lower_to_xnnpack(linear(), (rows(5),), dynamic_shapes=unbounded)


# --- while loading and running

KEPT: list[Any] = []


def loaded(pte: bytes) -> Any:
    """The raw method; what it points into is kept."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(pte)
    KEPT.append((pte, program))
    return program.load_method("forward")


def without_operator(conv: Program, many_values: Program) -> Any:
    return many_values.pte.replace(b"aten::bitwise_not", b"aten::bitwise_xyz").replace(
        b"aten::logical_not", b"aten::logical_xyz"
    )


LOADING: dict[str, tuple[Callable[[Program, Program], Any], type[Exception]]] = {
    "0x:20": (
        lambda conv, _: conv.pte.replace(b"XnnpackBackend", b"VulkanXBackend"), PteLoadError
    ),
    "0x:14": (without_operator, PteLoadError),
    "0x:23": (lambda conv, _: conv.pte[: len(conv.pte) // 2], PteFormatError),
    "0x:12": (lambda conv, _: b"", PteFormatError),
    "0x:22": (lambda conv, _: "missing.pte", FileNotFoundError),
}  # fmt: skip


@pytest.mark.parametrize("code", LOADING)
def test_loading_codes(shows, code: str, conv: Program, many_values: Program) -> None:
    make, kind = LOADING[code]
    given = make(conv, many_values)
    with capture_stderr(), pytest.raises(RuntimeError) as error:
        loaded(given)
    assert code in str(error.value)
    shows(of(error))
    with pytest.raises(kind):
        PteRunner(given)


X = image()

INPUTS: dict[str, tuple[tuple[Any, ...], str, type[Exception] | None]] = {
    "batch": ((X.repeat(4, 1, 1, 1),), "0x10", ValueError),
    "count": ((X, X), "0x12", ValueError),
    "dtype": ((X.double(),), "0x12", TypeError),
    "numpy": ((X.numpy(),), "Unsupported python type", TypeError),
    "parameter": ((nn.Parameter(X),), "Unsupported python type", None),
    "view": ((torch.zeros(1, 3, 16, 8)[:, :, ::2],), "contiguous or channels-last", None),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_input_codes(shows, kind: str, conv: Program) -> None:
    inputs, said, error_of_ours = INPUTS[kind]
    method = loaded(conv.pte)
    with capture_stderr(), pytest.raises(RuntimeError) as error:
        method.execute(list(inputs))
    assert said in str(error.value)
    shows(of(error))
    if error_of_ours is None:
        assert torch.allclose(PteRunner(conv.pte)(*inputs), conv.model(*inputs), atol=1e-5)
    else:
        with pytest.raises(error_of_ours):
            PteRunner(conv.pte)(*inputs)


def test_a_kernel_that_refuses_a_value(shows, many_values: Program) -> None:
    x, _, mask, times, plus = many_values.example
    inputs = (x, torch.tensor([0, 99]), mask, times, plus)
    with capture_stderr() as log, pytest.raises(RuntimeError) as error:
        loaded(many_values.pte).execute(list(inputs))
    shows(of(error))
    assert "99 out of range" in log.text
    with pytest.raises(PteExecutionError, match="99 out of range"):
        PteRunner(many_values.pte)(*inputs)


# --- what ends a process, in a child of this one

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the probes fork, and name signals")


@dataclass(frozen=True)
class Crashes:
    """How the calls of tests/crashes.py ended, and what each wrote to stderr."""

    ended: dict[str, str]
    stderr: dict[str, str]


@pytest.fixture(scope="module")
def crashes(conv: Program, tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    folder = tmp_path_factory.mktemp("crashes")
    (folder / "conv.pte").write_bytes(conv.pte)
    (folder / "portable.pte").write_bytes(portable(conv.model, conv.example))
    for name, dtype in (("linear", torch.float32), ("bfloat16", torch.bfloat16)):
        example = (rows(2).to(dtype),)
        qdq = raw_ptq(linear().to(dtype), example)
        torch.export.save(torch.export.export(qdq, example), folder / f"{name}.pt2")
    command = [sys.executable, str(ROOT / "tests" / "crashes.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == 0, done.stderr
    first, *parts = re.split(r"\n--- (\w+)\n", done.stderr)
    stderr = {"": first, **dict(zip(parts[::2], parts[1::2], strict=True))}
    return Crashes(json.loads(done.stdout.splitlines()[-1]), stderr)


@on_linux
def test_missing_out_variants(shows, crashes: Crashes) -> None:
    """In a process of its own: another test here may have imported the kernels."""
    shows(crashes.ended["missing_out_variants"])


@on_linux
def test_bytes_dropped(crashes: Crashes, conv: Program) -> None:
    ended = crashes.ended["bytes_dropped"]
    assert ended.startswith("SIG") or ended == "raised", "mended in ExecuTorch"
    runner = PteRunner(bytes(bytearray(conv.pte)))
    assert torch.allclose(runner(X), conv.model(X), atol=1e-5)


@on_linux
def test_a_file_rewritten_in_place(crashes: Crashes, conv: Program, tmp_path: Path) -> None:
    assert crashes.ended["file_rewritten"] in ("SIGBUS", "SIGSEGV"), "mended in ExecuTorch"
    path = tmp_path / "model.pte"
    path.write_bytes(portable(conv.model, conv.example))
    runner = PteRunner(path)
    path.write_bytes(b"")
    assert torch.allclose(runner(X), conv.model(X), atol=1e-5)


@on_linux
def test_a_file_whose_identifier_is_no_text(crashes: Crashes) -> None:
    assert crashes.ended["not_text"] == "SIGABRT", "mended in ExecuTorch"
    with pytest.raises(PteFormatError):
        PteRunner(b"\x00\x00\x00\x00\xff\xfe\xfd\xfc" + bytes(4096))


@on_linux
def test_a_bfloat16_graph_aborts(shows, crashes: Crashes) -> None:
    assert crashes.ended["bfloat16"] == "SIGABRT", "mended in ExecuTorch"
    shows(crashes.stderr["bfloat16"])


@on_linux
def test_noise_of_a_fresh_process(shows, crashes: Crashes) -> None:
    """That of the import, and that of the first use, which is in the first fork."""
    imported, used = crashes.stderr[""], crashes.stderr["bytes_dropped"]
    shows(imported)
    shows(used)
    assert "KernelPreference" in imported
    assert "cpuinfo_utils.cpp" in used


# --- slow or large


def test_an_int8_file_larger_than_fp32(conv: Program, conv_int8: Program) -> None:
    assert len(conv_int8.pte) > len(conv.pte)
    weight = conv.model.conv.weight
    (entry,) = [s for s in SYMPTOMS if s.heading.endswith("比 fp32 的還大")]
    assert f"權重只有 {weight.numel() * weight.element_size()} 位元組" in entry.text
    assert np.prod(weight.shape) == 4 * 3 * 3 * 3


def test_a_module_name_without_a_config(shows: Callable[[str], None]) -> None:
    quantizer, _ = get_xnnpack_quantizer()
    with pytest.raises(AssertionError) as raised:
        quantizer.set_module_name("conv", None)
    shows(str(raised.value))


def test_four_bit_convolution(shows: Callable[[str], None]) -> None:
    conv, x = nn.Conv2d(3, 4, 3).eval(), torch.ones(1, 3, 8, 8)
    quantizer, _ = get_xnnpack_quantizer(weight_qmin=-8, weight_qmax=7)
    qdq = xnnpack_ptq(conv, (x,), calibration=[(x,)], quantizer=quantizer)
    with pytest.raises(LoweringError, match="Use 8 bits") as raised:
        lower_to_xnnpack(qdq, (x,))
    shows(str(raised.value))


def test_loading_a_transposed_convolution_of_the_old_quantizer(
    shows: Callable[[str], None],
) -> None:
    model, x = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.ReLU()).eval(), torch.ones(1, 3, 8, 8)
    with pytest.warns(UserWarning, match="deprecated"):
        quantizer, _ = get_xnnpack_quantizer("torchao")
    qdq = xnnpack_ptq(model, (x,), calibration=[(x,)], quantizer=quantizer)
    pte = lower_to_xnnpack(qdq, (x,), verify=False).pte
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(pte)
    with capture_stderr(), pytest.raises(RuntimeError) as raised:
        program.load_method("forward")
    shows(str(raised.value))
    with pytest.raises(PteLoadError, match="cannot be loaded"):
        PteRunner(pte)
