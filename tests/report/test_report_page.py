"""The report of every kind of run, through the file that is written."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kernelwright.errors import StoreError
from kernelwright.identity import content_id
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.report.page import duration, write_report
from kernelwright.store.event import Evaluated, Event, FinalistsCompared, Noted, RunFinished, RunStarted
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events, write_sample_run

SECTIONS = (
    "workloads", "configuration", "convergence", "distribution", "importance", "parameters", "failures", "roofline",
    "cost", "source", "environment", "all",
)  # fmt: skip
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"
    '\x1b[31mred\x1b[0m\x00\u202e\ud800 &amp; "q" \' http://evil.example/x'
)


class Page(HTMLParser):
    """What a browser would make of the file, as far as these tests care."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words.append(data)
        elif self._inside[-1] == "script":
            self.scripts.append(data)

    @property
    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.tags}

    @property
    def shown(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words).replace("\xa0", " "))

    def section(self, name: str) -> str:
        part = self.text.split(f'<section id="{name}">')[1].split("</section>")[0]
        return Page(part).shown

    @property
    def payload(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def page_of(events: Sequence[Event], tmp_path: Path) -> Page:
    out = write_report(RunView.of(events), tmp_path / "report.html")
    return Page(out.read_text(encoding="utf-8"))


def changed(events: Sequence[Event], kind: type, change: Callable[[Any], Event | None]) -> list[Event]:
    """The events with `change` applied to those of one type; None drops it."""
    result = [change(event) if isinstance(event, kind) else event for event in events]
    return [event for event in result if event is not None]


def without_comparison(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, FinalistsCompared)]


def scaled(factor: float, events: Sequence[Event]) -> list[Event]:
    """Finalists that take `factor` times as long as the baseline, with the same noise in another order."""

    def change(event: FinalistsCompared) -> FinalistsCompared:
        samples = {
            name: (rows[0], *(tuple(factor * sample for sample in reversed(rows[0])) for _ in rows[1:]))
            for name, rows in event.samples_ms.items()
        }
        return dataclasses.replace(event, samples_ms=samples)

    return changed(events, FinalistsCompared, change)


EVENTS = tuple(sample_events(evaluations=42))


# The verdict


def test_a_gain_is_claimed_with_its_interval(tmp_path: Path) -> None:
    page = page_of(EVENTS, tmp_path)
    assert re.search(r"\d\.\d\d× as fast as the baseline", page.shown)
    assert re.search(r"interval \d\.\d+–\d\.\d+ .*from 20 interleaved rounds", page.shown)


def test_no_gain_is_claimed_when_the_interval_contains_one(tmp_path: Path) -> None:
    page = page_of(scaled(1.0, EVENTS), tmp_path)
    assert "No significant gain" in page.shown
    assert "The interval contains 1" in page.shown
    assert "as fast as the baseline" not in page.shown


def test_a_slower_winner_is_called_slower(tmp_path: Path) -> None:
    assert "0.333× as fast as the baseline: keep the baseline" in page_of(scaled(3.0, EVENTS), tmp_path).shown


def test_an_interrupted_run_gives_an_estimate_and_no_claim(tmp_path: Path) -> None:
    events = [event for event in without_comparison(EVENTS) if not isinstance(event, RunFinished)]
    page = page_of(events, tmp_path)
    assert re.search(r"About \d\.\d+× the baseline's speed so far", page.shown)
    assert "not yet a claim" in page.shown
    assert "not finished" in page.shown
    assert "as fast as the baseline" not in page.shown


def test_a_replay_says_that_it_is_one(tmp_path: Path) -> None:
    events = changed(
        without_comparison(EVENTS),
        RunStarted,
        lambda event: dataclasses.replace(event, settings={**event.settings, "replay": "r0"}),
    )
    events = changed(events, Evaluated, lambda event: dataclasses.replace(event, source="replayed"))
    page = page_of(events, tmp_path)
    assert "A replay cannot measure again" in page.shown
    assert "answered from a record" in page.section("cost")


def failed_everything(log: str = "error: no") -> list[Event]:
    failure = Failed("build", "compile-error", "the compiler reported 1 error", log=log)
    return changed(
        without_comparison(EVENTS), Evaluated, lambda event: dataclasses.replace(event, outcome=failure, value=None)
    )


def test_a_run_of_failures_says_so_and_shows_why(tmp_path: Path) -> None:
    page = page_of(failed_everything(), tmp_path)
    assert "Nothing passed" in page.shown
    assert "All 42 configurations tried failed: 42 at build" in page.shown
    assert "error: no" in page.section("failures")
    assert "No configuration can be recommended" in page.section("configuration")
    assert "No configuration was timed" in page.section("distribution")


