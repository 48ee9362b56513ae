"""What is said of a `.pte`, against ExecuTorch's own readers and against the model."""

from __future__ import annotations

import copy
import hashlib
import html.parser
import importlib.resources
import json
import math
import re
import runpy
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from common import _pte_file
from common._bars import bars
from common._flatbuffer import Schema
from common._page import Section, text
from common._pte_bytes import StoredData
from common._shapes import shapes_entry
from common._table import table
from common._xnnpack_graph import XnnpackGraph, read_xnnpack
from common.executorch_utils import PteFormatError, PteRunner, pte_contents, save_pte
from common.inspection import (
    InspectedMethod,
    PteInspection,
    compare_pte,
    inspect_pte,
    main,
)
from common.profiling import profile
from tests.programs import Counter as CountingModel
from tests.programs import Program, Siblings, portable, shapes_of_siblings, siblings
from tests.test_damage import CONTRADICTIONS, many_kinds  # noqa: F401  (a fixture)
from tools.corrupt_pte import KINDS, Sample, damage


def deserialized(data: bytes) -> Any:
    """The program as ExecuTorch's own tool reads it, all segments put back into it."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    return deserialize_pte_binary(data)


def serialized(file: Any, **options: Any) -> bytes:
    """What ExecuTorch writes for a program that was changed."""
    from executorch.exir._serialize._program import serialize_pte_binary

    return bytes(serialize_pte_binary(file, **options))


def forward(found: PteInspection) -> InspectedMethod:
    (method,) = [m for m in found.methods if m.name == "forward"]
    return method


def graph(found: PteInspection, number: int = 0) -> XnnpackGraph:
    inside = forward(found).delegates[number].graph
    assert inside is not None
    return inside


@pytest.fixture(scope="module")
def programs(
    course: Program,
    course_fp32: Program,
    cumsum: Program,
    conv_dynamic: Program,
    many_values: Program,
    counter: bytes,
) -> dict[str, bytes]:
    named = {
        "course": course, "fp32": course_fp32, "cumsum": cumsum, "dynamic": conv_dynamic,
        "many values": many_values,
    }  # fmt: skip
    return {**{name: program.pte for name, program in named.items()}, "counter": counter}


class Product(nn.Module):
    """One op with a constant."""

    def __init__(self, rows: int = 3, columns: int = 4, seed: int = 0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.register_buffer("matrix", torch.randn(rows, columns, generator=g))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix


X = torch.ones(2, 3)


@pytest.fixture(scope="module")
def product() -> bytes:
    return portable(Product().eval(), (X,))


@pytest.fixture(scope="module")
def external() -> bytes:
    """A program whose weights are in another file."""
    from executorch.exir import ExecutorchBackendConfig, to_edge

    edge = to_edge(torch.export.export(Product().eval(), (X,)))
    return edge.to_executorch(ExecutorchBackendConfig(external_constants=True)).buffer


@pytest.fixture(scope="module")
def counter_from_five() -> bytes:
    """A program with a mutable buffer that has a name and a first value."""
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    model = CountingModel().eval()
    model.calls += 5
    edge = to_edge(torch.export.export(model, (X,)))
    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(["calls"])], emit_mutable_buffer_names=True
    )
    return edge.to_executorch(config).buffer


# --- against ExecuTorch's readers


def test_everything_listed_is_what_executorch_reads(programs: dict[str, bytes]) -> None:
    for data in programs.values():
        file, found = deserialized(data), inspect_pte(data)
        plans = [p for p in file.program.execution_plan if not p.name.startswith("__shapes")]
        assert [m.name for m in found.methods] == [p.name for p in plans]
        for plan, method in zip(plans, found.methods, strict=True):
            names = [f"{o.name}.{o.overload}".rstrip(".") for o in plan.operators]
            assert [o.name for o in method.operators] == names
            assert all(o.available for o in method.operators)
            calls = [i.instr_args for chain in plan.chains for i in chain.instructions]
            assert len(method.steps) == len(calls)
            kernels = Counter(names[c.op_index] for c in calls if hasattr(c, "op_index"))
            assert {o.name: o.calls for o in method.operators} == kernels
            assert [d.backend for d in method.delegates] == [d.id for d in plan.delegates]
            # deserialize_pte_binary puts the blobs into the program
            blobs = [file.program.backend_delegate_data[d.processed.index] for d in plan.delegates]
            assert [d.blob for d in method.delegates] == [len(blob.data) for blob in blobs]
            assert sum(method.arena) == sum(plan.non_const_buffer_sizes)
        stored = {data.keys[0]: data for data in found.stored if data.keys}
        named = file.named_data.pte_data if file.named_data else {}
        assert stored.keys() == named.keys()
        for key, entry in named.items():
            held = file.named_data.buffers[entry.buffer_index]
            assert stored[key].bytes == len(held)
            assert stored[key].sha256 == hashlib.sha256(held).hexdigest()


def test_inputs_and_outputs_are_what_the_runtime_says(programs: dict[str, bytes]) -> None:
    from executorch.exir.tensor import get_scalar_type
    from executorch.runtime import Runtime

    for name in ("course", "cumsum", "dynamic"):
        meta = Runtime.get().load_program(programs[name]).metadata("forward")
        method = forward(inspect_pte(programs[name]))
        for specs, count, tensor in (
            (method.inputs, meta.num_inputs(), meta.input_tensor_meta),
            (method.outputs, meta.num_outputs(), meta.output_tensor_meta),
        ):
            assert len(specs) == count
            for i, spec in enumerate(specs):
                assert isinstance(spec, _pte_file.TensorSpec)
                assert spec.shape == tuple(tensor(i).sizes())
                assert spec.dtype == get_scalar_type(tensor(i).dtype())
                assert math.prod(spec.shape) * spec.dtype.itemsize == tensor(i).nbytes()


def test_bounds_are_shown_where_the_file_has_them(programs: dict[str, bytes]) -> None:
    method = forward(inspect_pte(programs["dynamic"]))
    assert str(method.inputs[0]) == "float32 (1…8, 3, 8, 8)"
    assert method.steps[0].tensors == "float32 (1…8, 3, 8, 8) → float32 (1…8, 4, 8, 8)"


def test_inputs_have_their_names_and_sizes_their_conditions() -> None:
    from executorch.exir import to_edge

    args, kwargs = siblings(2, 3)
    exported = torch.export.export(
        Siblings().eval(), args, kwargs, dynamic_shapes=shapes_of_siblings()
    )
    edge = to_edge(exported, constant_methods=shapes_entry(exported))
    pte = edge.to_executorch().buffer
    found = inspect_pte(pte)
    method = forward(found)
    labels = PteRunner(pte)._labels
    assert [m.name for m in found.methods] == ["forward"]
    assert method.labels == labels
    assert any("mask" in label for label in labels)
    assert f"dimension 0 of {labels[2]} is 2*s0" in method.conditions
    assert all(line in str(found) for line in (*labels, *method.conditions))


def by_flatc(blob: bytes, folder: Path) -> Any:
    """The graph of a delegate as ExecuTorch's flatc turns it into JSON."""
    import executorch.backends.xnnpack.serialization as package
    from executorch.exir._serialize import _flatbuffer

    schema = folder / "schema.fbs"
    schema.write_text(importlib.resources.files(package).joinpath("schema.fbs").read_text("utf-8"))
    start, size = struct.unpack_from("<II", blob, 10)
    (folder / "graph.bin").write_bytes(blob[start : start + size])
    _flatbuffer._flatc_decompile(str(folder), str(schema), str(folder / "graph.bin"))
    said = (folder / "graph.json").read_text("utf-8")
    return json.loads(re.sub(r"(?<=: )(-?)inf\b", r"\1Infinity", said))


