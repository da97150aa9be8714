"""All roles by a language model: a context becomes a prompt, a reply becomes a checked proposal.

A reply that is not what was asked for goes back with a precise complaint, a few times; then the role declines. The
agent writes no file and runs nothing: what it proposes is judged by the engine as any candidate is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeVar

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
from kernelwright.agent.model.anchors import AnchorError, Region, anchored
from kernelwright.agent.model.context import (
    DEFAULT_TOKENS,
    MOST_LOG_CHARACTERS,
    Section,
    WindowRole,
    constraints_section,
    device_section,
    fitted,
    history_section,
    landscape_section,
    published_window,
    ranked_window,
    task_section,
    window_sections,
)
from kernelwright.agent.model.drafting import body_of, drafted, header_toml, numbered
from kernelwright.agent.model.prompting import data, filled, worked_example
from kernelwright.agent.model.replies import (
    FAMILIES,
    Claim,
    GivenUp,
    Malformed,
    PlanReply,
    claims_of,
    given_up,
    plan_of,
    prose,
)
from kernelwright.agent.rules.landscape import findings
from kernelwright.agent.rules.subjects import subject_of
from kernelwright.errors import ModelBudgetSpent, ModelRefused, ModelReplyMalformed, SpecError
from kernelwright.llm.base import ChatModel, ChatRequest, Effort, Message, Reply
from kernelwright.store.event import Idea
from kernelwright.tree.model import Node, Tree

RoleName = Literal["plan", "code", "debug", "template", "analyse"]

MORE_IDEAS = 3
"""How often a node may be planned for again, each time with what came of the plans before."""

HOPED_GAIN = 1.3
"""Of a plan that is not made yet: what published agents gain in the mean; less with each plan. A guess."""

LEAST_OBSERVATIONS = 16
"""Fewer measurements are not worth an analysis by a model."""

MOST_CLAIMS = 3
MOST_EXPLANATION = 300
MOST_COMPLAINT = 3000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """How a model is asked for one role; temperatures as STARK published them."""

    temperature: float | None = 0.1
    effort: Effort | None = None
    max_tokens: int = 16_000


DEFAULT_ROLES: Mapping[RoleName, RoleSettings] = MappingProxyType(
    {
        "plan": RoleSettings(temperature=0.8, max_tokens=8_000),
        "code": RoleSettings(),
        "debug": RoleSettings(),
        "template": RoleSettings(),
        "analyse": RoleSettings(temperature=0.2, max_tokens=4_000),
    }
)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How the roles are played."""

    roles: Mapping[RoleName, RoleSettings] = field(default_factory=lambda: DEFAULT_ROLES)
    context_tokens: int = DEFAULT_TOKENS
    window: Literal["ranked", "published"] = "ranked"
    corrections: int = 2
    """How often a reply that cannot be used goes back with a complaint."""
    analyses: bool = True
    """Whether the model is asked for an analysis beside that of the rules."""