def test_rejected_finalists_are_named_with_the_reason(tmp_path: Path) -> None:
    everyone = changed(
        EVENTS,
        FinalistsCompared,
        lambda event: dataclasses.replace(event, rejected=dict.fromkeys(event.candidate_ids[1:], "y is wrong")),
    )
    page = page_of(everyone, tmp_path)
    assert "Every finalist was rejected in the final comparison" in page.shown
    assert "y is wrong" in page.section("workloads")


def test_finalists_that_there_was_no_time_to_confirm_are_no_failures(tmp_path: Path) -> None:
    why = "not confirmed on workload 'a': the budget left no more time"
    everyone = changed(
        EVENTS,
        FinalistsCompared,
        lambda event: dataclasses.replace(event, rejected=dict.fromkeys(event.candidate_ids[1:], why)),
    )
    page = page_of(everyone, tmp_path)
    assert "No claim: not enough budget to compare" in page.shown
    assert re.search(r"The search's best is about \S+, unconfirmed", page.shown)
    assert "rejected" not in page.shown.partition("Give more time")[0]
    assert why in page.section("workloads")


# Every kind of run


@pytest.mark.parametrize(
    "events",
    [
        EVENTS[:1],
        [event for event in EVENTS if not isinstance(event, Evaluated | FinalistsCompared | RunFinished)],
        sample_events(evaluations=1),
        sample_events(evaluations=1, workloads=1, failures=False),
        sample_events(evaluations=2, failures=False),
        sample_events(evaluations=13),
        without_comparison(EVENTS),
        failed_everything(),
    ],
    ids=["started", "baseline", "one", "one-workload", "two", "few", "uncompared", "failed"],
)
def test_every_run_gives_a_whole_page(events: Sequence[Event], tmp_path: Path) -> None:
    page = page_of(events, tmp_path)
    assert page.ids >= set(SECTIONS)
    for name in SECTIONS:
        assert len(page.section(name)) > 15, name
    assert not re.search(r"\b(nan|inf|None|undefined)(?!-)\b", page.shown)


def test_one_parameter_has_no_interaction(tmp_path: Path) -> None:
    events = changed(EVENTS, Evaluated, lambda e: dataclasses.replace(e, config={"BLOCK": e.config["BLOCK"]}))
    events = changed(
        events,
        RunStarted,
        lambda e: dataclasses.replace(e, space={**e.space, "parameters": {"BLOCK": [32, 64, 128, 256, 512, 1024]}}),
    )
    page = page_of(events, tmp_path)
    assert "BLOCK makes up 100 %" in page.section("importance") or "not reliable" in page.section("importance")
    assert "against" not in page.section("importance")


def test_a_space_that_was_not_recorded_is_no_obstacle(tmp_path: Path) -> None:
    page = page_of(changed(EVENTS, RunStarted, lambda e: dataclasses.replace(e, space={}, device={})), tmp_path)
    assert page.ids >= set(SECTIONS)
    assert "an unnamed device" in page.shown


def test_the_roofline_is_unknown_when_nothing_was_recorded(tmp_path: Path) -> None:
    assert "Unknown" in page_of(EVENTS, tmp_path).section("roofline")


def test_the_distance_to_the_limit_uses_the_measured_ceiling(tmp_path: Path) -> None:
    def with_work(event: RunStarted) -> RunStarted:
        workloads = {name: {**sizes, "bytes": 8 * sizes["n"]} for name, sizes in event.workloads.items()}
        return dataclasses.replace(event, workloads=workloads, device={**event.device, "copy_bytes_per_s": 1e10})

    events = changed(EVENTS, RunStarted, with_work)
    page = page_of(events, tmp_path)
    view = RunView.of(events)
    assert view.fastest is not None
    name, sizes = next(iter(view.started.workloads.items()))
    percent = 100 * (8 * sizes["n"] / 1e10 * 1e3) / view.fastest.medians_ms[name]
    assert f"{percent:.0f} %" in page.section("workloads")
    assert "10.0 GB/s" in page.section("roofline")
    assert "declares no operations" in page.section("roofline")


def test_operations_put_the_kernels_under_the_roof(tmp_path: Path) -> None:
    def with_work(event: RunStarted) -> RunStarted:
        extra = {"bytes": 1e6, "operations": 1e8}
        return dataclasses.replace(
            event,
            workloads={name: {**sizes, **extra} for name, sizes in event.workloads.items()},
            device={**event.device, "copy_bytes_per_s": 1e10, "operations_per_s": 5e11},
        )

    page = page_of(changed(EVENTS, RunStarted, with_work), tmp_path)
    part = page.text.split('<section id="roofline">')[1].split("</section>")[0]
    assert part.count('class="roof-winner"') == 2 * len(RunView.of(EVENTS).started.workloads)  # both widths
    assert "G operations/s" in part


