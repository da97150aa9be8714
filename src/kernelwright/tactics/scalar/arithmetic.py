"""Arithmetic that costs less: fast functions within the allowed error, divisions by what does not change done once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kernelwright.source import nodes
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, outermost_start
from kernelwright.tactics.scalar.compiler_hints import allowed_error
from kernelwright.tactics.scalar.invariants import declare_before

_OPENCL: Mapping[str, str] = MappingProxyType({
    name: f"native_{name}"
    for name in ("exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "sqrt", "rsqrt")
})  # fmt: skip
_CUDA: Mapping[str, str] = MappingProxyType({
    "expf": "__expf", "exp10f": "__exp10f", "logf": "__logf", "log2f": "__log2f", "log10f": "__log10f",
    "sinf": "__sinf", "cosf": "__cosf", "tanf": "__tanf",
})  # fmt: skip
_SMALL = frozenset(("restrict", "unroll", "launch-bounds", "options", "launch-shape", "fast-functions", "reciprocal",
                    "hoist", "hoist-arithmetic", "running-indices", "narrow-indices"))  # fmt: skip
"""Tactics that leave scalar code scalar, and loops where they are."""


_VECTORS = re.compile(r"\bfloat\d|##")
"""Types of vectors, or macros that may make them."""

_NEAR = """\
// e^x within some 2 units of the last place, also of vectors: 2^n * e^r with n the integer nearest to x / ln 2, which
// comes in two parts so that r is exact, and a polynomial of degree 7. Adding 1.5 * 2^23 leaves n in the low bits.
#ifdef __FAST_RELAXED_MATH__  // compilers may take x + c - c for x then
#define KW_NEAREST(shifted, whole, TO_T) TO_T(whole)
#else
#define KW_NEAREST(shifted, whole, TO_T) (shifted - 12582912.0f)
#endif
#define KW_NEAR_EXP(T, I, AS_T, AS_I, TO_T) \\
static inline T __attribute__((overloadable)) kw_near_exp(const T x) { \\
  const T shifted = x * 1.44269504f + 12582912.0f; \\
  const I whole = AS_I(shifted) - 0x4B400000, part = whole >> 1; \\
  const T n = KW_NEAREST(shifted, whole, TO_T); \\
  const T r = x - n * 0.693359375f + n * 2.12194440e-4f; \\
  T p = r * 1.9875691500e-4f + 1.3981999507e-3f; \\
  p = p * r + 8.3334519073e-3f; \\
  p = p * r + 4.1665795894e-2f; \\
  p = p * r + 1.6666665459e-1f; \\
  p = p * r + 5.0000001201e-1f; \\
  p = p * (r * r) + r + 1.0f; \\
  const T scaled = p * AS_T((part + 127) << 23) * AS_T((whole - part + 127) << 23); \\
  const T bounded = x > 88.7228394f ? (T)(INFINITY) : scaled; \\
  return x < -103.97f ? (T)(0.0f) : bounded; \\
}
KW_NEAR_EXP(float, int, as_float, as_int, convert_float)
KW_NEAR_EXP(float2, int2, as_float2, as_int2, convert_float2)
KW_NEAR_EXP(float4, int4, as_float4, as_int4, convert_float4)
KW_NEAR_EXP(float8, int8, as_float8, as_int8, convert_float8)
"""
_NEAR_ERROR = 1e-6
"""What results must allow for that (guess: some roundings more)."""


def _fast(subject: Subject) -> Rewrite:
    error = allowed_error(subject)
    if error == 0.0:
        raise Unfit("its results must be exact")
    table = _OPENCL if subject.language == "opencl" else _CUDA
    calls = [call for call in subject.analysis.facts.math if call.function in table and call.is_exact]
    calls = [call for call in calls if call.span.text(subject.source).startswith(call.function)]
    if not calls:
        raise Unfit("it calls no function that has a fast form")
    if subject.language == "opencl" and any("double" in a.c_type for a in subject.analysis.facts.arrays.values()):
        raise Unfit("it computes doubles")
    plan = RewriteBuilder(subject, "fast-functions", "arithmetic")
    is_arranged = bool(set(subject.history) - _SMALL)
    is_near = is_arranged and subject.language == "opencl" and subject.device.kind == "cpu" and error >= _NEAR_ERROR
    is_near = is_near and any(call.function == "exp" for call in calls) and not _has_doubles(subject)
    why = "1: the device's fast functions; the check decides whether they are exact enough"
    if is_near:
        fast = plan.parameter("FAST", (0, 1, 2), 2, why + "; 2: a polynomial for exp")
    else:
        fast = plan.parameter("FAST", (0, 1), 0, why)
    data = subject.source.encode("utf-8", "surrogatepass")
    names: dict[str, str] = {}
    for call in calls:
        name = names.setdefault(call.function, plan.fresh(f"kw_fast_{call.function}"))
        start = call.span.start
        assert data[start:].startswith(call.function.encode())
        plan.replace(type(call.span)(start, start + len(call.function)), name)
    helper = dialect(subject.language).helper
    has_vectors = subject.language == "opencl" and _VECTORS.search(subject.source) is not None
    if is_near:
        plan.prelude.append(_NEAR)
    for function, name in sorted(names.items()):
        is_exp = is_near and function == "exp"
        near = f"{fast} == 2 ? kw_near_exp(x) : " if is_exp else ""
        chosen = f"({near}{f'{fast} == 1' if is_near else fast} ? {table[function]}(x) : {function}(x))"
        if is_arranged or has_vectors:
            plan.prelude.append(f"#define {name}(x) {chosen}\n")
        else:
            plan.prelude.append(f"{helper} float {name}(float x) {{ return {chosen}; }}\n")
    _move_prelude(plan)
    return plan.finish(
        f"{', '.join(sorted(names))} may be the device's fast forms.",
        Effect(1.1, f"{len(calls)} calls take fewer instructions"),
        properties=subject.properties,
    )


def _has_doubles(subject: Subject) -> bool:
    """Whether a kernel or what it calls may compute doubles (`2.0` is one), or be compiled to lose what is exact."""
    options = " ".join((*subject.header.options, *subject.problem.kernel.options))
    if any(each in options for each in ("unsafe", "fast-math")):
        return True
    functions = (subject.analysis.function, *subject.helpers)
    for node in (each for function in functions for each in nodes.walk(function.body)):
        match node:
            case nodes.Literal(value=None, text=text) if not text.lower().endswith("f"):
                return True
            case nodes.Declarator(c_type=c_type) | nodes.Cast(c_type=c_type) if "double" in c_type or "half" in c_type:
                return True
    return False


def _move_prelude(plan: RewriteBuilder) -> None:
    """Helpers of the kernel stand before it, also in a namespace, and may call these: put the text before them all."""
    functions = plan.subject.analysis.tree.functions
    if functions:
        plan.insert(outermost_start(plan.subject.source, functions), "".join(plan.prelude))
        plan.prelude.clear()


FAST_FUNCTIONS = RuleTactic(
    "fast-functions", "arithmetic", "Exponentials, logarithms and the like in the device's fast form, as a parameter.",
    _fast,
)  # fmt: skip


# Divisions


def _reciprocals(subject: Subject) -> Rewrite:
    if allowed_error(subject) == 0.0:
        raise Unfit("its results must be exact")
    if set(subject.history) - _SMALL:
        raise Unfit("its loops were arranged anew; divisions are taken out before that")
    plan = RewriteBuilder(subject, "reciprocal", "arithmetic")
    types = {each.name: each.c_type for each in subject.analysis.function.parameters if not each.is_pointer}
    count = 0
    for block in (each for each in nodes.walk(subject.analysis.function.body) if isinstance(each, nodes.Block)):
        for statement in block.statements:
            for each in (each for each in (statement,) if isinstance(each, nodes.Declaration)):
                types |= {d.name: d.c_type for d in each.declarators if not d.is_pointer and not d.extents}
    for loop in _outer_loops(subject.analysis.function.body):
        count += _out_of(plan, subject, loop, types)
    if not count:
        raise Unfit("no loop divides by a number that stays the same")
    return plan.finish(
        f"{count} divisions in loops become multiplications by what was divided once.",
        Effect(1.15, "a division takes several times as long as a multiplication"),
        properties=subject.properties,
    )


def _outer_loops(body: nodes.Block) -> Iterator[nodes.Loop]:
    """Loops that are statements of a block, outermost only."""
    for statement in body.statements:
        match statement:
            case nodes.Loop() if statement.place.is_exact:
                yield statement
            case nodes.Block():
                yield from _outer_loops(statement)
            case nodes.If(yes=yes, no=no):
                for each in (yes, no):
                    if isinstance(each, nodes.Block):
                        yield from _outer_loops(each)


def _out_of(plan: RewriteBuilder, subject: Subject, loop: nodes.Loop, types: Mapping[str, str]) -> int:
    changed = nodes.assigned_names(loop) | nodes.declared_names(loop)
    inverses: dict[str, str] = {}
    count = 0
    data = subject.source.encode("utf-8", "surrogatepass")
    for node in nodes.walk(loop.body):
        match node:
            case nodes.Binary(operator="/", left=left, right=nodes.Name(name=name) as right):
                gap = (left.place.span.end, right.place.span.start)
            case nodes.Assign(operator="/=", target=left, value=nodes.Name(name=name) as right):
                gap = (left.place.span.end, right.place.span.start)
            case _:
                continue
        if types.get(name) != "float" or name in changed or not (node.place.is_exact and right.place.is_exact):
            continue
        if not left.place.is_exact or not _is_float(left, subject, types) or data[gap[0] : gap[1]].count(b"/") != 1:
            continue
        sign = data.index(b"/", gap[0], gap[1])
        plan.replace(type(loop.place.span)(sign, sign + 1), "*")
        inverse = inverses.get(name) or plan.fresh(f"kw_inverse_{name}")
        inverses[name] = inverse
        plan.replace(right.place.span, inverse)
        count += 1
    lines = [f"const float {inverse} = 1.0f / {name};" for name, inverse in inverses.items()]
    if lines:
        declare_before(plan, loop, lines)
    return count


def _is_float(node: nodes.Expression, subject: Subject, types: Mapping[str, str]) -> bool:
    """Whether a value is surely a float of single precision (an integer divided by a float is one too)."""
    for each in nodes.walk(node):
        if isinstance(each, nodes.Name) and types.get(each.name, "float") in ("double", "half", "__half"):
            return False
        if isinstance(each, nodes.Literal) and each.value is None and not each.text.lower().endswith("f"):
            return False
    return not any("double" in array.c_type for array in subject.analysis.facts.arrays.values())


RECIPROCAL = RuleTactic(
    "reciprocal",
    "arithmetic",
    "Divisions by a number that a loop does not change become multiplications.",
    _reciprocals,
)
