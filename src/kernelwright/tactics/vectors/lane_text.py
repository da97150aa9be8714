"""Text that vector code of `tactics.vectors.lanes` stands on: vector types, loads, stores, functions lane by lane."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelwright.source import nodes
from kernelwright.tactics.common.dialect import Dialect

_OPENCL = """\
// Vectors of @VEC@ lanes; kw_any_... may start at any element.
#define KW_JOIN_(a, b) a##b
#define KW_JOIN(a, b) KW_JOIN_(a, b)
#if @VEC@ == 1
#define KW_N(name) name
#else
#define KW_N(name) KW_JOIN(name, @VEC@)
#endif
"""
_OPENCL_TYPE = """\
typedef KW_N(@T@) kw_@T@;
typedef kw_@T@ __attribute__((aligned(@BYTES@))) kw_any_@T@;
"""
VECTOR_BYTES = {"float": 4, "int": 4, "uint": 4, "double": 8, "char": 1, "uchar": 1, "short": 2, "ushort": 2}
"""OpenCL's scalars that vectors are made of; those below `int` are only loaded."""
_ALIASES = {"unsigned": "uint", "unsigned int": "uint", "signed char": "char", "unsigned char": "uchar",
            "unsigned short": "ushort"}  # fmt: skip

_CUDA = """\
// @VEC@ values, one a lane, with arithmetic lane by lane.
template <int BYTES> struct kw_packed;
template <> struct kw_packed<1> { typedef unsigned char type; };
template <> struct kw_packed<2> { typedef unsigned short type; };
template <> struct kw_packed<4> { typedef unsigned int type; };
template <> struct kw_packed<8> { typedef uint2 type; };
template <> struct kw_packed<16> { typedef uint4 type; };
template <class T> struct alignas(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16) kw_lanes {
  T v[@VEC@];
  __device__ __forceinline__ kw_lanes() {}
  template <class S> __device__ __forceinline__ kw_lanes(const S &same) {
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) v[i] = (T)same;
  }
  template <class S> __device__ __forceinline__ kw_lanes(const kw_lanes<S> &other) {
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) v[i] = (T)other.v[i];
  }
};
template <class T> __device__ __forceinline__ kw_lanes<T> kw_wide(const kw_lanes<T> &a) { return a; }
template <class T> __device__ __forceinline__ kw_lanes<T> kw_wide(const T &a) { return kw_lanes<T>(a); }
#define KW_BINARY(op) \\
  template <class A, class B> __device__ __forceinline__ auto operator op(const kw_lanes<A> &a, const kw_lanes<B> &b) \\
      -> kw_lanes<decltype(a.v[0] op b.v[0])> { \\
    kw_lanes<decltype(a.v[0] op b.v[0])> r; \\
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) r.v[i] = a.v[i] op b.v[i]; \\
    return r; \\
  } \\
  template <class A, class B> __device__ __forceinline__ auto operator op(const kw_lanes<A> &a, const B &b) \\
      -> kw_lanes<decltype(a.v[0] op b)> { \\
    kw_lanes<decltype(a.v[0] op b)> r; \\
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) r.v[i] = a.v[i] op b; \\
    return r; \\
  } \\
  template <class A, class B> __device__ __forceinline__ auto operator op(const A &a, const kw_lanes<B> &b) \\
      -> kw_lanes<decltype(a op b.v[0])> { \\
    kw_lanes<decltype(a op b.v[0])> r; \\
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) r.v[i] = a op b.v[i]; \\
    return r; \\
  }
#define KW_COMPOUND(op) \\
  template <class A, class B> __device__ __forceinline__ kw_lanes<A> &operator op(kw_lanes<A> &a, const B &b) { \\
    const auto wide = kw_wide(b); \\
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) a.v[i] op wide.v[i]; \\
    return a; \\
  }
#define KW_UNARY(op) \\
  template <class A> __device__ __forceinline__ auto operator op(const kw_lanes<A> &a) \\
      -> kw_lanes<decltype(op a.v[0])> { \\
    kw_lanes<decltype(op a.v[0])> r; \\
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) r.v[i] = op a.v[i]; \\
    return r; \\
  }
@OPERATORS@
template <class A, class B> __device__ __forceinline__ auto kw_select(
    const kw_lanes<bool> &c, const kw_lanes<A> &a, const kw_lanes<B> &b) -> kw_lanes<decltype(true ? A() : B())> {
  kw_lanes<decltype(true ? A() : B())> r;
  _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) r.v[i] = c.v[i] ? a.v[i] : b.v[i];
  return r;
}
template <class T> __device__ __forceinline__ kw_lanes<T> kw_load(const T *from, const size_t index) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  kw_lanes<T> r;
  if ((size_t)from % sizeof(packed) == 0 && index * sizeof(T) % sizeof(packed) == 0) {
    const packed *at = reinterpret_cast<const packed *>(from + index);
    _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
      reinterpret_cast<packed *>(r.v)[i] = @LOAD@;
    }
  } else {
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) r.v[i] = from[index + i];
  }
  return r;
}
template <class T, class S>
__device__ __forceinline__ void kw_store(T *to, const size_t index, const kw_lanes<S> &value) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  const kw_lanes<T> kept(value);
  if ((size_t)to % sizeof(packed) == 0 && index * sizeof(T) % sizeof(packed) == 0) {
    packed *at = reinterpret_cast<packed *>(to + index);
    _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
      @STORE@;
    }
  } else {
    _Pragma("unroll") for (int i = 0; i < @VEC@; ++i) to[index + i] = kept.v[i];
  }
}
"""


