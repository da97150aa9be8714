"""One thing that a run has measured, as it is kept for other runs: the claim, and what it rests on.

Lessons are read from files that anyone can have written. Reading checks every field, takes out what is hidden and cuts
what is long; nothing of a lesson is ever run, included or taken for an instruction.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.evaluate.words import factor_text, interval_text
from kernelwright.identity import content_id
from kernelwright.memory import text as safe
from kernelwright.problem.config import Value

FORMAT = 1
MOST_LINE = 300
MOST_TEMPLATE = 24_000
MOST_VALUES = 64
USEFUL = 1.02
"""A step that gains less brought nothing."""

Kind = Literal["step", "failure", "template"]
Claim = Literal["helps", "nothing", "open", "fails", "works"]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where something was measured: what a lesson must share with a run to be of use to it."""

    pattern: str
    """The kernel's, as `analysis.patterns.pattern` names it."""
    language: str
    device: str
    """Its name."""
    architecture: str
    """`cpu`, `sm_90`, `opencl-gpu`, ..."""
    shape: str
    """How the workloads' bytes compare with the last cache: `cached`, `near-cache`, `streaming`, `unknown`."""
    dtype: str
    """The first output's dtype."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A factor over what was there before, with its interval."""

    estimate: float
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    """None with no interval: the search's own measurements, which claim nothing."""

    @classmethod
    def of(cls, interval: ConfidenceInterval) -> Measured:
        """From interleaved rounds."""
        return cls(interval.estimate, interval.low, interval.high, interval.confidence)

    @property
    def interval(self) -> ConfidenceInterval | None:
        """From interleaved rounds; None: provisional."""
        if self.low is None or self.high is None:
            return None
        return ConfidenceInterval(self.estimate, self.low, self.high, self.confidence or 0.0)

    def __str__(self) -> str:
        """`1.23x [1.20, 1.26]`, or `about 1.23x` where nothing is claimed."""
        interval = self.interval
        return interval_text(interval) if interval is not None else f"about {factor_text(self.estimate)}"


