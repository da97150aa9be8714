"""Kills runs at random instants, resumes them, and says what was lost and whether the words still fit the figures.

```
python benchmarks/kills.py --out FILE.jsonl [--kills 200] [--total-seconds 3600] [--seed 0] [--only TEXT] [--jobs 4]
python benchmarks/kills.py --out FILE.jsonl --faults [--repeats 3]
```
A trial starts `tune` or `optimize` on the OpenCL CPU device, waits for a few records more, an evaluation among them,
and a random time beyond, and kills the parent, or it and all its workers, with SIGKILL; then the same with the session
that resumes, several times in all, and the last one goes on to its end. After each kill no process may live on and
`show run` must read the folder; at the end every record of before must be there, every evaluation once, the verdict's
words fit its intervals, `report` and `export` work and the replay repeat the run. `--faults` does other harm to runs
that are not killed: see `kills_faults.py`. Rows go to the file, one a trial, each when its trial ends; tables of all
are printed. With `--jobs` so many trials go on at a time, each on cores and with a cache folder of its own, where the
device's lock is, too. None goes on beyond `--total-seconds`; one that is cut by that leaves no row. The exit status is
1 where a process of `--jobs` failed, or no trial came to its end, and 2 where there is time for none.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kills_checks as checks
import kills_faults
from kills_model import Model, asked_model, paid_replies
from kills_runs import (
    KINDS,
    PATIENCE_S,
    Kind,
    Place,
    Said,
    Session,
    end_all,
    kill,
    wait_for,
    with_model,
    write_problems,
)

KILLS = range(4, 13)
"""Of one run."""

MOST_RECORDS = 3
"""A kill waits for up to so many records beyond those that are there."""

MOST_S, LATE, LATE_S = 1.5, 0.2, 15.0
"""A kill comes up to so long after the record that it waits for, so that all of what goes on between records is met;
a part of them up to longer, since the final comparison takes that long and records nothing."""

EARLY, EARLY_S = 0.2, 3.0
"""Which part of the sessions that resume is killed within their first seconds, also before they have begun."""

LAST_S = 75.0
"""No kill comes so shortly before the time is over, since the last session and what reads its run need some."""

LEAST_S = 60.0
"""No trial begins with less."""

Add = Callable[[dict[str, Any]], None]


class TimeIsOver(BaseException):
    """Raised into whatever goes on; no command that is run in this process takes it for its own failure."""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--kills", type=int, default=200)
    words.add_argument("--total-seconds", type=float, default=3600.0)
    words.add_argument("--jobs", type=int, default=1, help="trials at a time")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", default="", help="kinds, or faults, whose name contains this")
    words.add_argument("--faults", action="store_true")
    words.add_argument("--repeats", type=int, default=3, help="of each fault")
    words.add_argument("--keep", type=Path, help="where folders of trials with defects are moved to")
    given = words.parse_args()
    if not given.faults and not given.total_seconds > LEAST_S:
        words.error(f"--total-seconds {given.total_seconds:g}: no trial begins with {LEAST_S:g} s or less")
    before = len(_rows_of(given.out))
    failed = run_beside(given) if given.jobs > 1 else run_here(given)
    rows = _rows_of(given.out)
    print(table([row for row in rows if "kills" in row]))
    print(kills_faults.table([row for row in rows if "fault" in row]))
    if len(rows) == before:
        failed.append("no trial came to its end")
    if failed:
        sys.exit("\n".join(failed))


def run_beside(given: argparse.Namespace) -> list[str]:
    """The same in several processes, each with its part of the cores, of the kills and of the seeds.

    Gives what failed, in words.
    """
    cores = sorted(os.sched_getaffinity(0))
    running = []
    for job in range(given.jobs):
        own = cores[job :: given.jobs] or [cores[job % len(cores)]]
        words = ["--out", given.out, "--kills", -(-given.kills // given.jobs), "--total-seconds", given.total_seconds]
        words += ["--seed", given.seed * given.jobs + job, "--only", given.only, "--repeats", given.repeats]
        words += ["--faults"] * given.faults + (["--keep", given.keep] if given.keep else [])
        environment = {**os.environ, "POCL_MAX_PTHREAD_COUNT": str(len(own))}  # PoCL counts cores that it may not use
        environment.pop("KERNELWRIGHT_CACHE_DIR", None)
        os.sched_setaffinity(0, own)  # what is started has the same
        command = [sys.executable, __file__, *map(str, words)]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    statuses = [each.wait() for each in running]
    return [f"process {job} of {len(statuses)} ended with {status}" for job, status in enumerate(statuses) if status]


def run_here(given: argparse.Namespace) -> list[str]:
    """Trials one after the other; nothing of them fails that is not raised."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    with tempfile.TemporaryDirectory(prefix="kills-") as name, asked_model() as model:
        folder = Path(name)
        os.environ.setdefault("KERNELWRIGHT_CACHE_DIR", f"{folder}/cache")
        os.environ["KERNELWRIGHT_HOME"] = f"{folder}/home"
        os.environ.setdefault("PYTHONPYCACHEPREFIX", f"{folder}/bytecode")
        write_problems(folder / "problems")
        with _rows(given.out) as add:
            if given.faults:
                kills_faults.run_all(folder, given.repeats, given.seed, given.only, add, _keeping(given.keep))
            else:
                Trials(folder, given, model, add).run()
    return []


