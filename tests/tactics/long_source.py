"""Long CUDA sources of many kernels in different styles, for what must stay quick: reading, analysing, planning."""

from __future__ import annotations

import re
from pathlib import Path

from plain_kernels import CASES

from kernelwright.source.syntax import parse

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples" / "cuda"


def long_source(first: str, *, lines: int = 500) -> str:
    """`first`, then baselines of the examples and plain kernels under names of their own, `lines` lines or more."""
    parts, number = [first.rstrip()], 0
    others = [each.read_text() for each in sorted(EXAMPLES.glob("*/baseline.cu"))]
    others += [each.source for each in CASES if each.language == "cuda" and not each.opaque]
    while sum(part.count("\n") + 2 for part in parts) < lines:
        for source in others:
            number += 1
            parts.append(_renamed(source.strip(), number))
            if sum(part.count("\n") + 2 for part in parts) >= lines:
                break
    return "\n\n".join(parts) + "\n"


def _renamed(source: str, number: int) -> str:
    """A source whose functions, types and macros have a number behind, so that it can stand beside others."""
    tree = parse(source, "cuda")
    names = {each.name for each in tree.functions} | set(tree.types) | {each.name for each in tree.constants}
    names |= set(tree.expanded.macros) | set(re.findall(r"\b(?:struct|union|enum)\s+(\w+)", source))
    names |= {each.declarator.name for each in tree.arrays}
    if not names:
        return source
    return re.sub(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b", rf"\g<0>_{number}", source)
