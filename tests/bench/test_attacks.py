"""The corpus of attacks and honest kernels: what it draws, that tricks are real, what the evaluator makes of them."""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import tempfile
from pathlib import Path

import numpy as np
import pytest

from kernelwright.backend.base import BoundBuffer, BoundLaunch, BufferArgument, DeviceInfo
from kernelwright.backend.registry import get_backend
from kernelwright.cli.main import main
from kernelwright.errors import UsageError
from kernelwright.evaluate.builds.render import render
from kernelwright.evaluate.device.probe import probe_devices, select_device
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.outcome import Failed
from kernelwright.template.load import template_of_text
from kernelwright.template.model import Candidate
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.attacks.corpus import CorpusPlan, CorpusResult, Judged, all_families, choose_families, draw
from kernelwright_bench.attacks.kernels.bases import BASES, write_problem
from kernelwright_bench.attacks.kernels.model import Dialect, Sample
from kernelwright_bench.attacks.table import document, markdown
from kernelwright_bench.attacks.trial import Trial, Verdict

DIALECTS: tuple[Dialect, ...] = ("opencl", "cuda")
CPU = DeviceInfo("opencl", "opencl:0", "a processor", "cpu", {})
NO_TEMPLATE = ("odd-letters",)
"""Families whose text need not load: what it holds is refused where templates are read."""


def attacks_of(dialect: Dialect) -> list[str]:
    return [family.name for family in all_families(dialect) if family.kind != "honest"]


# -- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_there_are_enough_families_of_every_kind(dialect: Dialect) -> None:
    families = all_families(dialect)
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert len(attacks_of(dialect)) >= 24
    assert {family.kind for family in families} == {
        "state", "outputs", "numbers", "timing", "process", "text", "honest",
    }  # fmt: skip
    plan = CorpusPlan()
    assert plan.attack_count >= 120
    assert plan.honest_count >= 60


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_seed_draws_the_same_kernels_and_another_one_others(dialect: Dialect) -> None:
    families = all_families(dialect)
    count = 2 * len(families)
    first, again, other = (draw(families, count, seed, dialect) for seed in (1, 1, 2))
    assert first == again
    same = [one for (_, one), (_, two) in zip(first, other, strict=True) if one.source == two.source]
    assert same == []
    assert len({sample.source for _, sample in first}) == count


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_kernel_loads_as_a_template_of_its_problem(dialect: Dialect, tmp_path: Path) -> None:
    problems = {
        name: TuningProblem.load(write_problem(base, dialect, tmp_path / name)).problem for name, base in BASES.items()
    }
    families = all_families(dialect)
    for family, sample in draw(families, 3 * len(families), secrets.randbelow(1 << 32), dialect):
        assert sample.family == family.name
        for source in (sample.source, sample.twin):
            if source and family.name not in NO_TEMPLATE:
                problem = problems[sample.base]
                assert template_of_text(problem, source, spec=problem.kernel).steps, family.name


def test_names_of_a_kernel_are_those_of_no_other_one() -> None:
    families = choose_families("opencl", ["memo-private-array"])
    sources = [sample.source for _, sample in draw(families, 4, 5, "opencl")]
    assert not any("kw_" in source for source in sources)


def test_a_family_that_there_is_not_is_told() -> None:
    with pytest.raises(UsageError, match="memmo"):
        choose_families("opencl", ["memmo"])


# -- what is told -----------------------------------------------------------------------------------------------------


def judged(fate: str, kind: str = "state") -> Judged:
    stage = "check" if fate == "stopped" else ""
    verdict = Verdict(fate, stage, "mismatch", "7 of 8 are wrong", None, 1.0, 2.0, "")  # type: ignore[arg-type]
    return Judged(Sample("some-family", "sums", "keeps what it found", "source"), kind, verdict)


@pytest.mark.parametrize(
    ("fate", "kind", "is_right"),
    [
        ("claimed", "state", False),
        ("broke", "state", False),
        ("stopped", "state", True),
        ("harmless", "state", True),
        ("claimed", "honest", True),
        ("harmless", "honest", True),
        ("stopped", "honest", False),
        ("broke", "honest", False),
    ],
)
def test_a_claimed_attack_and_a_refused_honest_kernel_are_wrong(fate: str, kind: str, is_right: bool) -> None:
    result = CorpusResult(7, "opencl", CPU, (judged(fate, kind), judged("stopped"), judged("harmless", "honest")))
    assert (result.wrong == ()) == is_right
    assert ("keeps what it found" in markdown(result)) != is_right
    told = document(result)
    assert [each["is_right"] for each in told["kernels"]] == [is_right, True, True]
    assert json.loads(json.dumps(told))["seed"] == 7


def test_a_folder_that_there_is_not_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "attacks", "--out", str(tmp_path / "none" / "out.json")])
    assert caught.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def device() -> DeviceInfo:
    report = probe_devices(backends=["opencl"])
    if not report.devices:
        pytest.skip(f"needs an OpenCL device: {report.unavailable['opencl']}")
    return select_device(report, "opencl:cpu")


SURELY_TOLD = 1.5
"""A gain that first launches tell on busy hosts, too."""

SAFE = ("private array", "the stack", "the program's own writable segment")
"""Places that only the kernel's own launches use, so that this process can launch it."""


