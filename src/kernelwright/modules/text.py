"""The kernels of a program in OpenCL or CUDA: one text, with the few words in which the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from kernelwright.modules.expression import C_TYPES, ElementFormula, is_float, literal
from kernelwright.modules.graph import Tensor
from kernelwright.modules.index import flattened
from kernelwright.modules.stages import Combiner, Kernel, Stage, loads_of
from kernelwright.source.language import Language

LONG_SUM = 1 << 11
"""Elements from which on one thread's sum in single precision may lose digits that PyTorch keeps: the error is up to
their number times 2^-24, which a large element at the start comes near, and KernelBench allows 1e-4."""

_JOINS = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "max": "fmax({0}, {1})", "min": "fmin({0}, {1})",
    "fmax": "fmax({0}, {1})",
}  # fmt: skip
_FIRST: Mapping[str, float] = {
    "sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf"), "fmax": float("-inf"),
    "argmax": float("-inf"), "argmin": float("inf"),
}  # fmt: skip
_WHOLE_JOINS = {"max": "({0} > {1} ? {0} : {1})", "min": "({0} < {1} ? {0} : {1})"}
_MOST = {"int32": "2147483647", "int64": "9223372036854775807", "bool": "1"}

_IN_MEMORY: Mapping[tuple[Language, str], tuple[str, str, str]] = {
    ("opencl", "float16"): ("half", "vload_half({place}, {buffer})", "vstore_half({value}, {place}, {buffer});"),
    ("cuda", "float16"): ("__half", "__half2float({buffer}[{place}])", "{buffer}[{place}] = __float2half({value});"),
    ("opencl", "bfloat16"): (
        "ushort", "as_float((uint){buffer}[{place}] << 16)", "{buffer}[{place}] = bfloat16_of({value});",
    ),
    ("cuda", "bfloat16"): (
        "__nv_bfloat16", "__bfloat162float({buffer}[{place}])", "{buffer}[{place}] = __float2bfloat16({value});",
    ),
}  # fmt: skip
"""Type, load and store of what memory does not hold as it is computed with."""
WORDS: Mapping[tuple[Language, str], str] = {
    ("cuda", "bool"): "typedef unsigned char uchar;\n\n",
    ("cuda", "float16"): "#include <cuda_fp16.h>\n\n",
    ("cuda", "bfloat16"): "#include <cuda_bf16.h>\n\n",
    ("opencl", "bfloat16"): (
        "inline ushort bfloat16_of(const float value) {\n"
        "  const uint bits = as_uint(value);\n"
        "  return value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;\n"
        "}\n\n"
    ),
}
"""What a program defines before its kernels where a buffer has such elements."""

_BLOCK, _WIDE_BLOCK = 64, 256
"""Work-items of a block: what the plain kernels of the examples take; and of large launches on a GPU."""
_WIDE_FROM = 1 << 17
"""Work-items from which on a GPU is filled by wide blocks. It starts about one block a clock, which limits maps: on an
H100 0.84 (a GELU of 2^26 elements, in blocks of 64, takes 0.631 ms at 1980 MHz)."""


def block_of(kernel: Kernel, language: Language) -> int:
    """Work-items of a block of the plain kernel."""
    return _WIDE_BLOCK if language == "cuda" and kernel.count >= _WIDE_FROM else _BLOCK


def kernel_text(
    kernel: Kernel, name: str, language: Language, *, tensors: Mapping[str, Tensor], kept: set[str]
) -> tuple[str, tuple[str, ...]]:
    """One kernel's definition, and its arguments' names in order.

    Args:
        kernel: what it does.
        name: its name.
        language: `opencl` or `cuda`.
        tensors: every buffer.
        kept: buffers that are read after this kernel; other results stay in the work-item.
    """
    read = {each.buffer for each in loads_of([stage.element for stage in kernel.stages])} - kernel.written()
    writes = tuple(stage.buffer for stage in kernel.stages if stage.buffer in kept)
    arguments = (*sorted(str(each) for each in read), *writes)
    prefix = "__global " if language == "opencl" else ""
    parameters = [
        f"{prefix}{'' if each in writes else 'const '}{_memory(language, tensors[each].dtype)[0]} *{each}"
        for each in arguments
    ]
    opening = "__kernel void" if language == "opencl" else 'extern "C" __global__ void'
    thread = "get_global_id(0)" if language == "opencl" else "blockIdx.x * blockDim.x + threadIdx.x"
    lines = [
        f"// {', '.join(kernel.nodes)}: one work-item for each of {kernel.count}.",
        f"{opening} {name}({', '.join(parameters)}) {{",
        *(f"  {line}" for line in _body(kernel, thread, kept, language)),
        "}",
    ]
    return "\n".join(lines), arguments


def _memory(language: Language, dtype: str) -> tuple[str, str, str]:
    plain = (C_TYPES[dtype], "{buffer}[{place}]", "{buffer}[{place}] = {value};")
    return _IN_MEMORY.get((language, dtype), plain)


def _body(kernel: Kernel, thread: str, kept: set[str], language: Language) -> Iterator[str]:
    outer = [
        (index, each.extent)
        for index, each in zip(kernel.variables, kernel.layout, strict=True)
        if not each.is_inner and each.extent > 1
    ]
    item = outer[0][0].text() if len(outer) == 1 else "item"
    yield f"const int {item} = {thread};"
    yield f"if ({item} >= {kernel.count}) {{"
    yield "  return;"
    yield "}"
    if len(outer) > 1:
        stride = kernel.count
        for place, (index, extent) in enumerate(outer):
            stride //= extent
            quotient = f"item / {stride}" if stride > 1 else "item"
            yield f"const int {index.text()} = {quotient if place == 0 else f'({quotient}) % {extent}'};"
    for together in _loops_of(kernel):
        own = {each.buffer: f"own_{each.buffer}" for each in kernel.stages if each.kind != "store"}
        first, stage = together[0]
        lines, texts = _statements([stage.element for _, stage in together], own, f"v{first}_", language)
        told = [_stage(each, text, kernel, kept, language) for (_, each), text in zip(together, texts, strict=True)]
        yield from (line for before, _, _ in told for line in before)
        inside = [*lines, *(line for _, each, _ in told for line in each)]
        yield from _loops(kernel, inside) if stage.is_inside else inside
        yield from (line for _, _, after in told for line in after)


def _loops_of(kernel: Kernel) -> Iterator[list[tuple[int, Stage]]]:
    """The stages by the loop that they share, with their numbers: reductions that need no result of each other."""
    together: list[tuple[int, Stage]] = []
    for number, stage in enumerate(kernel.stages):
        own = {each.buffer for _, each in together}
        is_apart = stage.kind != "reduce" or any(each.kind != "reduce" for _, each in together)
        if together and (is_apart or own & {load.buffer for load in loads_of([stage.element])}):
            yield together
            together = []
        together.append((number, stage))
    yield together


Lines = list[str]


def _is_long_sum(stage: Stage, kernel: Kernel) -> bool:
    is_sum = stage.kind == "reduce" and stage.combiner == "sum" and stage.dtype == "float32"
    return is_sum and _extent(kernel) >= LONG_SUM


def _stage(stage: Stage, text: str, kernel: Kernel, kept: set[str], language: Language) -> tuple[Lines, Lines, Lines]:
    """What comes before the stage's loop, in it, and after it, where its element is `text`."""
    store = _memory(language, stage.dtype)[2]

    def stored(value: str) -> str:
        return store.format(buffer=stage.buffer, place=stage.index.text(), value=value)

    if stage.kind == "store":
        return [], [stored(_bare(text))], []
    total = f"own_{stage.buffer}"
    after = [stored(total)] if stage.kind in ("reduce", "number") and stage.buffer in kept else []
    if stage.kind == "number":
        return [], [f"const {C_TYPES[stage.dtype]} {total} = {_bare(text)};"], after
    if stage.combiner in ("argmax", "argmin"):
        before, inside = _place_of_extreme(stage, kernel, _bare(text))
    elif stage.combiner in ("max", "min") and is_float(stage.dtype):
        before, inside = _extreme(stage, _bare(text))
        after.insert(0, f"const {C_TYPES[stage.dtype]} {total} = nans_{stage.buffer} ? NAN : most_{stage.buffer};")
    elif _is_long_sum(stage, kernel):
        before, inside = [f"double sum_{stage.buffer} = 0.0;"], [f"sum_{stage.buffer} += {_bare(text)};"]
        after.insert(0, f"const float {total} = (float)sum_{stage.buffer};")
    else:
        before = [f"{C_TYPES[stage.dtype]} {total} = {_first(stage.combiner, stage.dtype)};"]
        joins = _JOINS if is_float(stage.dtype) else {**_JOINS, **_WHOLE_JOINS}
        joined = f"{total} = {_bare(joins[stage.combiner].format(total, text))};"
        inside = [f"{total} += {_bare(text)};" if stage.combiner == "sum" else joined]
        inside += [stored(total)] if stage.kind == "scan" else []
    return before, inside, after