def same(ours: Any, theirs: Any, where: str = "") -> int:
    """Compare what two readers say; return how many values were compared."""
    if isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        pairs = enumerate(zip(ours, theirs, strict=True))
        return sum(same(a, b, f"{where}[{i}]") for i, (a, b) in pairs)
    if not isinstance(theirs, dict):
        if isinstance(ours, float):
            # flatc writes six digits
            assert ours == pytest.approx(float(theirs), rel=1e-5, abs=1e-6), where
        else:
            assert ours == theirs, where
        return 1
    count = 0
    for key, value in theirs.items():
        if key.endswith("_type"):
            assert ours[key.removesuffix("_type")]["kind"] == value, where
        else:
            count += same(ours[key], value, f"{where}.{key}")
    return count


@pytest.mark.parametrize("name", ["course", "fp32", "cumsum"])
def test_the_graph_of_a_delegate_is_what_flatc_reads(
    name: str, programs: dict[str, bytes], tmp_path: Path
) -> None:
    import executorch.backends.xnnpack.serialization as package

    schema = Schema.parse(
        importlib.resources.files(package).joinpath("schema.fbs").read_text("utf-8")
    )
    blob = bytes(deserialized(programs[name]).program.backend_delegate_data[0].data)
    start, size = struct.unpack_from("<II", blob, 10)
    theirs = by_flatc(blob, tmp_path)
    assert same(schema.read(blob[start : start + size]), theirs) > 100
    inside = graph(inspect_pte(programs[name]))
    kinds = [node["xnode_union_type"].removeprefix("XNN") for node in theirs["xnodes"]]
    assert [node.kind for node in inside.nodes] == kinds
    assert [c.key for c in inside.constants] == [
        entry["named_key"] for entry in theirs["constant_data"][1:]
    ]


