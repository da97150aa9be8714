"""A module's answer beside PyTorch: what is refused, and what the table says of given times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import MissingDependency
from kernelwright_bench.modules import worker
from kernelwright_bench.modules.command import compared, lines


def test_a_folder_that_is_no_run_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "module", "nowhere"])
    assert left.value.code == 2
    assert "there is no run nowhere" in capsys.readouterr().err


def test_the_table_has_intervals_that_hold_together_and_says_what_was_not_measured() -> None:
    record = {
        "samples_s": {
            "answer": [0.001 + 0.00001 * place for place in range(12)],
            "eager": [0.002 + 0.00002 * place for place in range(12)],
            "compiled": [0.0005 + 0.000005 * place for place in range(12)],
        },
        "compile_s": {"answer": 0.25, "compiled": 9.0},
    }
    rows = compared(record)
    assert [*rows] == ["answer", "eager", "compiled"]
    assert rows["eager"]["low"] <= rows["eager"]["answer_speedup"] <= rows["eager"]["high"]
    assert rows["eager"]["answer_speedup"] == pytest.approx(2.0)
    assert rows["compiled"]["answer_speedup"] == pytest.approx(0.5)
    assert "first_call_s" not in rows["eager"]
    table = lines(rows, {"max-autotune": "RuntimeError: no compiler"}, {"answer": 2e-7, "eager": 1e-7})
    assert table[1].endswith("ms: the answer is 2x [2, 2] as fast")
    assert "first call 9.0 s" in table[2]
    assert table[3] == "error beside float64: answer 2e-07, eager 1e-07"
    assert table[4] == "max-autotune  not measured: RuntimeError: no compiler"


MODULE = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand(64)]
def get_init_inputs():
    return []
"""
ANSWER = """import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
def get_init_inputs():
    return []
"""
WRONG = {
    "it changes the inputs that the reference gets": "x.zero_(); return torch.ones_like(x)",
    "it remembers its first result": "self.y = getattr(self, 'y', x + 1); return self.y",
    "its shape is another": "return (x + 1)[None]",
    "it is right for a while": "self.n = getattr(self, 'n', 0) + 1; return x + (1 if self.n < 9 else 2)",
}


def timed(tmp_path: Path, body: str, *, module: str = MODULE) -> dict[str, Any]:
    for name, text in (("module", module), ("answer", ANSWER.format(body=body))):
        (tmp_path / f"{name}.py").write_text(text)
    files = {name: str(tmp_path / f"{name}.py") for name in ("module", "answer")}
    record = worker.make_timer(None)(
        {**files, "rounds": 6, "device": "cpu", "modes": (), "trials": 2, "is_cold": False, "most_s": 5.0}
    )
    assert isinstance(record, dict)
    return record


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compilers, which take long."""
    pytest.importorskip("torch")
    monkeypatch.setattr(worker, "SAMPLE_S", 1e-5)


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("what", WRONG)
def test_an_answer_that_is_right_by_what_it_shares_with_the_reference_is_wrong(what: str, tmp_path: Path) -> None:
    record = timed(tmp_path, WRONG[what])
    assert record["differs"]
    assert not record["samples_s"]


@pytest.mark.usefixtures("torch_only")
def test_what_an_answer_writes_into_its_inputs_no_other_call_sees(tmp_path: Path) -> None:
    record = timed(tmp_path, "y = x + 1; x.zero_(); return y")
    assert {name: len(row) for name, row in record["samples_s"].items()} == {"answer": 6, "eager": 6}
    assert record["compile_s"].keys() == {"answer"}


@pytest.mark.usefixtures("torch_only")
def test_an_answer_that_shares_the_modules_error_is_told_from_the_module_in_float64(tmp_path: Path) -> None:
    """Eager PyTorch in float32 is no truth: both may lose the same digits."""
    lost = MODULE.replace("x + 1", "((x + 4096) - 4096) + 1")
    record = timed(tmp_path, "return ((x + 4096) - 4096) + 1", module=lost)
    assert record["differs"] == ""
    assert record["errors"]["answer"] == record["errors"]["eager"] > 1e-5
    record = timed(tmp_path, "return x + 1.00009")
    assert record["errors"]["eager"] < 1e-6 < record["errors"]["answer"]
    assert worker._too_far({"answer": 3e-4, "eager": 1e-4}) == (
        "its error beside the module in float64 is 0.0003, and 0.0002 is allowed"
    )
    own = MODULE.replace("x + 1", "torch.mm(x[None], torch.ones(64, 1))")
    record = timed(tmp_path, "return torch.mm(x[None], torch.ones(64, 1))", module=own)
    assert record["errors"] == {}
    assert "not compared with the module in float64: RuntimeError" in record["notes"][0]


@pytest.mark.usefixtures("torch_only")
def test_a_module_that_writes_its_input_is_not_said_to_be_in_another_precision(tmp_path: Path) -> None:
    record = timed(tmp_path, "return x.add_(1)", module=MODULE.replace("x + 1", "x.add_(1)"))
    assert (record["differs"], record["notes"]) == ("", [])


def test_without_torch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency) as caught:
        timed(tmp_path, "return x + 1")
    assert "kernelwright[torch]" in str(caught.value.hint)
