"""The launches and library calls of an answer, timed each alone; one that raises is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kernelwright_bench.modules import worker
from kernelwright_bench.modules.parts import PartFailed, share_lines, share_rows, watched

STEPS = """
_ENTRIES = ("kernel_1", "kernel_2", "kernel_1")
_CALLED = {"c1": "aten.mm.default"}
done = []


def _launch(tensors, memory, first, last):
    done.extend(range(first, last))


def _call_c1(tensors):
    done.append(tensors["c1"])


def _steps(tensors, memory):
    _launch(tensors, memory, 0, 2)
    _call_c1(tensors)
    _launch(tensors, memory, 2, 3)
"""
LABELS = ["1: kernel_1", "2: kernel_2", "c1 = aten.mm.default", "3: kernel_1"]


def answer(folder: Path, text: str) -> Any:
    file = folder / "answer.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("answer", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def waits() -> None:
    """A device that is always done."""


def test_a_call_that_raises_is_named_and_the_answer_is_as_before(tmp_path: Path) -> None:
    loaded = answer(tmp_path, STEPS)
    launch = loaded._launch
    with pytest.raises(PartFailed, match=r"c1 = aten.mm.default failed: KeyError: 'c1'"), watched(loaded, waits):
        loaded._steps({}, None)
    assert loaded._launch is launch
    assert loaded.done == [0, 1]


def test_each_launch_and_each_call_is_timed_in_order_and_runs_once(tmp_path: Path) -> None:
    loaded = answer(tmp_path, STEPS)
    with watched(loaded, waits) as seconds:
        loaded._steps({"c1": "called"}, None)
    assert [*seconds] == LABELS
    assert all(each >= 0 for each in seconds.values())
    assert loaded.done == [0, 1, "called", 2]
    loaded._steps({"c1": "called"}, None)
    assert [*seconds] == LABELS


def test_a_file_that_names_no_parts_has_none(tmp_path: Path) -> None:
    loaded = answer(tmp_path, "def _launch():\n    return 1\n")
    with watched(loaded, waits) as seconds:
        assert loaded._launch() == 1
    assert seconds == {}
    assert share_rows([]) == {}


def test_shares_are_of_all_parts_in_the_same_round() -> None:
    """A machine that is half as fast in some rounds changes no share."""
    rounds = [{"1: kernel_1": 0.001 * slow, "c1 = aten.mm.default": 0.003 * slow} for slow in (1, 2) * 6]
    rows = share_rows(rounds)
    assert {name: row["share"] for name, row in rows.items()} == pytest.approx(
        {"1: kernel_1": 0.25, "c1 = aten.mm.default": 0.75}
    )
    assert rows["1: kernel_1"]["median_ms"] == pytest.approx(1.5)
    assert all(row["low"] <= row["share"] <= row["high"] for row in rows.values())
    assert share_lines(rows)[1].endswith("4.5 ms: 75% [75%, 75%] of all parts")


MODULE = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x @ x
def get_inputs():
    return [torch.rand(8, 8)]
def get_init_inputs():
    return []
"""
WHOLE = """import torch
_ENTRIES = ("kernel_1",)
_CALLED = {"c1": "aten.mm.default"}
def _launch(tensors, memory, first, last):
    tensors["out"] = tensors["c1"].clone()
def _call_c1(tensors):
    tensors["c1"] = GIVEN
class ModelNew(torch.nn.Module):
    def forward(self, x):
        tensors = {"x": x}
        _call_c1(tensors)
        _launch(tensors, None, 0, 1)
        return tensors["out"]
def get_init_inputs():
    return []
"""


def timed(folder: Path, call: str, *, plain: str | None = None) -> dict[str, Any]:
    texts = {"module": MODULE, "answer": WHOLE.replace("GIVEN", call)}
    texts |= {"plain": WHOLE.replace("GIVEN", plain)} if plain is not None else {}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    files = {name: str(folder / f"{name}.py") for name in texts}
    record = worker.make_timer(None)(
        {**files, "rounds": 6, "device": "cpu", "modes": (), "trials": 1, "is_cold": False, "most_s": 5.0}
    )
    assert isinstance(record, dict)
    return record


RIGHT = "torch.mm(tensors['x'], tensors['x'])"


def test_a_call_that_fails_is_the_result_of_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(worker, "SAMPLE_S", 1e-5)
    record = timed(tmp_path, "torch.mm(tensors['x'], tensors['x'][:3])")
    assert record["differs"].startswith("c1 = aten.mm.default failed: RuntimeError: mat1 and mat2")
    assert (record["samples_s"], record["parts_s"]) == ({}, [])


def test_parts_and_the_plain_program_have_a_sample_from_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(worker, "SAMPLE_S", 1e-5)
    record = timed(tmp_path, RIGHT, plain=RIGHT)
    assert record["samples_s"].keys() == {"answer", "eager", worker.PLAIN}
    assert [[*each] for each in record["parts_s"]] == [["c1 = aten.mm.default", "1: kernel_1"]] * 6
    wrong = timed(tmp_path, RIGHT, plain=f"2 * {RIGHT}")
    assert worker.PLAIN not in wrong["samples_s"]
    assert "the plain program was not timed: result 0 differs" in wrong["notes"][-1]
