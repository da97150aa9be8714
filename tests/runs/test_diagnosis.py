"""What limits a kernel, from figures that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.outcome import Measurement, Passed
from kernelwright.roofline.diagnosis import Facts, achieved, diagnose
from kernelwright.roofline.profile import diagnosis_words, profile_lines, profile_of, share_of_rates
from kernelwright.store.event import RunStarted

FACTS = Facts(
    time_ms=1.0,
    byte_count=1e9,
    operation_count=1e9,
    floor_ms=0.5,
    copy_bytes_per_s=2e12,
    cache_bytes_per_s=8e12,
    operations_per_s=1e13,
    multiprocessors=100,
)


def limiters(facts):
    return [each.limiter for each in diagnose(facts)]


def test_what_is_much_faster_than_a_copy_is_not_bound_by_memory():
    """A CPU's data stay in its cache, whose rate is not measured: 19 GB/s beside a copy at 8 say nothing of memory."""
    facts = Facts(0.43, byte_count=8.4e6, copy_bytes_per_s=8.27e9, operation_count=1.6e7, operations_per_s=1e12)
    (found,) = diagnose(facts)
    assert found.limiter == "unmeasured"
    assert "the peak of the cache that it reads from was not measured" in found.text
    assert [each.limiter for each in diagnose(replace(facts, time_ms=0.9))] == ["memory"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"byte_count": 1.6e9}, ["memory"]),
        ({"byte_count": 6e9, "is_cached": True}, ["cache"]),
        ({"operation_count": 8e9}, ["compute"]),
        ({"byte_count": 1.6e9, "operation_count": 8e9}, ["memory", "compute"]),
        ({}, ["latency"]),
        ({"block_count": 60}, ["small-grid", "latency"]),
        ({"resources": {"occupancy": 0.12}}, ["occupancy", "latency"]),
        ({"resources": {"spill_bytes": 400.0, "occupancy": 0.9}}, ["spills", "latency"]),
        ({"counters": {"dram_busy": 90.0}}, ["memory"]),
        ({"counters": {"l2_busy": 90.0, "load_use": 12.5}}, ["cache", "uncoalesced"]),
        ({"counters": {"l1_busy": 99.0, "bank_conflicts": 97.0, "shared_passes": 100.0}}, ["cache", "bank-conflicts"]),
        ({"counters": {"sm_busy": 88.0}}, ["compute"]),
        ({"counters": {"store_use": 25.0, "stall_barrier": 40.0}}, ["uncoalesced", "barriers", "latency"]),
        ({"counters": {"dram_read": 2e9, "dram_written": 1e9}}, ["extra-traffic", "latency"]),
        ({"counters": {"uniform_branches": 30.0}}, ["divergence", "latency"]),
        ({"counters": {"bank_conflicts": 5.0, "shared_passes": 100.0, "load_use": 100.0}}, ["latency"]),
    ],
)
def test_limiter_is_named_with_the_most_telling_first(change, expected):
    assert limiters(replace(FACTS, **change)) == expected


def test_occupancy_names_the_resource_that_keeps_blocks_out():
    counters = {
        "occupancy": 12.0,
        "limit_registers": 1.0,
        "limit_shared": 4.0,
        "limit_warps": 8.0,
        "limit_blocks": 32.0,
    }
    found = diagnose(replace(FACTS, counters=counters))[0]
    assert "limited by registers" in found.text
    assert found.evidence == {"occupancy": 0.12}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"operations_per_s": None}, "the peak of arithmetic was not measured"),
        ({"operation_count": None}, "how much it computes is not known"),
        ({"copy_bytes_per_s": None}, "the peak of memory was not measured"),
        ({"byte_count": None}, "how much it must move is not known"),
    ],
)
def test_what_was_not_measured_is_not_claimed_to_be_far_from_its_peak(change, said):
    (found,) = diagnose(replace(FACTS, **change))
    assert found.limiter == "unmeasured"
    assert said in found.text
    assert "nothing that was measured is near its peak" in found.text
    assert "waits" not in found.text
    assert diagnosis_words(found).startswith("what limits it is not known: ")
    assert "% of its peak" in diagnosis_words(found)
    assert diagnosis_words(found).endswith(said)