def _first(combiner: Combiner, dtype: str) -> str:
    """What is joined with the first element."""
    first = _FIRST[combiner]
    if is_float(dtype) or math.isfinite(first):
        return literal(first, dtype)
    least = "0" if dtype == "bool" else f"-{_MOST[dtype]} - 1"
    return _MOST[dtype] if first > 0 else least


def _extreme(stage: Stage, shown: str) -> tuple[Lines, Lines]:
    """PyTorch's: fmax and fmin pass over NaN, so a mark beside them says that there was one."""
    c_type, number, seen = C_TYPES[stage.dtype], f"each_{stage.buffer}", f"nans_{stage.buffer}"
    total = f"most_{stage.buffer}"
    before = [f"{c_type} {total} = {_first(stage.combiner, stage.dtype)};", f"int {seen} = 0;"]
    return before, [
        f"const {c_type} {number} = {shown};",
        f"{total} = {_JOINS[stage.combiner].format(total, number)};",
        f"{seen} = max({seen}, {number} != {number} ? 1 : 0);",
    ]


def _place_of_extreme(stage: Stage, kernel: Kernel, shown: str) -> tuple[Lines, Lines]:
    """The first place of the largest or smallest, or of the first NaN."""
    c_type, number, best = C_TYPES[stage.element.dtype], f"each_{stage.buffer}", f"most_{stage.buffer}"
    inner = [(index, each.extent) for index, each in zip(kernel.variables, kernel.layout, strict=True) if each.is_inner]
    place = flattened([index for index, _ in inner], [extent for _, extent in inner])
    sign = ">" if stage.combiner == "argmax" else "<"
    before = [
        f"{c_type} {best} = {_first(stage.combiner, stage.element.dtype)};",
        f"{C_TYPES[stage.dtype]} own_{stage.buffer} = 0;",
    ]
    return before, [
        f"const {c_type} {number} = {shown};",
        f"if ({number} {sign} {best} || ({number} != {number} && {best} == {best})) {{",
        f"  {best} = {number};",
        f"  own_{stage.buffer} = {place.text()};",
        "}",
    ]


