"""Content identity: one function hashes everything that changes behaviour.

Every id in Kernelwright (candidate, build unit, workload, problem, blob) comes from `content_id`, so that two things
have the same id exactly when all their fields are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath

ID_LENGTH = 16
"""Hexadecimal digits of an id: 64 bits, so a collision among 10^6 candidates has a chance below 10^-7."""


def content_id(*parts: object) -> str:
    """The id of `parts`: stable across processes, machines and Python versions.

    Every part is encoded with its type and length (canonical JSON), so `("ab", "c")` and `("a", "bc")` differ, and
    so do `1`, `1.0`, `True` and `"1"`. Dataclasses are encoded with their class name and all their fields.

    Raises:
        TypeError: a part holds something with no canonical encoding (a function, an open file).
    """
    text = json.dumps([canonical(part) for part in parts], separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def canonical(value: object) -> object:
    """`value` as JSON-ready data in which every distinction that matters survives."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return {"int": str(value)}
        case float():
            return {"float": value.hex()}
        case bytes():
            return {"bytes": hashlib.sha256(value).hexdigest()}
        case PurePath():
            return {"path": value.as_posix()}
        case Mapping():
            return {"map": sorted([str(key), canonical(item)] for key, item in value.items())}
        case set() | frozenset():
            return {"set": sorted(json.dumps(canonical(item)) for item in value)}
        case Sequence():
            return [canonical(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: fields}
    raise TypeError(f"cannot take the identity of {type(value).__name__}: {value!r}")
