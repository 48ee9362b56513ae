"""Does one output of a ``.pte`` agree with its graph, as far as rounding lets it?

How much of a difference is innocent depends on the network. So the network itself gives the
bound: the same graph **without rounding** (see ``_rounding``) tells how much all rounding together
changes an output. A program in which few of these values are rounded the other way differs by
less: over chains of 1 to 16 convolutions by 5 to 27 dB less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from common._errors import VerificationError
from common.metrics import lsb_distance, sqnr_db

MARGIN_DB = 6.0
"""How far below the SQNR of the graph's own rounding a ``.pte`` may be: few outputs make the
estimate of either uncertain by some dB."""
MARGIN_16_BIT_DB = 18.0
"""The same for float16 and bfloat16, in which kernels also sum up, and PyTorch does not."""
FLOAT_DB = 60.0
"""The most that is asked of a program. In float32, order of summation and approximate functions
leave 90 dB and more."""
TELLING_DB = 3.0
"""Below it a wrong program is not told from a right one: noise as large as the signal."""
_FAR_LARGER = 100.0


@dataclass(frozen=True)
class OutputCheck:
    """How one output of a ``.pte`` compares with its graph, over all inputs.

    Attributes:
        index: which output, counted flat from 0.
        sqnr: in dB; ``inf`` when they are equal.
        least: the SQNR that rounding explains, in dB, margin included.
        max_lsb: largest distance in steps of the output's scale; None where the graph does not
            end in a dequantize node.
        top1: share of the rows (last dimension) with the same largest entry; None for outputs
            whose rows hold one entry, and for integers.
        equal: share of the elements that are equal bit for bit.
        sqnr_fp32: in dB, of the ``.pte`` against the fp32 model, where one was given.
    """

    index: int
    sqnr: float
    least: float
    max_lsb: int | None
    top1: float | None
    equal: float
    sqnr_fp32: float | None = None

    @property
    def is_telling(self) -> bool:
        """Whether a wrong program would have been noticed: False where rounding drowns all."""
        return self.least >= TELLING_DB or self.sqnr == math.inf or self.max_lsb in (0, 1)


@dataclass(frozen=True)
class Output:
    """One output of all that ran, over all inputs: rows of its last dimension.

    Attributes:
        pte: of the program.
        graph: of the graph.
        exact: of the graph without rounding; None where it does not compare.
        fp32: of the model before quantization, where one was given.
        scale: of the graph's last dequantize node, where it ends in one.
        is_quantized: whether the graph holds quantized values.
        by_row: whether the program rounds each row with a scale of its own, and the graph does not.
    """

    pte: torch.Tensor
    graph: torch.Tensor
    exact: torch.Tensor | None
    fp32: torch.Tensor | None
    scale: float | None
    is_quantized: bool
    by_row: bool


def check_alike(where: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare dtype, shape, and the places of NaN and infinities."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise VerificationError(
            f"{where}: the .pte gives {tuple(got.shape)} {got.dtype}, "
            f"its graph {tuple(expected.shape)} {expected.dtype}." + _of_rounding(got, expected)
        )
    ours, theirs = torch.isfinite(got), torch.isfinite(expected)
    if torch.equal(ours, theirs) and torch.equal(got[~ours].sign(), expected[~ours].sign()):
        return
    raise VerificationError(
        f"{where}: {(~ours).sum()} NaN or infinite values in the .pte, {(~theirs).sum()} in its "
        f"graph, of {got.numel()}, not the same at the same places. A quantized program gives "
        "finite values for a NaN; max_pool2d, maximum and minimum of XNNPACK drop one in float32."
    )


def _of_rounding(got: torch.Tensor, expected: torch.Tensor) -> str:
    if got.dtype != expected.dtype or got.dim() != expected.dim():
        return ""
    return (
        " Where values decide how many results there are (nonzero, a threshold), rounding changes "
        "the number: lower the model up to these values, and select outside."
    )


def check_output(index: int, output: Output) -> OutputCheck:
    """Compare one output.

    Raises:
        VerificationError: it differs by more than rounding explains.
    """
    got, expected = output.pte, output.graph
    finite = torch.isfinite(expected)
    equal = (got == expected)[finite].double().mean().item() if finite.any() else 1.0
    sqnr, least = _figures(output, finite)
    top1 = None
    if got.is_floating_point() and got.shape[1] > 1 and len(got):
        top1 = (got.argmax(1) == expected.argmax(1)).double().mean().item()
    to_fp32 = None
    if output.fp32 is not None and output.fp32.shape == got.shape:
        to_fp32 = _sqnr(output.fp32, got)
    check = OutputCheck(index, sqnr, least, _steps(output, finite), top1, equal, to_fp32)
    if not got.is_floating_point():
        # A position or a class: equal or not. After int8 two candidates are often equally good.
        if equal < (0.98 if least == FLOAT_DB else 0.5):
            raise _disagrees(check, sqnr, least, "")
        return check
    # One step is what a single rounding may differ by, however few values there are.
    if check.max_lsb is not None and check.max_lsb <= 1:
        return check
    if sqnr < least:
        raise _disagrees(check, sqnr, least, "")
    usual = finite & ~_far_larger(expected, finite)
    if not torch.equal(usual, finite):
        sqnr, least = _figures(output, usual)
        if sqnr < least:
            where = f" over the {usual.sum()} elements that are not far larger than the others"
            raise _disagrees(check, sqnr, least, where)
    return check


def _far_larger(x: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Tell which elements would hide all others in an SQNR, as a mask of -1e9 does."""
    sizes = x.abs()
    usual = sizes[among & (sizes > 0)]
    if not len(usual):
        return torch.zeros_like(among)
    return sizes > _FAR_LARGER * usual.double().median()


