"""What every backend must do, as tests: subclass `BackendContract`, give a device and three small sources.

```python
class TestMine(BackendContract):
    @pytest.fixture
    def subject(self, tmp_path) -> BackendSubject: ...
```
"""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernelwright.backend.base import (
    Artifact,
    Backend,
    BoundBuffer,
    BoundLaunch,
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
from kernelwright.source.language import Language
from kernelwright.testing.contracts_redraw import RedrawContract

COUNT = 1000

NEEDED_LIMITS = (
    "max_threads_per_block",
    "max_block_x",
    "shared_memory_per_block",
    "warp_size",
    "multiprocessors",
    "global_memory",
)


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


class BackendContract(RedrawContract):
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
