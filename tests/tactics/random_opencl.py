"""Random OpenCL kernels that tactics should understand, each with arguments, a launch and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The length of the tree in `joined` is a number: with `get_local_size(0) / 2` PoCL 3.0 crashes while it compiles.
HELPERS = """
#define JOIN_FROM 8
static float soft(float v) { const float t = exp(-fabs(v)); return t / (1.0f + t); }
static float mix2(float a, float b) { float m = 0.25f * a; m += 0.75f * b; return m; }
static int at(int r, int c, int ld) { return r * ld + c; }
static float joined(float v, __local float *sh) {
  const int t = get_local_id(0);
  sh[t] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = JOIN_FROM; s > 0; s >>= 1) { if (t < s) sh[t] += sh[t + s]; barrier(CLK_LOCAL_MEM_FENCE); }
  const float r = sh[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return r;
}
static float added(float v, __local float *sh) {
  sh[get_local_id(0)] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  float all = 0.0f;
  for (int q = 0; q < get_local_size(0); ++q) all += sh[q];
  barrier(CLK_LOCAL_MEM_FENCE);
  return all;
}
"""


@dataclass(frozen=True)
class Program:
    """One kernel `f`."""

    source: str
    arguments: dict[str, str]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    sizes: tuple[dict[str, int], ...]


class _Maker:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.names: list[str] = []
        self.count = 0

    def one(self, *choices: str) -> str:
        return choices[int(self.random.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def leaf(self, loads: list[str]) -> str:
        choices = [*loads, *loads, "s", "0.5f", "1.25f", *self.names]
        return self.one(*choices)

    def value(self, loads: list[str], depth: int = 2) -> str:
        """A float expression whose size stays moderate."""
        if depth == 0 or self.chance(0.2):
            return self.leaf(loads)
        a, b = self.value(loads, depth - 1), self.value(loads, depth - 1)
        form = self.one(
            "{a} + {b}", "({a} - {b})", "0.5f * {a} * ({b})", "fmax({a}, {b})", "fmin({a}, 1.5f)", "soft({a})",
            "mix2({a}, {b})", "fabs({a})", "sqrt(fabs({a}) + 0.1f)", "({a}) / (1.0f + fabs({b}))",
            "({l} > 0.25f ? {a} : {b})", "fma({a}, 0.5f, {b})", "-({a})", "(n > 5 ? {a} : {b})", "({a}) * k",
        )  # fmt: skip
        return form.format(a=a, b=b, l=self.one(*loads))

    def statements(self, loads: list[str], count: int) -> list[str]:
        """Declarations and updates of data variables."""
        lines = []
        for _ in range(count):
            kind = self.random.integers(6)
            if not self.names or kind < 2:
                name = f"v{self.count}"
                self.count += 1
                lines.append(f"{self.one('float', 'const float ', 'float').strip()} {name} = {self.value(loads)};")
                if not lines[-1].startswith("const"):
                    self.names.append(name)
                continue
            name = self.one(*self.names)
            value = self.value(loads, 1)
            lines.append(self.one(
                f"{name} = {value};", f"{name} += {value};", f"{name} *= 0.5f;",
                f"if ({self.one(*loads)} < 0.1f) {name} = {value if '[' not in value else '0.75f'};",
                f"if (n > 3) {{ {name} -= {value}; }} else {name} += 0.5f;",
                f"for (int q = 0; q < k; ++q) {{ {name} = 0.5f * {name} + {self.leaf(loads)}; }}",
            ))  # fmt: skip
        return lines

    def neighbour(self, place: str, index: str) -> list[str]:
        """An element beside the own one, guarded in an unsigned, narrow or wide type."""
        name, by = f"g{self.count}", int(self.random.integers(1, 4))
        self.count += 1
        c_type = self.one("uint", "uint", "size_t", "ulong", "ushort", "short", "int", "long")
        at, last = f"({c_type}){index}", f"({c_type})n"
        below, above = f"{at} - {by}", f"{at} + {by}"
        if c_type in ("uint", "size_t", "ulong"):
            form = self.one(f"{below} < {last}", f"{last} > {below}", f"!({below} >= {last})", f"{below} <= {last} - 1")
        elif c_type in ("ushort", "short"):
            form = self.one(f"{below} >= 0", f"{index} >= {by} && {below} < {last}", f"(uint)({below}) < (uint)n")
        else:
            form = self.one(f"{below} >= 0", f"!({below} < 0)")
        sign = "-" if self.chance(0.7) else "+"
        condition = form if sign == "-" else self.one(f"{above} < {last}", f"!({last} <= {above})")
        self.names.append(name)
        if self.chance(0.5):
            return [f"float {name} = 0.5f;", f"if ({condition}) {name} += a[{place} {sign} {by}];"]
        return [f"float {name} = {condition} ? a[{place} {sign} {by}] : 0.25f;"]

    def map(self) -> Program:
        """One element a thread."""
        is_plane = self.chance(0.5)
        index = self.one("get_global_id(0)", "get_group_id(0) * get_local_size(0) + get_local_id(0)")
        c_type = self.one("int", "const int", "const size_t", "uint")
        place = self.one("y * n + x", "at(y, x, n)", "n * y + x") if is_plane else "x"
        loads = [f"a[{place}]", f"b[{place}]"] + (["w[x]", "w[y]"] if is_plane else ["w[0]"])
        if self.chance(0.3):
            loads.append("b[x]")
        body = [f"{c_type} x = {index};"]
        if is_plane:
            body.append("const int y = get_global_id(1);")
        lines = self.neighbour(place, "x") if self.chance(0.35) else []
        lines += self.neighbour(place, "x") if lines and self.chance(0.5) else []
        lines += self.statements(loads, int(self.random.integers(1, 5)))
        last = self.value(loads)
        lines.append(f"o[{place}] = {last};")
        if self.chance(0.3):
            lines.append(f"p[{place}] {self.one('=', '+=')} {self.leaf(loads)};")
        condition = "x < n && y < m" if is_plane else "x < n"
        opposite = "x >= n || y >= m" if is_plane else "x >= n"
        if self.chance(0.5):
            body += [f"if ({opposite}) return;", *lines]
        elif not is_plane and self.chance(0.4):
            body = [f"for (int x = {index}; x < n; x += get_global_size(0)) {{", *lines, "}"]
        else:
            body += [f"if ({condition}) {{", *lines, "}"]
        shape = "m,n" if is_plane else "n"
        arguments = {"a": f"in float32 {shape}", "b": f"in float32 {shape}", "w": "in float32 n+m",
                     "o": f"out float32 {shape}", "p": f"inout float32 {shape}"}  # fmt: skip
        grid = ("ceil_div(n, 8)", "ceil_div(m, 4)") if is_plane else ("ceil_div(n, 16)",)
        return self._program(body, arguments, grid, ("8", "4") if is_plane else ("16",))

    def rows(self) -> Program:
        """One row a thread."""
        body = ["const int y = get_global_id(0);"]
        load = self.one("a[y * n + c]", "a[at(y, c, n)]", "row[c]")
        inner = ["__global const float *row = a + y * n;"] if load == "row[c]" else []
        loads = [load, "w[c]"]
        made = []
        for _ in range(int(self.random.integers(1, 4))):
            name = f"r{self.count}"
            self.count += 1
            value = self.value(loads, 1)
            form = self.random.integers(5)
            start = "0.0f" if form < 2 else self.one("-9.0f", "a[y * n]")
            join = (f"{name} += {value};", f"{name} = {name} + {value};", f"{name} = fmax({name}, {value});",
                    f"{{ const float e = {value}; if (e > {name}) {name} = e; }}",
                    f"{{ const float e = {value}; {name} = e < {name} ? {name} : e; }}")[form]  # fmt: skip
            first = self.one("0", "0", "1") if form >= 2 else "0"
            inner += [f"float {name} = {start};", f"for (int c = {first}; c < n; ++c) {join}"]
            made.append(name)
            self.names.append(name)
        if self.chance(0.7):
            inner.append(f"for (int c = 0; c < n; c++) {{ o[y * n + c] = {self.value([*loads, *made])} / 2.0f; }}")
        else:
            inner.append("for (int c = 0; c < n; c++) o[y * n + c] = 0.0f;")
        inner.append(f"p[y] = {' + '.join(made)};")
        guard = self.chance(0.5)
        body += ["if (y >= m) { return; }", *inner] if guard else ["if (y < m) {", *inner, "}"]
        arguments = {"a": "in float32 m,n", "b": "in float32 n", "w": "in float32 n+m", "o": "out float32 m,n",
                     "p": "inout float32 m"}  # fmt: skip
        return self._program(body, arguments, ("ceil_div(m, 8)",), ("8",))

    def blocks(self) -> Program:
        """One row a block."""
        loads = ["row[c]", "w[c]"]
        walk = "for (int c = get_local_id(0); c < n; c += get_local_size(0))"
        body = ["__local float sh[16];", "__global const float *row = a + get_group_id(0) * n;"]
        for _ in range(int(self.random.integers(1, 3))):
            name, total = f"r{self.count}", f"t{self.count}"
            self.count += 1
            body += [f"float {name} = 0.0f;", f"{walk} {{ {name} += {self.value(loads, 1)}; }}",
                     f"const float {total} = {self.one('joined', 'added')}({name}, sh) / n;"]  # fmt: skip
            self.names.append(total)
        body.append(f"{walk} o[get_group_id(0) * n + c] = {self.value(loads)};")
        if self.chance(0.5):
            body.append(f"if (get_local_id(0) == 0) p[get_group_id(0)] = {self.names[-1]};")
        arguments = {"a": "in float32 m,n", "b": "in float32 n", "w": "in float32 n+m", "o": "out float32 m,n",
                     "p": "inout float32 m"}  # fmt: skip
        return self._program(body, arguments, ("m",), ("16",))

    def inline(self) -> Program:
        """One row a block, joined in the kernel's own body: sum or largest, in one of several ways."""
        operation = self.one("sum", "max")
        both = "{0} + {1}" if operation == "sum" else "fmax({0}, {1})"
        loads = ["row[c]", "w[c]"]
        place = self.one("get_local_id(0)", "t", "t")
        body = ["__local float sh[16];", "__global const float *row = a + get_group_id(0) * n;",
                "const int t = get_local_id(0);"]  # fmt: skip
        walk = f"for (int c = {place}; c < n; c += get_local_size(0))"
        value = self.value(loads, 1)
        start, joined = ("0.0f", f"r += {value};") if operation == "sum" else ("-9.0f", f"r = fmax(r, {value});")
        is_row = self.chance(0.7)
        given = "r"
        if is_row:
            body += [f"float r = {start};", f"{walk} {{ {joined} }}"]
        else:
            given = f"(t < n ? {self.value(['row[t]', 'w[t]'], 1)} : {start})"
        body += [f"sh[{place}] = {given};", "barrier(CLK_LOCAL_MEM_FENCE);"]
        join = both.format(f"sh[{place}]", f"sh[{place} + s]")
        tree = (
            f"for (int s = 8; s > 0; s /= 2) {{ if ({place} < s) sh[{place}] = {join}; barrier(CLK_LOCAL_MEM_FENCE); }}"
        )
        serial = f"float all = sh[0]; for (int q = 1; q < 16; ++q) all = {both.format('all', 'sh[q]')};"
        if self.chance(0.6):
            body += [tree]
            self.names.append("sh[0]")
            if self.chance(0.6):
                body.append(f"{walk} o[get_group_id(0) * n + c] = {self.value(loads)};")
            body.append(f"if ({place} == 0) p[get_group_id(0)] = sh[0];")
        else:
            body.append(f"if ({place} == 0) {{ {serial} p[get_group_id(0)] = all; }}")
        arguments = {"a": "in float32 m,n", "b": "in float32 n", "w": "in float32 n+m", "o": "inout float32 m,n",
                     "p": "inout float32 m"}  # fmt: skip
        return self._program(body, arguments, ("m",), ("16",))

    def _program(
        self, body: list[str], arguments: dict[str, str], grid: tuple[str, ...], block: tuple[str, ...]
    ) -> Program:
        head = ("__kernel void f(__global const float *a, __global const float *b, __global const float *w, "
                "__global float *o, __global float *p, float s, int n, int m, int k) {\n  ")  # fmt: skip
        scalars = {"s": "float32 =0.75", "n": "int32 =n", "m": "int32 =m", "k": "int32 =2"}
        sizes = tuple(
            {"n": int(self.random.integers(1, high)), "m": int(self.random.integers(1, 9))} for high in (12, 70)
        )
        return Program(HELPERS + head + "\n  ".join(body) + "\n}\n", {**arguments, **scalars}, grid, block, sizes)


def program(seed: int) -> Program:
    """The program of a seed."""
    maker = _Maker(seed)
    return (maker.map, maker.map, maker.rows, maker.blocks, maker.inline)[seed % 5]()
