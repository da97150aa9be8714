"""On CPUs a block is a function call: one that takes several blocks after each other, and asks once for all its values.

Where the conditions of a value hold for all values of a thread or for none, none is asked again, and several vectors of
sums hide the latency of additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.problem.model import LaunchStep
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import covered_by, is_number, same
from kernelwright.tactics.common.thread_queries import thread_queries
from kernelwright.tactics.vectors.lanes import Vectorizer

_COUNTS = (1, 4, 16, 64, 256, 1024)
_INTEGERS = frozenset(("int", "uint", "unsigned", "unsigned int", "long", "ulong", "unsigned long", "size_t"))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Several of the kernel's blocks in one."""

    parameter: str
    start: int
    """Where the loop over blocks opens: behind what is shared."""
    total: str
    """How many blocks there are, as C text."""


def blocks_of(plan: RewriteBuilder, subject: Subject, step: LaunchStep) -> Blocks | None:
    """A parameter for blocks that one takes after each other; None where a block cannot take the place of others."""
    body = subject.analysis.function.body
    total = _total(subject, step)
    if subject.language != "opencl" or total is None or any(not is_number(each, 1) for each in step.grid[1:]):
        return None
    asked = {query.partition("(")[0] for query in thread_queries(body)}
    if "get_num_groups" in asked or any(not query.endswith("(0)") for query in thread_queries(body)):
        return None
    if any(isinstance(each, nodes.Return | nodes.OpaqueStatement) for each in nodes.walk(body)):
        return None
    if any(isinstance(each, nodes.Call) and barrier_scope(each.function) for each in nodes.walk(body)):
        return None
    start = body.place.span.start + 1
    for index, each in enumerate(body.statements):
        is_shared = isinstance(each, nodes.Declaration) and all(d.is_shared for d in each.declarators)
        if is_shared and all(_is_shared(before) for before in body.statements[:index]):
            start = each.place.span.end
        elif any(isinstance(node, nodes.Declarator) and node.is_shared for node in nodes.walk(each)):
            return None
    counts = [total_of(subject, step.grid[0].text, sizes) for sizes in subject.sizes()]
    least = min((each for each in counts if each is not None), default=0)
    cores = subject.device.multiprocessors or 4
    values = tuple(count for count in _COUNTS if count == 1 or count * cores * 2 <= least)
    if len(values) < 2:
        return None
    default = max(count for count in values if count == 1 or count * cores * 8 <= least)
    name = plan.parameter("BLOCKS", values, default, "blocks of values that a work-group takes, one after the other")
    return Blocks(name, start, total)


def _is_shared(statement: nodes.Statement) -> bool:
    return isinstance(statement, nodes.Declaration) and all(each.is_shared for each in statement.declarators)


def _total(subject: Subject, step: LaunchStep) -> str | None:
    """The number of blocks in C, where the kernel gets what they cover as a number."""
    covered = covered_by(step.grid[0].text, step.block[0].text)
    changed = nodes.assigned_names(subject.analysis.function.body)
    for parameter in subject.analysis.function.parameters:
        scalar = subject.scalar(parameter.name)
        if parameter.is_pointer or parameter.name in changed or parameter.c_type not in _INTEGERS or scalar is None:
            continue
        if covered is not None and same(scalar.text, covered):
            name, size = parameter.name, step.block[0].text
            return f"{name} / {size} + ({name} % {size} != 0)"
        if same(scalar.text, step.grid[0].text):
            return parameter.name
    return None


def open_blocks(blocks: Blocks) -> str:
    """The loop over blocks; the kernel's word for its block means the one that is taken."""
    return (
        f"\n  for (int kw_block = 0; kw_block < {blocks.parameter}; ++kw_block) {{\n"
        f"  const int kw_group = (int)get_group_id(0) * {blocks.parameter} + kw_block;\n"
        f"  if (kw_group >= {blocks.total}) break;\n"
        "#define get_group_id(kw_axis) ((size_t)kw_group)\n"
    )


CLOSE_BLOCKS = "\n#undef get_group_id\n  }\n"


def whole_check(lanes: Vectorizer, places: Sequence[nodes.Declaration], argument: nodes.Expression) -> str | None:
    """Lines that leave unless all lanes go the same way; None where a value is needed to see that.

    Args:
        lanes: as many as are asked for at once; used for nothing else.
        places: declarations that the value stands on.
        argument: the value.
    """
    try:
        lanes.settle([*places, nodes.Evaluate(argument.place, argument)])
        if any(lanes.kinds[each.name].is_varying for place in places for each in place.declarators):
            return None
        return "".join(lanes.statement(each) + "\n" for each in places) + lanes.checks(argument)
    except Unfit:
        return None


def segment(
    check: str, plain: str, scalar: str, *, c_type: str, identity: str, sign: str, count: str, vec: str, sums: str,
    across: str,
) -> list[str]:  # fmt: skip
    """Lines that join a thread's values into `kw_own`.

    Args:
        check: leaves a `do` loop unless all values go the same way.
        plain: adds a vector of values, from `kw_t` on, to `kw_wide_own`.
        scalar: adds the value of `kw_t` to `kw_own`.
        c_type: of a value.
        identity: what sums start from.
        sign: the joining assignment.
        count: values of a thread.
        vec: values of a vector.
        sums: vectors of sums.
        across: the function that joins a vector's lanes.
    """
    return [
        "int kw_even = 0;",
        "{",
        f"  const int kw_t = kw_me * {count};",
        "  do {",
        f"    {check}",
        "    kw_even = 1;",
        "  } while (0);",
        "}",
        "if (kw_even) {",
        f"  kw_{c_type} kw_sums[{sums}];",
        f"  for (int kw_s = 0; kw_s < {sums}; ++kw_s) kw_sums[kw_s] = ({c_type}){identity};",
        f"  for (int kw_i = 0; kw_i < {count}; kw_i += {vec} * {sums}) {{",
        "#pragma unroll",
        f"    for (int kw_s = 0; kw_s < {sums}; ++kw_s) {{",
        f"      const int kw_t = kw_me * {count} + kw_i + kw_s * {vec};",
        f"      kw_{c_type} kw_wide_own = kw_sums[kw_s];",
        f"      {plain}",
        "      kw_sums[kw_s] = kw_wide_own;",
        "    }",
        "  }",
        f"  for (int kw_s = 1; kw_s < {sums}; ++kw_s) kw_sums[0] {sign} kw_sums[kw_s];",
        f"  kw_own {sign} {across}(kw_sums[0]);",
        "} else {",
        f"  for (int kw_lane = 0; kw_lane < {count}; ++kw_lane) {{",
        f"    const int kw_t = kw_me * {count} + kw_lane;",
        f"    {scalar}",
        "  }",
        "}",
    ]
