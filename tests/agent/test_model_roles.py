"""The file of `--roles`: what is wrong is told, what is right reaches the requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.agent.model.settings import DEFAULT_ROLES, ModelSettings
from kernelwright.errors import UsageError
from kernelwright.llm.base import ChatModel
from kernelwright.llm.pace import Pace
from kernelwright.llm.scripted import ScriptedModel
from kernelwright.optimization.agent import agent_of
from kernelwright.optimization.roles_file import read_roles, roles_of
from kernelwright.optimization.settings import OptimizeSettings

GOOD = """
window = "published"
context_tokens = 9000
corrections = 1
requests_per_minute = 30
requests_in_flight = 4
timeout_s = 1500
tactics = false

[plan]
model = "openai:big,anthropic:bigger"
temperature = "own"
effort = "high"

[code]
model = "openai:small@http://127.0.0.1:1/v1"
temperature = 0
max_tokens = 12000

[analyse]
model = "rules"
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plan = 3", "expected a table"),
        ("[plan]\ntemperature = 3", "temperature of plan is 3"),
        ("[plan]\ntemperature = true", "temperature of plan"),
        ("[plan]\neffort = 'huge'", "effort of plan is 'huge'"),
        ("[plan]\nmax_tokens = 1", "max_tokens of plan is 1"),
        ("[plan]\nmodel = 7", "model of plan"),
        ("[plan]\nmodel = 'closedai:x'", "there is no model"),
        ("[code]\nmodel = 'rules'", "code cannot be played by rules"),
        ("[plan]\napi_key = 'x'", "has no 'api_key'"),
        ("[planner]\n", "has no 'planner'"),
        ("window = 'wide'", "window is 'wide'"),
        ("corrections = -1", "corrections is -1"),
        ("requests_per_minute = 0", "requests_per_minute is 0"),
        ("tactics = 1", "tactics is 1"),
        ("[plan", "not valid TOML"),
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        (".".join(["x"] * 20_000) + " = 1", "dotted key"),
        ("requests_per_minute = " + "9" * 5000, "too long"),
    ],
)
def test_what_is_wrong_is_told_with_the_file(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "roles.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        read_roles(file)
    assert caught.value.location is not None
    assert caught.value.location.file == file


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_roles(tmp_path / "none.toml")


def test_the_tables_become_settings(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text(GOOD)
    roles = roles_of(read_roles(tmp_path / "roles.toml"))
    assert roles.models == {
        "plan": "openai:big,anthropic:bigger",
        "code": "openai:small@http://127.0.0.1:1/v1",
        "analyse": "rules",
    }
    plan, code = roles.settings.roles["plan"], roles.settings.roles["code"]
    assert (plan.temperature, plan.effort, plan.max_tokens) == (None, "high", DEFAULT_ROLES["plan"].max_tokens)
    assert (code.temperature, code.effort, code.max_tokens) == (0.0, None, 12_000)
    assert roles.settings.roles["debug"] == DEFAULT_ROLES["debug"]
    assert (roles.settings.window, roles.settings.context_tokens, roles.settings.corrections) == ("published", 9000, 1)
    assert not roles.settings.shows_tactics
    assert roles.pace == Pace(30, 4)
    assert roles.timeout_s == 1500


def test_the_file_of_the_docs_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/howto-models.md").read_text()
    block = next(each for each in page.split("```")[1::2] if each.strip().startswith("window ="))
    (tmp_path / "roles.toml").write_text(block)
    roles = roles_of(read_roles(tmp_path / "roles.toml"))
    assert roles.settings == ModelSettings(roles=roles.settings.roles)
    assert roles.models["debug"] == "rules"


def test_settings_keep_roles_for_a_resumed_run(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text(GOOD)
    settings = OptimizeSettings(model="openai:m", roles=read_roles(tmp_path / "roles.toml"), max_attempts=7)
    again = OptimizeSettings.from_record(settings.as_record())
    assert roles_of(again.roles) == roles_of(settings.roles)
    assert again.max_attempts == 7


def test_roles_need_a_model_and_caps_that_can_be_kept() -> None:
    with pytest.raises(UsageError, match="the model is 'rules'"):
        OptimizeSettings(roles={"plan": {"effort": "low"}})
    with pytest.raises(UsageError, match="price of openai:x@http"):
        OptimizeSettings(
            model="openai:m", max_cost_usd=5.0, roles={"code": {"model": "openai:x@http://127.0.0.1:1/v1"}}
        )
    with pytest.raises(UsageError, match="max_attempts is 0"):
        OptimizeSettings(max_attempts=0)


def test_the_missing_model_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    """Every model of the roles is opened at the start, so that a wrong key does not stop a run in its middle."""
    opened: list[str] = []

    def opener(name: str) -> ChatModel:
        opened.append(name)
        return ScriptedModel(["```toml\n"])

    class Folder:
        path = tmp_path

    settings = OptimizeSettings(model="openai:m", roles={"plan": {"model": "anthropic:a"}, "debug": {"model": "rules"}})
    with agent_of(settings, Folder(), opener=opener) as agent:  # type: ignore[arg-type]
        assert opened == ["openai:m", "anthropic:a"]
        assert agent.name == "scripted"
        assert not agent.plans_ahead