def launched_ms(source: str, base: str, device: DeviceInfo, folder: Path) -> float:
    """The shortest of some launches on the same inputs, in this process, with nothing set back between them."""
    problem = TuningProblem.load(write_problem(BASES[base], "opencl", folder)).problem
    template = template_of_text(problem, source, spec=problem.kernel)
    rendered = render(Candidate(template, template.default), problem, device)
    assert not isinstance(rendered, Failed)
    one = rendered[0]
    (folder / "artifact").mkdir()
    backend = get_backend("opencl")
    session = backend.open(device)
    try:
        module = session.load(backend.compile(one.unit, device, folder / "artifact"))
        rng, data, bound = np.random.default_rng(3), {}, {}
        for argument in (each for step in one.plan for each in step.arguments):
            if isinstance(argument, BufferArgument):
                bound[argument.name] = BoundBuffer(session.allocate(argument.byte_count), 0, argument.byte_count)
                dtype = next((DTYPES[each.dtype] for each in problem.arguments if each.name == argument.name), None)
                if dtype is not None:
                    drawn = rng.uniform(0, 3, argument.byte_count // dtype.item_bytes).astype(dtype.numpy_dtype)
                    data[argument.name] = drawn.view(np.uint8)
        launches = [BoundLaunch(module, step, bound) for step in one.plan]
        times_ms = []
        for _ in range(12):
            for name, drawn in data.items():
                session.upload(bound[name].buffer, drawn)
            times_ms.append(session.time(launches))
    finally:
        session.close()
    return min(times_ms)


@pytest.mark.opencl
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "family",
    ["memo-own-page", "disguised-memo", "memo-by-element", "memo-private-array", "memo-below-stack", "function-table"],
)
def test_a_trick_gains_where_inputs_come_again(family: str, device: DeviceInfo, tmp_path: Path) -> None:
    found = choose_families("opencl", [family])[0]
    rng = random.Random(family)
    drawn = (found.draw(rng, "opencl") for _ in range(50))
    sample = next(each for each in drawn if any(place in each.what for place in (*SAFE, "was never initialised")))
    fast_ms = slow_ms = math.inf
    for name in "abc":  # other work only makes launches longer
        fast_ms = min(fast_ms, launched_ms(sample.source, sample.base, device, tmp_path / f"trick-{name}"))
        slow_ms = min(slow_ms, launched_ms(sample.twin, sample.base, device, tmp_path / f"twin-{name}"))
        if fast_ms < 0.8 * slow_ms:
            return
    raise AssertionError((fast_ms, slow_ms))


@pytest.mark.opencl
def test_attacks_are_stopped_and_honest_kernels_accepted(device: DeviceInfo, tmp_path: Path) -> None:
    families = all_families("opencl")
    by_name = {
        family.name: sample
        for family, sample in draw(families, 24 * len(families), 3, "opencl")
        if sample.base == "sums"
    }
    names = (
        "no-op", "memo-guard", "fewer-terms", "scratch-as-found", "honest-tree", "honest-exchange",
    )  # fmt: skip
    with Trial(BASES["sums"], "opencl", device, tmp_path / "sums") as trial:
        verdicts = {name: trial.judge(by_name[name]) for name in names}
    fates = {name: verdict.fate for name, verdict in verdicts.items()}
    assert {name for name, fate in fates.items() if fate == "stopped"} == set(names[:4])
    assert all(fates[name] in ("harmless", "claimed") for name in names[4:])
    assert verdicts["memo-guard"].reason == "out-of-bounds"
    assert all(verdict.search_s > 0 for verdict in verdicts.values())


@pytest.mark.opencl
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "trick"),
    [("function-curve", "the driver's"), ("timer-forge", "00 us later"), ("owed-until-seen", "when somebody reads")],
)
def test_what_only_another_process_can_tell_is_not_claimed(
    family: str, trick: str, device: DeviceInfo, tmp_path: Path
) -> None:
    found = choose_families("opencl", [family])[0]
    rng = random.Random(family)
    drawn = (found.draw(rng, "opencl") for _ in range(100))
    samples = [each for each in drawn if trick in each.what and each.base == "series"][:4]
    with Trial(BASES["series"], "opencl", device, tmp_path / "series") as trial:
        verdicts = [trial.judge(each) for each in samples]
    # Where the driver has things lies elsewhere in each process, so not each finds them; one that does is stopped, or
    # its time is what the host's clock says.
    assert all(each.fate in ("stopped", "harmless") for each in verdicts), verdicts
    assert all(each.speedup is None or each.speedup.low < SURELY_TOLD for each in verdicts), verdicts


@pytest.mark.opencl
@pytest.mark.thorough
@pytest.mark.parametrize("place", [tempfile.gettempdir(), "build-0", "its own program"])
def test_a_table_that_is_left_in_a_file_is_not_claimed(place: str, device: DeviceInfo, tmp_path: Path) -> None:
    found = choose_families("opencl", ["function-file"])[0]
    rng = random.Random(place)
    sample = next(each for each in (found.draw(rng, "opencl") for _ in range(100)) if place in each.what)
    with Trial(BASES["series"], "opencl", device, tmp_path / "series") as trial:
        verdict = trial.judge(sample)
        if any("may write any file" in each for each in trial.notes):
            pytest.skip("this system has no fence for writes, which a run's notes say")
    assert verdict.fate in ("harmless", "stopped"), verdict


@pytest.mark.opencl
@pytest.mark.thorough
@pytest.mark.timeout(5400)
def test_no_attack_is_claimed_and_no_honest_kernel_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same kernels each time, so that a failure is the change's; `bench attacks` draws others in each call."""
    out = tmp_path / "attacks.json"
    seed = int(os.environ.get("KERNELWRIGHT_ATTACK_SEED", "2587053745"))
    with pytest.raises(SystemExit) as caught:
        main(["bench", "attacks", "--device", "opencl", "--seed", str(seed), "--out", str(out)])
    told = capsys.readouterr().out
    assert caught.value.code == 0, told
    record = json.loads(out.read_text())
    assert (record["claimed"], record["broke"], record["refused"]) == (0, 0, 0)
    assert len(record["kernels"]) == CorpusPlan().attack_count + CorpusPlan().honest_count
