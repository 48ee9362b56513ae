"""A flatbuffer read by its schema: tables as dictionaries, nothing compiled or generated.

A flatbuffer names no fields. The schema (``.fbs``) does, and ExecuTorch ships those of its
formats; read with the schema of the installed version, names stay right when fields are added.
Source: flatbuffers.dev, "FlatBuffer internals" and "Writing a schema".
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLOCK = re.compile(r"\b(table|union|enum)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?\s*\w+\s*\]?)\s*(?:=\s*([^;(\s]+)\s*)?(?:\([^)]*\))?\s*;")
_ROOT = re.compile(r"\broot_type\s+(\w+)")
_SCALARS = {
    "bool": "?", "byte": "b", "ubyte": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I",
    "long": "q", "ulong": "Q", "float": "f", "double": "d", "int8": "b", "uint8": "B",
    "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
    "float32": "f", "float64": "d",
}  # fmt: skip


@dataclass(frozen=True)
class Schema:
    """What a ``.fbs`` file says.

    Attributes:
        root: the table that a file starts with.
        tables: of each table the fields in order: name, type, place among the fields, default.
        unions: of each union the names and tables of its members, from number 1.
        enums: of each enumeration the name of each number, and the scalar type that holds it.
    """

    root: str
    tables: dict[str, tuple[tuple[str, str, int, str], ...]]
    unions: dict[str, tuple[tuple[str, str], ...]]
    enums: dict[str, tuple[dict[int, str], str]]

    @staticmethod
    def parse(text: str) -> Schema:
        """Read the text of a schema without namespaces, structs or includes.

        Example:
            >>> Schema.parse("table T { a:int; b:[string]; } root_type T;").tables["T"]
            (('a', 'int', 0, ''), ('b', '[string]', 1, ''))
        """
        text = _COMMENT.sub("", text)
        found = _BLOCK.findall(text)
        unions = {name: _members(body) for kind, name, _, body in found if kind == "union"}
        enums = {
            name: (_numbers(body), scalar or "byte")
            for kind, name, scalar, body in found
            if kind == "enum"
        }
        tables = {name: _fields(body, unions) for kind, name, _, body in found if kind == "table"}
        root = _ROOT.search(text)
        return Schema(root[1] if root else "", tables, unions, enums)

    def read(self, data: bytes) -> dict[str, Any]:
        """Return the root table, all that it holds included.

        A field that is left out has its default: 0, ``""``, ``[]``, or None for a table. A member
        of a union is its table with one more entry ``"kind"``, the member's name. Of a number
        that an enumeration does not name, the number is the name.

        Raises:
            ValueError, struct.error: the bytes are no such flatbuffer (UnicodeDecodeError is a
                ValueError).
        """
        return self._table(data, _follow(data, 0), self.root)

    def _table(self, data: bytes, at: int, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field, kind, slot, default in self.tables[name]:
            where = _place(data, at, slot)
            if kind not in self.unions:
                found[field] = self._value(data, where, kind, default)
                continue
            tag_at = _place(data, at, slot - 1)
            tag = data[tag_at] if tag_at else 0
            found[field] = self._member(data, where, kind, tag) if tag and where else None
        return found

    def _member(self, data: bytes, where: int, union: str, tag: int) -> dict[str, Any]:
        members = self.unions[union]
        if tag > len(members):  # written with a newer schema
            return {"kind": f"{union} {tag}"}
        name, table = members[tag - 1]
        return {"kind": name, **self._table(data, _follow(data, where), table)}

    def _value(self, data: bytes, where: int, kind: str, default: str) -> Any:
        if kind[0] == "[":
            return self._vector(data, where, kind[1:-1].strip()) if where else []
        if kind == "string":
            return _text(data, where) if where else ""
        if kind in self.tables:
            return self._table(data, _follow(data, where), kind) if where else None
        names, scalar = self.enums.get(kind, (None, kind))
        value = _unpack(data, where, _SCALARS[scalar]) if where else _number(default, names)
        return value if names is None else names.get(int(value), str(value))

    def _vector(self, data: bytes, where: int, kind: str) -> Any:
        start = _follow(data, where)
        count, start = _unpack(data, start, "I"), start + 4
        if count > len(data):
            raise ValueError(f"a list of {count:,} entries in {len(data):,} bytes")
        if kind == "ubyte":
            if start + count > len(data):
                raise ValueError("a list ends behind the data")
            return data[start : start + count]
        if kind in _SCALARS:
            return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", data, start))
        places = range(start, start + 4 * count, 4)
        if kind == "string":
            return [_text(data, place) for place in places]
        return [self._table(data, _follow(data, place), kind) for place in places]


def _members(body: str) -> tuple[tuple[str, str], ...]:
    parts = [part.strip() for part in body.split(",") if part.strip()]
    pairs = [part.partition(":") for part in parts]
    return tuple((name.strip(), table.strip() or name.strip()) for name, _, table in pairs)


def _numbers(body: str) -> dict[int, str]:
    names: dict[int, str] = {}
    number = -1
    for part in filter(None, map(str.strip, body.split(","))):
        name, _, value = part.partition("=")
        number = int(value, 0) if value else number + 1
        names[number] = name.strip()
    return names


def _fields(body: str, unions: dict[str, Any]) -> tuple[tuple[str, str, int, str], ...]:
    found, slot = list[tuple[str, str, int, str]](), 0
    for name, kind, default in _FIELD.findall(body):
        kind = kind.replace(" ", "")
        slot += kind in unions  # which member it is comes first, in a place of its own
        found.append((name, kind, slot, default))
        slot += 1
    return tuple(found)


def _number(default: str, names: dict[int, str] | None) -> float:
    if names and default in names.values():
        return next(number for number, name in names.items() if name == default)
    try:
        return int(default or "0", 0)
    except ValueError:
        return {"true": 1, "false": 0}[default] if default in ("true", "false") else float(default)


def _unpack(data: bytes, at: int, code: str) -> Any:
    if at < 0:  # struct would count from the end
        raise ValueError("a reference leads before the data")
    return struct.unpack_from("<" + code, data, at)[0]


def _follow(data: bytes, at: int) -> int:
    return at + int(_unpack(data, at, "I"))


def _place(data: bytes, table: int, slot: int) -> int:
    """Return where a field of a table is, or 0 where it is left out.

    A table starts with the distance back to its list of fields: two sizes, then the places.
    """
    fields = table - int(_unpack(data, table, "i"))
    if 4 + 2 * slot >= _unpack(data, fields, "H"):
        return 0
    offset = int(_unpack(data, fields + 4 + 2 * slot, "H"))
    return table + offset if offset else 0


def _text(data: bytes, where: int) -> str:
    start = _follow(data, where)
    end = start + 4 + int(_unpack(data, start, "I"))
    if end > len(data):
        raise ValueError("a text ends behind the data")
    return data[start + 4 : end].decode()
