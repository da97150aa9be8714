"""The C functions that expressions need, each with the meaning of its Python counterpart.

Where Python has no value (a division by zero, the logarithm of 0), they give 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

PREFIX = "kernelwright_"

_SOURCE = """
static inline long long kernelwright_floor_div(long long a, long long b) {
    return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline long long kernelwright_floor_mod(long long a, long long b) {
    long long r = b == 0 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static inline long long kernelwright_ceil_div(long long a, long long b) {
    return b == 0 ? 0 : a / b + (a % b != 0 && (a < 0) == (b < 0));
}
static inline double kernelwright_true_div(double a, double b) {
    return b == 0 ? 0 : a / b;
}
static inline long long kernelwright_int_pow(long long a, long long n) {
    long long r = n < 0 ? 0 : 1;
    while (n-- > 0) r *= a;
    return r;
}
static inline long long kernelwright_lshift(long long a, long long n) {
    return n < 0 || n > 62 ? 0 : a * (1LL << n);
}
static inline long long kernelwright_rshift(long long a, long long n) {
    if (n < 0) return 0;
    if (n > 62) return a < 0 ? -1 : 0;
    return a >= 0 ? a >> n : ~((~a) >> n);
}
static inline long long kernelwright_min_int(long long a, long long b) {
    return b < a ? b : a;
}
static inline long long kernelwright_max_int(long long a, long long b) {
    return b > a ? b : a;
}
static inline long long kernelwright_abs_int(long long a) {
    return a < 0 ? -a : a;
}
static inline double kernelwright_min_float(double a, double b) {
    return b < a ? b : a;
}
static inline double kernelwright_max_float(double a, double b) {
    return b > a ? b : a;
}
static inline double kernelwright_abs_float(double a) {
    return a < 0 ? -a : a;
}
static inline long long kernelwright_floor_float(double a) {
    long long r = (long long)a;
    return (double)r > a ? r - 1 : r;
}
static inline long long kernelwright_ceil_float(double a) {
    long long r = (long long)a;
    return (double)r < a ? r + 1 : r;
}
static inline long long kernelwright_gcd(long long a, long long b) {
    if (a < 0) a = -a;
    if (b < 0) b = -b;
    while (b != 0) {
        long long r = a % b;
        a = b;
        b = r;
    }
    return a;
}
static inline long long kernelwright_lcm(long long a, long long b) {
    long long x = a, y = b, r;
    if (a == 0 || b == 0) return 0;
    while (y != 0) {
        r = x % y;
        x = y;
        y = r;
    }
    r = a / x * b;
    return r < 0 ? -r : r;
}
static inline long long kernelwright_bit_length(long long a) {
    long long n = 0;
    if (a < 0) a = -a;
    while (a != 0) {
        a >>= 1;
        ++n;
    }
    return n;
}
static inline long long kernelwright_floor_log2(long long a) {
    long long n = 0;
    while (a > 1) {
        a >>= 1;
        ++n;
    }
    return n;
}
static inline long long kernelwright_next_power_of_two(long long a) {
    long long p = 1;
    while (p < a) p *= 2;
    return p;
}
static inline long long kernelwright_is_power_of_two(long long a) {
    return a > 0 && (a & (a - 1)) == 0;
}
static inline double kernelwright_float_floor_div(double a, double b) {
    double m, d, f;
    if (b == 0) return 0;
    m = fmod(a, b);
    d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;
    f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}
static inline double kernelwright_float_mod(double a, double b) {
    double m = b == 0 ? 0 : fmod(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
static inline double kernelwright_log2(double a) {
    return a > 0 ? log2(a) : 0;
}
static inline double kernelwright_sqrt(double a) {
    return a >= 0 ? sqrt(a) : 0;
}
static inline unsigned kernelwright_narrow(double a, int exponent_bits, int mantissa_bits) {
    int e, bias = (1 << (exponent_bits - 1)) - 1;
    double scaled, whole;
    if (a == 0) return copysign(1.0, a) < 0 ? 1u << (exponent_bits + mantissa_bits) : 0u;
    frexp(a, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    scaled = ldexp(a < 0 ? -a : a, mantissa_bits - e);
    whole = floor(scaled);
    if (scaled - whole > 0.5 || (scaled - whole == 0.5 && fmod(whole, 2) == 1)) whole += 1;
    return (a < 0 ? 1u << (exponent_bits + mantissa_bits) : 0u) + ((unsigned)(e + bias - 1) << mantissa_bits)
           + (unsigned)whole;
}
static inline int kernelwright_text_equal(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}
"""

_NAME = re.compile(rf"{PREFIX}(\w+)\(")


def _by_name() -> dict[str, str]:
    bodies = re.split(r"(?<=\n\})\n", _SOURCE.strip() + "\n")
    named = ((match.group(1), body) for body in bodies if (match := _NAME.search(body)))
    return {name: f"{body.strip()}\n" for name, body in named}


HELPERS: Mapping[str, str] = MappingProxyType(_by_name())
"""The definition of each helper, by its name without the prefix."""

INCLUDE_OF: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("float_floor_div", "float_mod", "log2", "sqrt", "pow", "narrow"), "math.h"),
        "text_equal": "string.h",
    }
)
"""The standard header that a helper (or the library's own `pow`) needs."""
