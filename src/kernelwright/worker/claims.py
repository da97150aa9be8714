"""Who is at which request: a claim with a lease, so that a worker that was killed is replaced.

Two workers may end up at the same request in rare cases (clocks that differ, a lease that ran out while a machine
slept). That costs time and nothing else: results have the request's id, and the first one stands.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelwright.json_text import read_json_text
from kernelwright.remote.envelope import read_plain

LEASE_S = 60.0
"""A claim that was not renewed for so long is anybody's."""

_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's word."""

    host: str
    process_id: int
    until_s: float
    """Since the epoch."""
    attempt: int
    """Counts from 1; one more for every worker that did not come to an end."""


class Claims:
    """The claims of a spool, for one worker."""

    def __init__(self, folder: Path, *, lease_s: float = LEASE_S, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._lease_s = lease_s
        self._now = now
        self._host = socket.gethostname()

    def earlier_attempts(self, identity: str) -> int | None:
        """How many workers have begun with it and are gone; None: one is at it."""
        path = self._path(identity)
        claim = self._read(path)
        if claim is None:
            return 0 if not path.exists() else self._age_of_torn(path)
        return claim.attempt if self._is_over(claim) else None

    def take(self, identity: str) -> Lease | None:
        """Claim a request; None: somebody was faster."""
        path, attempt = self._path(identity), 1
        if path.exists():
            earlier = self.earlier_attempts(identity)
            if earlier is None or not self._move_away(path):
                return None
            attempt = earlier + 1
        claim = Lease(self._host, os.getpid(), self._now() + self._lease_s, attempt)
        temporary = self._written(claim)
        try:
            os.link(temporary, path)  # fails where a file is, which a rename would not
        except FileExistsError:
            return None
        except OSError:  # a file system without links
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                temporary.replace(path)
                return claim
            return None
        finally:
            temporary.unlink(missing_ok=True)
        return claim

    @contextlib.contextmanager
    def held(self, identity: str, claim: Lease) -> Iterator[None]:
        """Renew the claim in the background; behind an orderly end it is given back."""
        stop = threading.Event()

        def renew() -> None:
            while not stop.wait(self._lease_s / 4):
                with contextlib.suppress(OSError):
                    self._renew(identity, claim)

        thread = threading.Thread(target=renew, name=f"claim-{identity}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def give_back(self, identity: str) -> None:
        """The request is done, or left undone on purpose."""
        self._path(identity).unlink(missing_ok=True)

    def fail(self, identity: str, claim: Lease) -> None:
        """It is left undone because the machine failed: the attempt counts."""
        self._written(Lease(claim.host, claim.process_id, 0.0, claim.attempt)).replace(self._path(identity))

    def _renew(self, identity: str, claim: Lease) -> None:
        until_s = self._now() + self._lease_s
        self._written(Lease(claim.host, claim.process_id, until_s, claim.attempt)).replace(self._path(identity))

    def _written(self, claim: Lease) -> Path:
        temporary = self._folder / f".{secrets.token_hex(8)}.part"
        temporary.write_text(json.dumps(asdict(claim)), encoding="utf-8")
        return temporary

    def _move_away(self, path: Path) -> bool:
        """Remove a claim that is over; of several workers one succeeds."""
        aside = self._folder / f".{secrets.token_hex(8)}.over"
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False
        claim = self._read(aside)
        if claim is not None and not self._is_over(claim):  # somebody has just taken it
            with contextlib.suppress(OSError):
                os.link(aside, path)
            aside.unlink(missing_ok=True)
            return False
        aside.unlink(missing_ok=True)
        return True

    def _is_over(self, claim: Lease) -> bool:
        if claim.until_s <= self._now():
            return True
        return claim.host == self._host and not _is_alive(claim.process_id)

    def _age_of_torn(self, path: Path) -> int | None:
        """A claim that cannot be read, half copied say, counts until it is as old as a lease."""
        try:
            return 1 if self._now() - path.stat().st_mtime > self._lease_s else None
        except OSError:
            return 0

    def _read(self, path: Path) -> Lease | None:
        data = read_plain(path, most_bytes=_MOST_BYTES)
        try:
            record = read_json_text(data) if data else None
            if not isinstance(record, dict):
                return None
            return Lease(
                str(record["host"]), int(record["process_id"]), float(record["until_s"]), int(record["attempt"])
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def _path(self, identity: str) -> Path:
        return self._folder / f"{identity}.json"


def _is_alive(process_id: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not waited for does not."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
    except OSError:
        return True  # no such file system here
    return state.split()[:1] not in (["Z"], ["X"])
