"""What a `.pte` is, what it is not, what is in it, and how it is written."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import stat
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from common import _pte_file
from common.executorch_utils import (
    PteError,
    PteFormatError,
    PteLoadError,
    PteRunner,
    ScalarSpec,
    TensorSpec,
    pte_contents,
    save_pte,
)
from tests.programs import Program, TwoLinear, portable

# --- what is no program


def saved(save) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def zipped() -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("readme.txt", "hello")

    return saved(write)


def pt2() -> bytes:
    exported = torch.export.export(nn.ReLU().eval(), (torch.zeros(1),))
    return saved(lambda buffer: torch.export.save(exported, buffer))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"

OTHER_FILES = {
    "empty": (b"", "an empty file"),
    "text": (b"Hello, this is a text.\n", "a text file"),
    "utf-8 text": ("模型在這裡\n".encode(), "a text file"),
    "long text": ("é".encode() * 4000, "a text file"),
    "html": (b"\n <!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
    "html without doctype": (b"<HTML>moved</HTML>", "an HTML page"),
    "git lfs pointer": (LFS, r"a Git LFS pointer: run `git lfs pull`"),
    "zip": (zipped(), "a zip archive"),
    "pt2": (pt2(), r"a \.pt2 archive of torch\.export\.save: lower it first"),
    "torch.save": (
        saved(lambda b: torch.save(nn.Linear(2, 2).state_dict(), b)),
        r"a torch\.save file: load the model with torch\.load",
    ),
    "old torch.save": (
        saved(lambda b: torch.save({}, b, _use_new_zipfile_serialization=False)),
        r"a pickle, as torch\.save wrote",
    ),
    "cut off zip": (zipped()[:-30], "a damaged zip archive"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr'", "a NumPy array file"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(20), "a gzip archive"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(20), "a program of the operating system"),
    "bundled program": (b"\x20\0\0\0BP08" + bytes(60), r"a bundled program \(with test inputs\)"),
    "weights": (b"\x20\0\0\0FT01" + bytes(60), r"an external weights file \(\.ptd\)"),
    "older format": (b"\x20\0\0\0ET11" + bytes(60), "a program of format ET11; .* reads ET12"),
    "newer format": (b"\x20\0\0\0ET13" + bytes(60), "a program of format ET13; .* reads ET12"),
    "zeros": (bytes(4096), "unknown data"),
    "not utf-8": (b"\0\0\0\0\xff\xfe\xfd\xfc" * 9, "unknown data"),
    "shifted by a newline": (b"\n\x20\0\0\0ET12" + bytes(60), r"a damaged program \(.*as text"),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_another_file_is_named(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, what = OTHER_FILES[kind]
    path = tmp_path / "model.pte"
    path.write_bytes(data)
    said = f"not an ExecuTorch program but {what}"
    with pytest.raises(PteFormatError, match=rf"model\.pte: {said}"):
        PteRunner(path)
    with pytest.raises(PteFormatError, match=f"^the bytes given: {said}"):
        PteRunner(data)
    with pytest.raises(PteFormatError, match=what):
        pte_contents(path)
    assert capfd.readouterr() == ("", "")


def test_format_errors_are_value_errors() -> None:
    assert issubclass(PteFormatError, ValueError)
    assert issubclass(PteFormatError, PteError)
    assert not issubclass(PteLoadError, ValueError)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    for read in (PteRunner, pte_contents):
        with pytest.raises(FileNotFoundError, match=r"no\.pte: no such file; expected a \.pte"):
            read(str(tmp_path / "no.pte"))
        with pytest.raises(IsADirectoryError, match=r"is a directory; expected a \.pte file"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (None, "got NoneType$"),
        (5, "got int$"),
        (torch.zeros(3), "got Tensor$"),
        (("edge", b"pte"), r"got tuple\. lower_to_xnnpack returns a tuple .* second item$"),
        (io.BytesIO(b"x"), "got BytesIO"),
    ],
)
def test_neither_path_nor_bytes(thing, said: str) -> None:
    for read in (PteRunner, pte_contents):
        with pytest.raises(TypeError, match=rf"expected the path of a \.pte file or its.*{said}"):
            read(thing)


def test_hints_for_what_lowering_returns(conv: Program) -> None:
    with pytest.raises(TypeError, match=r"\(edge, pte\): pass the second$"):
        PteRunner(conv.edge)
    with pytest.raises(TypeError, match=r"pte: expected bytes, got EdgeProgramManager.*second$"):
        save_pte(conv.edge, "model.pte")


def test_a_path_may_use_the_home_folder(
    conv: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert save_pte(conv.pte, "~/模型.pte") == tmp_path / "模型.pte"
    assert pte_contents("~/模型.pte").size == len(conv.pte)
    assert PteRunner("~/模型.pte").delegates == ("XnnpackBackend",)


# --- what is a damaged program


def lengths(data: bytes) -> list[int]:
    """Lengths to cut at: the first hundred, the last twenty, and sixty in between."""
    between = random.Random(0).sample(range(100, len(data) - 20), 60)
    return [*range(100), *between, *range(len(data) - 20, len(data))]


@pytest.mark.parametrize("name", ["conv", "counter", "headerless"])
def test_a_program_cut_off_anywhere_is_refused(
    name: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    found = request.getfixturevalue(name)
    data = found if isinstance(found, bytes) else found.pte
    PteRunner(data)
    for length in lengths(data):
        with pytest.raises((PteFormatError, PteLoadError)):
            PteRunner(data[:length])
        if length >= 8 and name != "headerless":
            with pytest.raises(PteFormatError, match=rf"cut off, {length:,} of at least [\d,]+ b"):
                pte_contents(data[:length])
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def headerless() -> bytes:
    """A program without constants has no extended header, and its size stands nowhere."""
    data = portable(nn.ReLU().eval(), (torch.zeros(2),))
    assert data[8:12] != b"eh00"
    return data


@pytest.mark.parametrize("head", [b"", b"\0\0\0\0ET12", b"\x3c\0\0\0ET12eh00\x20\0\0\0"])
def test_random_bytes_are_refused(head: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """With an identifier, too: the parser in Python finds nothing or raises anything."""
    generator = random.Random(1)
    for size in (0, 1, 7, 30, 60, 400, 4000):
        for _ in range(5):
            with pytest.raises(PteError):
                PteRunner(head + generator.randbytes(size))
            with pytest.raises(PteFormatError):
                pte_contents(head + generator.randbytes(size))
    assert capfd.readouterr() == ("", "")


def test_more_bytes_than_the_program_are_accepted(conv: Program) -> None:
    """As the raw API does; a download may be padded."""
    (x,) = conv.example
    assert torch.equal(PteRunner(conv.pte + bytes(100))(x), PteRunner(conv.pte)(x))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_bytes(conv: Program, kind) -> None:
    (x,) = conv.example
    given = kind(conv.pte)
    runner = PteRunner(given)
    if kind is bytearray:
        given[:] = bytes(len(given))  # the runner has its own
    assert torch.allclose(runner(x), conv.model(x), atol=1e-6)


# --- pte_contents


def segments(data: bytes) -> tuple[int, int]:
    """Program size and offset of the segments, read as the format says."""
    assert data[4:12] == b"ET12eh00"
    _, program_size, segment_base = struct.unpack_from("<IQQ", data, 12)
    return program_size, segment_base


def check_against_executorch(data: bytes) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.schema import Tensor

    contents = pte_contents(data)
    pte_file = deserialize_pte_binary(data)
    plan = pte_file.program.execution_plan[0]
    assert contents.size == len(data)
    assert contents.arena == sum(plan.non_const_buffer_sizes)
    assert contents.delegates == tuple(d.id for d in plan.delegates)
    assert [o.partition(".")[0] for o in contents.operators] == [o.name for o in plan.operators]
    # Deserializing brings the delegates' blobs and the constants back inside.
    blobs = [d.data for d in pte_file.program.backend_delegate_data]
    assert sorted(contents.delegate_blobs) == sorted(map(len, blobs))
    for indices, specs in ((plan.inputs, contents.inputs), (plan.outputs, contents.outputs)):
        values = [plan.values[i].val for i in indices]
        assert len(values) == len(specs)
        for value, spec in zip(values, specs, strict=True):
            assert isinstance(spec, TensorSpec) == isinstance(value, Tensor)
            if isinstance(spec, TensorSpec) and isinstance(value, Tensor):
                assert spec.shape == tuple(value.sizes)
                assert spec.dim_order == tuple(value.dim_order)


@pytest.mark.parametrize("name", ["conv", "counter", "headerless", "many_values"])
def test_contents_agree_with_executorch(name: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(name)
    data = found if isinstance(found, bytes) else found.pte
    check_against_executorch(data)
    c = pte_contents(data)
    assert c.program + c.weights + sum(c.delegate_blobs) + c.padding == c.size
    assert min(c.program, c.weights, c.padding) >= 0
    assert c.methods == ("forward",)


def test_contents_of_a_convolution(conv: Program) -> None:
    contents = pte_contents(conv.pte)
    program_size, _ = segments(conv.pte)
    assert contents.program == program_size
    assert contents.inputs == (TensorSpec((1, 3, 8, 8), torch.float32, (0, 1, 2, 3), False),)
    assert contents.outputs == (TensorSpec((1, 4, 8, 8), torch.float32, (0, 1, 2, 3), False),)
    assert contents.operators == ()
    parameters = sum(p.numel() for p in conv.model.parameters())
    assert 4 * parameters <= contents.weights < 4 * parameters + 100
    lines = str(contents).splitlines()
    assert lines[0].startswith(f"{len(conv.pte):,} B: weights {contents.weights:,}, delegates ")
    assert lines[1:] == [
        "input 0: float32 (1, 3, 8, 8)",
        "output 0: float32 (1, 4, 8, 8)",
        "delegates: XnnpackBackend",
        "operators outside: none",
    ]


def test_scalars_are_told(many_values: Program) -> None:
    x, ids, mask, times, plus = pte_contents(many_values.pte).inputs
    assert [str(s) for s in (x, ids, mask)] == ["float32 (3, 4)", "int64 (2,)", "bool (2,)"]
    assert (times, plus) == (ScalarSpec("Int", 3), ScalarSpec("Double", 0.5))
    assert [str(s) for s in (times, plus)] == ["int 3", "double 0.5"]


def test_layout_and_dynamism_are_told() -> None:
    batch = torch.export.Dim("batch", max=8)
    x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    exported = torch.export.export(nn.ReLU().eval(), (x,), dynamic_shapes=({0: batch},))
    (spec,) = pte_contents(portable(exported)).inputs
    assert spec == TensorSpec((8, 3, 4, 5), torch.float32, (0, 2, 3, 1), True)
    assert str(spec) == "float32 (≤8, ≤3, ≤4, ≤5) dim order (0, 2, 3, 1)"
    assert str(TensorSpec((), torch.int64, (), False)) == "int64 ()"


def test_parts_of_delegates_stored_inside_the_flatbuffer() -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    x = torch.zeros(2, 6)
    exported = torch.export.export(TwoLinear().eval(), (x, x.clone()))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    config = ExecutorchBackendConfig(extract_delegate_segments=False)
    data = edge.to_executorch(config).buffer
    check_against_executorch(data)
    c = pte_contents(data)
    assert len(c.delegate_blobs) == 1
    assert c.program + c.weights + sum(c.delegate_blobs) + c.padding == c.size


def test_an_unknown_method_is_refused_with_those_there_are(conv: Program) -> None:
    for read in (PteRunner, pte_contents):
        with pytest.raises(ValueError, match=r"no method 'backward'; it has: forward$"):
            read(conv.pte, method="backward")


# --- save_pte and the checksum


def test_save_writes_the_bytes_and_their_checksum(conv: Program, tmp_path: Path) -> None:
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    assert path == tmp_path / "conv.pte"
    assert path.read_bytes() == conv.pte
    digest = hashlib.sha256(conv.pte).hexdigest()
    assert (tmp_path / "conv.pte.sha256").read_text() == f"{digest}  conv.pte\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["conv.pte", "conv.pte.sha256"]
    assert PteRunner(path).inputs == PteRunner(conv.pte).inputs


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_sha256sum_accepts_the_checksum(conv: Program, tmp_path: Path) -> None:
    save_pte(conv.pte, tmp_path / "conv.pte")
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "conv.pte.sha256"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_saved_files_have_the_usual_mode(conv: Program, tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        path = save_pte(conv.pte, tmp_path / "conv.pte")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_save_replaces_a_file_that_is_loaded(
    conv: Program, headerless: bytes, tmp_path: Path
) -> None:
    (x,) = conv.example
    path = save_pte(conv.pte, tmp_path / "model.pte")
    old = PteRunner(path)
    save_pte(headerless, path)
    assert torch.allclose(old(x), conv.model(x), atol=1e-6)
    assert PteRunner(path).inputs != old.inputs


@pytest.mark.parametrize("fails", [1, 2])
def test_an_interrupted_save_leaves_a_whole_file(
    conv: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Interrupted at the program it leaves the old one, at the checksum the new one."""
    path = tmp_path / "model.pte"
    old, new = conv.pte, conv.pte + bytes(16)
    save_pte(old, path)
    real, calls = os.replace, []

    def replace(*args) -> None:
        calls.append(args)
        if len(calls) == fails:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(_pte_file.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        save_pte(new, path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["model.pte"], "no checksum, no temporary file"
    assert path.read_bytes() == (old if fails == 1 else new)
    PteRunner(path)  # without its checksum it is no error


@pytest.mark.parametrize(
    ("bad", "error"),
    [(b"", PteFormatError), (b"text", PteFormatError), ("conv.pte", TypeError), (None, TypeError)],
)
def test_bad_input_writes_nothing(conv: Program, tmp_path: Path, bad, error) -> None:
    path = save_pte(conv.pte, tmp_path / "model.pte")
    with pytest.raises(error):
        save_pte(bad, path)
    with pytest.raises(PteFormatError, match="cut off"):
        save_pte(conv.pte[:-1], path)
    assert path.read_bytes() == conv.pte
    assert len(list(tmp_path.iterdir())) == 2
    PteRunner(path)


def test_save_into_a_missing_folder(conv: Program, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        save_pte(conv.pte, tmp_path / "missing" / "model.pte")
    assert not (tmp_path / "missing").exists()


def test_damage_is_found_by_the_checksum(conv: Program, tmp_path: Path) -> None:
    """The first of the checks: it needs nothing of what is inside the file."""
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    weight = conv.model.conv.weight.detach().flatten()[:1].numpy().tobytes()
    damaged = bytearray(conv.pte)
    damaged[conv.pte.rindex(weight) + 3] ^= 0x40
    path.write_bytes(damaged)
    with pytest.raises(PteFormatError, match=r"not the file that conv\.pte\.sha256 was written"):
        PteRunner(path)


@pytest.mark.parametrize("text", ["", "\n", "0" * 64, "\xff\xfe"])
def test_a_checksum_file_that_does_not_fit_is_refused(
    conv: Program, tmp_path: Path, text: str
) -> None:
    path = save_pte(conv.pte, tmp_path / "conv.pte")
    (tmp_path / "conv.pte.sha256").write_text(text, "latin-1")
    with pytest.raises(PteFormatError, match=r"delete the \.sha256 file"):
        PteRunner(path)
    (tmp_path / "conv.pte.sha256").unlink()
    PteRunner(path)
