"""A PyTorch operator as a folder to drop into a project: one `torch.library` op with the dispatch inside.

```
kernelwright_silu_and_mul/
    __init__.py     the operator: checks, output allocation, fake implementation
    dispatch.py     which kernel serves which sizes, its launches
    runtime.py      NVRTC and driver, through ctypes
    support.py      checks, launch on the current stream, the reference
    source/         tuned template, baseline and their headers, byte for byte
    reference/      the problem's reference
```
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from kernelwright.errors import UserError
from kernelwright.export.subject import ExportedRun, one_line
from kernelwright.export.torch.dispatch import dispatch_text, given_scalars
from kernelwright.export.torch.expression import bare, docstring_safe, literal, python_text, solved
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument
from kernelwright.problem.reference_file import reference_files
from kernelwright.template.load import problem_files

_HEADERS = (".h", ".hh", ".hpp", ".cuh", ".clh", ".inc")


def torch_files(run: ExportedRun) -> dict[str, bytes]:
    """The folder's files, by their path from the folder that holds it.

    Raises:
        UserError: nothing won, the kernel is not CUDA, or needs what the operator cannot do.
    """
    if run.template.language != "cuda":
        raise UserError(
            f"{run.template.file.name} is {run.template.language}, and PyTorch operators are made of CUDA kernels",
            hint="export header or json for other hosts",
        )
    if run.problem.reference.is_kernel or run.problem.reference.is_c:
        what = "a kernel" if run.problem.reference.is_kernel else "in C"
        raise UserError(
            f"the reference is {what}, and a PyTorch operator falls back on one in Python",
            hint='write it: reference = "reference.py:FUNCTION"; or export header or json',
        )
    files = {
        "__init__.py": operator_text(run).encode(),
        "dispatch.py": dispatch_text(run).encode(),
        "runtime.py": _own_text("runtime.py"),
        "support.py": _own_text("support.py"),
    }
    subject, folder = run.subject, run.problem.file.parent
    references = {path.relative_to(folder).as_posix() for path in reference_files(run.problem.reference)}
    sources = {each.file.relative_to(folder).as_posix() for each in (run.template, subject.baseline.template)}
    for name, data in problem_files(run.problem, run.template, subject.baseline).items():
        if name in references:
            files[f"reference/{name}"] = data
        elif name in sources or name.endswith(_HEADERS):
            files[f"source/{name}"] = data
    return {f"kernelwright_{run.identifier}/{name}": data for name, data in files.items()}


def _own_text(name: str) -> bytes:
    return resources.files("kernelwright.export.torch").joinpath(name).read_bytes()


@dataclass(frozen=True, slots=True)
class _Solution:
    """How the sizes follow from the tensors."""

    lines: tuple[str, ...]
    """One assignment each, in order."""
    asked: tuple[str, ...]
    """Sizes that no shape tells: arguments of the operator."""


def operator_text(run: ExportedRun) -> str:
    """The text of `__init__.py`.

    Raises:
        UserError: the problem has no input tensor, or its sizes cannot be told.
    """
    return _Operator(run).text()


class _Operator:
    """One module while it is written."""

    def __init__(self, run: ExportedRun) -> None:
        self.run = run
        self.name = run.identifier
        self.tensors = tuple(each for each in run.problem.arguments if each.role in ("input", "inout"))
        self.outputs = tuple(each for each in run.problem.arguments if each.role == "output")
        self.changed = tuple(each.name for each in self.tensors if each.role == "inout")
        self.given = given_scalars(run)
        if not self.tensors:
            raise UserError(f"{run.problem.name} has no input tensor, so a PyTorch operator knows no device")
        if not self.name.isidentifier():
            raise UserError(f"{run.problem.name!r} cannot be the name of a Python function")
        self.solution = _solve(run, self.tensors)

    def text(self) -> str:
        """All parts, in the order of a reader."""
        parts = [
            self._docstring(),
            "from pathlib import Path\n\nimport torch\n\n"
            "from . import dispatch as _dispatch\nfrom . import support as _support\n",
            self._constants(),
            self._sizes(),
            self._operator(),
            self._fake(),
            self._which(),
            self._compute(),
        ]
        return "\n\n".join(part.strip("\n") + "\n" for part in parts)

    def _docstring(self) -> str:
        run = self.run
        lines = [
            f"{run.problem.name} as a PyTorch operator, made by Kernelwright {run.view.started.version}.",
            "",
            f"    from kernelwright_{self.name} import {self.name}",
            "",
            f"    {self._returned_example()}{self.name}({', '.join(each.name for each in self.tensors)})",
            "",
            "On a CUDA device: a tuned kernel for sizes in its domain, else the baseline's; on the current stream.",
            "Where neither can, and on the CPU: the reference, in float64, slowly. Kernels are compiled at their first",
            f"use; call `which_{self.name}` with the same arguments to see what would run. Works under torch.compile;",
            "there is no gradient. Tensors are contiguous; arguments that are changed must not overlap others.",
            "",
            f"Tuned on {run.device_name}; run {run.view.started.run_id}, started {run.view.started.created}.",
            f"Measured: {run.claim}.",
            "The kernels in `source` and the reference keep their own licence.",
        ]
        return '"""' + docstring_safe("\n".join(one_line(line) for line in lines)) + '\n"""\n'

    def _returned_example(self) -> str:
        names = ", ".join(each.name for each in self.outputs)
        return f"{names} = " if names else ""

    def _constants(self) -> str:
        dtypes = "".join(f'    "{each.name}": torch.{each.dtype},\n' for each in (*self.tensors, *self.outputs))
        reference = self.run.problem.reference
        file = reference.file.relative_to(self.run.problem.file.parent).as_posix()
        written = tuple(each.name for each in self.run.problem.outputs)
        return (
            "_FOLDER = Path(__file__).resolve().parent\n"
            f'_REFERENCE = _FOLDER / "reference" / {literal(file)}\n'
            f"_FUNCTION = {literal(reference.function)}\n_WRITTEN = {literal(written)}\n"
            f"_CHANGED = {literal(self.changed)}\n"
            f"_DTYPES = {{\n{dtypes}}}\n"
        )

    # -- signatures ------------------------------------------------------------------------------------------------

    def _signature(self) -> str:
        words = [f"{each.name}: torch.Tensor" for each in self.tensors]
        keywords = [f"{name}: int" for name in self.solution.asked]
        for name, value in self.given.defaults(self.run.table.limits).items():
            keywords.append(f"{name}: {type(value).__name__} = {value!r}")
        if keywords:
            words.append("*")
        return ", ".join([*words, *keywords])

    def _result(self) -> str:
        types = ["torch.Tensor"] * len(self.outputs)
        return {0: "None", 1: "torch.Tensor"}.get(len(types), f"tuple[{', '.join(types)}]")

    def _returned(self, names: Iterable[str]) -> str:
        listed = ", ".join(names)
        return f"    return {listed}\n" if listed else ""

    # -- functions -------------------------------------------------------------------------------------------------

    def _sizes(self) -> str:
        ranks = "".join(f'    _support.check_rank("{t.name}", {t.name}, {len(t.shape)})\n' for t in self.tensors)
        assignments = "".join(f"    {line}\n" for line in self.solution.lines)
        checks = "".join(f'    _support.check_shape("{t.name}", {t.name}, {_shape(t)})\n' for t in self.tensors)
        keywords = [f"{name}: int" for name in self.solution.asked]
        words = [*(f"{t.name}: torch.Tensor" for t in self.tensors), *(["*", *keywords] if keywords else [])]
        sizes = self._tuple(_local(name) for name in self.run.problem.size_names)
        return (
            f"def _sizes({', '.join(words)}) -> tuple[int, ...]:\n"
            '    """The sizes that the tensors\' shapes say, in the order of `dispatch.SIZES`."""\n'
            f"{ranks}{assignments}{checks}    return {sizes}\n"
        )

    def _tuple(self, names: Iterable[str]) -> str:
        listed = list(names)
        return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"

    def _known(self) -> str:
        asked = "".join(f", {name}={name}" for name in self.solution.asked)
        sizes = self._tuple(_local(name) for name in self.run.problem.size_names)
        return f"    {sizes} = _sizes({', '.join(t.name for t in self.tensors)}{asked})\n"

    def _allocated(self, indent: str = "    ") -> str:
        first = self.tensors[0].name
        return "".join(
            f"{indent}{each.name} = {first}.new_empty({_shape(each)}, dtype=torch.{each.dtype})\n"
            for each in self.outputs
        )

    def _operator(self) -> str:
        tensors = ", ".join(f'"{each.name}": {each.name}' for each in (*self.tensors, *self.outputs))
        sizes = self._tuple(_local(name) for name in self.run.problem.size_names)
        known = ", ".join(f'"{each.name}": {each.name}' for each in self.tensors)
        return (
            f'@torch.library.custom_op("kernelwright::{self.name}", mutates_args={literal(self.changed)})\n'
            f"def {self.name}({self._signature()}) -> {self._result()}:\n"
            f'    """Compute {self._purpose()}; see the module."""\n'
            f"{self._known()}    _support.check_tensors({{{known}}}, _DTYPES)\n{self._allocated()}"
            f"    _compute({sizes}, {self._tuple(self.given.names)}, {{{tensors}}})\n"
            f"{self._returned(each.name for each in self.outputs)}"
        )

    def _purpose(self) -> str:
        names = [*(each.name for each in self.outputs), *(f"{name} in place" for name in self.changed)]
        return " and ".join(names)

    def _fake(self) -> str:
        body = f"{self._known()}{self._allocated()}{self._returned(each.name for each in self.outputs)}"
        return (
            f"@{self.name}.register_fake\ndef _({self._signature()}) -> {self._result()}:\n"
            f'    """What comes out, without its numbers."""\n{body}'
        )

    def _which(self) -> str:
        sizes = self._tuple(_local(name) for name in self.run.problem.size_names)
        return (
            f"def which_{self.name}({self._signature()}) -> str:\n"
            '    """What would run for these arguments: `config N`, `baseline` or `reference`."""\n'
            f"{self._known()}    plan = _plan({sizes}, {self._tuple(self.given.names)}, "
            f"{self.tensors[0].name}.device)\n"
            '    return "reference" if plan is None else plan.label\n'
        )

    def _compute(self) -> str:
        return '''def _plan(sizes, scalars, device):
    """The kernel for these sizes on a device; None: the reference."""
    if device.type != "cuda":
        return None
    is_tuned = _dispatch.CAPABILITY in (None, _support.capability_of(device))
    return _dispatch.plan(sizes, scalars, is_tuned_device=is_tuned)


def _compute(sizes, scalars, tensors):
    plan = _plan(sizes, scalars, next(iter(tensors.values())).device)
    if plan is not None:
        _support.run(plan, _FOLDER, tensors, _WRITTEN)
        return
    numbers = {
        **dict(zip(_dispatch.SIZES, sizes, strict=True)),
        **_dispatch.scalars_of(sizes, scalars),
    }
    given = {name: tensor for name, tensor in tensors.items() if name not in _WRITTEN or name in _CHANGED}
    _support.run_reference(_REFERENCE, _FUNCTION, given, numbers, {name: tensors[name] for name in _WRITTEN})
'''


