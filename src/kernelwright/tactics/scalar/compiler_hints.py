"""What a compiler is told: bounds of the launch, pointers that do not overlap, loops to be written out, options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope
from kernelwright.source.lexer import words_of
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.launches import only_shape

_BOUND_WORDS = ("reqd_work_group_size", "__launch_bounds__", "__maxnreg__", "amdgpu_flat_work_group_size")
MOST_THREADS = 1024
"""Of a block, on AMD's GPUs; compilers for them take it where nothing is said."""
_C_SAFE = re.compile(r"[\w\s*()]+")


# Bounds


def _bound(subject: Subject) -> Rewrite:
    function = subject.analysis.function
    for mark in function.attributes:
        if any(word in mark.text for word in _BOUND_WORDS):
            raise Unfit("its launch bounds are declared", is_already_so=True)
    step = only_shape(subject)
    block = tuple(extent.text for extent in step.block)
    if not all(_C_SAFE.fullmatch(extent) for extent in block) or _names_sizes(subject, step.block):
        raise Unfit("the block is an expression that the source cannot say")
    plan = RewriteBuilder(subject, "launch-bounds", "launch")
    if subject.language == "opencl":
        extents = ", ".join((*block, "1", "1")[:3])
        head = function.place.span.text(subject.source)
        match = re.match(r"(?:__kernel|kernel)\b", head)
        if match is None:
            raise Unfit("its head is written in a way that is not understood")
        place = function.place.span.start + match.end()
        plan.insert(place, f" __attribute__((reqd_work_group_size({extents})))")
        because = "the compiler knows the block, so indices become constants"
    else:
        threads = " * ".join(f"({extent})" for extent in block)
        why = "blocks that a multiprocessor must be able to hold; 0: the compiler chooses, as without bounds"
        blocks = plan.parameter("MIN_BLOCKS", (0, 1, 2, 3, 4, 6, 8), 0, why)
        plan.constraint("held", f"{threads} * {blocks} <= 2048")
        # With a number of blocks, also with 1, compilers take as many registers as these leave: a convolution had 48
        # instead of 32 and took 1.16 times as long (H200). Bounds of 1024 threads leave 64 registers, and with restrict
        # the convolution had 32 instead of 39; those of 0 threads are none for NVRTC and nvcc. HIP's may not be 0.
        without = 0 if subject.language == "cuda" else MOST_THREADS
        bounds = f"__launch_bounds__({blocks} ? {threads} : {without}, {blocks}) "
        plan.insert(function.name_place.span.start, bounds)
        because = "registers are limited such that enough blocks run at once"
    return plan.finish("The source says the shape of its blocks.", Effect(1.03, because), properties=subject.properties)


def _names_sizes(subject: Subject, extents: Sequence[Expression]) -> bool:
    """Whether expressions mention what is no macro of the source: sizes of the problem."""
    names = {name for extent in extents for name in words_of(extent.text)}
    return bool(names - {each.name for each in subject.header.parameters})


LAUNCH_BOUNDS = RuleTactic(
    "launch-bounds", "launch", "The block's shape as an attribute; on GPUs the blocks that must fit at once.", _bound
)


# Pointers


def _restrict(subject: Subject) -> Rewrite:
    function = subject.analysis.function
    pointers = [each for each in function.parameters if each.is_pointer and each.space == "global"]
    missing = [each for each in pointers if not each.is_restrict]
    if not missing:
        raise Unfit("its pointers are restrict", is_already_so=True)
    names = [each.name for each in function.parameters]
    for step in subject.header.steps:
        if step.entry.partition("<")[0].strip() == subject.entry:
            passed = dict(zip(names, step.arguments or (), strict=False))
            arrays = [passed.get(each.name) for each in pointers]
            if len(set(arrays)) != len(arrays):
                raise Unfit("a launch passes one array as two pointers")
    plan = RewriteBuilder(subject, "restrict", "memory")
    word = "restrict" if subject.language == "opencl" else "__restrict__"
    data = subject.source.encode("utf-8", "surrogatepass")
    for each in missing:
        if not each.place.is_exact or not each.name:
            raise Unfit(f"the parameter {each.name} is made by a macro")
        text = data[each.place.span.start : each.place.span.end].decode("utf-8", "surrogatepass")
        found = list(re.finditer(rf"\*\s*(?:const\s+)?(?={re.escape(each.name)}\b)", text))
        if len(found) != 1 or "[" in text:
            raise Unfit(f"the parameter {each.name} is written in a way that is not understood")
        before = text[: found[0].end()].encode("utf-8", "surrogatepass")
        plan.insert(each.place.span.start + len(before), f"{word} ")
        if _may_be_const(subject, each):
            plan.insert(each.place.span.start + _after_space(text), "const ")
    return plan.finish(
        "Pointers are declared not to overlap, and what is only read is const.",
        Effect(1.05, "loads may move before stores, and on GPUs go through the read-only cache"),
        properties=subject.properties,
    )


def _after_space(text: str) -> int:
    match = re.match(r"\s*(?:__global|global)\s+", text)
    return len(match.group().encode()) if match else 0


