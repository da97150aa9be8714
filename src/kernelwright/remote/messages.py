"""What the two machines say to each other: dataclasses that are JSON as they are. Nothing is pickled.

Events travel as the lines that a run's log holds; files travel beside the messages, by the digest of their content.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kernelwright import errors
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, KernelwrightError, StoreError
from kernelwright.remote.base import Finalist

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MOST_FILES = 2000
"""A problem has at most so many."""

_MOST_NAME = 400
_MOST_DIGITS = 9

MOST_FINALISTS = 1000
MOST_ROUNDS = 100_000

Files = Mapping[str, str]
"""A problem's files: path inside its folder -> digest of the content."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What every request says: what is computed, how it is measured, and on which device."""

    problem_name: str
    files: Files
    """The files of the run's problem."""
    settings: Mapping[str, Any]
    """`TuneSettings` as recorded."""
    language: str
    device_name: str = ""
    """The device that the run began on; empty: it begins now."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Describe the device, measure what it can do at most, prove and time the baseline."""

    work: RequestContext


@dataclass(frozen=True, slots=True)
class Begun:
    """What a run needs to know of the other machine."""

    device: Mapping[str, Any]
    """`DeviceInfo`."""
    environment: Mapping[str, str]
    ceilings: Mapping[str, float]
    baseline: str
    """The line of a `BaselineMeasured`."""
    notes: tuple[str, ...]
    worked_s: float
    worker: str


@dataclass(frozen=True, slots=True)
class Race:
    """What candidates race against."""

    best_ms: Mapping[str, float]
    value: float


@dataclass(frozen=True, slots=True)
class NodeAsked:
    """Prove a node's template where that was not done, and search its parameters."""

    work: RequestContext
    run_id: str
    started: str
    """The line of the run's `RunStarted`."""
    baseline: str
    race: Race
    node: int
    node_files: Files
    log: str
    """Digest of the node's `events.jsonl` so far."""
    blobs: Files
    """By blob id, of the node's run."""
    evaluations: int
    """The node's in all when the search ends."""
    seconds: float | None
    """The search's time; None: no limit."""
    template_points: int | None = None
    """Points for the proof of a lifted template; None: it is none, or is proven."""
    template_seconds: float | None = None
    proof: str = ""
    """The line of its `TemplateProven`, where it is proven."""
    origin_files: Files = field(default_factory=dict)
    """The problem of what a lifted template has to reproduce; none: it is the baseline."""


@dataclass(frozen=True, slots=True)
class NodeAnswered:
    """What came of it."""

    events: tuple[str, ...]
    """The lines of new `Evaluated`."""
    reason: str
    """Why the search ended; empty: there was none, because the proof failed or there is nothing to search."""
    worked_s: float
    worker: str
    failure: Mapping[str, str] | None = None
    """A `Failed`, where a template that computes what the reference does is refused all the same."""
    proof: str = ""
    """The line of a `TemplateProven`."""
    baseline_ms: Mapping[str, float] = field(default_factory=dict)
    """By workload, when this worker calibrated: it may be days after the run began."""


@dataclass(frozen=True, slots=True)
class CompareAsked:
    """Check finalists on every dataset and measure them side by side with the baseline."""

    work: RequestContext
    run_id: str
    nodes: Mapping[str, Files]
    """By node: the files of its problem."""
    entries: tuple[Finalist, ...]
    """The first `count` are wanted; the others take the place of what is rejected."""
    count: int
    rounds: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class CompareAnswered:
    """What came of it."""

    comparison: str
    """The line of a `FinalistsCompared`; empty: nothing could be compared."""
    worked_s: float
    worker: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The request cannot be done, and why."""

    error: str
    """The name of a class of `kernelwright.errors`."""
    message: str
    hint: str
    worker: str


HAS_ENDED = "has ended"
KEEPS_JOBS = "keeps jobs"
"""What is done by whoever looks after jobs, and is no worker itself."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker says that it is there."""

    worker: str
    process_id: int
    seen_s: float
    """Since the epoch."""
    doing: str
    devices: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)


KINDS: Mapping[str, type] = {
    "begin": Begin,
    "begun": Begun,
    "node": NodeAsked,
    "node-done": NodeAnswered,
    "compare": CompareAsked,
    "compared": CompareAnswered,
    "refused": Refused,
    "worker": WorkerSeen,
}

