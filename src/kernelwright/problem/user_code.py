"""Whatever a user's own Python code raises, as a complaint that names the line.

Code that a person wrote may raise anything: exceptions that are none of `Exception`, and such as cannot be shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kernelwright.errors import Location, ReferenceFailed
from kernelwright.problem.checks import shown_path

MAX_SHOWN = 2000
"""Characters of an exception's own text."""


@contextmanager
def blamed_on_user(file: Path, *, doing: str) -> Iterator[None]:
    """Around code of the user's `file`, and around looks at what it made.

    Raises:
        ReferenceFailed: as it came, and in place of everything else that was raised.
    """
    try:
        yield
    except ReferenceFailed:
        raise
    except BaseException as error:
        raise _failure(error, file, doing) from error


def _failure(error: BaseException, file: Path, doing: str) -> ReferenceFailed:
    """The complaint, at the innermost line of the user's own files."""
    try:
        return _described(error, file, doing)
    except BaseException as another:  # an exception's text and fields are the user's code again
        shown = f"{type(error).__name__}, whose text cannot be had: that raised {type(another).__name__}"
        return ReferenceFailed(f"{doing} raised {shown}", location=place_of(error, file))


def _described(error: BaseException, file: Path, doing: str) -> ReferenceFailed:
    hint = None
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = "kernelwright[torch]" if error.name == "torch" else error.name
        hint = f"pip install '{package}'"
    elif isinstance(error, NotImplementedError):
        hint = "fill in the reference: it defines what is right"
    text = str(error).strip()
    if len(text) > MAX_SHOWN:
        text = f"{text[:MAX_SHOWN]}..."
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ReferenceFailed(f"{doing} raised {shown}", hint=hint, location=place_of(error, file))


def place_of(error: BaseException, file: Path) -> Location:
    """The innermost line of the user's files that an error came through; of its cause's where others raised it."""
    found = None
    for cause in causes_of(error):
        found = _innermost(cause.__traceback__, file) or found
        if _is_raised_in(cause.__traceback__, file):
            break
    return found or Location(shown_path(file))


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on; each once, as `raise error from error` makes a circle."""
    cause: BaseException | None = error
    known: list[BaseException] = []
    while cause is not None and not any(cause is each for each in known):
        known.append(cause)
        yield cause
        cause = cause.__cause__


def _is_raised_in(traceback: TracebackType | None, file: Path) -> bool:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and Path(traceback.tb_frame.f_code.co_filename).parent == file.parent


def _innermost(traceback: TracebackType | None, file: Path) -> Location | None:
    found = None
    while traceback is not None:
        name = Path(traceback.tb_frame.f_code.co_filename)
        if name == file or name.parent == file.parent:
            found = Location(shown_path(name), traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
