"""The files of one node: the problem as it was, with the node's template in the place of the kernel.

Each node is tuned by a run of its own, so its folder holds a whole problem that loads, resumes and exports like any.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from kernelwright.problem.model import Problem, SourceSpec

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def node_files(
    problem: Problem, files: Mapping[str, bytes], *, text: str, options: tuple[str, ...], root: SourceSpec
) -> dict[str, bytes]:
    """All files of a node's problem, by path inside its folder.

    Args:
        problem: the run's.
        files: its files, as `template.load.problem_files` gives them.
        text: the node's template.
        options: compile options of what the node was made from.
        root: the source that every node is compared with: the problem's baseline, or its kernel where it has none.
    """
    name = template_name(problem, files)
    document = tomllib.loads(files[problem.file.name].decode("utf-8-sig"))
    baseline = dict(document.get("baseline", {})) or {"kernel": document["kernel"]}
    if root.options != options:
        baseline["options"] = list(root.options)
    document |= {"kernel": name, "options": list(options), "baseline": baseline}
    return {**files, problem.file.name: to_toml(document).encode(), name: text.encode()}


def template_name(problem: Problem, files: Mapping[str, bytes]) -> str:
    """The file name of every node's template: the problem's name, and another one where a file is called so."""
    suffix = problem.kernel.file.suffix
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", problem.name) or "kernel"
    taken = {PurePosixPath(each).name for each in files}
    names = (f"{stem}{ending}{suffix}" for ending in ("", "_template", *(f"_template_{n}" for n in range(2, 99))))
    return next(each for each in names if each not in taken)


def to_toml(document: Mapping[str, Any]) -> str:
    """`document` as TOML: plain keys first, then its tables, with everything below them inline."""
    plain = {name: value for name, value in document.items() if not isinstance(value, dict) and not _is_tables(value)}
    lines = [f"{_key(name)} = {inline_toml(value)}" for name, value in plain.items()]
    for name, value in document.items():
        if name not in plain:
            lines += _table(name, value)
    return "\n".join(lines) + "\n"


def _table(name: str, value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        yield ""
        yield f"[[{_key(name)}]]" if isinstance(value, list) else f"[{_key(name)}]"
        yield from (f"{_key(key)} = {inline_toml(item)}" for key, item in each.items())


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    """JSON's escapes are TOML's, which has one more."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def inline_toml(value: Any) -> str:
    """A value as TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case dict():
            return "{ " + ", ".join(f"{_key(key)} = {inline_toml(item)}" for key, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(inline_toml(item) for item in value) + "]"
    return str(value)  # numbers, dates and times are written as TOML reads them
