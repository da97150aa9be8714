"""All roles by rules. Deterministic, needs no model, no network and no key.

*plan* applies every tactic and orders what applies by predicted gain, looking one step further; *code* takes the
rewrite; *template* applies the tactics that only lift (launch shape, literals); *debug* starts a failed
template from smaller values, or gives it up; *analyse* words the landscape.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from kernelwright.agent.base import (
    AnalyseContext,
    Context,
    Declined,
    Draft,
    Finding,
    Plan,
    Task,
    TemplateContext,
    Written,
)
from kernelwright.agent.rules.defaults import smaller_defaults
from kernelwright.agent.rules.landscape import findings
from kernelwright.agent.rules.subjects import entries_of, key_of, subject_of, written_of
from kernelwright.errors import InfrastructureError, SpecError
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Idea
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic
from kernelwright.tactics.registry import TACTICS

LIFTING_FAMILIES = frozenset({"launch"})
"""Families whose tactics change nothing that is computed: the template role applies them to every source.

Compile options are none of them: what relaxes arithmetic is an idea of its own, which may fail on hostile inputs
without taking structures with it.
"""

LIFTING_TACTICS = frozenset({"restrict"})
"""Tactics of other families that change nothing that is computed either: they are sure wherever they apply."""

FOLLOW_UP = 0.5
"""Which share (in logarithms) of what a tactic makes possible counts for it. A guess."""

LOOK_AHEAD_BELOW = 1.5
"""What gains this much is worth its place without a look at what it makes possible, which costs an analysis each."""

KEPT_SUBJECTS = 64
"""Analysed sources that are kept: analysis is what planning costs."""


class RulesAgent:
    """`--model rules`; see the module."""

    def __init__(self, tactics: Sequence[Tactic] = TACTICS) -> None:
        self._tactics = tuple(each for each in tactics if not _is_lifting(each))
        self._lifting = tuple(each for each in tactics if _is_lifting(each))
        self._subjects: OrderedDict[tuple[Written, str], Subject] = OrderedDict()
        self._plans: dict[Written, Plan] = {}
        """Made ahead, and not asked for yet."""

    @property
    def name(self) -> str:
        """`rules`."""
        return "rules"

    @property
    def plans_ahead(self) -> bool:
        """Planning by rules costs nothing."""
        return True

    # -- the roles -----------------------------------------------------------------------------------------------

    def plan(self, context: Context) -> Plan:
        """Every tactic that applies to a kernel of the template, by what it promises; the reasons of the others."""
        known = self._plans.pop(context.written, None)
        return known if known is not None else self._planned(context.task, context.written)

    def plan_ahead(self, task: Task, written: Written) -> None:
        """Make the plan of a source now, for the first time that it is asked for; in one thread at a time."""
        self._plans[written] = self._planned(task, written)

    def _planned(self, task: Task, written: Written) -> Plan:
        ideas: list[Idea] = []
        refused: dict[str, str] = {}
        try:
            subjects = {entry: self._subject(task, written, entry) for entry in entries_of(written)}
        except SpecError as error:
            return Plan((), {"all": error.message})
        for entry, subject in subjects.items():
            results = {tactic.name: self._apply(tactic, subject) for tactic in self._tactics}
            known = {name: each.effect.factor for name, each in results.items() if isinstance(each, Rewrite)}
            for name, result in results.items():
                key = key_of(name, entry, written.entry)
                if isinstance(result, Rewrite):
                    ideas.append(self._idea(key, subject, result, known))
                else:
                    refused[key] = result.reason
        ideas.sort(key=lambda idea: -(idea.promise or idea.predicted_gain or 1.0))  # stable: the registry's order
        return Plan(tuple(ideas), refused)

    def code(self, context: Context, idea: Idea) -> Draft | Declined:
        """The tactic's rewrite, with what lifting still finds."""
        name, _, entry = idea.key.partition("@")
        tactic = next((each for each in self._tactics if each.name == name), None)
        if tactic is None:
            return Declined(f"there is no tactic {name!r} in this version")
        try:
            subject = self._subject(context.task, context.written, entry or context.written.entry)
        except SpecError as error:
            return Declined(error.message)
        result = self._apply(tactic, subject)
        if isinstance(result, NotApplicable):
            return Declined(result.reason)
        written = written_of(context.written, subject, result)
        lifted = self.template(TemplateContext(context.task, written))
        if isinstance(lifted, Draft):
            written = lifted.written
        return Draft(written, result.explanation, result.effect.because, result.effect.factor)

    def debug(self, context: Context, failure: Failed) -> Draft | Declined:
        """Smaller defaults where resources were missing; else the tactic is withdrawn."""
        if failure.stage in ("resources", "launch"):
            text = smaller_defaults(context.written.text, context.task, context.written.entry)
            if text is not None:
                written = dataclasses.replace(context.written, text=text)
                return Draft(written, "start from smaller values", f"it failed at {failure.stage}: {failure.reason}")
        return Declined(f"withdrawn: {failure.stage} failed ({failure.reason})")

    def template(self, context: TemplateContext) -> Draft | Declined:
        """Every lifting tactic that applies to a kernel of the template, one after the other."""
        written, told = context.written, []
        try:
            for entry in entries_of(written):
                for tactic in self._lifting:
                    subject = self._subject(context.task, written, entry)
                    result = self._apply(tactic, subject)
                    if isinstance(result, Rewrite):
                        written = written_of(written, subject, result)
                        told.append(result.explanation.rstrip("."))
        except SpecError as error:
            return Declined(error.message)
        if not told:
            return Declined("nothing to lift")
        return Draft(written, "; ".join(dict.fromkeys(told)), "parameters can be searched, literals cannot")

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """The landscape in words."""
        return findings(context)

    # -- inside --------------------------------------------------------------------------------------------------

    def _apply(self, tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
        """The tactic's answer; one that gives the same text again does not apply."""
        if self._is_done(tactic, subject):
            return NotApplicable(tactic.name, tactic.family, "it was applied before", is_already_so=True)
        try:
            result = tactic.apply(subject)
        except (MemoryError, OSError) as error:  # the machine's failure says nothing of the tactic
            raise InfrastructureError(
                f"the tactic {tactic.name!r} could not be tried: {type(error).__name__}: {error}",
                hint="make room in memory and on disk, then `kernelwright resume` the run",
            ) from error
        # A defect of one tactic must not end a run in which others work: it is told with the ideas that do not apply.
        except Exception as error:
            return NotApplicable(
                tactic.name, tactic.family, f"a defect of this tactic: {type(error).__name__}: {error}"
            )
        if isinstance(result, Rewrite) and result.source == subject.source and result.header == subject.header:
            return NotApplicable(tactic.name, tactic.family, "it would change nothing", is_already_so=True)
        return result

    def _is_done(self, tactic: Tactic, subject: Subject) -> bool:
        """Whether a tactic was applied; lifting is due again once another tactic has given the kernel a new launch."""
        history = subject.history
        if tactic.name not in history:
            return False
        since = history[len(history) - history[::-1].index(tactic.name) :]
        lifting = {each.name for each in self._lifting}
        return tactic.name not in lifting or all(name in lifting for name in since)

    def _idea(self, key: str, subject: Subject, rewrite: Rewrite, known: Mapping[str, float]) -> Idea:
        factor = rewrite.effect.factor
        opened = self._opened(subject, rewrite, known) if factor < LOOK_AHEAD_BELOW else 1.0
        return Idea(
            key=key,
            family=rewrite.family,
            instruction=rewrite.explanation,
            because=rewrite.effect.because,
            predicted_gain=factor,
            promise=max(factor, 1.0) * opened**FOLLOW_UP,
        )

    def _opened(self, subject: Subject, rewrite: Rewrite, known: Mapping[str, float]) -> float:
        """The best that another tactic gains afterwards and would not have gained before."""
        after = dataclasses.replace(subject, is_tentative=True).rewritten(rewrite)
        best = 1.0
        for tactic in self._tactics:
            if tactic.name != rewrite.tactic:
                then = self._apply(tactic, after)
                if isinstance(then, Rewrite):
                    best = max(best, then.effect.factor / max(known.get(tactic.name, 1.0), 1.0))
        return best

    def _subject(self, task: Task, written: Written, entry: str) -> Subject:
        key = (written, entry)
        known = self._subjects.get(key)
        if known is None:
            known = self._subjects[key] = subject_of(task, written, entry)
            if len(self._subjects) > KEPT_SUBJECTS:
                self._subjects.popitem(last=False)
        self._subjects.move_to_end(key)
        return known


def _is_lifting(tactic: Tactic) -> bool:
    return tactic.family in LIFTING_FAMILIES or tactic.name in LIFTING_TACTICS
