"""What is refused before C++ sees it, and that nothing whole is."""

from __future__ import annotations

import copy
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from common import _damage
from common._pte_file import read_description
from common.executorch_utils import PteFormatError, PteRunner, save_pte
from tests.programs import Program, image, portable, raw
from tools.corrupt_pte import Damaged, Sample, trials


class ManyKinds(nn.Module):
    """Values and instructions of every kind: lists, jumps, missing arguments."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        jumped = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))
        parts = torch.split(jumped, [1, 3], dim=1)
        return x[ids], torch.cat(parts[::-1], 1), x.clamp(min=0.5).mean(1)


@pytest.fixture(scope="module")
def many_kinds() -> bytes:
    torch.manual_seed(0)
    return portable(ManyKinds().eval(), (torch.randn(3, 4), torch.tensor([2, 0])))


def sample(program: Program) -> Sample:
    return Sample("sample", program.pte, program.example)


def replaced(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def segment_base(data: bytes) -> int:
    """Where the segments start, read as the format says."""
    assert data[8:12] == b"eh00"
    return struct.unpack_from("<Q", data, 24)[0]


# --- contradictions, made in the description itself


def forward(program: Any) -> Any:
    return program.execution_plan[0]


def tensors(program: Any) -> list[Any]:
    return [v.val for v in forward(program).values if type(v.val).__name__ == "Tensor"]


def planned(program: Any) -> Any:
    return next(t for t in tensors(program) if t.allocation_info)


def calls(program: Any, kind: str) -> list[Any]:
    found = [i.instr_args for chain in forward(program).chains for i in chain.instructions]
    return [call for call in found if type(call).__name__ == kind]


def lists(program: Any, kind: str) -> list[Any]:
    return [v.val for v in forward(program).values if type(v.val).__name__ == kind and v.val.items]


def set_item(items: list[int], at: int, value: int) -> None:
    items[at] = value


def swap_arguments(program: Any) -> None:
    """Give clamp its output where it expects a number."""
    plan = forward(program)
    (clamp,) = (
        c for c in calls(program, "KernelCall") if "clamp" in plan.operators[c.op_index].name
    )
    clamp.args[1] = clamp.args[-1]


CONTRADICTIONS = {
    "input": (lambda p: set_item(forward(p).inputs, 0, 999), "an input does not exist"),
    "output": (lambda p: set_item(forward(p).outputs, 0, -1), "an output does not exist"),
    "negative size": (lambda p: set_item(planned(p).sizes, 0, -3), r"has the shape \(-3, 4\)"),
    "larger size": (lambda p: set_item(planned(p).sizes, 0, 2**30), "ends behind its memory"),
    "dimension order": (lambda p: set_item(planned(p).dim_order, 0, 1), r"order \(1, 1\)"),
    "place": (
        lambda p: setattr(planned(p).allocation_info, "memory_offset_high", 1),
        "ends behind its memory",
    ),
    "memory": (lambda p: setattr(planned(p).allocation_info, "memory_id", 7), "its memory"),
    "no memory": (lambda p: setattr(planned(p).allocation_info, "memory_id", 0), "its memory"),
    "arena": (lambda p: set_item(forward(p).non_const_buffer_sizes, 1, 16), "its memory"),
    "operator": (lambda p: setattr(calls(p, "KernelCall")[0], "op_index", 99), "an operator does"),
    "argument": (lambda p: set_item(calls(p, "KernelCall")[0].args, 0, 999), "an argument that"),
    "fewer arguments": (lambda p: calls(p, "KernelCall")[0].args.clear(), "lacks an argument"),
    "kind of argument": (swap_arguments, "clamp has an argument of kind Tensor"),
    "jump": (
        lambda p: setattr(calls(p, "JumpFalseCall")[0], "destination_instruction", 10**6),
        "a jump leads nowhere",
    ),
    "condition": (
        lambda p: setattr(calls(p, "JumpFalseCall")[0], "cond_value_index", -1),
        "a condition does not exist",
    ),
    "list": (lambda p: set_item(lists(p, "IntList")[0].items, 0, 999), "an entry that is no int"),
    "list of tensors": (
        lambda p: set_item(lists(p, "TensorList")[0].items, 0, forward(p).outputs[0] + 10**4),
        "an entry that is no tensor",
    ),
    "method without a name": (lambda p: setattr(forward(p), "name", None), "method has no name"),
    "operator without a name": (
        lambda p: setattr(forward(p).operators[0], "name", None),
        "an operator has no name",
    ),
    "missing table": (lambda p: setattr(forward(p), "values", None), "TypeError"),
}


@pytest.mark.parametrize("which", CONTRADICTIONS)
def test_a_contradiction_is_refused_in_words(many_kinds: bytes, which: str) -> None:
    program, base = read_description(many_kinds), segment_base(many_kinds)
    _damage.check_description(program, many_kinds, base)
    change, said = CONTRADICTIONS[which]
    change(program)
    with pytest.raises(PteFormatError, match=rf"^the program is damaged: .*{said}.*copy the file"):
        _damage.check_description(program, many_kinds, base)


def test_constants_and_segments_must_be_there(conv: Program) -> None:
    base = segment_base(conv.pte)
    whole = read_description(conv.pte)
    for part, change in {
        "segment": lambda p: setattr(p.segments[-1], "size", 10**6),
        "delegate has no data": lambda p: setattr(
            forward(p).delegates[0].processed, "index", len(p.segments)
        ),
        "weights .* have no segment": lambda p: setattr(p.named_data[0], "segment_index", 99),
        "weights have no name": lambda p: setattr(p.named_data[0], "key", ""),
        "a delegate does not exist": lambda p: setattr(
            calls(p, "DelegateCall")[0], "delegate_index", 1
        ),
        "weights .* are not those written": lambda p: setattr(
            p.named_data[0], "key", "scale_" + "0" * 64
        ),
    }.items():
        program = copy.deepcopy(whole)
        change(program)
        with pytest.raises(PteFormatError, match=part):
            _damage.check_description(program, conv.pte, base)


def test_a_whole_program_of_many_kinds_passes(many_kinds: bytes, counter: bytes) -> None:
    ids, x = torch.tensor([2, 0]), torch.tensor([[1.0, -2, 3, 4]] * 3)
    picked, turned, means = PteRunner(many_kinds)(x, ids)
    assert torch.equal(picked, x[ids])
    assert torch.equal(turned, (x + 1).roll(-1, 1))
    assert torch.equal(means, x.clamp(min=0.5).mean(1))
    PteRunner(counter)(torch.ones(2, 3))


# --- the same in files, beside what the raw API does


def test_changed_weights_of_xnnpack_are_refused(conv: Program) -> None:
    """Any bit: XNNPACK programs name their weights by the SHA-256 of what they hold."""
    rng, wrong = random.Random(0), 0
    held = conv.model.conv.weight.detach().permute(0, 2, 3, 1).contiguous().numpy().tobytes()
    start = conv.pte.index(held)
    for _ in range(20):
        at = start + rng.randrange(len(held))
        damaged = replaced(conv.pte, at, bytes([conv.pte[at] ^ 1 << rng.randrange(8)]))
        wrong += not torch.equal(raw(damaged, *conv.example)[0], raw(conv.pte, *conv.example)[0])
        with pytest.raises(PteFormatError, match=r"weights \w{14}… are not those written"):
            PteRunner(damaged)
    assert wrong > 10, "the raw API computes with them"


def test_other_named_data_is_not_compared(conv: Program) -> None:
    """Another backend may name by something else what looks like a checksum."""
    program = read_description(conv.pte)
    forward(program).delegates[0].id = "AnotherBackend"
    program.named_data[0].key = "0" * 64
    _damage.check_description(program, conv.pte, segment_base(conv.pte))


def names_in_delegate(conv: Program) -> list[int]:
    """Where the names of the weights stand in the delegate's blob, behind the flatbuffer."""
    keys = [entry.key.encode() for entry in read_description(conv.pte).named_data]
    return [conv.pte.rindex(key) for key in keys]


