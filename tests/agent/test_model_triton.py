"""The fence for Triton files from models: honest kernels pass, and no text that Python would run does."""

from __future__ import annotations

import pytest

from kernelwright.agent.model.anchors import Malformed
from kernelwright.agent.model.fences.triton_text import check_triton_source

HEAD = "import triton\nimport triton.language as tl\n\n\n"


def kernel(body: str, *, arguments: str = "x_ptr, n, BLOCK: tl.constexpr") -> str:
    """A file of one kernel with these lines."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"{HEAD}@triton.jit\ndef k({arguments}):\n{lines}\n"


def top(line: str) -> str:
    return f"{HEAD}{line}\n\n\n@triton.jit\ndef k(x_ptr):\n    tl.store(x_ptr, 1)\n"


HONEST = {
    "add": kernel(
        '"""Adds one; "open" and eval(x) are only words here."""\n'
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "x = tl.load(x_ptr + at, mask=at < n, other=0.0)  # größer, λ: a comment may say anything\n"
        "tl.store(x_ptr + at, x + 1, mask=at < n)"
    ),
    "softmax": kernel(
        "row = tl.program_id(axis=0)\ncol = tl.arange(0, BLOCK)\n"
        'x = tl.load(x_ptr + row * n + col, mask=col < n, other=-float("inf"))\n'
        "x = tl.exp((x - tl.max(x, axis=0)).to(tl.float32))\n"
        "tl.store(x_ptr + row * n + col, x / tl.sum(x, axis=0), mask=col < n)"
    ),
    "matmul": HEAD
    + '''@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr = 8, ACTIVATION: tl.constexpr = "",
):
    """A product in groups of rows.

    def is a word of this text, too.
    """
    pid = tl.program_id(0)
    rows, cols = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * cols) * GROUP
    height = min(rows - first, GROUP)
    m = first + pid % (GROUP * cols) % height
    n = pid % (GROUP * cols) // height
    a = a_ptr + (m * BM + tl.arange(0, BM))[:, None] * stride_am + tl.arange(0, BK)[None, :]
    b = b_ptr + tl.arange(0, BK)[:, None] * stride_bk + (n * BN + tl.arange(0, BN))[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), num_stages=3):
        acc = tl.dot(tl.load(a), tl.load(b, eviction_policy="evict_last"), acc, input_precision="ieee")
        a += BK
        b += BK * stride_bk
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    c = c_ptr + (m * BM + tl.arange(0, BM))[:, None] * stride_cm + (n * BN + tl.arange(0, BN))[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty))


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, SLOPE * x)


SLOPE: tl.constexpr = tl.constexpr(0.01)
''',
    "welford": HEAD
    + """WARPS = tl.constexpr(4)
TINY = tl.constexpr(-1.0 / 8 + 2)


@triton.jit
def combine(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):
    delta = mean_b - mean_a
    weight = weight_a + weight_b
    share = tl.where(weight == 0.0, 0.0, weight_b / weight)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * weight_a * share, weight