def _extent(kernel: Kernel) -> int:
    """Of what is reduced."""
    return math.prod(each.extent for each in kernel.layout if each.is_inner)


def _loops(kernel: Kernel, body: Sequence[str]) -> Iterator[str]:
    inner = [
        (index.text(), each.extent)
        for index, each in zip(kernel.variables, kernel.layout, strict=True)
        if each.is_inner and each.extent > 1
    ]
    for depth, (name, extent) in enumerate(inner):
        yield f"{'  ' * depth}for (int {name} = 0; {name} < {extent}; ++{name}) {{"
    yield from (f"{'  ' * len(inner)}{line}" for line in body)
    for depth in reversed(range(len(inner))):
        yield f"{'  ' * depth}}}"


def _statements(
    elements: Sequence[ElementFormula], own: Mapping[str, str], prefix: str, language: Language
) -> tuple[Lines, Lines]:
    """Statements that come before, for what is used twice, and the elements' texts.

    What stands under a condition stays there: elsewhere its loads may be outside of their buffers.
    """
    uses: dict[int, int] = {}

    def count(each: ElementFormula, times: int = 1) -> None:
        is_new = id(each) not in uses
        uses[id(each)] = uses.get(id(each), 0) + times
        for place, part in enumerate(each.parts if is_new else ()):
            count(part, max(1, each.form.count(f"{{{place}}}")))

    lines: list[str] = []
    known: dict[int, str] = {}

    def text(each: ElementFormula, is_guarded: bool = False) -> str:
        if id(each) in known:
            return known[id(each)]
        if each.buffer is not None:
            place = text(each.parts[0], is_guarded) if each.index is None else each.index.text()
            read = _memory(language, each.dtype)[1]
            shown = own.get(each.buffer) or read.format(buffer=each.buffer, place=_bare(place))
        elif each.conditions:
            value, other = each.parts
            shown = f"({' && '.join(each.conditions)} ? {text(value, True)} : {text(other, True)})"
        else:
            shown = each.form.format(*(text(part, is_guarded) for part in each.parts))
        if uses[id(each)] > 1 and not is_guarded and each.buffer not in own and (each.parts or each.buffer is not None):
            lines.append(f"const {C_TYPES[each.dtype]} {prefix}{len(lines)} = {_bare(shown)};")
            shown = f"{prefix}{len(lines) - 1}"
        known[id(each)] = shown
        return shown

    for element in elements:
        count(element)
    return lines, [text(element) for element in elements]


def _bare(text: str) -> str:
    """Without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
