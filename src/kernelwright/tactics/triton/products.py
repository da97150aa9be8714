"""A product of matrices in whatever style, through shared memory or registers, as the plain kernel that computes it.

Blocks of the kernel are run on small matrices (`BlockReplay`): what they store must be what the source's own last
expression makes of the sums of products, in one of the orders that rows and columns may have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import declaration_start
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.recognised.places import (
    Launched,
    QuotedIndex,
    launched,
    numbers_of,
    run_block,
    slice_of,
    values_of,
)
from kernelwright.tactics.recognised.replay.block import BlockReplay
from kernelwright.tactics.recognised.replay.values import Numbers, arbitrary
from kernelwright.tactics.recognised.trials import CLOSE, floats
from kernelwright.tactics.tiling.frame import edited

_SIZES = (64, 96, 32, 128, 160)
"""Of trials; tiles of kernels divide them, and no two are alike."""
_STEPS = 150_000
_TO_FLOAT = {"__half": "__half2float", "half": "__half2float", "__nv_bfloat16": "__bfloat162float"}


@dataclass(frozen=True)
class _Order:
    """Which sizes a product has, and how its matrices lie."""

    rows: str
    columns: str
    length: str
    left: str
    right: str
    is_turned: tuple[bool, bool, bool]
    """Whether the left, the right and the output lie with the other index first."""

    def texts(self, row: str, column: str, k: str) -> tuple[str, str, str]:
        """Where an element of the left, the right and the output is, in C."""
        m, n, p = self.rows, self.columns, self.length
        each = ((row, m, k, p), (k, p, column, n), (row, m, column, n))
        return tuple(self._text(*one, is_turned=t) for one, t in zip(each, self.is_turned, strict=True))  # type: ignore[return-value]

    def _text(self, one: str, ones: str, other: str, others: str, *, is_turned: bool) -> str:
        if is_turned:
            one, other, others = other, one, ones
        return f"({one}) * {others} + {other}"


@dataclass(frozen=True)
class _Stored:
    """What is stored, with the parts of it that are the sum."""

    target: nodes.Expression
    value: nodes.Expression
    sums: tuple[nodes.Expression, ...]
    quoted: QuotedIndex
    c_type: str


def plain_product(subject: Subject) -> Subject:
    """The kernel as one with a thread for each element of its output, which sums products by itself.

    Raises:
        Unfit: it is no product of matrices, or that is not certain.
    """
    facts = subject.analysis.facts
    if not facts.barriers or any(each.is_atomic or each.kind == "unknown" for each in facts.accesses):
        raise Unfit("its threads share no tiles")
    touched = [each for each in facts.accesses if each.space == "global"]
    written = {each.array for each in touched if each.kind != "read"}
    read = sorted({each.array for each in touched if each.kind == "read"})
    if len(written) != 1 or len(read) < 2:
        raise Unfit("it does not make one array of two others")
    (out,) = written
    names = _scalars(subject)
    if not 1 <= len(set(names.values())) <= len(_SIZES):
        raise Unfit("the sizes of its matrices are no arguments")
    stored = list(_stores(subject, out))
    for order in _orders(names, [each for each in read if each != out]):
        for each in stored:
            if _holds(subject, order, each, out, names):
                return _written(subject, order, each, out, names)
    raise Unfit("no output of it is a product of two matrices")


def _scalars(subject: Subject) -> dict[str, str]:
    """Integer arguments that are sizes of the problem, and which."""
    found = {}
    for each in subject.analysis.function.parameters:
        scalar = None if each.is_pointer else subject.scalar(each.name)
        if scalar is not None and scalar.text in subject.sizes()[0]:
            found[each.name] = scalar.text
    return found


def _orders(names: Mapping[str, str], read: list[str]) -> Iterator[_Order]:
    for left, right in itertools.permutations(read, 2):
        for m, n, k in itertools.product(names, repeat=3):
            for a, b, c in itertools.product((False, True), repeat=3):
                yield _Order(m, n, k, left, right, (a, b, c))


def _stores(subject: Subject, out: str) -> Iterator[_Stored]:
    body = subject.analysis.function.body
    declared = {each.name: each for each in nodes.walk(body) if isinstance(each, nodes.Declarator)}
    for node in nodes.walk(body):
        if not isinstance(node, nodes.Assign) or nodes.root_name(node.target) != out or node.operator != "=":
            continue
        inside = list(nodes.walk(node.value))
        for leaf in inside:
            root = leaf.name if isinstance(leaf, nodes.Name) else ""
            if root not in declared or declared[root].is_pointer or declared[root].is_shared:
                continue
            same = tuple(each for each in inside if isinstance(each, nodes.Name) and each.name == root)
            try:
                quoted = slice_of(subject, node.value, frozenset((root,)))
                slice_of(subject, node.target)
            except Unfit:
                continue
            if not quoted.free:
                yield _Stored(node.target, node.value, same, quoted, declared[root].c_type)


# Trials


def _sizes(subject: Subject, names: Mapping[str, str], turn: int) -> dict[str, int]:
    own = list(dict.fromkeys(names.values()))
    return {**subject.sizes()[0], **{name: _SIZES[(i + turn) % len(own)] for i, name in enumerate(own)}}


_KEPT = 8
_RUNS: dict[object, tuple[Launched, BlockReplay]] = {}


def _run(subject: Subject, sizes: Mapping[str, int], block: int) -> tuple[Launched, BlockReplay]:
    key = (subject.source, subject.entry, subject.header.steps, tuple(sorted(sizes.items())), block)
    if key not in _RUNS:
        if len(_RUNS) > _KEPT:
            _RUNS.clear()
        launch = launched(subject, sizes, floats(subject, 1))
        _RUNS[key] = launch, run_block(subject, launch, block % launch.blocks, 1, _STEPS)
    return _RUNS[key]


def _holds(subject: Subject, order: _Order, stored: _Stored, out: str, names: Mapping[str, str]) -> bool:
    trials = [(turn, block) for turn in range(min(2, len(set(names.values())))) for block in (0, -1, 1)]
    return all(_holds_in(subject, order, stored, out, _sizes(subject, names, turn), block, names)
               for turn, block in trials)  # fmt: skip


def _holds_in(
    subject: Subject, order: _Order, stored: _Stored, out: str, sizes: Mapping[str, int], block: int,
    names: Mapping[str, str],
) -> bool:  # fmt: skip
    launch, run = _run(subject, sizes, block)
    m, n, k = (sizes[names[each]] for each in (order.rows, order.columns, order.length))
    threads = np.arange(launch.threads)
    whole = np.full(launch.threads, block % launch.blocks)
    try:
        offsets = values_of(subject, launch, slice_of(subject, stored.target), whole, threads, {})
    except Unfit:
        return False
    kept = run.written.get(out, {})
    if launch.blocks * launch.threads < m * n:
        return False
    live = np.array([int(each) in kept for each in offsets.tolist()])
    if not live.any() or set(kept) != {int(each) for each in offsets[live].tolist()} or max(kept) >= m * n:
        return False
    row, column = _place(order, offsets[live], m, n)
    sums = np.zeros(launch.threads)
    sums[live] = _sums(order, row, column, (m, n, k))
    try:
        made = numbers_of(subject, launch, stored.quoted, whole, threads, {id(each): sums for each in stored.sums}, 1)
    except Unfit:
        return False
    got = np.array([kept[int(each)] for each in offsets[live].tolist()])
    return bool(np.allclose(made[live], got, rtol=CLOSE, atol=CLOSE))


def _place(order: _Order, offsets: Numbers, m: int, n: int) -> tuple[Numbers, Numbers]:
    if order.is_turned[2]:
        return offsets % m, offsets // m
    return offsets // n, offsets % n


def _sums(order: _Order, row: Numbers, column: Numbers, sizes: tuple[int, int, int]) -> Numbers:
    m, n, k = sizes
    along = np.arange(k)
    left = along * m + row[:, None] if order.is_turned[0] else row[:, None] * k + along
    right = column[:, None] * k + along if order.is_turned[1] else along * n + column[:, None]
    products = arbitrary(order.left, left, 1) * arbitrary(order.right, right, 1)
    result: Numbers = products.sum(1)
    return result


# Text


def _written(subject: Subject, order: _Order, stored: _Stored, out: str, names: Mapping[str, str]) -> Subject:
    function, source = subject.analysis.function, subject.source
    types = {each.name: each.c_type for each in function.parameters}
    left, right, at = order.texts("kw_row", "kw_column", "kw_k")
    value = edited(source, stored.value.place.span, [Edit(each.place.span, "kw_sum") for each in stored.sums])
    if subject.language == "opencl":
        column, row = "get_global_id(0)", "get_global_id(1)"
    else:
        column, row = (f"blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis}" for axis in "xy")
    factors = (
        _converted(types[order.left], f"{order.left}[{left}]"),
        _converted(types[order.right], f"{order.right}[{right}]"),
    )
    lines = [
        f"int kw_column = {column}, kw_row = {row};",
        f"if (kw_row >= {order.rows} || kw_column >= {order.columns}) return;",
        f"{stored.c_type.removeprefix('const ')} kw_sum = 0;",
        f"for (int kw_k = 0; kw_k < {order.length}; ++kw_k) kw_sum += {' * '.join(factors)};",
        *_declarations(subject, order, stored, names),
        f"{out}[{at}] = {value};",
    ]
    start = declaration_start(source, function)
    data = source.encode("utf-8", "surrogatepass")
    between = data[function.name_place.span.end : function.body.place.span.start].decode("utf-8", "surrogatepass")
    head = "__kernel void" if subject.language == "opencl" else "__global__ void"
    text = f"{head} {function.name}{between}{{ {' '.join(lines)} }}"
    before, behind = (
        data[:start].decode("utf-8", "surrogatepass"),
        data[function.place.span.end :].decode("utf-8", "surrogatepass"),
    )
    grid = (f"ceil_div({names[order.columns]}, 16)", f"ceil_div({names[order.rows]}, 16)")
    step = only_shape(subject)
    none = None if step.shared_bytes is None else "0"
    header = subject.header.relaunched(step.entry, grid=grid, block=("16", "16"), shared_bytes=none)
    return replace(subject, source=before + text + behind, header=header)


def _converted(c_type: str, text: str) -> str:
    function = _TO_FLOAT.get(c_type.replace("const ", "").strip())
    return f"{function}({text})" if function else text


def _declarations(subject: Subject, order: _Order, stored: _Stored, names: Mapping[str, str]) -> list[str]:
    """What the stored expression is made of, by the row and the column."""
    sizes = _sizes(subject, names, 0)
    launch, _ = _run(subject, sizes, 0)
    threads = np.arange(launch.threads)
    whole = np.zeros(launch.threads, np.int64)
    offsets = values_of(subject, launch, slice_of(subject, stored.target), whole, threads, {})
    row, column = _place(order, offsets, sizes[names[order.rows]], sizes[names[order.columns]])
    known = {each.name: each for each in stored.quoted.declared}
    found: dict[str, str] = {}

    def name(node: nodes.Expression) -> None:
        for each in nodes.walk(node):
            if not isinstance(each, nodes.Name) or each.name in found or each.name not in known:
                continue
            own = known[each.name]
            assert own.initial is not None
            values = numbers_of(subject, launch, slice_of(subject, own.initial), whole, threads)
            same = next((w for w, n in (("kw_row", row), ("kw_column", column)) if np.array_equal(values, n)), None)
            if same is None:
                name(own.initial)
                same = own.initial.place.span.text(subject.source)
            found[each.name] = f"const {own.c_type.removeprefix('const ')} {each.name} = {same};"

    name(stored.value)
    return list(found.values())