def test_a_counter_stands_for_a_peak_that_was_not_measured():
    facts = replace(FACTS, operations_per_s=None, counters={"sm_busy": 20.0})
    assert limiters(facts) == ["latency"]


def test_nothing_known_is_nothing_said():
    assert diagnose(Facts(1.0)) == ()
    assert achieved(Facts(1.0)) == {}


@given(
    st.floats(1e-6, 1e6),
    st.none() | st.floats(1, 1e15),
    st.none() | st.floats(1, 1e15),
    st.none() | st.floats(1, 1e14),
    st.dictionaries(st.sampled_from(["dram_busy", "occupancy", "load_use", "sm_busy"]), st.floats(0, 100)),
)
def test_any_facts_give_a_diagnosis_with_evidence(time_ms, byte_count, operation_count, rate, counters):
    facts = Facts(time_ms, byte_count, operation_count, copy_bytes_per_s=rate, operations_per_s=rate, counters=counters)
    for each in diagnose(facts):
        assert each.evidence
        assert each.text


def test_profile_reads_a_run_of_any_age():
    """Older runs have no floors, ceilings or conditions."""
    started = RunStarted("id", "now", "1", "p", "pid", {}, {"name": "d"}, {}, {}, {"w": {"n": 1, "weight": 1.0}})
    passed = Passed((Measurement("w", (2.0,), "t"),), (), {"k": {"occupancy": 0.1}, "j": {"occupancy": 0.9}})
    (profile,) = profile_of(started, passed)
    assert profile.rates == {}
    assert [each.limiter for each in profile.diagnoses] == ["occupancy"]
    assert len(profile_lines(profile)) == 1


@pytest.mark.parametrize(
    ("settings", "held_bytes", "says"),
    [({}, 1e8, "the peak of the cache"), ({"cache": "cold"}, 1e8, "memory 50%"), ({}, 1e6, "memory 50%")],
    ids=["hot and held", "cold", "too large"],
)
def test_on_a_cpu_what_the_cache_holds_is_not_held_against_the_memory(settings, held_bytes, says):
    device = {
        "name": "d", "kind": "cpu", "copy_bytes_per_s": 8e9, "limits": {"last_level_cache": held_bytes},
        "ceilings": {"vector_fp32_operations_per_s": 1e11},
    }  # fmt: skip
    workload = {"n": 1, "weight": 1.0, "bytes": 4e6, "operations": 1e7}
    started = RunStarted("id", "now", "1", "p", "pid", {"tune": settings}, device, {}, {}, {"w": workload})
    (profile,) = profile_of(started, Passed((Measurement("w", (1.0,), "t"),)))
    lines = profile_lines(profile)
    assert lines[0] == "w: 4 GB/s of needed traffic, 10 G operations/s"
    assert says in lines[1]
    assert "10%" in lines[1]


def test_the_share_of_measured_rates_is_the_better_of_memory_and_arithmetic_in_the_geometric_mean():
    device = {"name": "d", "kind": "cpu", "copy_bytes_per_s": 1e10, "operations_per_s": 1e11, "limits": {}}
    workloads = {name: {"n": 1, "bytes": 1e6, "operations": 1e6} for name in ("a", "b")}
    started = RunStarted("id", "now", "1", "p", "pid", {}, device, {}, {}, workloads)
    passed = Passed((Measurement("a", (1.0,), "t"), Measurement("b", (4.0,), "t")))
    assert share_of_rates(started, passed, {"a": 1.0, "b": 1.0}) == pytest.approx(0.05)
    assert share_of_rates(started, passed, {"a": 3.0, "b": 1.0}) == pytest.approx(0.1 * 4**-0.25)
    assert share_of_rates(started, replace(passed, measurements=passed.measurements[:1]), {"a": 1.0, "b": 1.0}) is None
    unknown = replace(started, device={**device, "operations_per_s": None})
    assert share_of_rates(unknown, passed, {"a": 1.0, "b": 1.0}) is None
