"""What ExecuTorch says when it cannot lower a program, in words, with what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator

import torch

from common._errors import LoweringError
from common._exported import constant_names
from common._text import torch_name

_ADVICE = (
    (
        r"only supports keep_dim == True",
        "Write x.max(d, keepdim=True).values and drop the dimension with reshape; d must be one of "
        "the last two of four dimensions.",
    ),
    (
        r"is tagged with .* but has user \(output\)",
        "forward returns a weight as it is. Return a copy, self.weight.clone(), or take the weight "
        "from the model instead.",
    ),
    (
        r"already in the inputs",
        "A copy of a buffer that forward changes, self.buffer.clone(), would leave the delegate "
        "twice. Write self.buffer + 0.0, or return self.buffer itself.",
    ),
    (r"graph_output_allocated not set", "forward must return at least one tensor or number."),
    (
        r"not in Core ATen opset|Missing out variants",
        "ExecuTorch has no kernel for this op. Write it in other ops, or compute it outside the "
        "program.",
    ),
    (
        r"data-dependent|unbacked|Failed to map a given dim_order",
        "A size that depends on the values of an input goes into an op that must know it. Compute "
        "this part outside the program, or use a mask of fixed size.",
    ),
    (
        r"convert_to_qc4w: expecting input tensor to be 2d",
        "XNNPACK has weights of 4 bits for linear layers only. Use 8 bits for convolutions.",
    ),
    (
        r"non-NHWC compatible",
        "XNNPACK keeps what is around a convolution in four dimensions; an op of the graph joins "
        "that with other shapes. Write conv1d as conv2d on x.unsqueeze(2), or leave an op outside.",
    ),
)
_MOST = 500


@contextlib.contextmanager
def in_words(program: torch.export.ExportedProgram) -> Generator[None, None, None]:
    """Turn what ExecuTorch raises in the block into a ``LoweringError``.

    Args:
        program: what is lowered; its dtypes are looked at.

    Raises:
        LoweringError: the first cause, what to do, and what is neither float32 nor an integer.
    """
    try:
        yield
    except Exception as error:
        causes = list(_chain(error))
        said = " ".join(str(causes[-1]).split())
        whole = " ".join(str(cause) for cause in causes)
        parts = [f"ExecuTorch cannot lower this program: {_cut(said)}"]
        parts += [advice for pattern, advice in _ADVICE if re.search(pattern, whole)]
        if odd := _odd_dtypes(program):
            parts.append(
                f"It is made for float32; {', '.join(odd)}. Call .float() on the model and its "
                "inputs."
            )
        raise LoweringError(" ".join(parts)) from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _cut(text: str) -> str:
    text = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    return text if text.endswith((".", "…")) else f"{text}."


def _odd_dtypes(program: torch.export.ExportedProgram) -> list[str]:
    names = constant_names(program)
    found = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        if value.dtype != torch.float32 and (value.is_floating_point() or value.is_complex()):
            name = names.get(node.name, f"input {node.name}")
            found.append(f"{name} is {torch_name(value.dtype)}")
    return found[:4]
