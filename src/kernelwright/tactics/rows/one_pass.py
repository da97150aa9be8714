"""Rows that are walked twice before they are written: the largest or the mean, and what is summed with it, in one pass.

For rows that one thread walks alone, shared as by `rows`, or that the threads of a block share already, and too long
for caches to have kept what the first pass read. A running largest stands in for the largest (online softmax: Milakov
and Gimelshein 2018), a running mean for the mean (Welford 1962); what threads have is joined by the rescaled sum, and
by the formula of Chan, Golub and LeVeque.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from kernelwright.source import nodes
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.traffic_model import (
    AHEAD,
    CACHED_SHARE,
    LEAST,
    MOST,
    MULTIPROCESSORS,
    Walk,
    effect,
    row_walk_s,
    tree_barriers,
)
from kernelwright.tactics.reductions.block_reductions import own_argument
from kernelwright.tactics.reductions.inline_reductions import over_joins
from kernelwright.tactics.rows.facts import RowKernel, refuse_own_place, understood
from kernelwright.tactics.rows.one_pass_facts import Pair, pairs_of
from kernelwright.tactics.rows.one_pass_text import first_text, helpers, merged, second_text
from kernelwright.tactics.rows.row_sharing import RowSharing, share_loop
from kernelwright.tactics.rows.threads_per_row import add_preludes, share, sharing

SHORTEST_BYTES = 64 * 1024
"""In a shorter row the next pass finds it in the nearest caches (or registers keep it): a pass saved is less than
the arithmetic that it costs. A guess, near the size of first-level caches."""

CACHE_BYTES = 32 << 20
"""A GPU's second-level cache. A guess."""

ROWS_AT_ONCE = 16
"""Rows that a multiprocessor has under way, each with a few warps. A guess."""

CPU_SHARE = 0.8
"""What is left on CPUs of what sharing rows brings: exponentials and divisions take their time, and large caches have
the row. Measured with `benchmarks/long_rows.py`: 0.69 and 0.84 times as fast as `rows` by processor time, on rows of 1
and 32 MiB."""

SHORT_SHARE = 0.95
"""The same for rows that the nearest caches keep. A guess."""


def _merge(subject: Subject) -> Rewrite:
    try:
        return _merge_shared(subject)
    except Unfit:
        if not subject.analysis.facts.barriers and not subject.analysis.facts.exchanges:
            raise
    return _merge_block(subject)


def _merge_shared(subject: Subject) -> Rewrite:
    """Rows of one thread each."""
    chosen: list[Pair] = []

    def choose(row: RowSharing, body: nodes.Block, types: dict[str, str]) -> Mapping[int, Callable[[], None]]:
        pairs, reason = pairs_of(subject, body, types, {})
        if not pairs:
            raise Unfit(reason)
        chosen.extend(pairs)
        _refuse_short(subject, pairs)
        row.passes = "; " + " and ".join(dict.fromkeys(_told(pair) for pair in pairs))
        return _writers(row, pairs, types)

    return share(subject, name="one-pass", choose=choose, weigh=lambda row: _effect(row, chosen))


