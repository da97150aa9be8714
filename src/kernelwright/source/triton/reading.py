"""What a Triton file says of its kernels: parameters, configurations of autotuners, launches. Nothing is executed.

What only running the file would tell (configurations from a function call, a grid from a variable) is kept as the text
that stands there.
"""

from __future__ import annotations

import ast
import hashlib
import io
import textwrap
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelwright.errors import Location, SpecError

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_CONFIG_ARGUMENTS = ("kwargs", *OPTIONS[:3])
"""Arguments of `triton.Config`, by position."""


@dataclass(frozen=True, slots=True)
class TritonParameter:
    """One argument of a `@triton.jit` function."""

    name: str
    is_constexpr: bool
    annotation: str | None
    default: str | None


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """One `@triton.jit` function; expressions are kept as text."""

    name: str
    line: int
    parameters: tuple[TritonParameter, ...]
    configs: tuple[Mapping[str, str], ...]
    """What `@triton.autotune` lists: each parameter, `num_warps` and the like to its value."""
    configs_code: str | None
    """Configurations that code makes, as that code; None where all are written out or there is no autotuner."""
    key: tuple[str, ...]
    """Arguments whose change tunes anew."""
    heuristics: Mapping[str, str]
    """Parameter to the function that computes it."""
    launches: tuple[Mapping[str, str], ...]
    """Each launch's `line`, `grid`, and options as `num_warps`."""
    calls: tuple[str, ...]
    """Other `@triton.jit` functions of the file that it calls."""
    other_decorators: tuple[str, ...]


def read_triton(text: str, file: Path) -> tuple[TritonKernel, ...]:
    """The `@triton.jit` functions of a file, in its order.

    Raises:
        SpecError: the text is no Python, or a kernel's arguments have no names, with the line; or there is none.
    """
    tree = parsed(text, file)
    names = imported_names(tree)
    functions = _jitted(tree, names)
    values = {
        each.targets[0].id: each.value
        for each in tree.body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }
    if not functions:
        raise SpecError(
            f"cannot analyse {file.name}: no @triton.jit function is defined here",
            hint="give a Triton file; `kernelwright init FILE` takes a PyTorch module",
            location=Location(file),
        )
    functions.sort(key=lambda each: each.lineno)
    jitted = {each.name for each in functions}
    launches = list(_launches(tree))
    kernels = tuple(_kernel(each, names, values, jitted, launches) for each in functions)
    called = {name for each in kernels for name in each.calls}
    for each in functions:
        rest = each.args.vararg or each.args.kwarg
        if rest is not None and each.name not in called:
            raise SpecError(
                f"{each.name!r} takes any number of arguments as {rest.arg!r}, and a launch needs each by name",
                hint="name its arguments one by one",
                location=Location(file, each.lineno),
            )
    return kernels


def defines_triton(text: str, file: Path) -> bool:
    """Whether there is a `@triton.jit` function.

    Raises:
        SpecError: the text is no Python, with its line.
    """
    tree = parsed(text, file)
    return bool(_jitted(tree, imported_names(tree)))


def _jitted(tree: ast.Module, names: Mapping[str, str]) -> list[ast.FunctionDef]:
    return [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and "triton.jit" in (full_name(d, names) for d in each.decorator_list)
    ]


def triton_kernel(text: str, file: Path, name: str) -> TritonKernel:
    """The kernel of that name.

    Raises:
        SpecError: as `read_triton`, or there is none of that name.
    """
    kernels = _kernels(text, file)
    found = next((each for each in kernels if each.name == name), None)
    if found is None:
        names = ", ".join(each.name for each in kernels)
        raise SpecError(
            f"{name!r} is no @triton.jit function of {file.name}", hint=f"there is {names}", location=Location(file)
        )
    return found


@lru_cache(maxsize=64)
def _kernels(text: str, file: Path) -> tuple[TritonKernel, ...]:
    return read_triton(text, file)


def constants_of(text: str, file: Path, names: Iterable[str], own: Iterable[str]) -> frozenset[str]:
    """What is fixed for a build of kernels that `text` defines: `tl.constexpr` arguments, and others among `own`.

    Raises:
        SpecError: as `read_triton`.
    """
    wanted, given = set(names), set(own)
    kernels = (each for each in _kernels(text, file) if each.name in wanted)
    parameters = (each for kernel in kernels for each in kernel.parameters)
    return frozenset(each.name for each in parameters if each.is_constexpr or each.name in given)


def parsed(text: str, file: Path) -> ast.Module:
    """A file's text as Python.

    Raises:
        SpecError: it is none, with its line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in the file
            return ast.parse(text)
    except SyntaxError as error:
        raise SpecError(
            f"this is no Python: {error.msg}",
            hint="correct the line",
            location=Location(file, error.lineno or 0, error.offset or 0),
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(
            f"this cannot be read as Python ({type(error).__name__})",
            hint="write shorter expressions",
            location=Location(file),
        ) from None


def imported_names(tree: ast.Module) -> Mapping[str, str]:
    """What the file's names of modules and their members are in full: `tl` is `triton.language`."""
    names: dict[str, str] = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            names |= {alias.asname: alias.name for alias in each.names if alias.asname is not None}
        elif isinstance(each, ast.ImportFrom) and each.level == 0:
            names |= {alias.asname or alias.name: f"{each.module}.{alias.name}" for alias in each.names}
    return names


def full_name(node: ast.AST | None, names: Mapping[str, str]) -> str:
    """A dotted name in full, a call's by what it calls; empty for anything else."""
    if isinstance(node, ast.Call):
        node = node.func
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    full = ".".join([names.get(node.id, node.id), *reversed(parts)])
    return full.replace("triton.runtime.autotuner.", "triton.").replace("triton.runtime.jit.", "triton.")


