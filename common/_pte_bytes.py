"""Where the bytes of a ``.pte`` are, and which of them are whose weights."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common._errors import PteFormatError
from common._pte_file import TensorSpec, flatbuffer_size, operator_names, segment_base, value_spec
from common._text import torch_name
from common._xnnpack_graph import XnnpackGraph, XnnpackNode

Graphs = Mapping[tuple[str, int], XnnpackGraph]
"""What could be read of the delegates, by method and number."""

_EXTERNAL, _IN_SEGMENT = 1, 1  # TensorDataLocation.EXTERNAL, DataLocation.SEGMENT


@dataclass(frozen=True)
class Part:
    """A part of the file.

    Attributes:
        kind: ``description`` (instructions, tensor descriptions, names), ``delegate`` (what
            delegates stored for themselves), ``weights``, ``state`` (first values of mutable
            buffers), ``other`` (segments that nothing refers to) or ``padding``.
        name: whose part it is.
        bytes: of the file. Those of all parts add up to its size.
    """

    kind: str
    name: str
    bytes: int


@dataclass(frozen=True)
class StoredData:
    """Weights or another constant, stored once.

    Attributes:
        keys: names among the program's named data; for external weights their name. Empty for
            the constants of operators.
        place: ``named data``, ``constants`` (of operators outside the delegates), ``delegate``
            (inside its blob), ``state`` (first values of a mutable buffer) or ``external``
            (in another file, a ``.ptd``).
        dtype: element type where it is known, with the kind of quantization:
            ``int8 per channel``. Else empty.
        shape: sizes where they are known, else None.
        bytes: without padding. Of external weights those that the other file must have.
        sha256: of the data; empty where they are external.
        users: what reads them, ``forward: delegate 0, Conv2d 1, filter``. Nodes of a kind are
            counted from 0.
    """

    keys: tuple[str, ...]
    place: str
    dtype: str
    shape: tuple[int, ...] | None
    bytes: int
    sha256: str
    users: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first user, or the key where no user is known."""
        names = self.users or self.keys
        return names[0] if names else "not used"

    @property
    def owners(self) -> tuple[str, ...]:
        """Users without the node: ``forward: delegate 0``."""
        return tuple(dict.fromkeys(user.partition(",")[0] for user in self.users))


class File:
    """A program and its bytes, by segment."""

    def __init__(self, program: Any, data: bytes) -> None:
        self.program, self.data = program, data
        self.base = segment_base(data)

    def segment(self, index: int) -> bytes:
        """The bytes of a segment."""
        segment = self.program.segments[index]
        start = self.base + segment.offset
        return self.data[start : start + segment.size]

    def blob(self, delegate: Any) -> bytes:
        """What a delegate stored for itself."""
        index = delegate.processed.index
        if in_segment(delegate):
            return self.segment(index)
        return bytes(self.program.backend_delegate_data[index].data)


def in_segment(delegate: Any) -> bool:
    """Whether a delegate's blob is a segment, and not inside the flatbuffer."""
    return int(delegate.processed.location) == _IN_SEGMENT


def stored_data(file: File, graphs: Graphs) -> tuple[StoredData, ...]:
    """Return all constants: of the delegates that can be read, of operators, of nobody known."""
    by_key, in_blobs = _delegate_constants(graphs)
    return (
        *_named_data(file, by_key),
        *_constants_in_blobs(file, in_blobs),
        *_operator_constants(file),
        *_initial_state(file),
        *_external(file, graphs, by_key),
    )


def parts(file: File, stored: tuple[StoredData, ...]) -> tuple[Part, ...]:
    """Divide the whole file, in the order: description, delegates, weights, the rest."""
    program = file.program
    inline = sum(len(d.data) for d in program.backend_delegate_data or [])
    inline += sum(len(b.storage) for b in program.constant_buffer or [])
    found = [Part("description", "the program", flatbuffer_size(file.data) - inline)]

    in_blob: dict[str, int] = {}
    for item in stored:
        if item.place == "delegate":
            in_blob[item.owners[0]] = in_blob.get(item.owners[0], 0) + item.bytes
    for (_, _), names in _blobs(program).items():
        plan, index = names[0]
        size = len(file.blob(plan.delegates[index]))
        labels = [f"{p.name}: delegate {i}" for p, i in names]
        found.append(Part("delegate", ", ".join(labels), size - in_blob.get(labels[0], 0)))

    groups: dict[tuple[str, str], int] = {}
    for item in stored:
        if item.place != "external":
            kind = "state" if item.place == "state" else "weights"
            of = ("" if kind == "state" else _owner(item), kind)
            groups[of] = groups.get(of, 0) + item.bytes
    found += [Part(kind, name or "mutable buffers", n) for (name, kind), n in groups.items()]

    known = {index for (where, index) in _blobs(program) if where}
    known |= {entry.segment_index for entry in program.named_data or []}
    known |= {part.segment_index for part in _constant_tables(program)}
    for index, segment in enumerate(program.segments or []):
        if index not in known and segment.size:
            found.append(Part("other", f"segment {index}", segment.size))
    end = max((file.base + s.offset + s.size for s in program.segments or []), default=0)
    behind = len(file.data) - max(end, flatbuffer_size(file.data))
    found.append(Part("other", "behind the end of the program", behind))
    rest = len(file.data) - sum(part.bytes for part in found)
    if rest < 0:
        raise PteFormatError(
            "the program is damaged: its segments overlap. Export it again, or copy the file again."
        )
    return tuple(part for part in (*found, Part("padding", "alignment", rest)) if part.bytes)


