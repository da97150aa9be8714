"""Which words of `optimize` are problems, and which are a kernel's values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelwright.cli.commands.infer import KernelWords, inferred_problem
from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.infer.inference import split_kernel
from kernelwright.problem.load.problem import PROBLEM_FILE_NAME


def batch_words(said: KernelWords) -> tuple[KernelWords, ...] | None:
    """The problems that are named, each with the values behind it; None: one problem, no folder of several.

    Raises:
        UsageError: an option that is of one kernel stands beside several.
    """
    named = [KernelWords(said.source)]
    for word in said.words:
        if "=" not in word and split_kernel(word)[0].exists():
            named.append(KernelWords(Path(word)))
        else:
            named[-1] = KernelWords(named[-1].source, (*named[-1].words, word))
    found = [each for one in named for each in _inside(one)]
    if len(found) == 1 and found[0].source == said.source:
        return None
    for option, value in (("--grid", said.grid), ("--block", said.block), ("--out", said.out)):
        if value is not None:
            hint = f"write its problem first: kernelwright init KERNEL {option} ..."
            raise UsageError(f"{option} {value}: of which of {len(found)} problems is not said", hint=hint)
    return tuple(found)


def _inside(said: KernelWords) -> Sequence[KernelWords]:
    """The problems of a folder of folders; else what was named."""
    if not said.source.is_dir() or (said.source / PROBLEM_FILE_NAME).exists():
        return (said,)
    inside = sorted(path.parent for path in said.source.glob(f"*/{PROBLEM_FILE_NAME}"))
    return [KernelWords(path, said.words) for path in inside] or (said,)


def batch_problems(
    found: Sequence[KernelWords], *, is_silent: bool
) -> tuple[list[Path], dict[Path, KernelwrightError]]:
    """The problems' folders, those of kernels written first; what no problem can be written for, and why."""
    folders: list[Path] = []
    failed: dict[Path, KernelwrightError] = {}
    for each in found:
        try:
            folders.append(inferred_problem(each, is_silent=is_silent))
        except KernelwrightError as error:
            failed[each.source] = error
    return folders, failed
