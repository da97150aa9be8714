"""An ordinary problem folder of what was inferred: nothing in it needs the inference again."""

from __future__ import annotations

import io
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.errors import KernelwrightError, SpecError
from kernelwright.infer.arguments import BEYOND
from kernelwright.infer.model import Inferred, InferredArgument, InferredStep
from kernelwright.infer.text.device_text import device_text
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.includes import includes_in
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.toml.file import read_text
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.template.load import load_baseline, load_template, problem_files

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_GENERATED = "# Inferred from"
MOST_FOLDERS = 1000


def files_of(inferred: Inferred) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """By name, the files of the problem; and what a person must copy.

    The kernel's file twice, byte for byte but for host code: as what is tuned, and as the reference, which stays.
    """
    is_instance = inferred.source != read_text(inferred.file, what="the kernel source")
    source = inferred.source.encode() if is_instance else inferred.file.read_bytes()
    text = device_text(source, inferred.language)
    original = f"original{inferred.file.suffix}"
    if inferred.file.name == original:
        original = f"reference{inferred.file.suffix}"
    files = {
        "problem.toml": problem_text(inferred, original).encode(),
        inferred.file.name: text,
        original: text,
    }
    for argument in inferred.arguments:
        if argument.values in ("distinct", "offsets"):
            files[argument.file] = _made_values(argument, inferred.sizes)
        elif argument.file:
            files[Path(argument.file).name] = Path(argument.file).read_bytes()
    headers, notes = headers_of(inferred.file)
    if is_instance:
        notes = (
            *notes,
            f"{inferred.file.name} is copied with {inferred.entry!r} as the instance that is launched",
        )
    if text != source:
        notes = (*notes, f"{inferred.file.name} is copied without its host code, which is not compiled here")
    return {**files, **{name: header.encode() for name, header in headers.items()}}, notes


def _made_values(argument: InferredArgument, sizes: Mapping[str, int]) -> bytes:
    """The `.npy` file of an array whose values are no random ones; always the same."""
    import numpy as np

    shape = tuple(int(Expression.parse(each).evaluate(dict(sizes))) for each in argument.shape)
    make = _offsets if argument.values == "offsets" else _distinct
    low, high = argument.bounds or (0, 0)
    values = make(np.random.default_rng(0), math.prod(shape), int(low), int(high))
    file = io.BytesIO()
    np.save(file, values.astype(argument.dtype.name).reshape(shape))
    return file.getvalue()


def _distinct(rng: np.random.Generator, count: int, low: int, high: int) -> npt.NDArray[Any]:
    """Values up to `high`, none twice but those below 0."""
    import numpy as np

    kinds = max(high + 1, 0)
    values = rng.choice(kinds, min(count, kinds), replace=False)  # no array of a whole wide range
    if values.size < count:  # too few: as far as they go
        values = np.resize(values, count)
    if low < 0:
        values[:: BEYOND + 1] = -1
    return values


def _offsets(rng: np.random.Generator, count: int, low: int, high: int) -> npt.NDArray[Any]:
    """From `low` to `high` in steps of random lengths; one step in `BEYOND` is none."""
    import numpy as np

    lengths = rng.exponential(size=max(count - 1, 0))
    lengths[BEYOND - 1 :: BEYOND] = 0
    ends = np.concatenate(([0.0], np.cumsum(lengths)))
    return np.rint(low + (high - low) * ends / (ends[-1] or 1.0)).astype(np.int64)


def problem_text(inferred: Inferred, original: str) -> str:
    """`problem.toml`, with plain numbers; whatever is not certain is marked `guess`."""
    launch = inferred.launch
    lines = [
        f"{_GENERATED} {inferred.file.name}: correct what says guess.",
        f"name = {inline_toml(_safe_name(inferred.file.stem if inferred.launches else inferred.entry))}",
        f"kernel = {inline_toml(inferred.file.name)}",
        f"entry = {inline_toml(inferred.entry)}",
        "# The original kernel says what is right, with doubles for floats where that is possible. Write what is",
        '# meant, in NumPy or PyTorch, to have the kernel itself checked: reference = "reference.py:FUNCTION".',
        f"reference = {inline_toml(f'{original}:{inferred.entry}')}",
        *([f"options = {inline_toml(inferred.options)}"] if inferred.options else []),
        "",
        "# In the kernel's order. Roles: input, output, inout (read and written, or written in part), scalar.",
        "[arguments]",
        *_aligned(inferred.arguments),
        "",
        f"# Blocks and threads of a block, {launch.origin}." + (f" guess: {launch.note}" if launch.note else ""),
        *_launch_lines(inferred),
        "",
        "# The sizes that matter; add more [[workloads]], each with a weight (1 when left out).",
        "[[workloads]]",
        *(_size_line(inferred, name) for name in inferred.sizes),
        "",
        *_work_lines(inferred),
    ]
    return "\n".join(lines)


