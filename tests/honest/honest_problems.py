"""The problems of the corpus of honest kernels: what each computes, and a baseline that is as exact as float64.

A baseline widens tolerances by its own error. These have none, so each tolerance is as tight as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One problem: `[arguments]` without scalars, parameters of the kernel, the reference's body, the baseline's."""

    arguments: str
    parameters: str
    reference: str
    baseline: str
    sizes: str
    grid: str = "rows"


def _folder(name: str, case: Case, folder: Path) -> Path:
    folder.mkdir()
    sizes = [line.partition("=")[0].strip() for line in case.sizes.splitlines() if not line.startswith("[")]
    scalars = "".join(
        f'{size} = {{ role = "scalar", dtype = "int32", value = "{size}" }}\n' for size in dict.fromkeys(sizes)
    )
    (folder / "problem.toml").write_text(
        f'name = "{name}"\nkernel = "{name}.cl"\nentry = "{name}"\nreference = "reference.py:{name}"\n'
        f'[arguments]\n{case.arguments.strip()}\n{scalars}[launch]\ngrid = ["{case.grid}"]\nblock = [1]\n'
        f"[[workloads]]\n{case.sizes}\n"
    )
    (folder / "reference.py").write_text(f"import math\nimport numpy as np\n\n{case.reference.strip()}\n")
    (folder / f"{name}.cl").write_text(kernel_text(name, case, case.baseline))
    return folder


def parameters_of(case: Case) -> str:
    """Of every kernel of the problem, in OpenCL C."""
    sizes = [line.partition("=")[0].strip() for line in case.sizes.splitlines() if not line.startswith("[")]
    return ", ".join((case.parameters, *(f"int {size}" for size in dict.fromkeys(sizes))))


def kernel_text(name: str, case: Case, body: str) -> str:
    """A source with one kernel: one work-item for each row."""
    return (
        f"__kernel void {name}({parameters_of(case)})\n{{\n    int r = get_global_id(0);\n{body.strip(chr(10))}\n}}\n"
    )


def write_problem(name: str, folder: Path) -> Path:
    """The problem's folder."""
    return _folder(name, CASES[name], folder)


ROWS_IN = 'x = { role = "input", dtype = "float32", shape = ["rows", "cols"] }'
ROW_OUT = 'y = { role = "output", dtype = "float32", shape = ["rows"] }'
ROWS_OUT = 'y = { role = "output", dtype = "float32", shape = ["rows", "cols"] }'
HALF_IN, HALF_OUT = ROWS_IN.replace("float32", "float16"), ROWS_OUT.replace("float32", "float16")
X_TO_Y = "__global const float *x, __global float *y"

_DOUBLE_SOFTMAX = """
    double top = -1e300, sum = 0;
    for (int i = 0; i < cols; i++) top = fmax(top, (double)LOAD(r * cols + i));
    for (int i = 0; i < cols; i++) sum += exp(LOAD(r * cols + i) - top);
    for (int i = 0; i < cols; i++) STORE(exp(LOAD(r * cols + i) - top) / sum, r * cols + i);
"""
_SOFTMAX = """
def {}(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
"""


def _plain(text: str) -> str:
    return (
        text.replace("LOAD(r * cols + i)", "x[r * cols + i]")
        .replace("STORE(", "y[r * cols + i] = (")
        .replace(", r * cols + i);", ");")
    )


def _half(text: str) -> str:
    return (
        text.replace("LOAD(r * cols + i)", "vload_half(r * cols + i, x)")
        .replace("STORE(exp(", "vstore_half((float)(exp(")
        .replace("/ sum, r * cols + i)", "/ sum), r * cols + i, y)")
    )


