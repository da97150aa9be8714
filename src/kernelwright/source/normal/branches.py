"""What is decided, or said in a roundabout way: conditions without variables, references, types named in a body."""

from __future__ import annotations

import re

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_parentheses, is_pure, renamed

_ALIAS = re.compile(
    r"\s*(?:using\s+(?P<new>\w+)\s*=\s*(?P<old>[^;]+)|typedef\s+(?P<old_>[^;]+?)\s+(?P<new_>\w+))\s*;\s*"
)


def decide_branches(draft: KernelText) -> list[Edit]:
    """Conditions that are the same for all threads and sizes, as the branch that is taken."""
    for function in draft.reached:
        for each in nodes.walk(function.body):
            try:
                match each:
                    case nodes.If(condition=condition, yes=yes, no=no) if (truth := _truth(condition)) is not None:
                        taken = yes if truth else no
                        return [draft.edit(each, "{ }" if taken is None else _flat(draft, taken))]
                    case nodes.Conditional(condition=condition, yes=yes, no=no) if (
                        truth := _truth(condition)
                    ) is not None:
                        return [draft.edit(each, in_parentheses(draft.text(yes if truth else no)))]
            except LeftAsIs:
                continue
    return []


def _truth(node: nodes.Expression) -> bool | None:
    match node:
        case nodes.Literal(value=value) if value is not None:
            return bool(value)
        case nodes.Unary(operator="!", operand=operand):
            inner = _truth(operand)
            return None if inner is None else not inner
    return None


def _flat(draft: KernelText, statement: nodes.Statement) -> str:
    """A branch without its braces, where these hide no names."""
    is_hiding = isinstance(statement, nodes.Block) and any(
        isinstance(each, nodes.Declaration | nodes.OpaqueStatement) for each in statement.statements
    )
    return draft.text(statement) if is_hiding else draft.inside(statement) or "{ }"


def replace_references(draft: KernelText) -> list[Edit]:
    """Second names for something, as the first one."""
    for function in draft.reached:
        changed = nodes.assigned_names(function.body)
        for each in nodes.walk(function.body):
            if not isinstance(each, nodes.Declaration) or len(each.declarators) != 1:
                continue
            (own,) = each.declarators
            initial = own.initial
            if not own.is_reference or own.is_const or initial is None or not is_pure(initial):
                continue
            names = {n.name for n in nodes.walk(initial) if isinstance(n, nodes.Name)}
            is_place = isinstance(initial, nodes.Element | nodes.Member | nodes.Name)
            if not is_place or names & (changed - ({nodes.variable_of(initial)} | {own.name})):
                continue
            try:
                text = in_parentheses(draft.text(initial))
                uses = [draft.edit(n, text) for n in nodes.walk(function.body)
                        if isinstance(n, nodes.Name) and n.name == own.name]  # fmt: skip
                return [draft.edit(each, ""), *uses]
            except LeftAsIs:
                continue
    return []


def resolve_aliases(draft: KernelText) -> list[Edit]:
    """Types that a body names anew, as what they are."""
    for function in draft.reached:
        for each in nodes.walk(function.body):
            found = _ALIAS.fullmatch(draft.at(each.place.span)) if isinstance(each, nodes.OpaqueStatement) else None
            if found is None or not each.place.is_exact:
                continue
            new, old = found["new"] or found["new_"], (found["old"] or found["old_"]).strip()
            span = function.body.place.span
            before = draft.at(type(span)(span.start, each.place.span.start))
            after = draft.at(type(span)(each.place.span.end, span.end))
            if not function.body.place.is_exact or "typename" in old:
                continue
            return [Edit(span, before + renamed(after, {new: old}))]
    return []
