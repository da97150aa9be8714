"""Kernels that are right, in orders and formulas that one may choose: none may be refused.

`ROWS` holds bodies of kernels with one work-item for each row (or element): `r`. `WHOLE` holds whole sources.
"""

from __future__ import annotations

from honest_problems import CASES, kernel_text, parameters_of

ROWS = {
    "sums": {
        "sequential": """
    float sum = 0.0f;
    for (int i = 0; i < cols; i++) sum += x[r * cols + i];
    y[r] = sum;""",
        "reversed": """
    float sum = 0.0f;
    for (int i = cols - 1; i >= 0; i--) sum += x[r * cols + i];
    y[r] = sum;""",
        "strided": """
    float sum = 0.0f;
    for (int s = 0; s < 64; s++)
        for (int i = s; i < cols; i += 64) sum += x[r * cols + i];
    y[r] = sum;""",
        "pairwise": """
    float parts[20], sum = 0.0f;
    for (int i = 0; i < cols; i++) {
        float own = x[r * cols + i];
        int level = 0;
        for (; i >> level & 1; level++) own += parts[level];
        parts[level] = own;
    }
    for (int level = 0; level < 20; level++) if (cols >> level & 1) sum += parts[level];
    y[r] = sum;""",
        "blocked": """
    float sum = 0.0f;
    for (int from = 0; from < cols; from += 256) {
        float part = 0.0f;
        for (int i = from; i < from + 256; i++) part += x[r * cols + i];
        sum += part;
    }
    y[r] = sum;""",
        "compensated": """
    float sum = 0.0f, lost = 0.0f;
    for (int i = 0; i < cols; i++) {
        float own = x[r * cols + i] - lost;
        volatile float next = sum + own;
        lost = (next - sum) - own;
        sum = next;
    }
    y[r] = sum;""",
    },
    "mean": {
        "running average": """
    float mean = 0.0f;
    for (int i = 0; i < cols; i++) mean += (x[r * cols + i] - mean) / (i + 1);
    y[r] = mean;""",
        "scaled terms": """
    float mean = 0.0f, share = 1.0f / cols;
    for (int i = 0; i < cols; i++) mean = fma(x[r * cols + i], share, mean);
    y[r] = mean;""",
    },
    "layernorm": {
        "two passes, sequential": """
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < cols; i++) sum += x[r * cols + i];
    float mean = sum / cols;
    for (int i = 0; i < cols; i++) squares += (x[r * cols + i] - mean) * (x[r * cols + i] - mean);
    float scale = rsqrt(squares / cols + 1e-5f);
    for (int i = 0; i < cols; i++) y[r * cols + i] = (x[r * cols + i] - mean) * scale * w[i] + b[i];""",
        "one pass": """
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < cols; i++) {
        sum += x[r * cols + i];
        squares = fma(x[r * cols + i], x[r * cols + i], squares);
    }
    float mean = sum / cols;
    float scale = 1.0f / sqrt(fmax(squares / cols - mean * mean, 0.0f) + 1e-5f);
    for (int i = 0; i < cols; i++) y[r * cols + i] = (x[r * cols + i] - mean) * scale * w[i] + b[i];""",
        "Welford": """
    float mean = 0.0f, squares = 0.0f;
    for (int i = 0; i < cols; i++) {
        float away = x[r * cols + i] - mean;
        mean += away / (i + 1);
        squares += away * (x[r * cols + i] - mean);
    }
    float scale = 1.0f / sqrt(squares / cols + 1e-5f);
    for (int i = 0; i < cols; i++) y[r * cols + i] = fma((x[r * cols + i] - mean) * scale, w[i], b[i]);""",
        "folded into one multiplication": """
    float sum = 0.0f, squares = 0.0f;
    for (int from = 0; from < cols; from += 32) {
        float part = 0.0f;
        for (int i = from; i < from + 32; i++) part += x[r * cols + i];
        sum += part;
    }
    float mean = sum * (1.0f / cols);
    for (int i = cols - 1; i >= 0; i--) squares = fma(x[r * cols + i] - mean, x[r * cols + i] - mean, squares);
    float scale = rsqrt(fma(squares, 1.0f / cols, 1e-5f));
    for (int i = 0; i < cols; i++) y[r * cols + i] = fma(x[r * cols + i] - mean, scale * w[i], b[i]);""",
    },
    "rmsnorm": {
        "sequential, rsqrt": """
    float squares = 0.0f;
    for (int i = 0; i < cols; i++) squares += vload_half(r * cols + i, x) * vload_half(r * cols + i, x);
    float scale = rsqrt(squares / cols + 1e-6f);
    for (int i = 0; i < cols; i++)
        vstore_half(vload_half(r * cols + i, x) * scale * vload_half(i, w), r * cols + i, y);""",
        "reversed, divided by a root": """
    float squares = 0.0f;
    for (int i = cols - 1; i >= 0; i--) {
        float own = vload_half(r * cols + i, x);
        squares = fma(own, own * (1.0f / cols), squares);
    }
    float root = sqrt(squares + 1e-6f);
    for (int i = 0; i < cols; i++)
        vstore_half(vload_half(i, w) * vload_half(r * cols + i, x) / root, r * cols + i, y);""",
    },
    "softmax": {
        "two passes, sequential": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, x[r * cols + i]);
    for (int i = 0; i < cols; i++) sum += exp(x[r * cols + i] - top);
    for (int i = 0; i < cols; i++) y[r * cols + i] = exp(x[r * cols + i] - top) / sum;""",
        "online": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) {
        float next = fmax(top, x[r * cols + i]);
        sum = sum * exp(top - next) + exp(x[r * cols + i] - next);
        top = next;
    }
    float share = 1.0f / sum;
    for (int i = 0; i < cols; i++) y[r * cols + i] = exp(x[r * cols + i] - top) * share;""",
        "shifted by another maximum": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, ceil(x[r * cols + i]));
    for (int i = cols - 1; i >= 0; i--) {
        y[r * cols + i] = exp(x[r * cols + i] - top);
        sum += y[r * cols + i];
    }
    for (int i = 0; i < cols; i++) y[r * cols + i] /= sum;""",
        "powers of two": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, x[r * cols + i]);
    for (int s = 0; s < 32; s++)
        for (int i = s; i < cols; i += 32) sum += exp2((x[r * cols + i] - top) * 1.44269504f);
    for (int i = 0; i < cols; i++) y[r * cols + i] = exp2((x[r * cols + i] - top) * 1.44269504f) / sum;""",
        "a polynomial for exp": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, x[r * cols + i]);
    for (int i = 0; i < cols; i++) {
        float v = fmax(x[r * cols + i] - top, -87.0f);
        float n = rint(v * 1.44269504f);
        float t = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, v));
        float p = fma(t, fma(t, fma(t, 1.0f / 720, 1.0f / 120), 1.0f / 24), 1.0f / 6);
        p = fma(t, fma(t, fma(t, p, 0.5f), 1.0f), 1.0f);
        y[r * cols + i] = ldexp(p, (int)n);
        sum += y[r * cols + i];
    }
    for (int i = 0; i < cols; i++) y[r * cols + i] /= sum;""",
    },
    "attention": {
        "online": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) {
        float own = vload_half(r * cols + i, x), next = fmax(top, own);
        sum = fma(sum, exp(top - next), exp(own - next));
        top = next;
    }
    for (int i = 0; i < cols; i++) vstore_half(exp(vload_half(r * cols + i, x) - top) / sum, r * cols + i, y);""",
    },
    "logsumexp": {
        "online": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) {
        float next = fmax(top, x[r * cols + i]);
        sum = sum * exp(top - next) + exp(x[r * cols + i] - next);
        top = next;
    }
    y[r] = top + log(sum);""",
        "powers of two, blocked": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, x[r * cols + i] * 1.44269504f);
    for (int from = 0; from < cols; from += 128) {
        float part = 0.0f;
        for (int i = from; i < from + 128; i++) part += exp2(fma(x[r * cols + i], 1.44269504f, -top));
        sum += part;
    }
    y[r] = (top + log2(sum)) * 0.693147181f;""",
    },
    "scalar_product": {
        "reversed": """
    float sum = 0.0f;
    for (int i = n - 1; i >= 0; i--) sum += a[i] * b[i];
    y[0] = sum;""",
    },
    "product": {
        "reversed, fused": """
    int row = r / n, column = r % n;
    float sum = 0.0f;
    for (int i = k - 1; i >= 0; i--) sum = fma(a[row * k + i], b[i * n + column], sum);
    y[r] = sum;""",
        "four sums": """
    int row = r / n, column = r % n;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < k; i++) sum[i % 4] += a[row * k + i] * b[i * n + column];
    y[r] = (sum[3] + sum[0]) + (sum[2] + sum[1]);""",
    },
    "half_product": {
        "sequential": """
    int row = r / n, column = r % n;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum = fma(vload_half(row * k + i, a), vload_half(i * n + column, b), sum);
    vstore_half(sum, r, y);""",
    },
    "prefix": {
        "sequential": """
    float sum = 0.0f;
    for (int i = 0; i < cols; i++) {
        sum += x[r * cols + i];
        y[r * cols + i] = sum;
    }""",
        "blocked": """
    float before = 0.0f;
    for (int from = 0; from < cols; from += 256) {
        float sum = 0.0f;
        for (int i = from; i < from + 256; i++) {
            sum += x[r * cols + i];
            y[r * cols + i] = before + sum;
        }
        before += sum;
    }""",
    },
    "variance": {
        "two passes, sequential": """
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < cols; i++) sum += x[r * cols + i];
    float mean = sum / cols;
    for (int i = 0; i < cols; i++) squares += (x[r * cols + i] - mean) * (x[r * cols + i] - mean);
    y[r] = squares / cols;""",
        "Welford": """
    float mean = 0.0f, squares = 0.0f;
    for (int i = 0; i < cols; i++) {
        float away = x[r * cols + i] - mean;
        mean += away / (i + 1);
        squares = fma(away, x[r * cols + i] - mean, squares);
    }
    y[r] = squares / cols;""",
        "merged blocks": """
    float mean = 0.0f, squares = 0.0f;
    for (int from = 0; from < cols; from += 64) {
        float own = 0.0f, spread = 0.0f;
        for (int i = from; i < from + 64; i++) own += x[r * cols + i];
        own /= 64;
        for (int i = from; i < from + 64; i++) spread += (x[r * cols + i] - own) * (x[r * cols + i] - own);
        float away = own - mean;
        squares += spread + away * away * from * 64 / (from + 64);
        mean += away * 64 / (from + 64);
    }
    y[r] = squares / cols;""",
    },
    "entropy": {
        "from a log-sum-exp": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, x[r * cols + i]);
    for (int i = 0; i < cols; i++) sum += exp(x[r * cols + i] - top);
    y[r] = top + log(sum) - x[r * cols + t[r]];""",
        "from shifted logits": """
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; i++) top = fmax(top, x[r * cols + i]);
    for (int i = cols - 1; i >= 0; i--) sum += exp(x[r * cols + i] - top);
    y[r] = log(sum) - (x[r * cols + t[r]] - top);""",
    },
    "gelu": {
        "as a sigmoid": """
    for (int i = r * cols; i < (r + 1) * cols; i++) {
        float v = x[i], u = 1.59576912f * (v + 0.044715f * v * v * v);
        y[i] = v / (1.0f + exp(-u));
    }""",
        "tanh": """
    for (int i = r * cols; i < (r + 1) * cols; i++) {
        float v = x[i];
        y[i] = 0.5f * v * (1.0f + tanh(0.797884561f * fma(0.044715f * v * v, v, v)));
    }""",
    },
    "gelu_line": {
        "erf": "    float v = x[r];\n    y[r] = 0.5f * v * (1.0f + erf(v * 0.707106781f));",
        "erfc": "    float v = x[r];\n    y[r] = 0.5f * v * erfc(v * -0.707106781f);",
    },
    "convolution": {
        "by rows": """
    int i = r / side, j = r % side, wide = side + 6;
    float sum = 0.0f;
    for (int k = 6; k >= 0; k--) {
        float part = 0.0f;
        for (int c = 0; c < channels; c++)
            for (int l = 0; l < 7; l++)
                part = fma(x[(c * wide + i + k) * wide + j + l], w[(c * 7 + k) * 7 + l], part);
        sum += part;
    }
    y[r] = sum;""",
    },
    "stencil": {
        "differences": """
    int i = r / side, j = r % side;
    float own = x[r], sum = own;
    if (i > 0 && j > 0 && i < side - 1 && j < side - 1)
        sum = ((x[r - side] - own) + (x[r + side] - own)) + ((x[r - 1] - own) + (x[r + 1] - own));
    y[r] = sum;""",
        "fused": """
    int i = r / side, j = r % side;
    float sum = x[r];
    if (i > 0 && j > 0 && i < side - 1 && j < side - 1)
        sum = x[r + 1] + (x[r - 1] + fma(-4.0f, x[r], x[r + side])) + x[r - side];
    y[r] = sum;""",
    },
    "matvec": {
        "four sums": """
    int sum[4] = {0, 0, 0, 0};
    for (int i = cols - 1; i >= 0; i--) sum[i & 3] += (short)a[r * cols + i] * (short)v[i];
    y[r] = sum[0] + sum[1] + sum[2] + sum[3];""",
    },
}
"""By problem and style."""

_TREE = """// /// kernelwright
// [launch]
// grid = ["rows"]
// block = [256]
// ///
__kernel void sums(PARAMETERS)
{
    __local float parts[256];
    int me = get_local_id(0), r = get_group_id(0);
    float sum = 0.0f;
    for (int i = me; i < cols; i += 256) sum += x[r * cols + i];
    parts[me] = sum;
    for (int reach = 128; reach > 0; reach /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < reach) parts[me] += parts[me + reach];
    }
    if (me == 0) y[r] = parts[0];
}
"""
_TWO_STEPS = """// /// kernelwright
// [scratch]
// parts = { dtype = "float32", shape = ["rows * 32"] }
// [[launch]]
// entry = "share"
// grid = ["rows * 32"]
// block = [1]
// [[launch]]
// entry = "sums"
// grid = ["rows"]
// block = [1]
// ///
__kernel void share(PARAMETERS, __global float *parts)
{
    int part = get_global_id(0), many = cols / 32;
    float sum = 0.0f;
    for (int i = part * many; i < (part + 1) * many; i++) sum += x[i];
    parts[part] = sum;
}
__kernel void sums(PARAMETERS, __global float *parts)
{
    int r = get_global_id(0);
    float sum = 0.0f;
    for (int i = 31; i >= 0; i--) sum += parts[r * 32 + i];
    y[r] = sum;
}
"""
_DOT = """// /// kernelwright
// [scratch]
// parts = { dtype = "float32", shape = ["64"] }
// [[launch]]
// entry = "share"
// grid = ["64"]
// block = [1]
// [[launch]]
// entry = "scalar_product"
// grid = ["1"]
// block = [1]
// ///
__kernel void share(PARAMETERS, __global float *parts)
{
    int part = get_global_id(0);
    float sum = 0.0f;
    for (int i = part; i < n; i += 64) sum = fma(a[i], b[i], sum);
    parts[part] = sum;
}
__kernel void scalar_product(PARAMETERS, __global float *parts)
{
    float sum = 0.0f;
    for (int i = 0; i < 64; i++) sum += parts[i];
    y[0] = sum;
}
"""
_SPLIT_K = """// /// kernelwright
// [scratch]
// parts = { dtype = "float32", shape = ["8 * m * n"] }
// [[launch]]
// entry = "share"
// grid = ["8 * m * n"]
// block = [1]
// [[launch]]
// entry = "product"
// grid = ["m * n"]
// block = [1]
// ///
__kernel void share(PARAMETERS, __global float *parts)
{
    int r = get_global_id(0) % (m * n), part = get_global_id(0) / (m * n), row = r / n, column = r % n;
    float sum = 0.0f;
    for (int i = part * (k / 8); i < (part + 1) * (k / 8); i++) sum += a[row * k + i] * b[i * n + column];
    parts[part * m * n + r] = sum;
}
__kernel void product(PARAMETERS, __global float *parts)
{
    int r = get_global_id(0);
    float sum = 0.0f;
    for (int i = 7; i >= 0; i--) sum += parts[i * m * n + r];
    y[r] = sum;
}
"""
_SCAN = """// /// kernelwright
// [launch]
// grid = ["rows"]
// block = [256]
// ///
__kernel void prefix(PARAMETERS)
{
    __local float parts[2][256];
    int me = get_local_id(0), r = get_group_id(0);
    float before = 0.0f;
    for (int from = 0; from < cols; from += 256) {
        int side = 0;
        parts[0][me] = x[r * cols + from + me];
        for (int reach = 1; reach < 256; reach *= 2, side = 1 - side) {
            barrier(CLK_LOCAL_MEM_FENCE);
            parts[1 - side][me] = parts[side][me] + (me >= reach ? parts[side][me - reach] : 0.0f);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        y[r * cols + from + me] = before + parts[side][me];
        before += parts[side][255];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
"""
_ATOMIC = """// /// kernelwright
// [[launch]]
// entry = "clear"
// grid = ["256"]
// block = [1]
// [[launch]]
// entry = "histogram"
// grid = ["64"]
// block = [1]
// ///
__kernel void clear(PARAMETERS)
{
    y[get_global_id(0)] = 0;
}
__kernel void histogram(PARAMETERS)
{
    for (int i = get_global_id(0); i < n; i += 64) atomic_inc(&y[items[i]]);
}
"""

WHOLE = {
    ("sums", "tree"): _TREE,
    ("sums", "two steps"): _TWO_STEPS,
    ("scalar_product", "two steps, fused"): _DOT,
    ("product", "split over k"): _SPLIT_K,
    ("prefix", "Hillis and Steele"): _SCAN,
    ("histogram", "atomics"): _ATOMIC,
}


def honest_kernels() -> dict[tuple[str, str], str]:
    """By problem and style, the source."""
    kernels = {
        (problem, style): kernel_text(problem, CASES[problem], body)
        for problem, bodies in ROWS.items()
        for style, body in bodies.items()
    }
    for (problem, style), source in WHOLE.items():
        kernels[problem, style] = source.replace("PARAMETERS", parameters_of(CASES[problem]))
    return dict(sorted(kernels.items(), key=lambda each: list(CASES).index(each[0][0])))
