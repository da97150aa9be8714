"""What prompts say: every limit of the readers, the noise of figures, who else is at work, and no traces of us."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.agent.base import AnalyseContext, Context, Draft, Task, TemplateContext
from kernelwright.agent.model.agent import ModelAgent
from kernelwright.agent.model.anchors import BEGIN, END, Malformed
from kernelwright.agent.model.cleaning import cleaned_log, cleaned_message
from kernelwright.agent.model.context import DIRECTIONS, landscape_section
from kernelwright.agent.model.drafting import body_of, with_defaults, without_parameters
from kernelwright.agent.model.hostile import ATTRIBUTES, MOST_HEADER_CHARACTERS, MOST_SOURCE_CHARACTERS
from kernelwright.agent.model.limits import limits_words
from kernelwright.agent.model.prompting import system_prompt
from kernelwright.agent.model.replies import (
    MOST_CLAIM,
    PlanReply,
    claims_of,
    direct_plan_of,
    plan_of,
)
from kernelwright.agent.model.settings import ROLES, ModelSettings, RoleName, RoleSettings
from kernelwright.agent.written import written_template
from kernelwright.llm.base import ChatRequest, Reply
from kernelwright.llm.scripted import ScriptedModel
from kernelwright.optimization.evidence import CLEARLY, node_evidence, noise_of, noise_words
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed, Measurement, Passed
from kernelwright.search.base import Observation
from kernelwright.space.parameter import Parameter
from kernelwright.store.event import ActionChosen, Idea
from kernelwright.store.view import RunView
from kernelwright.template.header import parse_header
from kernelwright.template.load import load_baseline, load_template, template_of_text
from kernelwright.testing.simulated import SIMULATED_DEVICE, SimulatedMachine
from kernelwright.tree.model import Node, Tree, UnderWay
from kernelwright.tuning.settings import Budget, TuneSettings

NOTHING = '{"give_up": "it runs at the limit"}'


@pytest.fixture
def context(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Context:
    folder = write_saxpy(tmp_path / "plain")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("__kernel") :].replace("ITEMS", "1"))
    return context_of(folder)


@pytest.fixture
def template(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Context:
    """A node that is a template with parameters."""
    return context_of(write_saxpy(tmp_path / "template"))


def context_of(folder: Path) -> Context:
    problem = load_problem(folder)
    written = written_template(load_template(problem))
    if not parse_header(written.text, Path("header"), entry="saxpy").parameters:
        written = written_template(load_baseline(problem, load_template(problem)).template)
    node = Node(0, None, "baseline", "", "", "the kernel as it is", "", None, "0" * 16, "opencl", (), status="working")
    node = dataclasses.replace(node, best_value=1.0)
    return Context(Task(problem, SIMULATED_DEVICE), Tree((node,)), node, written)


def asked(role: RoleName, context: Context, **settings: Any) -> str:
    """What a role is asked."""
    model = ScriptedModel(['{"claims": []}' if role == "analyse" else NOTHING])
    agent = ModelAgent(model, settings=ModelSettings(**{"analyses": True, **settings}))
    task, tree, node, written = context.task, context.tree, context.node, context.written
    match role:
        case "plan":
            agent.plan(context)
        case "code":
            agent.code(Context(task, tree, node, written), Idea("x", "tiling", "tile it", "", 1.1))
        case "debug":
            agent.debug(Context(task, tree, node, written), node.failure or Failed("check", "mismatch", "wrong"))
        case "template":
            agent.template(TemplateContext(task, written))
        case "analyse":
            observations = [Observation(Config({"ITEMS": n % 3 + 1}), 1.0 / (n % 3 + 1)) for n in range(18)]
            agent.analyse(AnalyseContext(task, node, (Parameter("ITEMS", (1, 2, 3), 1),), observations))
    return model.requests[0].messages[0].text


# -- limits


@pytest.mark.parametrize("role", ROLES)
def test_every_limit_beyond_which_an_answer_comes_back_is_told_where_it_is_asked(
    role: RoleName, context: Context
) -> None:
    """What is cut instead is no limit: no plan has to count the characters of its words."""
    limits = next(line for line in asked(role, context).splitlines() if line.startswith("Limits, beyond which"))
    assert "tokens in all" in limits
    if role != "analyse":
        assert str(MOST_SOURCE_CHARACTERS) in limits
        assert str(MOST_HEADER_CHARACTERS) in limits
        assert "`because`" not in limits


def test_the_limit_of_a_claim_is_the_readers(context: Context) -> None:
    """A longer claim is cut, and the prompt has said so: a question again would cost more than its last words."""
    limits = f"words are cut: 4000 tokens in all, reasoning included; a claim {MOST_CLAIM} characters"
    assert limits in asked("analyse", context)
    claim = {"claim": "x" * (MOST_CLAIM + 1), "evidence": ["E1"]}
    (found,) = claims_of(Reply(json.dumps({"claims": [claim]}), "m"), frozenset({"E1"}))
    assert found.claim == "x" * MOST_CLAIM
    with pytest.raises(Malformed, match="at least 5 characters"):
        claims_of(Reply(json.dumps({"claims": [{**claim, "claim": "x"}]}), "m"), frozenset({"E1"}))


def test_the_tokens_of_a_reply_are_told_as_they_are_set() -> None:
    assert limits_words("plan", max_tokens=1234).startswith("1234 tokens in all")


def test_the_tokens_are_those_of_the_roles_file(context: Context) -> None:
    roles: dict[RoleName, RoleSettings] = {"plan": RoleSettings(max_tokens=777)}
    assert "777 tokens in all" in asked("plan", context, roles=roles)


@pytest.mark.parametrize("role", ["plan", "code", "debug"])
def test_prompts_for_whole_kernels_know_of_no_parameters_and_no_anchors(role: RoleName, context: Context) -> None:
    text = asked(role, context, is_direct=True)
    assert BEGIN not in text
    assert "first_line" not in text
    assert "[parameters]" not in text
    assert "Limits, beyond which" in text


# -- whole kernels


WHOLE = """Done.
```c
__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    int base = get_global_id(0) * 4;
    for (int k = 0; k < 4; k++)
        if (base + k < n) y[base + k] = a * x[base + k] + y[base + k];
}
```
```toml
%s[launch]
grid = ["ceil_div(n, 128)"]
block = ["32"]
```
"""


def coded(context: Context, *answers: str, **settings: Any) -> tuple[object, ScriptedModel]:
    model = ScriptedModel(list(answers))
    agent = ModelAgent(model, settings=ModelSettings(**settings))
    idea = Idea("x", "tiling", "several elements", "", 1.1)
    return agent.code(Context(context.task, context.tree, context.node, context.written), idea), model


def test_a_whole_kernel_needs_no_anchors_and_may_declare_no_parameters(context: Context) -> None:
    bad = WHOLE % '[parameters]\nITEMS = { values = [4, 8], default = 4, why = "elements" }\n'
    bad = bad.replace("* 4;", "* ITEMS;").replace("k < 4", "k < ITEMS")
    draft, model = coded(context, bad, WHOLE % "", is_direct=True)
    assert "there are none here" in model.requests[1].messages[-1].text
    assert isinstance(draft, Draft)
    assert "get_global_id(0) * 4" in draft.written.text
    assert not parse_header(draft.written.text, Path("header"), entry="saxpy").parameters


def test_a_plan_needs_no_lines_and_no_parameters() -> None:
    plan = {
        "because": "it waits", "title": "a plan", "family": "tiling", "instruction": "tile the loop over the rows",
        "indexing": "unchanged", "risk": "", "predicted_gain": 1.2, "give_up": None,
    }  # fmt: skip
    read = direct_plan_of(Reply(json.dumps({**plan, "parameters": "many", "first_line": -1}), "m"))
    assert isinstance(read, PlanReply)
    assert read.parameters == []
    assert plan_of(Reply(json.dumps(plan), "m"), 9) == read


def test_an_example_without_parameters_still_computes_with_its_defaults(template: Context) -> None:
    text = without_parameters(template.written.text, "saxpy")
    assert "#define BLOCK 32" in text
    assert "[parameters]" not in text
    assert "__kernel void saxpy" in text


# -- where a child begins


def test_a_child_begins_at_its_parents_best_values_and_the_coder_sees_them(template: Context) -> None:
    node = dataclasses.replace(template.node, best_config={"BLOCK": 128, "ITEMS": 4, "GONE": 3})
    context = dataclasses.replace(template, node=node, tree=Tree((node,)))
    body = f"```c\n// {BEGIN}\n    int base = get_global_id(0) * ITEMS + 0;\n// {END}\n```"
    found = {}
    for carries in (True, False):
        model = ScriptedModel([body, NOTHING])
        agent = ModelAgent(model, settings=ModelSettings(carries_best=carries))
        line = next(number for number, text in enumerate(body_of(context.written).split("\n"), 1) if "int base" in text)
        idea = Idea("x", "tiling", "another base", "", 1.1, first_line=line, last_line=line)
        draft = agent.code(Context(context.task, context.tree, node, context.written), idea)
        assert isinstance(draft, Draft), model.requests[-1].messages[-1].text
        loaded = template_of_text(context.task.problem, draft.written.text, spec=context.task.problem.kernel)
        found[carries] = dict(loaded.default)
        assert (f"default = {128 if carries else 32}" in model.requests[0].messages[0].text) is True
    assert found == {True: {"BLOCK": 128, "ITEMS": 4}, False: {"BLOCK": 32, "ITEMS": 1}}


def test_values_that_a_parameter_cannot_have_are_not_carried(template: Context) -> None:
    assert with_defaults(template.written, {"BLOCK": 7, "OTHER": 1}) == template.written
    assert with_defaults(template.written, {}) == template.written


def test_runs_from_before_there_was_a_choice_are_repeated_as_they_were() -> None:
    record = OptimizeSettings().as_record()
    assert OptimizeSettings.from_record(record).child_defaults == "parent"
    del record["optimize"]["child_defaults"]
    assert OptimizeSettings.from_record(record).child_defaults == "declared"
    assert OptimizeSettings.from_record(record).rest == "policy"
    del record["optimize"]["rest"]
    assert OptimizeSettings.from_record(record).rest == "best"


# -- noise


def passed(samples_ms: list[float], *, stopped_early: bool = False) -> Passed:
    return Passed((Measurement("small", tuple(samples_ms), "simulated", stopped_early=stopped_early),))


@given(st.floats(0.1, 1000.0), st.floats(0.0, 0.3))
def test_the_noise_is_of_the_order_of_the_samples_spread(time_ms: float, share: float) -> None:
    samples = [time_ms * (1 + share * (n % 5 - 2) / 2) for n in range(25)]
    noise = noise_of([passed(samples)])
    assert noise is not None
    assert 0 <= noise <= 2 * share + 1e-9
    doubled = noise_of([passed([2 * each for each in samples])])
    assert doubled == pytest.approx(noise), "of times in any unit"


def test_what_was_not_measured_to_the_end_says_nothing_of_noise() -> None:
    assert noise_of([]) is None
    assert noise_of([passed([1.0] * 20, stopped_early=True)]) is None
    assert noise_of([passed([1.0] * 3)]) is None


def test_the_noise_is_what_was_measured_and_never_made_up() -> None:
    """No figure without launches enough for one; less than what a search takes for noise is not told."""
    assert "not known yet" in noise_words(None)
    assert "differ by less than 3 % are not told apart" in noise_words(0.001)
    assert "differ by less than 25 % are not told apart" in noise_words(0.25)


def test_planner_and_analyst_are_told_how_sure_the_times_are(context: Context, tmp_path: Path) -> None:
    requests: list[ChatRequest] = []

    def answer(request: ChatRequest) -> str:
        requests.append(request)
        return TEMPLATE if request.role == "template" else NOTHING

    run_of(context, tmp_path / "run", ScriptedModel(answer), evaluations=20)
    for role in ("plan", "analyse"):
        text = next(each.messages[0].text for each in requests if each.role == role and each.node)
        assert noise_words(None) in text
        assert re.search(r"small [\d.]+ ms \(of 5 launches\)", text)
    assert CLEARLY > 1


# -- who else is at work


def test_a_planner_is_told_what_others_are_doing_and_a_lone_one_is_not(context: Context) -> None:
    """Each further plan of one source is to differ in something else; a coder has its instruction."""
    idea = Idea("tiles", "tiling", "stage a tile in local memory", "", 1.3)
    node = dataclasses.replace(context.node, ideas=(idea,), is_planned=True)
    mine = UnderWay(ActionChosen(0, "expand", "why"), 3)
    others = (
        UnderWay(ActionChosen(0, "expand", "why", idea="tiles"), 0),
        UnderWay(ActionChosen(0, "expand", "why"), 1),
        UnderWay(ActionChosen(0, "tune", "why"), 2),
    )
    alone = asked("plan", dataclasses.replace(context, tree=Tree((node,), (mine,))))
    assert "Other engineers" not in alone
    text = asked("plan", dataclasses.replace(context, tree=Tree((node,), (*others, mine))))
    section = text[text.index("## Other engineers are doing this now") :].partition("\n## ")[0]
    assert "stage a tile in local memory" in section
    assert "1 more plan for it now" in section
    assert DIRECTIONS[0] in section
    assert "tun" not in section
    more = UnderWay(ActionChosen(0, "expand", "why"), 4)
    tree = Tree((node,), (*others, more, mine))
    text = asked("plan", dataclasses.replace(context, tree=tree))
    assert "2 more plan for it now" in text
    assert DIRECTIONS[1] in text
    roles: tuple[RoleName, ...] = ("code", "debug")
    for role in roles:
        told = asked(role, dataclasses.replace(context, tree=tree))
        assert "Other engineers" not in told
        assert "Everything that was tried" not in told


def run_of(context: Context, run: Path, model: ScriptedModel, *, evaluations: int, in_flight: int = 1) -> None:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", comparison_rounds=10)
    settings = OptimizeSettings(tune=tune, proof_points=0, in_flight=in_flight, max_attempts=6)
    optimize(
        context.task.problem.file,
        settings=settings,
        run=run,
        machine=SimulatedMachine(cost, noise=0.005),
        agent=ModelAgent(model, evidence_of=node_evidence(run), settings=ModelSettings(analyses=True)),
    )


def test_a_planner_is_told_what_one_parameter_changes_and_no_average(context: Context, tmp_path: Path) -> None:
    """A value's best among the few configurations that have it mixes in what else they have."""
    run_of(context, tmp_path / "run", ScriptedModel(lambda asked: TEMPLATE if asked.role == "template" else NOTHING),
           evaluations=30)  # fmt: skip
    node = Tree.of(RunView.read(tmp_path / "run").tree_events)[1]
    assert any(" wins (" in each for each in node.tuning.findings)
    evidence = node_evidence(tmp_path / "run")(node)
    (told,) = [each for each in evidence if each.startswith("with one parameter other than in the best config")]
    assert re.search(r"ITEMS=\d+: (at least )?[12]\.\d\dx the time", told)
    text = landscape_section(node, evidence).text
    assert told in text
    assert " wins (" not in text
    assert " wins (" in landscape_section(node).text, "where nothing else is known"


