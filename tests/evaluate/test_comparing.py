"""What a comparison promises: the same memory for all, inputs that nobody has seen, balanced order, and blame."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from kernelwright.backend.base import Artifact, LaunchFailed, PlanStep
from kernelwright.backend.redraw import Redraw, draw_of, redrawn
from kernelwright.evaluate.data.layout import GUARD_BYTES
from kernelwright.evaluate.device.arena import Arena, BufferSpec, Job
from kernelwright.evaluate.device.comparison import (
    CompareDone,
    CompareJob,
    compare,
    compared_folder,
    continued,
    current_file,
)
from kernelwright.testing.memory_session import Kernel, LaunchSeen, MemorySession

COUNT = 64
STEP = PlanStep("kernel", (1, 1, 1), (1, 1, 1), 0, ())
POISON = b"\xff\xff\xff\xff"
ANEW = Redraw("integers", 1, low=0, span=200)
FIRST = {"x": bytes([1] * COUNT), "z": bytes([101] * COUNT)}


def job_of(scratch_bytes: int = 0, *, anew: Redraw | None = ANEW) -> Job:
    specs = [
        BufferSpec("x", "input", COUNT, POISON, anew), BufferSpec("z", "inout", COUNT, POISON, anew),
        BufferSpec("y", "output", COUNT, POISON),
    ]  # fmt: skip
    if scratch_bytes:
        specs.append(BufferSpec("work", "scratch", scratch_bytes, POISON))
    return Job("w", cast("Artifact", None), (STEP,), tuple(specs))


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / f"{name}.bin" for name in FIRST}
    for name, file in files.items():
        file.write_bytes(FIRST[name])
    return files


class Comparing:
    """Runs a comparison and keeps what the kernels saw, in order."""

    def __init__(self, inputs: dict[str, Path], folder: Path) -> None:
        self.session = MemorySession()
        self.seen: list[tuple[int, LaunchSeen]] = []
        self._inputs = inputs
        self.out = folder / "out"

    def run(self, *kernels: Kernel, jobs: tuple[Job, ...] = (), rounds: int = 12) -> CompareDone:
        job = CompareJob(
            jobs=jobs or (job_of(),) * len(kernels), inputs=self._inputs, set_count=3, rounds=rounds, warmup_count=3,
            cache="hot", seed=7, secret=11, limits={"y": None, "z": None}, out_folder=self.out,
        )  # fmt: skip
        done = continued(
            compare(self.session, [self._watched(place, each) for place, each in enumerate(kernels)], job), None
        )
        assert isinstance(done, CompareDone), "no parts are wanted"
        return done

    def _watched(self, place: int, kernel: Kernel) -> Kernel:
        def call(seen: LaunchSeen) -> float:
            copies = {name: data.copy() for name, data in seen.arrays.items()}
            self.seen.append((place, LaunchSeen(copies, seen.memory, seen.places)))
            return kernel(seen)

        return call

    def written(self, place: int, name: str) -> bytes:
        return (compared_folder(self.out, place) / f"{name}.bin").read_bytes()[GUARD_BYTES : GUARD_BYTES + COUNT]


@pytest.fixture
def comparing(inputs: dict[str, Path], tmp_path: Path) -> Comparing:
    return Comparing(inputs, tmp_path)


def right(seen: LaunchSeen) -> float:
    seen.arrays["y"][:] = seen.arrays["x"] + 1
    seen.arrays["z"][:] += 1
    return 1.0


def test_no_candidate_sees_inputs_that_another_launch_saw(comparing: Comparing) -> None:
    comparing.run(right, right, right)
    rounds = [comparing.seen[start : start + 3] for start in range(0, len(comparing.seen), 3)]
    assert len(rounds) == 3 + 12
    partners = []
    for launches in rounds:
        x = {place: seen.arrays["x"].tobytes() for place, seen in launches}
        assert set(x) == {0, 1, 2}
        assert len({tuple(seen.places.values()) for _, seen in launches}) == 1, "all use the same memory"
        ran = [place for place, _ in launches]
        shared = [place for place in (1, 2) if x[place] == x[0]]
        assert len(shared) <= 1
        assert all(ran.index(place) < ran.index(0) for place in shared), "the baseline's results come after"
        assert len(set(x.values())) == 3 - len(shared)
        partners += shared
    assert len({seen.places["y"] for _, seen in comparing.seen}) == 3, "rounds see several places"
    assert abs(partners.count(1) - partners.count(2)) <= 1, "they take turns"
    assert partners
    for name in ("x", "z"):
        by_candidates = [seen.arrays[name].tobytes() for place, seen in comparing.seen if place]
        assert len(set(by_candidates)) == len(by_candidates)


def test_inputs_that_stay_the_same_are_the_same(comparing: Comparing) -> None:
    comparing.run(right, right, jobs=(job_of(anew=None),) * 2)
    for _, seen in comparing.seen:
        assert {name: seen.arrays[name].tobytes() for name in FIRST} == FIRST


def test_what_was_picked_was_made_from_its_secret(comparing: Comparing) -> None:
    done = comparing.run(right, right, right)
    for place, picked in enumerate(done.picked):
        for name, first in FIRST.items():
            made = redrawn(np.frombuffer(first, np.uint8), ANEW, draw_of(picked.secret, name, COUNT, ANEW))
            if name == "x":
                assert comparing.written(place, "x") == made.tobytes()
                assert comparing.written(place, "y") == (made + 1).tobytes()
            else:
                assert comparing.written(place, "z") == (made + 1).tobytes()


def test_another_launch_is_picked_each_time(comparing: Comparing) -> None:
    assert len({comparing.run(right, right).picked[1].secret for _ in range(20)}) > 3


def test_each_candidate_runs_as_often_before_as_after_each_other(comparing: Comparing) -> None:
    comparing.run(right, right, right, rounds=20)
    before: Counter[tuple[int, int]] = Counter()
    memory: object = None
    for start in range(0, len(comparing.seen), 3):
        launches = comparing.seen[start : start + 3]
        used, memory = memory, launches[0][1].places
        if used != memory:  # the first round on a set does not count
            continue
        first, second, third = (place for place, _ in launches)
        before.update([(first, second), (first, third), (second, third)])
    assert all(before[a, b] == before[b, a] == 10 for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("rounds", [1, 2, 6, 20])
def test_every_launch_that_counts_finds_memory_that_the_one_before_it_used(comparing: Comparing, rounds: int) -> None:
    """Where sets took turns, whoever was second in a round was 1.3 times as fast: its memory was in the caches."""
    done = comparing.run(right, right, rounds=rounds)
    memory = [tuple(seen.places.values()) for _, seen in comparing.seen]
    moved = [index for index, place in enumerate(memory) if index == 0 or place != memory[index - 1]]
    assert len(memory) == 2 * (3 + rounds)
    assert [len(row) for row in done.samples_ms] == [rounds] * 2
    assert moved[0] == 0
    assert all(index % 2 == 0 for index in moved), "a round stays where it began"
    assert len(moved) == 3, "each set is used once"


def test_no_launch_finds_results_in_its_outputs(comparing: Comparing) -> None:
    comparing.run(right, right)
    for _, seen in comparing.seen:
        assert len(set(seen.arrays["y"].tolist())) == 1
        assert 0x30 <= seen.arrays["y"][0] < 0x3F
        assert (seen.arrays["y"] != seen.arrays["x"] + 1).any()  # one element may be right by chance


def changes_input(seen: LaunchSeen) -> float:
    time_ms = right(seen)
    seen.arrays["x"][COUNT - 1] ^= 1
    return time_ms


def writes_before(seen: LaunchSeen) -> float:
    seen.memory["y"][GUARD_BYTES - 1] = 0
    return right(seen)


def writes_behind_an_input(seen: LaunchSeen) -> float:
    seen.memory["x"][GUARD_BYTES + COUNT] = 0
    return right(seen)


@pytest.mark.parametrize("vandal", [changes_input, writes_before, writes_behind_an_input])
def test_what_a_candidate_spoils_is_seen_after_its_launch(comparing: Comparing, vandal: Kernel) -> None:
    done = comparing.run(right, right, vandal)
    assert dict(done.failed) == {2: "it wrote outside of its buffers, or changed its inputs"}
    assert comparing.session.living == []


def test_one_wrong_launch_among_right_ones_is_held_against_the_baseline(comparing: Comparing) -> None:
    def wrong_now_and_then(seen: LaunchSeen) -> float:
        time_ms = right(seen)
        seen.arrays["y"][3] += len(comparing.seen) > 20
        return time_ms

    done = comparing.run(right, wrong_now_and_then)
    assert dict(done.failed) == {1: "its results are not the baseline's on the same inputs"}


def test_scratch_of_different_sizes_is_guarded_at_its_own_end(comparing: Comparing) -> None:
    def overruns(seen: LaunchSeen) -> float:
        seen.memory["work"][GUARD_BYTES + 16] = 1
        return right(seen)

    def fills(seen: LaunchSeen) -> float:
        found = set(seen.arrays["work"].tolist())
        assert len(found) == 1, "scratch is filled with one byte"
        assert found <= set(range(0x30, 0x3F)), "it is neither what checks fill in nor what launches left"
        seen.arrays["work"][:] = 5
        return right(seen)

    assert not comparing.run(fills, fills, jobs=(job_of(4096), job_of(16))).failed
    assert set(comparing.run(fills, overruns, jobs=(job_of(4096), job_of(16))).failed) == {1}


def test_samples_keep_their_rounds(comparing: Comparing) -> None:
    ticks = iter(range(1000))
    done = comparing.run(lambda seen: right(seen) + next(ticks), lambda seen: right(seen) + next(ticks), rounds=6)
    rows = np.array(done.samples_ms)
    assert rows.shape == (2, 6)
    assert (np.abs(rows[0] - rows[1]) == 1).all(), "samples of one round were taken one after the other"
    assert (np.diff(rows.sum(axis=0)) > 0).all()


def test_a_launch_that_fails_is_named_and_memory_given_back(comparing: Comparing) -> None:
    def refused(seen: LaunchSeen) -> float:
        raise LaunchFailed("invalid-work-group-size", "too many threads")

    done = comparing.run(right, right, refused)
    assert dict(done.failed) == {2: "too many threads"}
    assert current_file(comparing.out).read_text() == "2"
    assert comparing.session.living == []


def test_memory_does_not_grow_with_the_candidates(inputs: dict[str, Path], tmp_path: Path) -> None:
    few, many = Comparing(inputs, tmp_path / "a"), Comparing(inputs, tmp_path / "b")
    for each in (few, many):
        each.out.parent.mkdir()
    few.run(right, right)
    many.run(*[right] * 8)
    assert many.session.largest_bytes == few.session.largest_bytes


def test_memory_is_given_back_when_a_file_is_missing(inputs: dict[str, Path]) -> None:
    session = MemorySession()
    inputs["x"].unlink()
    with pytest.raises(FileNotFoundError):
        Arena(session, [job_of()], [inputs] * 3)
    assert session.living == []
