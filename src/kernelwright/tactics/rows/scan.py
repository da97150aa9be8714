"""Running sums, products and extremes along rows that one thread walks alone: shared by the threads of a row.

A thread takes some neighbouring elements, threads scan what they have (Hillis and Steele 1986), and the loop's own body
runs again from what lies before: so whatever it does with the running value, it does as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import Dialect, joined
from kernelwright.tactics.common.editing import indent
from kernelwright.tactics.common.loop_reductions import Joined, joining
from kernelwright.tactics.common.loop_replay import tainted_names
from kernelwright.tactics.rows.row_sharing import RowSharing, plain_header, start_of, statements_of
from kernelwright.tactics.rows.threads_per_row import share

_TYPES = frozenset(("float", "double", "int", "unsigned", "unsigned int", "uint", "long long", "long"))


@dataclass(frozen=True, slots=True)
class _Scan:
    """A loop that carries one value from element to element, and reads it on the way."""

    loop: nodes.Loop
    header: LoopHeader
    carried: Joined
    before: tuple[nodes.Statement, ...]
    """What the next value is made by, without stores: declarations, and the joining itself at the end."""


def _scan(subject: Subject) -> Rewrite:
    scans: list[_Scan] = []

    def choose(row: RowSharing, body: nodes.Block, types: dict[str, str]) -> Mapping[int, Callable[[], None]]:
        reason = "no loop along a row reads what it sums up"
        for loop in (each for each in nodes.walk(body) if isinstance(each, nodes.Loop)):
            try:
                scans.append(scan_of(subject, loop, types))
            except Unfit as unfit:
                reason = unfit.reason
        if not scans:
            raise Unfit(reason)
        items = row.plan.parameter("ITEMS", (1, 2, 4, 8), 4, "neighbouring elements of a row that a thread takes")
        return {id(each.loop): functools.partial(_write, row, each, items) for each in scans}

    return share(subject, name="row-scan", choose=choose, weigh=_effect)


def scan_of(subject: Subject, loop: nodes.Loop, types: Mapping[str, str]) -> _Scan:
    """What a loop carries.

    Raises:
        Unfit: more than one value, or one that is made of itself in another way than a sum, product or extreme.
    """
    header = plain_header(loop)
    carried = sorted(nodes.assigned_names(loop.body) - nodes.declared_names(loop))
    if len(carried) != 1 or types.get(carried[0]) not in _TYPES:
        raise Unfit("its loop carries no single number from element to element")
    name = carried[0]
    statements = statements_of(loop)
    places = [place for place, each in enumerate(statements) if name in nodes.assigned_names(each)]
    operation = joining(statements[places[0]], name, types[name]) if len(places) == 1 else None
    if operation is None:
        raise Unfit(f"{name} goes from one element to the next in a way that is no plain sum, product, max or min")
    mentions = sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(loop.body))
    if mentions == operation[1]:
        raise Unfit(f"nothing reads {name} within its loop")
    before = _without_stores(subject, loop, statements[: places[0]], name)
    _refuse_own_part(loop, statements[places[0]], name, operation[1])
    bound = {each.name for each in nodes.walk(header.bound) if isinstance(each, nodes.Name)}
    if not bound <= {each.name for each in subject.analysis.function.parameters}:
        raise Unfit("rows may have different lengths")
    return _Scan(loop, header, Joined(name, operation[0], types[name]), (*before, statements[places[0]]))


def _without_stores(
    subject: Subject, loop: nodes.Loop, statements: tuple[nodes.Statement, ...], name: str
) -> list[nodes.Statement]:
    """The statements that only declare: what they store, they store when the body itself runs."""
    stores = [a.span for a in subject.analysis.facts.accesses if a.kind != "read"]
    kept = []
    for each in statements:
        is_store = any(each.place.span.contains(span) for span in stores)
        if is_store and not isinstance(each, nodes.Evaluate):
            raise Unfit(f"what {name} is made of is stored under a condition, or in a loop")
        if not is_store:
            kept.append(each)
    if any(isinstance(each, nodes.OpaqueStatement | nodes.Loop) for one in kept for each in nodes.walk(one)):
        raise Unfit(f"what {name} is made of is not followed")
    return kept


def _refuse_own_part(loop: nodes.Loop, joins: nodes.Statement, name: str, mentions: int) -> None:
    """What is joined must not be made of the running value."""
    others = tainted_names(loop.body, frozenset((name,))) - {name}
    used = [each.name for each in nodes.walk(joins) if isinstance(each, nodes.Name)]
    if used.count(name) != mentions or others & set(used):
        raise Unfit(f"what is joined to {name} is made of {name} itself")


def _write(row: RowSharing, scan: _Scan, items: str) -> None:
    """The loop for the threads of a row."""
    source, name, carried = row.subject.source, scan.header.variable, scan.carried
    assert isinstance(scan.loop.initial, nodes.Declaration)
    index = scan.loop.initial.declarators[0].c_type
    bound = scan.header.bound.place.span.text(source)
    if scan.header.operator == "<=":
        bound = f"({bound}) + 1"
    first = carried.name if carried.is_idempotent else f"({carried.c_type}){carried.identity}"
    made = " ".join(each.place.span.text(source) for each in scan.before)
    unroll = "" if row.words.is_opencl else "#pragma unroll\n"
    walk = (
        f"{unroll}for (int kw_i = 0; kw_i < {items}; ++kw_i) {{ const {index} {name} = kw_first + kw_i; "
        f"if (kw_live && {name} < kw_to)"
    )
    join = functools.partial(joined, row.words.language, carried.operation, c_type=carried.c_type)
    scanned = f"kw_scan_{carried.operation}_{_word(carried.c_type)}"
    lines = [
        f"const {index} kw_from = {start_of(row, scan.loop)}, kw_to = {bound};",
        f"{carried.c_type} kw_carry = {carried.name};",
        f"for ({index} kw_base = kw_from; kw_base < kw_to; kw_base += {row.lanes_name} * {items}) {{",
        f"  const {index} kw_first = kw_base + kw_lane * {items};",
        f"  {carried.c_type} kw_own, kw_all;",
        f"  {{ {carried.c_type} kw_sum = {first}; {{ {carried.c_type} {carried.name} = kw_sum;",
        f"  {walk} {{ {made} }} }}",
        f"  kw_sum = {carried.name}; }} kw_own = kw_sum; }}",
        f"  kw_own = {scanned}(kw_own, {first}, &kw_all, kw_part_{_word(carried.c_type)}, kw_lane);",
        f"  {carried.name} = {join('kw_carry', 'kw_own')};",
        f"  {walk} {_body(scan, source)} }}",
        f"  kw_carry = {join('kw_carry', 'kw_all')}; {carried.name} = kw_carry;",
        "}",
    ]
    pad = indent(source, scan.loop.place.span.start)
    row.plan.replace(scan.loop.place.span, "{\n" + "\n".join(f"{pad}  {line}" for line in lines) + f"\n{pad}}}")
    for mark in scan.loop.pragmas:
        row.plan.replace(mark.span, "")
    row.loops += 1
    row.lone_loops += 1
    row.scanned.append(carried)
    helper = across_row(row.words, carried, row.lanes_name)
    if helper not in row.helpers:
        row.helpers.append(helper)
    row.passes = "; running values are scanned"


def _body(scan: _Scan, source: str) -> str:
    text = scan.loop.body.place.span.text(source)
    return text if isinstance(scan.loop.body, nodes.Block) else f"{{ {text} }}"


def _word(c_type: str) -> str:
    return c_type.replace(" ", "_")


def across_row(words: Dialect, carried: Joined, lanes: str) -> str:
    """A function that gives each thread what the threads before it in its row have, and in `all` what all have.

    `none` is what the first thread gets. All threads of the block must call it; `part` is shared memory, one value for
    each of the `lanes` threads.
    """
    c_type = carried.c_type
    name = f"kw_scan_{carried.operation}_{_word(c_type)}"
    both = joined(words.language, carried.operation, "part[lane - reach]", "value", c_type=c_type)
    space = "__local " if words.is_opencl else ""
    head = f"{words.helper} {c_type} {name}({c_type} value, {c_type} none, {c_type} *all, {space}{c_type} *part, "
    steps = (
        f"  part[lane] = value;\n  {words.barrier}\n"
        f"  for (int reach = 1; reach < {lanes}; reach *= 2) {{\n"
        f"    if (lane >= reach) value = {both};\n    {words.barrier}\n"
        f"    part[lane] = value;\n    {words.barrier}\n  }}\n"
        f"  *all = part[{lanes} - 1];\n  value = lane > 0 ? part[lane - 1] : none;\n  {words.barrier}\n"
        "  return value;\n}\n"
    )
    if words.is_opencl:
        return f"{head}const int lane) {{\n{steps}"
    return f"{head}const int lane) {{\n{_by_warps(words, carried, lanes)}}}\n"


def _by_warps(words: Dialect, carried: Joined, lanes: str) -> str:
    """Warps scan by shuffles, and then what they have by shared memory."""
    join = functools.partial(joined, words.language, carried.operation, c_type=carried.c_type)
    up = (
        "__shfl_up_sync(0xffffffffu, {0}, {1}, kw_width)"
        if words.language == "cuda"
        else "__shfl_up({0}, {1}, kw_width)"
    )
    last = "__shfl_sync(0xffffffffu, value, kw_width - 1, kw_width)"
    if words.language != "cuda":
        last = "__shfl(value, kw_width - 1, kw_width)"
    return (
        f"  if ({lanes} == 1) {{ *all = value; return none; }}\n"
        f"  constexpr int kw_width = {lanes} < 32 ? {lanes} : 32;\n"
        f"  const int place = lane & (kw_width - 1), warp = lane / kw_width;\n"
        f'  _Pragma("unroll") for (int reach = 1; reach < kw_width; reach *= 2) {{\n'
        f"    const {carried.c_type} other = {up.format('value', 'reach')};\n"
        f"    if (place >= reach) value = {join('other', 'value')};\n  }}\n"
        f"  {carried.c_type} before = {up.format('value', '1')};\n  if (place == 0) before = none;\n"
        f"  *all = {last};\n"
        f"  if ({lanes} <= 32) return before;\n"
        f"  if (place == kw_width - 1) part[warp] = value;\n  {words.barrier}\n"
        f"  {carried.c_type} sum = none, mine = none;\n"
        f'  _Pragma("unroll") for (int i = 0; i < ({lanes} + 31) / 32; ++i) {{\n'
        f"    if (i == warp) mine = sum;\n    sum = {join('sum', 'part[i]')};\n  }}\n"
        f"  {words.barrier}\n  *all = sum;\n  return {join('mine', 'before')};\n"
    )


def _effect(row: RowSharing) -> Effect:
    """Guesses; on CPUs a thread's own walk is as quick as it gets."""
    if row.subject.device.kind == "cpu":
        return Effect(1.0, "several threads walk a row twice")
    return Effect(8.0, "neighbouring threads load neighbouring memory, and there are more threads than rows")


ROW_SCAN = RuleTactic(
    "row-scan", "row", "Running sums along rows that one thread walks alone: scanned by several threads.", _scan
)
