"""The limits that readers of replies hold each role to, in words for its prompt, from the constants of the readers."""

from __future__ import annotations

from kernelwright.agent.model.hostile import MOST_HEADER_CHARACTERS, MOST_SOURCE_CHARACTERS
from kernelwright.agent.model.replies import MOST_CLAIM, MOST_LABELS
from kernelwright.agent.model.settings import RoleName
from kernelwright.problem.expressions.syntax import MAX_TEXT_LENGTH

_OF_SOURCES = (
    f"the source {MOST_SOURCE_CHARACTERS} characters; the toml block {MOST_HEADER_CHARACTERS}, "
    f"one expression of it {MAX_TEXT_LENGTH}"
)


def limits_words(role: RoleName, *, max_tokens: int) -> str:
    """What a role's reply must keep to, joined by semicolons; of a plan's words, which are cut, nothing.

    Args:
        role: whose.
        max_tokens: that its requests allow, reasoning included.
    """
    tokens = f"{max_tokens} tokens in all, reasoning included"
    if role == "analyse":
        return f"{tokens}; a claim {MOST_CLAIM} characters, with 1 to {MOST_LABELS} labels"
    return f"{tokens}; {_OF_SOURCES}"
