"""The limits that readers of replies hold each role to, in words for its prompt, from the constants of the readers."""

from __future__ import annotations

from kernelwright.agent.model.hostile import MOST_HEADER_CHARACTERS, MOST_SOURCE_CHARACTERS
from kernelwright.agent.model.replies import (
    MOST_CHARACTERS,
    NOT_ASKED,
    AnalysisReply,
    GivenUp,
    PlanReply,
    limits_of,
)
from kernelwright.agent.model.settings import RoleName
from kernelwright.problem.expressions.syntax import MAX_TEXT_LENGTH

_OF_SOURCES = (
    f"the source {MOST_SOURCE_CHARACTERS} characters; the toml block {MOST_HEADER_CHARACTERS} characters, "
    f"one expression of it {MAX_TEXT_LENGTH}"
)


def limits_words(role: RoleName, *, max_tokens: int) -> str:
    """What a role's reply must keep to, joined by semicolons.

    Args:
        role: whose.
        max_tokens: that its requests allow, reasoning included.
    """
    parts = [f"{max_tokens} tokens in all, reasoning included", f"{MOST_CHARACTERS} characters in all"]
    match role:
        case "analyse":
            parts.append(limits_of(AnalysisReply))
        case "plan":
            parts += [limits_of(PlanReply, but=NOT_ASKED), _OF_SOURCES]
            parts.append(limits_of(GivenUp))
        case "code" | "debug" | "template":
            parts += [_OF_SOURCES, limits_of(GivenUp)]
    return "; ".join(parts)