def _may_be_const(subject: Subject, parameter: nodes.FunctionParameter) -> bool:
    """Whether a pointer is only read, and nothing else gets it that would have to be const too."""
    facts = subject.analysis.facts
    if (
        parameter.is_const
        or facts.opaque
        or any(a.array == parameter.name and a.kind != "read" for a in facts.accesses)
    ):
        return False
    uses = bases = 0
    for node in nodes.walk(subject.analysis.function.body):
        uses += isinstance(node, nodes.Name) and node.name == parameter.name
        bases += (
            isinstance(node, nodes.Element) and isinstance(node.base, nodes.Name) and node.base.name == parameter.name
        )
    return uses == bases > 0


RESTRICT = RuleTactic(
    "restrict", "memory", "Pointers that do not overlap say so; what is only read is const.", _restrict
)


# Loops


def _unroll(subject: Subject) -> Rewrite:
    functions = (subject.analysis.function, *subject.helpers)
    loops = [
        each for function in functions for each in nodes.walk(function.body)
        if isinstance(each, nodes.Loop) and each.word == "for" and each.place.is_exact
        and not any(isinstance(inner, nodes.Loop) for inner in nodes.walk(each.body)) and not _is_ours(each)
    ]  # fmt: skip
    if subject.language == "opencl":
        loops = [each for each in loops if not _has_barrier(each)]
    free = [each for each in loops if not any("unroll" in mark.text for mark in each.pragmas)]
    if not loops:
        raise Unfit("it has no loop that can be written out")
    if not free or any(each.name.startswith("UNROLL") for each in subject.header.parameters):
        raise Unfit("its loops say how often they are unrolled", is_already_so=True)
    plan = RewriteBuilder(subject, "unroll", "arithmetic")
    name = plan.parameter(
        "UNROLL", (1, 2, 4, 8), 1, "steps of the inner loops that are written out; 1 asks for nothing"
    )
    for each in free:
        plan.insert(each.place.span.start, _unroll_lines(name))
    return plan.finish(
        f"{len(free)} inner loops are written out {name} times.",
        Effect(1.08, "more loads are under way at once, and less is spent on counting"),
        properties=subject.properties,
    )


def _unroll_lines(name: str) -> str:
    """The pragma for each value of a parameter: some compilers expand no macros in pragmas."""
    lines = [f"#{'if' if count == 2 else 'elif'} {name} == {count}\n#pragma unroll {count}\n" for count in (2, 4, 8)]
    return "\n" + "".join(lines) + "#endif\n"


def _is_ours(loop: nodes.Loop) -> bool:
    """Whether a tactic wrote a loop: what is worth writing out says so, the others are for what is left over."""
    return isinstance(loop.initial, nodes.Declaration) and loop.initial.declarators[0].name.startswith("kw_")


def _has_barrier(loop: nodes.Loop) -> bool:
    """Whether threads meet in a loop: compilers for CPUs turn such loops inside out, some wrongly when unrolled."""
    return any(isinstance(each, nodes.Call) and barrier_scope(each.function) for each in nodes.walk(loop.body))


UNROLL = RuleTactic("unroll", "arithmetic", "Inner loops written out as often as a parameter says.", _unroll)


# Options


_DERIVED = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""About what a derived tolerance allows: some roundings of the output's own type (guess, from the derivation)."""


def allowed_error(subject: Subject) -> float:
    """The least relative error that an output may have, where it is declared; else some roundings of its type."""
    errors = []
    for each in subject.problem.outputs:
        declared = subject.problem.tolerances.get(each.name)
        if declared is not None:
            errors.append(max(declared.rtol, declared.atol))
        else:
            errors.append(_DERIVED.get(each.dtype, 0.05 if each.dtype.startswith("float8") else 0.0))
    return min(errors, default=0.0)


def _options(subject: Subject) -> Rewrite:
    error = allowed_error(subject)
    if error == 0.0:
        raise Unfit("its results must be exact")
    if not any(array.is_float for array in subject.analysis.facts.arrays.values()):
        raise Unfit("it computes no floats")
    wanted: tuple[str, ...]
    if subject.language == "opencl":
        wanted = ("-cl-mad-enable", "-cl-no-signed-zeros") if error < 1e-4 else ("-cl-fast-relaxed-math",)
    elif subject.language == "cuda":
        if error < 1e-6:
            raise Unfit(f"an error of {error:g} is too little for --use_fast_math")
        wanted = ("--use_fast_math",)
    else:
        raise Unfit("no options are known for HIP")
    given = (*subject.header.options, *subject.problem.kernel.options)
    new = tuple(each for each in wanted if not any(each in other for other in given))
    if not new:
        raise Unfit("the options are set", is_already_so=True)
    plan = RewriteBuilder(subject, "options", "options")
    told = " and ".join(new)
    name = plan.parameter("RELAXED", (0, 1), 1 if error >= 1e-4 else 0, f"1: compiled with {told}")
    plan.header = plan.header.with_options(*(f"{{'{each}' if {name} == 1 else '-DKW_PLAIN=1'}}" for each in new))
    return plan.finish(
        f"The compiler may get {told}, within the error of {error:g} that results may have.",
        Effect(1.05, "multiplications and additions are fused, divisions and roots take fewer steps"),
        properties=subject.properties,
    )


OPTIONS = RuleTactic("options", "options", "Compile options that the declared tolerances allow.", _options)