def test_the_table_holds_every_evaluation(tmp_path: Path) -> None:
    payload = page_of(EVENTS, tmp_path).payload
    view = RunView.of(EVENTS)
    assert len(payload["rows"]) == 42
    for row, evaluated in zip(payload["rows"], view.evaluations, strict=True):
        assert row["index"] == evaluated.index
        assert (row["speedup"] is not None) == isinstance(evaluated.outcome, Passed)
        assert dict(zip(payload["parameters"], row["raw"], strict=True)) == dict(evaluated.config)
    assert any(row["won"] for row in payload["rows"])


# Hostile text, files


def hostile_events() -> list[Event]:
    """The same text wherever a file, a kernel or a compiler can put one."""
    failure = Failed("build", HOSTILE, HOSTILE, log=HOSTILE, workload=HOSTILE)

    def evaluated(event: Evaluated) -> Evaluated:
        config = {HOSTILE: HOSTILE if event.index % 2 else "b", **event.config}
        if event.index % 7 == 3:
            return dataclasses.replace(event, config=config, outcome=failure, value=None)
        return dataclasses.replace(event, config=config)

    def started(event: RunStarted) -> RunStarted:
        return dataclasses.replace(
            event,
            run_id=HOSTILE,
            problem_name=HOSTILE,
            device={"name": HOSTILE, "limits": {HOSTILE: [HOSTILE]}},
            environment={HOSTILE: HOSTILE},
            settings={HOSTILE: HOSTILE, "searcher": HOSTILE},
            space={"parameters": {HOSTILE: [HOSTILE, "b"]}, "constraints": [{"name": HOSTILE, "text": HOSTILE}]},
        )

    def compared(event: FinalistsCompared) -> FinalistsCompared:
        configs = tuple({HOSTILE: HOSTILE, **config} if config else {} for config in event.configs)
        return dataclasses.replace(event, configs=configs, rejected={**event.rejected, HOSTILE: HOSTILE})

    events = changed(changed(EVENTS, Evaluated, evaluated), RunStarted, started)
    return [*changed(events, FinalistsCompared, compared), Noted("warning", HOSTILE)]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = page_of(hostile_events(), tmp_path)
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "alert(1)" in page.shown
    assert "{{ 7 * 7 }}" in page.shown
    for invisible in ("\x00", "\x1b", "\u202e"):
        assert invisible not in page.text
    assert "\\u202e" in page.shown
    assert page.payload["rows"][3]["failure"].startswith("build: </script>")


def test_the_file_needs_no_network(tmp_path: Path) -> None:
    page = page_of(EVENTS, tmp_path)
    assert "http" not in re.sub(r"http-equiv", "", page.text)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base"), tag
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


def test_every_chart_has_a_name_and_a_size_that_fits(tmp_path: Path) -> None:
    charts = [attributes for tag, attributes in page_of(EVENTS, tmp_path).tags if tag == "svg"]
    assert len(charts) > 6
    for chart in charts:
        assert chart["role"] == "img"
        assert chart["aria-label"]
        assert (chart.get("viewbox") or "").startswith("0 0 ")


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    assert page_of(EVENTS, tmp_path).text == page_of(EVENTS, tmp_path / "again").text


def test_a_baseline_that_took_another_time_in_the_comparison_is_told(tmp_path: Path) -> None:
    def slower(event: FinalistsCompared) -> FinalistsCompared:
        samples = {
            name: tuple(tuple(3.0 * sample for sample in row) for row in rows)
            for name, rows in event.samples_ms.items()
        }
        return dataclasses.replace(event, samples_ms=samples)

    def same(event: FinalistsCompared) -> FinalistsCompared:
        before_ms = RunView.of(EVENTS).baseline_ms
        samples = {
            name: tuple((before_ms[name],) * len(row) if row else row for row in rows)
            for name, rows in event.samples_ms.items()
        }
        return dataclasses.replace(event, samples_ms=samples)

    told = "the machine was not in the same state"
    assert told in page_of(changed(EVENTS, FinalistsCompared, slower), tmp_path).section("workloads")
    assert told not in page_of(changed(EVENTS, FinalistsCompared, same), tmp_path / "same").section("workloads")


def test_figures_of_the_search_are_told_from_the_claim(tmp_path: Path) -> None:
    words = page_of(EVENTS, tmp_path).section("convergence")
    assert re.search(r"came to \d\.\d\d× in the final comparison, which alone supports a claim", words)
    uncompared = page_of(without_comparison(EVENTS), tmp_path / "uncompared").section("convergence")
    assert "final comparison" not in uncompared


