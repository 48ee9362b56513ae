"""``python -m common.report``: a model or a file from the command line."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import inspection
from common._figures import Limit, add_limits, file_figures, limits
from common._reported import Failure


class _Usage(Exception):
    """The command was called wrongly; the message says how it should be."""


def run(report: Callable[..., Any], arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, report, and return the exit status.

    Args:
        report: makes a report of a model.
        arguments: those of the command line, by default.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if all(_is_file(subject) for subject in options.subjects):
            return _of_files(options)
        if len(options.subjects) != 1 or options.exit_code:
            raise _Usage("expected one module:factory, or one or two .pte files")
        model, example, keywords = _made(options.subjects[0], report)
    except _Usage as error:
        parser.error(str(error))
    try:
        found = report(model, example, **keywords)
    except (TypeError, ValueError) as error:  # of the example; all else is in the report
        parser.error(str(error))
    if options.html:
        found.to_html(options.html)
    said = str(found)
    if options.json:
        said = json.dumps(found.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write(f"{said}\n")
    refused = isinstance(found.int8, Failure)
    return _held(found.figures, limits(options)) or int(refused)


def _is_file(subject: str) -> bool:
    return subject.endswith(".pte") or os.path.isfile(subject)


def _of_files(options: argparse.Namespace) -> int:
    """Do what ``python -m common.inspection`` does, and hold one file against the limits."""
    files, wanted = options.subjects, limits(options)
    if len(files) > 2 or (options.exit_code and len(files) < 2):
        raise _Usage("expected one .pte or two, and two with --exit-code")
    if wanted and len(files) > 1:
        raise _Usage("limits are for one file")
    flags = ["--json"] * options.json + ["--exit-code"] * options.exit_code
    if options.html:
        flags.append(f"--html={options.html}")
    status = inspection.main([*flags, "--", *files])
    if status or not wanted:
        return status
    return _held(file_figures(inspection.inspect_pte(files[0])), wanted)


def _made(subject: str, report: Callable[..., Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Call a factory; return the model, the example, and what else it has for ``report``."""
    module, separator, path = subject.partition(":")
    if not separator or not module or not path:
        raise _Usage(f"{subject!r}: expected module:factory, or a .pte file that exists")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _Usage(f"{subject!r}: {error}") from error
    for name in path.split("."):
        if not hasattr(factory, name):
            raise _Usage(f"{subject!r}: {module} has no {path}")
        factory = getattr(factory, name)
    made = factory() if callable(factory) else factory
    if isinstance(made, tuple) and len(made) == 2:
        return made[0], made[1], {}
    if not isinstance(made, Mapping) or not {"model", "example_inputs"} <= set(made):
        raise _Usage(
            f"{subject!r} returned {type(made).__name__}: expected (model, example_inputs), or a "
            "dict with these two and other arguments of report"
        )
    known = list(inspect.signature(report).parameters)
    if unknown := sorted(set(made) - set(known)):
        raise _Usage(f"report takes no {', '.join(unknown)}; it takes: {', '.join(known)}")
    rest = {name: value for name, value in made.items() if name not in known[:2]}
    return made["model"], made["example_inputs"], rest


def _held(figures: Mapping[str, float | str], wanted: Sequence[Limit]) -> int:
    """Say on stderr which limits do not hold."""
    failures = [failure for limit in wanted if (failure := limit.failure(figures))]
    for failure in failures:
        sys.stderr.write(f"not met: {failure}\n")
    return int(bool(failures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m common.report",
        allow_abbrev=False,
        description="Say what happens to a model on the road to XNNPACK, or what is in a .pte.",
        epilog="Exit status: 0; 1 when a limit does not hold, when the model or the file is "
        "refused, or with --exit-code when two files differ; 2 when called wrongly.",
    )
    parser.add_argument(
        "subjects",
        nargs="+",
        metavar="module:factory | FILE.pte",
        help="a function without arguments that returns (model, example_inputs) or a dict with "
        "the arguments of report; or one .pte, or two to compare",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="OUT", help="also write a page that opens alone")
    parser.add_argument(
        "--exit-code", action="store_true", help="end with status 1 when two files differ"
    )
    add_limits(parser)
    return parser
