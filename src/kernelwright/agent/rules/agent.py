"""All roles by rules. Deterministic, needs no model, no network and no key.

*plan* applies every tactic and orders what applies by predicted gain, looking one step further; *code* takes the
rewrite; *template* applies the tactics that only lift (launch shape, literals, options); *debug* starts a failed
template from smaller values, or gives it up; *analyse* words the landscape.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from kernelwright.agent.base import (
    AnalyseContext,
    CodeContext,
    DebugContext,
    Declined,
    Draft,
    Finding,
    Plan,
    PlanContext,
    Task,
    TemplateContext,
    Written,
)
from kernelwright.agent.rules.defaults import smaller_defaults
from kernelwright.agent.rules.landscape import findings
from kernelwright.agent.rules.subjects import subject_of, written_of
from kernelwright.errors import SpecError
from kernelwright.refactor.tactics.base import NotApplicable, Rewrite, Subject, Tactic
from kernelwright.refactor.tactics.registry import TACTICS
from kernelwright.store.event import Idea

LIFTING_FAMILIES = frozenset({"launch", "options"})
"""Families whose tactics change no structure: the template role applies them to every source."""

FOLLOW_UP = 0.5
"""Which share (in logarithms) of what a tactic makes possible counts for it. A guess."""

LOOK_AHEAD_BELOW = 1.5
"""What gains this much is worth its place without a look at what it makes possible, which costs an analysis each."""

KEPT_SUBJECTS = 64
"""Analysed sources that are kept: analysis is what planning costs."""


class RulesAgent:
    """`--model rules`; see the module."""

    def __init__(self, tactics: Sequence[Tactic] = TACTICS) -> None:
        self._tactics = tuple(each for each in tactics if each.family not in LIFTING_FAMILIES)
        self._lifting = tuple(each for each in tactics if each.family in LIFTING_FAMILIES)
        self._subjects: OrderedDict[Written, Subject] = OrderedDict()

    @property
    def name(self) -> str:
        """`rules`."""
        return "rules"

    @property
    def plans_ahead(self) -> bool:
        """Planning by rules costs nothing."""
        return True

    # -- the roles -----------------------------------------------------------------------------------------------

    def plan(self, context: PlanContext) -> Plan:
        """Every tactic that applies, by what it promises; the reasons of the others."""
        subject = self._subject(context.task, context.written)
        results = {tactic.name: self._apply(tactic, subject) for tactic in self._tactics}
        known = {name: each.effect.factor for name, each in results.items() if isinstance(each, Rewrite)}
        refused = {name: each.reason for name, each in results.items() if isinstance(each, NotApplicable)}
        rewrites = [each for each in results.values() if isinstance(each, Rewrite)]
        ideas = [self._idea(subject, each, known) for each in rewrites]
        ideas.sort(key=lambda idea: -(idea.promise or idea.predicted_gain or 1.0))  # stable: the registry's order
        return Plan(tuple(ideas), refused)

    def code(self, context: CodeContext) -> Draft | Declined:
        """The tactic's rewrite, with what lifting still finds."""
        subject = self._subject(context.task, context.written)
        tactic = next((each for each in self._tactics if each.name == context.idea.key), None)
        if tactic is None:
            return Declined(f"there is no tactic {context.idea.key!r} in this version")
        result = self._apply(tactic, subject)
        if isinstance(result, NotApplicable):
            return Declined(result.reason)
        draft = Draft(written_of(subject, result), result.explanation, result.effect.because, result.effect.factor)
        lifted = self.template(TemplateContext(context.task, draft.written))
        return draft if isinstance(lifted, Declined) else dataclasses.replace(draft, written=lifted.written)

    def debug(self, context: DebugContext) -> Draft | Declined:
        """Smaller defaults where resources were missing; else the tactic is withdrawn."""
        failure = context.failure
        if failure.stage in ("resources", "launch", "build"):
            text = smaller_defaults(context.written.text, context.task, context.written.entry)
            if text is not None:
                written = dataclasses.replace(context.written, text=text)
                return Draft(written, "start from smaller values", f"it failed at {failure.stage}: {failure.reason}")
        return Declined(f"withdrawn: {failure.stage} failed ({failure.reason})")

    def template(self, context: TemplateContext) -> Draft | Declined:
        """Every lifting tactic that applies, one after the other."""
        written, told = context.written, []
        for tactic in self._lifting:
            if tactic.name in written.tactics:
                continue
            subject = self._subject(context.task, written)
            result = self._apply(tactic, subject)
            if isinstance(result, Rewrite):
                written = written_of(subject, result)
                told.append(result.explanation.rstrip("."))
        if not told:
            return Declined("nothing to lift")
        return Draft(written, "; ".join(told), "parameters can be searched, literals cannot")

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """The landscape in words."""
        return findings(context)

    # -- inside --------------------------------------------------------------------------------------------------

    def _apply(self, tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
        """The tactic's answer; one that gives the same text again does not apply."""
        if subject.history.count(tactic.name):
            return NotApplicable(tactic.name, tactic.family, "it was applied before", is_already_so=True)
        try:
            result = tactic.apply(subject)
        # A defect of one tactic must not end a run in which others work: it is told with the ideas that do not apply.
        except Exception as error:
            return NotApplicable(
                tactic.name, tactic.family, f"a defect of this tactic: {type(error).__name__}: {error}"
            )
        if isinstance(result, Rewrite) and result.source == subject.source and result.draft == subject.draft:
            return NotApplicable(tactic.name, tactic.family, "it would change nothing", is_already_so=True)
        return result

    def _idea(self, subject: Subject, rewrite: Rewrite, known: Mapping[str, float]) -> Idea:
        factor = rewrite.effect.factor
        opened = self._opened(subject, rewrite, known) if factor < LOOK_AHEAD_BELOW else 1.0
        return Idea(
            key=rewrite.tactic,
            family=rewrite.family,
            instruction=rewrite.explanation,
            because=rewrite.effect.because,
            predicted_gain=factor,
            promise=max(factor, 1.0) * opened**FOLLOW_UP,
        )

    def _opened(self, subject: Subject, rewrite: Rewrite, known: Mapping[str, float]) -> float:
        """The best that another tactic gains afterwards and would not have gained before."""
        after = subject.rewritten(rewrite)
        best = 1.0
        for tactic in self._tactics:
            if tactic.name != rewrite.tactic:
                then = self._apply(tactic, after)
                if isinstance(then, Rewrite):
                    best = max(best, then.effect.factor / max(known.get(tactic.name, 1.0), 1.0))
        return best

    def _subject(self, task: Task, written: Written) -> Subject:
        known = self._subjects.get(written)
        if known is None:
            known = self._subjects[written] = subject_of(task, written)
            if len(self._subjects) > KEPT_SUBJECTS:
                self._subjects.popitem(last=False)
        self._subjects.move_to_end(written)
        return known


def can_be_worked_on(task: Task, written: Written) -> str | None:
    """Why the rules cannot work on a source, or None."""
    try:
        subject_of(task, written)
    except SpecError as error:
        return error.message
    return None
