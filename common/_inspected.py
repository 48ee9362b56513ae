"""What is in a ``.pte``, as a result that shows itself."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common._bars import bars
from common._page import Section, fragment, text, write_page
from common._pte_bytes import Part, StoredData
from common._pte_file import ScalarSpec, TensorSpec
from common._table import Table, table
from common._text import torch_name
from common._xnnpack_graph import XnnpackGraph

_LONG = 24  # rows of a list of steps that is shown without being asked for


@dataclass(frozen=True)
class InspectedDelegate:
    """A delegate of a method.

    Attributes:
        backend: name of its backend.
        available: whether this runtime has the backend and can use it on this machine.
        blob: bytes that the delegate stored for itself: for XNNPACK its graph.
        weights: bytes of the data that it reads besides; data that several delegates read count
            for each. 0 where the blob cannot be read: another backend's weights are in its blob
            or among the named data.
        sha256: of the blob.
        settings: names of the compile specs, with their size in bytes.
        graph: what is inside, for XNNPACK.
        unread: why there is no graph; empty where there is one.
    """

    backend: str
    available: bool
    blob: int
    weights: int
    sha256: str
    settings: tuple[tuple[str, int], ...]
    graph: XnnpackGraph | None
    unread: str


@dataclass(frozen=True)
class InspectedOperator:
    """An operator that runs outside of the delegates.

    Attributes:
        name: of the kernel, as the runtime's registry spells it: ``aten::cumsum.out``.
        calls: instructions that call it.
        available: whether this runtime has the kernel.
    """

    name: str
    calls: int
    available: bool


@dataclass(frozen=True)
class InspectedStep:
    """An instruction.

    Attributes:
        kind: ``delegate``, ``operator``, ``jump``, ``move`` or ``free``.
        name: backend, operator, or what the instruction does.
        delegate: number of the delegate, else None.
        inputs: tensors that it reads, ``float32 (1, 8, 16, 16)``.
        outputs: tensors that it writes. Empty for a delegate of a backend that cannot be read:
            there all its tensors are in ``inputs``.
    """

    kind: str
    name: str
    delegate: int | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def tensors(self) -> str:
        """What goes in and what comes out."""
        ins, outs = "; ".join(self.inputs), "; ".join(self.outputs)
        return f"{ins} → {outs}" if outs else ins


@dataclass(frozen=True)
class InspectedMethod:
    """A method of a program.

    Attributes:
        name: of the method.
        inputs: what it takes, in the program's order. Sizes are the largest where dynamic; the
            smallest are known of programs that ``lower_to_xnnpack`` made.
        outputs: what it returns. Of a method without instructions they are constants.
        labels: of each input, with its name where the file holds it: ``input 1 (mask)``.
        conditions: how sizes of inputs depend on each other, as far as the file says.
        delegates: in the order of the file; their numbers are used everywhere else.
        operators: those that run outside of the delegates.
        steps: instructions in order.
        arena: bytes of each planned buffer. What delegates need inside is not in it.
        state: tensors that keep their values from one run to the next: mutable buffers.
    """

    name: str
    inputs: tuple[TensorSpec | ScalarSpec, ...]
    outputs: tuple[TensorSpec | ScalarSpec, ...]
    labels: tuple[str, ...]
    conditions: tuple[str, ...]
    delegates: tuple[InspectedDelegate, ...]
    operators: tuple[InspectedOperator, ...]
    steps: tuple[InspectedStep, ...]
    arena: tuple[int, ...]
    state: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class PteInspection:
    """What is in a ``.pte``. ``str()`` is a text; Jupyter shows tables and a picture.

    Attributes:
        name: of the file; empty where bytes were given.
        size: bytes.
        sha256: of the whole file.
        checksum: ``agrees`` or ``differs`` with the ``.sha256`` file beside it, or ``none``.
        format: identifier of the format, ``ET12``.
        version: number that the format gives itself.
        segments: whether the file has a header that says where segments are; without it the
            flatbuffer is the whole file.
        methods: in the order of the file.
        stored: weights and other constants, external ones included.
        parts: where the bytes are; they add up to ``size``.
    """

    name: str
    size: int
    sha256: str
    checksum: str
    format: str
    version: int
    segments: bool
    methods: tuple[InspectedMethod, ...]
    stored: tuple[StoredData, ...]
    parts: tuple[Part, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What stops this runtime from loading the file, in sentences; empty where nothing does."""
        found = []
        if self.checksum == "differs":
            found.append(
                f"The file is not the one that {self.name}.sha256 was written for: it is damaged "
                "or was replaced."
            )
        for method in self.methods:
            lacking = [d.backend for d in method.delegates if not d.available]
            lacking += [o.name for o in method.operators if not o.available]
            if lacking:
                names = ", ".join(dict.fromkeys(lacking))
                found.append(f"This runtime lacks what method {method.name} needs: {names}.")
        return tuple(found)

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the methods that do something; the others hold constants."""
        return tuple(method.name for method in self.methods if method.steps)

    def without_method(self, name: str) -> str:
        """Leave the method out of the name of a part where only one runs."""
        return name.replace(f"{self.running[0]}: ", "") if len(self.running) == 1 else name

    def sums(self) -> dict[str, int]:
        """Return the bytes by kind of part."""
        sums: dict[str, int] = {}
        for part in self.parts:
            sums[part.kind] = sums.get(part.kind, 0) + part.bytes
        return sums

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dictionaries, lists, numbers and texts, ready for ``json.dumps``."""
        return {**plain(self), "problems": list(self.problems)}

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that opens alone, in any browser, and return its path."""
        return write_page(path, self._title(), _sections(self))

    def __str__(self) -> str:
        return text([Section("", self._title()), *_sections(self)])

    def __repr__(self) -> str:
        names = ", ".join(method.name for method in self.methods)
        return f"PteInspection({self._title()}, {self.size:,} B, methods {names})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        shown = fragment([Section("", self._title()), *_sections(self)])
        return {"text/html": shown, "text/plain": str(self)}

    def _title(self) -> str:
        return self.name or "program"


# --- how it is shown

_HERE = "runs here"


def _here(available: bool) -> str:
    return "yes" if available else "NO"


def _sections(found: PteInspection) -> list[Section]:
    sections = [Section("", "\n".join([*found.problems, *_summary(found)]))]
    for method in found.methods:
        sections += _of_method(method, alone=len(found.methods) == 1)
    sections += [
        Section("where the bytes are", _bytes_table(found)),
        Section("", bars("where the bytes are", _bar_rows(found))),
    ]
    if found.stored:
        sections.append(Section(_stored_title(found), _stored_table(found), 1))
    return sections


def _summary(found: PteInspection) -> list[str]:
    beside = {
        "agrees": "agrees with the .sha256 file beside it",
        "differs": "DIFFERS from the .sha256 file beside it",
        "none": "no .sha256 file beside it",
    }
    header = "" if found.segments else ", without segments"
    lines = [
        f"{found.size:,} B, format {found.format}, version {found.version}{header}",
        f"SHA-256 {found.sha256} ({beside[found.checksum]})",
    ]
    external = [data for data in found.stored if data.place == "external"]
    if external:
        size = sum(data.bytes for data in external)
        lines.append(
            f"{len(external)} weights of {size:,} B are not in the file: the program needs a .ptd "
            f"file with {', '.join(data.keys[0] for data in external[:4])}"
            f"{' and others' if len(external) > 4 else ''}"
        )
    return lines


def _of_method(method: InspectedMethod, *, alone: bool) -> list[Section]:
    name = method.name
    if not method.steps and not method.inputs:
        said = ", ".join(str(output) for output in method.outputs) or "nothing"
        return [Section(f"method {name}: constant", said)]
    ends = [(label, str(spec)) for label, spec in zip(method.labels, method.inputs, strict=True)]
    ends += [("where", condition) for condition in method.conditions]
    ends += [(f"output {i}", str(spec)) for i, spec in enumerate(method.outputs)]
    ends += [("state", spec) for spec in method.state]
    arena = " + ".join(f"{size:,}" for size in method.arena) or "0"
    ends.append(("arena", f"{arena} B"))
    where = "" if alone else f" of {name}"
    sections = [Section(f"method {name}", table(ends, ("what", "is")))]
    depth = int(len(method.steps) > _LONG)
    sections.append(Section(f"order of execution{where}", _step_table(method), depth))
    if method.delegates:
        rows = [
            (i, d.backend, _here(d.available), f"{d.blob:,} B", f"{d.weights:,} B")
            for i, d in enumerate(method.delegates)
        ]
        headers = ("no", "backend", _HERE, "own bytes", "weights")
        sections.append(Section(f"delegates{where}", table(rows, headers)))
    for i, delegate in enumerate(method.delegates):
        if not delegate.graph:
            sections.append(Section(f"inside delegate {i}{where}", f"not read: {delegate.unread}"))
        else:
            kinds = [(count, *kind) for kind, count in delegate.graph.kinds.items()]
            inside = table(kinds, ("nodes", "kind", "computes in", "weights"))
            sections.append(Section(f"inside delegate {i}{where}", inside))
            title = f"all {len(delegate.graph.nodes)} nodes of delegate {i}{where}"
            sections.append(Section(title, _node_table(delegate.graph), 2))
    rows = [(o.name, o.calls, _here(o.available)) for o in method.operators]
    outside: Table | str = table(rows, ("kernel", "calls", _HERE)) if rows else "none"
    sections.append(Section(f"operators outside of delegates{where}", outside))
    return sections


def _step_table(method: InspectedMethod) -> Table:
    rows = [
        (i, step.name if step.delegate is None else f"delegate {step.delegate}", step.tensors)
        if step.kind in ("operator", "delegate")
        else (i, f"{step.kind} {step.name}".strip(), step.tensors)
        for i, step in enumerate(method.steps)
    ]
    return table(rows, ("step", "runs", "tensors in → out"))


def _node_table(graph: XnnpackGraph) -> Table:
    rows = [
        (
            i,
            node.name,
            f"{'; '.join(map(str, node.inputs))} → {'; '.join(map(str, node.outputs))}",
            "; ".join(f"{tensor.role} {tensor}" for tensor in node.weights),
        )
        for i, node in enumerate(graph.nodes)
    ]
    return table(rows, ("node", "kind", "tensors in → out", "weights"))


def _bytes_table(found: PteInspection) -> Table:
    rows = [(k, f"{n:,} B", f"{n / found.size:.1%}") for k, n in found.sums().items()]
    rows.append(("file", f"{found.size:,} B", "100.0%"))
    return table(rows, ("what", "bytes", "share"))


def _bar_rows(found: PteInspection) -> list[tuple[str, int]]:
    return [(_part_name(found, part), part.bytes) for part in found.parts]


def _part_name(found: PteInspection, part: Part) -> str:
    if part.kind in ("description", "padding"):
        return part.kind
    name = found.without_method(part.name)
    return name if part.kind == "delegate" else f"{part.kind}: {name}"


def _stored_title(found: PteInspection) -> str:
    inside = [data.bytes for data in found.stored if data.place != "external"]
    outside = len(found.stored) - len(inside)
    said = [f"{len(inside)} of together {sum(inside):,} B"] if inside else []
    said += [f"{outside} in another file"] if outside else []
    return f"weights and constants: {', '.join(said)}"


def _stored_table(found: PteInspection) -> Table:
    rows = [
        (
            found.without_method(data.name)
            + (f" and {len(data.users) - 1} more" if len(data.users) > 1 else ""),
            data.dtype or "-",
            "-" if data.shape is None else "×".join(map(str, data.shape)) or "()",
            f"{data.bytes:,} B",
            data.place,
        )
        for data in sorted(found.stored, key=lambda data: -data.bytes)
    ]
    return table(rows, ("who reads it", "type", "shape", "bytes", "kept in"))


def plain(value: Any) -> Any:
    """Turn a result into what JSON can hold."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, torch.dtype):
        return torch_name(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value