@pytest.mark.parametrize(
    ("kind", "load", "is_told"),
    [("cpu", "12.5", True), ("cpu", "0.4", False), ("gpu", "12.5", False), ("cpu", "", False)],
)
def test_a_cpu_that_others_used_is_told(tmp_path: Path, kind: str, load: str, is_told: bool) -> None:
    def on(event: RunStarted) -> RunStarted:
        environment = {**event.environment, "cores": "4", "load_at_start": load}
        return dataclasses.replace(event, device={**event.device, "kind": kind}, environment=environment)

    page = page_of(changed(EVENTS, RunStarted, on), tmp_path)
    assert ("the load average was 12.5 on 4 cores" in page.shown) == is_told


def test_figures_of_the_device_have_their_units(tmp_path: Path) -> None:
    def known(event: RunStarted) -> RunStarted:
        more = {"ceilings": {"copy_bytes_per_s": 2.84e10}, "copy_bytes_per_s": 2.84e10}
        limits = {"global_memory": 23128584192, "max_block_x": 4096}
        return dataclasses.replace(event, device={**event.device, **more, "limits": limits})

    words = page_of(changed(EVENTS, RunStarted, known), tmp_path).section("environment")
    assert words.count("28.4 GB/s") == 1
    assert "21.5 GiB" in words
    assert "4096" in words


def test_a_folder_whose_problem_was_changed_gets_no_report(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "run", evaluations=20)
    (run / "problem" / "problem.toml").write_text("not = [toml")
    with pytest.raises(StoreError, match=r"problem\.toml is not what this run recorded: it was changed"):
        write_report(run, tmp_path / "deep" / "report.html")
    assert not (tmp_path / "deep").exists()


def test_a_folder_whose_problem_does_not_load_still_gets_a_report(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "run", evaluations=20)  # the sample's problem has no arguments
    page = Page(write_report(run, tmp_path / "deep" / "report.html").read_text(encoding="utf-8"))
    assert "could not be read" in page.section("source")


def test_a_real_folder_shows_its_source_with_the_configuration(saxpy: Path, tmp_path: Path) -> None:
    from kernelwright.store.run_folder import RunFolder
    from kernelwright.template.load import problem_files
    from kernelwright.tuning.tune import TuningProblem

    subject = TuningProblem.load(saxpy)
    events = changed(EVENTS, Evaluated, lambda e: dataclasses.replace(e, config={"BLOCK": 64, "ITEMS": 2}))
    configs = lambda e: dataclasses.replace(e, configs=({}, *({"BLOCK": 64, "ITEMS": 2} for _ in e.configs[1:])))  # noqa: E731
    files = problem_files(subject.problem, subject.template, subject.baseline)
    events = changed(events, RunStarted, lambda e: dataclasses.replace(e, problem_id=content_id(dict(files))))
    with RunFolder.create(tmp_path / "run", files=files) as run:
        blob = run.blobs.put("__kernel void old() {}\n")
        events = [
            dataclasses.replace(event, source_blob=blob) if event.kind == "baseline_measured" else event
            for event in changed(events, FinalistsCompared, configs)
        ]
        run.append(events)
    page = Page(write_report(tmp_path / "run", tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "#define BLOCK 64 #define ITEMS 2" in page.section("source")
    assert "-__kernel void old() {}" in page.section("source")
    assert "2 of 2 parameters differ from their default" in page.section("configuration")
    assert "threads of a block" in page.section("configuration")


def test_an_unwritable_place_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write") as caught:
        write_report(RunView.of(EVENTS), tmp_path / "file" / "report.html")
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("number", "cause", "hint"),
    [
        (errno.ENOSPC, "the disk is full", "free some space"),
        (errno.EDQUOT, "your disk quota is used up", "free some space"),
        (errno.EROFS, "the file system is read-only", "a disk that can be written"),
        (errno.EACCES, "not permitted", "permissions"),
    ],
)
def test_a_report_that_cannot_be_written_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, cause: str, hint: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    (tmp_path / "report.html").write_text("the old one")
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StoreError) as caught:
        write_report(RunView.of(EVENTS), tmp_path / "report.html")
    monkeypatch.undo()
    assert caught.value.message == f"cannot write the report to {tmp_path / 'report.html'}: {cause}"
    assert hint in (caught.value.hint or "")
    assert (tmp_path / "report.html").read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_is_no_run_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        write_report(tmp_path / "nothing", tmp_path / "report.html")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (47.2, "47.2 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (59.99, "60.0 s")]
)
def test_durations_read_like_a_person_says_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
