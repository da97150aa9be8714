"""The text of two loops over a row that have become one: what is summed on the way, and what is made of it later.

Where a row is unusual (infinite or not a number in its largest or its sums) the later loop runs as it was: such rows
give what they gave before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.dialect import Dialect
from kernelwright.tactics.common.loop_reductions import vector_ends, vector_starts
from kernelwright.tactics.rows.one_pass_facts import Pair, distance_text
from kernelwright.tactics.rows.row_sharing import (
    RowSharing,
    header_of,
    joins_after,
    joins_before,
    lanes_of,
    refuse_kept_arrays,
    start_of,
    statements_of,
)
from kernelwright.tactics.vectors.lanes import Vectorizer

FARTHEST = 16
"""How far, in the exponent, an element may be beyond the number that sums stand on, before they are scaled. Sums then
stay below 10 to the 16th for each element, and are scaled seldom: each time rounds."""


@dataclass
class _Merged:
    """One pair while it is written."""

    row: RowSharing
    pair: Pair
    first: LoopHeader
    second: LoopHeader
    types: dict[str, str]
    wide: tuple[str, str] | None
    """The bodies for a vector of columns; None where there are none."""
    value: tuple[str, str]
    """The text of a squared element: in a vector, alone; with the declarations that it needs."""
    names: dict[str, str]
    """State that lasts from the first loop to the second, by what it is."""

    @property
    def integer(self) -> str:
        """The type that the loops count in."""
        assert isinstance(self.pair.first.initial, nodes.Declaration)
        return self.pair.first.initial.declarators[0].c_type

    @property
    def top(self) -> str:
        """The variable of the largest, for exponentials."""
        return self.pair.firsts[0].name

    @property
    def later(self) -> str:
        """The same in the second loop, where threads have joined it."""
        assert isinstance(self.pair.middle, nodes.Name)
        return self.pair.middle.name

    def text(self, node: nodes.Node) -> str:
        """The source of a node."""
        return node.place.span.text(self.row.subject.source)


def merged(row: RowSharing, pair: Pair, types: dict[str, str]) -> _Merged:
    """A pair that can be written.

    Raises:
        Unfit: a loop is none that threads can share.
    """
    first, second = header_of(row, pair.first), header_of(row, pair.second)
    refuse_kept_arrays(row.subject, pair.first)
    refuse_kept_arrays(row.subject, pair.second)
    row.joined += [*pair.firsts, *pair.sums]
    kinds = ("ref", "at") if pair.kind == "exponentials" else ("count", "centre", "spread")
    names = {each: row.plan.fresh(f"kw_{each}") for each in kinds}
    if pair.kind == "exponentials":
        names |= {each.name: row.plan.fresh(f"kw_run_{each.name}") for each in pair.sums}
        distance_text(pair, row.subject.source, "", "")  # which may refuse
    made = _Merged(row, pair, first, second, types, None, ("", ""), names)
    if pair.kind == "squares":
        made.value = ("", _lone_value(made))
    _widen(made)
    return made


def _widen(made: _Merged) -> None:
    """Bodies for vectors, where both loops have them."""
    row, pair = made.row, made.pair
    row.lone_loops += 1
    one = lanes_of(row, pair.first, made.first, pair.firsts, made.types)
    other = lanes_of(row, pair.second, made.second, pair.sums, made.types)
    if one is None or other is None:
        return
    try:
        first = one.block(statements_of(pair.first))
        is_mean = pair.kind == "squares"
        second = _wide_value(made, other) if is_mean else other.block(statements_of(pair.second))
    except Unfit:
        return
    if one.vector_loads and other.vector_loads:
        made.wide = (first, second)
        row.wide += [one, other]
        row.vector_loops += 1
        row.lone_loops -= 1


def _lone_value(made: _Merged) -> str:
    """What squares are of, for one element: declarations that it needs, and itself after a bar."""
    if not made.pair.value.place.is_exact:
        raise Unfit("a macro makes a part of what would change")
    texts = [made.text(each) for each in _needed(made)]
    return " ".join(texts) + "|" + made.text(made.pair.value)


def _wide_value(made: _Merged, lanes: Vectorizer) -> str:
    texts = [lanes.statement(each) for each in _needed(made)]
    value, c_type = made.pair.value, made.pair.sums[0].c_type
    kind = lanes.kind(value)
    if not kind.is_varying or (made.row.words.is_opencl and kind.c_type != c_type):
        raise Unfit("what squares are of is no vector of their type")
    return " ".join((*texts, f"const {made.row.words.vector(c_type)} kw_value = {lanes.expression(value)};"))


def _needed(made: _Merged) -> list[nodes.Declaration]:
    """Declarations of the second loop that stand before the distance from the mean."""
    pair = made.pair
    middle = {each.name for each in nodes.walk(pair.middle) if isinstance(each, nodes.Name)}
    own = {each.name for each in nodes.walk(pair.value) if isinstance(each, nodes.Name)}
    found: list[nodes.Declaration] = []
    for each in statements_of(pair.second):
        if isinstance(each, nodes.Declaration):
            names = {n.name for n in nodes.walk(each) if isinstance(n, nodes.Name)}
            if names & middle:
                middle |= {d.name for d in each.declarators}
            else:
                found.append(each)
    if own & middle:
        raise Unfit("what squares are of is declared beside its distance from the mean")
    return found


# Where the elements are


def _span(made: _Merged, start: str, bound: nodes.Expression, operator: str) -> list[str]:
    """From which element to which, and which of them are taken as vectors: `kw_vec` up to `kw_full`."""
    integer, vec = made.integer, made.row.vec
    end = made.text(bound) if operator == "<" else f"({made.text(bound)}) + 1"
    lines = [
        f"const {integer} kw_from = {start}, kw_end = {end}, kw_to = kw_end > kw_from ? kw_end : kw_from;",
        f"{integer} kw_vec = kw_from, kw_full = kw_from;",
    ]
    if made.wide is not None:
        shift = f"({vec} - {made.pair.ahead} % {vec}) % {vec}" if made.pair.ahead else "0"
        lines += [
            f"if (kw_to > kw_from + {shift}) {{",
            f"  kw_vec = kw_from + {shift};",
            f"  kw_full = kw_vec + (kw_to - kw_vec) / {vec} * {vec};",
            "}",
        ]
    return [*lines, f"const {integer} kw_head = kw_vec - kw_from;"]


def _lone_loop(made: _Merged, variable: str, body: Sequence[str]) -> list[str]:
    """A thread's elements that are in no vector."""
    integer, lanes = made.integer, made.row.lanes_name
    return [
        *([] if made.row.words.is_opencl else ["#pragma unroll 1"]),
        f"for ({integer} kw_k = kw_lane; kw_k < kw_head + (kw_to - kw_full); kw_k += {lanes}) {{",
        f"  const {integer} {variable} = kw_k < kw_head ? kw_from + kw_k : kw_full + (kw_k - kw_head);",
        *(f"  {line}" for line in body),
        "}",
    ]


