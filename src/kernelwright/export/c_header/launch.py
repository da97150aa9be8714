"""The part of the exported header that says how to launch: grids, blocks, arguments in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from kernelwright.export.c_header.expression import CPrinter, text_literal
from kernelwright.export.subject import ExportedRun
from kernelwright.problem.dtypes import DTYPES, Dtype
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, LaunchStep, Role

SCRATCH_ALIGNMENT = 256
"""Bytes that scratch buffers are rounded up to in the total, so that one allocation can hold all of them."""

ARGUMENT_TYPES = """#ifndef KERNELWRIGHT_ARGUMENT
#define KERNELWRIGHT_ARGUMENT
#define KERNELWRIGHT_INPUT 0    // a buffer that is read
#define KERNELWRIGHT_OUTPUT 1   // a buffer that is written
#define KERNELWRIGHT_INOUT 2    // a buffer that is read and written
#define KERNELWRIGHT_SCRATCH 3  // a buffer that nobody reads afterwards
#define KERNELWRIGHT_LOCAL 4    // local memory of a work-group: clSetKernelArg(kernel, i, bytes, NULL)
#define KERNELWRIGHT_SCALAR 5   // passed by value
typedef struct {
    const char *name;
    const char *type;         // of an element, in the kernel's language
    int role;                 // KERNELWRIGHT_INPUT and so on
    long long bytes;          // of the memory, or of the value
    unsigned char value[8];   // a scalar's bytes, ready to be passed
} kernelwright_argument;
#endif

