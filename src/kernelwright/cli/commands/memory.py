"""`memory`: what runs have learnt and keep for later ones; listed, shown, forgotten."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import typer

from kernelwright.cli.output.tables import open_console
from kernelwright.errors import UsageError
from kernelwright.memory.lesson import Lesson
from kernelwright.memory.library import Library


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which lessons are meant; empty words: all."""

    pattern: str = ""
    device: str = ""
    run: str = ""
    problem: str = ""
    has_expired: bool = True

    def __call__(self, lesson: Lesson) -> bool:
        """Whether a lesson is one of them."""
        return (
            (not self.pattern or self.pattern.lower() in lesson.where.pattern.lower())
            and (not self.device or self.device.lower() in lesson.where.device.lower())
            and (not self.run or lesson.run.startswith(self.run))
            and (not self.problem or lesson.problem == self.problem)
            and (self.has_expired or not lesson.expired)
        )

    @property
    def is_all(self) -> bool:
        """Whether nothing was said."""
        return not (self.pattern or self.device or self.run or self.problem)


def print_list(chosen: Chosen, *, is_json: bool) -> None:
    """The lessons in the library, the oldest first, a line or two each."""
    library = Library()
    contents = library.read()
    lessons = [each for each in contents.lessons if chosen(each)]
    if is_json:
        typer.echo(json.dumps([{"id": each.id, **each.as_record()} for each in lessons], indent=2))
        return
    console = open_console()

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    for each in lessons:
        line(f"{each.id}  {each.words}")
        line(f"            {each.evidence}" + (f"; expired: {each.expired}" if each.expired else ""))
    line(contents.summary(library.folder, shown=len(lessons)))


def print_lesson(wanted: str, *, is_json: bool) -> None:
    """One lesson with everything that it rests on, and its template where it has one."""
    lesson = _found(Library().read().lessons, wanted)
    if is_json:
        typer.echo(json.dumps({"id": lesson.id, **lesson.as_record()}, indent=2))
        return
    console = open_console()
    facts = {
        "claim": lesson.words,
        "evidence": lesson.evidence,
        "run": lesson.run,
        "what was done": lesson.instruction,
        "proposed by": lesson.model or "rules",
        "architecture": lesson.where.architecture,
        "version": lesson.version,
        "tactics": ", ".join(lesson.tactics),
        "expired": lesson.expired,
        "template": "\n" + lesson.text if lesson.text else "",
    }
    for name, text in facts.items():
        if text:
            console.print(f"{name}: {text}", highlight=False, markup=False, soft_wrap=True)


def forget(ids: Sequence[str], chosen: Chosen, *, is_all: bool, is_json: bool = False) -> None:
    """Remove lessons for good.

    Raises:
        UsageError: nothing was said of which, or what was said means none, or an id several.
    """
    library = Library()
    wanted: Callable[[Lesson], bool]
    if ids:
        lessons = library.read().lessons
        gone = {_found(lessons, each).id for each in ids}
        wanted = lambda lesson: lesson.id in gone  # noqa: E731
    elif is_all:
        wanted = chosen
    elif not chosen.is_all:
        wanted = chosen
        _require_some(library.read().lessons, chosen)
    else:
        raise UsageError(
            "which lessons are to be forgotten was not said",
            hint="name their ids, or say --pattern, --device, --run, --problem or --all",
        )
    count = library.forget(wanted)
    if is_json:
        typer.echo(json.dumps({"forgotten": count, "library": str(library.folder)}, indent=2))
        return
    typer.echo(f"forgot {count} lesson{'' if count == 1 else 's'} in {library.folder}")


def _require_some(lessons: Sequence[Lesson], chosen: Chosen) -> None:
    """Refuse words that no lesson fits: who mistypes them would think that something was forgotten."""
    if any(chosen(each) for each in lessons):
        return
    said, hints = [], []
    for option, word, alone, known in (
        ("--pattern", chosen.pattern, Chosen(pattern=chosen.pattern), {each.where.pattern for each in lessons}),
        ("--device", chosen.device, Chosen(device=chosen.device), {each.where.device for each in lessons}),
        ("--run", chosen.run, Chosen(run=chosen.run), {each.run for each in lessons}),
        ("--problem", chosen.problem, Chosen(problem=chosen.problem), {each.problem for each in lessons}),
    ):
        if not word:
            continue
        said.append(f"{option} {word}")
        near = nearest(word, known - {""})
        if near and not any(alone(each) for each in lessons):
            hints.append(f"{option} {' or '.join(near)}")
    advice = f"did you mean {' and '.join(hints)}?" if hints else "`kernelwright memory list --expired` shows them all"
    raise UsageError(f"no lesson fits {' '.join(said)}, so nothing was forgotten", hint=advice)


def nearest(word: str, known: Collection[str], count: int = 3) -> list[str]:
    """What may have been meant: names that look like the word, whatever their case; the nearest first."""
    by_lower = {name.lower(): name for name in sorted(known)}
    return [by_lower[each] for each in difflib.get_close_matches(word.lower(), by_lower, count, 0.5)]


def _found(lessons: Sequence[Lesson], wanted: str) -> Lesson:
    found = [each for each in lessons if wanted and each.id.startswith(wanted)]
    if len(found) != 1:
        several = "several lessons" if found else "no lesson"
        near = [each.id for each in found[:3]] or nearest(wanted, {each.id for each in lessons})
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"{wanted!r} is {several}", hint=f"{meant}`kernelwright memory list` shows their ids")
    return found[0]
