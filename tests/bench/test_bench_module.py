"""A module's answer beside PyTorch: what is refused, and what the table says of given times."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import ReferenceFailed
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
    table = lines(rows, {"max-autotune": "RuntimeError: no compiler"})
    assert table[1].endswith("ms: the answer is 2x [2, 2] as fast")
    assert "first call 9.0 s" in table[2]
    assert table[3] == "max-autotune  not measured: RuntimeError: no compiler"


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
}


def timed(tmp_path: Path, body: str) -> object:
    for name, text in (("module", MODULE), ("answer", ANSWER.format(body=body))):
        (tmp_path / f"{name}.py").write_text(text)
    job = {"module": str(tmp_path / "module.py"), "answer": str(tmp_path / "answer.py"), "rounds": 3, "device": "cpu"}
    return worker.make_timer(None)(job)


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compilers, which take long."""
    pytest.importorskip("torch")
    monkeypatch.setattr(worker, "MODES", {})
    monkeypatch.setattr(worker, "SAMPLE_S", 1e-5)


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("what", WRONG)
def test_an_answer_that_is_right_by_what_it_shares_with_the_reference_is_wrong(what: str, tmp_path: Path) -> None:
    with pytest.raises(ReferenceFailed, match="differs from eager PyTorch"):
        timed(tmp_path, WRONG[what])


@pytest.mark.usefixtures("torch_only")
def test_what_an_answer_writes_into_its_inputs_no_other_call_sees(tmp_path: Path) -> None:
    record = timed(tmp_path, "y = x + 1; x.zero_(); return y")
    assert isinstance(record, dict)
    assert {name: len(row) for name, row in record["samples_s"].items()} == {"answer": 3, "eager": 3}
    assert record["compile_s"].keys() == {"answer"}
