"""A module's answer beside PyTorch: what is refused, and what the table says of given times."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.cli.main import main
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
