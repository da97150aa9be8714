"""What every backend must do, as tests: subclass `BackendContract`, give a device and three small sources.

```python
class TestMine(BackendContract):
    @pytest.fixture
    def subject(self, tmp_path) -> BackendSubject: ...
```
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernelwright.backend.base import (
    Artifact,
    Backend,
    BoundBuffer,
    BoundLaunch,
    Buffer,
    BufferArgument,
    BuildFailed,
    BuildUnit,
    DeviceInfo,
    DeviceSession,
    KeyOrder,
    LaunchFailed,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.redraw import Closeness, Redraw, draw_of, redrawn
from kernelwright.problem.dtypes import DTYPES
from kernelwright.source.language import Language

COUNT = 1000

NEEDED_LIMITS = (
    "max_threads_per_block",
    "max_block_x",
    "shared_memory_per_block",
    "warp_size",
    "multiprocessors",
    "global_memory",
)


OFFSET = 65536
COUNTS = (0, 1, 2, 15, 4095, 4096, 4097, 100_003)
BITS = (8, 16, 32, 64)

MANTISSA_BITS = MappingProxyType({8: 3, 16: 10, 32: 23, 64: 52})
SPANS = (1, 201, 1 << 32, 1 << 40, 0)
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")

Words = npt.NDArray[Any]


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


@dataclass(frozen=True)
class BackendSubject:
    """A backend with one of its devices, and sources in its language."""

    backend: Backend
    device: DeviceInfo
    session: DeviceSession
    folder: Path
    """Empty; artifacts go below it."""
    language: Language
    scale_source: str
    """A kernel `scale(const float *x, float *y, int n)`: `y[i] = FACTOR * x[i]` for i < n, 1-D."""
    broken_source: str
    """The same kernel with the unknown name `undeclared_thing` in line 3."""

    def unit(self, source: str, *, factor: int = 3) -> BuildUnit:
        """A build unit of `source`."""
        return BuildUnit(self.language, source, "scale.src", (("FACTOR", str(factor)),), (), ("scale",))

    def compile(self, source: str, *, factor: int = 3) -> Artifact:
        """An artifact in a folder of its own."""
        folder = self.folder / f"artifact-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return self.backend.compile(self.unit(source, factor=factor), self.device, folder)


class BackendContract:
    """The promises of `backend.base`."""

    def test_a_device_tells_the_limits_that_become_constraints(self, subject: BackendSubject) -> None:
        """All positive; the id carries the backend's name, and asking again gives the same device."""
        for name in NEEDED_LIMITS:
            assert subject.device.limits[name] > 0, name
        assert subject.device.id.startswith(f"{subject.backend.name}:")
        assert subject.device.id in [device.id for device in subject.backend.devices()]
        assert subject.backend.toolchain_id(subject.device) == subject.backend.toolchain_id(subject.device)
        assert subject.backend.unavailable_because() is None

    def test_a_compile_error_is_build_failed_with_the_compilers_words(self, subject: BackendSubject) -> None:
        """The log names what is wrong, and it travels between processes."""
        with pytest.raises(BuildFailed) as caught:
            subject.compile(subject.broken_source)
        assert "undeclared_thing" in caught.value.log
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
        assert (again.message, again.log) == (caught.value.message, caught.value.log)

    def test_an_artifact_travels_and_tells_its_resources(self, subject: BackendSubject) -> None:
        """It pickles; resources are by entry."""
        artifact = subject.compile(subject.scale_source)
        assert pickle.loads(pickle.dumps(artifact)) == artifact  # noqa: S301 - our own bytes
        assert "scale" in artifact.resources

    @pytest.mark.parametrize("factor", [2, 7])
    def test_macros_reach_the_kernel(self, subject: BackendSubject, factor: int) -> None:
        """The result shows the macro's value."""
        x, y = _run(subject, factor=factor)
        assert np.array_equal(y, factor * x)

    def test_offsets_bound_what_the_kernel_sees(self, subject: BackendSubject) -> None:
        """A kernel bound at an offset writes there and nowhere else."""
        x, y = _run(subject, factor=5, offset_bytes=65536)
        assert np.array_equal(y, 5 * x)

    def test_transfers_fills_and_copies_are_exact(self, subject: BackendSubject) -> None:
        """Bytes arrive as they were sent; ranges touch nothing else."""
        session = subject.session
        data = np.arange(4096, dtype=np.uint32).view(np.uint8)
        source, target = session.allocate(data.size), session.allocate(data.size)
        session.fill(target, b"\xab\xcd", data.size)
        session.upload(source, data)
        session.fill(source, b"\x11", 16, offset_bytes=32)
        session.copy(source, target, data.size)
        out = np.empty_like(data)
        session.download(target, out)
        expected = data.copy()
        expected[32:48] = 0x11
        assert np.array_equal(out, expected)
        part = np.empty(100, np.uint8)
        session.download(target, part, offset_bytes=1000)
        assert np.array_equal(part, expected[1000:1100])
        session.free(source)
        session.free(target)

    @pytest.mark.parametrize("item_bytes", [1, 2, 4, 8])
    def test_comparisons_on_the_device_are_those_of_the_host(self, subject: BackendSubject, item_bytes: int) -> None:
        """Keys of every width and order, against bounds that hold and bounds that one element is outside of."""
        session, bits = subject.session, 8 * item_bytes
        every, sign, word = (1 << bits) - 1, 1 << (bits - 1), np.dtype(f"u{item_bytes}")
        words = np.random.default_rng(item_bytes).integers(0, every, 4099, dtype=word, endpoint=True)
        for order in (
            KeyOrder(item_bytes, 0, 0, (1 << 64) - 1),
            KeyOrder(item_bytes, sign, sign, (1 << 64) - 1),
            KeyOrder(item_bytes, sign, every, every // 2 - (every >> 3)),
        ):
            keys = order.keys(words)
            buffers = [session.allocate(words.nbytes + 64) for _ in range(3)]
            given, least, most = buffers
            for buffer, values in zip(buffers, (words, keys, keys), strict=True):
                session.upload(buffer, values.view(np.uint8), 64)
            assert session.as_expected()
            session.expect_within(given, least, most, words.nbytes, order=order, offset_bytes=64)
            assert session.as_expected()
            for place, (low, high) in ((0, (1, 0)), (4098, (1, 0)), (7, (0, 0)), (8, (every, every))):
                changed = [keys.copy(), keys.copy()]
                changed[0][place], changed[1][place] = low, high
                is_inside = low <= int(keys[place]) <= high
                for buffer, values in zip(buffers[1:], changed, strict=True):
                    session.upload(buffer, values.view(np.uint8), 64)
                session.expect_within(given, least, most, words.nbytes, order=order, offset_bytes=64)
                session.expect_same(buffers[0], buffers[0], 48)
                assert session.as_expected() == is_inside
                assert session.as_expected(), "what was told is forgotten"
            for buffer in buffers:
                session.free(buffer)

    @pytest.mark.parametrize(
        ("byte_count", "offsets"), [(4096, (0, 0)), (4099, (0, 0)), (999, (1025, 17)), (1, (3, 3))]
    )
    def test_equal_ranges_are_told_from_different_ones(
        self, subject: BackendSubject, byte_count: int, offsets: tuple[int, int]
    ) -> None:
        """Whatever their alignment, down to the first and the last byte."""
        session = subject.session
        first, second = session.allocate(8192), session.allocate(8192)
        values = np.random.default_rng(5).integers(0, 256, byte_count, dtype=np.uint8)
        for buffer, start in zip((first, second), offsets, strict=True):
            session.fill(buffer, b"\x11" if buffer is first else b"\x22", 8192)
            session.upload(buffer, values, start)
        session.expect_same(first, second, byte_count, offsets_bytes=offsets)
        assert session.as_expected()
        for place in {0, byte_count - 1}:
            session.fill(second, bytes([values[place] ^ 1]), 1, offsets[1] + place)
            session.expect_same(first, second, byte_count, offsets_bytes=offsets)
            assert session.is_same(first, first, 4096)
            assert not session.as_expected()
            session.fill(second, bytes([values[place]]), 1, offsets[1] + place)
        session.free(first)
        session.free(second)

    def test_times_are_positive_and_launches_keep_their_order(self, subject: BackendSubject) -> None:
        """Two launches in one go: the second sees what the first wrote."""
        session = subject.session
        module = session.load(subject.compile(subject.scale_source))
        buffers = {name: session.allocate(4 * COUNT) for name in "xyz"}
        session.upload(buffers["x"], np.ones(COUNT, np.float32).view(np.uint8))
        first = BoundLaunch(module, _step(), _bound(buffers, x="x", y="y"))
        second = BoundLaunch(module, _step(), _bound(buffers, x="y", y="z"))
        elapsed_ms = session.time([first, second])
        out = np.empty(COUNT, np.float32)
        session.download(buffers["z"], out.view(np.uint8))
        assert np.all(out == 9)
        assert math.isfinite(elapsed_ms)
        assert elapsed_ms > 0
        for buffer in buffers.values():
            session.free(buffer)

    def test_a_launch_beyond_the_limits_is_refused_and_the_session_goes_on(self, subject: BackendSubject) -> None:
        """Refused in words, not by a crash."""
        session = subject.session
        module = session.load(subject.compile(subject.scale_source))
        buffers = {name: session.allocate(4 * COUNT) for name in "xy"}
        block = 2 * subject.device.limits["max_threads_per_block"]
        with pytest.raises(LaunchFailed) as caught:
            _launch(session, BoundLaunch(module, _step(block=block), _bound(buffers, x="x", y="y")))
        assert caught.value.reason
        x, y = _run(subject, factor=4)
        assert np.array_equal(y, 4 * x)

    def test_flushing_the_cache_disturbs_no_buffer(self, subject: BackendSubject) -> None:
        """It only costs time."""
        session = subject.session
        data = np.arange(1000, dtype=np.uint8)
        buffer = session.allocate(data.size)
        session.upload(buffer, data)
        session.flush_cache()
        session.synchronize()
        out = np.empty_like(data)
        session.download(buffer, out)
        assert np.array_equal(out, data)

    # -- fresh inputs and close results: sessions do what NumPy does, bit for bit --------------------------------

    @pytest.mark.parametrize("entry", REDRAWS)
    def test_redrawn_elements_are_those_of_the_definition(self, subject: BackendSubject, entry: str) -> None:
        """Nothing beside them changes; one that is changed at either end is noticed."""
        for how, count in itertools.product(REDRAWS[entry], COUNTS):
            assert how.entry == entry
            _check_redraw(subject.session, how, count)

    def test_launches_draw_differently(self, subject: BackendSubject) -> None:
        """What is expected of one launch is not what another one got."""
        session, how = subject.session, REDRAWS["float_32"][0]
        with _Memory(session, np.linspace(1, 2, 5000, dtype=np.float32).view("u4"), 2) as (base, target):
            draws = [draw_of(secret, "x", 5000, how) for secret in (1, 2)]
            for one, other in itertools.product(draws, draws):
                session.redraw(base, target, how, one, offset_bytes=OFFSET)
                session.expect_redrawn(base, target, how, other, offset_bytes=OFFSET)
                assert session.as_expected() == (one is other)

    def test_surprises_of_all_kinds_add_up(self, subject: BackendSubject) -> None:
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
    def test_close_results_are_told_from_others(self, subject: BackendSubject, dtype: str) -> None:
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
    def test_limits_are_rounded_as_the_host_rounds_them(self, subject: BackendSubject, dtype: str) -> None:
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

    def test_without_a_limit_results_must_have_the_same_bytes(self, subject: BackendSubject) -> None:
        """Results of any length; no two zeros are the same, and no two NaN."""
        session = subject.session
        for first, second in ((0.0, -0.0), (1.0, 1.0), (np.nan, np.nan)):
            pair = [np.full(7, each, np.float32) for each in (first, second)]
            with _Memory(session, pair[0].view("u4"), 2) as buffers:
                session.upload(buffers[1], pair[1].view(np.uint8), OFFSET)
                session.expect_close(buffers[0], buffers[1], 27, None, offset_bytes=OFFSET)
                assert session.as_expected() == (pair[0].tobytes() == pair[1].tobytes())


def _launch(session: DeviceSession, launch: BoundLaunch) -> None:
    session.launch([launch])
    session.synchronize()


def _step(*, block: int = 64) -> PlanStep:
    count = np.int32(COUNT)
    arguments = (
        BufferArgument("x", 4 * COUNT),
        BufferArgument("y", 4 * COUNT),
        ScalarArgument("n", "int32", count.tobytes()),
    )
    return PlanStep("scale", (math.ceil(COUNT / block), 1, 1), (block, 1, 1), 0, arguments)


def _bound(buffers: dict[str, object], *, offset_bytes: int = 0, **names: str) -> dict[str, BoundBuffer]:
    return {argument: BoundBuffer(buffers[name], offset_bytes, 4 * COUNT) for argument, name in names.items()}


def _run(
    subject: BackendSubject, *, factor: int, offset_bytes: int = 0
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Scale 0, 1, 2, ... on the device; checks that nothing outside the bound range changed."""
    session = subject.session
    x = np.arange(COUNT, dtype=np.float32)
    size = 4 * COUNT + 2 * offset_bytes
    buffers: dict[str, object] = {name: session.allocate(size) for name in "xy"}
    session.fill(buffers["y"], b"\xcd", size)
    session.upload(buffers["x"], x.view(np.uint8), offset_bytes)
    module = session.load(subject.compile(subject.scale_source, factor=factor))
    bound = _bound(buffers, offset_bytes=offset_bytes, x="x", y="y")
    _launch(session, BoundLaunch(module, _step(), bound))
    out = np.empty(size, np.uint8)
    session.download(buffers["y"], out)
    for buffer in buffers.values():
        session.free(buffer)
    assert np.all(out[:offset_bytes] == 0xCD)
    assert np.all(out[offset_bytes + 4 * COUNT :] == 0xCD)
    return x, out[offset_bytes : offset_bytes + 4 * COUNT].view(np.float32)


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
