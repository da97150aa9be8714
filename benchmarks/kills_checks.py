"""What must hold of a run that was killed and resumed; each check gives the defects that it finds, in words."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kills_runs import Kind, Place, Said, complaints, events_in, here, wait_for

from kernelwright.evaluate.process.scratch import sweep

CLAIM = "as fast as the baseline, with 95% confidence"
_FACTOR = re.compile(r"([\d.,]+)x \[([\d.,]+), ([\d.,]+)\]")


def survivors(place: Place) -> Iterator[str]:
    """Processes of a killed run that live on."""
    if not wait_for(lambda: not place.processes(), patience_s=10.0):
        yield f"lives on: {sorted(place.processes().values())}"


def readable(place: Place) -> Iterator[str]:
    """`show run` and `report` read a killed run's folder, without a warning, and change nothing of the record."""
    before = place.logs()
    run, page = place.run, place.folder / "killed.html"
    for words in (("show", "run", run), ("show", "run", run, "--json"), ("report", run, "--out", page)):
        said = here(*words)
        if said.status or said.err:
            yield f"{' '.join(map(str, words[:2]))}: status {said.status}: {said.err.strip()[-300:]}"
    if place.logs() != before:
        yield "show run changed the record"


def continued(before: Mapping[str, bytes], place: Place) -> Iterator[str]:
    """Whatever was on record at a kill is there, byte for byte and in its place."""
    after = place.logs()
    for name, data in before.items():
        if not after.get(name, b"").startswith(data):
            yield f"{name}: records that were there at the kill are gone or changed"


def counted(kind: Kind, place: Place) -> Iterator[str]:
    """Every evaluation once, in order, none beyond the budget; of `tune` all of it, unless something else ended it."""
    for name, data in place.logs().items():
        evaluations = [event for event in events_in(data) if event["kind"] == "evaluated"]
        if [event["index"] for event in evaluations] != list(range(len(evaluations))):
            yield f"{name}: evaluations are numbered {[event['index'] for event in evaluations]}"
        ids = Counter(event["candidate_id"] for event in evaluations if event["source"] == "measured")
        yield from (
            f"{name}: {each} is measured and recorded {count} times" for each, count in ids.items() if count > 1
        )
    count = len(place.evaluations())
    ends = [event for event in events_in(place.logs()["events.jsonl"]) if event["kind"] == "run_finished"]
    if len(ends) != 1:
        yield f"the run has {len(ends)} ends"
    elif kind.evaluations is not None:
        reason = ends[0]["reason"]
        if count > kind.evaluations or (reason == "budget" and count < kind.evaluations and not kind.is_tree):
            yield f"{count} evaluations of {kind.evaluations}, ended by {reason!r}"


def told_counts(err: str, recorded: int) -> Iterator[str]:
    """No progress line told of more evaluations than the record had."""
    told = max(map(int, re.findall(r"(\d+) evaluated", err)), default=0)
    if told > recorded:
        yield f"progress told of {told} evaluations, {recorded} are on record"


def lost(measured: list[str], place: Place) -> list[str]:
    """Measurements that a killed session made and did not record."""
    return list((Counter(measured) - Counter({event["candidate_id"] for event in place.evaluations()})).elements())


def measured_again(records: Mapping[str, bytes], measured: list[str]) -> Iterator[str]:
    """What was on record at a kill and was measured again afterwards."""
    evaluations = [event for data in records.values() for event in events_in(data) if event["kind"] == "evaluated"]
    known = {event["candidate_id"] for event in evaluations}
    yield from (f"{each} was on record and was measured again" for each in measured if each in known)


def finished(kind: Kind, place: Place, said: Said) -> Iterator[str]:
    """How the last session ended: its status, its words against its figures, and what reads the run afterwards."""
    if said.status:
        yield f"the last session ended with status {said.status}: {said.err.strip()[-500:]}"
        return
    if "Traceback" in said.err or complaints(said.err):
        yield f"the last session complained: {said.err.strip()[-500:]}"
    shown = here("show", "run", place.run, "--json")
    if shown.status:
        yield f"show run --json: status {shown.status}: {shown.err.strip()[-300:]}"
        return
    data = json.loads(shown.out)
    yield from consistent(data, is_tree=kind.is_tree)
    verdict = " ".join(data["verdict"].split())
    for words in (said.out, here("show", "run", place.run).out):
        told = json.loads(words)["verdict"] if words.startswith("{") else words
        if verdict not in " ".join(told.split()):
            yield f"two verdicts: {verdict!r} is not in {' '.join(told.split())[-400:]!r}"
    yield from written(place, has_winner=data["is_gain"] or data["partial"] is not None, is_tree=kind.is_tree)
    sweep(place.scratch)  # as the next run does: a resume of a run that was killed behind its end makes none
    if list(place.scratch.iterdir()):
        yield f"left in scratch: {[path.name for path in place.scratch.iterdir()]}"
    if place.processes():
        yield f"lives on after the end: {sorted(place.processes().values())}"