CASES = {
    "sums": Case(
        f"{ROWS_IN}\n{ROW_OUT}", X_TO_Y, "def sums(x):\n    return x.sum(axis=1)",
        "    double sum = 0;\n    for (int i = 0; i < cols; i++) sum += x[r * cols + i];\n    y[r] = sum;",
        "rows = 16\ncols = 65536",
    ),
    "mean": Case(
        f"{ROWS_IN[:-2]}, range = [0.0, 1.0] }}\n{ROW_OUT}", X_TO_Y, "def mean(x):\n    return x.mean(axis=1)",
        "    double sum = 0;\n    for (int i = 0; i < cols; i++) sum += x[r * cols + i];\n    y[r] = sum / cols;",
        "rows = 16\ncols = 65536",
    ),
    "layernorm": Case(
        f'{ROWS_IN}\nw = {{ role = "input", dtype = "float32", shape = ["cols"] }}\n'
        f'b = {{ role = "input", dtype = "float32", shape = ["cols"] }}\n{ROWS_OUT}',
        "__global const float *x, __global const float *w, __global const float *b, __global float *y",
        "def layernorm(x, w, b):\n    c = x - x.mean(axis=1, keepdims=True)\n"
        "    return c / np.sqrt((c * c).mean(axis=1, keepdims=True) + 1e-5) * w + b",
        """
    double sum = 0, squares = 0;
    for (int i = 0; i < cols; i++) sum += x[r * cols + i];
    double mean = sum / cols;
    for (int i = 0; i < cols; i++) squares += (x[r * cols + i] - mean) * (x[r * cols + i] - mean);
    double scale = 1 / sqrt(squares / cols + 1e-5);
    for (int i = 0; i < cols; i++) y[r * cols + i] = (x[r * cols + i] - mean) * scale * w[i] + b[i];""",
        "rows = 1024\ncols = 1024",
    ),
    "rmsnorm": Case(
        f'{HALF_IN}\nw = {{ role = "input", dtype = "float16", shape = ["cols"] }}\n{HALF_OUT}',
        "__global const half *x, __global const half *w, __global half *y",
        "def rmsnorm(x, w):\n    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * w",
        """
    double squares = 0;
    for (int i = 0; i < cols; i++) { double v = vload_half(r * cols + i, x); squares += v * v; }
    double scale = 1 / sqrt(squares / cols + 1e-6);
    for (int i = 0; i < cols; i++)
        vstore_half((float)(vload_half(r * cols + i, x) * scale * vload_half(i, w)), r * cols + i, y);""",
        "rows = 64\ncols = 4096",
    ),
    "softmax": Case(
        f"{ROWS_IN}\n{ROWS_OUT}", X_TO_Y, _SOFTMAX.format("softmax"), _plain(_DOUBLE_SOFTMAX), "rows = 16\ncols = 16384"
    ),
    "attention": Case(
        f"{HALF_IN}\n{HALF_OUT}", "__global const half *x, __global half *y", _SOFTMAX.format("attention"),
        _half(_DOUBLE_SOFTMAX), "rows = 32\ncols = 4096",
    ),
    "logsumexp": Case(
        f"{ROWS_IN[:-2]}, range = [0.0, 1.0] }}\n{ROW_OUT}", X_TO_Y,
        "def logsumexp(x):\n    m = x.max(axis=1)\n    return m + np.log(np.exp(x - m[:, None]).sum(axis=1))",
        """
    double top = -1e300, sum = 0;
    for (int i = 0; i < cols; i++) top = fmax(top, (double)x[r * cols + i]);
    for (int i = 0; i < cols; i++) sum += exp(x[r * cols + i] - top);
    y[r] = top + log(sum);""",
        "rows = 32\ncols = 16384",
    ),
    "scalar_product": Case(
        'a = { role = "input", dtype = "float32", shape = ["n"] }\n'
        'b = { role = "input", dtype = "float32", shape = ["n"] }\n'
        'y = { role = "output", dtype = "float32", shape = ["1"] }',
        "__global const float *a, __global const float *b, __global float *y",
        "def scalar_product(a, b):\n    return np.array([a @ b])",
        "    double sum = 0;\n    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];\n    y[0] = sum;",
        "n = 65536", "1",
    ),
    "product": Case(
        'a = { role = "input", dtype = "float32", shape = ["m", "k"] }\n'
        'b = { role = "input", dtype = "float32", shape = ["k", "n"] }\n'
        'y = { role = "output", dtype = "float32", shape = ["m", "n"] }',
        "__global const float *a, __global const float *b, __global float *y",
        "def product(a, b):\n    return a @ b",
        """
    int row = r / n, column = r % n;
    double sum = 0;
    for (int i = 0; i < k; i++) sum += (double)a[row * k + i] * b[i * n + column];
    y[r] = sum;""",
        "m = 32\nn = 32\nk = 8192", "m * n",
    ),
    "half_product": Case(
        'a = { role = "input", dtype = "float16", shape = ["m", "k"] }\n'
        'b = { role = "input", dtype = "float16", shape = ["k", "n"] }\n'
        'y = { role = "output", dtype = "float16", shape = ["m", "n"] }',
        "__global const half *a, __global const half *b, __global half *y",
        "def half_product(a, b):\n    return a @ b",
        """
    int row = r / n, column = r % n;
    double sum = 0;
    for (int i = 0; i < k; i++) sum += (double)vload_half(row * k + i, a) * vload_half(i * n + column, b);
    vstore_half((float)sum, r, y);""",
        "m = 16\nn = 16\nk = 4096", "m * n",
    ),
    "prefix": Case(
        f"{ROWS_IN}\n{ROWS_OUT}", X_TO_Y, "def prefix(x):\n    return np.cumsum(x, axis=1)",
        """
    double sum = 0;
    for (int i = 0; i < cols; i++) { sum += x[r * cols + i]; y[r * cols + i] = sum; }""",
        "rows = 8\ncols = 65536",
    ),
    "variance": Case(
        f"{ROWS_IN}\n{ROW_OUT}", X_TO_Y, "def variance(x):\n    return x.var(axis=1)",
        """
    double sum = 0, squares = 0;
    for (int i = 0; i < cols; i++) sum += x[r * cols + i];
    double mean = sum / cols;
    for (int i = 0; i < cols; i++) squares += (x[r * cols + i] - mean) * (x[r * cols + i] - mean);
    y[r] = squares / cols;""",
        "rows = 32\ncols = 16384",
    ),
    "entropy": Case(
        f'{ROWS_IN}\nt = {{ role = "input", dtype = "int32", shape = ["rows"], range = [0, 1023] }}\n{ROW_OUT}',
        "__global const float *x, __global const int *t, __global float *y",
        "def entropy(x, t):\n    m = x.max(axis=1)\n    s = np.log(np.exp(x - m[:, None]).sum(axis=1))\n"
        "    return s + m - x[np.arange(len(t)), t]",
        """
    double top = -1e300, sum = 0;
    for (int i = 0; i < cols; i++) top = fmax(top, (double)x[r * cols + i]);
    for (int i = 0; i < cols; i++) sum += exp(x[r * cols + i] - top);
    y[r] = log(sum) + (top - x[r * cols + t[r]]);""",
        "rows = 512\ncols = 1024",
    ),
    "gelu": Case(
        f"{ROWS_IN}\n{ROWS_OUT}", X_TO_Y,
        "def gelu(x):\n    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
        """
    for (int i = r * cols; i < (r + 1) * cols; i++) {
        double v = x[i];
        y[i] = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    }""",
        "rows = 64\ncols = 1024",
    ),
    "gelu_line": Case(
        'x = { role = "input", dtype = "float32", shape = ["n"] }\n'
        'y = { role = "output", dtype = "float32", shape = ["n"] }',
        X_TO_Y,
        "def gelu_line(x):\n    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))",
        "    double v = x[r];\n    y[r] = 0.5 * v * erfc(-v * 0.7071067811865476);",
        "n = 16384", "n",
    ),
    "convolution": Case(
        'x = { role = "input", dtype = "float32", shape = ["channels", "side + 6", "side + 6"] }\n'
        'w = { role = "input", dtype = "float32", shape = ["channels", "7", "7"] }\n'
        'y = { role = "output", dtype = "float32", shape = ["side", "side"] }',
        "__global const float *x, __global const float *w, __global float *y",
        "def convolution(x, w):\n    v = np.lib.stride_tricks.sliding_window_view(x, (7, 7), axis=(1, 2))\n"
        "    return np.einsum('cijkl,ckl->ij', v, w)",
        """
    double sum = 0;
    int i = r / side, j = r % side, wide = side + 6;
    for (int c = 0; c < channels; c++)
        for (int k = 0; k < 7; k++)
            for (int l = 0; l < 7; l++)
                sum += (double)x[(c * wide + i + k) * wide + j + l] * w[(c * 7 + k) * 7 + l];
    y[r] = sum;""",
        "channels = 16\nside = 64", "side * side",
    ),
    "stencil": Case(
        'x = { role = "input", dtype = "float32", shape = ["side", "side"] }\n'
        'y = { role = "output", dtype = "float32", shape = ["side", "side"] }',
        X_TO_Y,
        "def stencil(x):\n    y = x.copy()\n    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]\n"
        "    y[1:-1, 1:-1] = around - 4 * x[1:-1, 1:-1]\n    return y",
        """
    int i = r / side, j = r % side;
    double own = x[r];
    if (i > 0 && j > 0 && i < side - 1 && j < side - 1)
        own = (double)x[r - side] + x[r + side] + x[r - 1] + x[r + 1] - 4.0 * own;
    y[r] = own;""",
        "side = 512", "side * side",
    ),
    "matvec": Case(
        'a = { role = "input", dtype = "int8", shape = ["rows", "cols"] }\n'
        'v = { role = "input", dtype = "int8", shape = ["cols"] }\n'
        'y = { role = "output", dtype = "int32", shape = ["rows"] }',
        "__global const char *a, __global const char *v, __global int *y",
        "def matvec(a, v):\n    return a @ v",
        "    int sum = 0;\n    for (int i = 0; i < cols; i++) sum += a[r * cols + i] * v[i];\n    y[r] = sum;",
        "rows = 64\ncols = 4096",
    ),
    "histogram": Case(
        'items = { role = "input", dtype = "int32", shape = ["n"], range = [0, 255] }\n'
        'y = { role = "output", dtype = "int32", shape = ["256"] }',
        "__global const int *items, __global int *y",
        "def histogram(items):\n    return np.bincount(items, minlength=256)",
        "    int count = 0;\n    for (int i = 0; i < n; i++) count += items[i] == r;\n    y[r] = count;",
        "n = 16384", "256",
    ),
}  # fmt: skip