def _work_lines(inferred: Inferred) -> Iterator[str]:
    """What must surely be moved, where that is not all: of arrays that others index, few elements may be touched."""
    arrays = [each for each in inferred.arguments if each.role not in ("scalar", "local")]
    indexed = [each for each in arrays if each.chosen is not None]
    if not indexed:
        return
    terms = []
    for each in arrays:
        times = 2 if each.role == "inout" and each.chosen is None else 1
        factors = [f"({extent})" for extent in each.shape] if each.chosen is None else [each.chosen]
        if all(factors):
            terms.append(" * ".join((str(times * each.dtype.item_bytes), *factors)))
    untold = ", ".join(each.name for each in indexed if not each.chosen)
    told = ", ".join(each.name for each in indexed if each.chosen)
    without = f": without {untold}, of which values of others choose the elements" if untold else ""
    yield f"# The bytes that every kernel must move{without}."
    if told:
        yield f"# Of {told} what drawn values choose: of R rows N values choose R * N / (R + N) in the mean, or more."
    yield "[work]"
    yield f"bytes = {inline_toml(' + '.join(terms) or '1')}"
    yield ""


def _launch_lines(inferred: Inferred) -> Iterator[str]:
    one = inferred.launch
    only = InferredStep("", one.grid, one.block, one.shared_bytes, ())
    for step in inferred.launches or (only,):
        yield "[[launch]]" if inferred.launches else "[launch]"
        if step.entry:
            yield f"entry = {inline_toml(step.entry)}"
        yield f"grid = {inline_toml(step.grid)}"
        yield f"block = {inline_toml(step.block)}"
        if step.shared_bytes:
            yield f"shared_bytes = {inline_toml(step.shared_bytes)}"
        if step.arguments:
            yield f"arguments = {inline_toml(step.arguments)}"


def _size_line(inferred: Inferred, name: str) -> str:
    return f"{name} = {inferred.sizes[name]}" + ("  # guess" if name in inferred.guessed_sizes else "")


def _aligned(arguments: tuple[InferredArgument, ...]) -> Iterator[str]:
    width = max(len(each.name) for each in arguments)
    for each in arguments:
        fields = [f"role = {inline_toml(each.role)}", f"dtype = {inline_toml(each.dtype.name)}"]
        if each.role == "scalar":
            fields.append(f"value = {inline_toml(each.value)}")
        else:
            fields.append(f"shape = {inline_toml(each.shape)}")
        if each.file:
            fields.append(f"file = {inline_toml(Path(each.file).name)}")
        elif each.values == "zeros" and each.role == "inout":
            fields.append("value = 0")
        elif each.bounds is not None and each.role in ("input", "inout"):
            fields.append(f"range = [{each.bounds[0]}, {each.bounds[1]}]")
        note = f"  # guess: {each.note}" if each.note else ""
        yield f"{each.name.ljust(width)} = {{ {', '.join(fields)} }}{note}"


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip("_.-") or "problem"


def choose_folder(beside: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """`NAME` beside the kernel, or `NAME-2` and so on: a folder that is not there, or holds these very files."""
    for number in range(1, MOST_FOLDERS):
        folder = beside / (name if number == 1 else f"{name}-{number}")
        if not folder.exists() or _holds(folder, files):
            return folder
    raise SpecError(f"there are {MOST_FOLDERS} folders {name}-N in {beside}", hint="say another with --out")


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    try:
        return all((folder / name).read_bytes() == data for name, data in files.items())
    except OSError:
        return False


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files, in bytes, so that line ends stay as they are.

    Raises:
        OSError: the folder cannot be written.
    """
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def check_loads(source: Path, entry: str, files: Mapping[str, bytes]) -> None:
    """Refuse, before anything is written, what would not load: a first problem with an error in it helps nobody.

    Raises:
        SpecError: it does not load; the message says why.
    """
    with tempfile.TemporaryDirectory(prefix="kernelwright-init-") as staged:
        folder = Path(staged)
        write_files(folder, files)
        try:
            problem = load_problem(folder)
            template = load_template(problem)
            problem_files(problem, template, load_baseline(problem, template))
        except KernelwrightError as error:
            message = error.message.replace(f"{folder}{os.sep}", "")
            raise SpecError(
                f"no problem can be written for {entry!r} of {source}: {message}",
                hint=f"{error.hint}; or write problem.toml by hand" if error.hint else "write problem.toml by hand",
            ) from error


def headers_of(source: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """The headers beside the source that it includes by quotes, and those that they include; what is not there."""
    files: dict[str, str] = {}
    notes: list[str] = []
    folder = source.parent.resolve()
    waiting = [source.resolve()]
    seen = set(waiting)
    while waiting:
        current = waiting.pop()
        text = read_text(current, what="the kernel source" if len(seen) == 1 else "the header")
        for name in (each.name for each in includes_in(text) if each.is_quoted and not each.is_macro):
            path = Path(os.path.normpath(current.parent / name))
            if path in seen:
                continue
            if not path.is_relative_to(folder) or not path.is_file():
                notes.append(f'{current.name} includes "{name}", which is not beside it: copy it into the folder')
                continue
            seen.add(path)
            waiting.append(path)
            files[path.relative_to(folder).as_posix()] = read_text(path, what="the header")
    return files, tuple(notes)
