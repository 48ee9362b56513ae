"""Two ``.pte`` files side by side: what changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common._inspect_pte import inspect_pte
from common._inspected import InspectedDelegate, InspectedMethod, PteInspection, plain
from common._page import Section, fragment, text, write_page
from common._pte_bytes import StoredData
from common._table import Table, table

_ROWS = 60  # of the changes that a text shows


@dataclass(frozen=True)
class Change:
    """One thing that is not the same.

    Attributes:
        subject: what it belongs to: ``file``, ``weights`` or ``method forward``.
        what: the thing.
        a: in the first file; empty where it is not there.
        b: in the second file; empty where it is not there.
    """

    subject: str
    what: str
    a: str
    b: str


@dataclass(frozen=True, repr=False)
class PteDifference:
    """What changed from one file to another. It is false where the files are equal.

    ``str()`` is a table; Jupyter shows it as one.

    Attributes:
        a: name of the first file, or ``a``.
        b: name of the second file, or ``b``.
        changes: nothing when the files are the same bytes, else at least one.
    """

    a: str
    b: str
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dictionaries, lists and texts, ready for ``json.dumps``."""
        found: dict[str, Any] = plain(self)
        return found

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that opens alone, in any browser, and return its path."""
        return write_page(path, f"{self.a} → {self.b}", self._sections())

    def __str__(self) -> str:
        return text(self._sections(), rows=_ROWS)

    def __repr__(self) -> str:
        return f"PteDifference({self.a} → {self.b}, {len(self.changes)} changes)"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": fragment(self._sections()), "text/plain": str(self)}

    def _sections(self) -> list[Section]:
        if not self:
            return [Section("", f"{self.a} and {self.b}: no difference, the bytes are the same")]
        sections = []
        for subject in dict.fromkeys(change.subject for change in self.changes):
            rows = [(c.what, c.a or "-", c.b or "-") for c in self.changes if c.subject == subject]
            depth = int(len(rows) > _ROWS)
            sections.append(Section(subject, self._table(rows), depth))
        return sections

    def _table(self, rows: list[tuple[str, str, str]]) -> Table:
        return table(rows, ("what", self.a, self.b))


def compare_pte(
    a: str | os.PathLike[str] | bytes | bytearray | memoryview,
    b: str | os.PathLike[str] | bytes | bytearray | memoryview,
) -> PteDifference:
    """Say what changed from one ``.pte`` to another.

    Compared are sizes, methods, inputs and outputs, planned memory, delegates with what is inside,
    operators outside of delegates, the order of execution, and weights by content. A weight is the
    same one in both files when the same node reads it: the second ``Conv2d`` of delegate 0.
    Nothing of the programs is loaded or executed, see `inspect_pte`.

    Args:
        a: path of a ``.pte``, or its bytes.
        b: another one.

    Returns:
        A `PteDifference`, false where the files are equal.

    Raises:
        TypeError, FileNotFoundError, IsADirectoryError, PteFormatError: as `inspect_pte`.

    Example:
        >>> import torch
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> x = (torch.zeros(1, 4),)
        >>> _, small = lower_to_xnnpack(torch.nn.Linear(4, 2).eval(), x)
        >>> _, large = lower_to_xnnpack(torch.nn.Linear(4, 8).eval(), x)
        >>> for change in compare_pte(small, large).changes:
        ...     if "output 0" in change.what:
        ...         print(change.a, "->", change.b)
        float32 (1, 2) -> float32 (1, 8)
        >>> print(compare_pte(small, small))
        a and b: no difference, the bytes are the same
    """
    return difference(inspect_pte(a), inspect_pte(b))


def difference(a: PteInspection, b: PteInspection) -> PteDifference:
    """Compare two results of `inspect_pte`."""
    names = a.name or "a", b.name or "b"
    if names[0] == names[1]:
        names = f"{names[0]} (first)", f"{names[1]} (second)"
    if a.sha256 == b.sha256:
        return PteDifference(*names, ())
    return PteDifference(*names, (*_of_file(a, b), *_of_methods(a, b), *_of_weights(a, b)))


def _of_file(a: PteInspection, b: PteInspection) -> list[Change]:
    rows: Mapping[str, Callable[[PteInspection], str]] = {
        "SHA-256": lambda found: found.sha256[:12] + "…",
        "format": lambda found: f"{found.format}, version {found.version}",
        "layout": lambda found: "with segments" if found.segments else "one flatbuffer",
        "size": lambda found: f"{found.size:,} B",
    }
    changes = [Change("file", what, say(a), say(b)) for what, say in rows.items()]
    sizes = [{k: f"{n:,} B" for k, n in found.sums().items()} for found in (a, b)]
    changes += _pairs("file", *sizes, name="bytes of {}")
    return _kept(changes)


def _of_methods(a: PteInspection, b: PteInspection) -> list[Change]:
    methods = [{m.name: m for m in found.methods} for found in (a, b)]
    there = [{name: "there" for name in found} for found in methods]
    changes = _kept(_pairs("file", *there, name="method {}"))
    for name in _both(*methods):
        changes += _of_method(methods[0][name], methods[1][name])
    return changes


def _of_method(a: InspectedMethod, b: InspectedMethod) -> list[Change]:
    subject = f"method {a.name}"
    say: Mapping[str, Callable[[InspectedMethod], Mapping[str, str]]] = {
        "input {}": lambda m: _numbered(m.inputs),
        "name of input {}": lambda m: _numbered(m.labels),
        "condition {}": lambda m: _numbered(m.conditions),
        "output {}": lambda m: _numbered(m.outputs),
        "state {}": lambda m: _numbered(m.state),
        "arena {}": lambda m: _numbered(f"{size:,} B" for size in m.arena),
        "calls of {}": lambda m: {o.name: str(o.calls) for o in m.operators},
    }
    changes: list[Change] = []
    for name, of in say.items():
        changes += _pairs(subject, of(a), of(b), name=name)
    orders = [" ".join(f"{s.name} {s.delegate}" for s in m.steps) for m in (a, b)]
    if orders[0] != orders[1]:
        told = [_order(m) for m in (a, b)]
        if told[0] == told[1]:  # too long to be told in a line
            told[1] += " (in another order)"
        changes.append(Change(subject, "order of execution", *told))
    delegates = [dict(enumerate(m.delegates)) for m in (a, b)]
    backends = [{str(i): d.backend for i, d in found.items()} for found in delegates]
    changes += _pairs(subject, *backends, name="delegate {}")
    for i in _both(*delegates):
        changes += _of_delegate(subject, i, delegates[0][i], delegates[1][i])
    return _kept(changes)


def _order(method: InspectedMethod) -> str:
    names = [
        step.name if step.delegate is None else f"delegate {step.delegate}" for step in method.steps
    ]
    shown = " · ".join(names[:6])
    return f"{shown} · … {len(names) - 6} more" if len(names) > 6 else shown or "nothing"


def _of_delegate(
    subject: str, number: int, a: InspectedDelegate, b: InspectedDelegate
) -> list[Change]:
    name = f"delegate {number}"
    changes = [
        Change(subject, f"{name}: own bytes", f"{a.blob:,} B", f"{b.blob:,} B"),
        Change(subject, f"{name}: weights", f"{a.weights:,} B", f"{b.weights:,} B"),
    ]
    changes += _pairs(
        subject,
        *({key: f"{size} B" for key, size in d.settings} for d in (a, b)),
        name=name + ": setting {}",
    )
    inside = [_inside(d) for d in (a, b)]
    changes += _pairs(subject, *inside, name=name + ": {}")
    kept = _kept(changes)
    if not kept and a.sha256 != b.sha256:
        marks = [f"{d.sha256[:12]}…" for d in (a, b)]
        return [Change(subject, f"{name}: shapes, scales or settings of its nodes", *marks)]
    return kept


def _inside(delegate: InspectedDelegate) -> dict[str, str]:
    """Return by kind of node how many compute in which types."""
    found: dict[str, list[str]] = {}
    for (kind, types, weights), count in (delegate.graph.kinds if delegate.graph else {}).items():
        with_weights = f", weights {weights}" if weights else ""
        found.setdefault(kind, []).append(f"{count} × {types}{with_weights}")
    return {kind: "; ".join(said) for kind, said in found.items()}


def _of_weights(a: PteInspection, b: PteInspection) -> list[Change]:
    by_user = [_by_user(found.stored) for found in (a, b)]
    changes = []
    for name in dict.fromkeys([*by_user[0], *by_user[1]]):
        before, after = (found.get(name) for found in by_user)
        told = [_told(data) if data else "" for data in (before, after)]
        if before and after and told[0] == told[1] and before.sha256 != after.sha256:
            told = [
                f"{said}, SHA-256 {data.sha256[:8]}…"
                for said, data in zip(told, (before, after), strict=True)
            ]
        # the method is left out where there is no other
        shown = a.without_method(name) if a.running == b.running else name
        changes.append(Change("weights", shown, *told))
    return _kept(changes)


def _by_user(stored: Iterable[StoredData]) -> dict[str, StoredData]:
    """Return data by the node that reads them, by their key where no reader is known."""
    found = {}
    for data in stored:
        for name in data.users or data.keys or ("not used",):
            found[name] = data
    return found


def _told(data: StoredData) -> str:
    sizes = "" if data.shape is None else f" ({', '.join(map(str, data.shape))})"
    place = ", external" if data.place == "external" else ""
    return f"{data.dtype}{sizes} {data.bytes:,} B{place}".strip()


def _numbered(items: Iterable[Any]) -> dict[str, str]:
    return {str(i): str(item) for i, item in enumerate(items)}


def _both(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> list[Any]:
    return [key for key in a if key in b]


def _pairs(
    subject: str, a: Mapping[str, str], b: Mapping[str, str], *, name: str = "{}"
) -> list[Change]:
    keys = dict.fromkeys([*a, *b])
    return [Change(subject, name.format(key), a.get(key, ""), b.get(key, "")) for key in keys]


def _kept(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if change.a != change.b]