def _alias(made: _Merged) -> str:
    """The second loop's index, where it has a name of its own."""
    one, other = made.first.variable, made.second.variable
    return "" if one == other else f"const {made.integer} {other} = {one}; "


# The first loop


def first_text(made: _Merged) -> str:
    """What stands for the first loop: both loops, with what they leave to the second."""
    row, pair = made.row, made.pair
    state = _exponential_state(made) if pair.kind == "exponentials" else _square_state(made)
    lines = [*joins_before(row, pair.firsts), "if (kw_live) {"]
    lines += [f"  {each}" for each in _span(made, start_of(row, pair.first), made.first.bound, made.first.operator)]
    if made.wide is not None:
        lines += [f"  {each}" for each in _vector_lines(made, made.wide)]
    body = _lone_exponentials(made) if pair.kind == "exponentials" else _lone_squares(made)
    lines += [f"  {each}" for each in body]
    lines += ["}", *joins_after(row, pair.firsts)]
    return "\n  ".join((*state, "{", *(f"  {line}" for line in lines), "}"))


def _exponential_state(made: _Merged) -> list[str]:
    c_type, names = made.pair.firsts[0].c_type, made.names
    state = [
        f"{c_type} {names['ref']} = {made.top};  // what sums stand on; kw_at: the same, and 0 where it is infinite",
        f"{c_type} {names['at']} = kw_usual_{c_type}({made.top}) ? {made.top} : 0;",
    ]
    return [*state, *(f"{each.c_type} {names[each.name]} = 0;" for each in made.pair.sums)]


def _square_state(made: _Merged) -> list[str]:
    c_type, names = made.pair.sums[0].c_type, made.names
    return [
        f"{made.integer} {names['count']} = 0;  // a thread's elements, their mean, their squares from it",
        f"{c_type} {names['centre']} = 0, {names['spread']} = 0;",
    ]


def _vector_lines(made: _Merged, wide: tuple[str, str]) -> list[str]:
    """The loop over vectors, and its lanes joined into the thread's own values."""
    row, pair = made.row, made.pair
    integer, variable = made.integer, made.first.variable
    lines = vector_starts(row.words, pair.firsts)
    lines += _vector_state(made)
    lines += [
        row.words.unroll(row.unroll),
        f"for ({integer} {variable} = kw_vec + kw_lane * {row.vec}; {variable} < kw_full; "
        f"{variable} += {row.lanes_name} * {row.vec}) {{",
        f"  {{ {wide[0]} }}",
        *(f"  {each}" for each in _vector_step(made, wide[1])),
        "}",
    ]
    return [*lines, *vector_ends(pair.firsts), *_vector_end(made)]


