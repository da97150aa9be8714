"""Other harm than a kill of the run, for `kills.py --faults`: each fault on runs of `tune` and `optimize`, at random
instants.

- two writers: while a run goes on, a second process resumes it, and one tunes into its folder
- two resumes: two processes resume a killed run at the same moment
- clock ahead, back, to and fro: the time of day jumps by days or hours, for the run and its workers
- cache deleted: the cache folder is removed, once and again and again
- full disk: the file system of the run folder is filled; a limit cuts the log's next record at a random byte
- referee, device, build killed: a worker gets SIGKILL
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kills_checks as checks
from kills_runs import KINDS, Kind, Place, Said, Session, complaints, events_in, kill, wait_for

CLOCK = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
/* The time of day jumps by SHIFT_S: all SHIFT_EVERY_S of monotonic time it does so, or has not done so, again. */
static long shift(void)
{
    struct timespec now;
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_MONOTONIC, &now);
    double every = atof(getenv("POCL_SHIFT_EVERY_S")), since = now.tv_sec + 1e-9 * now.tv_nsec;
    since -= atof(getenv("POCL_SHIFT_FROM_S"));
    if (since < 0) return 0;
    return every > 0 && (long)(since / every) % 2 ? 0 : atol(getenv("POCL_SHIFT_S"));
}
int clock_gettime(clockid_t clock, struct timespec *time)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += shift();
    return failed;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(time, zone);
    if (!failed) time->tv_sec += shift();
    return failed;
}
time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
"""To be preloaded. Its variables are named so that workers are given them."""

CLOCKS = {"clock ahead": (86_400 * 3, 0.0), "clock back": (-86_400 * 3, 0.0), "clock to and fro": (7200, 0.3)}
"""Seconds of the jump, and after how many it is taken back, again and again; 0: it stays."""

Defects = Iterator[str]
Fault = Callable[["Harm"], Defects]


class Harm:
    """One run with one fault."""

    def __init__(self, name: str, kind: Kind, place: Place, problems: Path, rng: random.Random) -> None:
        self.name = name
        self.kind = kind
        self.place = place
        self.problems = problems
        self.rng = rng
        self.count = 0
        """How often the harm was done."""

    def start(self, **more: Any) -> Session:
        """The run; no evaluation is on record yet."""
        return self.place.start(self.kind.words(self.problems, self.place.run), **more)

    def wait(self, session: Session, evaluations: int | None = None) -> bool:
        """Until so many evaluations are on record, and a moment; False where the run ended before."""
        wanted = self.rng.randint(1, 5) if evaluations is None else evaluations
        wait_for(lambda: len(self.place.evaluations()) >= wanted or session.has_ended())
        wait_for(session.has_ended, self.rng.uniform(0, 0.5))
        return not session.has_ended()

    def ended_well(self, session: Session) -> Defects:
        """The run came to its end as if nothing had happened: all evaluations, none failed."""
        said = Said(*session.finish())
        yield from checks.finished(self.kind, self.place, said)
        if not said.status:
            yield from checks.counted(self.kind, self.place)
        yield from self.blamed()

    def blamed(self) -> Defects:
        """Candidates that failed: none of these kernels is wrong."""
        for name, data in self.place.logs().items():
            for event in events_in(data):
                is_failed = event["kind"] == "evaluated" and event["value"] is None
                if is_failed or (event["kind"] == "node_judged" and event["status"] == "failed"):
                    yield f"{name}: blamed: {str(event.get('outcome', event))[:300]}"

    def resumed_well(self, before: dict[str, bytes]) -> Defects:
        """A resume goes on from what was on record."""
        yield from self.ended_well(self.place.start(["resume", str(self.place.run)]))
        yield from checks.continued(before, self.place)


def two_writers(harm: Harm) -> Defects:
    session = harm.start()
    if harm.wait(session):
        session.process.send_signal(signal.SIGSTOP)  # however long it takes to ask
        for words in (["resume", str(harm.place.run)], harm.kind.words(harm.problems, harm.place.run)):
            said = Said(*harm.place.start(words).finish())
            harm.count += 1
            if said.status != 2 or len(complaints(said.err)) != 1 or "Traceback" in said.err:
                yield f"{words[0]} beside it: status {said.status}: {said.err.strip()[-300:]}"
        yield from checks.readable(harm.place)
        session.process.send_signal(signal.SIGCONT)
    yield from harm.ended_well(session)


def two_resumes(harm: Harm) -> Defects:
    session = harm.start()
    if harm.wait(session):
        kill(session, is_everything=False)
        before = harm.place.logs()
        both = [harm.place.start(["resume", str(harm.place.run)]) for _ in range(2)]
        wait_for(lambda: any(each.has_ended() for each in both))
        harm.count += 1
        first, last = sorted(both, key=lambda each: not each.has_ended())
        said = Said(*first.finish())
        if said.status != 2 or len(complaints(said.err)) != 1 or "is writing to the run" not in said.err:
            yield f"the second writer: status {said.status}: {said.err.strip()[-300:]}"
        yield from harm.ended_well(last)
        yield from checks.continued(before, harm.place)


def clock_jumps(harm: Harm) -> Defects:
    jump_s, every_s = CLOCKS[harm.name]
    library = harm.place.folder / "clock.so"
    harm.place.folder.mkdir(parents=True, exist_ok=True)
    library.with_suffix(".c").write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, library.with_suffix(".c"), "-ldl"], check=True)
    begin_s = time.monotonic()
    harm.place.environment = {
        "LD_PRELOAD": str(library),
        "POCL_SHIFT_S": str(jump_s),
        "POCL_SHIFT_EVERY_S": str(every_s),
        "POCL_SHIFT_FROM_S": str(begin_s + harm.rng.uniform(1, 6)),
    }
    session = harm.start()
    harm.count += 1
    yield from harm.ended_well(session)
    took_s = time.monotonic() - begin_s
    for name, data in harm.place.logs().items():
        times_s = [event["elapsed_s"] for event in events_in(data) if event["kind"] == "evaluated"]
        if times_s != sorted(times_s) or any(not 0 <= each <= took_s for each in times_s):
            yield f"{name}: budget seconds {times_s} in a run of {took_s:.0f} s"


def cache_deleted(harm: Harm) -> Defects:
    """Once, or again and again: then a build may lose its folder twice, which ends the run, and a resume goes on."""
    cache = harm.place.folder / "cache"
    harm.place.environment = {"KERNELWRIGHT_CACHE_DIR": str(cache)}
    session, is_repeated = harm.start(), harm.rng.random() < 0.5
    while harm.wait(session, None if not harm.count else 0):
        shutil.rmtree(cache, ignore_errors=True)
        harm.count += 1
        if not is_repeated:
            break
    session.process.wait()
    if is_repeated and session.process.returncode == 3 and len(complaints(session.err.read_text())) == 1:
        yield from harm.blamed()
        yield from harm.resumed_well(harm.place.logs())
    else:
        yield from harm.ended_well(session)


def disk_full(harm: Harm) -> Defects:
    with _small_disk(harm.place.folder / "run") as run:
        session = harm.start()
        before = None
        if harm.wait(session):
            session.process.send_signal(signal.SIGSTOP)
            _fill(run / "ballast", harm.rng.randint(0, 3000))
            before, harm.count = harm.place.logs(), 1
            session.process.send_signal(signal.SIGCONT)
        yield from _stopped_by_disk(harm, session)
        (run / "ballast").unlink(missing_ok=True)
        if before is not None:
            yield from harm.resumed_well(before)


def log_cut(harm: Harm) -> Defects:
    """No file of the run's parent may grow beyond a few bytes more than its log has."""
    session = harm.start()
    if harm.wait(session):
        session.process.send_signal(signal.SIGSTOP)
        log = harm.rng.choice([harm.place.run / name for name in harm.place.logs()])
        limit = log.stat().st_size + harm.rng.randint(1, 2000)
        resource.prlimit(session.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        before, harm.count = harm.place.logs(), 1
        session.process.send_signal(signal.SIGCONT)
        yield from _stopped_by_disk(harm, session)
        yield from harm.resumed_well(before)
    else:
        yield from harm.ended_well(session)


def _stopped_by_disk(harm: Harm, session: Session) -> Defects:
    """It says in one message that it could not write, or had ended before there was anything to write."""
    status, _, err = session.finish()
    if status not in (0, 2, 3) or (status and len(complaints(err)) != 1) or "Traceback" in err:
        yield f"on a full disk: status {status}: {err.strip()[-400:]}"
    yield from checks.survivors(harm.place)
    yield from checks.readable(harm.place)
    yield from harm.blamed()


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own in memory, which needs the right to mount one."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(file: Path, left_bytes: int) -> None:
    """Fill a disk, but for some bytes, or the rest of a page."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    with file.open("r+b") as ballast:
        ballast.truncate(max(0, file.stat().st_size - left_bytes // 4096 * 4096))


def worker_killed(harm: Harm) -> Defects:
    """Once for each thing that is recorded: what dies twice of one launch is taken to die of it."""
    role = {"referee killed": "referee", "device killed": "device", "build killed": "build-0"}[harm.name]
    session, seen = harm.start(), 0
    for _ in range(harm.rng.randint(1, 4)):
        wait_for(session.has_ended, harm.rng.uniform(0, 1.0))
        wait_for(lambda: harm.place.worker(role) is not None or session.has_ended())
        pid = harm.place.worker(role)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                harm.count += 1
        seen = len(harm.place.evaluations())
        wait_for(lambda seen=seen: len(harm.place.evaluations()) > seen or session.has_ended())  # type: ignore[misc]
    yield from harm.ended_well(session)


FAULTS: dict[str, Fault] = {
    "two writers": two_writers,
    "two resumes": two_resumes,
    **dict.fromkeys(CLOCKS, clock_jumps),
    "cache deleted": cache_deleted,
    "full disk": disk_full,
    "log cut": log_cut,
    "referee killed": worker_killed,
    "device killed": worker_killed,
    "build killed": worker_killed,
}
FAULT_KINDS = [kind for kind in KINDS if kind.name in ("tune random", "optimize three in flight")]


def run_all(
    folder: Path,
    repeats: int,
    seed: int,
    only: str,
    add: Callable[[dict[str, Any]], None],
    end: Callable[[Place, list[str]], None],
) -> None:
    """Each fault as many times on each kind of run."""
    for number in range(repeats):
        for name, fault in FAULTS.items():
            for kind in FAULT_KINDS:
                if only not in f"{name}, {kind.name}":
                    continue
                place = Place(folder / f"{name}-{kind.name}-{number}".replace(" ", "-"))
                rng = random.Random(f"{seed} {number} {name} {kind.name}")
                harm, begin_s = Harm(name, kind, place, folder / "problems", rng), time.monotonic()
                found = list(fault(harm))
                seconds = round(time.monotonic() - begin_s, 1)
                row = {"fault": name, "kind": kind.name, "number": number, "count": harm.count, "seconds": seconds}
                add({**row, "defects": found})
                end(place, found)


def table(rows: list[dict[str, Any]]) -> str:
    """What came of all faults."""
    lines = ["| fault | runs | times | runs with defects |", "|---|--:|--:|--:|"]
    for name in dict.fromkeys(row["fault"] for row in rows):
        mine = [row for row in rows if row["fault"] == name]
        times, bad = sum(row["count"] for row in mine), sum(bool(row["defects"]) for row in mine)
        lines.append(f"| {name} | {len(mine)} | {times} | {bad} |")
    return "\n".join(lines) if rows else ""
