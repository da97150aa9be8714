"""Events as lines of text, and back.

One event is one line of canonical UTF-8 JSON: no spaces, fields in the order of the dataclass, floats in
their shortest exact form. Three fields come first:

```
{"crc":"9ae0daaf","i":17,"kind":"evaluated","index":12,"candidate_id":...}
```

`i` counts the lines from 0. `crc` is the CRC-32 of the line without `"crc":"........",` and without the
newline. The first line and every `session_started` also carry `format`, the version that their writer knew.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from kernelwright.errors import StoreError
from kernelwright.json_text import read_json_text
from kernelwright.problem.config import Config
from kernelwright.store.event import (
    FORMAT,
    ActionChosen,
    BaselineMeasured,
    DispatchProbed,
    Evaluated,
    Event,
    FinalistsCompared,
    MemoryRecalled,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
    TemplateProven,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter

_PREFIX = re.compile(rb'\{"crc":"([0-9a-f]{8})",(?="i":(0|[1-9][0-9]{0,17}),"kind":"([a-z_]{1,64})"[,}])')
_BEGINNING = b'{"crc":"'
_CRC_BYTES = len(b'{"crc":"01234567",')
_CARRIES_FORMAT = frozenset({"run_started", "session_started"})
_KINDS: tuple[type[Event], ...] = (
    RunStarted,
    SessionStarted,
    BaselineMeasured,
    Evaluated,
    FinalistsCompared,
    DispatchProbed,
    Noted,
    RunFinished,
    NodeProposed,
    NodeJudged,
    NodePlanned,
    ActionChosen,
    NodeTuned,
    TemplateProven,
    MemoryRecalled,
)


class RecordDamaged(Exception):
    """A line that is not what was written."""


class FormatTooNew(Exception):
    """A line that says it was written in a format above `FORMAT`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A line whose checksum holds; its event is not decoded yet."""

    index: int
    kind: str
    line: bytes
    """Without the newline."""


def encode(event: Event, index: int) -> bytes:
    """`event` as the `index`-th line, newline included.

    Text that is not valid Unicode (stray bytes in a compiler's output) is recorded with `?` in their place.

    Raises:
        StoreError: a number is NaN or infinite, or a value is not of its field's type.
    """
    head: dict[str, object] = {"i": index, "kind": event.kind}
    if index == 0 or event.kind in _CARRIES_FORMAT:
        head["format"] = FORMAT
    try:
        fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        text = _to_json(head | fields)
        body = text.encode("utf-8", "replace")
        line = b'{"crc":"%08x",' % zlib.crc32(body) + body[1:] + b"\n"
        decode(verify(line))  # what could not be read again is refused now, not at the next start
    except (TypeError, ValueError, RecordDamaged) as error:
        raise StoreError(
            f"cannot record the event {event.kind!r}: {error}",
            hint="this is a defect of what made it: events hold finite numbers, text, lists and tables",
        ) from error
    return line


def verify(line: bytes) -> Record:
    """The record on a line (with or without its newline), once its checksum is found to hold.

    Raises:
        RecordDamaged: it is not a whole record, or its bytes have changed.
        FormatTooNew: its writer's format is above `FORMAT`, whatever else is on the line.
    """
    line = line.removesuffix(b"\n")
    prefix = _PREFIX.match(line)
    if prefix is None:
        _refuse_newer(line)
        raise RecordDamaged("it is not a record")
    crc, index, kind = prefix.groups()
    if zlib.crc32(memoryview(line)[_CRC_BYTES:], zlib.crc32(b"{")) != int(crc, 16):
        if index == b"0":
            _refuse_newer(line)  # a newer format may count its checksum differently
        raise RecordDamaged("its checksum does not match its content")
    record = Record(int(index), kind.decode(), line)
    if record.index == 0 or record.kind in _CARRIES_FORMAT:
        _refuse_newer(line)
    return record


def holds_several(line: bytes) -> bool:
    """Whether more than one record begins on this line: a lost newline, which no torn write leaves.

    Quotes inside JSON texts are escaped, so that the beginning of a record cannot occur within one.
    """
    return line.count(_BEGINNING) > 1


def decode(record: Record) -> Event | None:
    """The event of a record; None for a kind that a newer version added and this one may ignore.

    Raises:
        RecordDamaged: the fields are not those of the kind.
    """
    from pydantic import ValidationError

    adapter = _adapters().get(record.kind)
    if adapter is None:
        return None
    try:
        event: Event = adapter.validate_json(record.line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the record"
        raise RecordDamaged(f"{place} of {record.kind!r}: {first['msg']}") from error
    return event


@cache
def _adapters() -> Mapping[str, TypeAdapter[Any]]:
    from pydantic import TypeAdapter

    return {_kind_of(kind): TypeAdapter(kind) for kind in _KINDS}


def _kind_of(event_type: type[Event]) -> str:
    default = next(field.default for field in dataclasses.fields(event_type) if field.name == "kind")
    return cast("str", default)


def _refuse_newer(line: bytes) -> None:
    try:
        content = read_json_text(line)
    except ValueError:
        return
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise FormatTooNew(f"it was written in format {found}; this version reads up to {FORMAT}")


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_jsonable)


def _jsonable(value: object) -> object:
    """What `json` does not know: dataclasses, configs, and NumPy's numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Config):
        return dict(value)
    return _unusual(value)


def _unusual(value: object) -> object:
    from collections.abc import Mapping as AnyMapping
    from pathlib import PurePath

    import numpy as np

    match value:
        case AnyMapping():
            return dict(value)
        case PurePath():
            return value.as_posix()
        case frozenset() | set():
            return sorted(value)
        case np.generic():
            return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} has no form in JSON")
