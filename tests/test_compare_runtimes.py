"""tools/compare_runtimes.py and its parts in tools/runtimes/."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common import executorch_utils
from common.timing import Comparison
from tests.programs import Program
from tools.runtimes import machine, pte, table
from tools.runtimes.catalogue import BASE, BY_NAME, VARIANTS, available, installed
from tools.runtimes.networks import NETWORKS, make, save
from tools.runtimes.turns import ChildError, Measured, _child, _received
from tools.runtimes.variant import Call, Variant

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = [v for v in VARIANTS if v.needs]


# --- what can run here


def no_call(name: str, folder: Path, threads: int) -> Call:
    raise AssertionError("nothing is loaded in these tests")


def test_what_is_not_installed_is_named_once_with_its_reason() -> None:
    usable, skipped = available(
        [
            Variant("a", (), no_call),
            Variant("b", ("no-such-package", "torch"), no_call),
            Variant("c", ("no-such-package",), no_call),
            Variant("d", ("no-such-package", "nor-this"), no_call),
        ]
    )
    assert [v.name for v in usable] == ["a"]
    assert [str(s) for s in skipped] == [
        "Not measured: b, c: no-such-package is not installed (uv sync --group runtimes).",
        "Not measured: d: no-such-package, nor-this are not installed (uv sync --group runtimes).",
    ]


def test_a_missing_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    usable, skipped = available([Variant("compiled", (), no_call, compiler=True)])
    assert (usable, str(skipped[0])) == ([], "Not measured: compiled: no C++ compiler was found.")


def test_the_group_installs_what_the_variants_need() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    group = re.findall(
        r'^    "([\w-]+)', text.partition("\nruntimes = [")[2].partition("\n]")[0], re.M
    )
    assert {name for v in VARIANTS for name in v.needs} | {"torchvision"} == set(group)


# --- the table


def measured(seconds: dict[str, Sequence[float]]) -> Measured:
    reference = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    outputs = {name: reference.copy() for name in seconds}
    outputs["other"] = np.array([[1.0, 0.1], [0.0, -1.0]], dtype=np.float32)
    times = Comparison({name: tuple(values) for name, values in seconds.items()})
    return Measured(times, outputs, reference, {})


def test_a_row_is_the_median_of_the_ratios_within_rounds() -> None:
    # The machine is ten times slower in the second round: the ratio of the medians would be 1.5.
    base, other = table.rows(measured({BASE: (1.0, 10.0, 2.0), "other": (3.0, 30.0, 2.0)}))
    assert (base.name, base.ratio, base.low, base.high) == (BASE, 1.0, 1.0, 1.0)
    assert (other.ratio, other.low, other.high) == (3.0, 2.0, 3.0)
    assert (base.sqnr, base.top1) == (float("inf"), 1.0)
    # noise 0.1² + 2², signal 2
    assert other.sqnr == pytest.approx(10 * np.log10(2 / 4.01), abs=1e-3)
    assert other.top1 == 0.5


def test_markdown() -> None:
    rows = [
        table.Row("eager fp32", 6.2, 5.987, 6.321, float("inf"), 1.0),
        table.Row(BASE, 1.0, 1.0, 1.0, 33.25, 0.96875),
    ]
    assert table.markdown("A network", rows, ["Not measured: x: y is not installed."]) == (
        "## A network\n"
        "\n"
        "| variant | time / int8 .pte | middle half | SQNR, dB | same top-1 |\n"
        "|---|---:|---:|---:|---:|\n"
        "| eager fp32 | 6.20 | 5.99–6.32 | exact | 100.0% |\n"
        "| int8 .pte | 1.00 | 1.00–1.00 | 33.2 | 96.9% |\n"
        "\n"
        "Not measured: x: y is not installed.\n"
    )


def test_write_replaces_what_is_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{table.BEGIN}\nold\n{table.END}\n\nWhy.\n", "utf-8")
    table.write(page, "new — ×\n")
    once = page.read_text("utf-8")
    assert once == f"# Title\n\n{table.BEGIN}\n\nnew — ×\n\n{table.END}\n\nWhy.\n"
    table.write(page, "new — ×\n")
    assert page.read_text("utf-8") == once


@pytest.mark.parametrize(
    "text",
    ["", table.BEGIN, f"{table.END}{table.BEGIN}", f"{table.BEGIN}{table.END}{table.END}"],
)
def test_write_leaves_a_page_without_marks_as_it_is(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"page\.md: expected <!-- measured: begin -->"):
        table.write(page, "new")
    assert page.read_text("utf-8") == text


def test_the_page_has_a_table_of_every_variant_for_every_network() -> None:
    page = (ROOT / "docs/runtimes.md").read_text("utf-8")
    tables = page.partition(table.BEGIN)[2].partition(table.END)[0]
    sections = tables.split("\n## ")[1:]
    assert [s.partition("\n")[0] for s in sections] == list(NETWORKS.values())
    for section in sections:
        names = re.findall(r"^\| ([^|]+?) \|", section, re.M)
        assert names == [table.HEADERS[0], *BY_NAME]


# --- the machine


def test_examples_in_the_docstrings_hold() -> None:
    result = doctest.testmod(machine)
    assert (result.attempted, result.failed) == (2, 0)


def test_an_arm_processor_is_asked_for_its_own_flags() -> None:
    line = machine.processor("Features\t: fp asimd asimddp\n")
    assert line.endswith("; asimddp yes, i8mm no")
    assert machine.processor("").endswith("; instruction sets unknown")


# --- int8 at both ends


def test_without_float_ends_computes_the_same(course: Program) -> None:
    assert course.qdq is not None
    bare, ends = pte.without_float_ends(course.qdq)
    (x,) = course.example
    y = bare(pte.quantize(x, *ends["input"]))
    scale, zero_point = ends["output"]
    assert y.dtype == torch.int8
    assert torch.equal((y.float() - zero_point) * scale, course.qdq(x))


def test_without_float_ends_wants_quantize_and_dequantize(course: Program) -> None:
    bare, _ = pte.without_float_ends(course.qdq)
    with pytest.raises(ValueError, match="expected one quantize first, dequantize last; got deq"):
        pte.without_float_ends(bare)


# --- processes


# What the children are asked to do is of the standard library: they need not import torch.


def test_an_error_in_a_process_comes_back_as_a_sentence(tmp_path: Path) -> None:
    with (
        _child(tmp_path, len) as connection,
        pytest.raises(
            ChildError, match=r"^TypeError: object of type .* has no len\(\) \(turns\.py:"
        ),
    ):
        _received(connection, "x")


def test_a_process_that_dies_is_noticed(tmp_path: Path) -> None:
    with (
        _child(tmp_path, methodcaller("close")) as connection,
        pytest.raises(ChildError, match="process of x ended before it answered"),
    ):
        _received(connection, "x")


# --- the command


def compare(*words: str) -> tuple[str, dict[str, list[str]]]:
    """Run the command on the course model; return what it prints and the cells by variant."""
    command = [sys.executable, "tools/compare_runtimes.py", "--models", "tiny", *words]
    short = ["--rounds", "3", "--seconds", "0.005"]
    done = subprocess.run([*command, *short], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line[:1] == "|"]
    return done.stdout, {name: cells for name, *cells in rows[2:]}


def test_the_command_measures_what_is_always_installed(
    course: Program, course_fp32: Program, tmp_path: Path
) -> None:
    made = tmp_path / "tiny"  # by the fixtures: lowering once more would take longer than the rest
    made.mkdir()
    save(make("tiny"), made)
    (made / pte.INT8).write_bytes(course.pte)
    (made / pte.FP32).write_bytes(course_fp32.pte)
    names = ["eager fp32", "fp32 .pte", BASE]
    text, rows = compare("--keep", str(tmp_path), "--variants", *names)
    assert "1 thread, 3 rounds" in text
    assert list(rows) == names
    assert rows[BASE][:2] == ["1.00", "1.00–1.00"]
    assert rows["eager fp32"][2:] == ["exact", "100.0%"]
    assert float(rows["fp32 .pte"][2]) > 100
    assert 35 < float(rows[BASE][2]) < 50


@pytest.mark.parametrize(
    ("file", "dtype", "channels_last"),
    [
        (pte.INT8, torch.float32, False),
        (pte.CHANNELS_LAST, torch.float32, True),
        (pte.INT8_ENDS, torch.int8, False),
        (pte.BOTH, torch.int8, True),
    ],
)
def test_the_pte_variants_differ_in_their_example(
    file: str,
    dtype: torch.dtype,
    channels_last: bool,
    course: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []

    def lower(graph: torch.nn.Module, example: tuple[torch.Tensor]) -> SimpleNamespace:
        seen.extend(example)
        return SimpleNamespace(pte=b"a program")

    monkeypatch.setattr(executorch_utils, "xnnpack_ptq", lambda *_, **__: course.qdq)
    monkeypatch.setattr(executorch_utils, "lower_to_xnnpack", lower)
    pte.build(make("tiny"), tmp_path, file)
    (x,) = seen
    assert x.dtype == dtype
    assert x.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert (tmp_path / file).read_bytes() == b"a program"


@pytest.mark.skipif(
    not all(installed(name) for v in OPTIONAL for name in v.needs),
    reason="needs the group: uv sync --group runtimes",
)
def test_the_command_measures_every_runtime() -> None:
    text, rows = compare()
    assert "Not measured" not in text
    assert "Failed" not in text
    assert list(rows) == list(BY_NAME)
    # Without vnni their products of full-range weights overflow: 17 and 9 dB, see the page.
    overflows = {"ONNX Runtime int8", "OpenVINO int8"}
    for name, cells in rows.items():
        if "int8" in name:
            assert float(cells[2]) > (5 if name in overflows else 25), name
        else:
            assert cells[2] == "exact" or float(cells[2]) > 90, name
