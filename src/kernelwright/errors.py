"""Every error that Kernelwright raises on purpose, named by what the caller should do.

```
KernelwrightError
├── UserError                 exit status 2: something that a person wrote must change
│   ├── SpecError             a problem file, a template, an expression
│   ├── ReferenceFailed       the reference raised, returned NaN or another shape
│   ├── BaselineFailed        the baseline does not build, run, or agree with the reference
│   ├── EmptySpace            the constraints leave no configuration
│   ├── BudgetTooShort        what a claim needs takes longer than the budget
│   ├── UsageError            a command's words
│   └── MissingDependency     an optional package or driver; the hint says what to install
├── StoreError                exit status 2: a run folder that cannot be read or written; nothing is lost
├── InfrastructureError       exit status 3: a worker, a device, the machine; retried, never told to a searcher
├── ScratchFull               exit status 3: no room for scratch files; nobody is blamed, nothing is retried
├── ModelError                exit status 3: a language model gave no usable reply; the run can be resumed
│   ├── ModelAuthFailed       exit status 2: no key, a wrong one, or no such model: nothing is tried again
│   ├── ModelRateLimited      too many requests; `retry_after_s` says when to come back
│   ├── ModelUnavailable      the service cannot be reached, failed, or did not reply in time
│   ├── ModelRefused          the service does not answer this request
│   ├── ModelReplyMalformed   a reply that is no reply of a model
│   ├── ModelReplyMissing     a replay was asked for a request that was not recorded
│   └── ModelBudgetSpent      a cap on money, tokens, requests or time is reached
│       └── ModelAbandoned    the run's time was over before the reply came
└── StopRun                   the run must stop cleanly, with the best so far
```

A candidate's failure is *not* here: it is a value, `kernelwright.problem.outcome.Failed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file that a person wrote. Lines and columns count from 1; 0 means unknown."""

    file: Path
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """`file:line:column`, leaving out what is unknown."""
        text = str(self.file)
        if self.line:
            text += f":{self.line}"
            if self.column:
                text += f":{self.column}"
        return text


class KernelwrightError(Exception):
    """The root of the tree: a message for a person, an optional hint, and where it is.

    Attributes:
        hint: what to do about it, as an instruction.
        location: the file and line that must change, when there is one.
    """

    exit_status = 1

    def __init__(self, message: str, *, hint: str | None = None, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.location = location

    def __str__(self) -> str:
        """`file:line: message (hint)`, the form that every command prints."""
        text = f"{self.location}: {self.message}" if self.location else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword arguments when the error crosses a process boundary."""
        return (_rebuild, (type(self), self.message, self.hint, self.location))


def _rebuild(
    kind: type[KernelwrightError], message: str, hint: str | None, location: Location | None
) -> KernelwrightError:
    return kind(message, hint=hint, location=location)


class UserError(KernelwrightError):
    """Something that a person wrote must change."""

    exit_status = 2


class SpecError(UserError):
    """A problem file, a template header or an expression is wrong."""


class ReferenceFailed(UserError):
    """The reference raised, returned a non-finite value, or an output of another shape."""


class BaselineFailed(UserError):
    """The baseline does not build, does not run, or does not agree with the reference."""


class EmptySpace(UserError):
    """The declared constraints and the device's limits leave no configuration."""


class BudgetTooShort(UserError):
    """What a claim needs takes longer than the budget; nothing was claimed, and nothing was lost."""


class UsageError(UserError):
    """A command was called with words that do not fit."""


class MissingDependency(UserError):
    """An optional package, driver or device is not here; the hint says what to install."""


class StoreError(KernelwrightError):
    """A run folder cannot be read or written. What it holds is untouched."""

    exit_status = 2


class InfrastructureError(KernelwrightError):
    """A worker, a device or the machine failed; a candidate is never blamed for it."""

    exit_status = 3


class ScratchFull(KernelwrightError):
    """There is no room for scratch files. The run can be resumed when there is."""

    exit_status = 3


class ModelError(KernelwrightError):
    """A language model gave no usable reply. What was paid for is recorded.

    Attributes:
        tokens: of the request and of what came back, as far as they were told; None: unknown.
        cost_usd: of them; None: unknown.
        seconds: that were waited for it.
    """

    exit_status = 3
    tokens: tuple[int, int] | None = None
    cost_usd: float | None = None
    seconds: float = 0.0


class ModelAuthFailed(ModelError):
    """No key, a key that is not accepted, or a model that this key cannot use: a person must change something."""

    exit_status = 2


class ModelRateLimited(ModelError):
    """Too many requests.

    Attributes:
        retry_after_s: how long the service asks to wait; None: it does not say.
    """

    retry_after_s: float | None = None


class ModelUnavailable(ModelError):
    """The service cannot be reached, failed on its side, or did not reply within the time that was given."""

    retry_after_s: float | None = None


class ModelRefused(ModelError):
    """The service does not answer this request: its content, its length, or a setting."""


class ModelReplyMalformed(ModelError):
    """What came back is no reply of a model."""


class ModelReplyMissing(ModelError):
    """A replay was asked for a request that was not recorded."""


class ModelBudgetSpent(ModelError):
    """A cap on money, tokens, requests or time is reached; nothing was asked."""


class ModelAbandoned(ModelBudgetSpent):
    """The time of the run was over before the reply came; what it costs is not known."""


class StopRun(KernelwrightError):
    """The run must stop cleanly now, keeping the best so far."""

    exit_status = 130
