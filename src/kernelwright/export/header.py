"""A C and C++ header for the host: constants, configs per workload, their selection, and the launch geometry.

The file stands alone (C99 or C++11, no library), and several of them can be included together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.engine.configured import recorded_limits
from kernelwright.export.c_expression import CPrinter, Kind, Term, constant, text_literal
from kernelwright.export.subject import ExportedRun, one_line
from kernelwright.problem.config import Config, Value
from kernelwright.problem.expression import Expression

_CPP_WORDS = frozenset({
    "asm", "bitand", "bitor", "catch", "co_await", "co_return", "co_yield", "compl", "concept", "const_cast",
    "consteval", "constexpr", "constinit", "decltype", "dynamic_cast", "explicit", "export", "friend", "mutable",
    "noexcept", "nullptr", "protected", "public", "reinterpret_cast", "requires", "static_assert", "static_cast",
    "thread_local", "throw", "typeid", "virtual", "wchar_t", "xor",
})  # fmt: skip
"""Words of C++ that are plain names in C and in Python, so that a size may be called like one."""


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A config of the table, with the workload that it is for."""

    workload: str
    sizes: Mapping[str, int]
    config: Config


def header_text(run: ExportedRun) -> str:
    """The header for the run's winner.

    Raises:
        UserError: nothing won, or a launch expression has no C form.
    """
    return _Header(run).text()


