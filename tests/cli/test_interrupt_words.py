"""An interrupt ends a command in words, also before the command itself hears of it, and however often one presses."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import signal, sys
import kernelwright.cli.main as cli

def pressed(*_, **__):
    signal.raise_signal(signal.SIGINT)

{where}
from kernelwright.cli.interrupts import run_command
{presses}
sys.argv = ["kernelwright", "show", "runs", "runs"]
run_command()
"""
BEFORE_THE_COMMAND = "import kernelwright.cli.commands.show as show; show.print_runs = pressed"
BEFORE_THE_COMMAND_LINE = "cli.main = pressed"
AGAIN = """
import kernelwright.cli.interrupts as interrupts
silent = signal.SIG_IGN
def press_then_ignore(number, handler, given=signal.signal, left=[2]):
    if handler == silent and left[0]:
        left[0] -= 1
        signal.raise_signal(signal.SIGINT)
    return given(number, handler)
interrupts.signal.signal = press_then_ignore
"""


@pytest.mark.parametrize("presses", ["", AGAIN], ids=["once", "thrice"])
@pytest.mark.parametrize("where", [BEFORE_THE_COMMAND, BEFORE_THE_COMMAND_LINE], ids=["in the library", "outside"])
def test_an_interrupt_that_no_command_hears_is_told_in_one_line(where: str, presses: str) -> None:
    program = SCRIPT.format(where=where, presses=presses)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kernelwright: interrupted\n")
