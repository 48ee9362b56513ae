"""What ends a process, and what one without `quiet()` prints: test_symptoms.py reads it.

python tests/crashes.py FOLDER    FOLDER holds conv.pte (XNNPACK), portable.pte, two .pt2

Each raw call runs in a fork, since it kills it. The last line of the output is JSON: for each call
the error text, the name of a signal, "raised", "hangs", or "ended".
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from executorch.exir import to_edge
from executorch.runtime import Runtime

FOLDER = Path(sys.argv[1])
IMAGE = torch.zeros(1, 3, 8, 8)
PATIENCE = 60.0  # seconds


def forward(program: Any) -> Any:
    """Its method."""
    return program.load_method("forward")


def bytes_dropped() -> None:
    """The bytes are freed with the Program, and their memory is used again."""
    path = FOLDER / "conv.pte"
    method = forward(Runtime.get().load_program(path.read_bytes()))
    gc.collect()
    rubbish = [os.urandom(path.stat().st_size) for _ in range(500)]
    for _ in range(50):
        method.execute([IMAGE])
    rubbish.clear()


def file_rewritten() -> None:
    """The file is mapped into memory, and then opened for writing."""
    path = FOLDER / "portable.pte"
    method = forward(Runtime.get().load_program(path))
    with path.open("wb"):
        method.execute([IMAGE])


def not_text() -> None:
    """A file whose identifier is no text: the log line about it cannot be decoded."""
    Runtime.get().load_program(b"\x00\x00\x00\x00\xff\xfe\xfd\xfc" + bytes(4096))


def bfloat16() -> None:
    """A bfloat16 Q/DQ graph: nothing is delegated, and the portable kernel gives up."""
    import executorch.kernels.quantized  # noqa: F401

    program = to_edge(torch.export.load(FOLDER / "bfloat16.pt2")).to_executorch()
    loaded = Runtime.get().load_program(program.buffer)
    forward(loaded).execute([torch.zeros(2, 6, dtype=torch.bfloat16)])


def missing_out_variants() -> str:
    """Quantize ops outside every delegate, before their kernels are imported."""
    try:
        to_edge(torch.export.load(FOLDER / "linear.pt2")).to_executorch()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "ended"


def in_a_fork(call: Callable[[], None]) -> str:
    """How it ends."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(Exception):
            call()
            os._exit(0)
        os._exit(1)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            number = os.waitstatus_to_exitcode(status)
            return signal.Signals(-number).name if number < 0 else ("ended", "raised")[number]
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def main() -> None:
    """Make all the calls."""
    import torchao.quantization.pt2e  # noqa: F401  (the ops of a saved Q/DQ graph)

    found = {"missing_out_variants": missing_out_variants()}
    for call in (bytes_dropped, file_rewritten, not_text, bfloat16):
        print(f"\n--- {call.__name__}", file=sys.stderr, flush=True)
        for _ in range(6):  # what a use of freed memory does depends on what lies there
            found[call.__name__] = in_a_fork(call)
            if found[call.__name__] != "ended":
                break
    print(json.dumps(found))


if __name__ == "__main__":
    main()
