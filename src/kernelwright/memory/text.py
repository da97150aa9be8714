"""Text of other runs is a stranger's: what is hidden is taken out, what is long is cut, before anyone reads it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LABEL = re.compile(r"[^A-Za-z0-9 ()/_.@+-]+")
_NAME = re.compile(r"[^A-Za-z0-9_.@+-]+")


def line(text: str, *, most: int) -> str:
    """One line of at most so many characters, without anything that cannot be seen."""
    words = " ".join(_HIDDEN.sub("", _ANSI.sub("", text)).split())
    return words if len(words) <= most else words[: most - 1] + "…"


def block(text: str, *, most: int) -> str:
    """Lines as they are, without anything that cannot be seen; empty when longer than `most` characters.

    Half a template teaches nothing, so it is not cut.
    """
    if len(text) > most:
        return ""
    return _HIDDEN.sub("", _ANSI.sub("", text.replace("\r\n", "\n")))


def label(text: str, *, most: int = 60) -> str:
    """A short name as devices have them, in letters, digits, spaces and a few signs; other characters go."""
    return " ".join(_LABEL.sub("", text).split())[:most]


def name(text: str, *, most: int = 80) -> str:
    """A word of letters, digits and `_ . @ + -`; other characters become `-`."""
    return _NAME.sub("-", text).strip("-")[:most]