@over_joins
def _merge_block(subject: Subject) -> Rewrite:
    """Rows that the threads of a block share already, and join by functions."""
    known = understood(subject, name="one-pass")
    for loop in known.loops:
        refuse_own_place(known, loop)
        if any(a.space == "shared" and loop.fact.index in a.loops for a in subject.analysis.facts.accesses):
            raise Unfit("its threads keep a row in shared memory")
    plan, words = known.plan, dialect(subject.language)
    narrow = [a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter]
    widest = (
        8 if subject.device.kind == "cpu" else min(8, max(1, subject.device.vector_bytes // min(narrow, default=4)))
    )
    vec = plan.parameter("VEC", (1, 2, 4, 8), widest, "elements of a row that a thread takes at once")
    unroll = plan.parameter("UNROLL", (1, 2, 4), 1, "steps of the loops along a row that are written out")
    headers = {id(loop.node): loop.header for loop in known.loops}
    row = RowSharing(subject, plan, None, words, known.types, words.block_size("x"), "1", vec, unroll, headers=headers)
    joins = dict(_joins(known))
    pairs, reason = pairs_of(subject, subject.analysis.function.body, known.types, joins)
    if not pairs:
        raise Unfit(reason)
    _refuse_short(subject, pairs)
    writers = _writers(row, pairs, known.types)
    for loop in known.loops:
        row.loops += 1
        if id(loop.node) in writers:
            writers[id(loop.node)]()
        else:
            share_loop(row, loop.node)
    start = subject.analysis.function.body.place.span.start + 1
    plan.insert(start, f"\n  const int kw_lane = {words.thread('x')}, kw_live = 1;")
    if row.lone_loops or not row.vector_loops:
        raise Unfit("a loop has no vector form")
    add_preludes(row)
    told = " and ".join(dict.fromkeys(_told(pair) for pair in pairs))
    return plan.finish(f"Threads of a block take vectors of {vec} of their row; {told}.", _block_effect(known, pairs))


def _joins(known: RowKernel) -> Iterator[tuple[str, str]]:
    """Variables that get what all threads of a block join, with those that are joined."""
    calls = [call for call, _, _ in known.calls]
    for node in nodes.walk(known.subject.analysis.function.body):
        match node:
            case nodes.Declarator(name=name, initial=nodes.Call() as value):
                pass
            case nodes.Assign(operator="=", target=nodes.Name(name=name), value=nodes.Call() as value):
                pass
            case _:
                continue
        own = [each.name for each in value.arguments if isinstance(each, nodes.Name)]
        if any(value is call for call in calls) and own and own_argument(known.subject, value)[0] == own[0]:
            yield name, own[0]


def _block_effect(known: RowKernel, pairs: tuple[Pair, ...]) -> Effect:
    """Vectors, and a pass over memory or the second-level cache for each pair."""
    subject, count = known.subject, len(known.calls)
    passes = f"a row is read {len(known.loops) - len(pairs)} times instead of {len(known.loops)}"
    if subject.device.kind == "cpu":
        return Effect(LEAST, f"{passes}, which here costs as much in arithmetic as it saves")
    seconds = {id(pair.second) for pair in pairs}
    every = [loop.fact for loop in known.loops]
    kept = [loop.fact for loop in known.loops if id(loop.node) not in seconds]
    walks = [Walk(known.size, vec, AHEAD, is_kept=False, barriers=count * tree_barriers(known.size)) for vec in (1, 4)]
    pairs_s = []
    for sizes in subject.sizes():
        rows = total_of(subject, only_shape(subject).grid[0].text, sizes)
        length = subject.evaluate(every[0].bound, sizes) if every[0].bound is not None else None
        if rows is None or not length:
            return Effect(LEAST, passes)
        pairs_s.append((
            row_walk_s(subject, every, walks[0], rows=rows, length=length),
            row_walk_s(subject, kept, walks[1], rows=rows, length=length),
        ))  # fmt: skip
    return effect(pairs_s, passes, otherwise=LEAST)


def _told(pair: Pair) -> str:
    if pair.kind == "squares":
        return "sum and squares are taken in one pass, around a running mean"
    return f"the {pair.firsts[0].plain} and the sum of exponentials are taken in one pass, around a running one"


def _writers(row: RowSharing, pairs: tuple[Pair, ...], types: dict[str, str]) -> Mapping[int, Callable[[], None]]:
    """What writes each loop of the pairs."""
    writers: dict[int, Callable[[], None]] = {}
    scalars: dict[str, str] = {}
    for pair in pairs:
        made = merged(row, pair, types)

        def write(loop: nodes.Loop, text: str) -> None:
            row.plan.replace(loop.place.span, text)
            for mark in loop.pragmas:
                row.plan.replace(mark.span, "")

        for loop, text in ((pair.first, first_text(made)), (pair.second, second_text(made))):
            writers[id(loop)] = lambda loop=loop, text=text: write(loop, text)  # type: ignore[misc]
        for each in (*pair.firsts, *pair.sums):
            if each.c_type in ("float", "double"):
                vec = row.vec if made.wide is not None else ""
                scalars[each.c_type] = scalars.get(each.c_type) or vec
    row.helpers += [helpers(row.words, c_type, vec) for c_type, vec in sorted(scalars.items())]
    return writers


# What it brings


def _refuse_short(subject: Subject, pairs: tuple[Pair, ...]) -> None:
    longest = [max((_row_bytes(subject, pair, sizes) or 0 for pair in pairs), default=0) for sizes in subject.sizes()]
    if not longest or max(longest) < SHORTEST_BYTES:
        raise Unfit(f"rows of at most {max(longest, default=0)} bytes are at hand for a second pass")


def _row_bytes(subject: Subject, pair: Pair, sizes: Mapping[str, int]) -> int | None:
    """What a pass over a row reads of arrays that are not the same for all rows."""
    facts = subject.analysis.facts
    bound = next((each.bound for each in facts.loops if each.span == pair.second.place.span), None)
    length = subject.evaluate(bound, sizes) if bound is not None else None
    if length is None:
        return None
    read = {a.array for a in facts.accesses if pair.second.place.span.contains(a.span) and a.space == "global"}
    return length * sum(facts.arrays[each].element_bytes or 4 for each in read if each in facts.arrays)


def _effect(row: RowSharing, pairs: list[Pair]) -> Effect:
    """That of sharing rows, and the bytes of the passes that are saved."""
    subject, base = row.subject, sharing(row)
    passes = f"a row is read {row.loops - len(pairs)} times instead of {row.loops}"
    if subject.device.kind == "cpu":
        told = f"{base.because}, and {passes}, which here costs as much in arithmetic as it saves"
        return Effect(base.factor * CPU_SHARE, told)
    multiprocessors = subject.device.multiprocessors or MULTIPROCESSORS
    gains, longest = [], 0
    for sizes in subject.sizes():
        one = max(_row_bytes(subject, pair, sizes) or 0 for pair in pairs)
        at_once = min(multiprocessors * ROWS_AT_ONCE, _row_count(subject, sizes))
        again = 1.0 if one * at_once > CACHE_BYTES else CACHED_SHARE
        before = 1.0 + again * (row.loops - 1) + _writes(subject)
        after = before - again * len(pairs)
        gains.append(before / after if one >= SHORTEST_BYTES else SHORT_SHARE)
        longest = max(longest, one)
    gain = math.exp(math.fsum(map(math.log, gains)) / len(gains))
    told = f"{base.because}, and {passes}, of up to {longest} bytes"
    return Effect(min(MOST, max(LEAST, base.factor * gain)), told)


def _row_count(subject: Subject, sizes: Mapping[str, int]) -> int:
    """How many rows there are; 1 where it is not known."""
    step = only_shape(subject)
    count, size = total_of(subject, step.grid[0].text, sizes), total_of(subject, step.block[0].text, sizes)
    return count * size if count and size else 1


def _writes(subject: Subject) -> int:
    """Loops along a row that store."""
    facts = subject.analysis.facts
    return len({a.loops[0] for a in facts.accesses if a.kind != "read" and a.space == "global" and a.loops})


ONE_PASS = RuleTactic(
    "one-pass", "row", "Long rows: the largest or the mean, and what is summed with it, in one pass over a row.", _merge
)
