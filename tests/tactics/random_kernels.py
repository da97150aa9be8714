"""Random kernels of index arithmetic, loops, conditions, helpers, macros and moving pointers."""

from __future__ import annotations

from hypothesis import strategies as st

HELPERS = """#define AT(r, c, w) ((r) * (w) + (c))
#define TWICE(x) (x + x)
#define WIDTH 3
__device__ int pick(int a, int b) { if (a > b) return a; return b; }
__device__ int line(int a, int b, int w) { int r = a; r *= w; return r + b; }
__device__ void put(float *p, int i, float v) { if (i > 1) { p[i] = v; return; } p[i + n_of(i)] = v; }
__device__ int n_of(int i) { int s = 0; for (int q = 0; q < 2; ++q) s += i; return s; }
"""
NAMES = ("t", "u", "v")


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...], depth: int = 2) -> str:
    """An integer expression over the names."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaves = (*names, "n", "m", "(int)threadIdx.x", "(int)blockIdx.x", "1", "2", "3", "WIDTH", "(int)blockDim.x")
        return draw(st.sampled_from(leaves))
    left, right = (draw(expressions(names, depth - 1)) for _ in range(2))
    form = draw(st.sampled_from((
        "({} + {})", "({} - {})", "({} * {})", "{} + 2 * {}", "({} / 4) + {}", "({} % 3) * {}", "AT({}, {}, n)",
        "line({}, {}, m)", "pick({}, {})", "TWICE({} + {})", "({} > {} ? 1 : 2)", "min({}, {})", "({} << 1) + {}",
        "(int)({}) + (long){}", "(int)(blockIdx.x * blockDim.x + threadIdx.x) + {} * {}", "n_of({}) - {}",
    )))  # fmt: skip
    return form.format(left, right)


@st.composite
def conditions(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    """A comparison, or two of them joined."""
    left, right = (draw(expressions(names, 1)) for _ in range(2))
    one = f"{left} {draw(st.sampled_from(('<', '<=', '>', '>=', '==', '!=')))} {right}"
    form = draw(st.sampled_from(("{0}", "!({0})", "{0} && {1} < n", "{0} || {1} >= m", "!({0} || t > 3)", "{1} < 5")))
    return form.format(one, draw(st.sampled_from(names)))


@st.composite
def statements(draw: st.DrawFn, names: tuple[str, ...], depth: int, loops: int) -> str:
    """One statement, perhaps with others in it."""
    kind = draw(st.integers(0, 13 if depth else 7))
    name = draw(st.sampled_from(NAMES))
    value = draw(expressions(names))
    match kind:
        case 0 | 1:
            return f"{name} = {value};"
        case 2:
            return f"{name} {draw(st.sampled_from(('+=', '-=', '*=')))} {value};"
        case 3:
            return draw(
                st.sampled_from((f"{name}++;", f"--{name};", f"p += {value};", "p = a + t;", f"q = &b[{value}];"))
            )
        case 4:
            return f"a[{value}] = b[{draw(expressions(names))}];"
        case 5:
            return f"p[{value}] += *(q + {draw(expressions(names, 1))});"
        case 6:
            return f"tile[{value}][{draw(expressions(names, 1))}] = *q;"
        case 7:
            return f"put({draw(st.sampled_from(('a', 'p', 'a + n')))}, {value}, b[{name}]);"
    if kind in (8, 9):
        inner = draw(blocks(names, depth - 1, loops))
        return f"if ({draw(conditions(names))}) {inner}" + (
            f" else {draw(blocks(names, depth - 1, loops))}" if draw(st.booleans()) else ""
        )
    if kind == 10:
        leave = "return;" if not loops else draw(st.sampled_from(("return;", "break;", "continue;")))
        return f"if ({draw(conditions(names))}) {leave}"
    return draw(counted_loops(names, depth, loops))


@st.composite
def counted_loops(draw: st.DrawFn, names: tuple[str, ...], depth: int, loops: int) -> str:
    """A loop that ends."""
    counter = f"c{loops}"
    inner = draw(blocks((*names, counter), depth - 1, loops + 1))
    start = draw(st.sampled_from(("0", "1", "t", "(int)threadIdx.x", "m")))
    bound = draw(st.sampled_from(("n", "4", "m + 1", "n * 2")))
    form = draw(st.integers(0, 4))
    if form == 0:
        return f"for (int {counter} = {start}; {counter} < {bound}; ++{counter}) {inner}"
    if form == 1:
        return f"for (int {counter} = {bound}; {counter} > 0; {counter} -= 2) {inner}"
    if form == 2:
        step = draw(st.sampled_from(("(int)blockDim.x", "2", "WIDTH", "(int)(blockDim.x * gridDim.x)")))
        moved = draw(st.sampled_from(("p += n", "u += 2", "v++")))
        return f"for (int {counter} = {start}; {counter} <= {bound}; {counter} += {step}, {moved}) {inner}"
    if form == 3:
        return f"for (int {counter} = 4; {counter}; {counter} >>= 1) {inner}"
    body = draw(blocks((*names, counter), depth - 1, 0)).rstrip("}")
    return f"{{ int {counter} = {start}; while ({counter} < {bound}) {body} {counter} += 1; }} }}"


@st.composite
def blocks(draw: st.DrawFn, names: tuple[str, ...], depth: int, loops: int) -> str:
    """Some statements between braces; sometimes with a variable that hides another."""
    found = [draw(statements(names, depth, loops)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.integers(0, 4)) == 0:
        found.insert(0, f"int {draw(st.sampled_from(NAMES))} = {draw(expressions(names, 1))};")
    return "{ " + " ".join(found) + " }"


@st.composite
def kernels(draw: st.DrawFn) -> str:
    """A CUDA source with one kernel."""
    body = " ".join(draw(statements(NAMES, 3, 0)) for _ in range(draw(st.integers(1, 6))))
    starts = [draw(expressions(("n",), 1)) for _ in NAMES]
    return HELPERS + (
        "__global__ void f(float *a, const float *b, int n, int m, int k) { __shared__ float tile[4][5];\n"
        f"int t = {starts[0]}, u = {starts[1]}, v = {starts[2]}; float *p = a; const float *q = b; {body}\n"
        "a[t + u] = p[v] + tile[t][u]; }\n"
    )
