"""A matplotlib figure as a notebook output with alt text."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, repr=False)
class Figure:
    """A plot as PNG, and its facts as text.

    Attributes:
        alt: the facts that the plot shows, for those who cannot see it.
        png: the picture.
    """

    alt: str
    png: bytes = field(compare=False)

    def __str__(self) -> str:
        return self.alt

    def __repr__(self) -> str:
        return f"Figure({self.alt!r}, {len(self.png):,} B)"

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        png = base64.b64encode(self.png).decode("ascii")
        # the alt text is metadata: nbconvert renders it, and nbval compares the plain text
        return {"image/png": png, "text/plain": self.alt}, {"image/png": {"alt": self.alt}}


def figure(fig: Any, *, alt: str) -> Figure:
    """Turn a matplotlib figure into an output with alt text, on white, and close it.

    Args:
        fig: a ``matplotlib.figure.Figure``; labels in ASCII, since fonts for other scripts are
            missing on many machines.
        alt: the facts that the plot shows, as one or two sentences.

    Returns:
        A `Figure`; Jupyter shows it. The inline backend does not show ``fig`` a second time.

    Raises:
        ValueError: ``alt`` is empty.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> _ = ax.plot([1, 2], [1, 4])
        >>> print(figure(fig, alt="y grows from 1 to 4"))
        y grows from 1 to 4
    """
    if not alt.strip():
        raise ValueError("alt: say in a sentence what the plot shows")
    from matplotlib import pyplot as plt  # takes half a second to import: only when used

    buffer = io.BytesIO()
    # no version of matplotlib inside, so that the bytes change only when the picture does
    fig.savefig(
        buffer, format="png", dpi=100, facecolor="white", bbox_inches="tight",
        metadata={"Software": None},
    )  # fmt: skip
    plt.close(fig)
    return Figure(alt, buffer.getvalue())
