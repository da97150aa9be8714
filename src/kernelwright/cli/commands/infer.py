"""A problem from a plain kernel and words: what `optimize FILE` and `init FILE` do before all else."""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from kernelwright.errors import SpecError, UsageError
from kernelwright.evaluate.judge.trial_launch import trial_launches
from kernelwright.infer.finite import with_finite_results
from kernelwright.infer.inference import Given, infer, split_kernel
from kernelwright.infer.model import Inferred, InferredArgument
from kernelwright.infer.problem_files import check_loads, choose_folder, files_of, write_files
from kernelwright.infer.words import read_words
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.language import LANGUAGE_OF_SUFFIX
from kernelwright.store.files import explain

MOST_LAUNCH_S = 0.25
"""The baseline's longest launch on sizes that nobody said."""
MEMORY_SHARE = 0.25
"""The share of the device's memory for all arrays on such sizes."""
MOST_TRIALS = 8


@dataclass(frozen=True, slots=True)
class KernelWords:
    """What is said of a plain kernel on the command line."""

    source: Path
    """The file, or `FILE::kernel`."""
    words: tuple[str, ...] = ()
    entry: str | None = None
    grid: str | None = None
    block: str | None = None
    out: Path | None = None
    call: Path | None = None
    """Of a Triton file: `FILE::FUNCTION` that makes the call to watch."""
    library: bool = False
    """Of a PyTorch module: whether a library computes products, convolutions and attention."""
    algebra: bool = False
    """Of a PyTorch module: whether exact algebra rewrites its graph."""
    triton: bool = False
    """Of a plain kernel in C: whether the template is in Triton."""


def is_kernel_file(path: Path) -> bool:
    """Whether a path names a kernel source, with a kernel in it or without."""
    return split_kernel(str(path))[0].suffix in LANGUAGE_OF_SUFFIX.keys() - {".py"}


def inferred_problem(said: KernelWords, *, is_silent: bool) -> Path:
    """The problem that is named, or that is written for the kernel that is named.

    Raises:
        UsageError: words for a kernel stand behind a problem; else as `problem_of_kernel`.
    """
    if is_kernel_file(said.source) and not said.source.is_dir():
        return problem_of_kernel(said, is_silent=is_silent)
    options = [("--grid", said.grid), ("--block", said.block), ("--out", said.out)]
    unused = [*said.words, *(option for option, value in options if value is not None)]
    if unused:
        raise UsageError(
            f"{' '.join(unused)}: only for a kernel source, and {said.source} is none",
            hint=f"leave it out, or write it into {said.source}'s problem.toml",
        )
    return said.source


def problem_of_kernel(said: KernelWords, *, is_silent: bool) -> Path:
    """Infer, print what was inferred in five lines, and write the problem; its folder.

    Raises:
        UsageError: something has to be asked: all of it in one message.
        SpecError: the file is none, or no problem can be written for it.
    """
    inferred = infer_words(said, asks=True)
    if inferred.questions:
        raise UsageError(_questions_text(inferred), hint=f"say it: {_command(said, inferred)}")
    inferred, launch_s = _fitting(said, inferred)
    inferred = with_finite_results(inferred)
    files, absent = files_of(inferred)
    check_loads(inferred.file, inferred.entry, files)
    folder = said.out or choose_folder(inferred.file.parent, inferred.file.stem, files)
    write_new(folder, files, is_forced=False)
    if not is_silent:
        for line in (
            *five_lines(inferred, folder, launch_s=launch_s),
            *(f"note: {note}" for note in (*absent, *inferred.notes)),
        ):
            typer.echo(line)
    return folder


def _fitting(said: KernelWords, inferred: Inferred) -> tuple[Inferred, float | None]:
    """The same with sizes that nobody said as small as this device needs them, and seconds of a launch, if it ran.

    At most `MOST_LAUNCH_S` a launch, and a quarter of the device's memory.
    """
    if not inferred.guessed_sizes:
        return inferred, None
    launch_s: float | None = None
    with tempfile.TemporaryDirectory(prefix="kernelwright-sizes-") as staged, trial_launches(Path(staged)) as launch:
        for number in range(MOST_TRIALS):
            folder = Path(staged) / f"problem-{number}"
            files, _ = files_of(inferred)
            check_loads(inferred.file, inferred.entry, files)
            write_files(folder, files)
            launched = launch(folder / "problem.toml")
            if launched is None:
                return inferred, None
            launch_s, memory_bytes = launched
            most_bytes = (memory_bytes or 4 * inferred.array_bytes) * MEMORY_SHARE
            too_much = max(launch_s / MOST_LAUNCH_S, inferred.array_bytes / most_bytes)
            if too_much <= 1.0:
                break
            halvings = inferred.halvings + max(1, round(math.log2(too_much) / 2))  # work grows with several sizes
            smaller = infer_words(said, asks=True, halvings=halvings)
            if smaller.sizes == inferred.sizes:
                break
            inferred = smaller
    return inferred, launch_s


