"""What the description of a program tells of damage, before any C++ reads the program.

ExecuTorch's own verifier follows the references inside the flatbuffer. It does not ask whether the
numbers there make sense: a tensor that ends behind its memory, an instruction whose argument does
not exist, weights that are not those that were written.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import struct
from typing import Any

import torch

from common._errors import PteFormatError

# ExecuTorch 1.5.1, backends/xnnpack/operators/node_visitor.py names constants by their content.
_NAMED_BY_CONTENT = re.compile(r"(?:scale_)?([0-9a-f]{64})")
_XNNPACK = "XnnpackBackend"
# What reading something else than was written ends in; UnicodeDecodeError is a ValueError.
_OF_DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error)


def check_description(program: Any, data: bytes, segment_base: int) -> None:
    """Refuse a program whose description contradicts itself or the file.

    Args:
        program: the flatbuffer as ``executorch.exir.schema.Program``.
        data: the whole file.
        segment_base: where the segments start.

    Raises:
        PteFormatError: with the first contradiction that was found.
    """
    try:
        _check_segments(program, data, segment_base)
        for plan in program.execution_plan:
            _check_plan(program, plan, data, segment_base)
    except (*_OF_DAMAGE, _Contradiction) as found:
        # The parser lets pass a table that is missing or of another kind.
        kind = "" if isinstance(found, _Contradiction) else f"{type(found).__name__}: "
        raise PteFormatError(
            f"the program is damaged: {kind}{found}. Export it again, or copy the file again."
        ) from None


class _Contradiction(Exception):
    pass


def _demand(condition: bool, said: str) -> None:
    if not condition:
        raise _Contradiction(said)


def _check_segments(program: Any, data: bytes, base: int) -> None:
    segments = program.segments or []
    for i, segment in enumerate(segments):
        _demand(base + segment.offset + segment.size <= len(data), f"segment {i} is not there")
    constants = program.constant_segment
    for part in [*([constants] if constants else []), *(program.mutable_data_segments or [])]:
        offsets = part.offsets or []
        if len(offsets) > 1:
            _demand(part.segment_index < len(segments), "the constants have no segment")
            size = segments[part.segment_index].size
            _demand(
                all(a <= b for a, b in itertools.pairwise([*offsets, size])),
                "the constants are not where they should be",
            )
    xnnpack = any(d.id == _XNNPACK for plan in program.execution_plan for d in plan.delegates)
    for entry in program.named_data or []:
        _demand(bool(entry.key), "weights have no name")
        _demand(entry.segment_index < len(segments), f"weights {entry.key} have no segment")
        named = _NAMED_BY_CONTENT.fullmatch(entry.key) if xnnpack else None
        if named:
            segment = segments[entry.segment_index]
            start = base + segment.offset
            digest = hashlib.sha256(data[start : start + segment.size]).hexdigest()
            _demand(digest == named[1], f"weights {entry.key[:14]}… are not those written")


def _check_plan(program: Any, plan: Any, data: bytes, base: int) -> None:
    _demand(bool(plan.name), "a method has no name")
    values = [value.val for value in plan.values]
    within = range(len(values)).__contains__
    _demand(all(map(within, plan.inputs)), "an input does not exist")
    _demand(all(map(within, plan.outputs)), "an output does not exist")
    for i, value in enumerate(values):
        kind = type(value).__name__
        if kind == "Tensor":
            _check_tensor(i, value, program, plan)
        elif kind in ("IntList", "TensorList", "OptionalTensorList"):
            optional = kind == "OptionalTensorList"
            entry = "Int" if kind == "IntList" else "Tensor"
            _demand(
                all(
                    (within(n) and type(values[n]).__name__ == entry) or (optional and n == -1)
                    for n in value.items or []
                ),
                f"list {i} has an entry that is no {entry.lower()}",
            )
    for delegate in plan.delegates:
        _demand(bool(delegate.id), "a delegate has no backend")
        where, index = int(delegate.processed.location), delegate.processed.index
        blobs = program.segments if where == 1 else program.backend_delegate_data
        _demand(where in (0, 1) and index < len(blobs or []), "a delegate has no data")
        if delegate.id == _XNNPACK:
            blob = blobs[index]
            _check_xnnpack(
                data[base + blob.offset :][: blob.size] if where == 1 else bytes(blob.data)
            )
    for operator in plan.operators:
        _demand(bool(operator.name), "an operator has no name")
    for chain in plan.chains:
        instructions = chain.instructions or []
        for instruction in instructions:
            _check_instruction(instruction.instr_args, plan, values, len(instructions))


def _check_xnnpack(blob: bytes) -> None:
    """Read the names of the weights in a delegate of XNNPACK.

    XNNPACK logs a name that it does not find, and what it logs must be UTF-8: else the process
    is aborted. Layout: ExecuTorch 1.5.1, backends/xnnpack/serialization.
    """
    graph = blob
    if blob[4:8] == b"XH00":
        start, size, constants, constants_size = struct.unpack_from("<IIIQ", blob, 10)
        _demand(start + size <= len(blob), "a delegate is cut off")
        _demand(constants + constants_size <= len(blob), "a delegate is cut off")
        graph = blob[start : start + size]
    _demand(graph[4:8] in (b"XN00", b"XN01"), "a delegate is not one of XNNPACK")
    root = _at(graph, 0)
    if not (field := _field(graph, root, 8)):
        return
    vector = _at(graph, field)
    for i in range(_number(graph, vector)):
        if name := _field(graph, _at(graph, vector + 4 + 4 * i), 2):
            start = _at(graph, name) + 4
            end = start + _number(graph, start - 4)
            _demand(graph[end : end + 1] == b"\0", "a name in a delegate has no end")
            graph[start:end].decode()


# A flatbuffer: a table starts with the distance back to its list of fields, which holds two sizes
# and then where each field is; a field that is left out has a 0 there, or no place.


def _number(data: bytes, at: int) -> int:
    return struct.unpack_from("<I", data, at)[0]


def _at(data: bytes, at: int) -> int:
    return at + _number(data, at)


def _field(data: bytes, table: int, number: int) -> int:
    fields = table - struct.unpack_from("<i", data, table)[0]
    _demand(fields >= 0, "a delegate is damaged")  # struct would count from the end
    if 4 + 2 * number >= struct.unpack_from("<H", data, fields)[0]:
        return 0
    offset = struct.unpack_from("<H", data, fields + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _check_tensor(i: int, tensor: Any, program: Any, plan: Any) -> None:
    sizes, order = tensor.sizes or [], tensor.dim_order or []
    _demand(all(n >= 0 for n in sizes), f"tensor {i} has the shape {tuple(sizes)}")
    _demand(
        sorted(order) == list(range(len(sizes))),
        f"tensor {i} has {len(sizes)} dimensions and the dimension order {tuple(order)}",
    )
    size = math.prod(sizes) * _item_size(tensor.scalar_type)
    planned, index = tensor.allocation_info, tensor.data_buffer_idx
    if planned is not None:
        buffers, number = plan.non_const_buffer_sizes, planned.memory_id
        end = planned.memory_offset + size
        _demand(
            0 < number < len(buffers) and end <= buffers[number],
            f"tensor {i} ends behind its memory",
        )
    elif index and not _is_external(tensor):
        _demand(size <= _constant_size(program, index), f"tensor {i} ends behind its constants")


def _is_external(tensor: Any) -> bool:
    info = tensor.extra_tensor_info
    return info is not None and int(info.location) == 1


def _constant_size(program: Any, index: int) -> int:
    segment = program.constant_segment
    offsets = (segment.offsets if segment else None) or []
    if len(offsets) > 1 or not program.constant_buffer:
        if index >= len(offsets):
            return -1
        ends = [*offsets[1:], program.segments[segment.segment_index].size]
        return ends[index] - offsets[index]
    inline = program.constant_buffer
    return len(inline[index].storage) if index < len(inline) else -1


def _check_instruction(call: Any, plan: Any, values: list[Any], count: int) -> None:
    kind, within = type(call).__name__, range(len(values)).__contains__
    if kind == "KernelCall":
        _demand(0 <= call.op_index < len(plan.operators), "an operator does not exist")
        _demand(all(map(within, call.args)), "an operator has an argument that does not exist")
        operator = plan.operators[call.op_index]
        _check_arguments(operator, [values[n] for n in call.args])
    elif kind == "DelegateCall":
        _demand(0 <= call.delegate_index < len(plan.delegates), "a delegate does not exist")
        _demand(all(map(within, call.args)), "a delegate has an argument that does not exist")
    elif kind == "MoveCall":
        _demand(within(call.move_from) and within(call.move_to), "a value does not exist")
    elif kind == "JumpFalseCall":
        _demand(within(call.cond_value_index), "a condition does not exist")
        _demand(0 <= call.destination_instruction <= count, "a jump leads nowhere")
    elif kind == "FreeCall":
        _demand(within(call.value_index), "a value does not exist")
    else:
        raise _Contradiction("an instruction is of no kind")


def _check_arguments(operator: Any, arguments: list[Any]) -> None:
    """Compare with the operator's schema: a kernel aborts on a value of another kind."""
    expected = _kinds(operator.name, operator.overload or "")
    _demand(len(arguments) >= len(expected), f"{operator.name} lacks an argument")
    for value, kinds in zip(arguments, expected, strict=False):
        kind = type(value).__name__
        fits = not kinds or kind in kinds or (kind.endswith("List") and not value.items)
        _demand(fits, f"{operator.name} has an argument of kind {kind}")