def _vector_state(made: _Merged) -> list[str]:
    if made.pair.kind == "exponentials":
        return [f"{made.row.words.vector(each.c_type)} kw_{each.name} = ({each.c_type})0;" for each in made.pair.sums]
    c_type = made.pair.sums[0].c_type
    wide = made.row.words.vector(c_type)
    return ["int kw_n = 0;", f"{wide} kw_means = ({c_type})0;", f"{wide} kw_squares = ({c_type})0;"]


def _vector_step(made: _Merged, body: str) -> list[str]:
    names = made.names
    if made.pair.kind == "exponentials":
        c_type, top = made.pair.firsts[0].c_type, made.top
        far = distance_text(made.pair, made.row.subject.source, f"kw_{top}", names["ref"])
        return [
            f"if (!kw_within_{c_type}({far})) {{",
            f"  {top} = kw_across_{made.pair.firsts[0].operation}_{c_type}(kw_{top});",
            *(f"  {each}" for each in _scaled(made, [f"kw_{each.name}" for each in made.pair.sums])),
            "}",
            f"{{ {_alias(made)}const {c_type} {made.later} = {names['at']}; {body} }}",
        ]
    c_type = made.pair.sums[0].c_type
    return [
        f"{{ {_alias(made)}{body}",
        f"  const {made.row.words.vector(c_type)} kw_off = kw_value - kw_means;",
        f"  kw_means = kw_means + kw_off * (({c_type})1 / ({c_type})++kw_n);",
        "  kw_squares = kw_squares + kw_off * (kw_value - kw_means); }",
    ]


def _vector_end(made: _Merged) -> list[str]:
    names, vec = made.names, made.row.vec
    if made.pair.kind == "exponentials":
        return [
            f"{names[each.name]} += kw_across_sum_{each.c_type}(kw_{each.name});" for each in made.pair.sums
        ]  # fmt: skip
    c_type = made.pair.sums[0].c_type
    return [
        "if (kw_n > 0) {",
        f"  {names['count']} = ({made.integer})kw_n * {vec};",
        f"  {names['centre']} = kw_across_sum_{c_type}(kw_means) / ({c_type}){vec};",
        f"  const {made.row.words.vector(c_type)} kw_apart = kw_means - {names['centre']};",
        f"  {names['spread']} = kw_across_sum_{c_type}(kw_squares) + "
        f"({c_type})kw_n * kw_across_sum_{c_type}(kw_apart * kw_apart);",
        "}",
    ]


def _scaled(made: _Merged, sums: Sequence[str]) -> list[str]:
    """Sums move from one number that they stand on to another."""
    names, c_type, top = made.names, made.pair.firsts[0].c_type, made.top
    assert made.pair.call is not None
    factor = distance_text(made.pair, made.row.subject.source, names["ref"], top)
    return [
        f"const {c_type} kw_scale = kw_usual_{c_type}({names['ref']}) ? {made.pair.call.function}({factor}) : 1;",
        *(f"{each} = {each} * kw_scale;" for each in sums),
        f"{names['ref']} = {top};",
        f"{names['at']} = kw_usual_{c_type}({top}) ? {top} : 0;",
    ]


def _lone_exponentials(made: _Merged) -> list[str]:
    names, top, c_type = made.names, made.top, made.pair.firsts[0].c_type
    far = distance_text(made.pair, made.row.subject.source, top, names["ref"])
    body = [
        made.text(made.pair.first.body),
        f"if (!({far} <= {FARTHEST})) {{",
        *(f"  {each}" for each in _scaled(made, [each.name for each in made.pair.sums])),
        "}",
        f"{{ {_alias(made)}const {c_type} {made.later} = {names['at']}; {made.text(made.pair.second.body)} }}",
    ]
    shadows = [f"{each.c_type} {each.name} = {names[each.name]};" for each in made.pair.sums]
    back = [f"{names[each.name]} = {each.name};" for each in made.pair.sums]
    return ["{", *shadows, *_lone_loop(made, made.first.variable, body), *back, "}"]


def _lone_squares(made: _Merged) -> list[str]:
    names, c_type = made.names, made.pair.sums[0].c_type
    declarations, _, value = made.value[1].rpartition("|")
    body = [
        made.text(made.pair.first.body),
        f"{{ {_alias(made)}{declarations} const {c_type} kw_value = {value};",
        f"  const {c_type} kw_off = kw_value - {names['centre']};",
        f"  {names['centre']} += kw_off / ({c_type})++{names['count']};",
        f"  {names['spread']} += kw_off * (kw_value - {names['centre']}); }}",
    ]
    return _lone_loop(made, made.first.variable, body)


