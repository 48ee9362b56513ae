"""What depends on the order of imports, on hash seeds and on lifetimes; see test_fresh_kernel.py.

Nothing here may write to stderr. The imports stand inside the functions, since `quiet()` has to
come before the first of executorch.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from common import pt2e


def noise_filters() -> dict[str, int]:
    """How often each of the filters of `quiet` is in place."""
    experimental = [f for f in warnings.filters if "experimental" in str(f[1])]
    found = {"experimental API": len(experimental)}
    for name in ("torchao", "torch.utils._pytree"):
        found[name] = len(logging.getLogger(name).filters)
    return found


def checksum() -> str:
    """Quantize and lower the convolution of tests/programs.py."""
    from common.executorch_utils import lower_to_xnnpack
    from tests.programs import image, quantized_conv

    return hashlib.sha256(lower_to_xnnpack(quantized_conv(), (image(),)).pte).hexdigest()


def run_quantized_kernels(path: Path) -> float:
    """Run a program whose kernels are not in the runtime until they are imported."""
    from common.executorch_utils import PteRunner
    from tests.programs import image, quantized_conv

    assert "executorch.kernels.quantized" not in sys.modules
    x = image()
    return (PteRunner(path)(x) - quantized_conv()(x)).abs().max().item()


def runner_outlives_its_program(path: Path) -> list[float]:
    """Drop all that the caller held, let the memory be used again, and run."""
    from common.executorch_utils import PteRunner
    from tests.programs import ConvRelu, image

    model, errors = ConvRelu().eval(), []
    runner = PteRunner(bytearray(path.read_bytes()))
    for seed in range(50):
        gc.collect() if seed % 10 == 0 else None
        garbage = [bytes([seed]) * path.stat().st_size for _ in range(50)]
        x = image(seed)
        errors.append((runner(x) - model(x)).abs().max().item())
        del garbage
    return errors


def runner_outlives_its_file(path: Path) -> list[float]:
    """Rewrite the file in place, cut it short, delete it: a mapped file would kill the process."""
    from common.executorch_utils import PteRunner
    from tests.programs import ConvRelu, image

    model, x, errors = ConvRelu().eval(), image(1), []
    runner = PteRunner(path)
    changes: list[Callable[[], Any]] = [
        lambda: path.write_bytes(b"\xff" * path.stat().st_size),
        lambda: os.truncate(path, 1),
        path.unlink,
    ]
    for change in changes:
        change()
        errors.append((runner(x) - model(x)).abs().max().item())
    return errors


def refused(data: bytes) -> str:
    """Type of the error with which the bytes are refused."""
    from common.executorch_utils import PteError, PteRunner

    try:
        PteRunner(data)
    except PteError as error:
        return type(error).__name__
    return "accepted"


def count_hidden() -> list[str]:
    """Return a list to which the name of the logger is added for each record that is hidden."""
    hidden: list[str] = []
    decide = pt2e._KnownNoise.filter

    def counting(self: pt2e._KnownNoise, record: logging.LogRecord) -> bool:
        shown = decide(self, record)
        if not shown:
            hidden.append(record.name)
        return shown

    mock.patch.object(pt2e._KnownNoise, "filter", counting).start()
    return hidden


def find_facts(folder: Path) -> None:
    """Do all of it, and write what was found to `facts.json`."""
    hidden = count_hidden()
    pt2e.quiet()
    pt2e.quiet()
    import executorch.runtime  # noqa: F401  (what makes the noise)
    import torch

    torch.set_num_threads(1)
    pte = (folder / "conv.pte").read_bytes()
    facts = {
        "filters": noise_filters(),
        "hidden": hidden,
        "quantized kernels": run_quantized_kernels(folder / "portable_quantized_conv.pte"),
        "checksum": checksum(),
        "without its program": runner_outlives_its_program(folder / "conv.pte"),
        "without its file": runner_outlives_its_file(folder / "conv.pte"),
        # C++ aborts the process when it logs bytes that are not UTF-8.
        "identifier": refused(pte[:4] + b"\xff\xfe\xfd\xfc" + pte[8:]),
        "operator name": refused(
            pte.replace(b"aten::convolution", b"aten::convol\xff\xfe\xfd\xfcn")
        ),
    }
    (folder / "facts.json").write_text(json.dumps(facts))