def test_what_computes_in_int8_is_what_xnnpack_runs(cumsum: Program) -> None:
    """The profiler names a kernel after the types that it computes in."""
    found = inspect_pte(cumsum.pte)
    ran = profile(cumsum.pte, *cumsum.example, runs=1)
    names = ("delegate 0", "aten::cumsum.out", "delegate 1")
    order = [k.name if k.delegate is None else f"delegate {k.delegate}" for k in ran.kernels]
    assert list(dict.fromkeys(order)) == [name.removeprefix("aten::") for name in names]
    shown = [
        step.name if step.delegate is None else f"delegate {step.delegate}"
        for step in forward(found).steps
    ]
    assert tuple(shown) == names
    for number in (0, 1):
        convs = [k for k in ran.kernels if k.delegate == number and "Convolution" in k.name]
        nodes = [node for node in graph(found, number).nodes if node.kind == "Conv2d"]
        assert len(convs) == len(nodes) == 1
        assert "QC8" in convs[0].name
        assert nodes[0].types == "int8"
        assert nodes[0].weight_types == "int8 per channel, int32 per channel"


# --- against the model


def test_weights_are_those_of_the_model(conv: Program, product: bytes) -> None:
    found = inspect_pte(conv.pte)
    filters, biases = found.stored
    held = conv.model.conv.weight.detach().permute(0, 2, 3, 1).contiguous().numpy().tobytes()
    assert filters.sha256 == hashlib.sha256(held).hexdigest()
    assert filters.users == ("forward: delegate 0, Conv2d 0, filter",)
    assert (filters.dtype, filters.shape, filters.bytes) == ("float32", (4, 3, 3, 3), len(held))
    assert (biases.dtype, biases.shape, biases.place) == ("float32", (4,), "named data")
    (matrix,) = inspect_pte(product).stored
    held = Product().matrix.numpy().tobytes()
    assert matrix.sha256 == hashlib.sha256(held).hexdigest()
    assert matrix.users == ("forward: aten::mm.out 0, argument 1",)
    assert (matrix.dtype, matrix.shape, matrix.place) == ("float32", (3, 4), "constants")


def test_int8_and_fp32_of_the_same_model(course: Program, course_fp32: Program) -> None:
    int8, fp32 = inspect_pte(course.pte), inspect_pte(course_fp32.pte)
    layers = [m for m in course.model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for found, dtype in ((int8, "int8 per channel"), (fp32, "float32")):
        filters = [data for data in found.stored if data.users[0].endswith(", filter")]
        assert [data.dtype for data in filters] == [dtype] * len(layers)
        width = 1 if found is int8 else 4
        assert [data.bytes for data in filters] == [m.weight.numel() * width for m in layers]
    convs = [node for node in graph(int8).nodes if node.kind == "Conv2d"]
    assert [node.activation for node in convs] == ["relu", "relu", "", "relu"]
    first, last = graph(int8).nodes[0], graph(int8).nodes[-1]
    assert (first.types, last.types) == ("float32 → int8", "int8 → float32")
    assert all(node.types == "float32" for node in graph(fp32).nodes)


def test_dynamic_quantization_is_told_apart() -> None:
    """Built with XNNPACK's own schema: no lowering for it."""
    from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as x

    none = 0xFFFFFFFF
    plain = x.XNNTensorValue(x.XNNDatatype.xnn_datatype_fp32, 2, [1, 4], 0, 0, 1, 0)
    rows = x.XNNTensorValue(x.XNNDatatype.xnn_datatype_qdint8, 2, [1, 4], 0, none, 0, 1)
    weight = x.XNNTensorValue(x.XNNDatatype.xnn_datatype_qcint8, 2, [2, 4], 1, none, 0, 2)
    out = x.XNNTensorValue(x.XNNDatatype.xnn_datatype_fp32, 2, [1, 2], 0, 1, 2, 3)
    made = x.XNNGraph(
        version="0",
        xnodes=[
            x.XNode(x.XNNConvert(0, 1, 0), 0),
            x.XNode(x.XNNFullyConnected(1, 2, none, 3, 0), 1, x.OutputMinMax(-1.0, 1.0)),
        ],
        xvalues=[
            x.XValue(plain),
            x.XValue(x.XNNQuantizedTensorValue(rows, x.PerTokenDynamicQuant(1))),
            x.XValue(x.XNNQuantizedTensorValue(weight, x.PerChannelQuant([], 0, 2, 2))),
            x.XValue(out),
        ],
        num_externs=2,
        input_ids=[0],
        output_ids=[3],
        constant_data=[x.ConstantDataOffset(*place) for place in ((0, 0), (0, 8), (16, 8))],
    )
    read = read_xnnpack(blob_of(made, bytes(24)))
    convert, linear = read.nodes
    assert convert.types == "float32 → int8 dynamic"
    assert (linear.types, linear.weight_types) == ("int8 dynamic → float32", "int8 per channel")
    assert linear.name == "FullyConnected + clamp -1..1"
    assert [tensor.role for tensor in linear.tensors] == ["input", "filter", "output"]
    filters, scales = read.constants
    assert (filters.key, filters.bytes, scales.offset - filters.offset) == ("", 8, 16)
    assert (linear.tensors[1].constant, linear.tensors[1].scales) == (0, 1)


def blob_of(made: Any, constants: bytes) -> bytes:
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
        serialize_xnnpack_binary,
    )

    return serialize_xnnpack_binary(made, bytearray(constants))


