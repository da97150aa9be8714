"""What a kernel does, from its source alone: `analyse` gives the facts that rewriting is built on.

```
analysis = analyse(source, "cuda", entry="softmax")
for access in analysis.facts.accesses:
    print(access.array, analysis.form(access))
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from kernelwright.analysis.affine import AXES, AffineForm, Movement, affine_form
from kernelwright.analysis.facts import Access, Array, Atom, KernelFacts, Reuse
from kernelwright.analysis.literals import find_literals
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named, number
from kernelwright.analysis.state import State
from kernelwright.analysis.statements import Statements
from kernelwright.analysis.values import Pointer
from kernelwright.errors import Location, SpecError
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.preprocess import Opaque
from kernelwright.source.syntax import KEPT_TREES, parse


@dataclass(frozen=True, slots=True)
class Analysis:
    """One kernel, understood as far as it is."""

    tree: nodes.SyntaxTree
    function: nodes.Function
    facts: KernelFacts

    @property
    def source(self) -> str:
        """The text that all spans are of."""
        return self.tree.source

    @property
    def movement(self) -> Movement:
        """How values change from thread to thread."""
        return Movement(self.facts.atoms, self.facts.loops, self.facts.defaults)

    def form(self, access: Access) -> AffineForm | None:
        """An access's element as an affine form; None where it is none."""
        return None if access.element is None else affine_form(access.element, self.facts.atoms)

    def in_words(self, value: Polynomial) -> str:
        """A polynomial with the source's own names for what has one: `row*d + col`."""
        return str(value.replaced({atom: named(name) for atom, name in self.facts.names.items()}))

    def bounds(self, access: Access) -> Mapping[str, Polynomial]:
        """By atom, a size that it stays below wherever an access happens: from guards and loops."""
        return _bounds(self.facts, access)


def analyse(
    source: str,
    language: Language,
    *,
    entry: str | None = None,
    defines: Mapping[str, str] | None = None,
    file: Path | None = None,
    launched: tuple[str, ...] = (),
    views: bool = False,
) -> Analysis:
    """What one kernel of a source does; whatever is not understood is in `facts.opaque`.

    Args:
        source: the text of a CUDA, HIP or OpenCL C file.
        language: its dialect.
        entry: the kernel's name; may be left out where the file defines one.
        defines: macros from outside, by name.
        file: where the source comes from, for complaints.
        launched: the kernels that matter, `entry` among them; what only other ones call is not read. All by default.
        views: count bytes that are reached as numbers of one type alone in these: `char *x` by `((float *)x)[i]`.

    Raises:
        SpecError: the file defines no such kernel, or several and `entry` is not given.
    """
    tree = parse(source, language, defines=defines, entries=launched)
    chosen = choose_kernel(tree, entry, file=file)
    number = next(index for index, each in enumerate(tree.functions) if each is chosen)
    return _analysed(source, language, tuple((defines or {}).items()), launched, number, views)


@lru_cache(maxsize=KEPT_TREES)
def _analysed(
    source: str,
    language: Language,
    defines: tuple[tuple[str, str], ...],
    launched: tuple[str, ...],
    number: int,
    views: bool,
) -> Analysis:
    """The facts of the file's function of that number."""
    tree = parse(source, language, defines=dict(defines), entries=launched)
    return analyse_function(tree, tree.functions[number], language, views=views)


def choose_kernel(tree: nodes.SyntaxTree, entry: str | None, *, file: Path | None = None) -> nodes.Function:
    """The kernel called `entry`, or the only one.

    Raises:
        SpecError: there is none, or several and `entry` is None.
    """
    location = None if file is None else Location(file)
    kernels = tree.kernels
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    if not kernels:
        raise SpecError(
            "no kernel is defined here",
            hint="a kernel starts with `__kernel void` (OpenCL) or `__global__ void` (CUDA, HIP); "
            "code that only an included file makes is not seen",
            location=location,
        )
    if entry is None and len(names) > 1:
        raise SpecError(
            f"{len(names)} kernels are defined: {', '.join(names)}",
            hint=f"choose one, as in --entry {names[0]}",
            location=location,
        )
    found = [kernel for kernel in kernels if kernel.name == (entry or names[0])]
    if not found:
        raise SpecError(
            f"no kernel {entry!r} is defined; there is {', '.join(names)}",
            hint=did_you_mean(entry or "", names),
            location=location,
        )
    return found[0]


