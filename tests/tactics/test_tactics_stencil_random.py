"""Random stencils and contractions: what tactics make of them equals them on random inputs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from opencl_runs import Runner
from tiling_runs import CPU, GPU, Plain, differences, subject_of

from kernelwright.tactics.base import Rewrite
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES
from kernelwright.tactics.stencil.tiles import STENCIL_TILES
from tiers import TIMES


def random_stencil(maker: random.Random) -> Plain:
    """Reads at random offsets, in one of several styles of guarding them."""
    reach = maker.choice((1, 1, 2, 3))
    index, size = maker.choice((("int", "int"), ("int", "int"), ("uint", "uint"), ("size_t", "int"), ("uint", "int")))
    if index != "int":
        return unsigned_stencil(maker, reach, index, size)
    places = {(maker.randint(-reach, reach), maker.randint(-reach, reach)) for _ in range(maker.randint(2, 6))}
    style = maker.choice(("return", "inside", "border", "ternary", "clamped", "row"))
    c_type, dtype = maker.choice((("float", "float32"), ("int", "int32"), ("double", "float64")))
    lines, terms = [], []
    for number, (dx, dy) in enumerate(sorted(places)):
        at = f"x[(j + {dy}) * w + i + {dx}]"
        if style == "ternary":
            conditions = [f"i + {dx} >= 0" if dx < 0 else f"i + {dx} < w", f"j + {dy} >= 0 && j + {dy} < h"]
            lines.append(f"{c_type} v{number} = {' && '.join(conditions)} ? {at} : {number};")
        elif style == "clamped":
            lines.append(f"{c_type} v{number} = x[clamp(j + {dy}, 0, h - 1) * w + min(max(i + {dx}, 0), w - 1)];")
        elif style == "row":
            lines.append(f"{c_type} v{number} = x[j * w + i] + {at.replace(f'(j + {dy})', 'j')};")
        else:
            lines.append(f"{c_type} v{number} = {at};")
        terms.append(f"{maker.randint(1, 5)} * v{number}")
    made = f"y[j * w + i] = {' + '.join(terms)};"
    inner = f"i >= {reach} && i < w - {reach} && j >= {reach} && j < h - {reach}"
    outer = f"i < {reach} || i >= w - {reach} || j < {reach} || j >= h - {reach}"
    whole = "\n    ".join([*lines, made])
    body = {
        "return": f"if ({outer}) return;\n    {whole}",
        "inside": f"if ({inner}) {{\n    {whole}\n  }}",
        "border": f"if (i >= w || j >= h) return;\n  if ({outer}) y[j * w + i] = x[j * w + i];\n  else {{ {whole} }}",
        "ternary": f"if (i < w && j < h) {{ {whole} }}",
        "clamped": f"if (i >= w) return;\n  if (j >= h) return;\n  {whole}",
        "row": f"if (j >= h || i < {reach} || i + {reach} >= w) return;\n  {whole}",
    }[style]
    axes = maker.choice(((0, 1), (1, 0)))
    source = f"""__kernel void f(__global const {c_type} *x, __global {c_type} *y, const int h, const int w) {{
  const int i = get_global_id({axes[0]}), j = get_global_id({axes[1]});
  {body}
}}
"""
    arguments = {"x": f"in {dtype} h,w", "y": f"inout {dtype} h,w", "h": "scalar int32 h", "w": "scalar int32 w"}
    extents = {axes[0]: "ceil_div(w, 8)", axes[1]: "ceil_div(h, 8)"}
    sizes = tuple({"h": maker.randint(1, 40), "w": maker.randint(1, 150)} for _ in range(2))
    return Plain(style, "opencl", source, arguments, (extents[0], extents[1]), ("8", "8"), (*sizes, {"h": 3, "w": 3}))


def unsigned_stencil(maker: random.Random, reach: int, index: str, size: str) -> Plain:
    """The same with unsigned places, whose guards rely on numbers that wrap around."""
    places = {(maker.randint(-reach, reach), maker.randint(-reach, reach)) for _ in range(maker.randint(2, 6))}
    style = maker.choice(("own", "own", "border", "inside", "variable"))
    lines, terms = [], []
    for number, (dx, dy) in enumerate(sorted(places)):
        at = f"x[(j + {dy}) * w + i + {dx}]" if maker.random() < 0.5 else f"x[j * w + i + {dy} * w + {dx}]"
        beside = (f"i - {-dx}" if dx < 0 else f"i + {dx}u"), (f"j - {-dy}u" if dy < 0 else f"j + {dy}")
        if style == "own":
            conditions = maker.choice(
                (f"{beside[0]} < w && {beside[1]} < h", f"!(w <= {beside[0]} || {beside[1]} >= h)")
            )
            lines.append(f"float v{number} = {conditions} ? {at} : {number};")
        elif style == "variable":
            lines.append(f"const {index} p{number} = {beside[0]}, q{number} = {beside[1]};")
            lines.append(f"float v{number} = {number}; if (p{number} < w && q{number} < h) v{number} = {at};")
        else:
            lines.append(f"float v{number} = {at};")
        terms.append(f"{maker.randint(1, 5)} * v{number}")
    whole = "\n    ".join([*lines, f"y[j * w + i] = {' + '.join(terms)};"])
    outer = f"i - {reach} >= w - {2 * reach} || j - {reach}u >= h - {2 * reach}"
    kept = "y[j * w + i] = x[j * w + i];"
    body = {
        "border": f"if (i >= w || j >= h) return;\n  if ({outer}) {{ {kept} return; }}\n  {whole}",
        "inside": f"if (i - {reach} < w - {2 * reach} && !(j - {reach} >= h - {2 * reach})) {{ {whole} }}",
    }.get(style, f"if (i < w && j < h) {{ {whole} }}")
    source = f"""__kernel void f(__global const float *x, __global float *y, const {size} h, const {size} w) {{
  const {index} i = get_global_id(0), j = get_global_id(1);
  {body}
}}
"""
    dtype = {"int": "int32", "uint": "uint32"}[size]
    arguments = {"x": "in float32 h,w", "y": "inout float32 h,w", "h": f"scalar {dtype} h", "w": f"scalar {dtype} w"}
    least = 2 * reach  # below, bounds of the plain kernel itself wrap around
    sizes = tuple({"h": maker.randint(least, 40), "w": maker.randint(least, 150)} for _ in range(2))
    return Plain(
        f"{index}-{style}", "opencl", source, arguments, ("ceil_div(w, 8)", "ceil_div(h, 8)"), ("8", "8"),
        (*sizes, {"h": 2 * reach, "w": 2 * reach + 1}),
    )  # fmt: skip


def random_contraction(maker: random.Random) -> Plain:
    """Random layouts of all three matrices, ways of summing, guards and epilogues."""
    turned = [maker.random() < 0.5 for _ in range(3)]
    a = "a[l * m + i]" if turned[0] else "a[i * k + l]"
    b = "b[j * k + l]" if turned[1] else "b[l * n + j]"
    c = "c[j * m + i]" if turned[2] else "c[i * n + j]"
    shapes = {
        "a": "k,m" if turned[0] else "m,k",
        "b": "n,k" if turned[1] else "k,n",
        "c": "n,m" if turned[2] else "m,n",
    }
    c_type, dtype = maker.choice((("float", "float32"), ("double", "float64"), ("int", "int32")))
    product = maker.choice((f"s += {a} * {b};", f"s = s + {b} * {a};", f"s += 2 * {a} * {b};",
                            f"{c_type} p = {a}; {c_type} q = {b}; s += p * q;"))  # fmt: skip
    first, operator = maker.choice((("0", "<"), ("0", "!="), ("k / 3", "<")))
    end = maker.choice((f"{c} = s;", f"{c} = 3 * s - {c};", f"if (s > 1) {c} = s; else {c} = -s;", f"s += i; {c} = s;"))
    guard = maker.choice(("if (i >= m || j >= n) return;", "if (i >= m) return;\n  if (n <= j) return;"))
    start = maker.choice(("0", "j", "b[0]"))
    axes = maker.choice(((0, 1), (1, 0)))
    source = f"""__kernel void f(__global const {c_type} *a, __global const {c_type} *b, __global {c_type} *c,
                const int m, const int n, const int k) {{
  const int j = get_global_id({axes[0]}), i = get_global_id({axes[1]});
  {guard}
  {c_type} s = {start};
  for (int l = {first}; l {operator} k; ++l) {{ {product} }}
  {end}
}}
"""
    arguments = {
        "a": f"in {dtype} {shapes['a']}", "b": f"in {dtype} {shapes['b']}", "c": f"inout {dtype} {shapes['c']}",
        "m": "scalar int32 m", "n": "scalar int32 n", "k": "scalar int32 k",
    }  # fmt: skip
    extents = {axes[0]: "ceil_div(n, 8)", axes[1]: "ceil_div(m, 8)"}
    sizes = tuple({name: maker.randint(1, 90) for name in "mnk"} for _ in range(2))
    return Plain("random", "opencl", source, arguments, (extents[0], extents[1]), ("8", "8"), sizes)


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(6 * TIMES))
def test_random_stencils_stay_what_they_are(seed: int, tmp_path: Path, runner: Runner) -> None:
    maker = random.Random(seed)
    plain = random_stencil(maker)
    subject = subject_of(plain, tmp_path, (CPU, GPU)[seed % 2])
    rewrite = STENCIL_TILES.apply(subject)
    if not isinstance(rewrite, Rewrite):
        pytest.skip(f"{plain.name}: {rewrite.reason}")
    for sizes in plain.sizes:
        assert not differences(runner, subject, rewrite, sizes, count=2, seed=seed, rtol=2e-6), plain.source


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(6 * TIMES))
def test_random_contractions_stay_what_they_are(seed: int, tmp_path: Path, runner: Runner) -> None:
    maker = random.Random(1000 + seed)
    plain = random_contraction(maker)
    subject = subject_of(plain, tmp_path, (CPU, GPU)[seed % 2])
    rewrite = CONTRACTION_TILES.apply(subject)
    if not isinstance(rewrite, Rewrite):
        pytest.skip(rewrite.reason)
    for sizes in plain.sizes:
        assert not differences(runner, subject, rewrite, sizes, count=1, seed=seed, rtol=1e-5), plain.source
