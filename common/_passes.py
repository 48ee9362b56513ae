"""XNNPACK's passes over a delegate, kept from two faults.

Padding: where a convolution pads for itself, the partitioner takes the dequantize node in front of
the pad into the convolution, and ``InsertPadQDQPass`` rightly computes the pad in int8. The pass
also does so behind a dequantize node that stays a node of its own: the pad would then read float32
and write int8, and XNNPACK does not load that. This happens to ``F.pad`` of a quantized value
wherever a float32 op or the output follows.

Softmax: XNNPACK computes it along the last dimension in memory. Behind a convolution, memory is in
the order of channels last, where that is another dimension: ``conv(x).softmax(-1)`` is silently
wrong, in float32 as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from unittest import mock

from torch import fx


@contextlib.contextmanager
def mended_passes() -> Generator[None, None, None]:
    """Let padding be int8 only where its input is, and turn the layout back before a softmax."""
    from executorch.backends.xnnpack._passes import insert_pad_qdq
    from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
        ChannelsLastTaggedReshapePass,
    )
    from executorch.backends.xnnpack.utils import quant_utils
    from executorch.exir.dialects._ops import ops

    def stays_int8(node: fx.Node) -> bool:
        return bool(quant_utils.is_dequant(node) and quant_utils.is_tagged_as_implicit_q_dq(node))

    in_order = ChannelsLastTaggedReshapePass.memory_sensitive_ops_nchw
    in_order = in_order | {ops.edge.aten._softmax.default}
    with (
        mock.patch.object(insert_pad_qdq, "is_dequant", stays_int8),
        mock.patch.object(ChannelsLastTaggedReshapePass, "memory_sensitive_ops_nchw", in_order),
    ):
        yield
