"""What may come of a job in another process instead of its result."""

from __future__ import annotations

import contextlib
import signal

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.process.reply import UntrustedReply, loads_reply

SIGNALS_WITHOUT_ROOM = frozenset({"SIGABRT", "SIGBUS"})
"""PoCL aborts when it cannot write its files; a mapped page that has no room is a bus error."""


class JobTimeout(InfrastructureError):
    """A job did not answer in time; its worker was killed.

    Attributes:
        timeout_s: what it was given.
        log_tail: the end of what the worker printed during the job.
    """

    def __init__(self, name: str, timeout_s: float, log_tail: str) -> None:
        super().__init__(f"worker {name!r} gave no answer within {timeout_s:g} s and was killed")
        self.name = name
        self.timeout_s = timeout_s
        self.log_tail = log_tail

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (JobTimeout, (self.name, self.timeout_s, self.log_tail))


class WorkerDied(InfrastructureError):
    """A worker ended, or was ended, while it had a job.

    Attributes:
        exit_code: the process's exit status, negative for a signal, as `subprocess` gives it.
        signal_name: e.g. `SIGSEGV`, or None when it was no signal.
        log_tail: the end of what the worker printed during the job.
    """

    def __init__(self, name: str, exit_code: int, log_tail: str) -> None:
        self.signal_name = _signal_name(exit_code)
        how = f"by {self.signal_name}" if self.signal_name else f"with exit status {exit_code}"
        super().__init__(f"worker {name!r} died {how}")
        self.name = name
        self.exit_code = exit_code
        self.log_tail = log_tail

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (WorkerDied, (self.name, self.exit_code, self.log_tail))


class RemoteError(InfrastructureError):
    """A job raised something that cannot, or may not, be rebuilt in this process.

    Attributes:
        kind: the exception's class name.
        text: its traceback.
    """

    def __init__(self, kind: str, message: str, text: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.detail = message
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (RemoteError, (self.kind, self.detail, self.text))


def _signal_name(exit_code: int) -> str | None:
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def rebuild_result(reply: bytes, package: str) -> object:
    """What a worker sent as a job's result, with data classes of `package` in it.

    Raises:
        RemoteError: it is no plain data.
    """
    try:
        return loads_reply(reply, package)
    except UntrustedReply as error:
        raise RemoteError("UntrustedReply", str(error), "") from error


def rebuild_error(reply: bytes, worker_name: str) -> Exception:
    """What a job raised, as it was where that may be rebuilt, else as a `RemoteError`."""
    try:
        kind, message, text, body = _error_fields(loads_reply(reply))
    except UntrustedReply as refusal:
        return RemoteError("UntrustedReply", str(refusal), "")
    with contextlib.suppress(UntrustedReply):
        error = None if body is None else loads_reply(body)
        if isinstance(error, Exception):
            error.add_note(f"raised in worker {worker_name!r}:\n{text}")
            return error
    return RemoteError(kind, message, text)


def _error_fields(fields: object) -> tuple[str, str, str, bytes | None]:
    match fields:
        case (str() as kind, str() as message, str() as text, bytes() | None as body):
            return kind, message, text, body
    raise UntrustedReply("an error reply without its four fields")
