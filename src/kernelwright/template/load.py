"""Templates from a problem's sources, and all files of a problem for the record of a run.

```
problem = load_problem("matmul")
template = load_template(problem)                    # the header's parameters, checked against problem and source
baseline = load_baseline(problem, template)          # the [baseline], or the template at its defaults
files = problem_files(problem, template, baseline)   # {"problem.toml": b"...", "matmul.cl": b"...", ...}
```
"""

from __future__ import annotations

import tomllib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kernelwright.errors import SpecError
from kernelwright.problem.checks import shown_path
from kernelwright.problem.includes import included_files, includes_in, is_stored
from kernelwright.problem.model import LaunchStep, Problem, SourceSpec
from kernelwright.problem.reference_file import reference_files
from kernelwright.problem.toml.file import read_text
from kernelwright.source.language import LANGUAGE_OF_SUFFIX
from kernelwright.template.check import check_template, resolve_arguments
from kernelwright.template.header import Header, expressions, parse_header
from kernelwright.template.model import Candidate, Template

__all__ = ["Header", "files_as_written", "load_baseline", "load_template", "parse_header", "problem_files"]

_KEPT = ".keep"
"""An empty file for a folder that must exist."""

_INCLUDE_SUFFIXES = frozenset((".h", ".hh", ".hpp", ".cuh", ".clh", ".inc"))


def load_template(problem: Problem) -> Template:
    """The problem's kernel as a template; a plain source is one without parameters.

    Every launch of the result names its arguments.

    Raises:
        SpecError: the header is wrong, or does not fit the problem or the source, with the line to change.
    """
    return _load(problem, problem.kernel, fallback=())


def load_baseline(problem: Problem, template: Template) -> Candidate:
    """What speedups are measured against: the `[baseline]` at its own defaults, or the template at its defaults.

    A baseline without launches of its own is launched as the problem's `[launch]` says.

    Raises:
        SpecError: the baseline's source does not fit the problem.
    """
    spec = problem.baseline
    if spec is None:
        return Candidate(template, template.default)
    steps = problem.kernel.steps
    if len(steps) == 1 and spec.entry is not None:
        steps = (replace(steps[0], entry=spec.entry),)
    baseline = _load(problem, spec, fallback=steps)
    return Candidate(baseline, baseline.default)


def load_reference_kernel(problem: Problem) -> Candidate:
    """The kernel that is the reference, launched as its own header says, else as the problem's `[launch]` does.

    Raises:
        SpecError: its source does not fit the problem.
    """
    reference, kernel = problem.reference, problem.kernel
    spec = replace(
        kernel, file=reference.file, entry=reference.function, steps=(), location=reference.location,
        language=LANGUAGE_OF_SUFFIX[reference.file.suffix],
    )  # fmt: skip
    steps = (
        tuple(replace(step, entry=reference.function) for step in kernel.steps[:1])
        if len(kernel.steps) == 1
        else kernel.steps
    )
    loaded = _load(problem, spec, fallback=steps)
    return Candidate(loaded, loaded.default)


def template_of_text(problem: Problem, source: str, *, spec: SourceSpec) -> Template:
    """A text as the template that it would be in the place of `spec`'s file; nothing is read or written.

    Raises:
        SpecError: as `load_template`, with the line of the text.
    """
    return _from_text(problem, spec, source, fallback=problem.kernel.steps)


def _load(problem: Problem, spec: SourceSpec, *, fallback: tuple[LaunchStep, ...]) -> Template:
    source = read_text(spec.file, what="the kernel source", location=spec.location)
    return _from_text(problem, spec, source, fallback=fallback)


