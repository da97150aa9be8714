"""For threads that must answer every request: an error that nobody foresaw goes to whoever waits, not to the thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def handing_over(give: Callable[[Exception], None]) -> Iterator[None]:
    """A `with` block whose unforeseen errors are given away; what is no `Exception` (an interrupt) passes."""
    try:
        yield
    except Exception as error:  # whoever waits gets it told
        give(error)
