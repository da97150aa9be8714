"""Choices: what ships for a kernel on a device, with all that it takes to measure it again.

```
write_choice(store, choice_of(ExportedRun.read(run)))    # store/matmul.choice.toml, one file a kernel
choices = read_choices(store / "matmul.choice.toml")     # one a device
```
A run folder is the whole record of a search on one machine; a choice is what of it goes into a repository. The table
that the run dispatches by is in it as the config that serves each tuned workload.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import SpecError, UserError
from kernelwright.evaluate.statistics import ConfidenceInterval, confidence_for, speedup_interval
from kernelwright.export.subject import ExportedRun
from kernelwright.export.summary import interval_record
from kernelwright.problem.config import Config, Value
from kernelwright.problem.toml.file import TomlTable, parse_toml, read_text
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.store.files import explain, write_atomically
from kernelwright.store.run_folder import checked_name
from kernelwright.template.load import problem_files

SUFFIX = ".choice.toml"
FORMAT = 1

MOST_BYTES = 4 << 20
"""The most that a problem's files take in a choice. A repository is no place for more: draw inputs instead."""

_KEYS = (
    "device", "backend", "language", "run", "created", "kernelwright", "problem", "template", "configs", "others",
    "serves", "speedups", "files", "data",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """What ships on one device."""

    kernel: str
    """The problem's name."""
    device: str
    """The name of the device that it was measured on."""
    configs: tuple[Config, ...]
    serves: Mapping[str, int]
    """By tuned workload, the place of its config; -1: the baseline."""
    speedups: Mapping[str, ConfidenceInterval]
    """By workload, over the baseline, as measured when it was made; those that were compared."""
    others: tuple[Config, ...]
    """Finalists that it was chosen over."""
    files: Mapping[str, bytes]
    """The whole problem's files, by path inside its folder."""
    problem: str
    """Which of them is the problem file."""
    template: str
    """Which of them is the template."""
    origin: Mapping[str, str]
    """Backend, language, run, time and version that it comes from."""


def choice_of(run: ExportedRun) -> Choice:
    """The choice that an exported run stands for.

    Raises:
        UserError: nothing won, or the problem's files are too large.
    """
    subject, table, view = run.subject, run.table, run.view
    files = problem_files(subject.problem, subject.template, subject.baseline)
    size = sum(map(len, files.values()))
    if size > MOST_BYTES:
        raise UserError(
            f"the files of {run.problem.name!r} hold {size:,} bytes, a choice at most {MOST_BYTES:,}",
            hint="draw inputs with a distribution instead of a file",
        )
    configs = [config for config in table.configs if config is not None]
    serves = {}
    for workload in run.problem.workloads:
        config = table.select(workload.sizes)
        serves[workload.name] = -1 if config is None else configs.index(config)
    compared = [Config(each) for each in view.comparison.configs[1:]] if view.comparison is not None else []
    folder = run.problem.file.parent
    return Choice(
        kernel=run.problem.name,
        device=run.device_name,
        configs=tuple(configs),
        serves=serves,
        speedups=_measured(run, {name: configs[place] for name, place in serves.items() if place >= 0}),
        others=tuple(dict.fromkeys(each for each in compared if each not in configs)),
        files=files,
        problem=run.problem.file.name,
        template=run.template.file.relative_to(folder).as_posix(),
        origin={
            "backend": str(view.started.device.get("backend", "")),
            "language": run.template.language,
            "run": view.started.run_id,
            "created": view.started.created,
            "kernelwright": view.started.version,
        },
    )


def _measured(run: ExportedRun, served: Mapping[str, Config]) -> dict[str, ConfidenceInterval]:
    """The speedups of the configs that serve, where the final comparison has them.

    Intervals hold for all workloads together, not for all finalists too: no claim over others rests on them.
    """
    comparison, found = run.view.comparison, {}
    for name, config in served.items():
        rows = comparison.samples_ms.get(name, ()) if comparison is not None else ()
        configs = [Config(each) for each in comparison.configs] if comparison is not None else []
        place = configs.index(config, 1) if config in configs[1:] else 0
        if 0 < place < len(rows) and rows[0] and rows[place]:
            confidence = confidence_for(len(run.problem.workloads))
            found[name] = speedup_interval(rows[0], rows[place], confidence=confidence)
    return found


def choice_file(run: ExportedRun) -> Mapping[str, bytes]:
    """The choice of a run as a file of its own."""
    choice = choice_of(run)
    return {_file_name(choice.kernel): _text([choice]).encode()}


def write_choice(store: Path, choice: Choice) -> Path:
    """Put a choice into a store, in the place of the one for the same device; other devices keep theirs.

    Raises:
        SpecError: the kernel's file there is damaged.
        StoreError: it cannot be written.
    """
    path = store / _file_name(choice.kernel)
    kept = {each.device: each for each in read_choices(path)} if path.exists() else {}
    kept[choice.device] = choice
    try:
        store.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _text([kept[name] for name in sorted(kept)]).encode())
    except OSError as error:
        raise explain(error, "write", path) from error
    return path


def _file_name(kernel: str) -> str:
    return f"{kernel}{SUFFIX}"


# -- writing -----------------------------------------------------------------------------------------------------------


