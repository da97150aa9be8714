"""For threads that must answer every request: an error that nobody foresaw goes to whoever waits, not to the thread."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class HandsOver:
    """A `with` block whose unforeseen errors are given away; what is no `Exception` (an interrupt) passes."""

    def __init__(self, give: Callable[[Exception], None]) -> None:
        self._give = give

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._give(error)
        return True