def infer_words(said: KernelWords, *, asks: bool, halvings: int = 0) -> Inferred:
    """What the file and the words say.

    Raises:
        UsageError, SpecError: as `infer`.
    """
    file, kernel = split_kernel(str(said.source))
    if kernel is not None and said.entry not in (None, kernel):
        raise UsageError(
            f"{said.source} names the kernel {kernel!r}, and --entry {said.entry!r}", hint="say one of them"
        )
    given = Given(
        read_words(said.words),
        kernel or said.entry,
        _extents(said.grid, "--grid"),
        _extents(said.block, "--block"),
        asks,
        halvings=halvings,
    )
    return infer(file, given)


def write_new(folder: Path, files: Mapping[str, bytes], *, is_forced: bool) -> list[Path]:
    """Write all files into a folder, or none; their paths. Files that are there with these very bytes may stay.

    Raises:
        UsageError: another one is there already and `is_forced` is false, or the folder cannot be written.
    """
    try:
        others = [name for name, data in files.items() if _is_other(folder / name, data)]
        if others and not is_forced:
            raise UsageError(
                f"{folder} already holds {', '.join(others)}", hint="choose another --out, or overwrite with --force"
            )
        write_files(folder, files)
    except OSError as error:
        told = explain(error, "write the problem into", folder)
        raise UsageError(told.message, hint=f"say another --out, or {told.hint}") from error
    return [folder / name for name in files]


def _is_other(path: Path, data: bytes) -> bool:
    return path.exists() and not (path.is_file() and path.read_bytes() == data)


def five_lines(inferred: Inferred, folder: Path, *, launch_s: float | None = None) -> tuple[str, ...]:
    """What was inferred: arguments, launch, sizes, what is a guess, and where it was written.

    `launch_s`: of one launch on these sizes, where they were chosen for this device.
    """
    arrays = [each for each in inferred.arguments if each.role != "scalar"]
    scalars = [
        f"{each.name} = {each.value}"
        for each in inferred.arguments
        if each.role == "scalar" and each.name != each.value
    ]
    sizes = [f"{name} = {value}" for name, value in inferred.sizes.items()]
    launch = inferred.launch
    memory = f"{inferred.array_bytes / 1e6:.3g} MB in all arrays"
    memory += "" if launch_s is None else f"; a launch takes {1e3 * launch_s:.3g} ms here"
    certain = "nothing: the source or you say all of it"
    kernels = ", then ".join(dict.fromkeys(step.entry for step in inferred.launches)) or inferred.entry
    return (
        f"kernel:    {kernels}({', '.join(map(_array_text, arrays))})",
        f"launch:    grid ({', '.join(launch.grid)}), block ({', '.join(launch.block)}), {launch.origin}",
        f"sizes:     {', '.join((*sizes, *scalars)) or 'none'}; {memory}",
        f"guesses:   {'; '.join(inferred.guesses) or certain}",
        f"problem:   {folder}; right is what the original kernel computes, in a wider type where its text allows it",
    )


def _array_text(argument: InferredArgument) -> str:
    within = f" in {argument.bounds[0]}..{argument.bounds[1]}" if argument.bounds is not None else ""
    return f"{argument.name}: {argument.role} {argument.dtype.name}[{', '.join(argument.shape)}]{within}"


def _extents(text: str | None, option: str) -> tuple[str, ...]:
    if text is None:
        return ()
    parts = _split(text)
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise UsageError(f"{option} {text!r} has {len(parts)} extents, expected 1 to 3", hint=f"say {option} 64,8")
    for part in parts:
        try:
            Expression.parse(part)
        except SpecError as error:
            raise UsageError(
                f"{option} {text!r}: {error.message}", hint="say numbers, or sizes of the kernel"
            ) from None
    return parts


def _split(text: str) -> tuple[str, ...]:
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return (*parts, text[start:].strip())


def _questions_text(inferred: Inferred) -> str:
    asked = "\n".join(f"  {each.word}: {each.why}" for each in inferred.questions)
    return f"{inferred.file.name} does not say everything that {inferred.entry!r} needs:\n{asked}"


def _command(said: KernelWords, inferred: Inferred) -> str:
    words: Sequence[str] = [*said.words, *(each.word for each in inferred.questions)]
    return f"kernelwright optimize {shlex.quote(str(said.source))} {' '.join(words)}"