def _text(choices: Sequence[Choice]) -> str:
    """One table a device, each value on a line of its own, so that changes of two branches merge."""
    lines = [f"format = {FORMAT}", f"kernel = {inline_toml(choices[0].kernel)}"]
    for each in choices:
        lines += ["", "[[choice]]", f"device = {inline_toml(each.device)}"]
        lines += [f"{name} = {inline_toml(value)}" for name, value in sorted(each.origin.items())]
        lines += [f"problem = {inline_toml(each.problem)}", f"template = {inline_toml(each.template)}"]
        for name, configs in (("configs", each.configs), ("others", each.others)):
            lines += [f"{name} = [", *(f"    {inline_toml(dict(config))}," for config in configs), "]"]
        lines += ["[choice.serves]", *(f"{inline_toml(name)} = {place}" for name, place in each.serves.items())]
        lines += ["[choice.speedups]"]
        lines += [
            f"{inline_toml(name)} = {inline_toml(interval_record(found))}" for name, found in each.speedups.items()
        ]
        texts = {name: text for name, data in each.files.items() if (text := _as_text(data)) is not None}
        lines += ["[choice.files]", *(f'{inline_toml(name)} = """\n{_lines(text)}"""' for name, text in texts.items())]
        if binary := {name: data for name, data in each.files.items() if name not in texts}:
            lines += ["[choice.data]"]
            lines += [f'{inline_toml(name)} = "{base64.b64encode(data).decode()}"' for name, data in binary.items()]
    return "\n".join(lines) + "\n"


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _lines(text: str) -> str:
    """A text between three quotes; tabs and line ends stay as they are."""
    escaped = text.replace("\\", "\\\\").replace('"""', '""\\"')
    escaped = f'{escaped[:-1]}\\"' if escaped.endswith('"') else escaped
    return re.sub(r"[\x01-\x08\x0b-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_choices(path: Path) -> tuple[Choice, ...]:
    """The choices of a kernel's file.

    Raises:
        SpecError: it is none, with the line to change.
    """
    root = parse_toml(read_text(path, what="the choice"), path).root
    root.refuse_unknown(("format", "kernel", "choice"), what="a file of choices")
    if root.number("format") != FORMAT:
        raise root.error(
            "format", message=f"this file's format is {root.number('format')}, this version reads {FORMAT}"
        )
    kernel = _required(root, "kernel")
    tables = root.tables("choice")
    if not tables:
        raise root.missing("choice", expected="[[choice]], as `kernelwright export --to` writes it")
    return tuple(_choice(table, kernel) for table in tables)


def _required(table: TomlTable, key: str) -> str:
    text = table.text(key)
    if text is None:
        raise table.missing(key, expected=f'{key} = "..."')
    return text


def _choice(table: TomlTable, kernel: str) -> Choice:
    table.refuse_unknown(_KEYS, what="a choice")
    configs, files = _configs(table, "configs"), _files(table)
    problem, template = _required(table, "problem"), _required(table, "template")
    for key, name in (("problem", problem), ("template", template)):
        if name not in files:
            raise table.error(key, message=f"the choice has no file {name!r}")
    return Choice(
        kernel=kernel,
        device=_required(table, "device"),
        configs=configs,
        serves=_serves(table, len(configs)),
        speedups=_speedups(table),
        others=_configs(table, "others"),
        files=files,
        problem=problem,
        template=template,
        origin={key: table.text(key) or "" for key in ("backend", "created", "kernelwright", "language", "run")},
    )


def _configs(table: TomlTable, key: str) -> tuple[Config, ...]:
    found = []
    for place, each in enumerate(table.tables(key) or ()):
        values: dict[str, Value] = {}
        for name, value in each.data.items():
            if not isinstance(value, bool | int | float | str):
                raise table.wrong_type(key, place, name, value=value, expected="a number, a text, true or false")
            values[name] = value
        found.append(Config(values))
    return tuple(found)


def _serves(table: TomlTable, count: int) -> dict[str, int]:
    serves = table.table("serves")
    if serves is None or not serves.data:
        raise table.missing("serves", expected="by workload the place of its config, or -1 for the baseline")
    for name, place in serves.data.items():
        if isinstance(place, bool) or not isinstance(place, int) or not -1 <= place < count:
            raise serves.error(name, message=f"{place!r} is no place of a config; there are {count}")
    return dict(serves.data)


def _speedups(table: TomlTable) -> dict[str, ConfidenceInterval]:
    found, speedups = {}, table.table("speedups")
    for name in speedups or ():
        assert speedups is not None
        each = speedups.table(name)
        values = [each.number(key) if each else None for key in ("estimate", "low", "high", "confidence")]
        estimate, low, high, confidence = (value or 0.0 for value in values)
        if not 0 < low <= estimate <= high or not 0 < confidence < 1:
            raise speedups.error(name, message=f"the speedup on {name!r} is no interval: {values}")
        found[name] = ConfidenceInterval(estimate, low, high, confidence)
    return found


def _files(table: TomlTable) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for key in ("files", "data"):
        texts: Any = table.table(key)
        for name in texts or ():
            path, value = checked_name(name).as_posix(), texts.text(name)
            try:
                files[path] = value.encode() if key == "files" else base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError, UnicodeEncodeError):
                raise texts.error(name, message=f"{name!r} does not hold what it should") from None
    if sum(map(len, files.values())) > MOST_BYTES:
        raise SpecError(f"the files hold more than {MOST_BYTES:,} bytes", location=table.location)
    return dict(sorted(files.items()))
