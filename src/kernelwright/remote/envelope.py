"""One file of a spool: a line that says what it is and what its bytes must be, then one JSON document.

```
{"spool":1,"kind":"node","id":"8b5c...","bytes":5120,"sha256":"..."}
{"run_id":"...", ...}
```

A file that is shorter or other than its first line says is *incomplete*: a copy that is still under way, or was cut
off. It is waited for, never guessed at.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import Location, StoreError
from kernelwright.identity import ID_LENGTH
from kernelwright.json_text import read_json_text

FORMAT = 2
"""Version of the spool; a reader refuses a higher one."""

MOST_MESSAGE_BYTES = 64 << 20
"""The largest request or result."""

MOST_FILE_BYTES = 512 << 20
"""The largest file of a problem."""

MOST_HEAD_BYTES = 4096

ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


class SpoolTooNew(StoreError):
    """A file of a newer format than this version reads."""


@dataclass(frozen=True, slots=True)
class _Envelope:
    """A whole file."""

    kind: str
    id: str
    body: bytes
    """JSON."""


def encode(kind: str, identity: str, body: object) -> bytes:
    """The bytes of a file: `body` is JSON-ready, or a dataclass of what is.

    Raises:
        StoreError: it is above the limit.
    """
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_jsonable)
    data = text.encode() + b"\n"
    if len(data) > MOST_MESSAGE_BYTES:
        raise StoreError(f"a message of {len(data) >> 20} MiB is above the {MOST_MESSAGE_BYTES >> 20} MiB of a spool")
    head = {"spool": FORMAT, "kind": kind, "id": identity, "bytes": len(data), "sha256": digest(data)}
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + data


def _jsonable(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode(data: bytes, *, file: Path) -> _Envelope | None:
    """What a file holds; None: it is incomplete, or no file of a spool.

    Raises:
        SpoolTooNew: it was written in a newer format.
    """
    head_line, newline, body = data.partition(b"\n")
    if not newline or len(head_line) > MOST_HEAD_BYTES:
        return None
    head = _head(head_line)
    if head is None:
        return None
    if head["spool"] > FORMAT:
        raise SpoolTooNew(
            f"this file is of spool format {head['spool']}; this version reads up to {FORMAT}",
            hint="use the same version of Kernelwright on both machines",
            location=Location(file),
        )
    if head["bytes"] != len(body) or head["sha256"] != digest(body):
        return None
    return _Envelope(head["kind"], head["id"], body)


def _head(line: bytes) -> dict[str, Any] | None:
    try:
        head = read_json_text(line)
    except ValueError:
        return None
    types: Mapping[str, type] = {"spool": int, "kind": str, "id": str, "bytes": int, "sha256": str}
    if not isinstance(head, dict) or not all(isinstance(head.get(name), kind) for name, kind in types.items()):
        return None
    return head


def digest(data: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_plain(path: Path, *, most_bytes: int) -> bytes | None:
    """The bytes of a plain file; None: there is none, it is a link or a device, it is too large, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > most_bytes:
                return None
            return file.read(most_bytes + 1)
        except OSError:
            return None
