"""Kernels that end the process for some dtypes, found before they are loaded."""

from __future__ import annotations

from typing import Any

from common._errors import PteLoadError

# ExecuTorch 1.5.1: kernels/quantized asks with ET_CHECK_MSG, which aborts, and not with an error
# code as the other portable kernels do.
_PREFIX = "quantized_decomposed::"
_ABORTS = {"BFLOAT16"}


def check_kernel_dtypes(plan: Any) -> None:
    """Refuse a program that would quantize or dequantize what its kernels cannot.

    Raises:
        PteLoadError: naming the operator and the dtype.
    """
    for call in (i.instr_args for chain in plan.chains for i in chain.instructions or []):
        if type(call).__name__ != "KernelCall":
            continue
        name = plan.operators[call.op_index].name
        if not name.startswith(_PREFIX):
            continue
        for i in call.args:
            kind = getattr(getattr(plan.values[i].val, "scalar_type", None), "name", "")
            if kind in _ABORTS:
                raise PteLoadError(
                    f"the program calls {name} for {kind.lower()}, which ends the process in this "
                    "runtime. Make the program from a float32 model: model.float()."
                )
