"""How the roles of a model are played: what a person may set, for all of them and for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from kernelwright.agent.model.context import DEFAULT_TOKENS
from kernelwright.llm.base import Effort

RoleName = Literal["plan", "code", "debug", "template", "analyse"]
ROLES: tuple[RoleName, ...] = ("plan", "code", "debug", "template", "analyse")

WindowName = Literal["ranked", "published"]
WINDOWS: tuple[WindowName, ...] = ("ranked", "published")
"""`ranked`: the nodes that tell most, as far as the tokens go; `published`: STARK's, five nodes at most."""


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """How a model is asked for one role; temperatures as STARK published them."""

    temperature: float | None = 0.1
    """None: the model's own; models that reason often take no other."""
    effort: Effort | None = None
    max_tokens: int = 16_000
    """The longest reply, reasoning included."""


DEFAULT_ROLES: Mapping[RoleName, RoleSettings] = MappingProxyType(
    {
        "plan": RoleSettings(temperature=0.8, max_tokens=32_000),
        "code": RoleSettings(),
        "debug": RoleSettings(),
        "template": RoleSettings(),
        "analyse": RoleSettings(temperature=0.2, max_tokens=4_000),
    }
)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How the roles are played."""

    roles: Mapping[RoleName, RoleSettings] = field(default_factory=lambda: DEFAULT_ROLES)
    context_tokens: int = DEFAULT_TOKENS
    window: WindowName = "ranked"
    corrections: int = 2
    """How often a reply that cannot be used goes back with a complaint."""
    analyses: bool = False
    """Whether the model is asked for an analysis beside that of the rules; who plans reads the same evidence anyway."""
    shows_tactics: bool = False
    """Whether a planner sees which tactics of the library apply: small changes, which draw it away from large ones."""
    is_direct: bool = False
    """Whether whole kernels are written without parameters, with prompts that know of none."""
    carries_best: bool = True
    """Whether what is written from a node begins at the node's best values where its parameters stay."""
    seed: int | None = None
    """The run's seed: repeats of a comparison ask with seeds of their own."""
