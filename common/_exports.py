"""Exporting a model; within one call that needs its program several times, only once."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
from torch import fx

from common._journal import step
from common._signature import Inputs
from common._source_line import is_of_a_library

_Kept = dict[int, tuple[torch.nn.Module, torch.export.ExportedProgram]]
_KEPT: ContextVar[_Kept | None] = ContextVar("exports", default=None)


@contextlib.contextmanager
def exports_kept() -> Generator[None, None, None]:
    """Export each model once while the block runs: it is the same example for all."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def export(
    model: torch.nn.Module, example: Inputs, dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """Run ``torch.export.export``, or return what it returned before. A graph is not kept."""
    kept = _KEPT.get()
    if kept is not None and id(model) in kept:
        return kept[id(model)][1]
    with step("export"), _whole_traces():
        program = torch.export.export(model, *example, dynamic_shapes=dynamic_shapes)
    if kept is not None and not isinstance(model, fx.GraphModule):
        kept[id(model)] = model, program
    return program


@contextlib.contextmanager
def _whole_traces() -> Generator[None, None, None]:
    """Let the nodes' traces hold the functions that ``forward`` calls.

    torch keeps the frames that are called ``forward``. Of a model whose ``forward`` calls another
    method they tell one line for all ops.
    """
    tracer: Any = fx.Tracer
    original = getattr(tracer, "_filter_traceback_frames", None)
    if original is None:  # another version of torch
        yield
        return

    def filtered(self: Any, stack: traceback.StackSummary) -> traceback.StackSummary:
        first = next((i for i, frame in enumerate(stack) if frame.name == "forward"), None)
        if first is None:
            found: traceback.StackSummary = original(self, stack)
            return found
        return traceback.StackSummary.from_list(
            frame
            for frame in stack[first:]
            if frame.name == "forward" or not is_of_a_library(frame.filename)
        )

    with mock.patch.object(fx.proxy.TracerBase, "_filter_traceback_frames", filtered):
        yield