class _Header:
    """One header while it is written."""

    def __init__(self, run: ExportedRun) -> None:
        self.run = run
        self.prefix = f"kernelwright_{run.identifier}"
        self.macro = self.prefix.upper()
        self.general = run.config
        self.size_names = run.problem.size_names
        special = run.view.winner_per_workload
        self.table = [
            NamedConfig(
                workload.name,
                workload.sizes,
                special[workload.name].config if workload.name in special else self.general,
            )
            for workload in run.problem.workloads
        ]
        kinds = {name: _kind(config[name] for config in self._configs()) for name in self.general}
        self.kinds: Mapping[str, Kind] = kinds
        names = {name: Term(f"sizes->{_field(name)}", "int") for name in self.size_names}
        names |= {name: Term(_read(name, kind), kind) for name, kind in kinds.items()}
        names |= {name: constant(value) for name, value in recorded_limits(run.view.started).items()}
        self.printer = CPrinter(names)

    def _configs(self) -> list[Config]:
        return [self.general, *(row.config for row in self.table)]

    def text(self) -> str:
        """All parts, in the order that C needs them."""
        body = "".join([self._types(), self._feasible(), self._select(), *self._launches()])
        includes = "".join(f"#include <{name}>\n" for name in ("stddef.h", *self.printer.includes()))
        guard = f"{self.macro}_H"
        return (
            f"{self._comment()}#ifndef {guard}\n#define {guard}\n\n{includes}\n{self._constants()}\n"
            f"{self.printer.helpers()}\n{body}#endif\n"
        )

    def _comment(self) -> str:
        prefix, run = self.prefix, self.run
        first = [str(self.table[0].sizes[name]) for name in self.size_names]
        lines = [
            f"{run.problem.name}, tuned by Kernelwright {run.view.started.version} on {run.device_name}",
            f"Measured: {run.claim}",
            f"Run: {run.view.started.run_id}, started {run.view.started.created}",
            "",
            f"    {prefix}_sizes sizes = {{ {', '.join(first)} }};   // {', '.join(self.size_names)}",
            f"    const {prefix}_config *config = {prefix}_select(&sizes);",
            f"    {prefix}_launch launch = {self._launch_names()[0]}(config, &sizes);",
            "",
            "Build the kernel source with the values of the config as macros. A field is called like its parameter,",
            "with an underscore at the end, so that these macros cannot replace it. Grids count blocks: an OpenCL",
            "global size is grid times block. Values are exact while all of them fit in 64 bits.",
        ]
        return "".join(f"// {one_line(line)}".rstrip() + "\n" for line in lines)

    def _constants(self) -> str:
        lines = ["// The general winner.\n"]
        for name, value in self.general.items():
            lines.append(
                f"#define {self.macro}_{name.upper() if not self._collides(name) else name} {_literal(value)}\n"
            )
        return "".join(lines)

    def _collides(self, name: str) -> bool:
        return sum(other.upper() == name.upper() for other in self.general) > 1

    def _types(self) -> str:
        sizes = "".join(f"    long long {_field(name)};\n" for name in self.size_names)
        fields = "".join(f"    {_C_TYPES[kind]}{name}_;\n" for name, kind in self.kinds.items()) or "    int unused_;\n"
        return (
            f"typedef struct {{\n{sizes}}} {self.prefix}_sizes;\n\n"
            f"typedef struct {{\n{fields}}} {self.prefix}_config;\n\n"
            f"typedef struct {{\n    long long grid[3];   // blocks along x, y, z\n"
            f"    long long block[3];  // threads along x, y, z\n"
            f"    long long shared_bytes;\n}} {self.prefix}_launch;\n\n"
        )

    def _feasible(self) -> str:
        conditions = [self.printer.condition(expression) for expression in self._constraints()]
        tests = "".join(f"    if (!{condition}) return 0;\n" for condition in conditions)
        return (
            "// Whether every constraint of the tuned space holds for this config and these sizes, on that device.\n"
            f"static inline int {self.prefix}_is_feasible(const {self.prefix}_config *config, "
            f"const {self.prefix}_sizes *sizes) {{\n    (void)config;\n    (void)sizes;\n{tests}    return 1;\n}}\n\n"
        )

    def _constraints(self) -> list[Expression]:
        recorded = self.run.view.started.space.get("constraints", ())
        texts = [str(each["text"]) for each in recorded if isinstance(each, Mapping) and "text" in each]
        texts = texts or [constraint.expression.text for constraint in self.run.template.constraints]
        return [Expression.parse(text) for text in dict.fromkeys(texts)]

    def _select(self) -> str:
        prefix = self.prefix
        row_comment = "".join(f"//   {one_line(row.workload)}\n" for row in self.table)
        sizes = ",\n".join(
            "        { " + ", ".join(f"{row.sizes[n]}LL" for n in self.size_names) + " }" for row in self.table
        )
        configs = ",\n".join(
            "        " + self._initialiser(config) for config in [*(r.config for r in self.table), self.general]
        )
        exact = " && ".join(f"sizes->{_field(n)} == known[i].{_field(n)}" for n in self.size_names)
        ratios = "".join(
            f"        distance *= {prefix}_ratio(sizes->{_field(n)}, known[i].{_field(n)});\n" for n in self.size_names
        )
        count = len(self.table)
        return (
            f"static inline double {prefix}_ratio(long long a, long long b) {{\n"
            "    double x = a < 1 ? 1.0 : (double)a, y = b < 1 ? 1.0 : (double)b;\n"
            "    return x > y ? x / y : y / x;\n}\n\n"
            "// The config for these sizes. The first of these rules that gives a feasible config decides:\n"
            "// 1. a tuned workload with exactly these sizes: its own best config;\n"
            "// 2. the nearest tuned workload: the smallest product over all sizes of larger / smaller, the first of\n"
            "//    equals;\n"
            "// 3. the general winner.\n"
            f"// NULL when none of them is feasible.\n// Tuned workloads:\n{row_comment}"
            f"static inline const {prefix}_config *{prefix}_select(const {prefix}_sizes *sizes) {{\n"
            f"    static const {prefix}_sizes known[{count}] = {{\n{sizes}\n    }};\n"
            f"    static const {prefix}_config configs[{count + 1}] = {{\n{configs}\n    }};\n"
            f"    int i, nearest = {count};\n    double least = 0.0;\n"
            f"    for (i = 0; i < {count}; ++i)\n"
            f"        if ({exact} && {prefix}_is_feasible(&configs[i], sizes)) return &configs[i];\n"
            f"    for (i = 0; i < {count}; ++i) {{\n        double distance = 1.0;\n{ratios}"
            f"        if (!{prefix}_is_feasible(&configs[i], sizes)) continue;\n"
            f"        if (nearest == {count} || distance < least) {{\n"
            "            nearest = i;\n            least = distance;\n"
            "        }\n    }\n"
            f"    return {prefix}_is_feasible(&configs[nearest], sizes) ? &configs[nearest] : NULL;\n}}\n\n"
        )

    def _initialiser(self, config: Config) -> str:
        values = ", ".join(_literal(config[name]) for name in self.general) or "0"
        return f"{{ {values} }}"

    def _launch_names(self) -> list[str]:
        names: list[str] = []
        for step in self.run.template.steps:
            name = f"{self.prefix}_launch_{step.entry}"
            repeats = sum(other == name or other.startswith(f"{name}_again") for other in names)
            names.append(f"{name}_again{repeats}" if repeats else name)
        return names

    def _launches(self) -> Iterable[str]:
        for name, step in zip(self._launch_names(), self.run.template.steps, strict=True):
            lines = [*self._extents("grid", step.grid), *self._extents("block", step.block)]
            shared = self.printer.whole(step.shared_bytes) if step.shared_bytes is not None else "0"
            lines.append(f"    launch.shared_bytes = {shared};\n")
            yield (
                f"static inline {self.prefix}_launch {name}(const {self.prefix}_config *config, "
                f"const {self.prefix}_sizes *sizes) {{\n"
                f"    {self.prefix}_launch launch;\n    (void)config;\n    (void)sizes;\n"
                f"{''.join(lines)}    return launch;\n}}\n\n"
            )

    def _extents(self, field: str, expressions: Sequence[Expression]) -> Iterable[str]:
        texts = [self.printer.whole(expression) for expression in expressions]
        for place, text in enumerate([*texts, "1", "1"][:3]):
            yield f"    launch.{field}[{place}] = {text};\n"


_C_TYPES: Mapping[Kind, str] = {"int": "long long ", "float": "double ", "text": "const char *"}


def _kind(values: Iterable[Value]) -> Kind:
    found = set(map(type, values))
    if str in found:
        return "text"
    return "float" if float in found else "int"


def _read(name: str, kind: Kind) -> str:
    del kind
    return f"config->{name}_"


def _field(size: str) -> str:
    return f"{size}_" if size in _CPP_WORDS else size


def _literal(value: Value) -> str:
    if isinstance(value, int) and -(2**31) < value < 2**31:
        return str(int(value))
    return text_literal(value) if isinstance(value, str) else constant(value).text
