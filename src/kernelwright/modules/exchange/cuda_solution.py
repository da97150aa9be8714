"""A CUDA solution as a problem: its host code, which is C++ for PyTorch or TVM, is read and never compiled.

Read are one launch of one kernel, tensors by the names that functions pass on, and sizes of tensors as axes. What is
computed in another way is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from kernelwright.infer.text.device_text import device_text
from kernelwright.infer.text.host import HostReader, Untranslatable, split_commas
from kernelwright.modules.exchange.definition import Definition
from kernelwright.modules.exchange.inputs import ProblemNames, fill_of, shape_texts, usable_name
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.includes import includes_in
from kernelwright.problem.source_scan import KernelParameter, scan_kernels
from kernelwright.source.lexer import masked, matching

_SUFFIXES = (".h", ".hpp", ".cuh", ".cu", ".cpp", ".cc", ".cxx")
"""Headers first: what they define is used after them."""
_LIBRARIES = ("cutlass", "cudnn", "cublas", "cute", "thrust", "cub")
_NEW = re.compile(
    r"\b(\w+)\s*=\s*(?:torch|at)::(?:empty|empty_like|zeros|zeros_like|new_empty)\s*\(|\b(\w+)\s*=\s*\w+\.new_empty\s*\("
)
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_KEYWORDS = frozenset(("if", "for", "while", "switch", "return", "sizeof", "catch"))


def cuda_problem(
    definition: Definition, names: ProblemNames, solution: Mapping[str, Any], workload: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], tuple[str, ...], dict[str, str]]:
    """The device code, the kernel's name, lines of `[arguments]` and `[launch]`, and by tensor the argument.

    Raises:
        SpecError: the solution calls a library, launches not one kernel, or passes what is not read.
    """
    if found := [each for each in _LIBRARIES if each in solution["languages"]]:
        raise definition.wrong(f"{solution['name']} calls {found[0]}, and only its own kernels can be tuned")
    return _Reading(definition, names, solution, workload).problem()


def _in_one(texts: Sequence[str], own: Collection[str]) -> str:
    """All files in one text, in which none includes another one."""
    lines = "\n".join(texts).split("\n")
    for each in includes_in("\n".join(lines)):
        if each.is_quoted and not each.is_macro and PurePosixPath(each.name).name in own:
            lines[each.line - 1] = ""
    return "\n".join(lines)


class _Reading:
    """One solution while it is read."""

    def __init__(
        self, definition: Definition, names: ProblemNames, solution: Mapping[str, Any], workload: Mapping[str, Any]
    ) -> None:
        self._definition, self._names = definition, names
        self._solution, self._workload = solution, workload
        paths = sorted(
            (each for each in solution["texts"] if PurePosixPath(each).suffix in _SUFFIXES),
            key=lambda each: _SUFFIXES.index(PurePosixPath(each).suffix),
        )
        self.text = _in_one([solution["texts"][each] for each in paths], {PurePosixPath(each).name for each in paths})
        self._functions = dict(_functions_of(masked(self.text)))
        self._tensors = self._named_tensors()

    def problem(self) -> tuple[str, str, dict[str, str], tuple[str, ...], dict[str, str]]:
        device = device_text(self.text.encode(), "cuda").decode()
        kernels = {each.name: each.parameters or () for each in scan_kernels(device, "cuda")}
        host = self._host_text()
        launched = [name for name in kernels if re.search(rf"\b{re.escape(name)}\s*(?:<[^<>;]*>)?\s*<<<", host)]
        if len(launched) != 1:
            what = ", ".join(launched) or "none"
            raise self._wrong(f"launches {what} of its kernels, and one is read")
        (entry,) = launched
        start = host.index("<<<", re.search(rf"\b{re.escape(entry)}\s*(?:<[^<>;]*>)?\s*<<<", host).start())  # type: ignore[union-attr]
        reader = HostReader(host[:start], set(self._names.sizes.values()), {})
        configured, actuals = _launch_at(host, start)
        if host.count("<<<") != 1 or len(actuals) != len(kernels[entry]) or len(configured) < 2:
            raise self._wrong(f"launches {entry!r} in a way that is not read")
        try:
            grid, block = reader.extents(configured[0]), reader.extents(configured[1])
            shared = reader.text(configured[2]) if len(configured) > 2 else "0"
        except Untranslatable as error:
            raise self._wrong(f"computes its launch from {str(error)!r}, which is not read") from None
        lines: dict[str, str] = {}
        called: dict[str, str] = {}
        taken: set[str] = set()
        for parameter, actual in zip(kernels[entry], actuals, strict=True):
            own = usable_name(parameter.name, taken, tuple(self._names.sizes.values()) if parameter.is_pointer else ())
            lines[own] = self._argument(parameter, own, actual, reader, host, called)
        shown = [f"grid = [{_quoted(grid)}]", f"block = [{_quoted(block)}]"]
        if shared != "0":
            shown.append(f'shared_bytes = "{shared}"')
        for each in (*grid, *block, shared):
            if unknown := Expression.parse(each).names - set(self._names.sizes.values()):
                raise self._wrong(f"computes its launch from {min(unknown)!r}, which is not read")
        return device.strip() + "\n", entry, lines, tuple(shown), called

    def _argument(
        self, parameter: KernelParameter, own: str, actual: str, reader: HostReader, host: str, called: dict[str, str]
    ) -> str:
        if parameter.is_pointer:
            name = self._tensor_of(actual, host)
            if name is None:
                raise self._wrong(f"passes {actual.strip()!r}, which is no input or output")
            is_output = name in self._definition.outputs
            shape, dtype = (self._definition.outputs if is_output else self._definition.inputs)[name]
            called[name] = own
            extents = ", ".join(f'"{each}"' for each in shape_texts(self._definition, shape, self._names))
            filled = [] if is_output else fill_of(name, dtype, self._workload)
            role = "output" if is_output else "input"
            fields = [f'role = "{role}"', f'dtype = "{dtype}"', f"shape = [{extents}]", *filled]
            return f"{{ {', '.join(fields)} }}"
        dtype_found = dtype_of_c_type(parameter.c_type, "cuda")
        if dtype_found is None:
            raise self._wrong(f"passes {parameter.name!r} of type {parameter.c_type}, which is not read")
        value = self._number(actual, reader, host, is_float=dtype_found.kind == "float")
        return f'{{ role = "scalar", dtype = "{dtype_found.name}", value = "{value}" }}'

    def _tensor_of(self, actual: str, host: str) -> str | None:
        """The definition's tensor whose memory is passed, through variables of the host."""
        text = actual
        for _ in range(4):
            for word in re.findall(r"[A-Za-z_]\w*", text):
                if word in self._tensors:
                    return self._tensors[word]
            names = [each for each in re.findall(r"[A-Za-z_]\w*", text) if re.search(rf"\b{each}\s*=(?!=)", host)]
            if not names:
                return None
            assigned = re.findall(rf"\b{names[-1]}\s*=(?!=)\s*([^;]+);", host)
            text = assigned[0] if len(assigned) == 1 else ""
        return None

    def _number(self, actual: str, reader: HostReader, host: str, *, is_float: bool) -> str:
        text = actual.strip()
        for _ in range(4):
            if number := re.fullmatch(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFlLuU]*", text):
                return number[1]
            scalars = self._definition.scalars(self._workload)
            if (scalar := self._tensors.get(text, text)) in scalars:
                return str(scalars[scalar])
            if not is_float:
                break
            text = re.sub(r"^\(\s*(?:float|double)\s*\)", "", text).strip()
            assigned = re.findall(rf"\b{re.escape(text)}\s*=(?!=)\s*([^;]+);", host)
            if len(set(assigned)) != 1:
                raise self._wrong(f"passes {actual.strip()!r}, which is not read")
            text = assigned[0].strip()
        try:
            found = reader.text(text)
            if Expression.parse(found).names <= set(self._names.sizes.values()):
                return found
        except Untranslatable:
            pass
        raise self._wrong(f"passes {actual.strip()!r}, which is not read")

    # Names

    def _named_tensors(self) -> dict[str, str]:
        """By name of the host's code, the definition's: what the entry takes, makes and passes on."""
        entry = self._functions.get(self._solution["function"])
        if entry is None:
            raise self._wrong(f"defines no function {self._solution['function']!r}")
        parameters, body = entry
        wanted = [*self._definition.inputs]
        made = [first or second for first, second in _NEW.findall(body)]
        if self._solution["passes_outputs"]:
            wanted += self._definition.outputs
        elif len(made) == len(self._definition.outputs):
            parameters, wanted = [*parameters, *made], [*wanted, *self._definition.outputs]
        if len(parameters) != len(wanted):
            raise self._wrong(
                f"takes {len(entry[0])} arguments, and the definition has {len(self._definition.inputs)} inputs"
            )
        known = dict(zip(parameters, wanted, strict=True))
        for name, (formal, _) in self._functions.items():
            for call in re.finditer(rf"\b{re.escape(name)}\s*\(", body):
                end = matching(body, call.end() - 1)
                actual = split_commas(body[call.end() : end - 1]) if end else []
                if len(actual) == len(formal):
                    known |= {
                        own: known[each.strip()]
                        for own, each in zip(formal, actual, strict=True)
                        if each.strip() in known
                    }
        return known

    def _host_text(self) -> str:
        """The code with extents of tensors as axes, and one declaration in each statement."""
        text = _without_device(masked(self.text))
        shapes = {**self._definition.inputs, **self._definition.outputs}
        for own, name in self._tensors.items():
            extents = shape_texts(self._definition, shapes[name][0], self._names)
            for place, extent in enumerate(extents):
                text = re.sub(rf"\b{own}\s*\.\s*size\s*\(\s*(?:{place}|-{len(extents) - place})\s*\)", extent, text)
            text = re.sub(rf"\b{own}\s*\.\s*numel\s*\(\s*\)", f"({' * '.join(extents)})", text)
        text = re.sub(r"\bstatic_cast\s*<\s*[\w ]+\s*>\s*(?=\()", "", text)
        text = re.sub(
            r"\b(constexpr|const)\s+(?=(?:constexpr|const|int|unsigned|size_t|long|auto|u?int\w*_t)\b)", "", text
        )
        return re.sub(
            r"\b(auto|int|long|size_t|u?int\w*_t)\s+(\w+\s*=[^;=(){}]*(?:\([^;()]*\)[^;=(){}]*)*(?:,\s*\w+\s*=[^;={}]*)+);",
            lambda found: " ".join(f"{found[1]} {each};" for each in split_commas(found[2])),
            text,
        )

    def _wrong(self, message: str) -> Exception:
        return self._definition.wrong(f"{self._solution['name']} {message}")