def analyse_function(
    tree: nodes.SyntaxTree, function: nodes.Function, language: Language, *, views: bool = False
) -> Analysis:
    """The facts of one kernel of a parsed file; `views`: as for `analyse`."""
    state, statements = _followed(tree, function, language, {})
    viewed = _views(state, function) if views else {}
    if viewed:
        state, statements = _followed(tree, function, language, viewed)
    return Analysis(tree, function, _facts(state, function, statements))


def _followed(
    tree: nodes.SyntaxTree, function: nodes.Function, language: Language, views: Mapping[str, str]
) -> tuple[State, Statements]:
    """A kernel, followed to its end; `views`: by parameter, the type in which its bytes are counted."""
    state = State(tree, language)
    statements = Statements(state)
    _add_file_scope(state, statements)
    _add_parameters(state, function, views)
    statements.kernel(function)
    return state, statements


def _views(state: State, function: nodes.Function) -> dict[str, str]:
    """By parameter that points to bytes, the one type of numbers that it is reached by."""
    found = {}
    for parameter in function.parameters:
        bytes_ = state.element_bytes(parameter.c_type)
        if not parameter.is_pointer or (bytes_ != 1 and state.resolved_type(parameter.c_type) != "void"):
            continue
        types = {re.sub(r"(?<=[a-z])(2|3|4|8|16)$", "", each) for each in state.viewed.get(parameter.name, ())}
        c_type = types.pop() if len(types) == 1 else ""
        if (state.element_bytes(c_type) or 0) > (bytes_ or 0):
            found[parameter.name] = c_type
    return found


def _add_file_scope(state: State, statements: Statements) -> None:
    for constant in tree_constants(state.tree):
        state.constants[constant.name] = statements.expressions.integer(constant.value)
    for each in state.tree.arrays:
        declarator = each.declarator
        extents = tuple(None if e is None else statements.expressions.integer(e) for e in declarator.extents)
        c_type = state.resolved_type(declarator.c_type)
        state.arrays[declarator.name] = Array(
            declarator.name, each.space, declarator.c_type, state.element_bytes(c_type), extents,  # type: ignore[arg-type]
            is_parameter=False, is_float=state.is_float_type(c_type), width=state.width(c_type),
            span=declarator.place.span,
        )  # fmt: skip
        state.constants[declarator.name] = Pointer(declarator.name, ZERO, ONE, extents[1:])


def tree_constants(tree: nodes.SyntaxTree) -> tuple[nodes.Constant, ...]:
    """The named integers of a file."""
    return tuple(each for each in tree.constants if not isinstance(each.value, nodes.OpaqueExpression))


def _add_parameters(state: State, function: nodes.Function, views: Mapping[str, str]) -> None:
    for parameter in function.parameters:
        name, own = parameter.name, state.resolved_type(parameter.c_type)
        if not name:
            continue
        c_type = views.get(name, own)
        state.declared_types[name] = "auto" if parameter.is_pointer else parameter.c_type
        if not parameter.is_pointer:
            state.parameter_types[name] = parameter.c_type
        width = state.width(c_type)
        if parameter.is_pointer:
            state.arrays[name] = Array(
                name, parameter.space, views.get(name, parameter.c_type), state.element_bytes(c_type), (),  # type: ignore[arg-type]
                is_parameter=True, is_float=state.is_float_type(c_type), width=width, span=parameter.place.span,
            )  # fmt: skip
            whole = Pointer(name, ZERO, ONE, c_type=own)
            state.variables[name] = replace(whole, unit=None, step_bytes=1) if name in views else whole
        elif state.is_float_type(c_type):
            state.variables[name] = state.atoms.add(Atom(name, "float"))
        elif width > 1:
            state.variables[name] = tuple(state.atoms.size(f"{name}.{axis}") for axis in "xyzw"[:width])
        else:
            state.variables[name] = state.atoms.size(name)


_OF_ASSEMBLY = re.compile(rb"\basm(?:__)?\s*$")
"""Before `volatile`: it is no memory then."""


