"""`python -m kernelwright`."""

from kernelwright.cli.interrupts import run_command

if __name__ == "__main__":
    run_command()
