"""Everything that a ``.pte`` says of itself, read without loading it."""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common._errors import PteFormatError
from common._inspected import (
    InspectedDelegate,
    InspectedMethod,
    InspectedOperator,
    InspectedStep,
    PteInspection,
)
from common._pte_bytes import File, Graphs, StoredData, parts, stored_data
from common._pte_file import (
    ScalarSpec,
    TensorSpec,
    method_specs,
    operator_names,
    read_description,
    read_pte,
    value_spec,
    verify_checksum,
)
from common._runtime import missing_backends, missing_operators
from common._shapes import Bounds, is_entry, read_bounds
from common._signature import read_signature
from common._xnnpack_graph import XNNPACK, XnnpackGraph, read_xnnpack

_OF_DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error)


def inspect_pte(
    path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview,
) -> PteInspection:
    """Say everything that a ``.pte`` says of itself.

    The program is not loaded and nothing of it is executed: no native code reads it, no memory is
    allocated for it, its delegates are not handed to their backends. The runtime is only asked
    which operators and backends it has. ``PteRunner`` asks ExecuTorch's verifier besides, and so
    finds more damage.

    Inside delegates of XNNPACK the graph is read. Of other backends the name and the bytes are
    known. A weight is counted where it is stored, once, whoever reads it.

    Args:
        path_or_bytes: path of a ``.pte``, or its bytes. A ``.sha256`` file beside the path is
            compared.

    Returns:
        A `PteInspection`.

    Raises:
        TypeError, FileNotFoundError, IsADirectoryError: as for ``PteRunner``.
        PteFormatError: the file is something else, is cut off or is damaged. A checksum that
            differs raises nothing; ``checksum`` says so.

    Example:
        >>> import torch
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> _, pte = lower_to_xnnpack(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
        >>> found = inspect_pte(pte)
        >>> delegate = found.methods[0].delegates[0]
        >>> print(delegate.backend, "with", delegate.graph)
        XnnpackBackend with 1 FullyConnected
        >>> [(data.name, data.shape) for data in found.stored][0]
        ('forward: delegate 0, FullyConnected 0, filter', (2, 4))
        >>> sum(part.bytes for part in found.parts) == len(pte)
        True
    """
    data = read_pte(path_or_bytes)
    # Without the verifier in C++: loading for it allocates the planned memory of all methods.
    program = read_description(data)
    given = isinstance(path_or_bytes, bytes | bytearray | memoryview)
    path = None if given else Path(os.fspath(path_or_bytes)).expanduser()
    try:
        return _inspect(File(program, data), path)
    except _OF_DAMAGE as error:
        if isinstance(error, PteFormatError):
            raise
        raise PteFormatError(
            f"the program is damaged: {type(error).__name__}: {error}. Export it again, or copy "
            "the file again."
        ) from error


def _inspect(file: File, path: Path | None) -> PteInspection:
    program, data = file.program, file.data
    graphs: dict[tuple[str, int], XnnpackGraph] = {}
    unread: dict[tuple[str, int], str] = {}
    for plan in program.execution_plan:
        for i, delegate in enumerate(plan.delegates):
            if delegate.id != XNNPACK:
                unread[plan.name, i] = "the format of this backend is not known here"
                continue
            try:
                graphs[plan.name, i] = read_xnnpack(file.blob(delegate))
            except _OF_DAMAGE as error:  # written by a version that writes something else
                unread[plan.name, i] = f"{type(error).__name__}: {error}"
    stored = stored_data(file, graphs)
    return PteInspection(
        name="" if path is None else path.name,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        checksum=_checksum(path, data),
        format=data[4:8].decode("ascii"),
        version=program.version,
        segments=data[8:12] == b"eh00",
        methods=tuple(
            _method(plan, file, graphs, unread, stored)
            for plan in program.execution_plan
            if not is_entry(plan.name)
        ),
        stored=stored,
        parts=parts(file, stored),
    )


def _checksum(path: Path | None, data: bytes) -> str:
    if path is None or not path.with_name(path.name + ".sha256").exists():
        return "none"
    try:
        verify_checksum(path, data)
    except PteFormatError:
        return "differs"
    return "agrees"


def _method(
    plan: Any,
    file: File,
    graphs: Graphs,
    unread: dict[tuple[str, int], str],
    stored: tuple[StoredData, ...],
) -> InspectedMethod:
    bounds, signature = read_bounds(file.program, plan), read_signature(plan)
    inputs, outputs = method_specs(plan, bounds)
    labels = signature.labels if signature else tuple(f"input {i}" for i in range(len(inputs)))
    ends = zip((*plan.inputs, *plan.outputs), (*inputs, *outputs), strict=True)
    steps = _steps(plan, graphs, dict(ends))
    calls = Counter(step.name for step in steps if step.kind == "operator")
    names = operator_names(plan)
    missing = set(missing_operators(names))
    lacking = set(missing_backends([delegate.id for delegate in plan.delegates]))
    return InspectedMethod(
        name=plan.name,
        inputs=inputs,
        outputs=outputs,
        labels=labels,
        conditions=_conditions(bounds, labels) if bounds and bounds.relate else (),
        delegates=tuple(
            InspectedDelegate(
                backend=delegate.id,
                available=delegate.id not in lacking,
                blob=len(blob := file.blob(delegate)),
                weights=sum(
                    data.bytes for data in stored if f"{plan.name}: delegate {i}" in data.owners
                ),
                sha256=hashlib.sha256(blob).hexdigest(),
                settings=tuple(
                    (spec.key, len(bytes(spec.value))) for spec in delegate.compile_specs or []
                ),
                graph=graphs.get((plan.name, i)),
                unread=unread.get((plan.name, i), ""),
            )
            for i, delegate in enumerate(plan.delegates)
        ),
        operators=tuple(
            InspectedOperator(name, calls[name], name not in missing)
            for name in dict.fromkeys(names)
        ),
        steps=steps,
        arena=tuple(plan.non_const_buffer_sizes[1:]),
        state=_state(plan, graphs),
    )