@dataclass(frozen=True, slots=True)
class Lesson:
    """See the module. Made by `optimization.learning`, read back by `Lesson.read`."""

    kind: Kind
    """`step`: what a change gained over what it was made from. `failure`: a change that did not work.
    `template`: a verified template with its best config and what that gained over the baseline."""
    key: str
    """What was done: a tactic's name, or a model's own word."""
    where: Circumstances
    run: str
    """Id of the run that measured it."""
    node: int
    date: str
    """ISO 8601, UTC."""
    family: str = ""
    problem: str = ""
    version: str = ""
    """Kernelwright's."""
    model: str = ""
    """Who proposed it; empty: rules. Words and texts are shown to a model only if a model has seen their source."""
    instruction: str = ""
    predicted: float | None = None
    measured: Measured | None = None
    stage: str = ""
    """The stage of a failure."""
    reason: str = ""
    message: str = ""
    tactics: tuple[str, ...] = ()
    """Everything applied since the baseline; of a template."""
    config: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""
    """The text of a template; empty: not kept."""
    expired: str = ""
    """Why it does not hold any more; empty: it does."""

    @property
    def id(self) -> str:
        """Short and stable."""
        return content_id(self.kind, self.key, self.run, self.node)[:10]

    @property
    def claim(self) -> Claim:
        """What it says, as far as an interval allows."""
        if self.kind == "failure":
            return "fails"
        interval = self.measured.interval if self.measured is not None else None
        if interval is None:
            return "open"
        if interval.side == "above":
            return "works" if self.kind == "template" else "helps"
        return "nothing" if interval.high <= USEFUL else "open"

    @property
    def words(self) -> str:
        """The claim in a sentence, without where it comes from."""
        on = f"on {self.where.pattern} kernels"
        match self.kind:
            case "failure":
                message = f": {self.message}" if self.message else ""
                return f"{self.key} {on} does not work because it fails at {self.stage}: {self.reason}{message}"
            case "template":
                values = " ".join(f"{name}={value}" for name, value in self.config.items())
                done = " + ".join(self.tactics) or self.key
                return f"a verified template ({done}) {on} is {self.measured} as fast as its baseline with {values}"
        predicted = f", {factor_text(self.predicted)} was predicted" if self.predicted is not None else ""
        verb = {"helps": "gains", "nothing": "brings nothing:"}.get(self.claim, "was measured at")
        return f"{self.key} {on} {verb} {self.measured}{predicted}"

    @property
    def evidence(self) -> str:
        """Where it comes from: run, node, device, shapes, date."""
        where = self.where
        return (
            f"run {self.run[:8]} node {self.node} of {self.problem or 'a problem'}, "
            f"{where.language} on {where.device}, {where.shape} {where.dtype}, {self.date[:10]}"
        )

    def age_days(self, now: datetime.datetime) -> float:
        """Days since it was measured; 0 for a date that cannot be read or lies ahead."""
        try:
            then = datetime.datetime.fromisoformat(self.date)
        except ValueError:
            return math.inf
        if then.tzinfo is None:
            then = then.replace(tzinfo=datetime.UTC)
        return max(0.0, (now - then).total_seconds() / 86400)

    def as_record(self) -> dict[str, Any]:
        """JSON-ready."""
        record = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {
            "format": FORMAT,
            **record,
            "where": dataclasses.asdict(self.where),
            "measured": dataclasses.asdict(self.measured) if self.measured is not None else None,
            "tactics": list(self.tactics),
            "config": dict(self.config),
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Lesson | None:
        """The lesson of a record, made safe; None for what is none, or is of a newer format."""
        try:
            if int(record.get("format", 0)) > FORMAT or record["kind"] not in get_args(Kind):
                return None
            return _read(record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return None


def _read(record: Mapping[str, Any]) -> Lesson:
    where = record["where"]
    measured = record.get("measured")
    return Lesson(
        kind=record["kind"],
        key=safe.name(_text(record["key"])) or "unnamed",
        where=Circumstances(
            **{each.name: safe.label(_text(where[each.name])) for each in dataclasses.fields(Circumstances)}
        ),
        run=safe.name(_text(record["run"])),
        node=int(record["node"]),
        date=datetime.datetime.fromisoformat(_text(record["date"])).isoformat(),
        family=safe.name(_text(record.get("family", ""))),
        problem=safe.name(_text(record.get("problem", ""))),
        version=safe.name(_text(record.get("version", ""))),
        model=safe.line(_text(record.get("model", "")), most=120),
        instruction=safe.line(_text(record.get("instruction", "")), most=MOST_LINE),
        predicted=_factor(record.get("predicted")),
        measured=_measured(measured) if measured is not None else None,
        stage=safe.name(_text(record.get("stage", ""))),
        reason=safe.name(_text(record.get("reason", ""))),
        message=safe.line(_text(record.get("message", "")), most=MOST_LINE),
        tactics=tuple(safe.name(_text(each)) for each in list(record.get("tactics", ()))[:MOST_VALUES]),
        config=_config(record.get("config", {})),
        text=safe.block(_text(record.get("text", "")), most=MOST_TEMPLATE),
        expired=safe.line(_text(record.get("expired", "")), most=MOST_LINE),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _factor(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("expected a number")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError("expected a factor above 0")
    return number


def _measured(record: Mapping[str, Any]) -> Measured:
    estimate = _factor(record["estimate"])
    assert estimate is not None
    low, high = _factor(record.get("low")), _factor(record.get("high"))
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        raise ValueError("expected both bounds or none")
    return Measured(estimate, low, high, _factor(record.get("confidence")))


def _config(record: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, value in list(record.items())[:MOST_VALUES]:
        if isinstance(value, str):
            found[safe.name(_text(key))] = safe.line(value, most=80)
        elif isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            found[safe.name(_text(key))] = value
        else:
            raise TypeError("expected a value")
    return found