class ModelAgent:
    """`--model PROVIDER:NAME`; see the module."""

    def __init__(
        self,
        model: ChatModel,
        *,
        settings: ModelSettings | None = None,
        source_of: Callable[[Node], str] | None = None,
        models: Mapping[RoleName, ChatModel] | None = None,
    ) -> None:
        """`source_of` gives the text of other nodes; `models` another model for some roles."""
        self._model = model
        self._models = dict(models or {})
        self._settings = settings or ModelSettings()
        self._source_of = source_of

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    @property
    def plans_ahead(self) -> bool:
        """A plan costs a request."""
        return False

    # -- the roles -----------------------------------------------------------------------------------------------

    def plan(self, context: PlanContext) -> Plan:
        """One idea, and the chance to plan again when it has been tried."""
        idea = self._planned(context)
        if isinstance(idea, Declined):
            return Plan((), {"model": idea.reason})
        again = [self._again(context.node, idea, place) for place in range(1, MORE_IDEAS + 1)]
        return Plan((idea, *again))

    def code(self, context: CodeContext) -> Draft | Declined:
        """The idea carried out between its anchors; an idea that is still open is planned first."""
        idea = context.idea
        if idea.family == _OPEN:
            planned = self._planned(PlanContext(context.task, context.tree, context.node, context.written))
            if isinstance(planned, Declined):
                return planned
            idea = replace(planned, key=context.idea.key)
        written, node = context.written, context.node
        body = body_of(written)
        region = Region(idea.first_line, idea.last_line) if idea.first_line else Region.whole(body)
        prompt = filled(
            "code",
            context=self._context(context.task, written, tree=context.tree, node=node, role="code"),
            instruction=idea.instruction,
            because=idea.because,
            risk=idea.risk or "none was named",
            source=anchored(body, region.clipped(body), written.language, (idea.instruction,)),
            header=header_toml(written),
        )
        draft = self._draft("code", prompt, context.task, written, region.clipped(body), tactic=idea.key, node=node)
        if isinstance(draft, Declined):
            return draft
        told = draft.explanation or idea.instruction[:MOST_EXPLANATION]
        return replace(draft, explanation=told, because=idea.because, predicted_gain=idea.predicted_gain)

    def debug(self, context: DebugContext) -> Draft | Declined:
        """The failed source mended."""
        written, failure, body = context.written, context.failure, body_of(context.written)
        region = Region.whole(body)
        prompt = filled(
            "debug",
            context=self._context(context.task, written, tree=context.tree, node=context.node, role="debug"),
            instruction=context.node.instruction,
            stage=failure.stage,
            reason=failure.reason,
            message=failure.message,
            log=failure.log[: 2 * MOST_LOG_CHARACTERS],
            source=anchored(body, region, written.language),
            header=header_toml(written),
        )
        return self._draft("debug", prompt, context.task, written, region, tactic="", node=context.node)

    def template(self, context: TemplateContext) -> Draft | Declined:
        """The source with literals and choices lifted into parameters."""
        written, body = context.written, body_of(context.written)
        region = Region.whole(body)
        prompt = filled(
            "template",
            context=self._context(context.task, written),
            source=anchored(body, region, written.language),
            header=header_toml(written),
        )
        return self._draft("template", prompt, context.task, written, region, tactic="template", node=None)

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """What the rules find, and behind it the model's claims that cite given evidence."""
        found = findings(context)
        passed = sum(each.value is not None for each in context.observations)
        if not self._settings.analyses or passed < LEAST_OBSERVATIONS:
            return found
        evidence = _evidence(context, found)
        prompt = filled(
            "analyse",
            context=fitted([task_section(context.task), device_section(context.task)]),
            evidence="\n".join(f"{label}: {text}" for label, text in evidence.items()),
            count=str(MOST_CLAIMS),
        )
        labels = frozenset(evidence)
        language = context.node.language

        def read(reply: Reply) -> tuple[Claim, ...]:
            return claims_of(reply, labels)

        claims = self._ask("analyse", prompt, language, read, node=context.node)
        if isinstance(claims, Declined):
            return found
        told = [
            Finding(claim.claim, "; ".join(evidence[label] for label in claim.evidence))
            for claim in claims[:MOST_CLAIMS]
        ]
        return (*found, *told)

    # -- planning ------------------------------------------------------------------------------------------------

    def _planned(self, context: PlanContext) -> Idea | Declined:
        written, node = context.written, context.node
        body = body_of(written)
        prompt = filled(
            "plan",
            context=self._context(context.task, written, tree=context.tree, node=node, role="plan"),
            source=numbered(body),
            header=header_toml(written),
            families=", ".join(FAMILIES),
        )
        count = len(body.split("\n"))

        def read(reply: Reply) -> PlanReply | GivenUp:
            return plan_of(reply, count)

        plan = self._ask("plan", prompt, written.language, read, node=node)
        if isinstance(plan, Declined):
            return plan
        if isinstance(plan, GivenUp):
            return Declined(plan.give_up)
        return Idea(
            key=_free(plan.key, context.tree, node),
            family=plan.family,
            instruction=plan.instruction,
            because=plan.because,
            predicted_gain=plan.predicted_gain,
            first_line=plan.first_line,
            last_line=plan.last_line,
            risk=plan.risk,
        )

    @staticmethod
    def _again(node: Node, idea: Idea, place: int) -> Idea:
        hoped = min(idea.predicted_gain or HOPED_GAIN, 1 + (HOPED_GAIN - 1) * 0.7 ** (place - 1))
        words = "plan again, with what came of the plans before"
        return Idea(f"another-{node.index}-{place}", _OPEN, words, "no plan is made yet", hoped)

    # -- prompts -------------------------------------------------------------------------------------------------

    def _context(
        self,
        task: Task,
        written: Written,
        *,
        tree: Tree | None = None,
        node: Node | None = None,
        role: WindowRole = "plan",
    ) -> str:
        """Facts, what was tried, and a worked example, within the budget of tokens."""
        sections = [task_section(task), device_section(task)]
        example = worked_example(_pattern(task, written), written.language, written.entry)
        if example is not None:
            name, text = example
            sections.append(Section(f"A verified template of another kernel, `{name}`, as an example", data(text), 9))
        if tree is not None and node is not None:
            choose = ranked_window if self._settings.window == "ranked" else published_window
            sections += [constraints_section(tree, node), history_section(tree)]
            sections += window_sections(tree, choose(tree, node, role), self._source_of)
            sections.append(landscape_section(node))
        return fitted(sections, tokens=self._settings.context_tokens)

    def _draft(
        self,
        role: RoleName,
        prompt: str,
        task: Task,
        written: Written,
        region: Region,
        *,
        tactic: str,
        node: Node | None,
    ) -> Draft | Declined:
        original = _original(task, written)

        def read(reply: Reply) -> Draft | GivenUp:
            reason = given_up(reply)
            if reason is not None:
                return GivenUp(give_up=reason)
            made = drafted(reply, task=task, written=written, region=region, tactic=tactic, original=original)
            return Draft(made, prose(reply.text)[:MOST_EXPLANATION])

        result = self._ask(role, prompt, written.language, read, node=node)
        return Declined(result.give_up) if isinstance(result, GivenUp) else result

    def _ask(
        self, role: RoleName, prompt: str, language: str, read: Callable[[Reply], _T], *, node: Node | None
    ) -> _T | Declined:
        """What `read` makes of a reply; a complaint of it goes back to the model."""
        settings = self._settings.roles.get(role, RoleSettings())
        model = self._models.get(role, self._model)
        messages: tuple[Message, ...] = (Message("user", prompt),)
        complaint = ""
        for _ in range(self._settings.corrections + 1):
            request = ChatRequest(
                role,
                filled("system", language=_LANGUAGES.get(language, language)),
                messages,
                temperature=settings.temperature,
                effort=settings.effort,
                max_tokens=settings.max_tokens,
                node=node.index if node is not None else 0,
            )
            try:
                reply = model.complete(request)
            except (ModelBudgetSpent, ModelRefused, ModelReplyMalformed) as error:
                return Declined(error.message)
            try:
                return read(reply)
            except (Malformed, AnchorError) as error:
                complaint = str(error)[:MOST_COMPLAINT]
            again = (
                f"Your answer cannot be used: {complaint}\n\nAnswer again, completely, in the form that was asked for."
            )
            messages = (*messages, Message("assistant", reply.text), Message("user", again))
        return Declined(f"{len(messages) // 2} replies could not be used; the last: {complaint.splitlines()[0]}")


