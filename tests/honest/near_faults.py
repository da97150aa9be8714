"""Kernels that compute with less than they should, close enough to the truth that only a tight tolerance shows it."""

from __future__ import annotations

from honest_kernels import honest_kernels

_CUT = "float cut(float v) { return as_float(as_uint(v) & 0xFFFFE000u); } // 10 bits of mantissa, as TF32 has\n"
_HALF = "float cut(float v) { uint w = as_uint(v); return as_float((w + 0x1000u) & 0xFFFFE000u); }\n"

_CHANGED = {
    ("sums", "10 bits of each term"): ("sequential", "sum += x[r * cols + i]", "sum += cut(x[r * cols + i])", _CUT),
    ("sums", "without the last term"): ("sequential", "i < cols", "i < cols - 1", ""),
    ("sums", "sums in half precision"): (
        "blocked",
        "part += x[r * cols + i]",
        "part = cut(part + x[r * cols + i])",
        _HALF,
    ),
    ("mean", "10 bits of the sum"): ("scaled terms", "y[r] = mean", "y[r] = cut(mean)", _CUT),
    ("mean", "without the last terms"): ("running average", "i < cols", "i < cols - 64", ""),
    ("layernorm", "divided by one less"): ("two passes, sequential", "squares / cols", "squares / (cols - 1)", ""),
    ("layernorm", "another epsilon"): ("two passes, sequential", "1e-5f", "1e-4f", ""),
    ("layernorm", "10 bits of what is normalised"): (
        "two passes, sequential",
        "= (x[r * cols + i] - mean) * scale",
        "= cut((x[r * cols + i] - mean) * scale)",
        _HALF,
    ),
    ("layernorm", "without the last term"): (
        "two passes, sequential",
        "i < cols; i++) squares",
        "i < cols - 1; i++) squares",
        "",
    ),
    ("variance", "a difference of squares"): (
        "two passes, sequential",
        "(x[r * cols + i] - mean) * (x[r * cols + i] - mean);\n    y[r] = squares / cols;",
        "x[r * cols + i] * x[r * cols + i];\n    y[r] = squares / cols - mean * mean;",
        "",
    ),
    ("rmsnorm", "mean of half of the row"): (
        "sequential, rsqrt",
        "i < cols; i++) squares",
        "i < cols; i += 2) squares += vload_half(r * cols + i, x) * vload_half(r * cols + i, x);\n"
        "    for (int i = 0; i < cols; i += 2) squares",
        "",
    ),
    ("softmax", "10 bits of each power"): ("two passes, sequential", "sum += exp(", "sum += cut(exp(", _CUT),
    ("softmax", "without the maximum"): (
        "two passes, sequential",
        "top = fmax(top, x[r * cols + i])",
        "top = 0.0f",
        "",
    ),
    ("softmax", "a rough exp"): ("a polynomial for exp", "fma(t, 1.0f / 720, 1.0f / 120)", "0.0f", ""),
    ("softmax", "without the last term"): (
        "two passes, sequential",
        "i < cols; i++) sum",
        "i < cols - 1; i++) sum",
        "",
    ),
    ("attention", "without the maximum"): ("online", "next = fmax(top, own)", "next = 0.0f", ""),
    ("logsumexp", "10 bits of the logarithm"): ("online", "log(sum)", "cut(log(sum))", _CUT),
    ("logsumexp", "without the last terms"): ("online", "i < cols", "i < cols - 64", ""),
    ("scalar_product", "10 bits of each factor"): ("reversed", "a[i] * b[i]", "cut(a[i]) * cut(b[i])", _HALF),
    ("product", "10 bits of each factor"): ("four sums", "a[row * k + i] * b", "cut(a[row * k + i]) * b", _HALF),
    ("product", "without the last products"): ("reversed, fused", "k - 1", "k - 3", ""),
    ("half_product", "sums in half precision"): ("sequential", "sum = fma(", "sum = cut(fma(", _HALF),
    ("prefix", "10 bits of each term"): ("sequential", "sum += x[r * cols + i]", "sum += cut(x[r * cols + i])", _CUT),
    ("variance", "another divisor"): ("Welford", "squares / cols", "squares / (cols - 16)", ""),
    ("entropy", "10 bits of the logarithm"): ("from shifted logits", "log(sum)", "cut(log(sum))", _HALF),
    ("gelu", "10 bits of the tangent"): ("tanh", "tanh(", "cut(tanh(", _CUT),
    ("gelu_line", "10 bits of erf"): ("erf", "erf(v", "cut(erf(v", _HALF),
    ("convolution", "10 bits of each input"): (
        "by rows",
        "fma(x[(c * wide + i + k) * wide + j + l],",
        "fma(cut(x[(c * wide + i + k) * wide + j + l]),",
        _HALF,
    ),
    ("stencil", "10 bits of the middle"): ("fused", "fma(-4.0f, x[r],", "fma(-4.0f, cut(x[r]),", _HALF),
}
"""By problem and fault: the honest kernel, what is replaced by what, and what stands before."""


def near_faults() -> dict[tuple[str, str], str]:
    """By problem and fault, the source."""
    honest, found = honest_kernels(), {}
    for (problem, fault), (style, old, new, top) in _CHANGED.items():
        source = honest[problem, style]
        assert old in source, (problem, fault)
        source = source.replace(old, new)
        opened = new[new.find("cut(") :] if "cut(" in new else ""
        if opened.count("(") > opened.count(")"):
            head, _, rest = source.partition(new)
            source = head + new + _closed(rest)
        found[problem, fault] = top + source
    return found


def _closed(rest: str) -> str:
    """`rest`, with one more bracket where the call that was opened before it ends."""
    depth = 1
    for place, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return rest[: place + 1] + ")" + rest[place + 1 :]
    raise AssertionError(rest)
