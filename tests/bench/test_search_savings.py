"""Priors and savings of the benchmark: what a strategy is told, and what a measurement that stops early costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from recordings import write_recording

from kernelwright.errors import UsageError
from kernelwright_bench.search.priors import MISLEADING, priors_for, priors_of, sources_for
from kernelwright_bench.search.racing import SAVINGS, Replay, savings_of
from kernelwright_bench.search.recordings import RecordedSpace, load_recorded
from kernelwright_bench.search.repeats import Strategy, run_once

SAMPLE_COUNT = 32


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedSpace]:
    folder = tmp_path_factory.mktemp("savings")
    for device in ("One", "Two", "Three"):
        write_recording(folder, device=device)
    return load_recorded(folder)


@pytest.fixture(scope="module")
def sampled(recorded: list[RecordedSpace]) -> RecordedSpace:
    """Timings that scatter by 1%, which cost 90% of an evaluation."""
    one = recorded[0]
    noise = np.random.default_rng(1).normal(1, 0.01, (len(one.time_ms), SAMPLE_COUNT))
    samples_ms = one.time_ms[:, None] * noise
    return dataclasses.replace(
        one, samples_ms=samples_ms, time_ms=samples_ms.mean(axis=1), benchmark_s=0.9 * one.cost_s
    )


def by_time(one: RecordedSpace) -> list[int]:
    """Indices of what passed, fastest first."""
    order = np.argsort(one.time_ms)
    return [int(index) for index in order[: int((~np.isnan(one.time_ms)).sum())]]


# -- priors -------------------------------------------------------------------------------------------------


def test_others_are_all_other_devices_of_the_kernel_each_a_source(recorded: list[RecordedSpace]) -> None:
    names = {one.device for one in sources_for(recorded[0], "others", recorded)}
    assert names == {one.device for one in recorded[1:]}
    told = priors_for("others", sources_for(recorded[0], "others", recorded))
    assert {prior.source for prior in told} == {f"recorded on {device}" for device in names}


def test_a_device_is_no_source_for_itself(recorded: list[RecordedSpace]) -> None:
    assert sources_for(recorded[0], recorded[0].device, recorded) == ()


@pytest.mark.parametrize("word", MISLEADING)
def test_misleading_priors_tell_nothing_true(word: str, recorded: list[RecordedSpace]) -> None:
    truth = {prior.config: prior.value for prior in priors_of(recorded[0]) if prior.value is not None}
    told = priors_for(word, sources_for(recorded[0], word, recorded))
    assert {prior.config for prior in told} == set(truth)
    values = np.array([prior.value for prior in told])
    same = np.array([truth[prior.config] for prior in told])
    if word == "constant":
        assert len(set(values)) == 1
    else:
        assert sorted(values) == sorted(same)
        correlation = np.corrcoef(np.argsort(np.argsort(values)), np.argsort(np.argsort(same)))[0, 1]
        assert correlation < (-0.99 if word == "reversed" else 0.1)


# -- savings ------------------------------------------------------------------------------------------------


def test_a_saving_that_is_none_or_cannot_be_had_is_refused(recorded: list[RecordedSpace]) -> None:
    with pytest.raises(UsageError, match="no saving 'halving'"):
        savings_of(["halving"])
    with pytest.raises(UsageError, match="no single timings"):
        Replay(dataclasses.replace(recorded[0], samples_ms=None), "racing")


def test_without_savings_an_evaluation_is_what_was_recorded(sampled: RecordedSpace) -> None:
    replay = Replay(sampled)
    assert all(replay.observe(config) == sampled.observe(config) for config in sampled.space.iterate())
    assert replay.best_ms == np.nanmin(sampled.time_ms)


def test_what_is_certain_to_lose_costs_a_few_timings(sampled: RecordedSpace) -> None:
    order = by_time(sampled)
    replay = Replay(sampled, "racing")
    best, worst = (sampled.space.config_at(order[place]) for place in (0, -1))
    assert replay.observe(best) == sampled.observe(best)
    lost = replay.observe(worst)
    assert lost.is_partial
    whole_s = sampled.observe(worst).cost_s
    assert lost.cost_s == pytest.approx(whole_s * (0.1 + 0.9 * 3 / SAMPLE_COUNT))
    assert replay.best_ms == sampled.time_ms[order[0]]


def test_the_first_to_pass_has_nothing_to_race_against(sampled: RecordedSpace) -> None:
    worst = sampled.space.config_at(by_time(sampled)[-1])
    assert Replay(sampled, "racing").observe(worst) == sampled.observe(worst)


def test_a_precise_measurement_stops_and_is_no_partial_one(sampled: RecordedSpace) -> None:
    best = sampled.space.config_at(by_time(sampled)[0])
    seen = Replay(sampled, "precise").observe(best)
    assert not seen.is_partial
    assert seen.cost_s < 0.6 * sampled.observe(best).cost_s
    assert seen.value == pytest.approx(sampled.observe(best).value, rel=0.02)


def test_a_failure_saves_nothing(sampled: RecordedSpace) -> None:
    failed = sampled.space.config_at(int(np.argmax(np.isnan(sampled.time_ms))))
    for saving in SAVINGS:
        assert Replay(sampled, saving).observe(failed) == sampled.observe(failed)


def test_with_racing_more_is_evaluated_in_the_same_time(sampled: RecordedSpace) -> None:
    counts = [
        len(run_once(sampled, Strategy("random", saving=saving), seed=1, until_s=100.0).is_new)
        for saving in ("none", "racing")
    ]
    assert counts[1] > 2 * counts[0]
    assert Strategy("random", saving="racing").label == "random (racing)"


def test_single_timings_are_read_from_a_recording(tmp_path: Path) -> None:
    folder = write_recording(tmp_path / "with")
    file = folder / "toy__Sim.npz"
    with np.load(file) as arrays:
        content = {name: arrays[name] for name in arrays}
    content["iterations_ms"] = np.repeat(content["time_ms"][:, None], 4, axis=1)
    np.savez(file, **content)
    (one,) = load_recorded(folder)
    config = one.space.config_at(by_time(one)[0])
    samples_ms, benchmark_s = one.samples_of(config)
    assert samples_ms == [one.observe(config).value] * 4
    assert benchmark_s == pytest.approx(0.1)