def _owner(item: StoredData) -> str:
    if item.place == "constants":
        return "operators outside delegates"
    return ", ".join(item.owners) or "nobody known"


def _blobs(program: Any) -> dict[tuple[bool, int], list[tuple[Any, int]]]:
    """Return who uses each blob: methods may share one."""
    found: dict[tuple[bool, int], list[tuple[Any, int]]] = {}
    for plan in program.execution_plan:
        for i, delegate in enumerate(plan.delegates):
            key = (in_segment(delegate), delegate.processed.index)
            found.setdefault(key, []).append((plan, i))
    return found


def _constant_tables(program: Any) -> list[Any]:
    constants = program.constant_segment
    return [*([constants] if constants else []), *(program.mutable_data_segments or [])]


# A use of data: who, and the tensor as the user sees it.
_Use = tuple[str, str, tuple[int, ...]]


def _delegate_constants(
    graphs: Graphs,
) -> tuple[dict[str, list[_Use]], dict[tuple[str, int], dict[tuple[int, int], list[_Use]]]]:
    """Return the uses of named data by key, and of data in blobs by delegate, offset and size."""
    by_key: dict[str, list[_Use]] = {}
    in_blobs: dict[tuple[str, int], dict[tuple[int, int], list[_Use]]] = {}
    for (method, number), graph in graphs.items():
        uses: dict[int, list[_Use]] = {}
        for index, role, dtype, shape in _uses(graph):
            uses.setdefault(index, []).append(
                (f"{method}: delegate {number}, {role}", dtype, shape)
            )
        for index, constant in enumerate(graph.constants):
            used = uses.get(index, [(f"{method}: delegate {number}, not used", "", ())])
            if constant.key:
                by_key.setdefault(constant.key, []).extend(used)
            else:
                place = (constant.offset, constant.bytes)
                in_blobs.setdefault((method, number), {}).setdefault(place, []).extend(used)
    return by_key, in_blobs


def _uses(graph: XnnpackGraph) -> Iterator[tuple[int, str, str, tuple[int, ...]]]:
    counts: dict[str, int] = {}
    for node in graph.nodes:
        number = counts.get(node.kind, 0)
        counts[node.kind] = number + 1
        yield from _of_node(node, f"{node.kind} {number}")


def _of_node(node: XnnpackNode, name: str) -> Iterator[tuple[int, str, str, tuple[int, ...]]]:
    for tensor in node.tensors:
        if tensor.constant is not None:
            yield tensor.constant, f"{name}, {tensor.role}", tensor.type, tensor.shape
        if tensor.scales is not None:
            yield tensor.scales, f"{name}, scales of {tensor.role}", "float32", ()


def _named_data(file: File, by_key: dict[str, list[_Use]]) -> Iterator[StoredData]:
    keys: dict[int, list[str]] = {}
    for entry in file.program.named_data or []:
        keys.setdefault(entry.segment_index, []).append(entry.key)
    for index, names in keys.items():
        uses = [use for key in names for use in by_key.get(key, [])]
        yield _stored("named data", file.segment(index), tuple(names), uses)


def _constants_in_blobs(
    file: File, in_blobs: dict[tuple[str, int], dict[tuple[int, int], list[_Use]]]
) -> Iterator[StoredData]:
    seen = set()
    for plan in file.program.execution_plan:
        for i, delegate in enumerate(plan.delegates):
            blob = (in_segment(delegate), delegate.processed.index)
            places = in_blobs.get((plan.name, i))
            if places is None or blob in seen:
                continue
            seen.add(blob)
            data = file.blob(delegate)
            for (offset, size), uses in places.items():
                yield _stored("delegate", data[offset : offset + size], (), uses)


def _operator_constants(file: File) -> Iterator[StoredData]:
    """Constants of operators outside the delegates, each as long as its largest tensor."""
    program, table = file.program, file.program.constant_segment
    slots: list[bytes]
    offsets = (table.offsets if table else None) or []
    uses, sizes = _tensor_uses(program, state=False)
    if len(offsets) > 1 or not program.constant_buffer:
        slots = _slots(file, table) if len(offsets) > 1 else []
    else:
        slots = [bytes(buffer.storage) for buffer in program.constant_buffer]
    yield from _in_slots("constants", slots, uses, sizes)


