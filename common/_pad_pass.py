"""XNNPACK's pass for padding, kept from int8 padding of float32 values.

Where a convolution pads for itself, the partitioner takes the dequantize node in front of the pad
into the convolution, and ``InsertPadQDQPass`` rightly computes the pad in int8. The pass also
does so behind a dequantize node that stays a node of its own: the pad would then read float32 and
write int8, and XNNPACK does not load that. This happens to ``F.pad`` of a quantized value wherever
a float32 op or the output follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from unittest import mock

from torch import fx


@contextlib.contextmanager
def float_pads_kept() -> Generator[None, None, None]:
    """Let the pass see only pads whose input is int8 in XNNPACK."""
    from executorch.backends.xnnpack._passes import insert_pad_qdq
    from executorch.backends.xnnpack.utils import quant_utils

    def stays_int8(node: fx.Node) -> bool:
        dequantizes: bool = quant_utils.is_dequant(node)
        return dequantizes and quant_utils.is_tagged_as_implicit_q_dq(node)

    with mock.patch.object(insert_pad_qdq, "is_dequant", stays_int8):
        yield