def _conditions(bounds: Bounds, labels: Sequence[str]) -> tuple[str, ...]:
    """Say how sizes depend on each other."""
    said = []
    for name, at in bounds.symbols.items():
        size = name if (at.times, at.plus) == (1, 0) else f"{at.times}*{name} + {at.plus}"
        said.append(f"dimension {at.dim} of {labels[at.input]} is {size}")
    for i, dims in enumerate(bounds.inputs):
        for d, dim in enumerate(dims or ()):
            line = f"dimension {d} of {labels[i]} is {dim.expression}"
            if dim.expression is not None and line not in said:
                said.append(line)
    return (*said, *bounds.guards)


def _steps(
    plan: Any, graphs: Graphs, ends: Mapping[int, TensorSpec | ScalarSpec]
) -> tuple[InspectedStep, ...]:
    """Describe the instructions; of inputs and outputs more is known than of the rest."""
    names = operator_names(plan)
    found = []
    for call in _calls(plan):
        kind = type(call).__name__
        number = None
        read, written = list[int](), list[int]()
        if kind == "KernelCall":
            kind, name = "operator", names[call.op_index]
            read, written = _arguments(plan, call, graphs)
        elif kind == "DelegateCall":
            number = call.delegate_index
            kind, name = "delegate", plan.delegates[number].id
            read, written = _arguments(plan, call, graphs)
        elif kind == "JumpFalseCall":
            kind, name = "jump", f"to step {call.destination_instruction} when false"
        elif kind == "MoveCall":
            kind, name, read, written = "move", "", [call.move_from], [call.move_to]
        else:
            kind, name, read = "free", "", [call.value_index]
        specs = _described(plan, read, ends), _described(plan, written, ends)
        found.append(InspectedStep(kind, name, number, *specs))
    return tuple(found)


def _calls(plan: Any) -> list[Any]:
    return [i.instr_args for chain in plan.chains for i in chain.instructions or []]


def _arguments(plan: Any, call: Any, graphs: Graphs) -> tuple[list[int], list[int]]:
    """Return the values that a call reads and writes, lists of tensors taken apart.

    The last argument of a kernel is its result, which also stands among the others. A delegate
    has its inputs before its outputs; how many of each, only its graph tells.
    """
    if type(call).__name__ == "KernelCall":
        written = _taken_apart(plan, call.args[-1:])
        read = [i for i in _taken_apart(plan, call.args[:-1]) if i not in written]
        in_place = plan.operators[call.op_index].name.endswith("_")
        return (read + written if in_place else read), written
    graph = graphs.get((plan.name, call.delegate_index))
    count = graph.inputs if graph else len(call.args)
    return _taken_apart(plan, call.args[:count]), _taken_apart(plan, call.args[count:])


def _taken_apart(plan: Any, arguments: Sequence[int]) -> list[int]:
    found: list[int] = []
    for index in arguments:
        value = plan.values[index].val
        if type(value).__name__.endswith("TensorList"):
            found += [i for i in value.items or [] if i >= 0]
        else:
            found.append(index)
    return found


def _described(
    plan: Any, indices: Sequence[int], ends: Mapping[int, TensorSpec | ScalarSpec]
) -> tuple[str, ...]:
    specs = [ends.get(i) or value_spec(plan.values[i].val) for i in dict.fromkeys(indices)]
    return tuple(str(spec) for spec in specs if isinstance(spec, TensorSpec))


def _state(plan: Any, graphs: Graphs) -> tuple[str, ...]:
    """Return the planned tensors that are read before anything writes them.

    Those of a backend that cannot be read are taken for written.
    """
    known, found = set(plan.inputs), dict[int, None]()
    for call in _calls(plan):
        kind = type(call).__name__
        if kind == "MoveCall":
            read, written = [call.move_from], [call.move_to]
        elif kind in ("KernelCall", "DelegateCall"):
            read, written = _arguments(plan, call, graphs)
            if kind == "DelegateCall" and not written:
                read, written = written, read
        else:
            continue
        for i in read:
            value = plan.values[i].val
            if i not in known and getattr(value, "allocation_info", None) is not None:
                found[i] = None
        known.update(written)
    shown = []
    for i in found:
        info = plan.values[i].val.extra_tensor_info
        name = info.fully_qualified_name if info is not None else None
        spec = str(value_spec(plan.values[i].val))
        shown.append(f"{name}: {spec}" if name else spec)
    return tuple(shown)
