"""Programs whose kernels end the process, refused before they are loaded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.executorch_utils import PteLoadError, PteRunner
from tests.programs import portable, rows


class Rounded(nn.Module):
    """Quantizes and dequantizes its input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
        return ops.dequantize_per_tensor(q, 0.1, 0, -128, 127, torch.int8, out_dtype=self.dtype)


def test_dequantizing_to_bfloat16(one_thread: None) -> None:
    """SIGABRT otherwise: tests/crashes.py shows it in a process of its own."""
    import executorch.kernels.quantized  # noqa: F401

    x = rows(2)
    assert torch.equal(PteRunner(portable(Rounded(torch.float32), (x,)))(x), Rounded(x.dtype)(x))
    pte = portable(Rounded(torch.bfloat16), (x,))
    said = r"calls quantized_decomposed::dequantize_per_tensor for bfloat16, which ends the process"
    with pytest.raises(PteLoadError, match=said):
        PteRunner(pte)