LOAD_HINTS = (0, 1, 2)
"""Plain; streaming (`__ldcs`); past the first-level cache (`__ldcg`)."""
STORE_HINTS = (0, 1)
"""Plain; streaming (`__stcs`)."""


def vector_types(c_types: Iterable[str]) -> tuple[str, ...]:
    """OpenCL's own words for those scalar types that there are vectors of."""
    return tuple(sorted({_ALIASES.get(each, each) for each in c_types} & VECTOR_BYTES.keys()))


def opencl_prelude(vec: str, c_types: Iterable[str]) -> str:
    """Vector types and names for `vec` lanes."""
    known = vector_types(c_types)
    parts = [_OPENCL.replace("@VEC@", vec)]
    parts += [_OPENCL_TYPE.replace("@T@", each).replace("@BYTES@", str(VECTOR_BYTES[each])) for each in known]
    return "".join(parts)


_BINARY = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&&", "||")
_COMPOUND = ("+=", "-=", "*=", "/=", "&=", "|=", "^=")
_UNARY = ("-", "!", "~")
_ALWAYS = frozenset(("+", "*", "+=", "*="))
"""Operators that tactics write themselves."""


def operators_in(node: nodes.Node) -> frozenset[str]:
    """The operators of a function's own code; of `a += b` also `+`."""
    found: set[str] = set()
    for each in nodes.walk(node):
        if isinstance(each, nodes.Binary | nodes.Unary | nodes.Assign):
            found |= {each.operator, each.operator.removesuffix("=")}
    return frozenset(found)


def _operators(used: frozenset[str] | None) -> str:
    known = (("BINARY", _BINARY), ("COMPOUND", _COMPOUND), ("UNARY", _UNARY))
    return " ".join(
        f"KW_{kind}({each})" for kind, signs in known for each in signs if used is None or each in used | _ALWAYS
    )


def cuda_prelude(
    vec: str,
    mapped: Iterable[tuple[str, int]],
    *,
    load: str = "",
    store: str = "",
    operators: frozenset[str] | None = None,
) -> str:
    """Lanes with their arithmetic, and functions that are called lane by lane, with their argument counts.

    `load` and `store` name parameters that choose cache hints (`LOAD_HINTS`); empty: none. `operators` are those that
    lanes are given, see `operators_in`; None: all.
    """
    value = "reinterpret_cast<const packed *>(kept.v)[i]"
    load_text = f"{load} == 1 ? __ldcs(at + i) : {load} == 2 ? __ldcg(at + i) : at[i]" if load else "at[i]"
    store_text = f"if ({store} == 1) __stcs(at + i, {value}); else at[i] = {value}" if store else f"at[i] = {value}"
    text = _CUDA.replace("@VEC@", vec).replace("@LOAD@", load_text).replace("@STORE@", store_text)
    text = text.replace("@OPERATORS@", _operators(operators))
    return text + "".join(_mapped(name, count, vec) for name, count in sorted(mapped))


def wide_name(name: str) -> str:
    """What the form of a function for lanes is called; `name` may have a template's arguments."""
    return "kw_" + re.sub(r"\W+", "_", name)


def _mapped(name: str, count: int, vec: str) -> str:
    letters = "ABCDEFGH"[:count]
    classes = ", ".join(f"class {each}" for each in letters)
    parameters = ", ".join(f"const kw_lanes<{each}> &{each.lower()}" for each in letters)
    first = ", ".join(f"{each.lower()}.v[0]" for each in letters)
    every = ", ".join(f"{each.lower()}.v[i]" for each in letters)
    return (
        f"template <{classes}> __device__ __forceinline__ auto {wide_name(name)}({parameters})\n"
        f"    -> kw_lanes<decltype({name}({first}))> {{\n  kw_lanes<decltype({name}({first}))> r;\n"
        f'  _Pragma("unroll") for (int i = 0; i < {vec}; ++i) r.v[i] = {name}({every});\n  return r;\n}}\n'
    )


def prelude(
    dialect: Dialect,
    vec: str,
    *,
    c_types: Iterable[str],
    mapped: Iterable[tuple[str, int]],
    load: str = "",
    store: str = "",
    operators: frozenset[str] | None = None,
) -> str:
    """What vector code needs before it; `load` and `store` name parameters for cache hints, in CUDA.

    `operators` are those that the code uses, as `operators_in` finds them; None: any.
    """
    if dialect.is_opencl:
        return opencl_prelude(vec, c_types)
    return cuda_prelude(vec, mapped, load=load, store=store, operators=operators)