def _figures(output: Output, where: torch.Tensor) -> tuple[float, float]:
    """Return the SQNR of the program over some elements, and what rounding explains there."""
    expected = output.graph[where]
    if output.exact is None:
        return _sqnr(expected, output.pte[where]), -math.inf if output.is_quantized else FLOAT_DB
    exact = output.exact[where]
    margin = MARGIN_16_BIT_DB if expected.dtype.itemsize == 2 else MARGIN_DB
    least = min(FLOAT_DB, _sqnr(exact, expected) - margin)
    return _sqnr(exact if output.by_row else expected, output.pte[where]), least


def _steps(output: Output, finite: torch.Tensor) -> int | None:
    if output.scale is None or not finite.any():
        return None
    reference = output.exact if output.by_row and output.exact is not None else output.graph
    distance = lsb_distance(output.pte[finite], reference[finite], output.scale)
    return int(distance.max().item())


def _disagrees(check: OutputCheck, sqnr: float, least: float, where: str) -> VerificationError:
    lsb = "" if check.max_lsb is None else f", at most {check.max_lsb} LSB apart"
    return VerificationError(
        f"the .pte does not compute what its graph computes: output {check.index} agrees with "
        f"{sqnr:.1f} dB{where} ({check.equal:.1%} of the elements are equal{lsb}), where rounding "
        f"explains no less than {least:.1f} dB. Do not use this program. Lower parts of the "
        "model to find the op; verify=False returns the program all the same."
    )


def _sqnr(reference: torch.Tensor, actual: torch.Tensor) -> float:
    finite = torch.isfinite(reference) & torch.isfinite(actual)
    if not finite.any():
        return math.inf
    reference, actual = reference[finite], actual[finite]
    if not reference.any() and actual.double().abs().max() <= 1e-6:
        return math.inf  # zeros: no signal to measure noise by
    return sqnr_db(reference, actual)


def not_telling(check: OutputCheck) -> str:
    """Say that a comparison proves nothing."""
    unclear = f"verify cannot tell whether output {check.index} of the .pte is right: "
    if check.least == -math.inf:
        return (
            f"{unclear}values decide how many results there are, and rounding changes them. "
            "Lower the model up to these values to have it verified, and select outside."
        )
    return (
        f"{unclear}rounding alone changes it by about as much as it is large (the bound is "
        f"{check.least:.1f} dB). Calibrate with more, or more typical, data, or leave layers in "
        "float32."
    )
