"""The files that a kernel source includes from its problem's folders."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from kernelwright.problem.source_scan import mask_comments

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)')
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*include\b")


@lru_cache(maxsize=64)  # the same few sources are asked about for every candidate
def included_names(source: str) -> tuple[tuple[str, bool], ...]:
    """What a source's `#include` directives name, and whether in quotes; not those in comments."""
    code = mask_comments(source).splitlines()
    found = []
    for line, masked in zip(source.splitlines(), code, strict=False):
        match = _INCLUDE.match(line) if _DIRECTIVE.match(masked) else None
        if match is not None:
            found.append((match["quoted"] or match["angled"], match["quoted"] is not None))
    return tuple(found)


def included_files(file: Path, source: str, include_paths: Sequence[Path]) -> tuple[Path, ...]:
    """Every file that `source`, which stands in `file`, includes from its own folder or from `include_paths`, sorted.

    Directly or through others, whatever the conditions around the directive; what is found nowhere (the compiler's own
    headers) and what a macro names is left out.
    """
    waiting = [(file.parent, source)]
    found: set[Path] = set()
    while waiting:
        folder, text = waiting.pop()
        for name, is_quoted in included_names(text):
            for place in (*((folder,) if is_quoted else ()), *include_paths):
                path = Path(os.path.normpath(place / name))  # links stay: a problem may link its header folder
                if not path.is_file():
                    continue
                if path not in found:
                    found.add(path)
                    waiting.append((path.parent, path.read_text(encoding="utf-8", errors="replace")))
                break
    return tuple(sorted(found))
