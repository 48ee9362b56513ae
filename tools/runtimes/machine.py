"""What the numbers depend on: processor, its instructions, versions."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

# What int8 kernels choose by. Without vnni (or amx, or dotprod and i8mm on Arm) a processor has
# no instruction that multiplies int8 and adds int32.
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")


def processor(cpuinfo: str | None = None) -> str:
    r"""Return name, count and the flags that decide which int8 kernels run.

    Args:
        cpuinfo: the text of Linux's ``/proc/cpuinfo``; None reads it.

    Example:
        >>> processor("model name : A CPU\nflags : fpu avx2\n").partition("; ")[2]
        'avx2 yes, avx512f no, avx512_vnni no, avx_vnni no, amx_int8 no'
    """
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text("utf-8") if path.exists() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.M)
    flags = re.search(r"^(flags|Features)\s*:\s*(.+)$", cpuinfo, re.M)
    shown = name[1] if name else platform.processor() or platform.machine()
    head = f"{shown}, {os.cpu_count()} logical processors, {platform.system()}"
    if not flags:
        return f"{head}; instruction sets unknown"
    x86 = flags[1] == "flags"
    asked = [f for f in FLAGS if x86 == (f not in ("asimddp", "i8mm"))]
    has = set(flags[2].split())
    return f"{head}; " + ", ".join(f"{f} {'yes' if f in has else 'no'}" for f in asked)


def versions(distributions: Iterable[str]) -> str:
    """Return Python's version and those of the installed distributions.

    Example:
        >>> versions(["no-such-thing"]).split()[0]
        'Python'
    """
    found = [f"Python {platform.python_version()}"]
    for name in distributions:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
