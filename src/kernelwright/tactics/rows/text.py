"""The text of rows in registers: loads that all stand before the first use, and the join of a block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelwright.tactics.common.dialect import Dialect, joined
from kernelwright.tactics.common.loop_reductions import Operation, vector_ends, vector_starts

if TYPE_CHECKING:
    from kernelwright.tactics.rows.facts import RowLoop


@dataclass(frozen=True, slots=True)
class LoopText:
    """What one loop becomes."""

    loop: RowLoop
    body: str
    loads: Mapping[str, str]
    """By register array that it fills: the text of the load."""
    declarations: tuple[str, ...]
    """Declarations of the body that only place things: loads may need them."""


_LOADS = ("ld.global", "ld.global.cs", "ld.global.L1::no_allocate", "ld.global.L1::no_allocate.L2::256B")
_STORES = ("st.global", "st.global.cs", "st.global.L1::no_allocate")
LOAD_HINTS = tuple(range(len(_LOADS)))
LOAD_WHY = (
    "0: plain loads; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second"
)
STORE_HINTS = tuple(range(len(_STORES)))
STORE_WHY = "0: plain stores; 1: streaming; 2: not kept in the first-level cache"

_WHOLE = """\
// Whole vectors: arrays start at multiples of 16 bytes, or of a vector where that is less.
template <class T> __device__ __forceinline__ kw_lanes<T> kw_load_whole(const T *from, const size_t index = 0) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  kw_lanes<T> r;
  const packed *at = reinterpret_cast<const packed *>(from + index);
  _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
    kw_fetch(reinterpret_cast<packed *>(r.v)[i], at + i);
  }
  return r;
}
template <class T, class S>
__device__ __forceinline__ void kw_store_whole(T *to, const size_t index, const kw_lanes<S> &value) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  const kw_lanes<T> kept(value);
  packed *at = reinterpret_cast<packed *>(to + index);
  _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
    kw_put(at + i, reinterpret_cast<const packed *>(kept.v)[i]);
  }
}
template <class T, class S> __device__ __forceinline__ void kw_store_whole(T *to, const kw_lanes<S> &value) {
  kw_store_whole(to, 0, value);
}
"""
_PLAIN = """\
template <class P> __device__ __forceinline__ void kw_fetch(P &to, const P *from) { to = *from; }
template <class P> __device__ __forceinline__ void kw_put(P *to, const P &from) { *to = from; }
"""
_PACKED = (
    ("unsigned char", ".u8", "{0}", ("r",)),
    ("unsigned short", ".u16", "{0}", ("h",)),
    ("unsigned int", ".u32", "{0}", ("r",)),
    ("uint2", ".v2.u32", "{{{0}, {1}}}", ("r",) * 2),
    ("uint4", ".v4.u32", "{{{0}, {1}, {2}, {3}}}", ("r",) * 4),
)
"""By type: how the instruction calls it, its registers, their kinds."""


def hinted_access(vec: str, load: str, store: str) -> str:
    """Loads and stores of whole, aligned vectors; `load` and `store` name parameters for cache hints, or none.

    The device's own instructions are written out, so that a compiler leaves loads where they are: before all that
    waits for them. They are plain accesses wherever there is no such instruction.
    """
    text = _PLAIN
    if load and store:
        lines = ["#if defined(__CUDA_ARCH__)"]
        for macro, word, choices in (("KW_LD", load, _LOADS), ("KW_ST", store, _STORES)):
            for value, instruction in enumerate(choices):
                lines += [f"#{'el' if value else ''}if {word} == {value}", f'#define {macro} "{instruction}"']
            lines.append("#endif")
        for c_type, kind, registers, kinds in _PACKED:
            lines += _instructions(c_type, kind, registers, kinds)
        text = "\n".join((*lines, "#else", _PLAIN.rstrip("\n"), "#endif", ""))
    return text + _WHOLE.replace("@VEC@", vec)


def _instructions(c_type: str, kind: str, registers: str, kinds: tuple[str, ...]) -> list[str]:
    """`kw_fetch` and `kw_put` of one type."""
    count = len(kinds)
    members = [f"to.{axis}" for axis in "xyzw"[:count]] if count > 1 else ["to"]
    own = "wide" if kind == ".u8" else ""  # there are no registers of eight bits
    outs = ", ".join(f'"={each}"({own or member})' for each, member in zip(kinds, members, strict=True))
    ins = ", ".join(f'"{each}"({(own or member).replace("to", "from", 1)})'
                    for each, member in zip(kinds, members, strict=True))  # fmt: skip
    loaded = registers.format(*(f"%{place}" for place in range(count)))
    stored = registers.format(*(f"%{place + 1}" for place in range(count)))
    head = "__device__ __forceinline__ void"
    before = "unsigned wide; " if own else ""
    after = " to = (unsigned char)wide;" if own else ""
    kept = "const unsigned wide = from; " if own else ""
    return [
        f"{head} kw_fetch({c_type} &to, const {c_type} *from) {{",
        f'  {before}asm volatile(KW_LD "{kind} {loaded}, [%{count}];" : {outs} : "l"(from) : "memory");{after}',
        "}",
        f"{head} kw_put({c_type} *to, const {c_type} &from) {{",
        f'  {kept}asm volatile(KW_ST "{kind} [%0], {stored};" :: "l"(to), {ins} : "memory");',
        "}",
    ]


def whole_types(vec: str, sizes: Mapping[str, int]) -> str:
    """OpenCL: vectors that start at multiples of 16 bytes, or of their own size where that is less, by their type."""
    lines = []
    for c_type, count in sorted(sizes.items()):
        lines += [
            f"#if {vec} * {count} < 16",
            f"typedef kw_{c_type} __attribute__((aligned({vec} * {count}))) kw_whole_{c_type};",
            "#else",
            f"typedef kw_{c_type} __attribute__((aligned(16))) kw_whole_{c_type};",
            "#endif",
        ]
    return "\n".join((*lines, ""))


def division(reciprocal: str, vec: str) -> str:
    """Division by a number that all lanes share; where `reciprocal` is 1, by a multiplication."""
    return (
        "template <class A> __device__ __forceinline__\n"
        "kw_lanes<float> kw_over(const kw_lanes<A> &a, const float by) {\n"
        f"  const float inverse = {reciprocal} ? 1.0f / by : by;\n  kw_lanes<float> r;\n"
        f'  _Pragma("unroll") for (int i = 0; i < {vec}; ++i) '
        f"r.v[i] = {reciprocal} ? (float)a.v[i] * inverse : (float)a.v[i] / by;\n  return r;\n}}\n"
    )


def step_lines(
    step: LoopText,
    names: Mapping[str, str],
    words: Dialect,
    *,
    extra: Sequence[tuple[str, str]],
    late: Collection[str],
    early: str,
) -> list[str]:
    """One loop as straight code: its loads, its body for each vector, what it joins over the lanes.

    Args:
        step: the loop.
        names: of the parameters.
        words: the dialect's.
        extra: later loops' loads that may stand with this one's, where `early` says so.
        late: of its own, those that an earlier loop may have loaded.
        early: the parameter; empty where there is none.
    """
    loop, vec, count = step.loop, names["vec"], names["steps"]
    name, c_type = loop.declared.name, loop.declared.c_type
    place = f"const {c_type} {name} = ({words.thread('x')} + kw_k * {names['block']}) * {vec};"
    lines = ["{", f"  const {c_type} kw_to = {step.loop.bound_text};"]
    own = [(array, text) for array, text in step.loads.items() if array not in late]
    lines += _loads(step, own, place, count)
    if extra:
        lines += [f"  if ({early}) {{", *(f"  {line}" for line in _loads(step, extra, place, count)), "  }"]
    again = [(array, text) for array, text in step.loads.items() if array in late]
    if again:
        lines += [f"  if (!{early}) {{", *(f"  {line}" for line in _loads(step, again, place, count)), "  }"]
    lines += (f"  {each}" for each in vector_starts(words, loop.joined))
    lines += [
        "#pragma unroll",
        f"  for (int kw_k = 0; kw_k < {count}; ++kw_k) {{",
        f"    {place}",
        f"    if ({name} < kw_to) {{",
        f"      {whole(step.body)}",
        "    }",
        "  }",
    ]
    return [*lines, *(f"  {each}" for each in vector_ends(loop.joined)), "}"]


def _loads(step: LoopText, loads: Sequence[tuple[str, str]], place: str, count: str) -> list[str]:
    """All loads of some arrays, one after the other."""
    if not loads:
        return []
    name = step.loop.declared.name
    return [
        "#pragma unroll",
        f"  for (int kw_k = 0; kw_k < {count}; ++kw_k) {{",
        f"    {place}",
        f"    if ({name} < kw_to) {{",
        *(f"      {each}" for each in step.declarations),
        *(f"      {array}[kw_k] = {whole(text)};" for array, text in loads),
        "    }",
        "  }",
    ]


def whole(text: str) -> str:
    """Code of lanes whose loads and stores are of whole vectors."""
    text = text.replace("kw_load(", "kw_load_whole(").replace("kw_store(", "kw_store_whole(")
    return text.replace(" kw_any_", " kw_whole_")


def joining_function(words: Dialect, operation: Operation, c_type: str, block: str) -> str:
    """A function that joins the values of the `block` threads of a row; every thread gets the result.

    `part` is shared memory with a place for each warp, which nothing else uses: one barrier is enough. In OpenCL C it
    has a place for each thread, and they join by halves.
    """
    if words.is_opencl:
        both = joined(words.language, operation, "part[me]", "part[me + half_of]", c_type=c_type)
        return (
            f"static inline {c_type} kw_row_{operation}_{c_type}(const {c_type} value, __local {c_type} *part) {{\n"
            f"  if ({block} == 1) return value;\n"
            f"  const int me = {words.thread('x')};\n  part[me] = value;\n  {words.barrier}\n"
            f"  for (int count = {block}; count > 1;) {{\n    const int half_of = (count + 1) / 2;\n"
            f"    if (me + half_of < count) part[me] = {both};\n    {words.barrier}\n    count = half_of;\n"
            "  }\n  return part[0];\n}\n"
        )
    shuffle = (
        "__shfl_xor_sync(0xffffffffu, value, reach)" if words.language == "cuda" else "__shfl_xor(value, reach, 32)"
    )
    both = joined(words.language, operation, "value", "other", c_type=c_type)
    next_one = joined(words.language, operation, "value", "part[i]", c_type=c_type)
    exchange = f"{{\n    const {c_type} other = {shuffle};\n    value = {both};\n  }}\n"
    return (
        f"static __device__ __forceinline__ {c_type} kw_row_{operation}_{c_type}({c_type} value, {c_type} *part) {{\n"
        f'  _Pragma("unroll") for (int reach = 16; reach > 0; reach /= 2) {exchange}'
        f"  if ({block} > 32) {{\n"
        f"    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;\n    {words.barrier}\n"
        f"    value = part[0];\n"
        f'    _Pragma("unroll") for (int i = 1; i < {block} / 32; ++i) value = {next_one};\n'
        "  }\n  return value;\n}\n"
    )