def cost(config: Config, workload: Workload) -> float:
    return workload.sizes["n"] * 1e-4 / {1: 1.0, 2: 1.5, 4: 2.5}.get(int(config.get("ITEMS", 1)), 1.0)


TEMPLATE = WHOLE.replace("* 4;", "* ITEMS;").replace("k < 4", "k < ITEMS").replace("n, 128", "n, 32 * ITEMS") % (
    "[parameters]\nITEMS = { values = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, "
    '65536, 131072], default = 1, why = "elements" }\n'
)


PLAN = json.dumps(
    {
        "because": "it waits", "title": "a plan", "family": "tiling", "instruction": "let a thread take four elements",
        "indexing": "unchanged", "risk": "", "predicted_gain": 1.3, "first_line": 1, "last_line": 6,
    }
)  # fmt: skip


def test_plans_for_one_node_that_are_made_at_once_are_asked_for_in_different_words(
    context: Context, tmp_path: Path
) -> None:
    requests: list[ChatRequest] = []

    def answer(request: ChatRequest) -> str:
        requests.append(request)
        match request.role:
            case "plan":
                return PLAN
            case "code":
                lines = sum(each.role == "code" for each in requests)
                return (WHOLE % "").replace("* 4;", f"* 4; /* {lines} */ float unused_{lines};")
        return NOTHING

    run_of(context, tmp_path / "run", ScriptedModel(answer), evaluations=30, in_flight=4)
    plans = [each for each in requests if each.role == "plan"]
    assert len(plans) > 2
    assert len({each.id for each in plans}) == len(plans)
    assert any("Other engineers are doing this now" in each.messages[0].text for each in plans)


