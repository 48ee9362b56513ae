"""What is inside a delegate of XNNPACK: its nodes, the types they compute in, their constants.

The blob is a header (``XH00``), a flatbuffer with the graph, and in files of older versions the
constants; newer ones keep the constants in the program's named data. Source: ExecuTorch 1.5.1,
``backends/xnnpack/serialization``.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common._flatbuffer import Schema

XNNPACK = "XnnpackBackend"
_IDENTIFIERS = (b"XN00", b"XN01")
_NO_VALUE = 0xFFFFFFFF  # XNN_INVALID_VALUE_ID
_QUANTIZED = re.compile(r"q([cdbp]?)(u?int\d+)")
_HOW = {"": "per tensor", "c": "per channel", "b": "per block", "d": "dynamic", "p": "packed"}
_AS_IN_TORCH = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "pfp32": "float32"}


@dataclass(frozen=True)
class XnnpackTensor:
    """A tensor at a node.

    Attributes:
        role: of the tensor at its node: ``input``, ``input2``, ``filter``, ``bias``, ``output``.
        dtype: ``float32``, ``int8``, ``int32``, as in torch.
        quantization: ``per tensor``, ``per channel``, ``per block``, ``dynamic`` (per row, while
            it runs), ``packed`` (dynamic too) or empty.
        shape: sizes; where a dimension is dynamic, the largest.
        constant: the constant that holds its values (an index into ``XnnpackGraph.constants``),
            None for a tensor that is computed.
        scales: the constant that holds the scales, where they are stored by themselves.
    """

    role: str
    dtype: str
    quantization: str
    shape: tuple[int, ...]
    constant: int | None = None
    scales: int | None = None

    @property
    def type(self) -> str:
        """Type and kind of quantization, as ``int8 per channel``; a lone ``int8`` is per tensor."""
        usual = self.quantization in ("", "per tensor")
        return self.dtype if usual else f"{self.dtype} {self.quantization}"

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.type} ({sizes})"


@dataclass(frozen=True)
class XnnpackNode:
    """A node of the graph.

    Attributes:
        kind: as XNNPACK calls it, ``Conv2d``, ``FullyConnected``, ``Convert``.
        tensors: inputs, constants and outputs with their roles.
        clamp: lowest and highest output; a ReLU that was fused is ``(0, inf)``. Else None.
    """

    kind: str
    tensors: tuple[XnnpackTensor, ...]
    clamp: tuple[float, float] | None = None

    @property
    def inputs(self) -> tuple[XnnpackTensor, ...]:
        """Tensors that are computed before, or come from outside."""
        return tuple(t for t in self.tensors if t.constant is None and t not in self.outputs)

    @property
    def weights(self) -> tuple[XnnpackTensor, ...]:
        """Tensors that are constants: filter, bias."""
        return tuple(t for t in self.tensors if t.constant is not None)

    @property
    def outputs(self) -> tuple[XnnpackTensor, ...]:
        """What the node computes."""
        return tuple(t for t in self.tensors if t.role.startswith("output"))

    @property
    def activation(self) -> str:
        """The clamp in words: ``relu``, ``relu6``, ``clamp -1..1``, or empty."""
        if self.clamp is None or self.clamp == (-math.inf, math.inf):
            return ""
        low, high = self.clamp
        if low == 0 and high in (6, math.inf):
            return "relu6" if high == 6 else "relu"
        return f"clamp {low:g}..{high:g}"

    @property
    def name(self) -> str:
        """Kind and activation: ``Conv2d + relu``."""
        return f"{self.kind} + {self.activation}" if self.activation else self.kind

    @property
    def types(self) -> str:
        """Types from inputs to output, as ``int8`` or ``float32 → int8``."""
        ins, outs = ({t.type: None for t in ts} for ts in (self.inputs, self.outputs))
        if list(ins) == list(outs):
            return ", ".join(ins)
        return f"{', '.join(ins)} → {', '.join(outs)}".strip()

    @property
    def weight_types(self) -> str:
        """Types of the constants, the first (the filter) at the front: ``int8 per channel``."""
        return ", ".join({t.type: None for t in self.weights})


@dataclass(frozen=True)
class XnnpackConstant:
    """Data that the graph refers to.

    Attributes:
        key: name among the program's named data; empty where the blob itself holds the data.
        offset: first byte in the blob; -1 where the data are elsewhere.
        bytes: of the data; 0 in old files, where only the blob's flatbuffer knows.
    """

    key: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class XnnpackGraph:
    """What is inside a delegate of XNNPACK.

    Attributes:
        nodes: in the order of execution.
        inputs: how many tensors come from outside.
        outputs: how many go out.
        constants: weights and scales, the reserved one at the front left out.
    """

    nodes: tuple[XnnpackNode, ...]
    inputs: int
    outputs: int
    constants: tuple[XnnpackConstant, ...]

    @property
    def kinds(self) -> Mapping[tuple[str, str, str], int]:
        """How often ``(kind with its activation, types, types of the weights)`` occurs."""
        return Counter((node.name, node.types, node.weight_types) for node in self.nodes)

    def __str__(self) -> str:
        counts = Counter(node.kind for node in self.nodes)
        return ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no node"


def read_xnnpack(blob: bytes) -> XnnpackGraph:
    """Read the graph from what a delegate stored.

    Raises:
        ValueError, struct.error, KeyError, IndexError, TypeError: the blob is not one of XNNPACK,
            or is damaged.
    """
    start, base, flatbuffer = _parts(blob)
    graph = _schema().read(flatbuffer)
    tensors = {}
    for entry in graph["xvalues"]:
        value = entry["xvalue_union"]
        plain = value.get("tensor_value") or value
        tensors[plain["id_out"]] = (plain, value.get("quant_params"))
    stored = graph["constant_data"] or [
        {"named_key": "", "offset": flatbuffer.find(b["storage"]), "size": len(b["storage"])}
        for b in graph["constant_buffer"]
    ]
    inside = base if graph["constant_data"] else start
    return XnnpackGraph(
        tuple(_node(entry, tensors) for entry in graph["xnodes"]),
        len(graph["input_ids"]),
        len(graph["output_ids"]),
        tuple(
            XnnpackConstant(
                entry["named_key"],
                -1 if entry["named_key"] else inside + entry["offset"],
                entry["size"],
            )
            for entry in stored[1:]
        ),
    )


def debug_handles(blob: bytes) -> tuple[int, ...]:
    """Read for each node the number of the graph's op that it was made for.

    Nodes that XNNPACK's own passes add have the number 65535. Raises as `read_xnnpack`.
    """
    return tuple(entry["debug_handle"] for entry in _schema().read(_parts(blob)[2])["xnodes"])


def _parts(blob: bytes) -> tuple[int, int, bytes]:
    """Return where the flatbuffer and the constants begin, and the flatbuffer."""
    start, size, base = 0, len(blob), 0
    if blob[4:8] == b"XH00":
        start, size, base = struct.unpack_from("<III", blob, 10)
    flatbuffer = blob[start : start + size]
    if flatbuffer[4:8] not in _IDENTIFIERS:
        raise ValueError(f"expected one of {_IDENTIFIERS}, got {flatbuffer[4:8]!r}")
    return start, base, flatbuffer


def _node(entry: dict[str, Any], tensors: dict[int, Any]) -> XnnpackNode:
    node = entry["xnode_union"]
    kind = node["kind"].removeprefix("XNN")
    roles = [(name, node[name]) for name in node if name.endswith("_id")]
    if digits := re.fullmatch(r"Concatenate(\d)", kind):
        # One table serves all of them; what it does not need is 0 or no value.
        wanted = {f"input{i + 1}_id" for i in range(int(digits[1]))} | {"output_id"}
        roles = [(name, i) for name, i in roles if name in wanted]
    limits = entry["output_min_max"]
    return XnnpackNode(
        kind,
        tuple(_tensor(name.removesuffix("_id"), *tensors[i]) for name, i in roles if i in tensors),
        (limits["output_min"], limits["output_max"]) if limits else None,
    )


def _tensor(role: str, plain: dict[str, Any], quantization: dict[str, Any] | None) -> XnnpackTensor:
    dtype = plain["datatype"].removeprefix("xnn_datatype_")
    how, dtype = "", _AS_IN_TORCH.get(dtype, dtype)
    if found := _QUANTIZED.fullmatch(dtype):
        how, dtype = _HOW[found[1]], found[2]
    scales = (quantization or {}).get("scale_buffer_idx", 0)
    return XnnpackTensor(
        {"input1": "input"}.get(role, role),
        dtype,
        how,
        tuple(plain["dims"]),
        _constant(plain["constant_buffer_idx"]),
        _constant(scales),
    )


def _constant(index: int) -> int | None:
    # 0 says that there is none, and so does -1 as an unsigned number
    return None if index in (0, _NO_VALUE) else index - 1


@functools.cache
def _schema() -> Schema:
    import executorch.backends.xnnpack.serialization as package

    # Fields of older files are marked as deprecated there; they are read all the same.
    text = importlib.resources.files(package).joinpath("schema.fbs").read_text("utf-8")
    return Schema.parse(text)