def test_a_name_in_a_delegate_that_is_not_utf8(conv: Program) -> None:
    """XNNPACK does not find it, and the redirection of its log aborts the process."""
    damaged = [
        Damaged(sample(conv), "name", at, replaced(conv.pte, at + 5, b"\xff"))
        for at in names_in_delegate(conv)
    ]
    assert trials("raw", damaged) == ["killed"] * len(damaged), "or ExecuTorch has mended it"
    for d in damaged:
        with pytest.raises(PteFormatError, match="UnicodeDecodeError: 'utf-8'"):
            PteRunner(d.data)


def test_a_delegate_with_another_head(conv: Program) -> None:
    for tag in (b"XH00", b"XN01"):
        data = replaced(conv.pte, conv.pte.index(tag), b"\xba\xff\xff\xff")
        with pytest.raises(PteFormatError, match="a delegate is not one of XNNPACK"):
            PteRunner(data)


def test_an_argument_of_another_kind(many_kinds: bytes) -> None:
    """A kernel asserts on it, and the process is aborted."""
    program = read_description(many_kinds)
    plan = forward(program)
    (clamp,) = (
        c for c in calls(program, "KernelCall") if "clamp" in plan.operators[c.op_index].name
    )
    before = struct.pack(f"<{len(clamp.args)}i", *clamp.args)
    swap_arguments(program)
    assert many_kinds.count(before) == 1
    data = many_kinds.replace(before, struct.pack(f"<{len(clamp.args)}i", *clamp.args))
    inputs = torch.zeros(3, 4), torch.tensor([2, 0])
    damaged = Damaged(Sample("kinds", many_kinds, inputs), "kind", 0, data)
    assert trials("raw", [damaged]) == ["killed"], "or ExecuTorch has mended it"
    with pytest.raises(PteFormatError, match="clamp has an argument of kind Tensor"):
        PteRunner(data)


def test_constants_outside_of_delegates_need_the_checksum(tmp_path: Path) -> None:
    """What remains: a portable program holds its constants without a checksum."""
    x = image()
    conv = nn.Conv2d(3, 2, 3).eval()
    data = portable(conv, (x,))
    at = data.index(conv.weight.detach().numpy().tobytes()) + 3
    damaged = replaced(data, at, bytes([data[at] ^ 0x40]))
    assert not torch.equal(PteRunner(damaged)(x), PteRunner(data)(x))
    path = save_pte(data, tmp_path / "model.pte")
    path.write_bytes(damaged)
    with pytest.raises(PteFormatError, match=r"not the file that model\.pte\.sha256"):
        PteRunner(path)
