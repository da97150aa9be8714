"""`analyse` speaks of a kernel in the kernel's own names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.cli.main import app

EXAMPLES = Path(__file__).parent.parent.parent / "src/kernelwright/examples"

KERNEL = """__kernel void hist(__global const int *data, __global int *h, __global float *out, int n) {
    int i = get_global_id(0);
    int bin = data[i];
    h[data[i]] += 1;
    h[bin + 1] += 1;
    int at = i;
    while (at < n) { out[at] = 2.0f; at = data[at]; }
    for (int k = data[0]; k < n; k += 3) out[k * bin] = 0;
    for (int j = 0; j < n; ++j) out[j] = 1.0f;
    for (int j = 0; j < n; ++j) out[j] = 2.0f;
}
"""

INTERNAL = re.compile(r"[a-z]~[0-9]|[A-Za-z0-9_]#[0-9]")


def analysed(*words: str) -> str:
    result = CliRunner().invoke(app, ["analyse", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_indices_that_come_from_memory_are_named_as_the_source_names_them(tmp_path: Path) -> None:
    kernel = tmp_path / "hist.cl"
    kernel.write_text(KERNEL)
    text = analysed(str(kernel))
    assert "line 4: accumulate h[data[i]] (" in text
    assert "line 5: accumulate h[data[i] + 1] (" in text
    assert "line 8: k from data[0] while < n, by 3" in text
    assert "line 7: at < n (branch)" in text
    assert "line 7: write out in `out[at] = 2.0f` (" in text
    assert "line 10: j from 0 while < n, by 1" in text
    assert not INTERNAL.search(text)
    accesses = json.loads(analysed(str(kernel), "--json"))[0]["accesses"]
    assert accesses[2]["text"] == "h[data[i]] += 1"


@pytest.mark.parametrize("kernel", sorted(EXAMPLES.rglob("*.c[lu]")), ids=lambda each: each.stem)
def test_no_example_is_told_in_internal_names(kernel: Path) -> None:
    assert not INTERNAL.search(analysed(str(kernel)))
