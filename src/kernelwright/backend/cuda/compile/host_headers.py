"""What NVRTC lacks beside nvcc: the C library's headers, as far as device code uses them, and the names of `<math.h>`.

nvcc reads the host's headers and includes `<math.h>` by itself, so kernels say `INFINITY`, `uint32_t` or
`#include <cfloat>` without a thought; NVRTC has no host. These texts stand in for the headers, by name; what they do
not declare is left to nvcc, see `build`. Values are those of the LP64 data model and of IEEE 754; `int64_t` is
`long long`, as in the toolkit's own `<cuda/std/cstdint>` under NVRTC, with which it must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ALWAYS = "kernelwright_always.h"
"""Included before every source: what a user of nvcc has without an `#include`."""

_ALWAYS = """\
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef HUGE_VALF
#define HUGE_VALF INFINITY
#endif
#ifndef HUGE_VAL
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000LL)
#endif
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
"""

_MATH = (
    "#pragma once\n"
    + _ALWAYS
    + """\
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"""
)

_STDINT = """\
#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
typedef int64_t intmax_t;
typedef uint64_t uintmax_t;
#ifndef INT8_MAX
#define INT8_MIN (-128)
#define INT16_MIN (-32768)
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807LL
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615ULL
#define SIZE_MAX UINT64_MAX
#endif
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
using ::intptr_t; using ::uintptr_t; using ::intmax_t; using ::uintmax_t;
}
"""

_STDDEF = """\
#pragma once
#ifndef NULL
#define NULL 0
#endif
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
namespace std {
using ::size_t; using ::ptrdiff_t;
typedef decltype(nullptr) nullptr_t;
}
"""

_FLOAT = """\
#pragma once
#ifndef FLT_MAX
#define FLT_RADIX 2
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MIN_EXP (-125)
#define FLT_MAX_EXP 128
#define FLT_EPSILON 1.19209289550781250000e-7F
#define FLT_MIN 1.17549435082228750797e-38F
#define FLT_MAX 3.40282346638528859812e+38F
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_MIN_EXP (-1021)
#define DBL_MAX_EXP 1024
#define DBL_EPSILON 2.22044604925031308085e-16
#define DBL_MIN 2.22507385850720138309e-308
#define DBL_MAX 1.79769313486231570815e+308
#endif
"""

_LIMITS = """\
#pragma once
#ifndef INT_MAX
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LONG_MIN (-9223372036854775807L - 1)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-9223372036854775807LL - 1)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#endif
"""

_OF_INTEGER = "KW_LIMITS({type}, ({least}), ({most}), 0, 0, ({least}))"
_INTEGERS = {
    "bool": ("false", "true"),
    "char": ("-128", "127"),
    "signed char": ("-128", "127"),
    "unsigned char": ("0", "255"),
    "short": ("-32768", "32767"),
    "unsigned short": ("0", "65535"),
    "int": ("-2147483647 - 1", "2147483647"),
    "unsigned": ("0", "4294967295U"),
    "long": ("-9223372036854775807L - 1", "9223372036854775807L"),
    "unsigned long": ("0", "18446744073709551615UL"),
    "long long": ("-9223372036854775807LL - 1", "9223372036854775807LL"),
    "unsigned long long": ("0", "18446744073709551615ULL"),
}
_NUMERIC_LIMITS = """\
#pragma once
namespace std {
template <typename T> struct numeric_limits { static constexpr bool is_specialized = false; };
#define KW_LIMITS(T, LOWEST, MAX, EPSILON, INFINITE, MIN) \\
template <> struct numeric_limits<T> { \\
  static constexpr bool is_specialized = true; \\
  __host__ __device__ static constexpr T lowest() { return LOWEST; } \\
  __host__ __device__ static constexpr T max() { return MAX; } \\
  __host__ __device__ static constexpr T min() { return MIN; } \\
  __host__ __device__ static constexpr T epsilon() { return EPSILON; } \\
  __host__ __device__ static constexpr T infinity() { return INFINITE; } \\
};
KW_LIMITS(float, -3.40282346638528859812e+38F, 3.40282346638528859812e+38F, 1.19209289550781250000e-7F,
          __builtin_bit_cast(float, 0x7f800000), 1.17549435082228750797e-38F)
KW_LIMITS(double, -1.79769313486231570815e+308, 1.79769313486231570815e+308, 2.22044604925031308085e-16,
          __builtin_bit_cast(double, 0x7ff0000000000000LL), 2.22507385850720138309e-308)
""" + "\n".join(
    (
        *(_OF_INTEGER.format(type=each, least=least, most=most) for each, (least, most) in _INTEGERS.items()),
        "#undef KW_LIMITS",
        "}",
        "",
    )
)

_ALGORITHM = """\
#ifndef KW_ALGORITHM
#define KW_ALGORITHM
namespace std {
template <typename T> __host__ __device__ constexpr const T &min(const T &a, const T &b) { return b < a ? b : a; }
template <typename T> __host__ __device__ constexpr const T &max(const T &a, const T &b) { return a < b ? b : a; }
template <typename T> __host__ __device__ void swap(T &a, T &b) { T kept = a; a = b; b = kept; }
}
#endif
"""

_TYPE_TRAITS = """\
#pragma once
namespace std {
template <typename T, T V> struct integral_constant { static constexpr T value = V; };
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <typename A, typename B> struct is_same : false_type {};
template <typename A> struct is_same<A, A> : true_type {};
template <typename A, typename B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, typename T, typename F> struct conditional { typedef T type; };
template <typename T, typename F> struct conditional<false, T, F> { typedef F type; };
template <bool B, typename T, typename F> using conditional_t = typename conditional<B, T, F>::type;
template <bool B, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { typedef T type; };
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
template <typename T> struct remove_const { typedef T type; };
template <typename T> struct remove_const<const T> { typedef T type; };
template <typename T> struct remove_reference { typedef T type; };
template <typename T> struct remove_reference<T &> { typedef T type; };
template <typename T> struct remove_reference<T &&> { typedef T type; };
template <typename T> __host__ __device__ T &&kw_value() noexcept;
template <typename A, typename B> struct common_type {
  typedef typename remove_reference<decltype(true ? kw_value<A>() : kw_value<B>())>::type wide;
  typedef typename remove_const<wide>::type type;
};
template <typename A, typename B> using common_type_t = typename common_type<A, B>::type;
template <unsigned long N, unsigned long ALIGNMENT> struct aligned_storage {
  struct type { alignas(ALIGNMENT) unsigned char data[N]; };
};
}
"""

_CUB = """\
#pragma once
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/version.cuh>
#if CUB_MAJOR_VERSION >= 3
namespace cub {
struct Sum { template <typename T> __host__ __device__ T operator()(const T &a, const T &b) const { return a + b; } };
struct Max {
  template <typename T> __host__ __device__ T operator()(const T &a, const T &b) const { return a < b ? b : a; }
};
struct Min {
  template <typename T> __host__ __device__ T operator()(const T &a, const T &b) const { return b < a ? b : a; }
};
}
#endif
"""
"""CUB's own header of everything refuses NVRTC, its parts do not; with the operators that older sources name."""

_NOTHING = "#pragma once\n"

HOST_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        ALWAYS: "#pragma once\n" + _ALWAYS,
        "math.h": _MATH,
        "cmath": _MATH,
        "stdint.h": _STDINT,
        "cstdint": _STDINT,
        "stddef.h": _STDDEF,
        "cstddef": _STDDEF,
        "float.h": _FLOAT,
        "cfloat": _FLOAT,
        "limits.h": _LIMITS,
        "climits": _LIMITS,
        "limits": _NUMERIC_LIMITS,
        "algorithm": _ALGORITHM,
        "utility": _ALGORITHM,
        "type_traits": _TYPE_TRAITS,
        "cub/cub.cuh": _CUB,
        # What device code needs of these is built into NVRTC.
        "assert.h": _NOTHING,
        "cassert": _NOTHING,
        "stdio.h": _NOTHING,
        "cstdio": _NOTHING,
        "stdlib.h": _NOTHING,
        "cstdlib": _NOTHING,
        "string.h": _NOTHING,
        "cstring": _NOTHING,
        "cuda_runtime.h": _MATH,
        "cuda_runtime_api.h": _NOTHING,
        "device_launch_parameters.h": _NOTHING,
    }
)
"""By the name in the `#include`. Folders of the toolkit and of the user do not hide these: NVRTC asks them first."""
