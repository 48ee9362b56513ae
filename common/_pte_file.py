"""The ``.pte`` file format: is it one, what does it expect, where are its bytes.

A ``.pte`` is a flatbuffer (identifier ``ET12`` at byte 4), optionally an extended header
(``eh00`` at byte 8) and, after the flatbuffer, data segments: delegate blobs, constants, weights.
Source: ExecuTorch 1.5.1, ``exir/_serialize/_program.py`` and ``schema/program.fbs``.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import struct
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from common._damage import check_description
from common._errors import PteFormatError
from common._runtime import check_consistency
from common._shapes import Bounds, Dimensions, is_entry, read_bounds
from common._text import torch_name

IDENTIFIER = b"ET12"
STATIC = 0  # executorch.exir.schema.TensorShapeDynamism.STATIC

_OTHER_FORMATS = (
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` to get the real file"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x80\x02", "a pickle, as torch.save wrote before version 1.6"),
    (b"\x7fELF", "a program of the operating system"),
)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor input or output of a program.

    Attributes:
        shape: sizes; of a dynamic tensor the largest that the program was planned for.
        dtype: element type.
        dim_order: dimensions from the slowest to the fastest in memory; ``(0, 1, 2, 3)`` is
            contiguous, ``(0, 2, 3, 1)`` is channels_last.
        dynamic: whether some dimension may be smaller than in ``shape``.
        minimum: smallest sizes of a dynamic tensor, equal to those in ``shape`` where a dimension
            does not move; ``None`` where the file does not say (``lower_to_xnnpack`` writes it).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim_order: tuple[int, ...]
    dynamic: bool
    minimum: tuple[int, ...] | None = None

    def __str__(self) -> str:
        sizes = [f"≤{n}" if self.dynamic else str(n) for n in self.shape]
        if self.minimum is not None:
            both = zip(self.minimum, self.shape, strict=True)
            sizes = [str(most) if least == most else f"{least}…{most}" for least, most in both]
        shape = ", ".join(sizes) + ("," if len(self.shape) == 1 else "")
        plain = self.dim_order == tuple(range(len(self.shape)))
        layout = "" if plain else f" dim order {self.dim_order}"
        return f"{torch_name(self.dtype)} ({shape}){layout}"


@dataclass(frozen=True)
class ScalarSpec:
    """An input or output that is no tensor: a number, a bool, a string or None.

    Attributes:
        kind: ``Int``, ``Double``, ``Bool``, ``String`` or ``Null``.
        value: the value that was fixed at export.
    """

    kind: str
    value: Any

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.value}"


@dataclass(frozen=True)
class PteContents:
    """What a ``.pte`` holds, read without loading it. All sizes are in bytes.

    In a file with one method, the four parts and the padding add up to the size.

    Attributes:
        size: the whole file.
        program: the flatbuffer: instructions, tensor descriptions, operator names.
        weights: constants, those of the delegates included.
        delegate_blobs: what the delegates stored for themselves, one entry a delegate; XNNPACK
            puts its graph here and its weights into ``weights``.
        padding: alignment between the parts.
        arena: planned memory that the program needs at run time, outside its delegates.
        inputs: of the method.
        outputs: of the method.
        delegates: backend name of each delegate, in order.
        operators: operators that run outside the delegates, as ``aten::cumsum.out``.
        methods: names of all methods in the file, without the entry on shapes that
            ``lower_to_xnnpack`` adds where they are dynamic.
    """

    size: int
    program: int
    weights: int
    delegate_blobs: tuple[int, ...]
    padding: int
    arena: int
    inputs: tuple[TensorSpec | ScalarSpec, ...]
    outputs: tuple[TensorSpec | ScalarSpec, ...]
    delegates: tuple[str, ...]
    operators: tuple[str, ...]
    methods: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.size:,} B: weights {self.weights:,}, delegates {sum(self.delegate_blobs):,}, "
            f"program {self.program:,}, padding {self.padding:,}; arena {self.arena:,}",
            *(f"input {i}: {spec}" for i, spec in enumerate(self.inputs)),
            *(f"output {i}: {spec}" for i, spec in enumerate(self.outputs)),
            f"delegates: {', '.join(self.delegates) or 'none'}",
            f"operators outside: {', '.join(self.operators) or 'none'}",
        ]
        return "\n".join(lines)


def read_pte(path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bytes:
    """Return the bytes of a program and make sure that they are a whole one.

    Raises:
        TypeError: neither a path nor bytes.
        FileNotFoundError, IsADirectoryError: the path leads to no file.
        PteFormatError: the file is something else, or is cut off.
    """
    if isinstance(path_or_bytes, bytes | bytearray | memoryview):
        data, name = bytes(path_or_bytes), "the bytes given"
    elif isinstance(path_or_bytes, (str, os.PathLike)):
        path = Path(path_or_bytes).expanduser()
        # Windows reports a directory as a PermissionError
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory; expected a .pte file")
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file; expected a .pte file")
        # Not mapped: re-running a cell rewrites the file, and a mapping would change or die.
        data, name = path.read_bytes(), str(path)
    else:
        raise TypeError(
            "expected the path of a .pte file or its bytes, "
            f"got {type(path_or_bytes).__name__}{_hint(path_or_bytes)}"
        )
    _check_header(data, name)
    return data


def pte_contents(
    path_or_bytes: str | os.PathLike[str] | bytes, *, method: str = "forward"
) -> PteContents:
    """Say what a ``.pte`` holds, without loading it.

    Args:
        path_or_bytes: path of a ``.pte``, or its bytes.
        method: the method whose inputs, outputs, delegates and operators are listed.

    Raises:
        TypeError, FileNotFoundError, IsADirectoryError, PteFormatError: as for ``PteRunner``.
        ValueError: the program has no such method.

    Example:
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> _, pte = lower_to_xnnpack(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
        >>> contents = pte_contents(pte)
        >>> contents.delegates, str(contents.inputs[0])
        (('XnnpackBackend',), 'float32 (1, 4)')
    """
    data = read_pte(path_or_bytes)
    program = parse_program(data)
    plan = find_plan(program, method)
    segments = [s.size for s in program.segments]
    inline = [len(d.data) for d in program.backend_delegate_data]

    def blob_size(delegate: Any) -> int:
        where = segments if _in_segment(delegate) else inline
        return where[delegate.processed.index]

    all_delegates = [d for p in program.execution_plan for d in p.delegates]
    blob_segments = {d.processed.index for d in all_delegates if _in_segment(d)}
    constants = sum(len(b.storage) for b in program.constant_buffer)
    weights = sum(size for i, size in enumerate(segments) if i not in blob_segments)
    head = flatbuffer_size(data)
    inputs, outputs = method_specs(plan, read_bounds(program, plan))
    return PteContents(
        size=len(data),
        program=head - sum(inline) - constants,
        weights=weights + constants,
        delegate_blobs=tuple(blob_size(d) for d in plan.delegates),
        padding=len(data) - head - sum(segments),
        arena=sum(plan.non_const_buffer_sizes[1:]),
        inputs=inputs,
        outputs=outputs,
        delegates=tuple(d.id for d in plan.delegates),
        operators=tuple(operator_names(plan)),
        methods=tuple(p.name for p in program.execution_plan if not is_entry(p.name)),
    )


def parse_program(data: bytes) -> Any:
    """Return the flatbuffer as ``executorch.exir.schema.Program``, segments not read."""
    program = read_description(data)
    # The parser above takes what it finds: a name cut short, None for a table that is missing.
    # It comes first all the same, since C++ aborts when it logs a name that is not UTF-8.
    check_consistency(data)
    return program


def read_description(data: bytes) -> Any:
    """Return what ``parse_program`` does, as far as that is known without C++."""
    from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program

    try:
        program = _flatbuffer_to_program(data[: flatbuffer_size(data)])
    except Exception as error:  # the parser of damaged bytes can raise anything
        raise PteFormatError(
            f"the program is damaged: its description cannot be read ({type(error).__name__}: "
            f"{error}). Export it again, or copy the file again."
        ) from error
    check_description(program, data, segment_base(data))
    return program


def _in_segment(delegate: Any) -> bool:
    return int(delegate.processed.location) == 1  # DataLocation.SEGMENT, else inside the flatbuffer


def find_plan(program: Any, method: str) -> Any:
    """Return the execution plan of a method."""
    plans = {plan.name: plan for plan in program.execution_plan}
    if method not in plans:
        names = [name for name in plans if not is_entry(name)]
        raise ValueError(f"the program has no method {method!r}; it has: {', '.join(names)}")
    return plans[method]


def value_spec(value: Any) -> TensorSpec | ScalarSpec:
    """Describe one value of an execution plan."""
    from executorch.exir.tensor import get_scalar_type

    if not hasattr(value, "scalar_type"):
        return ScalarSpec(type(value).__name__, next(iter(vars(value).values()), None))
    return TensorSpec(
        shape=tuple(value.sizes),
        dtype=get_scalar_type(value.scalar_type),
        dim_order=tuple(value.dim_order),
        dynamic=int(value.shape_dynamism) != STATIC,
    )


Specs = tuple[TensorSpec | ScalarSpec, ...]


def method_specs(plan: Any, bounds: Bounds | None) -> tuple[Specs, Specs]:
    """Describe the inputs and the outputs of a method, with the bounds that the file holds."""

    def described(indices: Sequence[int], dims: Sequence[Dimensions | None] | None) -> Specs:
        specs = [value_spec(plan.values[i].val) for i in indices]
        for i, known in enumerate(dims or ()):
            spec = specs[i]
            if known and isinstance(spec, TensorSpec) and spec.dynamic:
                specs[i] = replace(spec, minimum=tuple(dim.low for dim in known))
        return tuple(specs)

    found = (bounds.inputs, bounds.outputs) if bounds else (None, None)
    return described(plan.inputs, found[0]), described(plan.outputs, found[1])


def output_structure(plan: Any) -> pytree.TreeSpec | None:
    """Return the structure of what the model's ``forward`` returned, as the file stores it.

    ``None`` for a file without the entry, or one whose outputs are more than the model's
    (ExecuTorch adds changed inputs).
    """
    try:
        spec = pytree.treespec_loads(plan.container_meta_type.encoded_out_str)
    except (
        AttributeError, KeyError, NotImplementedError, RecursionError, TypeError, ValueError
    ):  # fmt: skip
        return None  # written by another tool, or for a type that is not known here
    return spec if spec.num_leaves == len(plan.outputs) else None


def is_nested(spec: pytree.TreeSpec) -> bool:
    """Tell whether outputs are more than a tensor, or a tuple of tensors."""
    flat = spec.type is tuple and all(child.is_leaf() for child in spec.children())
    return not (spec.is_leaf() or flat)


def operator_names(plan: Any) -> list[str]:
    """Return the operators that a plan calls, spelled as the runtime's registry does."""
    return [f"{op.name}.{op.overload}" if op.overload else op.name for op in plan.operators]


def flatbuffer_size(data: bytes) -> int:
    """Return the size of the flatbuffer at the head of the file."""
    header = _extended_header(data)
    return header[0] if header else len(data)


def segment_base(data: bytes) -> int:
    """Return where the segments behind the flatbuffer start: the end where there are none."""
    header = _extended_header(data)
    return header[1] if header else len(data)


def save_pte(pte: bytes, path: str | os.PathLike[str]) -> Path:
    """Write a program to a file, and its SHA-256 beside it.

    The file is complete or not there: it is written under another name and then renamed, so a
    program that is loaded from the old file goes on. ``<path>.sha256`` has the format of
    ``sha256sum``; ``PteRunner`` compares it when it is there. It finds damage, not tampering.

    Args:
        pte: a whole program, as ``lower_to_xnnpack`` returns it.
        path: file to write; its folder must exist.

    Returns:
        The path written.

    Raises:
        TypeError, PteFormatError: ``pte`` is not the bytes of a program.
        FileNotFoundError: the folder does not exist.

    Example:
        >>> save_pte(b"not a program", "model.pte")
        Traceback (most recent call last):
        ...
        common._errors.PteFormatError: the bytes given: not an ExecuTorch program but a text file
    """
    if not isinstance(pte, bytes | bytearray | memoryview):
        raise TypeError(f"pte: expected bytes, got {type(pte).__name__}{_hint(pte)}")
    data, target = read_pte(pte), Path(path).expanduser()
    checksum = _checksum_path(target)
    # Old checksum first: a stop in between leaves a file without one, never with a wrong one.
    checksum.unlink(missing_ok=True)
    _write_atomically(target, data)
    _write_atomically(checksum, f"{hashlib.sha256(data).hexdigest()}  {target.name}\n".encode())
    return target


def verify_checksum(path: str | os.PathLike[str], data: bytes) -> None:
    """Compare ``data`` with the ``.sha256`` file beside ``path``; do nothing without one."""
    checksum = _checksum_path(Path(path).expanduser())
    try:
        expected = checksum.read_text("utf-8", "replace").split(maxsplit=1)[:1]
    except FileNotFoundError:
        return
    if expected != [hashlib.sha256(data).hexdigest()]:
        raise PteFormatError(
            f"{path} is not the file that {checksum.name} was written for: it is damaged or was "
            "replaced. Save it again with save_pte, or delete the .sha256 file."
        )


def _checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _write_atomically(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes it private to the user
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _check_header(data: bytes, name: str) -> None:
    # Before any C++: a log line with bytes that are not UTF-8 aborts the process.
    if data[4:8] != IDENTIFIER:
        raise PteFormatError(f"{name}: not an ExecuTorch program but {_what_is(data)}")
    header = _extended_header(data)
    if header:
        program_size, segment_base, segment_size = header
        expected = max(program_size, segment_base + segment_size)
    else:
        # Without a header the flatbuffer is the whole file: its root must lie inside.
        expected = struct.unpack_from("<I", data)[0] + 4
    if len(data) < expected:
        raise PteFormatError(
            f"{name}: cut off, {len(data):,} of at least {expected:,} bytes are there. "
            "Copy or export it again."
        )


def _extended_header(data: bytes) -> tuple[int, int, int] | None:
    """Return (flatbuffer size, segment base, segment size), or None where there is no header."""
    if data[8:12] != b"eh00" or len(data) < 40:
        return None
    length, program_size, segment_base, segment_size = struct.unpack_from("<IQQQ", data, 12)
    return program_size, segment_base, segment_size if length >= 32 else 0


def _what_is(data: bytes) -> str:
    if not data:
        return "an empty file"
    for magic, what in _OTHER_FORMATS:
        if data.startswith(magic):
            return what
    if data.startswith(b"PK\x03\x04"):
        return _what_zip(data)
    tag = data[4:8]
    if tag == b"BP08":
        return "a bundled program (with test inputs): extract the program first"
    if tag[:2] == b"FT":
        return "an external weights file (.ptd): the program is another file"
    if tag[:2] == b"ET" and tag[2:].isdigit():
        return f"a program of format {tag.decode()}; this runtime reads {IDENTIFIER.decode()}"
    if IDENTIFIER in data[:64] or data[4:7] == IDENTIFIER[:3]:
        return "a damaged program (was it copied as text?)"
    try:  # incremental: the window may end inside a character
        head = codecs.getincrementaldecoder("utf-8")().decode(data[:512], len(data) <= 512)
    except UnicodeDecodeError:
        return "unknown data"
    if head.lstrip().lower().startswith(("<!doctype", "<html")):
        return "an HTML page, perhaps an error page saved by a download"
    has_controls = any(ord(c) < 32 and c not in "\t\n\r\f" for c in head)
    return "unknown data" if has_controls else "a text file"


def _what_zip(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile:
        return "a damaged zip archive"
    if "archive_format" in names:
        return "a .pt2 archive of torch.export.save: lower it first"
    if "constants.pkl" in names:
        return "a TorchScript file: export the model with torch.export instead"
    if "data.pkl" in names:
        return "a torch.save file: load the model with torch.load and lower it first"
    return "a zip archive"


def _hint(value: object) -> str:
    if hasattr(value, "exported_program"):
        return ". lower_to_xnnpack returns (edge, pte): pass the second"
    if hasattr(value, "buffer"):
        return ". Pass its .buffer"
    if isinstance(value, tuple):
        return ". lower_to_xnnpack returns a tuple (edge, pte): pass its second item"
    return ""
