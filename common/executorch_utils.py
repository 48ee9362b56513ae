"""Quantize, lower, look inside and run: ExecuTorch's road with its traps covered.

Importing this module imports executorch, without its known noise (see ``common.pt2e.quiet``).
"""

from common._errors import (
    LoweringError,
    PteError,
    PteExecutionError,
    PteFormatError,
    PteLoadError,
    QuantizationError,
    VerificationError,
)
from common._lowering import (
    DelegationSummary,
    Lowered,
    delegation_summary,
    lower_to_xnnpack,
    xnnpack_ptq,
)
from common._memory import PlannedTensor, memory_plan
from common._pte_file import PteContents, ScalarSpec, TensorSpec, pte_contents, save_pte
from common._runner import PteRunner
from common._threads import get_threads, set_threads
from common._verification import OutputCheck, Verification, verify
from common.pt2e import quiet

__all__ = [
    "DelegationSummary",
    "Lowered",
    "LoweringError",
    "OutputCheck",
    "PlannedTensor",
    "PteContents",
    "PteError",
    "PteExecutionError",
    "PteFormatError",
    "PteLoadError",
    "PteRunner",
    "QuantizationError",
    "ScalarSpec",
    "TensorSpec",
    "Verification",
    "VerificationError",
    "delegation_summary",
    "get_threads",
    "lower_to_xnnpack",
    "memory_plan",
    "pte_contents",
    "save_pte",
    "set_threads",
    "verify",
    "xnnpack_ptq",
]

quiet()
