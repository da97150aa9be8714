"""The referee's process is replaced when it dies, and a reference that ends it is named."""

from __future__ import annotations

import os
import signal

import pytest

from kernelwright.errors import InfrastructureError, ReferenceFailed
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.load.problem import load_problem


@pytest.fixture
def desk_of(tmp_path):
    made = []

    def make(folder):
        made.append(RefereeDesk(load_problem(folder), EvaluationSettings(seed=3), scratch=tmp_path / "scratch"))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


def first(desk):
    return "small", desk.datasets("small", is_thorough=False)[0]


def test_a_reference_that_ends_its_process_is_blamed_and_not_the_baseline(saxpy, desk_of):
    file = saxpy / "reference.py"
    file.write_text(file.read_text() + "\nimport os\ndef saxpy(*arguments, **named):\n    os._exit(3)\n")
    name = load_problem(saxpy).reference.function
    file.write_text(file.read_text().replace("def saxpy(*arguments", f"def {name}(*arguments"))
    desk = desk_of(saxpy)
    with pytest.raises(ReferenceFailed, match="ended its process with exit status 3"):
        desk.files(*first(desk))


def test_a_killed_referee_is_replaced(saxpy, desk_of):
    desk = desk_of(saxpy)
    before = desk.files(*first(desk))
    os.kill(desk._process.pid, signal.SIGKILL)
    desk._prepared.clear()
    assert desk.files(*first(desk)) == before


def test_nothing_is_answered_after_the_end(saxpy, desk_of):
    desk = desk_of(saxpy)
    desk.close()
    with pytest.raises(InfrastructureError, match="being stopped"):
        desk.files(*first(desk))


def test_what_is_made_ahead_is_there_when_it_is_asked_for(saxpy, desk_of):
    desk = desk_of(saxpy)
    desk.prefetch(["small"])
    desk._prefetching.join(timeout=300)
    known = {dataset for _, dataset in desk._prepared}
    assert known == set(desk.datasets("small", is_thorough=True))


def test_data_made_side_by_side_are_those_made_one_by_one(saxpy, tmp_path):
    written = []
    for number in range(2):
        settings, folder = EvaluationSettings(seed=3), tmp_path / f"scratch-{number}"
        desk = RefereeDesk(load_problem(saxpy), settings, scratch=folder)
        try:
            every = desk.datasets("small", is_thorough=True)
            if number:
                desk.prepare("small", desk.essential("small"))
                assert {dataset for _, dataset in desk._prepared} == set(desk.essential("small")) < set(every)
                desk.prepare("small", every)
            files = {dataset: desk.files("small", dataset) for dataset in every}
        finally:
            desk.close()
        written.append({(each.name, name): path.read_bytes() for each in every for name, path in files[each].items()})
    assert written[0] == written[1]


def test_essential_data_are_the_quick_ones_and_what_is_timed(saxpy, desk_of):
    desk = desk_of(saxpy)
    essential, every = desk.essential("small"), desk.datasets("small", is_thorough=True)
    assert set(desk.datasets("small", is_thorough=False)) == set(essential)
    assert desk.timed_dataset("small") in essential
    assert len(essential) < len(every)
