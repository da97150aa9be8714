"""All roles by a language model: a context becomes a prompt, a reply becomes a checked proposal.

A reply that is not what was asked for goes back with a precise complaint, a few times; then the role declines. The
agent writes no file and runs nothing: what it proposes is judged by the loop as any candidate is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from kernelwright.agent.base import (
    GIVEN_UP,
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
from kernelwright.agent.model.anchors import Malformed, Region, anchored
from kernelwright.agent.model.briefing import Briefer
from kernelwright.agent.model.cleaning import cleaned_log, cleaned_message
from kernelwright.agent.model.context import MOST_LOG_CHARACTERS, STAGE_WORDS, UNPLANNED, EvidenceOf, SourceOf
from kernelwright.agent.model.drafting import body_of, drafted, with_defaults
from kernelwright.agent.model.limits import limits_words
from kernelwright.agent.model.prompting import filled, system_prompt
from kernelwright.agent.model.replies import (
    ANALYSIS_SCHEMA,
    FAMILIES,
    MOST_CHARACTERS,
    Claim,
    PlanReply,
    claims_of,
    direct_plan_of,
    given_up,
    plan_of,
    prose,
    written_with,
)
from kernelwright.agent.model.settings import ModelSettings, RoleName, RoleSettings
from kernelwright.agent.rules.landscape import findings
from kernelwright.errors import ModelBudgetSpent, ModelRefused, ModelReplyMalformed
from kernelwright.llm.base import ChatModel, ChatRequest, Message, Reply, shortened
from kernelwright.llm.recorded import ReplayedModel
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Idea
from kernelwright.template.header import header_toml, parse_header
from kernelwright.tree.model import OPEN_FAMILY, Node, Tree, free_key

MORE_IDEAS = 3
"""How often a node may be planned for again, each time with what came of the plans before."""

HOPED_GAIN = 1.3
"""What an unmade plan is expected to gain: as published agents in the mean; less with each plan. A guess."""

LEAST_OBSERVATIONS = 16
"""Fewer measurements are not worth an analysis by a model."""

MOST_CLAIMS = 3
MOST_EXPLANATION = 300
MOST_COMPLAINT = 3000
MOST_SENT_BACK = 1000
"""Characters of a reply that is too long to be read."""

REFUSED = "Your answer cannot be used: "
WITHIN = (
    ". Change only what is between the two anchor comments, which stay; the comments that begin with `|` are the "
    "instruction again, leave them out"
)
"""What a coder is told of a plan that names the lines."""

AGAIN = "\n\nAnswer again, completely, in the form that was asked for."
"""Around the complaint in a message that sends an answer back."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Asking:
    """One prompt, and for whom."""

    role: RoleName
    prompt: str
    language: str
    shared_characters: int
    """Where the prompt begins."""
    node: Node | None = None
    schema: Mapping[str, Any] | None = None
    sample: int = 0


