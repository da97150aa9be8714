"""Text that others wrote (compilers, kernels, problem files), made safe to show."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def clean(text: str) -> str:
    """`text` so that nothing in it is hidden, reordered or impossible to write to a file.

    Terminal colours are removed; control, bidirectional and other invisible characters are spelled out by their number.
    """
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", _ANSI.sub("", text).replace("\r\n", "\n"))