"""

_ROLES: Mapping[Role, str] = MappingProxyType({
    role: f"KERNELWRIGHT_{role.upper()}" for role in ("input", "output", "inout", "scratch", "local", "scalar")
})  # fmt: skip
_NARROW: Mapping[str, tuple[int, int]] = MappingProxyType({
    "float16": (5, 10), "bfloat16": (8, 7), "float8_e5m2": (5, 2), "float8_e4m3fn": (4, 3),
})  # fmt: skip
"""Bits of exponent and mantissa of the types that C lacks."""


class LaunchWriter:
    """Writes the launches of one header."""

    def __init__(self, prefix: str, run: ExportedRun, printer: CPrinter) -> None:
        self._prefix = prefix
        self._run = run
        self._printer = printer
        self._arguments = {each.name: each for each in (*run.problem.arguments, *run.template.scratch)}
        self.names = self._launch_names()
        """The functions, in the order of the launches."""

    def types(self) -> str:
        """The type of a launch."""
        most = max(len(self._order(step)) for step in self._run.template.steps)
        return (
            "// One kernel launch with everything it needs.\n"
            "typedef struct {\n    const char *entry;   // the kernel's name in a build with this config's options\n"
            "    long long grid[3];   // blocks along x, y, z\n"
            "    long long block[3];  // threads along x, y, z\n"
            "    long long shared_bytes;  // dynamic shared memory (CUDA)\n"
            "    long long cluster[3];    // blocks of a cluster along x, y, z (CUDA); 0: what the kernel declares\n"
            "    int is_cooperative;      // all blocks must run at once (CUDA)\n"
            f"    int argument_count;\n    kernelwright_argument arguments[{max(most, 1)}];\n{self._constants()}"
            f"}} {self._prefix}_launch;\n\n"
        )

    def _constants(self) -> str:
        most = max(len(step.constants) for step in self._run.template.steps)
        fields = "const char *variable, *name; long long bytes;"
        comment = "fill the variable from the input of this name before the launch; NULL: no more"
        return f"    struct {{ {fields} }} constants[{most}];  // {comment}\n" if most else ""

    def functions(self) -> Iterable[str]:
        """One function for each launch, and the scratch memory of all of them."""
        for number, (name, step) in enumerate(zip(self.names, self._run.template.steps, strict=True)):
            lines = ["    memset(&launch, 0, sizeof launch);\n", f"    launch.entry = config->entries[{number}];\n"]
            lines += [*self._extents("grid", step.grid), *self._extents("block", step.block)]
            shared = self._printer.whole(step.shared_bytes) if step.shared_bytes is not None else "0"
            lines.append(f"    launch.shared_bytes = {shared};\n")
            if step.cluster:
                lines += self._extents("cluster", step.cluster)
            lines.append(f"    launch.is_cooperative = {int(step.is_cooperative)};\n")
            order = self._order(step)
            lines.append(f"    launch.argument_count = {len(order)};\n")
            for place, argument in enumerate(order):
                lines += self._argument(place, self._arguments[argument])
            for place, (variable, argument) in enumerate(step.constants):
                at = f"    launch.constants[{place}]"
                lines.append(f"{at}.variable = {text_literal(variable)};\n{at}.name = {text_literal(argument)};\n")
                lines.append(f"{at}.bytes = {self._bytes(self._arguments[argument])};\n")
            yield self._function(f"{self._prefix}_launch", name, ["launch"], lines)
        yield (
            "// Bytes of all scratch buffers together, each rounded up to "
            f"{SCRATCH_ALIGNMENT}.\n"
            + self._function("long long", f"{self._prefix}_scratch_bytes", ["total = 0"], self._scratch())
        )

    def _function(self, result: str, name: str, declared: Sequence[str], lines: Iterable[str]) -> str:
        variable = declared[0].partition(" ")[0]
        return (
            f"static inline {result} {name}(const {self._prefix}_config *config, "
            f"const {self._prefix}_sizes *sizes) {{\n"
            f"    {result} {declared[0]};\n    (void)config;\n    (void)sizes;\n"
            f"{''.join(lines)}    return {variable};\n}}\n\n"
        )

    def _order(self, step: LaunchStep) -> tuple[str, ...]:
        return tuple(self._arguments) if step.arguments is None else step.arguments

    def _launch_names(self) -> list[str]:
        names: list[str] = []
        for step in self._run.template.steps:
            entry = "".join(c if c.isalnum() and c.isascii() else "_" for c in step.entry)
            name = f"{self._prefix}_launch_{entry}"
            repeats = sum(other == name or other.startswith(f"{name}_again") for other in names)
            names.append(f"{name}_again{repeats}" if repeats else name)
        return names

    def _extents(self, field: str, expressions: Sequence[Expression]) -> Iterable[str]:
        texts = [self._printer.whole(expression) for expression in expressions]
        for place, text in enumerate([*texts, "1", "1"][:3]):
            yield f"    launch.{field}[{place}] = {text};\n"

    def _argument(self, place: int, argument: Argument) -> Iterable[str]:
        dtype, at = DTYPES[argument.dtype], f"launch.arguments[{place}]"
        spelled = dtype.c_names[self._run.template.language]
        yield f"    {at}.name = {text_literal(argument.name)};\n"
        yield f"    {at}.type = {text_literal(spelled[0] if spelled else dtype.name)};\n"
        yield f"    {at}.role = {_ROLES[argument.role]};\n"
        if argument.role == "scalar":
            assert argument.value is not None
            yield f"    {at}.bytes = {dtype.item_bytes};\n"
            c_type, value = self._scalar(dtype, argument.value)
            yield f"    {{\n        {c_type} value = {value};\n"
            yield f"        memcpy({at}.value, &value, sizeof value);\n    }}\n"
        else:
            yield f"    {at}.bytes = {self._bytes(argument)};\n"

    def _scalar(self, dtype: Dtype, value: Expression) -> tuple[str, str]:
        if dtype.kind == "bool":
            return "uint8_t", f"{self._printer.whole(value)} != 0"
        if dtype.kind != "float":
            c_type = f"{dtype.name}_t"
            return c_type, f"({c_type})({self._printer.whole(value)})"
        number = self._printer.floating(value)
        if dtype.name in _NARROW:
            c_type = f"uint{8 * dtype.item_bytes}_t"
            exponent, mantissa = _NARROW[dtype.name]
            return c_type, f"({c_type}){self._printer.call('narrow', number, str(exponent), str(mantissa))}"
        c_type = "float" if dtype.item_bytes == 4 else "double"
        return c_type, f"({c_type})({number})"

    def _bytes(self, argument: Argument) -> str:
        extents = [self._printer.whole(extent) for extent in argument.shape]
        return " * ".join([*extents, f"{DTYPES[argument.dtype].item_bytes}LL"])

    def _scratch(self) -> Iterable[str]:
        for argument in self._arguments.values():
            if argument.role == "scratch":
                rounded = self._printer.call("ceil_div", self._bytes(argument), f"{SCRATCH_ALIGNMENT}LL")
                yield f"    total += {rounded} * {SCRATCH_ALIGNMENT}LL;  // {argument.name}\n"