class ModelAgent:
    """`--model PROVIDER:NAME`; see the module. Several threads may ask at once."""

    def __init__(
        self,
        model: ChatModel,
        *,
        settings: ModelSettings | None = None,
        source_of: SourceOf | None = None,
        evidence_of: EvidenceOf | None = None,
        models: Mapping[RoleName, ChatModel] | None = None,
    ) -> None:
        """Ask nobody yet.

        Args:
            model: who plays the roles.
            settings: how.
            source_of: gives the text of other nodes; None: windows have no sources.
            evidence_of: gives what was measured and read back of a node, in words.
            models: another model for some roles.
        """
        self._model = model
        self._models = dict(models or {})
        self._settings = settings or ModelSettings()
        self._briefer = Briefer(self._settings, source_of, evidence_of)

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    @property
    def plans_ahead(self) -> bool:
        """A plan costs a request."""
        return False

    # -- the roles -----------------------------------------------------------------------------------------------

    def plan(self, context: Context) -> Plan:
        """One idea, and the chance to plan again when it has been tried."""
        idea = self._planned(context)
        if isinstance(idea, Declined):
            return Plan((), {GIVEN_UP: idea.reason})
        again = [self._again(context.node, idea, place) for place in range(1, MORE_IDEAS + 1)]
        return Plan((idea, *again))

    def code(self, context: Context, idea: Idea) -> Draft | Declined:
        """The idea carried out between its anchors; an idea that is still open is planned first."""
        task, written, node = context.task, context.written, context.node
        if idea.family == OPEN_FAMILY:
            planned = self._planned(Context(task, context.tree, node, written, sample=context.sample))
            if isinstance(planned, Declined):
                return planned
            told = f"{planned.key.replace('-', ' ')}: {planned.instruction}"
            idea = replace(planned, key=idea.key, instruction=told if planned.text else planned.instruction)
        if idea.text:
            made = replace(written, text=idea.text, tactics=(*written.tactics, idea.key), properties=())
            return Draft(made, idea.instruction[:MOST_EXPLANATION], idea.because, idea.predicted_gain)
        body = body_of(written)
        region = (Region(idea.first_line, idea.last_line) if idea.first_line else Region.whole(body)).clipped(body)
        is_whole = self._settings.is_direct or region == Region.whole(body)
        briefing, shared = self._briefer.of_node(task, written, context.tree, node, "code")
        written = self._at_its_best(written, node)
        prompt = self._filled(
            "code",
            context=briefing,
            key=idea.key,
            instruction=idea.instruction,
            because=idea.because,
            risk=idea.risk or "none was named",
            source=body if is_whole else anchored(body, region, written.language, (idea.instruction,)),
            within="" if is_whole else WITHIN,
            header=header_toml(written.text),
            limits=self._limits("code"),
        )
        asking = _Asking("code", prompt, written.language, shared, node, sample=context.sample)
        draft = self._draft(asking, task, written, region, tactic=idea.key)
        if isinstance(draft, Declined):
            return draft
        told = draft.explanation or idea.instruction[:MOST_EXPLANATION]
        return replace(draft, explanation=told, because=idea.because, predicted_gain=idea.predicted_gain)

    def debug(self, context: Context, failure: Failed) -> Draft | Declined:
        """The failed source mended."""
        written, body = context.written, body_of(context.written)
        region = Region.whole(body)
        briefing, shared = self._briefer.of_node(context.task, written, context.tree, context.node, "debug")
        prompt = self._filled(
            "debug",
            context=briefing,
            instruction=context.node.instruction,
            stage=failure.stage,
            meaning=STAGE_WORDS.get(failure.stage, "it does not work"),
            reason=failure.reason,
            message=cleaned_message(failure.message),
            log=cleaned_log(failure.log, most=2 * MOST_LOG_CHARACTERS),
            change=self._briefer.change(context.tree, context.node, written.text),
            source=body,
            header=header_toml(written.text),
            limits=self._limits("debug"),
        )
        asking = _Asking("debug", prompt, written.language, shared, context.node, sample=context.sample)
        return self._draft(asking, context.task, written, region)

    def template(self, context: TemplateContext) -> Draft | Declined:
        """The source with literals and choices lifted into parameters, each with its reason."""
        written, body = context.written, body_of(context.written)
        region = Region.whole(body)
        briefing, shared = self._briefer.of_source(context.task, written)
        prompt = filled(
            "template",
            context=briefing,
            source=body,
            header=header_toml(written.text),
            limits=self._limits("template"),
        )
        asking = _Asking("template", prompt, written.language, shared, context.node)
        return self._draft(asking, context.task, written, region, tactic="template", check=_require_reasons)

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """What the rules find, and behind it the model's claims that cite given evidence."""
        found = findings(context)
        passed = sum(each.value is not None for each in context.observations)
        if not self._settings.analyses or passed < LEAST_OBSERVATIONS:
            return found
        evidence = self._briefer.analysis_evidence(context, found)
        briefing, shared = self._briefer.of_analysis(context)
        prompt = filled(
            "analyse",
            context=briefing,
            evidence="\n".join(f"{label}: {text}" for label, text in evidence.items()),
            count=str(MOST_CLAIMS),
            limits=self._limits("analyse"),
        )
        labels = frozenset(evidence)

        def read(reply: Reply) -> tuple[Claim, ...]:
            return claims_of(reply, labels)

        asking = _Asking("analyse", prompt, context.node.language, shared, context.node, ANALYSIS_SCHEMA)
        claims = self._ask(asking, read)
        if isinstance(claims, Declined):
            return found
        told = [
            Finding(claim.claim, "; ".join(evidence[label] for label in claim.evidence))
            for claim in claims[:MOST_CLAIMS]
        ]
        return (*found, *told)

    # -- planning ------------------------------------------------------------------------------------------------

    def _planned(self, context: Context) -> Idea | Declined:
        written, node = context.written, context.node
        body = body_of(written)
        briefing, shared = self._briefer.of_node(context.task, written, context.tree, node, "plan")
        is_direct = self._settings.is_direct
        prompt = self._filled(
            "plan",
            context=briefing,
            source=body,
            header=header_toml(self._at_its_best(written, node).text),
            families=", ".join(FAMILIES),
            limits=self._limits("plan"),
        )
        count = len(body.split("\n"))

        texts: dict[str, str] = {}

        def read(reply: Reply) -> PlanReply | str:
            plan = direct_plan_of(reply) if is_direct else plan_of(reply, count)
            coded = written_with(plan, reply, entry=written.entry) if isinstance(plan, PlanReply) else None
            texts["whole"] = self._whole(coded, context) if coded is not None else ""
            return plan

        asking = _Asking("plan", prompt, written.language, shared, node, sample=context.sample)
        plan = self._ask(asking, read)
        if isinstance(plan, Declined):
            return plan
        if isinstance(plan, str):
            return Declined(plan, has_no_plan=True)
        return Idea(
            key=_free(plan.key, context.tree, node),
            family=plan.family,
            instruction=plan.details,
            because=plan.because,
            predicted_gain=plan.predicted_gain,
            first_line=plan.first_line,
            last_line=plan.last_line,
            risk=plan.risk,
            text=texts["whole"],
        )

    def _whole(self, reply: Reply, context: Context) -> str:
        """The whole template that came with a plan.

        Raises:
            Malformed: what is wrong with it, as a complaint.
        """
        task, written = context.task, self._at_its_best(context.written, context.node)
        region, original = Region.whole(body_of(written)), _original(task, written)
        made = drafted(reply, task=task, written=written, region=region, tactic="", original=original)
        if self._settings.is_direct:
            _refuse_parameters(made, written)
        return made.text

    def _at_its_best(self, written: Written, node: Node) -> Written:
        """A template whose defaults are the best values that its search has found, where that is wanted."""
        is_wanted = self._settings.carries_best and not self._settings.is_direct
        return with_defaults(written, node.best_config) if is_wanted else written

    @staticmethod
    def _again(node: Node, idea: Idea, place: int) -> Idea:
        hoped = min(idea.predicted_gain or HOPED_GAIN, 1 + (HOPED_GAIN - 1) * 0.7 ** (place - 1))
        words = "plan again, with what came of the plans before"
        return Idea(f"another-{node.index}-{place}", OPEN_FAMILY, words, UNPLANNED, hoped)

    # -- prompts -------------------------------------------------------------------------------------------------

    def _filled(self, name: str, **values: str) -> str:
        """The prompt of that name, or the one for whole kernels without parameters."""
        return filled(f"direct_{name}" if self._settings.is_direct else name, **values)

    def _limits(self, role: RoleName) -> str:
        """What the readers of this role's replies take, in words."""
        tokens = self._settings.roles.get(role, RoleSettings()).max_tokens
        return limits_words(role, max_tokens=tokens)

    # -- asking --------------------------------------------------------------------------------------------------

    def _draft(
        self,
        asking: _Asking,
        task: Task,
        written: Written,
        region: Region,
        *,
        tactic: str = "",
        check: Callable[[Written], None] | None = None,
    ) -> Draft | Declined:
        original = _original(task, written)

        def read(reply: Reply) -> Draft | str:
            reason = given_up(reply)
            if reason is not None:
                return reason
            made = drafted(reply, task=task, written=written, region=region, tactic=tactic, original=original)
            if self._settings.is_direct:
                _refuse_parameters(made, written)
            if check is not None:
                check(made)
            return Draft(made, prose(reply.text)[:MOST_EXPLANATION])

        result = self._ask(asking, read)
        return Declined(result) if isinstance(result, str) else result

    def _ask(self, asking: _Asking, read: Callable[[Reply], _T]) -> _T | Declined:
        """What `read` makes of a reply; a complaint of it goes back to the model."""
        settings = self._settings.roles.get(asking.role, RoleSettings())
        model = self._models.get(asking.role, self._model)
        messages: tuple[Message, ...] = (Message("user", asking.prompt),)
        complaint = ""
        for _ in range(self._settings.corrections + 1):
            request = ChatRequest(
                asking.role,
                self._system(asking.language),
                messages,
                temperature=settings.temperature,
                effort=settings.effort,
                max_tokens=settings.max_tokens,
                schema=asking.schema,
                shared_characters=asking.shared_characters,
                sample=asking.sample,
                seed=self._settings.seed,
                node=asking.node.index if asking.node is not None else 0,
            )
            try:
                reply = model.complete(request)
            except (ModelBudgetSpent, ModelRefused, ModelReplyMalformed) as error:
                return Declined(error.message)
            try:
                result = read(reply)
            except Malformed as error:
                complaint = str(error)[:MOST_COMPLAINT]
            else:
                then = model.followed_by(request, reply) if isinstance(model, ReplayedModel) else None
                if then is None:
                    return result
                complaint = _complaint_in(then)  # the checks of then refused it, and what came next is recorded
            messages = (
                *messages,
                Message("assistant", _sent_back(reply.text)),
                Message("user", f"{REFUSED}{complaint}{AGAIN}"),
            )
        return Declined(f"{len(messages) // 2} replies could not be used; the last: {complaint.splitlines()[0]}")

    def _system(self, language: str) -> str:
        name = "direct_system" if self._settings.is_direct else "system"
        return system_prompt(language, _LANGUAGES.get(language, language), name=name)