def _from_text(problem: Problem, spec: SourceSpec, source: str, *, fallback: tuple[LaunchStep, ...]) -> Template:
    if not source.strip():
        raise SpecError(
            f"the kernel source {spec.file.name} is empty",
            hint=f"write the kernel {spec.entry!r} there" if spec.entry else "write the kernel there",
        )
    header = parse_header(source, shown_path(spec.file), entry=spec.entry)
    steps = header.steps or spec.steps or fallback
    if not steps:
        raise SpecError(
            f"nothing says how {spec.file.name} is launched",
            hint='add [launch] with grid = ["..."] and block = ["..."], here or in the header of the source',
            location=spec.location,
        )
    template = Template(
        name=spec.file.stem,
        file=spec.file,
        language=spec.language,
        source=source,
        parameters=header.parameters,
        constraints=header.constraints,
        steps=_with_blocks(steps, header) if spec.language == "triton" else steps,
        defines=header.defines,
        scratch=header.scratch,
        options=(*spec.options, *header.options),
        include_paths=spec.include_paths,
    )
    template = resolve_arguments(problem, template)
    check_template(problem, template, spec)
    return template


def _with_blocks(steps: tuple[LaunchStep, ...], header: Header) -> tuple[LaunchStep, ...]:
    """A Triton kernel's block has 32 threads for each of its warps, four of them where nothing is said."""
    warps = "num_warps" if header.parameter("num_warps") else f"({header.defines.get('num_warps', 4)})"
    return tuple(replace(step, block=expressions((f"32 * {warps}",))) for step in steps)


def problem_files(problem: Problem, template: Template, baseline: Candidate) -> Mapping[str, bytes]:
    """Every file that the problem consists of, by its path relative to the problem's folder, sorted.

    Written to another folder, they load as the same problem: the problem file, the sources with the headers beside
    them, the reference with the modules that it imports from its folder, and data files.

    A problem file that gives no name gets the problem's, which was its folder's: the copy lies in another folder.

    Raises:
        SpecError: a file lies outside the problem's folder, or cannot be read.
    """
    files = files_as_written(problem, template, baseline)
    own = problem.file.name
    return {**files, own: _named(files[own], problem.name)}


def files_as_written(problem: Problem, template: Template, baseline: Candidate) -> Mapping[str, bytes]:
    """The same files, each as it is.

    Raises:
        SpecError: a file lies outside the problem's folder, or cannot be read.
    """
    folder = problem.file.parent
    paths = {problem.file, template.file, baseline.template.file, *reference_files(problem.reference)}
    for each in (template, baseline.template):
        paths.update(_included_files(each))
    data = (argument.distribution.file for argument in problem.arguments)
    paths.update(file for file in data if file is not None)
    files = {}
    for path in sorted(paths):
        try:
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
        except ValueError:
            raise SpecError(
                f"{path} lies outside the problem's folder {folder}", hint="copy it into the folder"
            ) from None
        except OSError as error:
            raise SpecError(f"cannot read {shown_path(path)}: {error.strerror or error}") from None
    for searched in {*template.include_paths, *baseline.template.include_paths}:
        name = searched.relative_to(folder).as_posix()
        if name != "." and not any(each.startswith(f"{name}/") for each in files):  # it must be there, if empty
            files[f"{name}/{_KEPT}"] = b""
    return dict(sorted(files.items()))


def _named(document: bytes, name: str) -> bytes:
    """A problem file with that name, where it has none; other lines keep their numbers where the first has no key."""
    if "name" in tomllib.loads(document.decode("utf-8-sig")):
        return document
    bom, text = (BOM_UTF8, document.removeprefix(BOM_UTF8)) if document.startswith(BOM_UTF8) else (b"", document)
    first, newline, rest = text.partition(b"\n")
    key = f'name = "{name}"'.encode()  # letters, digits, `_`, `-` and `.`: nothing to escape
    if not first.strip():
        return bom + key + first + newline + rest
    return bom + key + (b"  " + text if first.lstrip().startswith(b"#") else b"\n" + text)


def _included_files(template: Template) -> Iterator[Path]:
    """What the source includes, and the headers in its folder where it includes one by quotes.

    The latter, since a macro may name one, and what `__has_include` asks for is not seen either.
    """
    yield from included_files(template.file, template.source, template.include_paths)
    if not any(each.is_quoted for each in includes_in(template.source)):
        return
    for path in template.file.parent.rglob("*"):
        if path.suffix in _INCLUDE_SUFFIXES and is_stored(path):
            yield path
