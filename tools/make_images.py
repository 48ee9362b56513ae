"""Make the pictures of the overview and of the README: notebooks/images/*.svg.

uv run python tools/make_images.py            # write all of them
uv run python tools/make_images.py road       # write one

The same code gives the same bytes; tests/test_overview.py makes them again and compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common.viz import draw

FOLDER = Path(__file__).resolve().parent.parent / "notebooks" / "images"

# A phone shows the page 358 px wide: at this width nothing shrinks by more than 6 %.
WIDTH = 380
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,Liberation Mono,monospace"
_INK, _LINE = "#111", "#555"
_LEFT, _RIGHT, _STEM = 10, 254, 26
_HEAD, _SMALL = 15, 13


def road() -> str:
    """Return the map of the road as SVG, top to bottom, the lessons at its right."""
    paint = _Painter()
    model = paint.box("fp32 model", "9,940 parameters", kind="end")
    paint.step("torch.export")
    paint.box("ATen graph")
    paint.step("quantizer: annotate", "prepare_pt2e")
    paint.box("observers", "calibration data: ranges", kind="dotted")
    paint.step("convert_pt2e")
    qdq = paint.box("Q/DQ graph", "42 nodes, 28 of them q/dq")
    paint.step("to_edge_transform_and_lower")
    edge = paint.box("Edge dialect", "a small, fixed set of ops")
    paint.step("partitioner")
    parts = paint.parts(
        [("delegate", "XNNPACK", "double"), ("portable", "kernel", "dashed"),
         ("delegate", "XNNPACK", "double")]
    )  # fmt: skip
    paint.step("to_executorch:", "memory planning")
    pte = paint.box(".pte", "20,880 B, arena 3,152 B", kind="page")
    paint.step("Runtime: load, execute")
    output = paint.box("output", "4 scores", kind="end")

    paint.lesson("M08-1", 0, model[0], qdq[0] + 12)
    paint.lesson("M08-2", 0, qdq[0] + 24, output[1])
    paint.lesson("M08-3", 1, edge[0], parts[1])
    paint.lesson("M08-4", 1, pte[0], output[1])
    return paint.svg("The road from an fp32 model to a .pte that runs")


def lowered(edge: Any = None) -> str:
    """Return the lowered network of M08-3 as SVG: two delegates, one op between them.

    Args:
        edge: the lowered network; made anew when it is not given, which takes about 20 s.
    """
    picture = draw(_lowered_cumsum_net() if edge is None else edge)
    assert picture.svg is not None, picture.text.splitlines()[-1]
    return picture.svg + "\n"


class CumsumNet(nn.Module):
    """The network of M08-3: XNNPACK takes everything but the cumsum."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
            self.conv2 = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``(N, 3, H, W)`` to ``(N, 8, H, W)``."""
        return self.conv2(torch.cumsum(torch.relu(self.conv1(x)), dim=1))


IMAGES: dict[str, Callable[[], str]] = {"road": road, "lowered": lowered}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(IMAGES)}")
    names: list[str] = parser.parse_args().names or list(IMAGES)
    unknown = [name for name in names if name not in IMAGES]
    if unknown:
        parser.error(f"no picture is called {unknown[0]}; there are: {', '.join(IMAGES)}")
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        path = FOLDER / f"{name}.svg"
        path.write_text(IMAGES[name](), encoding="utf-8", newline="\n")
        print(f"wrote {path.name}, {path.stat().st_size:,} B")


def _lowered_cumsum_net() -> Any:
    # here: the other picture needs no ExecuTorch
    from common.executorch_utils import lower_to_xnnpack, xnnpack_ptq
    from common.models import example_inputs

    example = example_inputs(batch=1)
    return lower_to_xnnpack(xnnpack_ptq(CumsumNet().eval(), example), example).edge


class _Painter:
    """Draws downwards; presentation attributes only, since viewers drop styles."""

    def __init__(self) -> None:
        self._y = 12
        self._parts: list[str] = []

    def box(self, head: str, detail: str = "", *, kind: str = "plain") -> tuple[int, int]:
        """Draw a box as wide as the column; returns its top and its bottom."""
        top, height = self._y, 48 if detail else 32
        self._outline(_LEFT, top, _RIGHT - _LEFT, height, kind)
        middle = (_LEFT + _RIGHT) // 2
        self._text(head, middle, top + 21, _HEAD, anchor="middle")
        if detail:
            self._text(detail, middle, top + 39, _SMALL, anchor="middle")
        self._y += height
        return top, self._y

    def parts(self, boxes: list[tuple[str, str, str]]) -> tuple[int, int]:
        """Draw boxes side by side with arrows from one to the next."""
        top, width, gap = self._y, 74, 11
        for i, (head, detail, kind) in enumerate(boxes):
            x = _LEFT + i * (width + gap)
            self._outline(x, top, width, 48, kind)
            self._text(head, x + width // 2, top + 21, _SMALL, anchor="middle", bold=True)
            self._text(detail, x + width // 2, top + 38, _SMALL, anchor="middle")
            if i:
                self._add(f'<path d="M{x - gap} {top + 24}h4" stroke="{_LINE}" stroke-width="2"/>')
                self._add(f'<path d="M{x} {top + 24}l-8-4v8z" fill="{_LINE}"/>')
        self._y += 48
        return top, self._y

    def step(self, *lines: str) -> None:
        """Draw an arrow with what is called, one line or two."""
        top, length = self._y, 16 * len(lines) + 20
        self._add(
            f'<path d="M{_STEM} {top}v{length - 9}" stroke="{_LINE}" stroke-width="2"/>'
            f'<path d="M{_STEM} {top + length}l-5-10h10z" fill="{_LINE}"/>'
        )
        for i, line in enumerate(lines):
            self._text(line, _STEM + 11, top + 22 + 16 * i, _SMALL)
        self._y += length

    def lesson(self, name: str, column: int, top: int, bottom: int) -> None:
        """Draw a bracket from top to bottom with the lesson's name."""
        x = 263 + 58 * column
        self._add(
            f'<path d="M{x} {top}h6v{bottom - top}h-6" fill="none" stroke="{_INK}" '
            f'stroke-width="2"/>'
        )
        self._text(name, x + 11, (top + bottom) // 2 + 5, _SMALL, bold=True)

    def svg(self, title: str) -> str:
        """Return the picture; its height is what was used."""
        height = self._y + 12
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                f'viewBox="0 0 {WIDTH} {height}" font-family="{_FONTS}" fill="{_INK}">',
                f"<title>{escape(title)}</title>",
                f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _outline(self, x: int, y: int, width: int, height: int, kind: str) -> None:
        look = {
            "end": ' rx="16" fill="#dbeafe" stroke="#1d4ed8"',
            "plain": ' fill="#f3f4f6" stroke="#4b5563"',
            "dotted": ' rx="16" fill="#fff" stroke="#9d174d" stroke-dasharray="2 3"',
            "double": ' fill="#ede9fe" stroke="#6d28d9"',
            "dashed": ' fill="#fee2e2" stroke="#b91c1c" stroke-dasharray="6 3"',
        }
        size = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        if kind == "page":
            self._add(
                f'<path d="M{x} {y}h{width - 14}l14 14v{height - 14}h{-width}z'
                f'm{width - 14} 0v14h14" fill="#dcfce7" stroke="#15803d" stroke-width="2"/>'
            )
            return
        self._add(f'<rect {size}{look[kind]} stroke-width="2"/>')
        if kind == "double":
            self._add(
                f'<rect x="{x + 4}" y="{y + 4}" width="{width - 8}" height="{height - 8}" '
                'fill="none" stroke="#6d28d9"/>'
            )

    def _text(
        self, text: str, x: int, y: int, size: int, *, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold or size == _HEAD else ""
        self._add(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(text, quote=False)}</text>"
        )

    def _add(self, markup: str) -> None:
        self._parts.append(markup)


if __name__ == "__main__":
    main()
