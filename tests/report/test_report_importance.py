"""Importance finds the effects that were put in, with and without scikit-learn."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random

import pytest

from kernelwright.report import importance as module
from kernelwright.report.importance import FEWEST_ROWS, importance

CONFIGS = [
    {"big": big, "small": small, "none": none, "kind": kind, "same": 1}
    for big, small, none, kind in itertools.product((1, 2, 4, 8), (1, 2, 3), (0, 1), ("a", "b"))
]


@pytest.fixture(params=["forest", "variance"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, the second as on a machine without scikit-learn."""
    if request.param == "variance":
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    elif importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn is not installed")
    return request.param


def additive(config: dict[str, object]) -> float:
    return math.exp(0.8 * math.log2(config["big"]) + 0.15 * config["small"])  # type: ignore[operator, arg-type]


def test_effects_are_ranked_by_size(method: str) -> None:
    found = importance(CONFIGS, [additive(config) for config in CONFIGS])
    assert found is not None
    assert [effect.name for effect in found.effects[:2]] == ["big", "small"]
    assert found.effects[0].share > 0.6
    assert found.explained > 0.9
    assert not found.is_weak
    assert sum(effect.share for effect in found.effects) == pytest.approx(1.0)
    assert ("trees" in found.method) == (method == "forest")


def test_a_parameter_that_never_varied_is_left_out(method: str) -> None:
    found = importance(CONFIGS, [additive(config) for config in CONFIGS])
    assert found is not None
    assert "same" not in {effect.name for effect in found.effects}


def test_noise_has_no_importance(method: str) -> None:
    generator = random.Random(3)
    found = importance(CONFIGS, [math.exp(generator.gauss(0, 0.1)) for _ in CONFIGS])
    assert found is not None
    assert found.is_weak


def test_the_interacting_pair_is_found(method: str) -> None:
    def crossed(config: dict[str, object]) -> float:
        return math.exp((1 if (config["kind"] == "a") == (config["none"] == 1) else 0) + 0.05 * config["small"])  # type: ignore[operator]

    found = importance(CONFIGS, [crossed(config) for config in CONFIGS])
    assert found is not None
    assert found.pair is not None
    if method == "forest":  # main effects are zero here, and only the strongest four are paired
        assert {found.pair.first, found.pair.second} == {"kind", "none"}
        assert found.pair.strength > 0.5


def test_the_ranking_is_the_same_every_time(method: str) -> None:
    values = [additive(config) for config in CONFIGS]
    assert importance(CONFIGS, values) == importance(CONFIGS, values)


def test_too_few_or_equal_times_say_nothing() -> None:
    assert importance([], []) is None
    assert importance(CONFIGS[: FEWEST_ROWS - 1], [float(i + 1) for i in range(FEWEST_ROWS - 1)]) is None
    assert importance(CONFIGS, [2.0] * len(CONFIGS)) is None
    assert importance([{"same": 1}] * 20, [float(i + 1) for i in range(20)]) is None


def test_few_rows_use_the_simple_method() -> None:
    configs = CONFIGS[:20]
    found = importance(configs, [additive(config) for config in configs])
    assert found is not None
    assert "epsilon squared" in found.method


def test_pairs_that_were_hardly_seen_twice_support_no_interaction() -> None:
    generator = random.Random(7)
    configs = [
        {name: generator.choice(values) for name, values in (("a", (1, 2, 4, 8, 16)), ("b", (1, 2, 4)), ("c", (0, 1)))}
        for _ in range(14)
    ]
    for _ in range(20):
        found = importance(configs, [math.exp(generator.gauss(0, 1)) for _ in configs])
        assert found is not None
        assert found.pair is None or {found.pair.first, found.pair.second} <= {"b", "c"}, found.pair
