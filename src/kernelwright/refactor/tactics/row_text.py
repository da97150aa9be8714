"""The text of rows in registers: loads that all stand before the first use, and the join of a block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelwright.refactor.tactics.dialect import Dialect, joined
from kernelwright.refactor.tactics.joins import Operation

if TYPE_CHECKING:
    from kernelwright.refactor.tactics.row_registers import RowLoop


@dataclass(frozen=True, slots=True)
class Step:
    """What one loop becomes."""

    loop: RowLoop
    body: str
    loads: Mapping[str, str]
    """By register array that it fills: the text of the load."""
    declarations: tuple[str, ...]
    """Of the body, that only place things: loads may need them."""


_WHOLE = """\
template <class T> __device__ __forceinline__ kw_lanes<T> kw_load_whole(const T *from, const size_t index = 0) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  kw_lanes<T> r;
  const packed *at = reinterpret_cast<const packed *>(from + index);
  _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
    reinterpret_cast<packed *>(r.v)[i] = @LOAD@;
  }
  return r;
}
template <class T, class S>
__device__ __forceinline__ void kw_store_whole(
    const bool is_aligned, T *to, const size_t index, const kw_lanes<S> &value) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  const kw_lanes<T> kept(value);
  if (is_aligned) {
    packed *at = reinterpret_cast<packed *>(to + index);
    _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
      @STORE@;
    }
  } else {
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) to[index + i] = kept.v[i];
  }
}
template <class T, class S>
__device__ __forceinline__ void kw_store_whole(const bool is_aligned, T *to, const kw_lanes<S> &value) {
  kw_store_whole(is_aligned, to, 0, value);
}
"""


def hinted_access(vec: str, load: str, store: str) -> str:
    """Loads and stores of whole, aligned vectors; `load` and `store` name parameters for cache hints, or none."""
    value = "reinterpret_cast<const packed *>(kept.v)[i]"
    load_text = f"{load} == 1 ? __ldcs(at + i) : {load} == 2 ? __ldcg(at + i) : at[i]" if load else "at[i]"
    store_text = f"at[i] = {value}"
    if store:
        store_text = (
            f"if ({store} == 1) __stcs(at + i, {value}); else if ({store} == 2) __stcg(at + i, {value}); "
            f"else {store_text}"
        )
    return _WHOLE.replace("@VEC@", vec).replace("@LOAD@", load_text).replace("@STORE@", store_text)


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
    step: Step,
    names: Mapping[str, str],
    *,
    extra: Sequence[tuple[str, str]],
    late: Collection[str],
    early: str,
) -> list[str]:
    """One loop as straight code: its loads, its body for each vector, what it joins over the lanes.

    Args:
        step: the loop.
        names: of the parameters.
        extra: later loops' loads that may stand with this one's, where `early` says so.
        late: of its own, those that an earlier loop may have loaded.
        early: the parameter; empty where there is none.
    """
    loop, vec, count = step.loop, names["vec"], names["steps"]
    name, c_type = loop.declared.name, loop.declared.c_type
    place = f"const {c_type} {name} = ((int)threadIdx.x + kw_k * {names['block']}) * {vec};"
    lines = ["{", f"  const {c_type} kw_to = {step.loop.bound_text};"]
    own = [(array, text) for array, text in step.loads.items() if array not in late]
    lines += _loads(step, own, place, count)
    if extra:
        lines += [f"  if ({early}) {{", *(f"  {line}" for line in _loads(step, extra, place, count)), "  }"]
    again = [(array, text) for array, text in step.loads.items() if array in late]
    if again:
        lines += [f"  if (!{early}) {{", *(f"  {line}" for line in _loads(step, again, place, count)), "  }"]
    for each in loop.joined:
        first = each.name if each.is_idempotent else f"({each.c_type}){each.identity}"
        lines.append(f"  kw_lanes<{each.c_type}> kw_{each.name} = {first};")
    lines += [
        "#pragma unroll",
        f"  for (int kw_k = 0; kw_k < {count}; ++kw_k) {{",
        f"    {place}",
        f"    if ({name} < kw_to) {{",
        f"      {step.body}",
        "    }",
        "  }",
    ]
    for each in loop.joined:
        across = f"kw_across_{each.operation}_{each.c_type.replace(' ', '_')}(kw_{each.name})"
        sign = {"sum": "+=", "product": "*="}.get(each.operation, "=")
        lines.append(f"  {each.name} {sign} {across};")
    return [*lines, "}"]


def _loads(step: Step, loads: Sequence[tuple[str, str]], place: str, count: str) -> list[str]:
    """All loads of some arrays, one after the other; element by element where the arrays are not aligned."""
    if not loads:
        return []
    name = step.loop.declared.name
    lines = []
    for condition, function in (("if (kw_aligned) {", "kw_load_whole("), ("} else {", "kw_load(")):
        lines += [
            f"  {condition}",
            "#pragma unroll",
            f"    for (int kw_k = 0; kw_k < {count}; ++kw_k) {{",
            f"      {place}",
            f"      if ({name} < kw_to) {{",
            *(f"        {each}" for each in step.declarations),
            *(f"        {array}[kw_k] = {text.replace('kw_load(', function, 1)};" for array, text in loads),
            "      }",
            "    }",
        ]
    return [*lines, "  }"]


def joining_function(words: Dialect, operation: Operation, c_type: str, block: str) -> str:
    """A function that joins the values of the `block` threads of a row; every thread gets the result.

    `part` is shared memory with a place for each warp, which nothing else uses: one barrier is enough.
    """
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