def _local(size: str) -> str:
    """A size in the operator, where arguments may be called like sizes."""
    return f"size_{size}"


def _shape(argument: Argument) -> str:
    extents = [_renamed(extent) for extent in argument.shape]
    return f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"


def _renamed(expression: Expression) -> str:
    names = {name: f"size_{name}" for name in expression.names}
    return bare(python_text(expression, {}, renamed=names))


def _solve(run: ExportedRun, tensors: tuple[Argument, ...]) -> _Solution:
    """Take each size from the first shape that tells it; what follows from other sizes is computed."""
    derived = dict(run.table.domain.derived)
    free = [name for name in run.problem.size_names if name not in derived]
    lines: list[str] = []
    known: set[str] = set()
    has_news = True
    while has_news:
        has_news = False
        for tensor in tensors:
            for place, extent in enumerate(tensor.shape):
                unknown = [name for name in extent.names if name not in known]
                if len(unknown) != 1 or unknown[0] in derived:
                    continue
                names = {name: _local(name) for name in extent.names}
                text = solved(extent.tree, unknown[0], f"{tensor.name}.shape[{place}]", renamed=names)
                if text is not None:
                    lines.append(f"{_local(unknown[0])} = {bare(text)}")
                    known.add(unknown[0])
                    has_news = True
        for name in _order(derived):
            if name not in known and derived[name].names <= known:
                lines.append(f"{_local(name)} = {_renamed(derived[name])}")
                known.add(name)
                has_news = True
    asked = tuple(name for name in free if name not in known)
    late = [name for name in _order(derived) if name not in known]
    lines = [f"{_local(name)} = {name}" for name in asked] + lines
    lines += [f"{_local(name)} = {_renamed(derived[name])}" for name in late]
    return _Solution(tuple(lines), asked)


def _order(derived: dict[str, Expression]) -> list[str]:
    graph = {name: expression.names & derived.keys() for name, expression in derived.items()}
    return list(graphlib.TopologicalSorter(graph).static_order())
