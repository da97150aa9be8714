"""Values as TOML text: the one writer of every TOML that Kernelwright makes.

```
inline_toml({"values": [1, 2], "default": 1})      # { values = [1, 2], default = 1 }
to_toml({"name": "saxpy", "launch": {"grid": ["n"]}})
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(document: Mapping[str, Any]) -> str:
    """`document` as TOML: plain keys first, then its tables, with everything below them inline."""
    plain = {name: value for name, value in document.items() if not isinstance(value, dict) and not _is_tables(value)}
    lines = [f"{toml_key(name)} = {inline_toml(value)}" for name, value in plain.items()]
    for name, value in document.items():
        if name not in plain:
            lines += _table(name, value)
    return "\n".join(lines) + "\n"


def _table(name: str, value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        yield ""
        yield f"[[{toml_key(name)}]]" if isinstance(value, list) else f"[{toml_key(name)}]"
        yield from (f"{toml_key(key)} = {inline_toml(item)}" for key, item in each.items())


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def inline_toml(value: object) -> str:
    """A value as TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():  # JSON's escapes are TOML's, which has one more
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{ " + ", ".join(f"{toml_key(key)} = {inline_toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(inline_toml(item) for item in value) + "]"
    return str(value)  # numbers, dates and times are written as TOML reads them


def toml_key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else inline_toml(name)
