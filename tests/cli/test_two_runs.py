"""`kernelwright compare RUN RUN`: what two runs claim and in what they differ; what cannot be compared is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.store.event import Event, FinalistsCompared, RunStarted
from kernelwright.store.run_folder import RunFolder
from kernelwright.testing.sample_runs import FILES, sample_events, write_sample_run
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

Call = Callable[..., tuple[int, str, str]]


def cost(config: Config, workload: Workload) -> float:
    return 1.0 if config.get("BLOCK", 32) == 64 else 3.0


def flat(config: Config, workload: Workload) -> float:
    return 3.0


def tuned(problem: Path, run: Path, times: Callable[[Config, Workload], float] = cost, evaluations: int = 16) -> Path:
    settings = TuneSettings(budget=Budget(evaluations=evaluations), searcher="exhaustive")
    tune(problem, settings=settings, run=run, machine=SimulatedMachine(times, noise=0.001))
    return run


def test_claims_stand_side_by_side_with_what_differs(call: Call, saxpy: Path, in_tmp: Path) -> None:
    first, second = tuned(saxpy, in_tmp / "one"), tuned(saxpy, in_tmp / "two", flat, evaluations=12)
    status, out, err = call("compare", first, second)
    assert (status, err) == (0, "")
    assert "two runs of saxpy, the same problem" in out
    assert "as fast as the baseline, with 95% confidence" in out
    assert "No " in out.partition("B: ")[2], "the second claims nothing"
    assert "not measured side by side, so nothing is claimed of one over the other" in out
    assert "budget.evaluations 16 -> 12" in out
    assert "data_seed" not in out, "every run draws its own"
    assert "source: Both bests have the same source." in out
    document = json.loads(call("compare", first, second, "--json")[1])
    assert document["is_same_problem"] is True
    assert [each["run"] for each in document["runs"]] == [str(first), str(second)]
    assert document["runs"][0]["speedup"]["low"] > 1
    assert document["workloads"][0]["baseline_ms"] == pytest.approx([3.0, 3.0], rel=0.1)
    assert document["settings"]["budget.evaluations"] == [16, 12]


def test_a_changed_problem_is_compared_and_named(call: Call, saxpy: Path, in_tmp: Path) -> None:
    first = tuned(saxpy, in_tmp / "one")
    kernel = saxpy / "saxpy.cl" if saxpy.is_dir() else saxpy.parent / "saxpy.cl"
    kernel.write_text(kernel.read_text() + "\n// another line\n")
    second = tuned(saxpy, in_tmp / "two")
    out = call("compare", first, second)[1]
    assert "a problem that was changed between them" in out
    assert "saxpy.cl differs" in out
    assert "+// another line" in out
    assert "+// another line" not in call("compare", first, second, "-q")[1]


def test_what_cannot_be_compared_is_refused_with_the_reason(call: Call, saxpy: Path, in_tmp: Path) -> None:
    run, other = tuned(saxpy, in_tmp / "one"), write_sample_run(in_tmp / "sample", evaluations=20)
    copy = shutil.copytree(run, in_tmp / "copy")
    for words, why in (
        ((run, copy), "are the same run"),
        ((run, other), "times of different problems say nothing of each other"),
        ((run, in_tmp / "none"), "none"),
        ((run, in_tmp), "not a run folder"),
    ):
        status, out, err = call("compare", *words)
        assert (status, out) == (2, "")
        assert why in err
        assert "hint" in err


def recorded(folder: Path, events: Sequence[Event], run_id: str) -> Path:
    """A run folder with the sample's files and these events."""
    with RunFolder.create(folder, files=FILES) as run:
        run.append(
            [dataclasses.replace(each, run_id=run_id) if isinstance(each, RunStarted) else each for each in events]
        )
    return folder


def test_runs_without_a_common_workload_or_any_time_are_refused(call: Call, in_tmp: Path) -> None:
    events = sample_events(evaluations=20)
    started = events[0]
    assert isinstance(started, RunStarted)
    resized = dataclasses.replace(started, workloads={name: {"n": 7.0} for name in started.workloads})
    first = recorded(in_tmp / "first", events, "1")
    other = recorded(in_tmp / "resized", [resized, *events[1:]], "2")
    status, _, err = call("compare", first, other)
    assert status == 2
    assert "no workload is the same in both" in err
    empty = recorded(in_tmp / "empty", events[:1], "3")
    status, _, err = call("compare", first, empty)
    assert status == 2
    assert "has measured nothing" in err


def test_a_run_without_a_best_is_compared_in_what_it_has(call: Call, in_tmp: Path) -> None:
    events = sample_events(evaluations=20)
    first, second = recorded(in_tmp / "first", events, "1"), recorded(in_tmp / "second", events[:3], "2")
    status, out, _ = call("compare", first, second, "--out", in_tmp / "two.html")
    assert status == 0
    assert "Configurations do not compare: B recorded none as the best." in out
    assert "configuration, A -> B" not in out
    assert "There are no two configurations to compare" in (in_tmp / "two.html").read_text(encoding="utf-8")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\u202e"


class Tags(HTMLParser):
    """The tags of a page and the text that it shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.shown += data


def hostile(events: Sequence[Event], extra: str) -> list[Event]:
    """A run whose names and values are hostile wherever a file can put them."""

    def of(event: Event) -> Event:
        if isinstance(event, RunStarted):
            device, settings = {"name": HOSTILE + extra}, {HOSTILE: HOSTILE + extra}
            return dataclasses.replace(event, problem_name=HOSTILE, device=device, settings=settings)
        if isinstance(event, FinalistsCompared):
            configs = tuple({HOSTILE: HOSTILE + extra, **config} for config in event.configs)
            return dataclasses.replace(event, configs=configs)
        return event

    return [of(event) for event in events]


def test_hostile_text_stays_text_in_the_terminal_and_on_the_page(call: Call, in_tmp: Path) -> None:
    events = sample_events(evaluations=40)
    plain = [recorded(in_tmp / name, events, name) for name in ("1", "2")]
    rude = [recorded(in_tmp / f"rude-{name}", hostile(events, name), f"rude-{name}") for name in ("1", "2")]
    usual, page = in_tmp / "usual.html", in_tmp / "rude.html"
    assert call("compare", *plain, "--out", usual)[0] == 0
    status, out, _ = call("compare", *rude, "--out", page)
    assert status == 0
    assert "\x1b" not in out
    assert "\u202e" not in out
    seen = Tags(page.read_text(encoding="utf-8"))
    assert seen.tags.count("script") == Tags(usual.read_text(encoding="utf-8")).tags.count("script") == 1
    assert "img" not in seen.tags
    assert "alert(1)" in seen.shown
    assert "\u202e" not in seen.shown


def test_the_page_is_named_and_replaced_whole_or_not_at_all(call: Call, in_tmp: Path) -> None:
    events = sample_events(evaluations=40)
    runs = [recorded(in_tmp / name, events, name) for name in ("1", "2")]
    page = in_tmp / "pages" / "two.html"
    assert f"wrote {page}" in call("compare", *runs, "--out", page)[1]
    text = page.read_text(encoding="utf-8")
    assert "What each run claims" in text
    assert "http" not in text.replace("http-equiv", "")
    assert json.loads(call("compare", *runs, "--out", page, "--json")[1])["page"] == str(page)
    status, _, err = call("compare", *runs, "--out", in_tmp / "1" / "events.jsonl" / "two.html")
    assert status == 2
    assert "two.html" in err