def _kernel(
    node: ast.FunctionDef,
    names: Mapping[str, str],
    values: Mapping[str, ast.expr],
    jitted: set[str],
    launches: list[tuple[str, Mapping[str, str]]],
) -> TritonKernel:
    decorators = {full_name(each, names): each for each in node.decorator_list}
    tuned = _arguments(decorators.get("triton.autotune"), ("configs", "key"))
    configs, code = _configs(tuned.get("configs"), names, values)
    known = ("triton.jit", "triton.autotune", "triton.heuristics")
    called = [each.func.id for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
    return TritonKernel(
        name=node.name,
        line=node.lineno,
        parameters=tuple(_parameters(node.args, names)),
        configs=tuple(configs),
        configs_code=code,
        key=tuple(_texts(_resolved(tuned.get("key"), values))),
        heuristics=_heuristics(decorators.get("triton.heuristics"), values),
        launches=tuple(options for name, options in launches if name == node.name),
        calls=tuple(name for name in dict.fromkeys(called) if name in jitted),
        other_decorators=tuple(
            _source(each) for each in node.decorator_list if full_name(each, names) not in known
        ),
    )  # fmt: skip


def _parameters(node: ast.arguments, names: Mapping[str, str]) -> Iterator[TritonParameter]:
    positional = [*node.posonlyargs, *node.args]
    defaults = [None] * (len(positional) - len(node.defaults)) + list(node.defaults)
    both = [*zip(positional, defaults, strict=True), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    for argument, default in both:
        annotation = None if argument.annotation is None else _source(argument.annotation)
        meant = argument.annotation
        if isinstance(meant, ast.Constant) and isinstance(meant.value, str):
            annotation = meant.value
            meant = _parsed(meant.value)
        is_constexpr = full_name(meant, names) in ("triton.language.constexpr", "triton.language.core.constexpr")
        yield TritonParameter(
            argument.arg, is_constexpr, annotation, None if default is None else _source(default)
        )  # fmt: skip


def _parsed(text: str) -> ast.expr | None:
    """An annotation that is written as a text."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _arguments(node: ast.expr | None, positions: tuple[str, ...]) -> Mapping[str, ast.expr]:
    if not isinstance(node, ast.Call):
        return {}
    named = {each.arg: each.value for each in node.keywords if each.arg is not None}
    return {**dict(zip(positions, node.args, strict=False)), **named}


def _resolved(node: ast.expr | None, values: Mapping[str, ast.expr]) -> ast.expr | None:
    """A name's value where the file gives it one at the top level."""
    return values.get(node.id, node) if isinstance(node, ast.Name) else node


def _configs(
    node: ast.expr | None, names: Mapping[str, str], values: Mapping[str, ast.expr]
) -> tuple[list[Mapping[str, str]], str | None]:
    """The configurations that are written out, and the code that makes more."""
    found = _resolved(node, values)
    if found is None:
        return [], None
    written = found.elts if isinstance(found, ast.List | ast.Tuple) else []
    configs = [_config(each, values) for each in written if full_name(each, names) == "triton.Config"]
    if isinstance(found, ast.List | ast.Tuple) and len(configs) == len(written):
        return configs, None
    return configs, _source(found)


def _config(node: ast.expr, values: Mapping[str, ast.expr]) -> Mapping[str, str]:
    given = dict(_arguments(node, _CONFIG_ARGUMENTS))
    parameters = _resolved(given.pop("kwargs", None), values)
    return {**_entries(parameters), **{name: _source(value) for name, value in given.items()}}


def _entries(node: ast.expr | None) -> Mapping[str, str]:
    """A dict's keys that are texts, to its values as text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {each.arg: _source(each.value) for each in node.keywords if each.arg is not None}
    if not isinstance(node, ast.Dict):
        return {} if node is None else {"**": _source(node)}
    pairs = zip(node.keys, node.values, strict=True)
    return {_text(key): _source(value) for key, value in pairs}


def _text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "**" if node is None else _source(node)


def _texts(node: ast.expr | None) -> list[str]:
    if isinstance(node, ast.List | ast.Tuple):
        return [_text(each) for each in node.elts]
    return [] if node is None else [_source(node)]


def _heuristics(node: ast.expr | None, values: Mapping[str, ast.expr]) -> Mapping[str, str]:
    return _entries(_resolved(_arguments(node, ("values",)).get("values"), values))


def _source(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):  # a number too long to be shown, or an expression too deep
        return "…"


def _launches(tree: ast.Module) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Calls such as `kernel[grid](...)`: the last part of the kernel's name, and what is told of the launch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            name = _source(node.func.value).rpartition(".")[2]
            options = {each.arg: _source(each.value) for each in node.keywords if each.arg in OPTIONS and each.arg}
            yield name, {"line": str(node.lineno), "grid": _source(node.func.slice), **options}


def kernel_hash(text: str, name: str = "") -> str:
    """What a kernel's text is known by: its tokens without comments, decorators and layout, the same in any Python.

    Args:
        text: of a file, or of the function alone, indented or not.
        name: the function's; empty: the only one, or the first.

    Raises:
        ValueError: there is no such function.
    """
    text = textwrap.dedent(text)
    functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]
    found = next((each for each in functions if each.name == name or not name), None)
    if found is None:
        raise ValueError(f"no function {name!r}")
    lines = text.splitlines(keepends=True)[found.lineno - 1 : found.end_lineno]
    own = textwrap.dedent("".join(lines))
    left_out = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)
    tokens = (each for each in tokenize.generate_tokens(io.StringIO(own).readline) if each.type not in left_out)
    marks = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}
    words = (marks.get(each.type) or each.string for each in tokens)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
