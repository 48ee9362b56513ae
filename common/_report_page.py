"""How a report is shown: on a terminal, in a notebook, as a page, as data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from common._advice import Advice
from common._bars import bars
from common._inspected import PteInspection, plain
from common._op_rows import STOPS, Border, ReportedOp
from common._page import Section
from common._reported import FP32_PTE, INT8_PTE, Failure, Findings, ReportedProgram
from common._table import Table, table
from common._unmarked import BEHIND
from common.layers import LayerErrors

_WIDTH = 80
_LONG = 24  # rows of a table that is shown without being asked for
_FLOAT_ANYWAY = "XNNPACK computes it in float32"
_Group = tuple[str, Advice | None, list[ReportedOp]]


def title(found: Findings) -> str:
    """Say the result in a line."""
    program = found.int8
    if isinstance(program, Failure):
        return f"{found.name}: no int8 program"
    if isinstance(program.contents, Failure):
        return f"{found.name}: an int8 program that cannot be read"
    count = sum(len(m.delegates) for m in program.contents.methods)
    outside = len(found.outside)
    left = f"{_n(outside, 'op')} outside" if outside else "every op inside"
    return f"{found.name}: {_n(count, 'delegate')}, {left}"


# --- on a terminal


def terminal(found: Findings) -> str:
    """Return the summary, what stays outside, and what to try, in 80 columns."""
    lines = [title(found)]
    width = max(len(label) for label, _ in facts(found))
    for label, said in facts(found):
        lines += _hanging(f"  {label:{width}}  ", said)
    groups = list(_groups(found))
    if groups:
        lines += ["", "what to change"]
    for number, group in enumerate(groups, start=1):
        lines += _group_lines(number, group)
    if found.warnings:
        lines += ["", "on the way"]
        for warning in found.warnings:
            lines += _hanging("  ", warning)
    return "\n".join(lines)


def facts(found: Findings) -> list[tuple[str, str]]:
    """Return what is known, as pairs of a name and a sentence."""
    rows = []
    if isinstance(found.ops, Failure):
        rows.append(("ops", found.ops.sentence))
    else:
        rows.append(("ops", _ops_in_words(found, found.ops)))
    for label, part in (("int8", found.int8), ("fp32", found.fp32)):
        rows.append((label, _program_in_words(part, found)))
    if isinstance(found.borders, Failure):
        rows.append(("borders", found.borders.sentence))
    elif found.borders:
        rows.append(("borders", _borders_in_words(found.borders)))
    rows.append(("agreement", _agreement(found)))
    if not isinstance(found.layers, Failure):
        worst = found.layers.worst
        where = _lines(found).get(worst.name.partition("[")[0], "")
        said = f"the worst one keeps {worst.sqnr_db:.1f} dB: {worst.name} {where}"
        rows.append(("layers", said.rstrip()))
    else:
        rows.append(("layers", found.layers.sentence))
    accuracy = found.accuracy
    rows.append(
        ("accuracy", accuracy.sentence)
        if isinstance(accuracy, Failure)
        else (
            "accuracy",
            f"fp32 {accuracy.fp32:.2%}, Q/DQ {accuracy.qdq:.2%}, int8 .pte {accuracy.pte:.2%} "
            f"({accuracy.count} inputs)",
        )
    )
    rows.append(("latency", _latency_in_words(found)))
    rows.append(("seconds", _seconds_in_words(found)))
    # one cause makes several parts fail: it is said once
    firsts: dict[str, str] = {}
    for label, text in rows:
        first = firsts.setdefault(text, label)
        if first != label:
            rows[rows.index((label, text))] = (label, f"see {first}")
    return rows


def _ops_in_words(found: Findings, ops: Sequence[ReportedOp]) -> str:
    parts = [_n(len(ops), "op") + " in the model"]
    if isinstance(found.int8 if found.quantized else found.fp32, Failure):
        inside = sum(bool(op.delegates) for op in ops)
        parts.append(f"not lowered; the partitioner would take {inside}")
        parts.append(f"and leave {len(found.outside)} outside, in whole or in part")
        return f"{parts[0]}; {parts[1]} {parts[2]}"
    if not found.quantized:
        parts.append("not quantized")
    parts.append(f"{len(found.in_int8)} in int8, {len(found.in_float)} in float32 in delegates")
    parts.append(f"{len(found.outside)} outside, in whole or in part")
    return "; ".join(parts)


def _program_in_words(part: ReportedProgram | Failure, found: Findings) -> str:
    if isinstance(part, Failure):
        return part.sentence
    said = f"{len(part.pte):,} B"
    if part is found.int8 and not isinstance(found.fp32, Failure):
        said += f" ({len(part.pte) / len(found.fp32.pte):.0%} of fp32)"
    if isinstance(part.contents, Failure):
        return f"{said}; {part.contents.sentence}"
    methods = part.contents.methods
    said += f", {_n(sum(len(m.delegates) for m in methods), 'delegate')}"
    said += f", arena {sum(sum(m.arena) for m in methods):,} B"
    sums = part.contents.sums()
    largest = sorted(sums.items(), key=lambda item: -item[1])[:3]
    return f"{said}; bytes: {', '.join(f'{kind} {size:,}' for kind, size in largest)}"


def _borders_in_words(borders: Sequence[Border]) -> str:
    size = sum(border.bytes for border in borders)
    dtypes = ", ".join(_unique(border.dtype for border in borders))
    return f"{_n(len(borders), 'tensor')} between delegates and the rest, {size:,} B, {dtypes}"


def _agreement(found: Findings) -> str:
    if isinstance(found.int8, Failure):
        return found.int8.sentence
    checked = found.int8.verification
    if isinstance(checked, Failure):
        return checked.sentence
    figures = found.figures
    to_model, to_graph = figures["sqnr"], figures["sqnr_graph"]
    inputs = _n(checked.n_inputs, "input")
    return (
        f"int8 .pte to fp32 model {_decibels(to_model)}, to its {checked.reference} "
        f"{_decibels(to_graph)} ({inputs})"
    )


def _latency_in_words(found: Findings) -> str:
    times = found.latency
    if isinstance(times, Failure):
        return times.sentence
    low, high = times.ratio_range(FP32_PTE, INT8_PTE)
    fp32, int8 = (times.median(name) * 1e3 for name in (FP32_PTE, INT8_PTE))
    return (
        f"fp32 {fp32:.3g} ms, int8 {int8:.3g} ms: fp32 takes "
        f"{times.ratio(FP32_PTE, INT8_PTE):.2f} times as long [{low:.2f} - {high:.2f}], "
        f"{_n(found.threads, 'thread')}"
    )


def _seconds_in_words(found: Findings) -> str:
    steps: dict[str, float] = {}
    for name, seconds in found.seconds.items():
        top = name.partition(": ")[0]
        steps[top] = steps.get(top, 0.0) + seconds
    total = sum(steps.values())
    longest = sorted(steps.items(), key=lambda item: -item[1])[:4]
    return f"{total:.1f}: {', '.join(f'{name} {seconds:.1f}' for name, seconds in longest)}"


def _decibels(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return "exact" if value == float("inf") else f"{value:.1f} dB"


# --- what to try


def _groups(found: Findings) -> Iterator[_Group]:
    """Yield the ops that are not as they might be, with the advice for them."""
    stops = () if isinstance(found.ops, Failure) else [op for op in found.ops if STOPS in op.why]
    floats = [op for op in found.in_float if op.unmarked or op.advice]
    groups: dict[tuple[str, bool], _Group] = {}
    for op in (*stops, *found.outside, *floats):
        if op.advice is not None:
            subject = op.advice.subject
        else:
            subject = op.op if op.outside or STOPS in op.why else "what follows an op in float32"
            if not (op.outside or STOPS in op.why or op.unmarked.startswith(BEHIND)):
                subject = f"{op.op} in float32"
        group = groups.setdefault((subject, bool(op.advice)), (subject, op.advice, []))
        if op not in group[2]:
            group[2].append(op)
    yield from groups.values()


def _group_lines(number: int, group: _Group) -> list[str]:
    subject, advice, ops = group
    lines = _hanging(f"{number:2}. ", subject)
    said = ""
    for where, count, op in _places(ops)[:_LONG]:
        lines += _hanging("    ", f"{where}{f' ({count} times)' if count > 1 else ''}, {op.place}")
        code = "" if op.line is None else op.line.code
        lines += _hanging("        ", code) if code != said else []
        said = code
    if (more := len(_places(ops)) - _LONG) > 0:
        lines.append(f"    … {more} more")
    lines += _hanging("    why      ", "; ".join(_reasons(ops)))
    lines += _hanging("    try      ", advice.do if advice else _unknown(ops))
    if advice and advice.after:
        lines += _hanging("    now      ", advice.before)
        lines += _hanging("    instead  ", f"{advice.after}   # {_becomes(advice)}")
        for line in advice.init.splitlines():
            lines += _hanging("    __init__ ", line)
    return lines


def _places(ops: Sequence[ReportedOp]) -> list[tuple[str, int, ReportedOp]]:
    """Return the places of a group, each once, with how many ops are there."""
    found: dict[tuple[str, str], tuple[str, int, ReportedOp]] = {}
    for op in ops:
        where = _where(op)
        _, count, first = found.get((where, op.place), (where, 0, op))
        found[where, op.place] = where, count + 1, first
    return list(found.values())


def _reasons(ops: Sequence[ReportedOp]) -> list[str]:
    """Say what the partitioner said, or of ops inside of delegates the quantizer."""
    return _unique(
        reason
        for op in ops
        for reason in (op.why or ([op.unmarked] if op.unmarked else [_FLOAT_ANYWAY]))
    )


def _unknown(ops: Sequence[ReportedOp]) -> str:
    if any(STOPS in op.why for op in ops):
        return "What lowering said, above, tells what to write instead."
    if kinds := ", ".join(_unique(kind for op in ops for kind in op.outside)):
        return (
            f"A portable kernel computes {kinds} in float32. No rewrite is known here: use another "
            "op, or move it to the beginning or the end of the model, where it breaks no delegate "
            "in two."
        )
    if any(op.unmarked.startswith(BEHIND) for op in ops):
        return "Change the op in front of it first."
    return "No rewrite is known here. It is computed in float32, between two conversions."


def _becomes(advice: Advice) -> str:
    return advice.becomes + ("" if advice.same else ", other numbers")


def _where(op: ReportedOp) -> str:
    if op.line is not None:
        return f"{op.op} {op.line}"
    return f"{op.op} in {op.module}" if op.module else op.name


# --- on a page


def sections(found: Findings, *, cell: bool = False) -> list[Section]:
    """Return the parts of the page; for a cell of a notebook with the title in front."""
    made = [Section("", title(found))] if cell else []
    made.append(Section("", table(facts(found), ("what", "found"))))
    for subject, advice, ops in _groups(found):
        made += _advice_sections(subject, advice, ops)
    if not isinstance(found.picture, Failure):
        made.append(Section("delegates and what lies between them", found.picture))
    elif found.picture.sentence not in dict(facts(found)).values():
        made.append(Section("picture", found.picture.sentence))
    if not isinstance(found.ops, Failure):
        made.append(Section("every op", _op_table(found.ops), int(len(found.ops) > _LONG)))
    if not isinstance(found.borders, Failure) and found.borders:
        made.append(_borders_section(found.borders))
    for name, part in (("int8", found.int8), ("fp32", found.fp32)):
        if not isinstance(part, Failure):
            made += _program_sections(name, part)
    if not isinstance(found.layers, Failure):
        shown = _layer_table(found, found.layers)
        made.append(Section("SQNR of each layer", shown, int(len(shown.rows) > _LONG)))
    if not isinstance(found.latency, Failure):
        made.append(Section("latency", found.latency._table()))
    if found.warnings:
        made.append(Section("on the way", "\n".join(found.warnings)))
    rows = [(name, f"{seconds:.2f} s") for name, seconds in found.seconds.items()]
    made.append(Section("where the time went", table(rows, ("step", "seconds")), 1))
    return made


def _advice_sections(subject: str, advice: Advice | None, ops: list[ReportedOp]) -> list[Section]:
    lines = [f"Why: {'; '.join(_reasons(ops))}.", f"Try: {advice.do if advice else _unknown(ops)}"]
    made = [Section(f"to change: {subject}", "\n".join(lines))]
    places = _places(ops)
    rows = [
        (
            where if count == 1 else f"{where} ({count} times)",
            op.place,
            "-" if op.line is None else op.line.code,
        )
        for where, count, op in places
    ]
    shown = table(rows, ("op and line", "computed", "code"))
    made.append(
        Section("" if len(rows) <= _LONG else f"{len(rows)} places", shown, int(len(rows) > _LONG))
    )
    if advice and advice.after:
        forms = [("now", advice.before), (f"instead: {_becomes(advice)}", advice.after)]
        forms += [("in __init__", line) for line in advice.init.splitlines()]
        made.append(Section("", table(forms, ("for example", "code"))))
    return made


def _op_table(ops: Sequence[ReportedOp]) -> Table:
    rows = [
        (
            _where(op),
            {True: "yes", False: "no", None: "-"}[op.annotated],
            op.place,
            "; ".join(op.why) or op.unmarked or "-",
            "-" if op.line is None else op.line.code,
        )
        for op in ops
    ]
    return table(rows, ("op and line", "annotated", "computed", "why", "code"))


def _layer_table(found: Findings, errors: LayerErrors) -> Table:
    lines = _lines(found)
    rows = [
        (
            layer.name,
            lines.get(layer.name.partition("[")[0], "-"),
            layer.module or "-",
            "yes" if layer.quantized else "no",
            _decibels(layer.sqnr_db),
        )
        for layer in errors.layers
    ]
    return table(rows, ("node", "line", "module", "quantized", "SQNR"))


def _lines(found: Findings) -> dict[str, str]:
    """Return the line of each op, by the name of its node."""
    ops = () if isinstance(found.ops, Failure) else found.ops
    return {op.name: str(op.line) for op in ops if op.line is not None}


def _borders_section(borders: Sequence[Border]) -> Section:
    rows = [
        (b.source, b.target, f"{b.dtype} ({', '.join(map(str, b.shape))})", f"{b.bytes:,} B")
        for b in borders
    ]
    shown = table(rows, ("from", "to", "tensor", "bytes"))
    return Section("borders of delegates", shown, int(len(rows) > _LONG))


def _program_sections(name: str, part: ReportedProgram) -> list[Section]:
    made = []
    if not isinstance(part.contents, Failure):
        made += _contents_sections(name, part.contents)
    shown = part.verification
    body = shown.sentence if isinstance(shown, Failure) else shown._table()
    made.append(Section(f"{name} .pte: does it compute what its graph computes?", body))
    return made


def _contents_sections(name: str, contents: PteInspection) -> list[Section]:
    rows = []
    for method in contents.methods:
        for i, delegate in enumerate(method.delegates):
            kinds = delegate.graph.kinds if delegate.graph else {}
            inside = [f"{n} {kind} {types}" for (kind, types, _), n in kinds.items()]
            rows.append((i, delegate.backend, f"{delegate.weights:,} B", "; ".join(inside)))
    made = []
    if rows:
        headers = ("delegate", "backend", "weights", "nodes inside, and what they compute in")
        made.append(Section(f"{name} .pte: delegates", table(rows, headers)))
    sums = list(contents.sums().items())
    made.append(Section(f"{name} .pte: where the bytes are", bars(f"{name} .pte", sums)))
    return made


# --- as data


def as_data(found: Findings) -> dict[str, Any]:
    """Return all but programs and pictures as what ``json.dumps`` takes."""
    data = {f.name: _data(getattr(found, f.name)) for f in fields(Findings) if f.name != "picture"}
    return {"title": title(found), **data, "figures": _data(found.figures)}


def _data(value: Any) -> Any:
    if isinstance(value, Failure):
        return {"failure": value.sentence}
    if isinstance(value, ReportedProgram):
        contents = value.contents
        return {
            "bytes": len(value.pte),
            "contents": _data(contents) if isinstance(contents, Failure) else contents.to_dict(),
            "verification": _data(value.verification),
        }
    if isinstance(value, dict):
        return {key: _data(item) for key, item in value.items()}
    if isinstance(value, ReportedOp):
        return {**plain(value), "place": value.place}
    if isinstance(value, tuple):
        return [_data(item) for item in value]
    return plain(value)


def _hanging(head: str, said: str) -> list[str]:
    lines = textwrap.wrap(
        " ".join(said.split()),
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * min(len(head), 14),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [head.rstrip()]


def _unique(items: Iterator[str] | Any) -> list[str]:
    return list(dict.fromkeys(items))


def _n(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