# -- no traces of ours


CRASH = """Fatal Python error: Segmentation fault

Current thread 0x00007f0a1c7fe640 (most recent call first):
  File "/opt/app/src/kernelwright/backend/opencl_session.py", line 210 in launch
  File "/opt/app/src/kernelwright/evaluate/worker_main.py", line 98 in main
Extension modules: numpy.core, pyopencl (total: 2)
"""
TRACE = """Traceback (most recent call last):
  File "/home/someone/kernelwright/evaluate/lane.py", line 12, in check
    raise LaunchFailed("x")
    ^^^^^^^^^^^^^^^^^^^^^^^
LaunchFailed: the device refuses 4097 work-items
"""
COMPILER = """/root/.cache/pocl/kcache/tempfile_a1.cl:12:9: error: use of undeclared identifier 'lane'
    x = lane / 2;
        ^
1 error generated.
"""


def test_a_log_has_neither_our_frames_nor_folders_of_this_machine() -> None:
    crash, trace, compiler = (cleaned_log(each, most=4000) for each in (CRASH, TRACE, COMPILER))
    assert crash == "the process died: Segmentation fault"
    assert trace == "LaunchFailed: the device refuses 4097 work-items"
    assert compiler.split("\n")[0] == "tempfile_a1.cl:12:9: error: use of undeclared identifier 'lane'"
    assert compiler.split("\n")[2] == "        ^", "a compiler's mark stays where it points"