@contextmanager
def _rows(file: Path) -> Iterator[Add]:
    """Adds a row to the file and prints it, at once."""
    with file.open("a") as out:

        def add(row: dict[str, Any]) -> None:
            for stream in (out, sys.stderr):
                print(json.dumps(row), file=stream, flush=True)

        yield add


def _rows_of(file: Path) -> list[dict[str, Any]]:
    return [] if not file.exists() else [json.loads(line) for line in file.read_text().splitlines()]


def _keeping(folder: Path | None) -> Callable[[Place, list[str]], None]:
    """What becomes of a trial's folder: removed, or moved where somebody looks at the defects."""

    def end(place: Place, defects: list[str]) -> None:
        if defects and folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(place.folder, folder / f"{place.folder.name}-{int(time.time())}")
        shutil.rmtree(place.folder, ignore_errors=True)

    return end


class Trials:
    """Runs kinds in turn until there were enough kills or the time is over."""

    def __init__(self, folder: Path, given: argparse.Namespace, model: Model, add: Add) -> None:
        self._folder = folder
        self._given = given
        self._model = model
        self._add = add
        self._end = _keeping(given.keep)
        self._kinds = [with_model(kind, model.server.url) for kind in KINDS if given.only in kind.name]

    def run(self) -> None:
        """All trials; the last one may be cut short."""
        end_s, killed, number = time.monotonic() + self._given.total_seconds, 0, 0
        signal.signal(signal.SIGALRM, _end_of_time)
        signal.setitimer(signal.ITIMER_REAL, self._given.total_seconds)
        try:
            while killed < self._given.kills and time.monotonic() < end_s - LEAST_S:
                killed, number = killed + self._one(number, end_s), number + 1
        except TimeIsOver:
            end_all(self._folder)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _one(self, number: int, end_s: float) -> int:
        """One trial; how many kills it had."""
        seed = 1000 * self._given.seed + number
        kind = self._kinds[(number + self._given.seed) % len(self._kinds)]  # processes side by side begin elsewhere
        place = Place(self._folder / f"trial-{seed}")
        row = Trial(kind, place, random.Random(seed), self._model, end_s - LAST_S).run(self._folder)
        self._add({"seed": seed, **row})
        self._end(place, row["defects"])
        return int(row["kills"])


def _end_of_time(_signal: int, _frame: object) -> None:
    raise TimeIsOver


@dataclass(frozen=True)
class Kill:
    """What was there at one kill."""

    records: dict[str, bytes]
    evaluations: int
    measured: int
    lost: int
    """Evaluations that were made and not recorded."""
    cut: int
    """Evaluations that were begun and not made."""
    unrecorded: int
    """Requests to the model whose replies were not on record."""


