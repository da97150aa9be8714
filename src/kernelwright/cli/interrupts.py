"""One press of Ctrl-C is enough: an interrupt that Python drops is sent again.

Python raises `KeyboardInterrupt` wherever the main thread happens to be. In a destructor, or in a callback of a weak
reference or of the garbage collector, nobody can catch it: Python prints `Exception ignored in ...` and goes on as if
nothing had been pressed. Each `import` ends in such a callback (it drops the module's lock), and scikit-learn, the
report or a driver are imported in the middle of a run: that is no rare place.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn

from kernelwright.cli.clock import begin

AGAIN_S = 0.01
"""After which a dropped interrupt is sent again, so that whatever dropped it has ended; it may be dropped again."""


@contextlib.contextmanager
def heard_interrupts() -> Iterator[None]:
    """Inside, each interrupt that Python drops (see the module) is sent again until something hears it.

    Other exceptions that nobody can catch go where they went before. For the main thread; nests.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Not `threading`, whose locks the code that was interrupted may hold.
            _thread.start_new_thread(_send_again, ())
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _send_again() -> None:
    time.sleep(AGAIN_S)
    for number in (signal.SIGINT, signal.SIGTERM):  # whichever of them becomes an interrupt here
        if callable(signal.getsignal(number)):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            return


def run_command() -> None:
    """The command line as a process of its own: an interrupt at any time ends it in words, with status 130.

    Further presses end it sooner: with one line, and what was recorded by then.
    """
    begin()
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            _end_interrupted()
        before(kind, error, trace)

    sys.excepthook = told
    with heard_interrupts():
        try:
            from kernelwright.cli.main import main

            main()
        except KeyboardInterrupt:
            _end_interrupted()
        except SystemExit as end:
            if _is_silent_interrupt(end):
                _end_interrupted()
            raise
        finally:
            # All is done or told by now; what is left is Python's own end, which has nothing to say of an interrupt.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_interrupted() -> NoReturn:
    """Say so and end; presses that come meanwhile change nothing."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            break
        except KeyboardInterrupt:  # a press just before
            continue
    with contextlib.suppress(OSError):
        sys.stderr.write("kernelwright: interrupted\n")
        sys.stderr.flush()
    os._exit(130)


def _is_silent_interrupt(end: SystemExit) -> bool:
    """Whether the library of the command line turned an interrupt into a status, without a word."""
    return end.code == 130 and isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt)