# The second loop


def second_text(made: _Merged) -> str:
    """What stands for the second loop: what the first one left, made right; or the loop itself for unusual rows."""
    row, pair = made.row, made.pair
    body, variable, integer = made.text(pair.second.body), made.second.variable, made.integer
    start = start_of(row, pair.second)
    lines = [*joins_before(row, pair.sums), "if (kw_live) {"]
    lines += [f"  {each}" for each in _results(made)]
    usual = [f"kw_usual_{each.c_type}(kw_all_{each.name})" for each in pair.sums]
    if pair.kind == "exponentials":
        usual.insert(0, f"kw_usual_{pair.firsts[0].c_type}({made.later})")
    lines += [
        f"  if ({' && '.join(usual)}) {{",
        *(f"    {each.name} += kw_all_{each.name};" for each in pair.sums),
        "  } else {",
        *(f"    {each}" for each in _as_it_was(made, start, body)),
        "  }",
    ]
    if pair.ahead:
        end = made.text(made.second.bound) + (" + 1" if made.second.operator == "<=" else "")
        lines += [
            f"  const {integer} kw_first = {start}, kw_last = {end};",
            f"  for ({integer} {variable} = kw_first + kw_lane; {variable} < kw_last && "
            f"{variable} < kw_first + {pair.ahead}; {variable} += {row.lanes_name}) {body}",
        ]
    return "\n  ".join(("{", *(f"  {line}" for line in (*lines, "}", *joins_after(row, pair.sums))), "}"))


def _results(made: _Merged) -> list[str]:
    """What a thread's sums are, seen from what is known now."""
    pair, names = made.pair, made.names
    if pair.kind == "exponentials":
        assert pair.call is not None
        factor = distance_text(pair, made.row.subject.source, names["ref"], made.later)
        call = f"{pair.call.function}({factor})"
        return [f"const {each.c_type} kw_all_{each.name} = {names[each.name]} * {call};" for each in pair.sums]
    each = pair.sums[0]
    if not pair.middle.place.is_exact:
        raise Unfit("a macro makes a part of what would change")
    return [
        f"const {each.c_type} kw_far = {names['centre']} - ({made.text(pair.middle)});",
        f"const {each.c_type} kw_all_{each.name} = {names['spread']} + "
        f"({each.c_type}){names['count']} * kw_far * kw_far;",
    ]


def _as_it_was(made: _Merged, start: str, body: str) -> list[str]:
    """The second loop over the elements that the thread had in the first."""
    row, variable, integer = made.row, made.second.variable, made.integer
    if made.pair.ahead:
        start = f"({start}) + {made.pair.ahead}"
    lines = _span(made, start, made.second.bound, made.second.operator)
    if made.wide is not None:
        lines += [
            f"for ({integer} kw_v = kw_vec + kw_lane * {row.vec}; kw_v < kw_full; "
            f"kw_v += {row.lanes_name} * {row.vec}) {{",
            f"  for ({integer} {variable} = kw_v; {variable} < kw_v + {row.vec}; ++{variable}) {body}",
            "}",
        ]
    return [*lines, *_lone_loop(made, variable, [body])]


# Functions


def helpers(words: Dialect, c_type: str, vec: str) -> str:
    """`kw_usual_float` (neither infinite nor not a number, whatever compilers may take for granted), `kw_within_float`.

    `vec` is empty where there are no vectors.
    """
    if words.is_opencl:
        bits, mask = ("as_uint(value)", "0x7f800000u") if c_type == "float" else (
            "as_ulong(value)", "0x7ff0000000000000ul")  # fmt: skip
    else:
        bits, mask = ("(unsigned)__float_as_int(value)", "0x7f800000u") if c_type == "float" else (
            "(unsigned long long)__double_as_longlong(value)", "0x7ff0000000000000ull")  # fmt: skip
    text = f"{words.helper} int kw_usual_{c_type}(const {c_type} value) {{ return ({bits} & {mask}) != {mask}; }}\n"
    if not vec:
        return text
    if words.is_opencl:
        return text + (
            f"static inline int kw_within_{c_type}(const kw_{c_type} far) {{\n#if {vec} == 1\n"
            f"  return far <= {FARTHEST};\n#else\n  return all(far <= (kw_{c_type}){FARTHEST});\n#endif\n}}\n"
        )
    return text + (
        f"{words.helper} bool kw_within_{c_type}(const kw_lanes<{c_type}> &far) {{\n  bool all = true;\n"
        f'  _Pragma("unroll") for (int i = 0; i < {vec}; ++i) all = all && far.v[i] <= {FARTHEST};\n  return all;\n}}\n'
    )
