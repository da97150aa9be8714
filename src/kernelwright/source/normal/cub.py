"""Reductions of a block by CUB as a function of the file, so that joins are seen; the first thread has the result."""

from __future__ import annotations

import re

from kernelwright.source import nodes
from kernelwright.source.edits import Edit, insertion
from kernelwright.source.lexer import masked, matching
from kernelwright.source.normal.draft import KernelText, in_one_line
from kernelwright.source.span import Span

_REDUCE = re.compile(
    r"\b(?:using\s+(?P<name>\w+)\s*=\s*cub\s*::\s*BlockReduce\s*<\s*(?P<type>float|double|int)\s*,\s*(?P<size>\w+)\s*>"
    r"|typedef\s+cub\s*::\s*BlockReduce\s*<\s*(?P<type_>float|double|int)\s*,\s*(?P<size_>\w+)\s*>\s*(?P<name_>\w+))\s*;"
)
_OPERATORS = {"Sum": "v += part[k];", "Max": "v = v > part[k] ? v : part[k];", "Min": "v = v < part[k] ? v : part[k];"}
_LAST = re.compile(r",\s*(?:cub\s*::\s*)?(Sum|Max|Min)\s*(?:\{\s*\}|\(\s*\))\s*(?:,\s*blockDim\s*\.\s*x\s*)?\)")

_ENDS = re.compile(r"[;{}]|^[ \t]*#(?:[^\n\\]|\\\r?\n|\\)*$", re.MULTILINE)
"""What a declaration cannot reach over: another one, and a directive."""


def reduce_plainly(draft: KernelText) -> list[Edit]:
    """All of a block's reductions by one class of CUB; nothing where one is used in another way."""
    if draft.language != "cuda" or "cub" not in draft.words:
        return []
    span = draft.kernel.place.span
    text = draft.at(span)
    code = masked(text)
    found = _REDUCE.search(code)
    if found is None or not draft.kernel.place.is_exact or not text.isascii():
        return []
    name, c_type, size = (found[each] or found[f"{each}_"] for each in ("name", "type", "size"))
    storage = re.search(rf"__shared__\s+(?:typename\s+)?{name}\s*::\s*TempStorage\s+(\w+)\s*;", code)
    if storage is None or _is_own(draft, size, code):
        return []
    edits = [_blank(span, text, found), _blank(span, text, storage)]
    used: dict[str, str] = {}
    call = re.compile(rf"\b{name}\s*\(\s*{storage[1]}\s*\)\s*\.\s*(Sum|Reduce)\s*(?=\()")
    for each in call.finditer(code):
        end = matching(code, each.end())
        inside = None if end is None else _argument(code, text, each[1], each.end(), end)
        if end is None or inside is None or _has_array(draft, inside[1]):
            return []
        operator, argument = inside
        own = used.setdefault(operator, draft.fresh(f"block_{operator.lower()}_{c_type}"))
        edits.append(Edit(Span(span.start + each.start(), span.start + end), f"{own}({in_one_line(argument)})"))
    rest = _REDUCE.sub("", code)
    if not used or len(re.findall(rf"\b{name}\b", rest)) != len(edits) - 1:
        return []
    functions = [
        f"static __device__ {c_type} {own}({c_type} v) {{ __shared__ {c_type} part[{size}]; part[threadIdx.x] = v; "
        f"__syncthreads(); if (threadIdx.x == 0) for (int k = 1; k < blockDim.x; ++k) {_OPERATORS[operator]} "
        "__syncthreads(); return v; } "
        for operator, own in used.items()
    ]
    return [insertion(_start(draft), "".join(functions)), *edits]


def _is_own(draft: KernelText, size: str, code: str) -> bool:
    """Whether a number of threads means nothing outside of the kernel."""
    own = {*nodes.declared_names(draft.kernel.body), *(each.name for each in draft.kernel.template_parameters)}
    return size in own or re.search(rf"\b(?:define|enum)\b[^;]*?\b{size}\b", code) is not None


def _has_array(draft: KernelText, argument: str) -> bool:
    """Whether an array is given, which is all of a thread's items."""
    arrays = [each for each in nodes.walk(draft.kernel.body) if isinstance(each, nodes.Declarator) and each.extents]
    return any(
        re.search(rf"\b{each.name}\b(?!\s*(?:\[[^\]]*\]\s*){{{len(each.extents)}}})", argument) for each in arrays
    )


def _start(draft: KernelText) -> int:
    """Where the kernel's declaration begins, with `extern "C"` and what else stands before its own text."""
    before = masked(draft.data[: draft.kernel.place.span.start].decode("latin-1"))
    (*_, at) = (0, *(each.end() for each in _ENDS.finditer(before)))
    return len(before) - len(before[at:].lstrip(" \t\r\n"))


def _blank(span: Span, text: str, found: re.Match[str]) -> Edit:
    lines = "\n" * text.count("\n", found.start(), found.end())
    return Edit(Span(span.start + found.start(), span.start + found.end()), lines)


def _argument(code: str, text: str, method: str, start: int, end: int) -> tuple[str, str] | None:
    """The operator, and what each thread gives; None where it is called in another way."""
    if method == "Sum":
        return ("Sum", text[start + 1 : end - 1]) if "," not in code[start:end] else None
    last = _LAST.search(code, start, end)
    if last is None or last.end() != end or code.count(",", start, last.start()):
        return None
    return last[1], text[start + 1 : last.start()]