# --- the bytes


def test_the_parts_add_up_to_the_file(
    programs: dict[str, bytes], product: bytes, external: bytes, counter_from_five: bytes
) -> None:
    more = {"product": product, "external": external, "from five": counter_from_five}
    for name, data in (programs | more).items():
        found = inspect_pte(data)
        assert sum(part.bytes for part in found.parts) == found.size == len(data), name
        assert all(part.bytes > 0 for part in found.parts)
        sums, contents = found.sums(), pte_contents(data)
        assert sums["description"] == contents.program
        assert sums.get("delegate", 0) == sum(contents.delegate_blobs)
        inside = sum(d.bytes for d in found.stored if d.place not in ("external", "state"))
        assert sums.get("weights", 0) == inside
        rest = sum(sums.get(kind, 0) for kind in ("weights", "state", "padding"))
        assert rest == contents.weights + contents.padding


def test_a_blob_that_two_methods_share_counts_once(cumsum: Program) -> None:
    file = deserialized(cumsum.pte)
    other = copy.deepcopy(file.program.execution_plan[0])
    other.name = "again"
    file.program.execution_plan.append(other)
    data = serialized(file, extract_delegate_segments=True)
    found, alone = inspect_pte(data), inspect_pte(cumsum.pte)
    assert [m.name for m in found.methods] == ["forward", "again"]
    for kind in ("delegate", "weights"):
        assert found.sums()[kind] == alone.sums()[kind]
    assert sum(part.bytes for part in found.parts) == len(data)
    conv_filter = found.stored[0]
    assert conv_filter.owners == ("forward: delegate 0", "again: delegate 0")
    assert found.methods[1].delegates == found.methods[0].delegates
    assert "order of execution of again" in str(found)


def test_bytes_behind_the_end_and_segments_of_nobody(conv: Program, product: bytes) -> None:
    found = inspect_pte(conv.pte + bytes(100))
    assert [(p.name, p.bytes) for p in found.parts if p.kind == "other"] == [
        ("behind the end of the program", 100)
    ]
    file = deserialized(conv.pte)
    file.program.execution_plan[0].delegates.clear()
    file.program.backend_delegate_data.clear()
    file.program.execution_plan[0].chains[0].instructions.clear()
    data = serialized(file, extract_delegate_segments=True)
    found = inspect_pte(data)
    assert sum(part.bytes for part in found.parts) == len(data)
    assert {data.users for data in found.stored} == {()}
    assert found.sums()["weights"] == inspect_pte(conv.pte).sums()["weights"]


# --- files made by others


def test_a_backend_that_is_not_known(cumsum: Program) -> None:
    """Its name and its bytes are told; XNNPACK's name is as long."""
    data = cumsum.pte.replace(b"XnnpackBackend", b"AnotherBackend")
    found = inspect_pte(data)
    known = inspect_pte(cumsum.pte)
    for there, here in zip(forward(found).delegates, forward(known).delegates, strict=True):
        assert (there.backend, there.available, there.graph) == ("AnotherBackend", False, None)
        assert (there.blob, there.weights) == (here.blob, 0)
        assert "not known" in there.unread
    assert found.problems == ("This runtime lacks what method forward needs: AnotherBackend.",)
    assert [data.name for data in found.stored] == [data.keys[0] for data in known.stored]
    assert found.sums() == known.sums()
    assert forward(found).steps[0].outputs == ()


def test_settings_of_a_backend(conv: Program) -> None:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    file = deserialized(conv.pte)
    file.program.execution_plan[0].delegates[0].compile_specs.append(CompileSpec("speed", b"fast"))
    data = serialized(file, extract_delegate_segments=True)
    assert forward(inspect_pte(data)).delegates[0].settings == (("speed", 4),)
    assert any("setting speed" in change.what for change in compare_pte(conv.pte, data).changes)


def test_a_kernel_that_is_not_there(cumsum: Program) -> None:
    found = inspect_pte(cumsum.pte.replace(b"aten::cumsum", b"mine::cumsum"))
    (operator,) = forward(found).operators
    assert (operator.name, operator.calls, operator.available) == ("mine::cumsum.out", 1, False)
    assert "lacks what method forward needs: mine::cumsum.out" in str(found)