_NAMES: Mapping[type, str] = {kind: name for name, kind in KINDS.items()}

Request = Begin | NodeAsked | CompareAsked
Result = Begun | NodeAnswered | CompareAnswered | Refused
Message = Request | Result | WorkerSeen


def kind_of(message: Message) -> str:
    """The word for it in an envelope."""
    return _NAMES[type(message)]


def parse(kind: str, body: bytes) -> Message:
    """The message of an envelope.

    Raises:
        StoreError: it is none that this version knows, or its fields are wrong.
    """
    from pydantic import ValidationError

    known = KINDS.get(kind)
    if known is None:
        raise StoreError(
            f"{kind!r} is no kind of message", hint="use the same version of Kernelwright on both machines"
        )
    try:
        message: Message = _adapter(known).validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{place} of a {kind!r} message: {first['msg']}") from error
    return message


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def device_of(record: Mapping[str, Any]) -> DeviceInfo:
    """The device that a message describes; what a newer version says beyond it is left out.

    Raises:
        StoreError: it says too little.
    """
    known = {field.name for field in dataclasses.fields(DeviceInfo)}
    try:
        return DeviceInfo(**{name: value for name, value in record.items() if name in known})
    except TypeError as error:
        hint = "use the same version of Kernelwright on all machines"
        raise StoreError(f"a message does not describe its device: {error}", hint=hint) from error


def refusal(error: KernelwrightError, worker: str) -> Refused:
    """An error as what is said of it elsewhere."""
    message = f"{error.location}: {error.message}" if error.location else error.message
    return Refused(type(error).__name__, message, error.hint or "", worker)


def error_of(refused: Refused) -> KernelwrightError:
    """The same error again; of a kind that this version does not know, one of the machine."""
    kind = getattr(errors, refused.error, None)
    if not (isinstance(kind, type) and issubclass(kind, KernelwrightError)):
        kind = InfrastructureError
    return kind(refused.message, hint=refused.hint or None)


def all_files(request: Request) -> set[str]:
    """The digests of all files that it refers to.

    Raises:
        StoreError: a path leaves its folder, there are too many, or a number makes no sense.
    """
    groups: list[Files] = [request.work.files]
    extra: set[str] = set()
    match request:
        case NodeAsked():
            _check_race(request.race)
            groups += [request.node_files, request.origin_files]
            extra = {request.log, *request.blobs.values()}
        case CompareAsked():
            _check_entries(request)
            groups += list(request.nodes.values())
    for files in groups:
        check_files(files)
    return extra | {each for files in groups for each in files.values()}


def _check_race(race: Race) -> None:
    times = [race.value, *race.best_ms.values()]
    if not all(math.isfinite(each) and each > 0 for each in times):
        raise StoreError("a request races against times that are none")


def _check_entries(request: CompareAsked) -> None:
    for name in request.nodes:
        if not (name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS):
            raise StoreError(f"{name[:40]!r} is no number of a node")
    missing = [each.node for each in request.entries if str(each.node) not in request.nodes]
    if missing:
        raise StoreError(f"a request compares a finalist of node {missing[0]}, whose files it does not name")
    if not (1 <= request.count <= MOST_FINALISTS and len(request.entries) <= MOST_FINALISTS):
        raise StoreError(f"a request compares {len(request.entries)} finalists; 1 to {MOST_FINALISTS} are taken")
    if not 1 <= request.rounds <= MOST_ROUNDS:
        raise StoreError(f"a request asks for {request.rounds} rounds; 1 to {MOST_ROUNDS} are taken")


def check_files(files: Files) -> None:
    """Nothing, for paths that stay inside a folder.

    Raises:
        StoreError: one does not, or there are too many.
    """
    if len(files) > MOST_FILES:
        raise StoreError(f"a problem of {len(files)} files; at most {MOST_FILES} are taken")
    for name in files:
        path = PurePosixPath(name)
        is_plain = name.isprintable() and "\\" not in name and ":" not in name and len(name) <= _MOST_NAME
        if not is_plain or path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name:
            raise StoreError(f"the file name {name[:80]!r} is not a plain path inside a folder: refused")
        if any(str(parent) in files for parent in path.parents):
            raise StoreError(f"{name[:80]!r} lies below what is a file of the same problem: refused")
