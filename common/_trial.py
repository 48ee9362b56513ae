"""Load a program and run it on zeros: what another process tries in the caller's place.

This module must not import what is slow or starts threads: a worker begins with it.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch

from common._pte_file import ScalarSpec, TensorSpec
from common._runtime import LOG, explain, log_taken


@dataclass(frozen=True)
class Trial:
    """A program, and what its methods take.

    Attributes:
        data: the program.
        inputs: for each method what it takes.
        wanted: the method that is to be loaded.
        operators: those that need a kernel.
    """

    data: bytes
    inputs: dict[str, tuple[TensorSpec | ScalarSpec, ...]]
    wanted: str
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Why a program is not to be loaded.

    Attributes:
        kind: ``load`` when the runtime itself refuses it, ``failure`` when it loads and then
            fails on zeros, ``death`` when the process that tried it ended, otherwise ``damage``.
        text: the same in words.
    """

    kind: Literal["load", "failure", "damage", "death"]
    text: str


def find_problem(trial: Trial) -> Problem | None:
    """Load and run every method of a program; return what is wrong with the one that is wanted.

    The other methods must not end the process, but may fail: their backend may be missing.

    In a forked child torch must not compute: where the parent has used several threads, the first
    parallel loop waits for threads that the child does not have. The inputs are made of plain
    memory for that reason, and the outputs are not cloned.
    """
    try:
        problems = {name: _try_method(trial, name) for name in trial.inputs}
    except Exception as error:  # what damage leads to in Python can be anything
        return Problem("damage", f"it cannot be tried: {type(error).__name__}: {error}")
    return problems[trial.wanted]


def _try_method(trial: Trial, name: str) -> Problem | None:
    with log_taken():
        try:
            # Each in a Program of its own: the methods of one share their memory.
            program = _load_program(trial.data)
            method = program.load_method(name)
        except RuntimeError as error:
            text = f"the program cannot be loaded: {explain(error, LOG.getvalue())}"
            return Problem("load", text)
        inputs = [_zeros(spec) for spec in trial.inputs[name]]
        if any(isinstance(x, torch.Tensor) and not x.numel() for x in inputs):
            return None  # PteRunner does not let such a call through to a delegate
        try:
            # Twice: the second run finds what the first one left in memory.
            for _ in range(2):
                method(inputs, False)
        except RuntimeError as error:
            text = (
                f"the program loads, but {name} fails on zeros: {explain(error, LOG.getvalue())}\n"
                "It is damaged, unless zeros are no valid input for it: then load it without "
                "isolated_check."
            )
            return Problem("failure", text)
    return None  # here method and program are freed, which is part of the trial


def _load_program(data: bytes) -> Any:
    library = _library()
    return library._load_program_from_buffer(
        data, program_verification=library.Verification.InternalConsistency
    )


def _library() -> Any:
    """Return the runtime itself: the module that wraps it imports the whole exporter."""
    if sys.platform == "win32":  # where that one also prepares the search for libraries
        from executorch.extension.pybindings import portable_lib

        return portable_lib
    from executorch.extension.pybindings import _C

    return _C


def _zeros(spec: TensorSpec | ScalarSpec) -> Any:
    if isinstance(spec, ScalarSpec):
        return spec.value
    if 0 in spec.shape:
        return torch.empty(spec.shape, dtype=spec.dtype)
    memory = bytearray(math.prod(spec.shape) * spec.dtype.itemsize)
    order = spec.dim_order
    stored = torch.frombuffer(memory, dtype=spec.dtype).view([spec.shape[d] for d in order])
    return stored.permute([order.index(d) for d in range(len(order))])


# --- a worker


def serve() -> None:
    """Make trials until stdin ends: the life of a worker.

    A request is a length of eight bytes and a pickled ``Trial``. An answer is one line, as
    ``to_line`` writes it. A first line says that the worker is ready.
    """
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # C++ may print, but not into the answers
    os.dup2(nothing, 2)
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x8003)  # no window that reports a crash
    _library()
    answers.write(to_line(None))
    answers.flush()
    while len(head := requests.read(8)) == 8:
        trial = pickle.loads(requests.read(int.from_bytes(head, "little")))
        if any(name.startswith("quantized_decomposed::") for name in trial.operators):
            import executorch.kernels.quantized  # noqa: F401  (registers its kernels)
        answers.write(to_line(find_problem(trial)))
        answers.flush()


def to_request(trial: Trial) -> bytes:
    """Write a trial for a worker."""
    pickled = pickle.dumps(trial)
    return len(pickled).to_bytes(8, "little") + pickled


def to_line(problem: Problem | None) -> bytes:
    """Write an answer."""
    return json.dumps(problem and [problem.kind, problem.text[:2000]]).encode() + b"\n"


def from_line(line: bytes) -> Problem | None:
    """Read an answer."""
    found = json.loads(line)
    return Problem(*found) if found else None