def test_constant_methods(product: bytes) -> None:
    from executorch.exir import to_edge

    program = torch.export.export(Product().eval(), (X,))
    data = to_edge(program, constant_methods={"vocabulary": 7}).to_executorch().buffer
    found = inspect_pte(data)
    assert found.running == ("forward",)
    assert "method vocabulary: constant\nint 7" in str(found)
    changes = compare_pte(product, data).changes
    assert [(c.a, c.b) for c in changes if c.what == "method vocabulary"] == [("", "there")]


def test_weights_in_another_file(external: bytes) -> None:
    found = inspect_pte(external)
    (matrix,) = found.stored
    assert (matrix.keys, matrix.place, matrix.bytes) == (("matrix",), "external", 48)
    assert "weights" not in found.sums()
    assert "the program needs a .ptd file with matrix" in str(found)


def test_weights_of_a_delegate_in_another_file(conv: Program) -> None:
    file = deserialized(conv.pte)
    file.named_data = None
    found = inspect_pte(serialized(file, extract_delegate_segments=True))
    before = inspect_pte(conv.pte)
    assert [(d.keys, d.bytes) for d in found.stored] == [(d.keys, d.bytes) for d in before.stored]
    assert {data.place for data in found.stored} == {"external"}


def test_mutable_buffers(counter: bytes, counter_from_five: bytes) -> None:
    assert forward(inspect_pte(counter)).state == ("float32 (1,)",)
    found = inspect_pte(counter_from_five)
    assert forward(found).state == ("calls: float32 (1,)",)
    (first,) = [data for data in found.stored if data.place == "state"]
    assert first.sha256 == hashlib.sha256(struct.pack("<f", 5)).hexdigest()
    assert found.sums()["state"] == 4


def test_older_files_hold_all_in_one_flatbuffer(conv: Program, product: bytes) -> None:
    """No header, no segments; delegates and constants inline, XNNPACK's weights in its blob."""
    from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as x
    from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer

    def value(constant: int, external: int, number: int, dims: list[int]) -> Any:
        return x.XValue(
            x.XNNTensorValue(
                x.XNNDatatype.xnn_datatype_fp32, len(dims), dims, constant, external, 0, number
            )
        )

    weight = torch.randn(4, 3).numpy().tobytes()
    made = x.XNNGraph(
        version="0",
        xnodes=[x.XNode(x.XNNFullyConnected(0, 1, 0xFFFFFFFF, 2, 0), 0)],
        xvalues=[
            value(0, 0, 0, [1, 3]),
            value(1, 0xFFFFFFFF, 1, [4, 3]),
            value(0, 1, 2, [1, 4]),
        ],
        num_externs=2,
        input_ids=[0],
        output_ids=[2],
        constant_data=[x.ConstantDataOffset(0, 0), x.ConstantDataOffset(0, len(weight))],
    )
    blob = blob_of(made, weight)
    file = deserialized(conv.pte)
    file.program.backend_delegate_data[0].data = blob
    file.named_data = None
    file.program.named_data = []
    constants = deserialized(product).program.constant_buffer
    file.program.constant_buffer = constants
    written = _program_to_flatbuffer(
        file.program, constant_tensor_alignment=16, delegate_alignment=16
    )
    data = bytes(written.data or b"")
    found = inspect_pte(data)
    assert not found.segments
    assert sum(part.bytes for part in found.parts) == len(data)
    (delegate,) = forward(found).delegates
    assert (delegate.blob, delegate.weights) == (len(blob), len(weight))
    assert found.sums()["delegate"] == len(blob) - len(weight)
    inside, constant = found.stored
    assert (inside.place, inside.shape, inside.keys) == ("delegate", (4, 3), ())
    assert inside.sha256 == hashlib.sha256(weight).hexdigest()
    assert constant.bytes == len(constants[1].storage)
    assert constant.place == "constants"


# --- damage


