"""What failed, as a model should read it: what compiler or checker said, without traces of our own code and machine."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^\s*File "[^"\n]*", line \d+')
_PYTHON = re.compile(
    r"^\s*(Traceback \(most recent call (last|first)\):|(Current thread|Thread) 0x[0-9a-fA-F]+.*|Extension modules: .*"
    r"|Current thread's C stack trace .*|The above exception was the direct cause.*|During handling of the above.*"
    r"|raised in worker .*)$"
)
_FATAL = re.compile(r"^\s*Fatal Python error: ")
_PATH = re.compile(r"(?<![\w)\]./])/(?:[\w.@+~-]+/)+(?P<name>[\w.@+~-]*)")
"""An absolute path of two parts or more; what stands behind a word or a bracket is a division."""

_ERROR = re.compile(r"\b(error|fatal)\b", re.IGNORECASE)

BEFORE_ERROR = 3
"""Lines that are kept before the first error where a log is too long: what it refers to."""


def cleaned_message(text: str) -> str:
    """A message without the folders of this machine."""
    return _PATH.sub(lambda match: match["name"], text)


def cleaned_log(text: str, *, most: int) -> str:
    """A log of at most so many characters, without tracebacks and folders; a long one from its first error on."""
    kept: list[str] = []
    is_in_frames = False
    for line in text.split("\n"):
        if _PYTHON.match(line):
            is_in_frames = is_in_frames or "most recent call" in line
            continue
        if _FRAME.match(line):
            is_in_frames = True
            continue
        if is_in_frames and line[:1] in (" ", "\t"):
            continue  # the line of code of a frame
        is_in_frames = False
        kept.append(cleaned_message(_FATAL.sub("the process died: ", line)))
    cleaned = "\n".join(kept).strip("\n")
    if len(cleaned) <= most:
        return cleaned
    first = next((place for place, line in enumerate(kept) if _ERROR.search(line)), 0)
    return "\n".join(kept[max(0, first - BEFORE_ERROR) :]).strip("\n")[:most]