# Kinds of values by the types of a schema; those that are not here are not compared.
_KINDS = {
    "Tensor": {"Tensor"},
    "int": {"Int"},
    "float": {"Double", "Int"},
    "number": {"Int", "Double", "Bool"},
    "bool": {"Bool"},
    "str": {"String"},
    "List[int]": {"IntList"},
    "List[float]": {"DoubleList"},
    "List[bool]": {"BoolList"},
    "List[Tensor]": {"TensorList"},
    "List[Optional[Tensor]]": {"OptionalTensorList", "TensorList"},
}


@functools.cache
def _kinds(name: str, overload: str) -> tuple[set[str], ...]:
    """Return the kinds that each argument may have, with one more for the result."""
    try:
        schema: Any = torch._C._get_schema(name, overload)
    except RuntimeError:  # an operator of ExecuTorch's own, or one that Python does not know
        return ()
    found = []
    for argument in schema.arguments:
        kind = str(argument.type)
        inner = kind.removeprefix("Optional[").removesuffix("]") if kind[0] == "O" else kind
        kinds = _KINDS.get(inner, set())
        found.append(kinds | {"Null"} if kinds and inner != kind else kinds)
    return (*found, *([set[str]()] if schema.returns else []))


@functools.cache
def _item_size(scalar_type: Any) -> int:
    from executorch.exir.tensor import get_scalar_type

    return get_scalar_type(scalar_type).itemsize