def _facts(state: State, function: nodes.Function, statements: Statements) -> KernelFacts:
    tree, atoms = state.tree, state.atoms.by_name
    for name in ("block_size.x", "block_size.y", "block_size.z"):
        state.atoms.size(name)
    defaults = {
        name: number(macro.value)
        for name, macro in tree.expanded.macros.items()
        if macro.is_parameter and macro.value is not None
    }
    movement = Movement(atoms, state.loops, defaults)
    accesses = []
    for access in state.accesses:
        contiguity, stride = movement.contiguity(access)
        accesses.append(replace(access, contiguity=contiguity, stride=stride))
    used = [function, *[statements.functions[name] for name in state.helpers]]
    spans = [each.place.span for each in used]
    unclear = [each for each in tree.expanded.unclear if any(each.span.overlaps(span) for span in spans)]
    data = tree.source.encode("utf-8", "surrogatepass")
    unclear += [
        Opaque(mark.span, "volatile: every access must stay as it is")
        for mark in tree.expanded.marks
        if mark.text in ("volatile", "__volatile__") and any(span.contains(mark.span) for span in spans)
        and not _OF_ASSEMBLY.search(data, max(0, mark.span.start - 16), mark.span.start)
    ]  # fmt: skip
    return KernelFacts(
        name=function.name,
        span=function.place.span,
        body=function.body.place.span,
        parameters=function.parameters,
        attributes=function.attributes,
        template_parameters=tuple(each.name for each in function.template_parameters),
        atoms=MappingProxyType(atoms),
        names=MappingProxyType(_names(state)),
        defaults=MappingProxyType(defaults),
        arrays=MappingProxyType(state.arrays),
        thread_indices=tuple(dict.fromkeys(state.thread_indices)),
        guards=tuple(state.guards),
        loops=tuple(state.loops),
        accesses=tuple(accesses),
        reuses=tuple(_reuses(state, movement)),
        reductions=tuple(state.reductions),
        barriers=tuple(state.barriers),
        exchanges=tuple(state.exchanges),
        math=tuple(state.math),
        literals=find_literals(tree, used),
        casts=tuple(dict.fromkeys(state.casts)),
        helpers=tuple(state.helpers),
        opaque=tuple(sorted({*state.opaque, *unclear}, key=lambda each: each.span)),
        aligned=tuple(state.atoms.aligned),
        viewed={name: frozenset(types) for name, types in state.viewed.items()},
    )


def _names(state: State) -> dict[str, str]:
    """By atom, the one variable that the kernel keeps it in."""
    names: dict[str, str] = {}
    for each in state.thread_indices:
        atom = each.value.single_name
        if atom is not None and each.name and not atom.startswith("("):
            names.setdefault(atom, each.name)
    return names


def _used_axes(state: State) -> tuple[str, ...]:
    return tuple(axis for axis in AXES if any(name.endswith(f".{axis}") for name, atom in state.atoms.by_name.items()
                                              if atom.kind == "thread"))  # fmt: skip


def _reuses(state: State, movement: Movement) -> list[Reuse]:
    found = []
    axes = _used_axes(state)
    for access in state.accesses:
        if access.element is None or access.space == "private":
            continue
        threads = tuple(axis for axis in axes if not movement.depends_on_axis(access.element, axis))
        is_followed = all(state.atoms.by_name[name].kind not in ("carried", "unknown") for name in access.element.names)
        loops = tuple(
            index for index in access.loops
            if is_followed and state.loops[index].atom and state.loops[index].atom not in access.element.names
        )  # fmt: skip
        if threads or loops:
            found.append(Reuse(access.index, threads, loops))
    return found


def _bounds(facts: KernelFacts, access: Access) -> dict[str, Polynomial]:
    bounds: dict[str, Polynomial] = {}
    for index in access.loops:
        loop = facts.loops[index]
        if loop.bound is not None and loop.operator in ("<", "!=") and loop.atom:
            bounds.setdefault(loop.atom, loop.bound)
        elif loop.bound is not None and loop.operator == "<=" and loop.atom:
            bounds.setdefault(loop.atom, loop.bound + ONE)
    for index in access.guards:
        for comparison in facts.guards[index].comparisons:
            atom = comparison.left.single_name
            if atom is not None and comparison.operator in ("<", "<="):
                limit = comparison.right if comparison.operator == "<" else comparison.right + ONE
                bounds.setdefault(atom, limit)
    for name in access.element.names if access.element is not None else ():
        atom_fact = facts.atoms[name]
        if atom_fact.kind == "remainder":
            bounds.setdefault(name, atom_fact.parts[1])
    return bounds