_LANGUAGES: Mapping[str, str] = MappingProxyType(
    {"opencl": "OpenCL C", "cuda": "CUDA C++", "hip": "HIP C++", "triton": "Triton (Python)"}
)


def _sent_back(text: str) -> str:
    """A reply as it goes back with a complaint: of one that is too long to be read only the beginning."""
    return text if len(text) <= MOST_CHARACTERS else shortened(text, MOST_SENT_BACK)


def _complaint_in(text: str) -> str:
    """The complaint in a message that sent an answer back."""
    return text.removeprefix(REFUSED).removesuffix(AGAIN)


def _free(key: str, tree: Tree, node: Node) -> str:
    """The key, with a number where the node or one of its children has it."""
    return free_key(key, {each.tactic for each in tree.children(node.index)} | {each.key for each in node.ideas})


def _require_reasons(made: Written) -> None:
    """Nothing, for a template each of whose parameters says why it is there.

    Raises:
        Malformed: one does not.
    """
    parameters = parse_header(made.text, Path("header"), entry=made.entry).parameters
    silent = [each.name for each in parameters if not each.why.strip()]
    if silent:
        raise Malformed(f"the parameter {silent[0]} has no reason: say `why` for {', '.join(silent)}")


def _refuse_parameters(made: Written, before: Written) -> None:
    """Nothing, for a kernel with no parameter that it did not have before.

    Raises:
        Malformed: it has one.
    """
    new, old = (parse_header(each.text, Path("header"), entry=each.entry).parameters for each in (made, before))
    names = sorted({each.name for each in new} - {each.name for each in old})
    if names:
        raise Malformed(
            f"the toml block declares the parameter {names[0]}: there are none here; write each number into the "
            "source and into [launch]"
        )


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