def consistent(data: dict[str, Any], *, is_tree: bool) -> Iterator[str]:
    """The verdict's words against its intervals, by a rule of its own: nothing of the product is asked."""
    words, interval, is_gain = data["verdict"], data["speedup"], data["is_gain"]
    is_above = interval is not None and interval["low"] > 1.0
    claims = is_gain or data["partial"] is not None
    if claims != (CLAIM in words) or (is_gain and data["partial"] is not None):
        yield f"is_gain is {is_gain}, partial {data['partial']}, and the words are {words!r}"
    for name, each in (data["partial"] or {}).get("faster", {}).items():
        if each["low"] <= 1.0 or each["confidence"] < 0.95 - 1e-9:
            yield f"a gain on {name} is claimed with {each}"
    if is_gain and not (is_above and interval["confidence"] >= 0.95 - 1e-9):
        yield f"a gain is claimed with {interval}"
    if is_above and not is_gain and "outweigh" in words:
        yield f"others are said to outweigh where all together gain: {words!r}"
    if is_above and not is_gain and "No " in words and "confidence" not in words and "the baseline itself" not in words:
        yield f"no gain is said of {interval}, and not why: {words!r}"
    if "provisional" in words:
        yield f"a run that has ended is provisional: {words!r}"
    if is_tree and (data["winner"] is not None) != is_gain:
        yield f"winner {data['winner']} where is_gain is {is_gain}"
    yield from _figures(words, data)


def _figures(words: str, data: dict[str, Any]) -> Iterator[str]:
    """Each `1.23x [1.20, 1.26]` of the words is an interval of the data."""
    rows = [data["speedup"], *(row["speedup"] for row in data["workloads"])]
    rows += (data["partial"] or {}).get("faster", {}).values()
    known = [(each["estimate"], each["low"], each["high"]) for each in rows if each]
    for found in _FACTOR.finditer(words):
        told = tuple(float(each.replace(",", "")) for each in found.groups())
        if not any(all(abs(a - b) <= 0.01 * b + 0.006 for a, b in zip(told, each, strict=True)) for each in known):
            yield f"the words say {found.group()}, the data {known}"


def written(place: Place, *, has_winner: bool, is_tree: bool) -> Iterator[str]:
    """`report` and `export` do what they say; an export of nothing says so."""
    report = here("report", place.run, "--out", place.folder / "report.html")
    if report.status or not (place.folder / "report.html").is_file():
        yield f"report: status {report.status}: {report.err.strip()[-300:]}"
    export = here("export", place.run, "--out", place.folder / "export")
    is_refused = export.status == 2 and len(complaints(export.err)) == 1 and is_tree and not has_winner
    if (export.status and not is_refused) or "Traceback" in export.err:
        yield f"export: status {export.status}: {export.err.strip()[-300:]}"


def replayed(kind: Kind, place: Place, problem: str) -> Iterator[str]:
    """A run of `optimize` repeats bit for bit; one of `tune` answers every config of its own search."""
    again = place.folder / "again"
    if kind.is_tree:
        said = here("optimize", "--replay", place.run, "--run", again, "--json", "--no-report")
        if said.status:
            yield f"the replay ended with status {said.status}: {said.err.strip()[-600:]}"
        elif differences := json.loads(said.out)["replay"]["differences"]:
            yield f"the replay differs: {differences[0][:300]}"
    elif kind.evaluations is not None:
        words = ("tune", problem, "--replay", place.run, "--run", again, "--json", "--no-report")
        said = here(*words, "--budget", kind.evaluations, "--searcher", "exhaustive")
        if said.status:
            yield f"the replay ended with status {said.status}: {said.err.strip()[-600:]}"
    shutil.rmtree(again, ignore_errors=True)
