"""Who plays which role, and how: the file of `--roles`, read into settings.

```toml
window = "ranked"               # or "published"
requests_per_minute = 60        # of each model; requests_in_flight, timeout_s likewise

[plan]
model = "openai:gpt-5,anthropic:claude-sonnet-4-5"     # a chain; else what --model says
temperature = "own"             # the model's; or a number
effort = "high"
max_tokens = 8000

[analyse]
model = "rules"
```
The tables are recorded with the run's settings, so a resumed run needs no file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from kernelwright.agent.model.settings import (
    DEFAULT_ROLES,
    ROLES,
    WINDOWS,
    ModelSettings,
    RoleName,
    RoleSettings,
    WindowName,
)
from kernelwright.errors import Location, SpecError, UsageError
from kernelwright.llm.base import EFFORTS, Effort
from kernelwright.llm.names import parse_models
from kernelwright.llm.pace import Pace
from kernelwright.problem.toml.file import parse_toml, read_text

RULES = "rules"
OWN = "own"
"""A temperature that is left to the model."""

BY_RULES: tuple[RoleName, ...] = ("template", "debug", "analyse")
"""Roles that rules can play beside a model; an idea of a model can only be carried out by one."""

_ROLE_KEYS = ("model", "temperature", "effort", "max_tokens")
_NUMBERS: Mapping[str, tuple[int, int]] = {
    "context_tokens": (1_000, 2_000_000),
    "corrections": (0, 10),
    "requests_per_minute": (1, 1_000_000),
    "requests_in_flight": (1, 1_000),
    "timeout_s": (1, 86_400),
}
_SWITCHES = ("counters", "tactics", "analyses")
_KEYS = (*ROLES, *_NUMBERS, *_SWITCHES, "window")
_HINTS: Mapping[str, str] = {
    "api_key": "keys come from the environment only",
    "key": "keys come from the environment only",
    "model": "say the model of all roles with --model, that of one in its table",
    "max_cost": "say --max-cost",
}

assert get_args(RoleName) == ROLES
assert get_args(Effort) == EFFORTS


@dataclass(frozen=True, slots=True)
class Roles:
    """What a file of roles says; made by `roles_of`."""

    models: Mapping[RoleName, str] = field(default_factory=dict)
    """Names of models, as `--model` takes them, or `rules`; roles that are missing are played by the run's model."""
    settings: ModelSettings = field(default_factory=ModelSettings)
    pace: Pace = field(default_factory=Pace)
    timeout_s: int | None = None
    """For one attempt at a reply; None: what providers take by default."""
    reads_counters: bool = False
    """Whether hardware counters are read for planners where this machine allows it."""


def read_roles(file: Path) -> dict[str, Any]:
    """The tables of a file of roles, checked.

    Raises:
        UsageError: it cannot be read, is not TOML, or says something that is not understood.
    """
    try:
        tables = dict(parse_toml(read_text(file, what="the file of roles"), file).data)
    except SpecError as error:
        raise UsageError(error.message, hint=error.hint or "name a TOML file", location=error.location) from None
    try:
        roles_of(tables)
    except UsageError as error:
        error.location = error.location or Location(file)
        raise
    return tables


def roles_of(tables: Mapping[str, Any]) -> Roles:
    """The roles that such tables say.

    Raises:
        UsageError: a key or a value is wrong, with what is expected.
    """
    for key in tables:
        _require_known(key, _KEYS, "a file of roles")
    numbers = {key: _number(tables, key) for key in _NUMBERS if key in tables}
    switches = {key: _switch(tables, key) for key in _SWITCHES if key in tables}
    window = tables.get("window", WINDOWS[0])
    if window not in WINDOWS:
        raise UsageError(f"window is {window!r}, expected {' or '.join(WINDOWS)}")
    defaults = ModelSettings()
    roles = {role: _role(role, tables.get(role, {})) for role in ROLES}
    return Roles(
        models={role: str(tables[role]["model"]) for role in ROLES if "model" in tables.get(role, {})},
        settings=ModelSettings(
            roles=roles,
            context_tokens=numbers.get("context_tokens", defaults.context_tokens),
            window=cast("WindowName", window),
            corrections=numbers.get("corrections", defaults.corrections),
            analyses=switches.get("analyses", defaults.analyses),
            shows_tactics=switches.get("tactics", defaults.shows_tactics),
        ),
        timeout_s=numbers.get("timeout_s"),
        pace=Pace(numbers.get("requests_per_minute"), numbers.get("requests_in_flight")),
        reads_counters=switches.get("counters", False),
    )


def _role(role: RoleName, table: object) -> RoleSettings:
    if not isinstance(table, Mapping):
        raise UsageError(f"{role} is {table!r}, expected a table: [{role}]")
    for key in table:
        _require_known(key, _ROLE_KEYS, f"[{role}]")
    default = DEFAULT_ROLES[role]
    if "model" in table:
        _require_model(role, table["model"])
    effort = table.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise UsageError(f"effort of {role} is {effort!r}, expected {', '.join(EFFORTS)}")
    return RoleSettings(
        temperature=_temperature(role, table.get("temperature", default.temperature)),
        effort=cast("Effort | None", effort),
        max_tokens=_whole(f"max_tokens of {role}", table.get("max_tokens", default.max_tokens), 100, 1_000_000),
    )


def _require_model(role: RoleName, name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"model of {role} is {name!r}, expected a text: PROVIDER:NAME")
    if name != RULES:
        parse_models(name)
    elif role not in BY_RULES:
        raise UsageError(
            f"{role} cannot be played by rules beside a model", hint=f"rules can play {', '.join(BY_RULES)}"
        )


def _temperature(role: RoleName, value: object) -> float | None:
    if value is None or value == OWN:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise UsageError(f"temperature of {role} is {value!r}, expected a number from 0 to 2, or {OWN!r}")
    return float(value)


def _number(tables: Mapping[str, Any], key: str) -> int:
    return _whole(key, tables[key], *_NUMBERS[key])


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}, expected a whole number from {low} to {high}")
    return value


def _switch(tables: Mapping[str, Any], key: str) -> bool:
    value = tables[key]
    if not isinstance(value, bool):
        raise UsageError(f"{key} is {value!r}, expected true or false")
    return value


def _require_known(key: str, known: Sequence[str], where: str) -> None:
    if key in known:
        return
    near = difflib.get_close_matches(key, known, 1, 0.6)
    hint = _HINTS.get(key) or (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
    raise UsageError(f"{where} has no {key!r}", hint=hint)
