"""The page and the terminal of a run with a tree: story, nodes, replies; what strangers wrote stays text."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.cli.main import app
from kernelwright.errors import StoreError
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.evaluate.words import factor_text, interval_text
from kernelwright.insights.run_summary import Story, finding_words, outcome_of
from kernelwright.insights.step_table import fastest_run_id, told_config, told_path
from kernelwright.llm.base import ChatRequest, Message, Reply, Usage
from kernelwright.llm.recorded import FILE_NAME, Exchange, encode
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.report.page import render_report, write_report
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tree.model import Node
from kernelwright.tuning.settings import Budget, TuneSettings

RECORDED = Path(__file__).parent.parent / "agent" / "recordings" / "softmax"
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u202e{{ 7 * 7 }}'


def cost(config: Config, workload: Workload) -> float | Failed:
    if "WRONG" in config:
        return Failed("check", "mismatch", f"output y is wrong {HOSTILE}", log=HOSTILE)
    return workload.sizes["n"] * 1e-4 / config.get("TILE", 1)  # type: ignore[operator]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> Path:
    """A scripted run with a winner, a failure, a proof, and one hostile exchange with a model."""
    folder = tmp_path_factory.mktemp("tree")
    plain = write_saxpy(folder / "plain")
    source = (plain / "saxpy.cl").read_text()
    (plain / "saxpy.cl").write_text(f"// {HOSTILE}\n" + source[source.index("#ifndef") :])
    tune = TuneSettings(budget=Budget(evaluations=60), searcher="random", data_seed=1, comparison_rounds=12)
    optimize(
        plain,
        settings=OptimizeSettings(tune=tune, memory="off"),
        run=folder / "run",
        machine=SimulatedMachine(cost, noise=0.002),
        agent=ScriptedAgent(
            [ScriptedTactic("tile", 3.0), ScriptedTactic("wrong", 6.0, "row")],
            lifted=ScriptedTactic("lift", 1.0, "launch"),
        ),
    )
    request = ChatRequest("code", f"be good {HOSTILE}", (Message("user", HOSTILE),), node=1)
    reply = Reply(HOSTILE, "some-model", Usage(1200, None, 34), 0.0125, 3.5)
    (folder / "run" / FILE_NAME).write_bytes(encode(Exchange(request, reply)))
    return folder / "run"


class Shown(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def section(page: str, name: str) -> str:
    return Shown(page.split(f'<section id="{name}">')[1].split("</section>", maxsplit=1)[0]).text


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return render_report(OptimizeResult.read(run).view)


# -- the page


def test_one_page_says_in_words_what_made_it_faster_with_the_evidence(page: str) -> None:
    words = section(page, "story")
    assert re.search(r"It is 4\.\d+x \[\d\.\d+, \d\.\d+\] as fast as the baseline", words)
    assert "Steps whose own interval lies above 1: tile" in words
    assert "12 interleaved rounds" in words
    assert "predicted 3.00x; measured 4.0" in words
    assert "this step by workload: small" in words
    assert "What did not make it faster" in words
    assert "wrong (node" in words


def test_every_node_has_its_instruction_diff_landscape_proof_and_cost(page: str) -> None:
    shown = Shown(page)
    count = len([each for each in shown.ids if each.startswith("node-")])
    assert count >= 4
    words = section(page, "tree")
    for text in ("Landscape: ", "TILE", "Changes against its parent", "agrees with the reference", "further points"):
        assert text in words
    assert "evaluations; " in words
    assert "1 reply of a model, 1200 tokens in, 34 out, $0.0125" in words
    assert shown.tags.count("svg") > 0
    assert page.count('data-node="') == count


def test_what_strangers_wrote_is_shown_and_never_becomes_markup(page: str) -> None:
    shown = Shown(page)
    assert shown.tags.count("script") == 2
    assert "img" not in shown.tags
    assert shown.handlers == []
    assert "\u202e" not in page
    assert "49" not in section(page, "tree").split("{{ 7 * 7 }}")[0][-5:]
    assert "alert(1)" in section(page, "tree")


def test_the_page_needs_no_network(page: str) -> None:
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "default-src 'none'" in page


def test_the_dispatch_table_is_on_the_page(page: str) -> None:
    words = section(page, "dispatch")
    assert "configuration" in words
    assert "small" in words
    assert "large" in words


def test_texts_of_models_are_bounded(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    request = ChatRequest("plan", "s", (Message("user", "x" * 60_000),), node=1)
    exchanges = [
        Exchange(dataclasses.replace(request, sample=k), Reply("y" * 60_000, "m", Usage(), None, 1.0))
        for k in range(60)
    ]
    (copy / FILE_NAME).write_bytes(b"".join(encode(each) for each in exchanges))
    text = render_report(OptimizeResult.read(copy).view)
    assert len(text) < 2_500_000
    assert "cut here; replies.jsonl has the whole text" in text


def test_a_recorded_run_with_a_model_shows_prompts_and_replies(tmp_path: Path) -> None:
    page = write_report(RECORDED, tmp_path / "report.html").read_text(encoding="utf-8")
    words = section(page, "tree")
    assert "What models were asked, and answered" in words
    assert "83604 tokens in, 14055 out, price unknown" in words
    assert "BEGIN DATA" in words
    assert "Steps whose own interval lies above 1: template and plain-vector-operators" in section(page, "story")


def test_a_run_without_a_gain_tells_that(tmp_path: Path, write_saxpy: Callable[..., Path]) -> None:
    plain = write_saxpy(tmp_path / "plain")
    tune = TuneSettings(budget=Budget(evaluations=20), searcher="random", data_seed=1, comparison_rounds=10)
    result = optimize(
        plain,
        settings=OptimizeSettings(tune=tune, memory="off"),
        run=tmp_path / "run",
        machine=SimulatedMachine(lambda config, workload: 1.0, noise=0.01),
        agent=ScriptedAgent([ScriptedTactic("useless", 2.0)]),
    )
    assert "so the baseline is kept" in section(render_report(result.view), "story")


# -- the terminal


def show(*words: object) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_prints_the_same_of_a_node(run: Path) -> None:
    result = OptimizeResult.read(run)
    tile = next(node for node in result.tree if node.tactic == "tile")
    text = show("node", run, tile.index)
    assert text == show(run, tile.index), "the word may be left out"
    for words in (tile.instruction, "predicted and measured: predicted 3.00x", "landscape", "+// TILE", "cost: "):
        assert words in text
    wrong = next(node for node in result.tree if node.tactic == "wrong")
    text = show("node", run, wrong.index)
    assert "failed at check: mismatch" in text
    assert "\u202e" not in text


def test_show_prints_replies_when_asked(run: Path) -> None:
    assert "--replies" in show("node", run, 1)
    assert "alert(1)" in show("node", run, 1, "--replies")


def test_show_of_a_node_gives_data_to_scripts(run: Path) -> None:
    data = json.loads(show("node", run, 1, "--json"))
    assert data["role"] == "template"
    assert data["proof"]["reproduces"] == "reference"
    assert data["cost"]["model"]["requests"] == 1
    assert show(run) == show("run", run)


def test_a_node_that_is_not_there_is_refused(run: Path) -> None:
    with pytest.raises(StoreError, match="there is no node 99"):
        show("node", run, 99)


# -- words


@pytest.mark.parametrize(
    ("low", "estimate", "high", "text"),
    [
        (0.9985, 1.0, 1.0015, "1.0000x [0.9985, 1.0015]"),
        (2.0012, 2.002, 2.0031, "2.0020x [2.0012, 2.0031]"),
        (1.2, 1.23, 1.26, "1.23x [1.20, 1.26]"),
        (39.57, 56.13, 78.63, "56.1x [39.6, 78.6]"),
        (132.1, 140.0, 150.1, "140x [132, 150]"),
        (1.0, 1.0, 1.0, "1.00x [1.00, 1.00]"),
    ],
)
def test_intervals_have_the_digits_that_tell_their_bounds_apart(
    low: float, estimate: float, high: float, text: str
) -> None:
    assert interval_text(ConfidenceInterval(estimate, low, high, 0.95)) == text


def test_a_factor_beside_one_does_not_read_as_one() -> None:
    assert [factor_text(value) for value in (1.0, 1.003, 1.234, 12.34, 123.4)] == [
        "1.00x", "1.003x", "1.23x", "12.3x", "123x",
    ]  # fmt: skip


def node(predicted: float | None, status: str = "working") -> Node:
    return Node(1, 0, "code", "t", "f", "i", "b", predicted, "x", "opencl", (), status=status)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("predicted", "low", "high", "outcome"),
    [
        (2.0, 1.9, 2.1, "as predicted"),
        (2.0, 2.5, 3.0, "more than predicted"),
        (4.0, 1.5, 2.0, "less than predicted"),
        (2.0, 0.9, 1.2, "no gain shown"),
        (2.0, 0.5, 0.9, "slower"),
        (None, 1.5, 2.0, "open"),
    ],
)
def test_predictions_are_held_against_intervals(predicted: float | None, low: float, high: float, outcome: str) -> None:
    assert outcome_of(node(predicted), ConfidenceInterval((low + high) / 2, low, high, 0.95), None) == outcome
    assert outcome_of(node(predicted, "failed"), None, None) == "failed"


@pytest.mark.thorough
def test_a_story_of_a_run_that_is_cut_off_is_told(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    log = copy / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    for count in range(4, len(lines)):
        log.write_bytes(b"".join(lines[:count]))
        result = OptimizeResult.read(copy)
        assert list(Story(result).paragraphs())
        render_report(result.view)


def compared_again(
    run: Path, *, keep: Callable[[int], bool] = lambda node: True, last: float | None = None
) -> OptimizeResult:
    """A run with the finalists of some nodes alone, and the fastest as another row of the same node has it."""
    result = OptimizeResult.read(run)
    comparison, fastest = result.view.comparison, result.fastest
    assert comparison is not None
    assert fastest is not None
    places = [0, *(k for k, node in enumerate(comparison.nodes) if k and keep(node))]
    ids = [comparison.candidate_ids[k] for k in places]
    configs = [comparison.configs[k] for k in places]
    samples = {name: [rows[k] for k in places] for name, rows in comparison.samples_ms.items()}
    nodes = [comparison.nodes[k] for k in places]
    if last is not None:  # its rounds are better than its median: in each round, the baseline was slow just then
        ids, configs, nodes = [*ids, "another"], [*configs, {"TILE": 99}], [*nodes, fastest.index]
        for rows in samples.values():
            rows.append(tuple(last * time_ms for time_ms in rows[0]))
    changed = dataclasses.replace(
        comparison,
        candidate_ids=tuple(ids),
        configs=tuple(configs),
        nodes=tuple(nodes),
        samples_ms={name: tuple(rows) for name, rows in samples.items()},
        rejected={},
    )
    return OptimizeResult(dataclasses.replace(result.view, comparison=changed))


def test_the_steps_end_with_the_very_interval_that_is_claimed(run: Path) -> None:
    for result in (compared_again(run), compared_again(run, last=0.01)):
        fastest = result.fastest
        assert fastest is not None
        assert told_path(result)[-1].total == result.speedup == Story(result).node(fastest.index).total
        assert told_config(result, fastest.index) == result.best_config


def test_the_rows_of_a_step_are_those_of_the_winner_even_where_medians_prefer_another(run: Path) -> None:
    result = compared_again(run)
    comparison, winner, fastest = result.view.comparison, result.view.fastest, result.fastest
    assert comparison is not None
    assert winner is not None
    place = comparison.candidate_ids.index(winner.candidate_id, 1)
    rounds = len(next(iter(comparison.samples_ms.values()))[0])
    # The other row: a shorter median, but slow whenever the baseline was fast, so that its rounds speak against it.
    samples = {}
    for name, rows in comparison.samples_ms.items():
        baseline = tuple(1.0 if k % 2 else 9.0 for k in range(rounds))
        mine = tuple(0.5 * each for each in baseline)
        other = tuple(0.8 if each == 1.0 else 2.0 for each in baseline)
        told = [baseline if k == 0 else mine if k == place else tuple(99.0 for _ in baseline) for k in range(len(rows))]
        samples[name] = (*told, other)
    changed = dataclasses.replace(
        comparison,
        candidate_ids=(*comparison.candidate_ids, "another"),
        configs=(*comparison.configs, {"TILE": 99}),
        nodes=(*comparison.nodes, fastest.index if fastest is not None else 0),
        samples_ms=samples,
        rejected={},
    )
    result = OptimizeResult(dataclasses.replace(result.view, comparison=changed))
    assert result.speedup is not None
    assert told_path(result)[-1].total == result.speedup


def test_steps_that_were_not_compared_are_not_said_to_contain_one(run: Path) -> None:
    fastest = OptimizeResult.read(run).fastest
    assert fastest is not None
    story = Story(compared_again(run, keep=lambda node: node == fastest.index))
    steps = [each.gain for each in told_path(story.result)[1:]]
    headline = next(iter(story.paragraphs())).text
    if len(steps) > 1:  # the baseline's own row is there, so that a single step from it is compared
        assert steps[-1] is None
        assert "ot compared side by side with what came before" in headline
    assert "lies above 1" not in headline or any(steps)


def test_sentences_about_parameters_say_what_they_follow() -> None:
    assert finding_words("ROWS = 4 wins (at its best, 2 is 1.30x slower)").startswith("in its search: ROWS = 4")
    assert finding_words("mismatch whenever TILE = 8 (3 of 9)") == "mismatch whenever TILE = 8 (3 of 9)"


def test_what_a_run_exports_names_a_run_that_page_and_console_show(run: Path, page: str) -> None:
    result = OptimizeResult.read(run)
    own = fastest_run_id(result)
    assert own
    assert own != result.view.started.run_id
    assert own in page
    assert own in show("run", run)


def test_places_are_named_in_the_order_of_the_page(page: str) -> None:
    named = re.findall(r'<li><a href="#([a-z]+)">', page.partition("<nav")[2].partition("</nav>")[0])
    assert named == re.findall(r'<section id="([a-z]+)">', page)


def test_what_is_not_known_or_not_compared_is_said_once(page: str) -> None:
    words = Shown(page).text
    assert words.count("no model was asked") == 0
    assert words.count("not compared side by side, so nothing is claimed") <= 2, "of structures, and of what is aside"
    assert len(re.findall(r"95\s%\s?confidence", words.replace("\xa0", " "))) == 1


def test_every_configuration_of_every_structure_is_in_the_table(page: str) -> None:
    payload = json.loads(page.partition('id="evaluations">')[2].partition("</script>")[0])
    nodes = {row["node"] for row in payload["rows"]}
    assert len(nodes) > 1
    assert payload["charted"] in nodes
    assert sum(row["won"] for row in payload["rows"]) == 1
    tried = re.search(r"(\d+) configurations in all", page)
    assert tried is not None
    assert len(payload["rows"]) == int(tried[1])


def test_a_structures_changes_stand_beside_their_gain(page: str) -> None:
    parts = page.split('<div class="beside">')[1:]
    assert parts
    for part in parts:
        told = part.partition("<pre")[0]
        assert re.search(r"Changes against its parent: \+\d+ −\d+ lines", told)
    assert any(re.search(r"<b>[^<]+× \[[^<]+\]</b> over it", part) for part in parts)
