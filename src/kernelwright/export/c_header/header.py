"""A C and C++ header for the host: configs, their selection by sizes, and everything that a launch needs.

The file stands alone (C99 or C++11, no library but the standard one), and several of them can be included together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from kernelwright.dispatching.rule import Leaf, Rule
from kernelwright.evaluate.builds.render import build_unit, macro_text
from kernelwright.export.c_header.alignment import needed_alignment
from kernelwright.export.c_header.expression import CPrinter, Kind, Term, constant, text_literal
from kernelwright.export.c_header.launch import ARGUMENT_TYPES, LaunchWriter
from kernelwright.export.pairing import built_name, option
from kernelwright.export.source import refuse_triton
from kernelwright.export.subject import ExportedRun, one_line, wrapped
from kernelwright.problem.config import Config, Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.template.model import Candidate

_CPP_WORDS = frozenset({
    "asm", "bitand", "bitor", "catch", "co_await", "co_return", "co_yield", "compl", "concept", "const_cast",
    "consteval", "constexpr", "constinit", "decltype", "dynamic_cast", "explicit", "export", "friend", "mutable",
    "noexcept", "nullptr", "protected", "public", "reinterpret_cast", "requires", "static_assert", "static_cast",
    "thread_local", "throw", "typeid", "virtual", "wchar_t", "xor",
})  # fmt: skip
"""Words of C++ that are plain names in C and in Python, so that a size may be called like one."""


def header_text(run: ExportedRun) -> str:
    """The header for the run's winners.

    Raises:
        UserError: nothing won, an expression has no C form, or it is a Triton kernel.
    """
    refuse_triton(run.template)
    return _Header(run).text()


class _Header:
    """One header while it is written."""

    def __init__(self, run: ExportedRun) -> None:
        self.run = run
        self.prefix = f"kernelwright_{run.identifier}"
        self.macro = self.prefix.upper()
        self.general = run.config
        self.table = run.table
        self.size_names = run.problem.size_names
        self.kinds: Mapping[str, Kind] = {
            name: _kind(config[name] for config in (self.general, *run.configs)) for name in self.general
        }
        names = {name: Term(f"sizes->{_field(name)}", "int") for name in self.size_names}
        names |= {name: Term(f"config->{name}_", kind) for name, kind in self.kinds.items()}
        names |= {name: constant(value) for name, value in self.table.limits.items()}
        self.printer = CPrinter(names)

    def text(self) -> str:
        """All parts, in the order that C needs them."""
        launches = LaunchWriter(self.prefix, self.run, self.printer)
        body = "".join([
            self._types(), launches.types(), self._feasible(), self._aligned(), self._domain(), self._select(),
            *self._defines(),
            *launches.functions(),
        ])  # fmt: skip
        includes = {"stddef.h", "stdint.h", "string.h", *self.printer.includes()}
        included = "".join(f"#include <{name}>\n" for name in sorted(includes))
        guard = f"{self.macro}_H"
        return (
            f"{self._comment(launches.names)}#ifndef {guard}\n#define {guard}\n\n{included}\n{self._constants()}\n"
            f"{ARGUMENT_TYPES}{self.printer.helpers()}\n{body}#endif\n"
        )

    def _comment(self, launch_names: list[str]) -> str:
        prefix, run = self.prefix, self.run
        first = [str(run.problem.workloads[0].sizes[name]) for name in self.size_names]
        lines = [
            f"{run.problem.name}, tuned by Kernelwright {run.view.started.version} on {run.device_name}",
            f"Measured: {run.claim}",
            f"Run: {run.view.started.run_id}, started {run.view.started.created}",
            f"For: {run.template.file.name}, whose licence this file does not change",
            "",
            f"    {prefix}_sizes sizes = {{ {', '.join(first)} }};   // {', '.join(self.size_names)}",
            f"    {prefix}_buffers buffers = {{ {', '.join(self._buffers())} }};   // addresses on the device, or NULL",
            f"    const {prefix}_config *config = {prefix}_select_for(&sizes, &buffers);   // NULL: use your baseline",
            *(f"    {prefix}_launch launch = {name}(config, &sizes);" for name in launch_names[:1]),
            *(f"    ... and after it {name}(config, &sizes)" for name in launch_names[1:]),
            "",
            "An address that is NULL is not looked at: that of an OpenCL buffer, which is aligned, or of memory that",
            f"you have allocated. {prefix}_select(&sizes) looks at none.",
            "",
            *self._how_to_launch(),
        ]
        return "".join(f"// {one_line(line)}".rstrip() + "\n" for line in lines)

    def _how_to_launch(self) -> list[str]:
        macros = ", and with the size-dependent macros below, anew where one changes" if self._size_defines() else ""
        text = (
            f"Build {self.run.template.file.name} as it is exported with this header (`--format source`), with all "
            f"words of config->build_options, once for each config{macros}. They select the config's values in that "
            "file, and call its kernels after the config: no other build, of that file, of the template or of the "
            "kernel that it was made from, has a kernel called launch.entry. Launch that with launch.arguments in "
            "order: a scalar's bytes as they are; for the others memory of that many bytes, where the same name means "
            "the same memory in every launch. Grids count blocks: an OpenCL global size is grid times block. Numbers "
            "are exact while all of them fit in 64 bits. A field is called like its parameter, with an underscore at "
            "the end, so that these macros cannot replace it."
        )
        return textwrap.wrap(text, 106, break_on_hyphens=False)

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
        fields = "".join(f"    {_C_TYPES[kind]}{name}_;\n" for name, kind in self.kinds.items())
        addresses = "".join(f"    const void *{name};\n" for name in self._buffers())
        return (
            f"typedef struct {{\n{sizes}}} {self.prefix}_sizes;\n\n"
            f"typedef struct {{\n{fields}    int alignment;  // bytes that must divide the address of every buffer\n"
            "    const char *build_options;  // for the compiler, as one line\n"
            f"    const char *entries[{len(self.run.template.steps)}];"
            "  // of the launches, in order: what the kernels are called in a build with these options\n"
            f"}} {self.prefix}_config;\n\n"
            "// Where the buffers lie; NULL: not to be looked at.\n"
            f"typedef struct {{\n{addresses}}} {self.prefix}_buffers;\n\n"
        )

    def _buffers(self) -> list[str]:
        """The arguments that are memory of the device, as fields."""
        arguments = (*self.run.problem.arguments, *self.run.template.scratch)
        return [_field(each.name) for each in arguments if each.role in ("input", "output", "inout", "scratch")]

    # -- which config --------------------------------------------------------------------------------------------

    def _feasible(self) -> str:
        conditions = [self.printer.condition(expression) for expression in self.table.constraints]
        tests = "".join(f"    if (!{condition}) return 0;\n" for condition in conditions)
        return (
            "// Whether every constraint of the tuned space holds for this config and these sizes, on that device.\n"
            f"static inline int {self.prefix}_is_feasible(const {self.prefix}_config *config, "
            f"const {self.prefix}_sizes *sizes) {{\n    (void)config;\n    (void)sizes;\n{tests}    return 1;\n}}\n\n"
        )

    def _aligned(self) -> str:
        tests = "".join(
            f"    if ((uintptr_t)buffers->{name} % (uintptr_t)config->alignment != 0) return 0;\n"
            for name in self._buffers()
        )
        return (
            "// Whether these addresses are aligned as this config's loads and stores of vectors need it.\n"
            f"static inline int {self.prefix}_is_aligned(const {self.prefix}_config *config, "
            f"const {self.prefix}_buffers *buffers) {{\n    (void)config;\n    (void)buffers;\n{tests}"
            "    return 1;\n}\n\n"
        )

    def _domain(self) -> str:
        domain, tests = self.table.domain, []
        for name, span in domain.ranges.items():
            size = f"sizes->{_field(name)}"
            tests.append(f"{size} < {span.low}LL || {size} > {span.high}LL")
            if span.step > 1:
                tests.append(f"{size} % {span.step}LL != 0")
        for name, expression in domain.derived.items():
            tests.append(f"sizes->{_field(name)} != {self.printer.whole(expression)}")
        tests.append(f"{self.printer.whole(domain.bytes)} > {domain.most_bytes}LL")
        measured = "tuned and probed" if self.table.is_probed else "tuned"
        return (
            f"// Whether these sizes lie between those that were {measured}: multiples of what all of them are\n"
            "// multiples of, and with inputs and outputs no larger than the largest measured ones.\n"
            f"static inline int {self.prefix}_in_domain(const {self.prefix}_sizes *sizes) {{\n"
            f"{''.join(f'    if ({test}) return 0;{chr(10)}' for test in tests)}    return 1;\n}}\n\n"
        )

    def _select(self) -> str:
        prefix, places = self.prefix, self._places()
        configs = ",\n".join(f"        {self._initialiser(config)}" for config in self.run.configs)
        leaves: list[Leaf] = []
        questions = self._questions(self.table.rule, leaves, "    ")
        rows = [[places[place] for place in leaf if place in places] for leaf in leaves]
        width = max(1, *(len(row) for row in rows))
        orders = ",\n".join(
            "        { " + ", ".join(str(each) for each in [*row, *[-1] * (width - len(row))]) + " }" for row in rows
        )
        return (
            f"{self._rule_comment()}static inline const {prefix}_config *{prefix}_select_for("
            f"const {prefix}_sizes *sizes, const {prefix}_buffers *buffers) {{\n"
            f"    static const {prefix}_config configs[{len(self.run.configs)}] = {{\n{configs}\n    }};\n"
            f"    static const int orders[{len(rows)}][{width}] = {{\n{orders}\n    }};\n"
            f"    int leaf, i;\n    if (!{prefix}_in_domain(sizes)) return NULL;\n{questions}"
            f"    for (i = 0; i < {width} && orders[leaf][i] >= 0; ++i) {{\n"
            f"        const {prefix}_config *config = &configs[orders[leaf][i]];\n"
            f"        if (!{prefix}_is_feasible(config, sizes)) continue;\n"
            f"        if (buffers == NULL || {prefix}_is_aligned(config, buffers)) return config;\n    }}\n"
            "    return NULL;\n}\n\n"
            "// The same for buffers that are aligned: any that a driver allocated, from their first byte on.\n"
            f"static inline const {prefix}_config *{prefix}_select(const {prefix}_sizes *sizes) {{\n"
            f"    return {prefix}_select_for(sizes, NULL);\n}}\n\n"
            "// Whether a tuned config serves these sizes; if not, use the baseline.\n"
            f"static inline int {prefix}_supports(const {prefix}_sizes *sizes) {{\n"
            f"    return {prefix}_select(sizes) != NULL;\n}}\n\n"
        )

    def _places(self) -> dict[int, int]:
        """By place in the table, the place among the configs of the header; the baseline has none."""
        real = [place for place, config in enumerate(self.table.configs) if config is not None]
        return {place: number for number, place in enumerate(real)}

    def _questions(self, rule: Rule, leaves: list[Leaf], indent: str) -> str:
        if isinstance(rule, tuple):
            leaves.append(rule)
            return f"{indent}leaf = {len(leaves) - 1};\n"
        low = self._questions(rule.low, leaves, indent + "    ")
        high = self._questions(rule.high, leaves, indent + "    ")
        asked = rule.text(lambda name: f"sizes->{_field(name)}")
        return f"{indent}if ({asked}) {{\n{low}{indent}}} else {{\n{high}{indent}}}\n"

    def _rule_comment(self) -> str:
        lines = [
            "The config for these sizes, by this rule; where it is not feasible, or the buffers are not aligned as it",
            "takes, the next best one there. `buffers` may be NULL: then all are. NULL is returned outside the domain,",
            "where the rule comes to the baseline, and where no config is left.",
            *(f"    {line}" for line in self.table.rule_lines()),
            *self.run.table_notes(),
        ]
        return "".join(f"// {each}".rstrip() + "\n" for line in lines for each in wrapped(one_line(line)))

    def _initialiser(self, config: Config) -> str:
        names = {**self.table.limits, **self.run.problem.workloads[0].sizes, **config}
        unit = build_unit(Candidate(self.run.template, config), names)
        options = [*unit.options, *(f"-D{name}={macro_text(value)}" for name, value in config.items())]
        for name, expression in self.run.template.defines.items():
            if not expression.names & set(self.size_names):
                options.append(f"-D{name}={macro_text(expression.evaluate({**self.table.limits, **config}))}")
        options += [word] if (word := option(self.run.template, config)) else []
        words = [f'"{word}"' if " " in word else word for word in options]
        entries = ", ".join(
            text_literal(built_name(self.run.template, step.entry, config)) for step in self.run.template.steps
        )
        alignment = str(needed_alignment(self.run.template, config))
        fields = [*(_literal(config[name]) for name in self.general), alignment, text_literal(" ".join(words))]
        values = [*fields, f"{{ {entries} }}"]
        return f"{{ {', '.join(values)} }}"

    # -- macros that depend on sizes -------------------------------------------------------------------------------

    def _size_defines(self) -> dict[str, Expression]:
        defines = self.run.template.defines.items()
        return {name: expression for name, expression in defines if expression.names & set(self.size_names)}

    def _defines(self) -> Iterable[str]:
        for name, expression in self._size_defines().items():
            term = self.printer.term(expression)
            yield (
                f"// The value of the macro {name}, which the source is to be built with for these sizes.\n"
                f"static inline {_C_TYPES[term.kind]}{self.prefix}_define_{name}(const {self.prefix}_config *config, "
                f"const {self.prefix}_sizes *sizes) {{\n    (void)config;\n    (void)sizes;\n"
                f"    return {term.text};\n}}\n\n"
            )


_C_TYPES: Mapping[Kind, str] = {"int": "long long ", "float": "double ", "text": "const char *"}


def _kind(values: Iterable[Value]) -> Kind:
    found = set(map(type, values))
    if str in found:
        return "text"
    return "float" if float in found else "int"


def _field(size: str) -> str:
    return f"{size}_" if size in _CPP_WORDS else size


def _literal(value: Value) -> str:
    if isinstance(value, int) and -(2**31) < value < 2**31:
        return str(int(value))
    return text_literal(value) if isinstance(value, str) else constant(value).text