@triton.jit
def moments(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    mean, m2, weight = tl.reduce((x, tl.zeros_like(x), tl.full([N], 1.0, tl.float32)), 0, combine)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, tl.math.rsqrt(m2 / weight + TINY))
""",
    "while": kernel(
        "i = tl.program_id(0)\nwhile i < n:\n    tl.atomic_add(x_ptr + i, 1.0, sem='relaxed')\n"
        "    i += tl.num_programs(0)\nif n == 0:\n    return\nelif n is None:\n    pass"
    ),
    "rope": kernel(
        "half = tl.arange(0, BLOCK // 2)\ncos = tl.load(cos_ptr + half)\nsin = tl.load(sin_ptr + half)\n"
        "for i in tl.static_range(2):\n    p = x_ptr + i * n + half\n    q = p + BLOCK // 2\n"
        "    a, b = tl.load(p), tl.load(q)\n    tl.store(p, a * cos - b * sin)\n    tl.store(q, b * cos + a * sin)",
        arguments="x_ptr, cos_ptr, sin_ptr, n, BLOCK: tl.constexpr",
    ),
    "block-pointers": kernel(
        "tl.static_assert(BLOCK >= 16, 'BLOCK must be >= 16')\n"
        "p = tl.make_block_ptr(base=x_ptr, shape=(n, n), strides=(n, 1), offsets=(0, 0), "
        "block_shape=(BLOCK, BLOCK), order=(1, 0))\n"
        "for _ in range(0, n, BLOCK):\n"
        "    x = tl.load(p, boundary_check=(0, 1), padding_option='zero')\n"
        "    tl.store(p, tl.trans(x).to(tl.bfloat16).to(x.dtype))\n    p = tl.advance(p, [0, BLOCK])"
    ),
    "descriptors": kernel(
        "d = tl.make_tensor_descriptor(x_ptr, shape=[n, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])\n"
        "d.store([0, 0], d.load([0, 0]).T * 2)"
    ),
    "dropout": kernel(
        "at = tl.arange(0, BLOCK)\nkeep = tl.rand(seed, at) > p\nx = tl.load(x_ptr + at)\n"
        "tl.store(x_ptr + at, tl.where(keep & ~(at >= n), x / (1 - p), 0.0) if TRAIN else x)",
        arguments="x_ptr, n, p: tl.float32, seed: int, BLOCK: tl.constexpr, TRAIN: tl.constexpr = True",
    ),
    "quantise": kernel(
        "x = tl.load(x_ptr + tl.arange(0, BLOCK)).to(tl.float32)\n"
        "scale = tl.maximum(tl.max(tl.abs(x)), 1e-10) / 448.0\n"
        "tl.store(q_ptr + tl.arange(0, BLOCK), tl.clamp(x / scale, -448.0, 448.0).to(tl.float8e4nv))\n"
        "tl.store(s_ptr, scale)\nbits: tl.constexpr = tl.float8e4nv.primitive_bitwidth",
        arguments="x_ptr, q_ptr, s_ptr, /, *, BLOCK: tl.constexpr",
    ),
    "scan": HEAD
    + "@triton.jit\ndef plus(a, b):\n    return a + b\n\n\n"
    + "@triton.jit\ndef k(x_ptr, BLOCK: tl.constexpr):\n    at = x_ptr + tl.arange(0, BLOCK)\n"
    + "    tl.store(at, tl.associative_scan(tl.load(at), 0, plus))\n",
    "windows-line-ends": kernel("tl.store(x_ptr, 1)").replace("\n", "\r\n"),
}

ATTACKS: dict[str, tuple[str, str]] = {
    # what importing the file would run
    "import-os": (top("import os"), "line 5 has `import os`"),
    "import-with": ("import triton, os\n", "`import triton, os`"),
    "import-as": ("import os as tl\n", "`import os as tl`"),
    "import-swapped": ("import triton.language as triton\n", "line 1 has `import"),
    "import-from": (top("from os import system"), "use only `import triton`"),
    "import-star": (top("from triton.language import *"), "use only `import triton`"),
    "import-future": (top("from __future__ import annotations"), "use only `import triton`"),
    "import-libdevice": (top("from triton.language.extra import libdevice"), "use only `import triton`"),
    "top-call": (top("print(1)"), "imports, constants and @triton.jit functions only"),
    "top-if": (top("if True:\n    import os"), "line 5 has an if"),
    "top-loop": (top("for i in range(9): pass"), "line 5 has a for"),
    "top-try": (top("try:\n    import os\nexcept Exception:\n    pass"), "line 5 has a try"),
    "top-with": (top("with open('x'): pass"), "line 5 has a with"),
    "top-delete": (top("del tl"), "line 5 has a delete"),
    "top-assign-call": (top("A = open('/etc/passwd')"), "no plain value"),
    "top-assign-constexpr-of-call": (top("A = tl.constexpr(exec('1'))"), "no plain value"),
    "top-assign-keyword": (top("A = tl.constexpr(value=exec('1'))"), "no plain value"),
    "top-assign-list": (top("A = [exec('1')]"), "no plain value"),
    "top-assign-tuple": (top("A = (1, exec('1'))"), "no plain value"),
    "top-assign-f-string": (top("A = f'{open(0)}'"), "no plain value"),
    "top-assign-power": (top("A = 9 ** 9 ** 9 ** 9"), "no plain value"),
    "top-assign-shift": (top("A = 1 << 99999999999"), "no plain value"),
    "top-assign-repetition": (top("A = 'a' * 99999999999"), "no plain value"),
    "top-assign-growing": (top("A = 9\nB = A * A"), "line 6 gives a constant no plain value"),
    "top-assign-attribute": (top("tl.load = 1"), "line 5 has an assign"),
    "top-assign-chain": (top("A = B = 1"), "line 5 has an assign"),
    "top-annotation-call": (top("A: exec('1') = 1"), "annotation `exec('1')`"),
    "top-annotation-only": (top("A: tl.constexpr"), "no plain value"),
    "top-dunder": (top("__builtins__ = 1"), "a name of Python or Triton"),
    "top-getattr-hook": (HEAD + "@triton.jit\ndef __getattr__(n):\n    return n\n", "a name of Python or Triton"),
    "top-shadowed-builtin": (top("len = 1"), "a name of Python or Triton"),
    "top-shadowed-module": (top("tl = 1"), "a name of Python or Triton"),
    "top-expression": (top("[exec('1') for _ in (1,)]"), "line 5 has an expr"),
    "class": (top("class A:\n    import os"), "line 5 has a class def"),
    "class-keyword": (top("class A(metaclass=print): pass"), "write @triton.jit functions"),
    "async": (top("async def f(): pass"), "as a plain function"),
    "plain-function": (top("def f():\n    import os"), "other decorators than @triton.jit"),
    "decorator-call": (HEAD + "@triton.jit(repr=exec('1'))\ndef k(x):\n    pass\n", "other decorators"),
    "decorator-other": (HEAD + "@triton.jit\n@eval\ndef k(x):\n    pass\n", "other decorators"),
    "decorator-autotune": (HEAD + "@triton.autotune(configs=[], key=[])\n@triton.jit\ndef k(x):\n    pass\n", "other"),
    "decorator-lambda": (HEAD + "@(lambda f: f)\ndef k(x):\n    pass\n", "other decorators"),
    "decorator-subscript": (HEAD + "@[triton.jit][0]\ndef k(x):\n    pass\n", "other decorators"),
    "default-call": (kernel("pass", arguments="x=exec('1')"), "a default that is no constant"),
    "default-keyword-call": (kernel("pass", arguments="*, x=exec('1')"), "a default that is no constant"),
    "default-lambda": (kernel("pass", arguments="x=lambda: 1"), "a default that is no constant"),
    "default-name": (kernel("pass", arguments="x=open"), "a default that is no constant"),
    "annotation-call": (kernel("pass", arguments="x: exec('1')"), "annotation `exec('1')`"),
    "annotation-text": (kernel("pass", arguments="x: 'tl.constexpr'"), "annotation `'tl.constexpr'`"),
    "annotation-subscript": (kernel("pass", arguments="x: tl.constexpr[exec('1')]"), "has the annotation"),
    "annotation-return": (HEAD + "@triton.jit\ndef k(x) -> exec('1'):\n    pass\n", "annotation `exec('1')`"),
    "annotation-local": (kernel("y: open = 1"), "annotation `open`"),
    "star-arguments": (kernel("pass", arguments="*x"), "name every argument"),
    "two-functions": (kernel("pass") + "\n\n@triton.jit\ndef k(x):\n    pass\n", "'k' is defined twice"),
    "function-as-constant": (kernel("pass") + "\n\nk = 1\n", "'k' is defined twice"),
    # what the interpreter would run of a body
    "import-inside": (kernel("import os"), "line 7 has an import"),
    "import-from-inside": (kernel("from os import system"), "line 7 has an import from"),
    "function-inside": (kernel("def f():\n    return 1"), "at the top level"),
    "class-inside": (kernel("class A:\n    pass"), "line 7 has a class def"),
    "global": (kernel("global tl"), "pass the value as an argument"),
    "nonlocal": (kernel("x = 1\nnonlocal n"), "line 8 "),
    "lambda": (kernel("f = lambda: 1"), "line 7 has a lambda"),
    "lambda-argument": (kernel("x = tl.reduce(n, 0, lambda a, b: a)"), "write a @triton.jit function"),
    "walrus": (kernel("if (y := n): pass"), "a statement of its own"),
    "walrus-of-module": (kernel("x = (tl := n)"), "a statement of its own"),
    "list-comprehension": (kernel("x = [open(i) for i in range(3)]"), "a loop over tl.static_range"),
    "generator": (kernel("x = max(open(i) for i in range(3))"), "a loop over tl.static_range"),
    "dict-comprehension": (kernel("x = {i: exec('1') for i in range(3)}"), "a loop over tl.static_range"),
    "f-string": (kernel("x = f'{open(0)}'"), "has a joined str"),
    "f-string-nested": (kernel("tl.static_assert(n > 1, f'{n!r:{open(0)}}')"), "has a joined str"),
    "exec": (kernel("exec('import os')"), "calls 'exec'"),
    "eval": (kernel("x = eval('1')"), "calls 'eval'"),
    "open": (kernel("x = open(0)"), "calls 'open'"),
    "compile": (kernel("x = compile('1', 'x', 'exec')"), "calls 'compile'"),
    "import-function": (kernel("x = __import__('os')"), "calls '__import__'"),
    "getattr": (kernel("x = getattr(tl, 'load')"), "calls 'getattr'"),
    "hasattr": (kernel("x = hasattr(n, 'x')"), "calls 'hasattr'"),
    "print": (kernel("print('secret', n)"), "calls 'print'"),
    "globals": (kernel("x = globals()['__builtins__']"), "calls 'globals'"),
    "breakpoint": (kernel("breakpoint()"), "calls 'breakpoint'"),
    "builtin-as-value": (kernel("f = open"), "uses 'open'"),
    "builtin-as-argument": (kernel("x = tl.reduce(n, 0, print)"), "uses 'print'"),
    "builtin-renamed": (kernel("f = eval\nf('1')"), "uses 'eval'"),
    "argument-called": (kernel("x = n(1)"), "calls 'n'"),
    "result-called": (kernel("x = tl.load(x_ptr)(1)"), "call functions by their names"),
    "subscript-called": (kernel("x = [tl][0].load(x_ptr)"), "uses 'tl'"),
    "module-as-value": (kernel("x = triton"), "uses 'triton'"),
    "function-as-value": (kernel("f = tl.load"), "functions are only called"),
    "function-as-argument": (kernel("x = tl.reduce(n, 0, tl.device_print)"), "functions are only called"),
    "shadowed-module": (kernel("tl = n"), "gives 'tl' another meaning"),
    "shadowed-by-argument": (kernel("pass", arguments="tl"), "gives 'tl' another meaning"),
    "shadowed-by-loop": (kernel("for triton in range(3): pass"), "gives 'triton' another meaning"),
    "shadowed-builtin": (kernel("range = n"), "gives 'range' another meaning"),
    "shadowed-function": (kernel("k = n"), "gives 'k' another meaning"),
    "dunder-class": (kernel("x = ().__class__"), "the attribute .__class__"),
    "dunder-subclasses": (kernel("x = ().__class__.__base__.__subclasses__()"), "the method .__subclasses__"),
    "dunder-globals": (kernel("x = tl.load.__globals__"), "`tl.load.__globals__`"),
    "dunder-builtins-of-module": (kernel("x = tl.__builtins__"), "`tl.__builtins__`"),
    "dunder-variable": (kernel("__x = 1"), "gives '__x' another meaning"),
    "attribute-handle": (kernel("x = n.handle.data"), "the attribute .data"),
    "attribute-of-dtype": (kernel("x = tl.float32.__init__"), "the attribute .__init__"),
    "method-of-dtype": (kernel("x = tl.float32.mangle()"), "the method .mangle"),
    "format": (kernel("x = '0.__class__'.format(n)"), "the method .format"),
    "text-with-braces": (kernel("x = '{0.__class__}'"), "has the text"),
    "text-with-path": (kernel("x = '/etc/passwd'"), "has the text"),
    "bytes": (kernel("x = b'1'"), "type bytes"),
    "assign-attribute": (kernel("tl.load = n"), "assign to variables"),
    "assign-subscript": (kernel("n[0] = 1"), "assign to variables"),
    "assign-starred": (kernel("a, *b = n, n"), "assign to variables"),
    "assign-in-loop": (kernel("for n.x in range(3): pass"), "assign to variables"),
    "delete": (kernel("del n"), "line 7 has a delete"),
    "loop-over-value": (kernel("for i in n: pass"), "than a range"),
    "loop-over-other": (kernel("for i in tl.load(x_ptr): pass"), "than a range"),
    "try": (kernel("try:\n    pass\nfinally:\n    pass"), "line 7 has a try"),
    "try-star": (kernel("try:\n    pass\nexcept* n:\n    pass"), "line 7 has a try star"),
    "break": (kernel("while n:\n    break"), "a condition of the loop"),
    "type-alias": (kernel("type A = open(0)"), "line 7 "),
    "await": (kernel("x = await n"), "line 7 "),
    "with": (kernel("with n: pass"), "line 7 has a with"),
    "raise": (kernel("raise n"), "line 7 has a raise"),
    "assert": (kernel("assert n, open(0)"), "use tl.static_assert"),
    "yield": (kernel("yield n"), "line 7 has an expr"),
    "match": (kernel("match n:\n    case 1:\n        pass"), "line 7 has a match"),
    "star-call": (kernel("tl.store(*n)"), "write each argument out"),
    "double-star-call": (kernel("tl.store(**n)"), "passes `**`"),
    "private-option": (kernel("tl.store(x_ptr, 1, _semantic=n)"), "passes `_semantic`"),
    "matrix-operator": (kernel("x = n @ n"), "has a mat mult"),
    "power": (kernel("x = 9 ** 9 ** 9"), "line 7 has a pow"),
    "membership": (kernel("x = n in n"), "line 7 has an in"),
    "inline-asm": (
        kernel('x = tl.inline_asm_elementwise("trap;", "=r", [n], dtype=tl.int32, is_pure=False, pack=1)'),
        "calls `tl.inline_asm_elementwise`",
    ),
    "extra": (kernel("x = tl.extra.cuda.globaltimer()"), "calls `tl.extra.cuda.globaltimer`"),
    "extra-as-value": (kernel("x = tl.extra"), "`tl.extra`"),
    "core": (kernel("x = tl.core.inspect.os.system('x')"), "calls `tl.core.inspect.os.system`"),
    "math-module": (kernel("x = tl.math.core.os"), "`tl.math.core.os`"),
    "device-print": (kernel('tl.device_print("pid %s", n)'), "calls `tl.device_print`"),
    "static-print": (kernel("tl.static_print(n)"), "calls `tl.static_print`"),
    "device-assert": (kernel("tl.device_assert(n > 1)"), "calls `tl.device_assert`"),
    "map-elementwise": (kernel("x = tl.map_elementwise(k, n)"), "calls `tl.map_elementwise`"),
    "pointer-of-number": (kernel("p = n.to(tl.pointer_type(tl.float32))"), "calls `tl.pointer_type`"),
    "triton-knobs": (kernel("x = triton.knobs.build"), "`triton.knobs.build`"),
    "triton-compile": (kernel("x = triton.compile(n)"), "calls `triton.compile`"),
    "runtime": (kernel("x = triton.runtime.jit.os.system('x')"), "calls `triton.runtime"),
    # what readers of the text could see differently
    "look-alike": (kernel("ｅxec('1')"), "holds 'ｅ' (U+FF45)"),
    "look-alike-cyrillic": (kernel("\u0445 = 1"), "U+0445"),
    "look-alike-in-text": (kernel("x = 'a\u0430'"), "U+0430"),
    "invisible": (kernel("x = n  # \u202e 1"), "line 7 holds the invisible character U+202E"),
    "byte-order-mark": ("\ufeff" + kernel("pass"), "U+FEFF"),
    "null": (kernel("x = 1\0"), "U+0000"),
    "form-feed": (kernel("x = 1\f"), "U+000C"),
    "lone-carriage-return": (kernel("x = 1  # \rimport os"), "U+000D"),
    "encoding": ("# -*- coding: utf-7 -*-\n" + kernel("pass  # +AAo-import os"), "line 1 names the encoding 'utf-7'"),
    "encoding-second-line": ("#\n# vim: set fileencoding=rot13 :\n" + kernel("pass"), "line 2 names the encoding"),
    "joined-definition": (
        HEAD + '@triton.jit\ndef \\\nk(x):\n    """\ndef k(x):\n    import os\n"""\n    pass\n',
        "line 6 ends with a backslash",
    ),
    "type-parameter": (HEAD + "@triton.jit\ndef k[T: exec('1')](x):\n    pass\n", "line 6 "),
    "header-in-text": (
        # taken out, it takes the end of the first text along: what is text here is code there
        '"""\n# /// kernelwright\n# [parameters]\n# A = { values = [1, 2], default = 1, why = """\n# a""" }\n'
        '# [launch]\n# entry = "k"\n# grid = ["1"]\n# ///\n'
        + HEAD
        + '@triton.jit\ndef k(x):\n    """\nimport os\n"""\n    pass\n# """\n',
        "its header stands inside a text",
    ),
    "header-in-block-text": ('"""/*\n/// kernelwright\nnames = []\n///\n*/"""\n' + kernel("pass"), "inside a text"),
    "header-in-function": (
        HEAD + '@triton.jit\ndef k(x):\n    """\n    # /// kernelwright\n    # ///\n    """\n    pass\n',
        "its header stands inside a text",
    ),
    # what would only cost time
    "large-number": (kernel(f"x = {10**30}"), "more than 64 bits"),
    "huge-number": (kernel(f"x = {'9' * 5000}"), ""),
    "huge-number-as-annotation": (kernel(f"x: 0x{'f' * 5000} = 1"), "has the annotation"),
    "huge-number-as-function": (kernel(f"x = (0x{'f' * 5000})(1)"), "call functions by their names"),
    "long": (kernel("x = 1\n" * 20_000), "at most 100000 are taken"),
    "deep-operators": (kernel(f"x = {'-' * 200}n"), "more than 80 levels"),
    "many-branches": (kernel("if n:\n    pass\n" + "elif n:\n    pass\n" * 3000), "shorter expressions"),
    "many-subscripts": (kernel("x = n" + "[0]" * 30_000), "shorter expressions"),
    "many-calls": (kernel("x = n" + ".to(n)" * 15_000), "shorter expressions"),
    "many-words": (kernel("x = " + "not " * 20_000 + "n"), "shorter expressions"),
    "very-deep-operators": (kernel(f"x = {'~' * 20_000}n"), ""),
    "deep-brackets": (kernel(f"x = {'(' * 5000}n{')' * 5000}"), ""),
    "no-python": (kernel("x = = 1"), "line 7 is no Python"),
    "c-source": ("__global__ void k(float *x) { x[0] = 1; }\n", "line 1 is no Python"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes(name: str) -> None:
    check_triton_source(HONEST[name])


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_that_python_would_run_passes(name: str) -> None:
    source, words = ATTACKS[name]
    with pytest.raises(Malformed, match="the Triton source is refused") as refusal:
        check_triton_source(source)
    _, _, said = str(refusal.value).partition("refused: ")
    assert words in said
    assert ": " in said or "at most" in said  # what to do instead
