"""What a comparison promises: the same memory and inputs for all, balanced order, and that nobody pays for another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from kernelwright.backend.base import Artifact, LaunchFailed, LaunchPlan, PlanStep
from kernelwright.evaluate.arena import Arena, BufferSpec, Job
from kernelwright.evaluate.comparing import CompareDone, CompareJob, compare, compared_folder, current_file
from kernelwright.evaluate.layout import GUARD_BYTES, find_guard_damage
from kernelwright.testing.memory_session import Kernel, LaunchSeen, MemoryModule, MemorySession

COUNT = 64
STEP = PlanStep("kernel", (1, 1, 1), (1, 1, 1), 0, ())
POISON = b"\xff\xff\xff\xff"


def job_of(scratch_bytes: int = 0) -> Job:
    specs = [
        BufferSpec("x", "input", COUNT, POISON), BufferSpec("z", "inout", COUNT, POISON),
        BufferSpec("y", "output", COUNT, POISON),
    ]  # fmt: skip
    if scratch_bytes:
        specs.append(BufferSpec("work", "scratch", scratch_bytes, POISON))
    return Job(cast("Artifact", None), LaunchPlan((STEP,)), tuple(specs))


@pytest.fixture
def input_sets(tmp_path: Path) -> tuple[dict[str, Path], ...]:
    sets = []
    for number in range(3):
        files = {name: tmp_path / f"{name}{number}.bin" for name in ("x", "z")}
        files["x"].write_bytes(bytes([number + 1] * COUNT))
        files["z"].write_bytes(bytes([number + 101] * COUNT))
        sets.append(files)
    return tuple(sets)


class Comparing:
    """Runs a comparison and keeps what the kernels saw, in order."""

    def __init__(self, input_sets: tuple[dict[str, Path], ...], folder: Path) -> None:
        self.session = MemorySession()
        self.seen: list[tuple[int, LaunchSeen]] = []
        self._input_sets = input_sets
        self.out = folder / "out"

    def run(self, *kernels: Kernel, jobs: tuple[Job, ...] = (), rounds: int = 12) -> CompareDone:
        job = CompareJob(
            jobs=jobs or (job_of(),) * len(kernels), input_sets=self._input_sets, rounds=rounds, warmup_count=3,
            is_cold=False, seed=7, out_folder=self.out,
        )  # fmt: skip
        return compare(self.session, [self._watched(place, each) for place, each in enumerate(kernels)], job)

    def _watched(self, place: int, kernel: Kernel) -> MemoryModule:
        def call(seen: LaunchSeen) -> float:
            copies = {name: data.copy() for name, data in seen.arrays.items()}
            self.seen.append((place, LaunchSeen(copies, seen.memory, seen.places)))
            return kernel(seen)

        return MemoryModule(call)

    def written(self, place: int, name: str) -> bytes:
        return (compared_folder(self.out, place) / f"{name}.bin").read_bytes()[GUARD_BYTES : GUARD_BYTES + COUNT]

    def is_guard_whole(self, place: int, name: str) -> bool:
        data = np.frombuffer((compared_folder(self.out, place) / f"{name}.bin").read_bytes(), np.uint8)
        return (
            find_guard_damage(data[:GUARD_BYTES], data[-GUARD_BYTES:], byte_count=data.size - 2 * GUARD_BYTES) is None
        )


@pytest.fixture
def comparing(input_sets: tuple[dict[str, Path], ...], tmp_path: Path) -> Comparing:
    return Comparing(input_sets, tmp_path)


def right(seen: LaunchSeen) -> float:
    seen.arrays["y"][:] = seen.arrays["x"] + 1
    seen.arrays["z"][:] += 1
    return 1.0


def test_all_candidates_of_a_round_use_the_same_memory_and_inputs(comparing: Comparing) -> None:
    comparing.run(right, right, right)
    rounds = [comparing.seen[start : start + 3] for start in range(0, len(comparing.seen), 3)]
    assert len(rounds) == 3 + 12
    for launches in rounds:
        assert {place for place, _ in launches} == {0, 1, 2}
        assert len({tuple(seen.places.values()) for _, seen in launches}) == 1
        assert len({seen.arrays["x"].tobytes() for _, seen in launches}) == 1
        assert len({seen.arrays["z"].tobytes() for _, seen in launches}) == 1
    assert len({seen.places["y"] for _, seen in comparing.seen}) == 3, "rounds see several places"


def test_each_candidate_runs_as_often_before_as_after_each_other(comparing: Comparing) -> None:
    comparing.run(right, right, right, rounds=20)
    order = [place for place, _ in comparing.seen][9:]
    before: Counter[tuple[int, int]] = Counter()
    for start in range(0, len(order), 3):
        first, second, third = order[start : start + 3]
        before.update([(first, second), (first, third), (second, third)])
    assert all(before[a, b] == before[b, a] == 10 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_no_launch_finds_results_in_its_outputs(comparing: Comparing) -> None:
    comparing.run(right, right)
    for _, seen in comparing.seen:
        assert len(set(seen.arrays["y"].tolist())) == 1
        assert 0x30 <= seen.arrays["y"][0] < 0x3F
        assert seen.arrays["y"][0] != seen.arrays["x"][0] + 1


def test_what_one_candidate_spoils_no_other_pays_for(comparing: Comparing) -> None:
    def vandal(seen: LaunchSeen) -> float:
        seen.memory["y"][: GUARD_BYTES - 1] = 0
        seen.memory["y"][GUARD_BYTES + COUNT :] = 0
        seen.arrays["x"][:] = 99
        return right(seen)

    done = comparing.run(right, vandal, right)
    chosen = done.last_set + 1
    for place in (0, 2):
        assert comparing.written(place, "y") == bytes([chosen + 1] * COUNT)
        assert comparing.written(place, "z") == bytes([chosen + 101] * COUNT)
        assert comparing.written(place, "x") == bytes([chosen] * COUNT)
        assert comparing.is_guard_whole(place, "y")
    assert not comparing.is_guard_whole(1, "y")
    assert comparing.written(1, "x") == bytes([99] * COUNT)


def test_scratch_of_different_sizes_is_guarded_at_its_own_end(comparing: Comparing) -> None:
    def overruns(seen: LaunchSeen) -> float:
        seen.memory["work"][GUARD_BYTES + 16] = 1
        return right(seen)

    def fills(seen: LaunchSeen) -> float:
        assert set(seen.arrays["work"].tolist()) == {0xFF}, "scratch is forgotten between launches"
        seen.arrays["work"][:] = 5
        return right(seen)

    comparing.run(fills, overruns, fills, jobs=(job_of(4096), job_of(16), job_of(16)))
    assert [comparing.is_guard_whole(place, "work") for place in range(3)] == [True, False, True]


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


def test_memory_does_not_grow_with_the_candidates(input_sets: tuple[dict[str, Path], ...], tmp_path: Path) -> None:
    few, many = Comparing(input_sets, tmp_path / "a"), Comparing(input_sets, tmp_path / "b")
    for each in (few, many):
        each.out.parent.mkdir()
    few.run(right, right)
    many.run(*[right] * 8)
    assert many.session.largest_bytes == few.session.largest_bytes


def test_memory_is_given_back_when_there_is_not_enough(input_sets: tuple[dict[str, Path], ...]) -> None:
    session = MemorySession()
    input_sets[2]["x"].unlink()
    with pytest.raises(FileNotFoundError):
        Arena(session, [job_of()], input_sets)
    assert session.living == []
