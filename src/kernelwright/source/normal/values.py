"""One name for each value: what a reduction gives goes to a variable of its own, not back into the one that went in."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.normal.draft import KernelText, LeftAsIs
from kernelwright.source.normal.inlining import meets


def name_results(draft: KernelText) -> list[Edit]:
    """The first `s = sum_of_block(s) / n;` of the kernel's own statements, as `const float s_2 = ...`.

    So, too, `s = total / n;` behind a loop that changed `s`.
    """
    statements = draft.kernel.body.statements
    for index, each in enumerate(statements):
        match each:
            case nodes.Evaluate(
                expression=nodes.Assign(operator="=", target=nodes.Name(name=name), value=value) as assign
            ):
                if not _reduces(draft, value, name) and not _is_new(value, name, statements[:index]):
                    continue
                try:
                    edits = _named(draft, assign, name, statements[index + 1 :])
                except LeftAsIs:
                    continue
                if edits:
                    return edits
    return []


def _reduces(draft: KernelText, value: nodes.Expression, name: str) -> bool:
    """Whether threads meet in a function that is given the variable."""
    return any(
        isinstance(each, nodes.Call) and each.function in draft.helpers and meets(draft, draft.helpers[each.function])
        and any(isinstance(n, nodes.Name) and n.name == name for a in each.arguments for n in nodes.walk(a))
        for each in nodes.walk(value)
    )  # fmt: skip


def _is_new(value: nodes.Expression, name: str, before: Sequence[nodes.Statement]) -> bool:
    """Whether a variable that a loop has changed is given a value that is not made of the one it had."""
    is_own = any(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(value))
    return not is_own and any(isinstance(each, nodes.Loop) and name in nodes.assigned_names(each) for each in before)


def _named(draft: KernelText, assign: nodes.Assign, name: str, later: tuple[nodes.Statement, ...]) -> list[Edit]:
    declarations = [d for d in nodes.walk(draft.kernel.body) if isinstance(d, nodes.Declarator) and d.name == name]
    if len(declarations) != 1:
        return []
    (variable,) = declarations
    if variable.is_pointer or variable.extents or variable.is_shared or variable.is_reference:
        return []
    if variable.c_type == "auto" or any(name in nodes.assigned_names(each) for each in later):
        return []
    new = draft.fresh(name)
    uses = [draft.edit(each, new) for statement in later for each in nodes.walk(statement)
            if isinstance(each, nodes.Name) and each.name == name]  # fmt: skip
    return [draft.edit(assign.target, f"const {variable.c_type} {new}"), *uses]
