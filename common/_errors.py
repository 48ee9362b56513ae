"""Exceptions of the package: what is wrong, in words, and what to do."""

from __future__ import annotations

__all__ = [
    "LoweringError",
    "PteError",
    "PteExecutionError",
    "PteFormatError",
    "PteLoadError",
    "QuantizationError",
    "VerificationError",
]


class PteError(Exception):
    """Something is wrong with a ``.pte`` or its execution; the base of the four below."""


class PteFormatError(PteError, ValueError):
    """The bytes are not a whole ExecuTorch program; the message says what they are."""


class PteLoadError(PteError):
    """The program is whole, but this runtime cannot load it (a backend or a kernel is missing)."""


class PteExecutionError(PteError):
    """The program is loaded and the inputs fit, but its execution failed."""


class VerificationError(PteError):
    """The program does not compute what the graph it came from computes."""


class LoweringError(RuntimeError):
    """ExecuTorch cannot lower a program; the message gives its reason and what to do."""


class QuantizationError(ValueError):
    """A model or its calibration data cannot be quantized as asked."""