_OPEN = "open"
"""The family of an idea whose plan is made when it is taken."""

_LANGUAGES: Mapping[str, str] = MappingProxyType(
    {"opencl": "OpenCL C", "cuda": "CUDA C++", "hip": "HIP C++", "triton": "Triton (Python)"}
)


def _free(key: str, tree: Tree, node: Node) -> str:
    """The key, with a number where the node or one of its children has it."""
    taken = {each.tactic for each in tree.children(node.index)} | {each.key for each in node.ideas}
    return next(each for each in (key, *(f"{key}-{n}" for n in range(2, 999))) if each not in taken)


def _pattern(task: Task, written: Written) -> str:
    """The kernel's pattern; `generic` where it cannot be analysed."""
    try:
        pattern = subject_of(task, written).pattern
    except SpecError:
        return "generic"
    return pattern.near[0].kind if pattern.kind == "generic" and pattern.near else pattern.kind


def _original(task: Task, written: Written) -> str:
    """What a person wrote: whatever it holds is declared by that. Texts of earlier nodes passed the same check."""
    texts = []
    for spec in (task.problem.kernel, task.problem.baseline):
        if spec is not None:
            try:
                texts.append(spec.file.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
    return "\n".join(texts) or written.text


def _evidence(context: AnalyseContext, found: tuple[Finding, ...]) -> dict[str, str]:
    """Labelled facts that an analysis may cite."""
    passed = sorted((each for each in context.observations if each.value is not None), key=lambda each: each.value or 0)
    facts = [str(each) for each in found]
    for place, each in enumerate(passed[:3], 1):
        config = ", ".join(f"{name}={value}" for name, value in each.config.items())
        facts.append(f"number {place}: {config}: {1 / (each.value or 1):.2f}x as fast as the baseline")
    facts.append(f"{len(passed)} of {len(context.observations)} configurations passed")
    if context.task.limit_value and passed:
        share = context.task.limit_value / (passed[0].value or 1)
        facts.append(f"the best runs at {share:.0%} of what the measured bandwidth allows")
    return {f"E{number}": text for number, text in enumerate(facts, 1)}