def _functions_of(code: str) -> Iterator[tuple[str, tuple[list[str], str]]]:
    """By name, a function's parameters and its body."""
    for found in _FUNCTION.finditer(code):
        end = None if found[1] in _KEYWORDS else matching(code, found.end() - 1)
        body = re.match(r"\s*(?:const\s*)?(?:noexcept\s*)?\{", code[end:]) if end else None
        stop = matching(code, end + body.end() - 1) if end and body else None
        if end is None or stop is None:
            continue
        formal = [re.sub(r"\s*=.*", "", each, flags=re.DOTALL) for each in split_commas(code[found.end() : end - 1])]
        yield found[1], ([each.split()[-1].lstrip("*&") for each in formal if each.strip()], code[end:stop])


def _without_device(code: str) -> str:
    """The code with the bodies of device functions as blanks: their variables may be called like the host's."""
    pieces, at = [], 0
    for found in re.finditer(r"\b(?:__global__|__device__)\b[^;{}]*\{", code):
        end = matching(code, found.end() - 1)
        if end is not None and found.start() >= at:
            pieces += [code[at : found.end()], re.sub(r"[^\n]", " ", code[found.end() : end - 1])]
            at = end - 1
    return "".join((*pieces, code[at:]))


def _launch_at(code: str, start: int) -> tuple[list[str], list[str]]:
    """What stands between the chevrons that begin there, and what is passed."""
    end = code.find(">>>", start)
    opening = re.compile(r"\s*\(").match(code, end + 3) if end > 0 else None
    closing = matching(code, opening.end() - 1) if opening else None
    if opening is None or closing is None:
        return [], []
    return split_commas(code[start + 3 : end]), split_commas(code[opening.end() : closing - 1])


def _quoted(extents: tuple[str, ...]) -> str:
    return ", ".join(f'"{each}"' for each in extents)