def test_a_long_log_begins_at_its_first_error() -> None:
    log = "\n".join(f"k.cl:{n}: warning: unused" for n in range(500)) + "\nk.cl:501: error: expected ';'\n"
    assert "expected ';'" in cleaned_log(log, most=400)
    assert len(cleaned_log(log * 3, most=400)) <= 400


@pytest.mark.parametrize(
    "text", ["a = (x + 1)/y/z;", "n/2/3", "// one /* two */", "x[i]/s/t", "and/or, src/dst", "<= 1/2"]
)
def test_divisions_are_no_paths(text: str) -> None:
    assert cleaned_message(text) == text


def test_a_debugger_sees_what_failed_and_no_traces(context: Context) -> None:
    failure = Failed("launch", "crash", "worker '/opt/app/x/device' died", CRASH + TRACE + COMPILER)
    node = dataclasses.replace(context.node, failure=failure)
    text = asked("debug", dataclasses.replace(context, node=node))
    assert "the device refuses 4097 work-items" in text
    for word in ("/opt/app", "/home/someone", "/root", "Traceback", "worker_main", "most recent call"):
        assert word not in text


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_plan_asks_for_every_field_that_is_read_and_no_other(context: Context, is_direct: bool) -> None:
    """In one form, the reason before the change: no schema beside it that says otherwise."""
    model = ScriptedModel([NOTHING])
    ModelAgent(model, settings=ModelSettings(is_direct=is_direct)).plan(context)
    text = model.requests[0].messages[0].text
    shown = json.loads(text[text.index('{"because"') : text.index("```\n", text.index('{"because"'))])
    assert set(shown) == {*PlanReply.model_fields, "give_up"} - {
        "parameters", "first_line", "last_line", "indexing", "source", "header",
    }  # fmt: skip
    assert model.requests[0].schema is None


def test_the_attributes_that_pass_are_told_beforehand() -> None:
    """One that does not costs a question more."""
    for name in ("system", "direct_system"):
        cuda, opencl = (system_prompt(each, each, name=name) for each in ("cuda", "opencl"))
        assert all(re.search(rf"\b{each}\b", cuda + opencl) for each in ATTRIBUTES)
        assert "reqd_work_group_size" in opencl
        assert "reqd_work_group_size" not in cuda
        assert "Attributes: " not in system_prompt("triton", "Triton", name=name)
