"""What happens to a model on the road to XNNPACK, and what to change: one call, one page.

In Python by `report`; from a shell::

    python -m common.report module:factory
    python -m common.report module:factory --html report.html --json > report.json
    python -m common.report module:factory --max-delegates 1 --min-sqnr 30
    python -m common.report model.pte
    python -m common.report before.pte after.pte --exit-code

``factory()`` returns ``(model, example_inputs)``, or a dict with the arguments of `report`. Of a
``.pte`` alone the command says what ``python -m common.inspection`` says.

The command ends with status 0; 1 when a limit does not hold, when the model or the file is
refused, or with ``--exit-code`` when two files differ; 2 when it was called wrongly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from common._advice import Advice
from common._figures import NAMES
from common._op_rows import Border, ReportedOp
from common._page import fragment, write_page
from common._report_command import run
from common._report_page import as_data, sections, terminal, title
from common._report_run import Wanted, findings
from common._reported import Accuracy, Failure, Findings, ReportedProgram
from common._signature import Inputs, in_order_of_forward
from common._source_line import SourceLine
from common.pt2e import check_example, quiet

__all__ = [
    "NAMES",
    "Accuracy",
    "Advice",
    "Border",
    "Failure",
    "Report",
    "ReportedOp",
    "ReportedProgram",
    "SourceLine",
    "report",
]

quiet()


@dataclass(frozen=True, repr=False)
class Report(Findings):
    """What `report` returns. ``str()`` is a summary; Jupyter shows a page.

    Its parts are described at `Findings`; each is a value or a `Failure`.
    """

    def __str__(self) -> str:
        return terminal(self)

    def __repr__(self) -> str:
        return f"Report({title(self)})"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the programs and the picture, ready for ``json.dumps``.

        A part that failed is ``{"failure": sentence}``.
        """
        return as_data(self)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that opens alone, in any browser, and return its path."""
        return write_page(path, title(self), sections(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": fragment(sections(self, cell=True)), "text/plain": str(self)}


def report(
    model: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    example_kwargs: dict[str, Any] | None = None,
    calibration: Iterable[tuple[Any, ...]] | None = None,
    labelled: tuple[Any, torch.Tensor] | None = None,
    dynamic_shapes: Any = None,
    quantizer: Any = None,
    is_dynamic: bool = False,
    measure: bool = True,
) -> Report:
    """Quantize a model, lower it in int8 and in fp32, run both, and say what came out.

    Each op is followed into the int8 program: its line in the model's source, whether the
    quantizer marked it, which delegate computes it and in what, or why none does, and what to
    try. A part that fails says so and leaves the others as they are.

    Args:
        model: float32, in ``eval()`` mode; it is not changed.
        example_inputs: as for ``xnnpack_ptq``.
        example_kwargs: inputs that ``forward`` is given by name.
        calibration: as for ``xnnpack_ptq``; a generator is used up once.
        labelled: ``(inputs, labels)``: a tensor of inputs, or a tuple with one for each input of
            the model, and the classes ``(N,)``. They are cut into batches of the example's size.
        dynamic_shapes: as in ``torch.export.export``, with a ``max=`` for each ``Dim``.
        quantizer: a configured ``XNNPACKQuantizer``.
        is_dynamic: quantize activations at run time.
        measure: also time both programs, which takes a second or two.

    Returns:
        A `Report`.

    Raises:
        TypeError: the example is not a tuple.
        ValueError: the example does not fit ``forward``. All else is in the report.

    Example:
        >>> layer, x = torch.nn.Linear(4, 2).eval(), (torch.ones(1, 4),)
        >>> found = report(layer, x, calibration=[x], measure=False)
        >>> [(op.op, op.place) for op in found.ops]
        [('linear', 'int8 in delegate 0')]
        >>> found.figures["delegates"], found.latency
        (1, Failure(sentence='not asked for: measure=False'))
    """
    check_example(example_inputs)
    example = Inputs(example_inputs, in_order_of_forward(model, example_inputs, example_kwargs))
    wanted = Wanted(
        model=model,
        example=example,
        keywords=example_kwargs is not None,
        calibration=calibration,
        labelled=labelled,
        dynamic_shapes=dynamic_shapes,
        quantizer=quantizer,
        is_dynamic=is_dynamic,
        measure=measure,
    )
    found = findings(wanted)
    return Report(**{f.name: getattr(found, f.name) for f in fields(found)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run(report, arguments)


if __name__ == "__main__":
    sys.exit(main())
