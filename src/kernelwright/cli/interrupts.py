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
    """The command line as a process of its own: an interrupt at any time ends it in one line, with status 130."""
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            before(kind, error, trace)
            return
        with contextlib.suppress(OSError):
            sys.stderr.write("kernelwright: interrupted\n")
            sys.stderr.flush()
        os._exit(130)

    sys.excepthook = told
    with heard_interrupts():
        try:
            from kernelwright.cli.main import main

            main()
        finally:
            # All is done or told by now; what is left is Python's own end, which has nothing to say of an interrupt.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
