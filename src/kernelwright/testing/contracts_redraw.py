"""What every session must do about fresh inputs and close results, as tests: a part of `BackendContract`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from kernelwright.backend.base import Buffer, DeviceSession
from kernelwright.backend.redraw import Closeness, Redraw, draw_of, redrawn
from kernelwright.problem.dtypes import DTYPES

OFFSET = 65536
COUNTS = (0, 1, 2, 15, 4095, 4096, 4097, 100_003)
BITS = (8, 16, 32, 64)

MANTISSA_BITS = MappingProxyType({8: 3, 16: 10, 32: 23, 64: 52})
SPANS = (1, 201, 1 << 32, 1 << 40, 0)
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")

Words = npt.NDArray[Any]


class _HasSession(Protocol):
    """What is needed of a subject."""

    @property
    def session(self) -> DeviceSession:
        """An open one."""


def _float(bits: int, low: int, high: int) -> Redraw:
    mantissa = (1 << MANTISSA_BITS[bits]) - 1
    return Redraw("float", bits // 8, mantissa, (1 << (bits - 1)) - 1 - mantissa, low, high)


REDRAWS: Mapping[str, tuple[Redraw, ...]] = MappingProxyType(
    {
        **{f"float_{bits}": (_float(bits, 0, (1 << bits) - 1),) for bits in BITS},
        **{
            f"bounded_{bits}": tuple(
                _float(bits, low << (bits - 8), (high << (bits - 8)) - 1)
                for low, high in ((64, 192), (0, 129), (187, 188))
            )
            for bits in BITS
        },
        **{f"gather_{bits}": (Redraw("gather", bits // 8),) for bits in BITS},
        **{
            f"integers_{bits}": tuple(
                Redraw("integers", bits // 8, low=low, span=span) for span in SPANS for low in (0, (1 << bits) - 100)
            )
            for bits in BITS
        },
        **{f"permute_{bits}": (Redraw("permute", bits // 8),) for bits in BITS},
    }
)
"""All kernels, with the numbers that are hard for them."""


class RedrawContract:
    """Sessions do what NumPy does, bit for bit."""

    @pytest.mark.parametrize("entry", REDRAWS)
    def test_redrawn_elements_are_those_of_the_definition(self, subject: _HasSession, entry: str) -> None:
        """Nothing beside them changes; one that is changed at either end is noticed."""
        for how, count in itertools.product(REDRAWS[entry], COUNTS):
            assert how.entry == entry
            _check_redraw(subject.session, how, count)

    def test_launches_draw_differently(self, subject: _HasSession) -> None:
        """What is expected of one launch is not what another one got."""
        session, how = subject.session, REDRAWS["float_32"][0]
        with _Memory(session, np.linspace(1, 2, 5000, dtype=np.float32).view("u4"), 2) as (base, target):
            draws = [draw_of(secret, "x", 5000, how) for secret in (1, 2)]
            for one, other in itertools.product(draws, draws):
                session.redraw(base, target, how, one, offset_bytes=OFFSET)
                session.expect_redrawn(base, target, how, other, offset_bytes=OFFSET)
                assert session.as_expected() == (one is other)

    def test_surprises_of_all_kinds_add_up(self, subject: _HasSession) -> None:
        """One question for several expectations; what was told is forgotten."""
        session, how = subject.session, REDRAWS["gather_32"][0]
        words = np.arange(1000, dtype=np.uint32)
        draw = draw_of(1, "x", words.size, how)
        with _Memory(session, words, 2) as (base, target):
            for is_spoilt in (True, False):
                session.redraw(base, target, how, draw, offset_bytes=OFFSET)
                if is_spoilt:
                    session.fill(target, b"\xff", 4, OFFSET + 4 * 500)
                session.expect_redrawn(base, target, how, draw, offset_bytes=OFFSET)
                session.expect_same(base, base, words.nbytes)
                session.expect_close(base, base, words.nbytes, Closeness("float32", 0, 0), offset_bytes=OFFSET)
                assert session.as_expected() != is_spoilt

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_close_results_are_told_from_others(self, subject: _HasSession, dtype: str) -> None:
        """At the limit, on both sides of it, and for what is no ordinary number; at either end of many elements."""
        word = f"u{DTYPES[dtype].item_bytes}"
        ones = np.ones(4099, DTYPES[dtype].numpy_dtype)
        with _Memory(subject.session, ones.view(word), 2) as buffers:
            for a, b, limit, is_close in _pairs(dtype):
                for place in (0, 4098):
                    pair = [ones.copy(), ones.copy()]
                    pair[0][place], pair[1][place] = a, b
                    found = _are_close(subject.session, buffers, pair, limit)
                    assert found == is_close, (a, b, limit, place)
                    assert limit.holds(*(each.view(np.uint8) for each in pair)) == is_close

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_limits_are_rounded_as_the_host_rounds_them(self, subject: _HasSession, dtype: str) -> None:
        """Pairs that are apart by about the limit: one rounding more or less would show."""
        kind = DTYPES[dtype].numpy_dtype
        rng = np.random.default_rng(3)
        limit = Closeness(dtype, 0.1, 1e-3)
        with _Memory(subject.session, np.zeros(1, kind).view(f"u{kind.itemsize}"), 2) as buffers:
            for b in rng.normal(0, 2, 60):
                wide = b * (1 + limit.rtol * rng.choice((-1, 1))) + limit.atol * np.sign(b)
                pair = [np.array([wide], kind), np.array([b], kind)]
                expected = limit.holds(*(each.view(np.uint8) for each in pair))
                assert _are_close(subject.session, buffers, pair, limit) == expected, (wide, b)

    def test_without_a_limit_results_must_have_the_same_bytes(self, subject: _HasSession) -> None:
        """Results of any length; no two zeros are the same, and no two NaN."""
        session = subject.session
        for first, second in ((0.0, -0.0), (1.0, 1.0), (np.nan, np.nan)):
            pair = [np.full(7, each, np.float32) for each in (first, second)]
            with _Memory(session, pair[0].view("u4"), 2) as buffers:
                session.upload(buffers[1], pair[1].view(np.uint8), OFFSET)
                session.expect_close(buffers[0], buffers[1], 27, None, offset_bytes=OFFSET)
                assert session.as_expected() == (pair[0].tobytes() == pair[1].tobytes())


class _Memory:
    """Buffers with the same elements between guards."""

    def __init__(self, session: DeviceSession, words: Words, count: int) -> None:
        self._session = session
        self.buffers: list[Buffer] = []
        for _ in range(count):
            buffer = session.allocate(words.nbytes + 2 * OFFSET)
            self.buffers.append(buffer)
            session.fill(buffer, b"\xcd", words.nbytes + 2 * OFFSET)
            if words.size:
                session.upload(buffer, words.view(np.uint8), OFFSET)

    def __enter__(self) -> list[Buffer]:
        return self.buffers

    def __exit__(self, *_: object) -> None:
        for buffer in self.buffers:
            self._session.free(buffer)


def _words(how: Redraw, count: int) -> Words:
    """All bits, and zeros and numbers of one exponent among them."""
    rng = np.random.default_rng(count)
    words = np.frombuffer(rng.bytes(count * how.item_bytes), f"u{how.item_bytes}").copy()
    words[::7] = 0
    words[1::5] &= words.dtype.type(how.mantissa) if how.mantissa else words.dtype.type(0xFF)
    return words


def _check_redraw(session: DeviceSession, how: Redraw, count: int) -> None:
    words = _words(how, count)
    draw = draw_of(7 * count + how.span, "x", count, how)
    wanted = redrawn(words, how, draw)
    with _Memory(session, words, 2) as (base, target):
        session.redraw(base, target, how, draw, offset_bytes=OFFSET)
        for buffer, inside in ((base, words), (target, wanted)):
            out = np.empty(words.nbytes + 2 * OFFSET, np.uint8)
            session.download(buffer, out)
            end = OFFSET + words.nbytes
            assert np.array_equal(out[OFFSET:end].view(words.dtype), inside), (how, count)
            assert np.all(out[:OFFSET] == 0xCD)
            assert np.all(out[end:] == 0xCD)
        session.expect_redrawn(base, target, how, draw, offset_bytes=OFFSET)
        assert session.as_expected(), (how, count)
        for place in {0, count - 1} if count else ():
            byte = OFFSET + place * how.item_bytes
            changed = int(wanted[place]) ^ 1
            session.fill(target, bytes([changed & 0xFF]), 1, byte)
            session.expect_redrawn(base, target, how, draw, offset_bytes=OFFSET)
            assert not session.as_expected(), (how, count, place)
            session.fill(target, bytes([(changed ^ 1) & 0xFF]), 1, byte)


def _are_close(session: DeviceSession, buffers: Sequence[Buffer], pair: Sequence[Words], limit: Closeness) -> bool:
    for buffer, values in zip(buffers, pair, strict=True):
        session.upload(buffer, values.view(np.uint8), OFFSET)
    session.expect_close(buffers[0], buffers[1], pair[0].nbytes, limit, offset_bytes=OFFSET)
    return session.as_expected()


def _pairs(dtype: str) -> Iterator[tuple[Any, Any, Closeness, bool]]:
    """Two numbers, a limit, and whether they are within it."""
    kind = DTYPES[dtype].numpy_dtype
    exact, wide, share = Closeness(dtype, 0, 0), Closeness(dtype, 0, 0.25), Closeness(dtype, 0.25, 0)
    for a, b, limit in ((1.25, 1.0, wide), (2.5, 2.0, share), (-2.5, -2.0, share)):
        for step, is_close in ((-1, True), (0, True), (1, False)):
            yield _neighbour(kind, a, step), b, limit, is_close
    least = _neighbour(kind, 0.0, 1)
    yield least, 0.0, exact, False
    yield least, 0.0, Closeness(dtype, 0, float(least)), True
    yield 0.0, -0.0, exact, True
    yield np.nan, np.nan, exact, True
    yield np.nan, 1.0, wide, False
    yield 1.0, np.nan, wide, False
    if dtype != "float8_e4m3fn":  # which has no infinities
        yield np.inf, np.inf, exact, True
        yield np.inf, -np.inf, share, False
        yield 1.0, np.inf, share, False
        yield np.inf, 1.0, share, False


def _neighbour(kind: np.dtype[Any], value: float, steps: int) -> Any:
    """The number that is so many steps further from 0."""
    word = np.array([value], kind).view(f"u{kind.itemsize}")
    return (word + word.dtype.type(steps % (1 << 8 * kind.itemsize))).view(kind)[0]
