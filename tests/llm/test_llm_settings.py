"""What a person says of models on the command line, and that nothing is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.errors import UsageError
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.outcome import STAGES

SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "gpt-5"}, "expected rules or PROVIDER:NAME"),
        ({"model": "openai:x", "max_cost_usd": 0.0}, "max_cost is 0.0"),
        ({"model": "openai:x", "max_cost_usd": float("nan")}, "max_cost is nan"),
        ({"model": "openai:x", "max_tokens": -5}, "max_tokens is -5"),
        ({"model": "openai:x@http://localhost:1/v1", "max_cost_usd": 5.0}, "say --max-tokens"),
        ({"model": "anthropic:x,openai:y@http://localhost:1/v1", "max_cost_usd": 5.0}, "say --max-tokens"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_starts(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        OptimizeSettings(**changes)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_settings_with_a_model_read_back() -> None:
    settings = OptimizeSettings(model="anthropic:a,openai:b", max_cost_usd=5.0, max_tokens=1000)
    assert OptimizeSettings.from_record(settings.as_record()) == settings


def test_a_model_is_handed_failures_that_rules_can_only_withdraw() -> None:
    policy = OptimizeSettings(model="anthropic:a").selection_policy()
    assert getattr(policy, "repairable_stages", None) == frozenset(STAGES)
    assert "check" not in getattr(OptimizeSettings().selection_policy(), "repairable_stages", ())


def test_no_client_of_a_service_is_imported_before_a_model_is_asked() -> None:
    code = (
        "import sys, kernelwright.optimization.optimize, kernelwright.cli.commands.optimize\n"
        "print([n for n in ('pydantic_ai', 'openai', 'anthropic', 'google.genai', 'httpx2') if n in sys.modules])"
    )
    environment = {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