def _initial_state(file: File) -> Iterator[StoredData]:
    uses, sizes = _tensor_uses(file.program, state=True)
    for table in file.program.mutable_data_segments or []:
        yield from _in_slots("state", _slots(file, table), uses, sizes)


def _slots(file: File, table: Any) -> list[bytes]:
    data, offsets = file.segment(table.segment_index), table.offsets or []
    return [data[a:b] for a, b in itertools.pairwise([*offsets, len(data)])]


def _in_slots(
    place: str, slots: list[bytes], uses: dict[int, list[_Use]], sizes: dict[int, int]
) -> Iterator[StoredData]:
    """Cut the padding off behind each constant; the first slot is reserved."""
    for i, slot in enumerate(slots):
        data = slot[: sizes.get(i, len(slot))]
        if i and data:
            yield _stored(place, data, (), uses.get(i, []))


def _external(file: File, graphs: Graphs, by_key: dict[str, list[_Use]]) -> Iterator[StoredData]:
    """Weights that the program expects in another file."""
    sizes = {c.key: c.bytes for graph in graphs.values() for c in graph.constants}
    inside = {entry.key for entry in file.program.named_data or []}
    for key, uses in by_key.items():
        if key not in inside:
            _, dtype, shape = uses[0]
            users = tuple(user for user, *_ in uses)
            yield StoredData((key,), "external", dtype, shape or None, sizes[key], "", users)
    seen: dict[str, tuple[TensorSpec, list[str]]] = {}
    for plan in file.program.execution_plan:
        readers = _readers(plan)
        for index, tensor in _tensors(plan):
            info = tensor.extra_tensor_info
            if info is not None and int(info.location) == _EXTERNAL:
                name = info.fully_qualified_name or f"value {index}"
                users = seen.setdefault(name, (_spec(tensor), []))[1]
                users += readers.get(index, [])
    for name, (spec, users) in seen.items():
        yield StoredData(
            (name,), "external", torch_name(spec.dtype), spec.shape, _size(spec), "", tuple(users)
        )


def _stored(place: str, data: bytes, keys: tuple[str, ...], uses: list[_Use]) -> StoredData:
    known = [(dtype, shape) for _, dtype, shape in uses if dtype]
    dtype, shape = known[0] if known else ("", None)
    if shape == () and dtype == "float32" and len(data) != 4:  # scales: only their bytes are known
        shape = (len(data) // 4,)
    users = tuple(dict.fromkeys(user for user, *_ in uses))
    digest = hashlib.sha256(data).hexdigest()
    return StoredData(keys, place, dtype, shape, len(data), digest, users)


def _tensor_uses(program: Any, *, state: bool) -> tuple[dict[int, list[_Use]], dict[int, int]]:
    """Return uses and size in bytes by index, of constants or of first values of buffers."""
    uses: dict[int, list[_Use]] = {}
    sizes: dict[int, int] = {}
    for plan in program.execution_plan:
        readers = _readers(plan)
        for index, tensor in _tensors(plan):
            info, number = tensor.extra_tensor_info, tensor.data_buffer_idx
            external = info is not None and int(info.location) == _EXTERNAL
            if not number or external or (tensor.allocation_info is not None) != state:
                continue
            spec = _spec(tensor)
            users = readers.get(index, [f"{plan.name}: value {index}, not read"])
            uses.setdefault(number, []).extend(
                (user, torch_name(spec.dtype), spec.shape) for user in users
            )
            sizes[number] = max(sizes.get(number, 0), _size(spec))
    return uses, sizes


def _tensors(plan: Any) -> Iterator[tuple[int, Any]]:
    for index, value in enumerate(plan.values):
        if type(value.val).__name__ == "Tensor":
            yield index, value.val


def _readers(plan: Any) -> dict[int, list[str]]:
    """Return by value the instructions that have it among their arguments, by name and order.

    The last argument of a kernel is its result once more.
    """
    names, found = operator_names(plan), dict[int, list[str]]()
    counts: dict[str, int] = {}
    for call in (i.instr_args for chain in plan.chains for i in chain.instructions or []):
        kind = type(call).__name__
        if kind == "KernelCall":
            name = names[call.op_index]
            counts[name] = counts.get(name, -1) + 1
            who, arguments = f"{plan.name}: {name} {counts[name]}", call.args[:-1]
        elif kind == "DelegateCall":
            who, arguments = f"{plan.name}: delegate {call.delegate_index}", call.args
        else:
            continue
        for place, argument in enumerate(arguments):
            value = plan.values[argument].val
            listed = type(value).__name__.endswith("TensorList")
            for index in (value.items or []) if listed else [argument]:
                found.setdefault(index, []).append(f"{who}, argument {place}")
    return found


def _spec(tensor: Any) -> TensorSpec:
    spec = value_spec(tensor)
    if not isinstance(spec, TensorSpec):
        raise TypeError(f"expected a tensor, got {spec}")
    return spec


def _size(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize
