"""Whether a template fits its problem and its own source: names, signatures, and its defaults on every workload."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kernelwright.errors import Location, SpecError
from kernelwright.problem.checks import (
    DEVICE_NAMES,
    check_expression,
    evaluate_extent,
    evaluate_on,
    shown_path,
)
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import (
    DTYPES,
    dtype_of_c_type,
    encode_scalar,
    fits_c_type,
    is_vector_c_type,
)
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, LaunchStep, Problem, SourceSpec, Workload
from kernelwright.problem.options import option_expressions
from kernelwright.problem.source_scan import (
    KernelParameter,
    KernelSignature,
    macro_definitions,
    scan_kernels,
    used_words,
)
from kernelwright.problem.toml.file import did_you_mean, read_text
from kernelwright.source.triton.reading import OPTIONS, constants_of, triton_kernel
from kernelwright.space.parameter import Constraint
from kernelwright.template.model import Template
from kernelwright.template.outside import check_outside


def arguments_of(problem: Problem, template: Template) -> dict[str, Argument]:
    """The problem's arguments and the template's own scratch, by name."""
    return {argument.name: argument for argument in (*problem.arguments, *template.scratch)}


def resolve_arguments(problem: Problem, template: Template) -> Template:
    """The template with every launch's arguments named: all of the problem's in order, then its own scratch.

    Raises:
        SpecError: two things have one name, or a launch names an argument that does not exist, or one twice.
    """
    _check_clashes(problem, template)
    known = arguments_of(problem, template)
    steps = []
    for step in template.steps:
        constants = {argument for _, argument in step.constants}
        _check_constants(step, known)
        names = tuple(name for name in known if name not in constants) if step.arguments is None else step.arguments
        named = set()
        for name in names:
            if name not in known:
                raise SpecError(
                    f"the launch of {step.entry!r} names an unknown argument {name!r}; arguments are "
                    + ", ".join(known),
                    hint=did_you_mean(name, known),
                    location=step.location,
                )
            if name in named:
                raise SpecError(
                    f"the launch of {step.entry!r} names the argument {name!r} twice", location=step.location
                )
            named.add(name)
        steps.append(replace(step, arguments=names))
    return replace(template, steps=tuple(steps))


def check_template(problem: Problem, template: Template, spec: SourceSpec) -> None:
    """Refuse a template, read as `spec` says, that cannot work, whatever the device.

    Raises:
        SpecError: names that are unknown, an entry or parameter that the source does not have, arguments
            that do not fit the kernel's signature, a default that breaks a constraint or a launch on some workload.
    """
    _check_names(problem, template)
    _check_outputs_passed(problem, template)
    check_outside(problem, template)
    _check_uses(problem, template)
    _check_macro_names(template)
    _check_defines_in_source(template)
    kernels = scan_kernels(template.source, template.language)
    for step in template.steps:
        _check_entry(step, kernels, template, spec)
        _check_signature(step, kernels, problem, template)
    _check_defaults(problem, template)


def _check_constants(step: LaunchStep, known: Mapping[str, Argument]) -> None:
    for variable, name in step.constants:
        if name not in known:
            raise SpecError(
                f"constants of {step.entry!r}: {variable!r} is filled from an unknown argument {name!r}; arguments are "
                + ", ".join(known),
                hint=did_you_mean(name, known),
                location=step.location,
            )
        if known[name].role != "input":
            raise SpecError(
                f"constants of {step.entry!r}: {variable!r} is filled from {name!r}, which is {known[name].role}",
                hint='what fills a constant has role = "input"',
                location=step.location,
            )


# Names


def _check_clashes(problem: Problem, template: Template) -> None:
    taken: dict[str, str] = dict.fromkeys(problem.size_names, "a size of the problem")
    taken |= {argument.name: "an argument of the problem" for argument in problem.arguments}
    own: list[tuple[str, str, Location | None]] = []
    own += [(each.name, "parameter", each.location) for each in template.parameters]
    own += [(name, "define", expression.location) for name, expression in template.defines.items()]
    own += [(each.name, "scratch", each.location) for each in template.scratch]
    for name, what, location in own:
        if name in taken:
            raise SpecError(
                f"{what} {name!r} has the name of {taken[name]}",
                hint="rename it, for example to upper case",
                location=location,
            )
        taken[name] = f"a {what} of the template"


def _check_names(problem: Problem, template: Template) -> None:
    """Every expression uses only sizes, parameters and `device.*`."""
    known = {**problem.workloads[0].sizes, **template.default, **dict.fromkeys(DEVICE_NAMES, 0)}
    for constraint in template.constraints:
        check_expression(constraint.expression, known, what=f"constraint {constraint.name!r}")
    for use in _uses(problem, template):
        check_expression(use.expression, known, what=use.what)
    for option in (each for each in template.options if "{" in each):
        for expression in option_expressions((option,), location=_place_of_option(option, problem, template)):
            _check_option(option, expression, known)


def _place_of_option(option: str, problem: Problem, template: Template) -> Location:
    """The line that has the option as it was written: in the header, or in the problem file."""
    written = json.dumps(option, ensure_ascii=False)
    texts = {template.file: template.source, problem.file: read_text(problem.file, what="the problem file")}
    for file, text in texts.items():
        if written in text:
            return Location(shown_path(file), text[: text.index(written)].count("\n") + 1)
    return Location(shown_path(template.file))


def _check_option(option: str, expression: Expression, known: Mapping[str, object]) -> None:
    try:
        check_expression(expression, known, what=f"option {option!r}")
    except SpecError as error:
        advice = (
            "write options with this template's parameters in its own header, or give [baseline] options of its own"
        )
        raise SpecError(
            error.message, hint=f"{error.hint}; {advice}" if error.hint else advice, location=error.location
        ) from None


@dataclass(frozen=True, slots=True)
class _Use:
    """One expression that decides what is built or launched."""

    what: str
    expression: Expression
    minimum: int | None = None
    """The least value that works; None where any value does."""
    dtype: str | None = None
    """What a scalar's value must fit."""


def _uses(problem: Problem, template: Template) -> Iterator[_Use]:
    for step in template.steps:
        for extent in step.grid:
            yield _Use(f"grid of {step.entry!r}", extent, 1)
        for extent in step.block:
            yield _Use(f"block of {step.entry!r}", extent, 1)
        for extent in step.cluster:
            yield _Use(f"cluster of {step.entry!r}", extent, 1)
        if step.shared_bytes is not None:
            yield _Use(f"shared_bytes of {step.entry!r}", step.shared_bytes, 0)
    for name, expression in template.defines.items():
        yield _Use(f"define {name!r}", expression)
    for argument in _passed(problem, template).values():
        for extent in argument.shape:
            yield _Use(f"shape of {argument.name!r}", extent, 0)
        if argument.value is not None:
            yield _Use(f"value of {argument.name!r}", argument.value, None, argument.dtype)


def _passed(problem: Problem, template: Template) -> dict[str, Argument]:
    """The arguments that some launch takes."""
    passed = {name for step in template.steps for name in step.arguments or ()}
    passed |= {name for step in template.steps for _, name in step.constants}
    return {name: each for name, each in arguments_of(problem, template).items() if name in passed}


def _check_uses(problem: Problem, template: Template) -> None:
    words = used_words(template.source, template.language)
    if template.language == "triton":  # only what a launch can give the kernel counts
        entries, own = {step.entry for step in template.steps}, {*template.default, *template.defines}
        words = constants_of(template.source, shown_path(template.file), entries, own) | set(OPTIONS)
    used = words.union(
        *(use.expression.names for use in _uses(problem, template)),
        *(expression.names for expression in option_expressions(template.options)),
    )
    elsewhere = [use.expression.text for use in _uses(problem, template) if not use.what.startswith("define ")]
    elsewhere += [each.expression.text for each in template.constraints]
    for parameter in template.parameters:
        if parameter.name not in used:
            raise SpecError(
                f"parameter {parameter.name!r} is used nowhere: not in the source's code, a launch, a define, an "
                "option or a shape",
                hint=did_you_mean(parameter.name, words) or "use it, or remove it",
                location=parameter.location,
            )
    for name, expression in template.defines.items():
        # Where a constraint, launch or shape says a define, its expression stands there since, in brackets.
        said = any(f"({expression.text})" in each for each in elsewhere)
        if name not in words and (not said or template.language == "triton"):
            raise SpecError(
                f"define {name!r} is not used in the source",
                hint=did_you_mean(name, words) or "use it, or remove it",
                location=expression.location,
            )


_BUILT_IN = frozenset((
    "get_global_id", "get_local_id", "get_group_id", "get_global_size", "get_local_size", "get_num_groups", "barrier",
    "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "uint", "uchar", "ushort", "ulong", "size_t",
    "restrict", "asm", "define", "include", "defined", "pragma",
))  # fmt: skip


def _check_macro_names(template: Template) -> None:
    """A macro of the name of a kernel or of a word of the language would rewrite the source into something else."""
    if template.language == "triton":
        return
    kernels = {kernel.name for kernel in scan_kernels(template.source, template.language)}
    named = [("parameter", each.name, each.location) for each in template.parameters]
    named += [("define", name, expression.location) for name, expression in template.defines.items()]
    for what, name, location in named:
        if name in kernels:
            reason = "has the name of a kernel"
        elif name.startswith("__") or name in _BUILT_IN:
            reason = f"is a word of {template.language.upper() if template.language != 'opencl' else 'OpenCL C'}"
        else:
            continue
        raise SpecError(
            f"{what} {name!r} {reason}, which the macro would replace everywhere in the source",
            hint="rename it, for example to upper case",
            location=location,
        )


def _check_defines_in_source(template: Template) -> None:
    """A macro that the source defines unconditionally would win over the value that is being tuned."""
    if template.language == "triton":
        return
    ours = {parameter.name for parameter in template.parameters} | template.defines.keys()
    for macro in macro_definitions(template.source):
        if macro.name in ours and not macro.is_guarded:
            raise SpecError(
                f"the source defines {macro.name} itself, so the parameter's values would never reach the kernel",
                hint=f"guard it: #ifndef {macro.name} / #define {macro.name} {macro.body} / #endif",
                location=Location(shown_path(template.file), macro.line),
            )


# Kernels


def _base_name(entry: str) -> str:
    """The kernel's name in an entry such as `softmax<float, 4>`."""
    return entry.partition("<")[0].strip()


def _check_entry(step: LaunchStep, kernels: tuple[KernelSignature, ...], template: Template, spec: SourceSpec) -> None:
    name = _base_name(step.entry)
    if "<" in step.entry and (template.language == "opencl" or not step.entry.rstrip().endswith(">")):
        is_opencl = template.language == "opencl"
        raise SpecError(
            f"entry {step.entry!r} "
            + ("is a template instance, and OpenCL C has none" if is_opencl else "has no closing `>`"),
            hint=f"write {name!r}" if is_opencl else f"write {step.entry.strip()}>",
            location=(spec.entry_location if step.entry == spec.entry else None) or step.location,
        )
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    if name in names or (not names and name in used_words(template.source, template.language)):
        return
    listed = ", ".join(names) or "none that can be recognised"
    raise SpecError(
        f"entry {step.entry!r} is not defined in {template.file.name}; its kernels are {listed}",
        hint=did_you_mean(name, names) or "write the kernel's name as the source has it",
        location=(spec.entry_location if step.entry == spec.entry else None) or step.location,
    )


def _check_signature(
    step: LaunchStep, kernels: tuple[KernelSignature, ...], problem: Problem, template: Template
) -> None:
    """Compare a launch with the kernel's own parameters; one of several definitions under `#if` must fit."""
    if step.shared_bytes is not None and template.language == "opencl":
        raise SpecError(
            "shared_bytes is for CUDA and HIP; OpenCL passes local memory as an argument",
            hint='declare it under [scratch]: name = { role = "local", dtype = ..., shape = [...] }',
            location=step.shared_bytes.location,
        )
    if template.language != "cuda" and (step.cluster or step.is_cooperative or step.constants):
        word = "cluster" if step.cluster else "cooperative" if step.is_cooperative else "constants"
        raise SpecError(f"{word!r} in a launch is for CUDA, and this is {template.language}", location=step.location)
    if template.language == "triton":
        _check_triton(step, problem, template)
        return
    name = _base_name(step.entry)
    error: SpecError | None = None
    for kernel in kernels:
        if kernel.name != name:
            continue
        if kernel.parameters is None:
            return
        try:
            _compare(step, kernel, kernel.parameters, problem, template)
        except SpecError as failure:
            error = error or failure
        else:
            return
    if error is not None:
        raise error


def _check_triton(step: LaunchStep, problem: Problem, template: Template) -> None:
    """Every argument that each launch gives, and a value for every `tl.constexpr` that has none of its own."""
    kernel = triton_kernel(template.source, shown_path(template.file), step.entry)
    place = Location(shown_path(template.file), kernel.line)
    own = {*template.default, *template.defines}
    names = step.arguments or ()
    given = [each.name for each in kernel.parameters if not each.is_constexpr and each.name not in own]
    if len(names) != len(given) or (set(names) == set(given) and list(names) != given):
        raise SpecError(
            f"the launch of {step.entry!r} passes {len(names)} arguments ({', '.join(names)}), but the kernel takes "
            f"{len(given)} beside its constants ({', '.join(given)})",
            hint="list them in the kernel's order under [arguments], or as `arguments = [...]` in the launch",
            location=step.location or place,
        )
    if template.options:
        raise SpecError(
            f"Triton takes no compile options, but there is {template.options[0]!r}",
            hint="num_warps, num_stages, num_ctas and maxnreg are parameters or defines",
            location=_place_of_option(template.options[0], problem, template),
        )
    for name in names:
        if arguments_of(problem, template)[name].role == "local":
            raise SpecError(f"argument {name!r} has the role local, which only OpenCL has", location=step.location)
    known = {*problem.size_names, *own}
    for each in kernel.parameters:
        if each.is_constexpr and each.default is None and each.name not in known:
            how = (
                f"; @triton.heuristics computes it by {kernel.heuristics[each.name]}"
                if each.name in kernel.heuristics
                else ""
            )
            raise SpecError(
                f"nothing gives {each.name!r}, a tl.constexpr of {step.entry!r}, a value{how}",
                hint=f"declare a parameter or a define {each.name} in the header, or a size of that name",
                location=place,
            )


def _compare(
    step: LaunchStep,
    kernel: KernelSignature,
    parameters: tuple[KernelParameter, ...],
    problem: Problem,
    template: Template,
) -> None:
    known = arguments_of(problem, template)
    names = step.arguments or ()
    place = f"{shown_path(template.file)}:{kernel.line}"
    declared = [parameter.name for parameter in parameters]
    if len(names) != len(parameters):
        hint = "list the kernel's parameters in order under [arguments], or as `arguments = [...]` in the launch"
        if declared and all(name in known for name in declared):
            hint = "in the launch write arguments = [" + ", ".join(f'"{name}"' for name in declared) + "]"
        raise SpecError(
            f"the launch of {step.entry!r} passes {len(names)} arguments ({', '.join(names)}), but the kernel at "
            f"{place} takes {len(parameters)} ({', '.join(declared)})",
            hint=hint,
            location=step.location,
        )
    if set(names) == set(declared) and list(names) != declared:
        raise SpecError(
            f"the launch of {step.entry!r} passes {', '.join(names)}, but the kernel at {place} takes them in "
            f"another order: {', '.join(declared)}",
            hint="put the arguments into the kernel's order",
            location=step.location,
        )
    for name, parameter in zip(names, parameters, strict=True):
        complaint = _mismatch(known[name], parameter, template)
        if complaint is not None:
            raise SpecError(
                f"argument {name!r} {complaint} ({shown_path(template.file)}:{parameter.line}, parameter "
                f"{parameter.name!r} of {kernel.name!r})",
                hint="correct the argument's line, or the kernel",
                location=known[name].location,
            )


def _mismatch(argument: Argument, parameter: KernelParameter, template: Template) -> str | None:
    """Why an argument cannot be passed as a parameter, or None."""
    language = template.language
    spelled = f"`{parameter.c_type}{' *' if parameter.is_pointer else ''}`"
    if not fits_c_type(DTYPES[argument.dtype], parameter.c_type, language, is_pointer=parameter.is_pointer):
        found = dtype_of_c_type(parameter.c_type, language)
        assert found is not None
        return f"is {argument.dtype}, but the source says {spelled}, which is {found.name}"
    if argument.role == "scalar":
        return _scalar_mismatch(argument, parameter, template, spelled)
    is_known_type = dtype_of_c_type(parameter.c_type, language) is not None
    if not parameter.is_pointer:
        return f"is an array ({argument.role}), but the source takes {spelled} by value" if is_known_type else None
    if argument.role == "local":
        if language != "opencl":
            return "has the role local, which only OpenCL has; use shared_bytes in the launch"
        if parameter.address_space != "local":
            return f"has the role local, but the source takes a {parameter.address_space} pointer"
    elif parameter.address_space == "local":
        return f"has the role {argument.role}, but the source takes a __local pointer"
    is_only_launch = sum(argument.name in (step.arguments or ()) for step in template.steps) == 1
    if argument.role in ("output", "inout") and parameter.is_const and is_only_launch:
        return f"has the role {argument.role}, but the source promises not to write it (const)"
    return None


def _scalar_mismatch(argument: Argument, parameter: KernelParameter, template: Template, spelled: str) -> str | None:
    if parameter.is_pointer:
        return f"is a scalar, but the source takes a pointer, {spelled}"
    if is_vector_c_type(parameter.c_type, template.language):
        return f"is one {argument.dtype}, but the source takes {spelled}, a vector, by value"
    if template.language == "opencl" and parameter.c_type in ("bool", "size_t", "ptrdiff_t", "half"):
        instead = {"bool": "int", "half": "float", "ptrdiff_t": "long"}.get(parameter.c_type, "ulong")
        return f"is passed as {spelled}, which OpenCL does not allow for kernel arguments; use `{instead}`"
    return None


def _check_outputs_passed(problem: Problem, template: Template) -> None:
    passed = _passed(problem, template)
    for argument in problem.outputs:
        if argument.name not in passed:
            raise SpecError(
                f"no launch takes the output {argument.name!r}",
                hint="add it to the `arguments` of the launch that writes it",
                location=template.steps[0].location,
            )
    for argument in template.scratch:
        if argument.name not in passed:
            raise SpecError(
                f"no launch takes the scratch {argument.name!r}",
                hint="add it to the `arguments` of a launch, or remove it",
                location=argument.location,
            )


# Defaults


def _check_defaults(problem: Problem, template: Template) -> None:
    """What sizes and defaults alone decide must hold on every workload; the device's part is for the run."""
    for workload in problem.workloads:
        names: dict[str, Value] = {**workload.sizes, **template.default}
        for constraint in template.constraints:
            if constraint.expression.names <= names.keys():
                _check_constraint(constraint, names, workload)
        for use in _uses(problem, template):
            if use.expression.names <= names.keys():
                _check_use(use, names, workload)


def _check_constraint(constraint: Constraint, names: Mapping[str, Value], workload: Workload) -> None:
    expression = constraint.expression
    what = f"constraint {constraint.name!r}, at the parameters' defaults"
    if not evaluate_on(expression, names, what=what, workload=workload):
        shown = ", ".join(f"{name} = {names[name]!r}" for name in sorted(expression.names))
        raise SpecError(
            f"the parameters' defaults break the constraint {constraint.name!r} on workload {workload.name!r}: "
            f"{expression.text} with {shown}",
            hint="change a default so that the template works as it stands",
            location=expression.location,
        )


def _check_use(use: _Use, names: Mapping[str, Value], workload: Workload) -> None:
    what = f"{use.what}, at the parameters' defaults" if use.expression.names - workload.sizes.keys() else use.what
    if use.minimum is not None:
        evaluate_extent(use.expression, names, what=what, workload=workload, minimum=use.minimum)
        return
    value = evaluate_on(use.expression, names, what=what, workload=workload)
    if use.dtype is not None:
        encode_scalar(use.dtype, value, location=use.expression.location)
