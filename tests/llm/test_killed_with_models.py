"""Runs with a model and several structures under way, killed, resumed and repeated: nothing is asked for twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, answering_server
from test_lift_policy import Lifting, chosen, cost

from interleaved import interleaved, killed, told
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.testing.simulated import SimulatedMachine

MACHINE = SimulatedMachine(cost, noise=0.01)


class Remembering(Lifting):
    """Says the same to the same request."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, Answer] = {}

    def __call__(self, body: dict[str, Any]) -> Answer:
        key = json.dumps(body["messages"])
        if key not in self._known:
            self._known[key] = super().__call__(body)
        return self._known[key]


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", ["lift", "gain"])
def test_killed_at_a_reply_or_a_record_the_run_replays_and_pays_once(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: int
) -> None:
    with answering_server(Remembering()) as server, interleaved(monkeypatch, part) as world:
        settings = chosen(server.url, attempts=3, evaluations=24, in_flight=3, name=name)
        with killed(world, tmp_path / "run", tmp_path / "copies", points=slice(3 + 6 * part, None, 12)) as copies:
            optimize(plain, settings=settings, run=tmp_path / "run", machine=MACHINE)
        for copy in copies:
            world.begin(copy.name)
            resume_optimize(copy, machine=MACHINE)
            asked = [each.request.id for each in read_exchanges(copy / FILE_NAME)[0]]
            assert len(asked) == len(set(asked))
            again = replay_optimize(copy, run=tmp_path / f"again-{copy.name}")
            assert again.differences == ()
            assert told(tmp_path / f"again-{copy.name}") == told(copy), copy.name
    assert len(copies) > 2