class Trial:
    """One run that is killed and resumed."""

    def __init__(self, kind: Kind, place: Place, rng: random.Random, model: Model, last_s: float) -> None:
        """`last_s`: on the monotonic clock, after which nothing is killed."""
        self._last_s = last_s
        self._kind = kind
        self._place = place
        self._rng = rng
        self._model = model
        self._asked_before = len(model.asked)
        self._wanted = rng.choice(KILLS)
        self._kills: list[Kill] = []
        self._sessions = 0
        """On record at the last kill."""
        self._defects: list[str] = []

    def run(self, folder: Path) -> dict[str, Any]:
        """A row."""
        kind, place, problems = self._kind, self._place, folder / "problems"
        begin_s = time.monotonic()
        session = place.start(kind.words(problems, place.run))
        while self._is_to_go_on() and self._killed(session):
            session = place.start(["resume", str(place.run), *(["--json"] if self._rng.random() < 0.5 else [])])
        said = Said(*session.finish())
        found = self._defects + list(checks.finished(kind, place, said))
        if not said.status:
            found += [*checks.counted(kind, place), *checks.told_counts(said.err, len(place.evaluations()))]
            found += checks.replayed(kind, place, str(problems / kind.problem))
        found += self._kept()
        return {
            "kind": kind.name,
            "kills": len(self._kills),
            "at": [each.evaluations for each in self._kills],
            "lost": [each.lost for each in self._kills],
            "cut": [each.cut for each in self._kills],
            "evaluations": len(place.evaluations()),
            "asked": len(self._asked),
            "seconds": round(time.monotonic() - begin_s, 1),
            "defects": found,
        }

    def _is_to_go_on(self) -> bool:
        return len(self._kills) < self._wanted and time.monotonic() < self._last_s

    @property
    def _asked(self) -> list[str]:
        return self._model.asked[self._asked_before :]

    def _killed(self, session: Session) -> bool:
        """Kill the session at a random instant; False where it came to its end before."""
        place = self._place
        if self._kills and self._rng.random() < EARLY:
            wait_for(session.has_ended, self._rng.uniform(0, EARLY_S))
        else:
            records = place.record_count() + self._rng.randint(0, MOST_RECORDS)
            wait_for(lambda: self._has_begun(records) or session.has_ended(), PATIENCE_S)
            wait_for(session.has_ended, self._rng.uniform(0, LATE_S if self._rng.random() < LATE else MOST_S))
        if session.has_ended():
            return False
        kill(session, is_everything=self._rng.random() < 0.4)
        self._defects += checks.survivors(place)
        self._sessions = place.session_count()
        measured, count = place.measured(), len(place.evaluations())
        lost = len(checks.lost(measured, place)) - sum(each.lost for each in self._kills)
        cut = len(place.measured("begun")) - len(measured) - sum(each.cut for each in self._kills)
        unrecorded = len(self._asked) - paid_replies(place.run) - sum(each.unrecorded for each in self._kills)
        self._kills.append(Kill(place.logs(), count, len(measured), lost, cut, unrecorded))
        self._defects += checks.told_counts(session.err.read_text(), count)
        self._defects += checks.readable(place)
        return True

    def _has_begun(self, records: int) -> bool:
        """Whether an evaluation, the session that is to be killed, and so many records are there."""
        place = self._place
        has_session = place.session_count() > self._sessions
        return has_session and place.record_count() >= records and bool(place.evaluations())

    def _kept(self) -> Iterator[str]:
        """Nothing that was on record at a kill was lost, measured again or paid again."""
        measured = self._place.measured()
        for each in self._kills:
            yield from checks.continued(each.records, self._place)
            yield from checks.measured_again(each.records, measured[each.measured :])
            if each.lost + each.cut > 1:
                yield f"at one kill {each.lost} evaluations were made and lost, {each.cut} begun"
        twice = sum(count - 1 for count in Counter(self._asked).values())
        allowed = sum(each.unrecorded for each in self._kills)
        if twice > allowed:
            yield f"{twice} requests were paid twice, {allowed} were under way at kills"


def table(rows: list[dict[str, Any]]) -> str:
    """What came of all trials, by kind."""
    lines = ["| run | runs | kills | on record at a kill | in an evaluation | made and lost | runs with defects |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        mine = [row for row in rows if name in (row["kind"], "all") and row["kills"]]
        if mine:
            at, lost, cut = ([each for row in mine for each in row[key]] for key in ("at", "lost", "cut"))
            bad = sum(bool(row["defects"]) for row in mine)
            spread = f"{min(at)} to {max(at)}"
            lines.append(f"| {name} | {len(mine)} | {len(at)} | {spread} | {sum(cut)} | {sum(lost)} | {bad} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