@pytest.mark.parametrize("which", CONTRADICTIONS)
def test_a_contradiction_is_refused(
    request: pytest.FixtureRequest, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executorch.exir._serialize import _flatbuffer_program

    data = request.getfixturevalue("many_kinds")
    change, said = CONTRADICTIONS[which]
    read = _flatbuffer_program._flatbuffer_to_program

    def read_changed(given: bytes) -> Any:
        program = read(given)
        change(program)
        return program

    assert "aten::clamp.out" in str(inspect_pte(data))
    monkeypatch.setattr(_flatbuffer_program, "_flatbuffer_to_program", read_changed)
    with pytest.raises(PteFormatError, match=said):
        inspect_pte(data)


def test_damage_ends_in_words_or_in_a_whole_result(
    cumsum: Program, counter_from_five: bytes
) -> None:
    refused = 0
    for data in (cumsum.pte, counter_from_five):
        sample = Sample("sample", data, ())
        for seed in range(25):
            for kind in KINDS:
                damaged = damage(sample, kind, seed).data
                try:
                    found = inspect_pte(damaged)
                except PteFormatError:
                    refused += 1
                    continue
                assert sum(part.bytes for part in found.parts) == len(damaged)
                json.dumps(found.to_dict(), allow_nan=False)
                assert str(found)
    assert refused > 100


def test_a_delegate_that_cannot_be_read_costs_nothing_else(conv: Program) -> None:
    """A union member of a newer version, and a graph that leads out of its blob."""
    whole = inspect_pte(conv.pte)
    blob = bytes(deserialized(conv.pte).program.backend_delegate_data[0].data)
    start = conv.pte.index(blob)
    graph_at = start + struct.unpack_from("<I", blob, 10)[0]
    root = graph_at + struct.unpack_from("<I", conv.pte, graph_at)[0]
    damaged = bytearray(conv.pte)
    fields = root - struct.unpack_from("<i", conv.pte, root)[0]
    place = root + struct.unpack_from("<H", conv.pte, fields + 4 + 2 * 1)[0]  # the nodes
    struct.pack_into("<I", damaged, place, 0x7FFFFFFF)
    found = inspect_pte(bytes(damaged))
    (delegate,) = forward(found).delegates
    assert delegate.graph is None
    assert "error" in delegate.unread
    assert found.sums() == whole.sums()
    assert delegate.unread in str(found)


def test_overlapping_segments_are_refused(cumsum: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from executorch.exir._serialize import _flatbuffer_program

    read = _flatbuffer_program._flatbuffer_to_program

    def overlapping(given: bytes) -> Any:
        program = read(given)
        program.segments[2].offset = program.segments[1].offset
        program.segments[3].offset = program.segments[1].offset
        program.segments[2].size = program.segments[1].size * 2
        for delegate in program.execution_plan[0].delegates:
            delegate.id = "AnotherBackend"
        return program

    monkeypatch.setattr(_flatbuffer_program, "_flatbuffer_to_program", overlapping)
    with pytest.raises(PteFormatError, match="segments overlap"):
        inspect_pte(cumsum.pte)


def test_nothing_is_loaded_or_executed(
    cumsum: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from executorch.runtime import Runtime

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the program was given to the runtime")

    monkeypatch.setattr(Runtime, "load_program", refuse)
    assert inspect_pte(cumsum.pte).methods
    assert compare_pte(cumsum.pte, cumsum.pte + b"\0")
    assert capfd.readouterr() == ("", "")


def test_arguments_are_refused_as_by_the_runner(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        inspect_pte(tmp_path / "no.pte")
    with pytest.raises(IsADirectoryError):
        inspect_pte(tmp_path)
    with pytest.raises(PteFormatError, match="a text file"):
        inspect_pte(b"hello, this is a text")
    with pytest.raises(TypeError, match="got int"):
        inspect_pte(5)  # type: ignore[arg-type]


# --- how it is shown


def test_the_checksum_beside_the_file(conv: Program, tmp_path: Path) -> None:
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    found = inspect_pte(path)
    assert (found.name, found.checksum) == ("conv.pte", "agrees")
    assert found.sha256 == hashlib.sha256(conv.pte).hexdigest()
    assert not found.problems
    (tmp_path / "conv.pte.sha256").write_text("0" * 64 + "  conv.pte\n")
    found = inspect_pte(str(path))
    assert found.checksum == "differs"
    assert "is damaged or was replaced" in found.problems[0]
    (tmp_path / "conv.pte.sha256").unlink()
    assert inspect_pte(path).checksum == inspect_pte(conv.pte).checksum == "none"


class Page(html.parser.HTMLParser):
    """What a browser would load besides the page, and what stands in it."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.alts: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.sources += [value or "" for key, value in attrs if key in ("src", "href", "srcset")]
        if tag == "img":
            self.alts.append(given.get("alt") or "")
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def read_page(shown: str) -> Page:
    page = Page()
    page.feed(shown)
    assert page.open == [], "every tag is closed"
    return page


def test_a_page_opens_alone_and_says_all(course: Program, tmp_path: Path) -> None:
    found = inspect_pte(save_pte(course.pte, tmp_path / "<course>.pte"))
    path = found.to_html(tmp_path / "page.html")
    shown = path.read_text("utf-8")
    page = read_page(shown)
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert "@import" not in shown
    assert "url(" not in shown
    assert "prefers-color-scheme" in shown or "color-scheme: light dark" in shown
    assert 'name="viewport"' in shown
    (alt,) = page.alts
    for part in found.parts:
        assert f"{part.bytes:,} B" in alt
    for node in graph(found).nodes:
        assert node.name in page.words
    for data in found.stored:
        assert found.without_method(data.name) in page.words
    assert any(found.sha256 in words for words in page.words)
    assert "<course>.pte" in page.words


def test_a_cell_shows_the_same(cumsum: Program) -> None:
    found = inspect_pte(cumsum.pte)
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == str(found)
    page = read_page(bundle["text/html"])
    assert len(page.alts) == 1
    assert "style" not in bundle["text/html"], "sanitizers drop it"
    assert "aten::cumsum.out" in page.words
    assert repr(found) == f"PteInspection(program, {len(cumsum.pte):,} B, methods forward)"


def test_a_long_program_is_cut_off_in_text_only(tmp_path: Path) -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(30):
                x = x.cumsum(1)
            return x

    found = inspect_pte(portable(Long().eval(), (X,)))
    assert forward(found).operators[0].calls == 30
    assert "… 6 more" in str(found)
    assert str(found).count("aten::cumsum.out  float32") == 24
    words = read_page(found.to_html(tmp_path / "long.html").read_text("utf-8")).words
    assert words.count("aten::cumsum.out") == 31


def test_json_holds_what_the_result_holds(programs: dict[str, bytes]) -> None:
    for data in programs.values():
        found = inspect_pte(data)
        read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert sum(part["bytes"] for part in read["parts"]) == read["size"]
        assert [m["name"] for m in read["methods"]] == [m.name for m in found.methods]
        assert read["problems"] == []
    nodes = inspect_pte(programs["course"]).to_dict()["methods"][0]["delegates"][0]["graph"][
        "nodes"
    ]
    assert nodes[2]["clamp"] == [0.0, "inf"]


def test_the_picture_is_of_the_whole() -> None:
    picture = bars("file", [(f"part {i}", 10 + i) for i in range(30)], most=10)
    assert len(picture.rows) == 10
    assert picture.total == sum(10 + i for i in range(30))
    assert picture.rows[-1][0] == "21 smaller parts"
    assert "part 29" in picture.alt
    assert picture.svg.count("<text") == 20
    assert "<text" in bars("", [("<b>&" + "x" * 90, 0)]).svg


def test_sections_as_text() -> None:
    shown = text(
        [
            Section("", "first"),
            Section("list", table([(i,) for i in range(5)], ["n"]), 1),
            Section("page only", "not in text", 2),
        ],
        rows=3,
    )
    assert shown == "first\n\nlist\nn\n-\n0\n1\n2\n… 2 more"


# --- two files


def test_equal_files_have_no_difference(course: Program) -> None:
    difference = compare_pte(course.pte, course.pte)
    assert not difference
    assert difference.changes == ()
    assert str(difference) == "a and b: no difference, the bytes are the same"


def changes_of(a: bytes, b: bytes) -> dict[str, tuple[str, str]]:
    return {change.what: (change.a, change.b) for change in compare_pte(a, b).changes}


def test_fp32_to_int8(course: Program, course_fp32: Program) -> None:
    changes = changes_of(course_fp32.pte, course.pte)
    assert changes["size"] == (f"{len(course_fp32.pte):,} B", f"{len(course.pte):,} B")
    assert changes["delegate 0: Convert"] == ("", "1 × float32 → int8; 1 × int8 → float32")
    assert changes["delegate 0: MaxPooling2d"] == ("2 × float32", "2 × int8")
    assert changes["delegate 0, Conv2d 1, filter"] == (
        "float32 (16, 3, 3, 16) 9,216 B", "int8 per channel (16, 3, 3, 16) 2,304 B",
    )  # fmt: skip
    assert changes["delegate 0, Conv2d 1, scales of filter"] == ("", "float32 (16) 64 B")
    assert not {"input 0", "output 0", "arena 0", "order of execution"} & changes.keys()


def test_one_delegate_to_two(conv: Program, cumsum: Program) -> None:
    changes = changes_of(conv.pte, cumsum.pte)
    assert changes["order of execution"] == (
        "delegate 0", "delegate 0 · aten::cumsum.out · delegate 1",
    )  # fmt: skip
    assert changes["calls of aten::cumsum.out"] == ("", "1")
    assert changes["delegate 1"] == ("", "XnnpackBackend")
    assert changes["input 0"] == ("float32 (1, 3, 8, 8)", "float32 (1, 3, 16, 16)")
    back = changes_of(cumsum.pte, conv.pte)
    assert back == {what: (b, a) for what, (a, b) in changes.items()}


def test_only_the_weights_differ(product: bytes) -> None:
    other = portable(Product(seed=1).eval(), (X,))
    changes = changes_of(product, other)
    assert changes.keys() == {"SHA-256", "aten::mm.out 0, argument 1"}
    before, after = changes["aten::mm.out 0, argument 1"]
    held = [Product(seed=seed).matrix.numpy().tobytes() for seed in (0, 1)]
    marks = [hashlib.sha256(data).hexdigest()[:8] for data in held]
    assert before == f"float32 (3, 4) 48 B, SHA-256 {marks[0]}…"
    assert after == f"float32 (3, 4) 48 B, SHA-256 {marks[1]}…"


def test_only_the_scales_differ(conv: Program, conv_dynamic: Program) -> None:
    """The graphs have the same nodes and other shapes."""
    changes = changes_of(conv.pte, conv_dynamic.pte)
    assert "delegate 0: shapes, scales or settings of its nodes" in changes
    assert changes["input 0"] == ("float32 (1, 3, 8, 8)", "float32 (1…8, 3, 8, 8)")


def test_any_byte_makes_a_difference(conv: Program) -> None:
    difference = compare_pte(conv.pte, conv.pte + b"\0")
    assert [c.what for c in difference.changes] == ["SHA-256", "size", "bytes of other"]


def test_a_difference_is_shown(course: Program, course_fp32: Program, tmp_path: Path) -> None:
    paths = [
        save_pte(program.pte, tmp_path / name)
        for name, program in (("fp32.pte", course_fp32), ("int8.pte", course))
    ]
    difference = compare_pte(*paths)
    shown = str(difference)
    bundle = difference._repr_mimebundle_()
    page = read_page(difference.to_html(tmp_path / "page.html").read_text("utf-8"))
    words = read_page(bundle["text/html"]).words
    assert bundle["text/plain"] == shown
    for change in difference.changes:
        assert change.what in shown
        assert change.what in words
        assert change.what in page.words
    assert "fp32.pte → int8.pte" in page.words
    assert repr(difference).startswith("PteDifference(fp32.pte → int8.pte, ")
    assert len(difference.to_dict()["changes"]) == len(difference.changes)
    assert compare_pte(paths[0], paths[0]).a == "fp32.pte (first)"


def test_stored_data_without_readers() -> None:
    data = StoredData(("key",), "named data", "", None, 3, "", ())
    assert (data.name, data.owners) == ("key", ())
    assert StoredData((), "constants", "", None, 3, "", ()).name == "not used"


# --- the command


def test_the_command_on_one_file(
    conv: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == f"{inspect_pte(path)}\n"
    assert main([str(path), "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out) == inspect_pte(path).to_dict()
    assert "Conv2d" in (tmp_path / "page.html").read_text("utf-8")


def test_the_command_refuses_in_words(
    conv: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.pte").write_text("hello, this is a text")
    for name, said in (("text.pte", "a text file"), ("no.pte", "no such file")):
        assert main([str(tmp_path / name)]) == 1
        assert said in capsys.readouterr().err
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    path.write_bytes(conv.pte + b"\0")
    assert main([str(path)]) == 1
    assert "conv.pte differs from its .sha256 file" in capsys.readouterr().err


def test_the_command_on_two_files(
    conv: Program, conv_dynamic: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (
        str(save_pte(program.pte, tmp_path / name))
        for name, program in (("a.pte", conv), ("b.pte", conv_dynamic))
    )
    assert main([a, b]) == 0
    assert main([a, b, "--exit-code"]) == 1
    assert "a.pte" in capsys.readouterr().out
    assert main([a, a, "--exit-code", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []


@pytest.mark.parametrize(
    "arguments", [[], ["a", "b", "c"], ["a", "--exit-code"], ["a", "--unknown"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m common.inspection" in capsys.readouterr().err


def test_the_module_is_the_command(
    conv: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    monkeypatch.setattr(sys, "argv", ["inspection", str(path)])
    monkeypatch.delitem(sys.modules, "common.inspection")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("common.inspection", run_name="__main__")
    assert ended.value.code == 0
    assert "XnnpackBackend" in capsys.readouterr().out


# --- the reader of flatbuffers


SCHEMA = """
// a comment
enum Color : ubyte { red = 1, green, blue = 7 }
union Shape { Round, Square: Box }
table Round { radius: float = 1.5; }
table Box { side: int (deprecated); }
table Root { color: Color = green; shape: Shape; names: [string]; more: [Box]; n: long = -3; }
root_type Root;
"""


def test_a_schema_is_read() -> None:
    schema = Schema.parse(SCHEMA)
    assert schema.root == "Root"
    assert schema.enums["Color"] == ({1: "red", 2: "green", 7: "blue"}, "ubyte")
    assert schema.unions["Shape"] == (("Round", "Round"), ("Square", "Box"))
    # a union has two places: which member it is, and the member
    assert [(name, slot) for name, _, slot, _ in schema.tables["Root"]] == [
        ("color", 0), ("shape", 2), ("names", 3), ("more", 4), ("n", 5)
    ]  # fmt: skip


def test_what_is_left_out_has_its_default() -> None:
    # an empty root table: its list of fields at 4 (two sizes), the table at 8
    data = struct.pack("<IHHi", 8, 4, 4, 4)
    assert Schema.parse(SCHEMA).read(data) == {
        "color": "green", "shape": None, "names": [], "more": [], "n": -3
    }  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08\0\0\0", struct.pack("<Ii", 4, 1000), struct.pack("<I", 0xFFFFFFFF)],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        Schema.parse(SCHEMA).read(data)
