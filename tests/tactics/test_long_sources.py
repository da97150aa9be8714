"""Long files: what stands beside a kernel changes nothing of what is understood and planned of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from long_source import EXAMPLES, long_source
from tactic_runs import GPU, example

from kernelwright.source.syntax import parse
from kernelwright.tactics.base import Rewrite
from kernelwright.tactics.registry import TACTICS

NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/problem.toml"))


def test_a_long_source_is_read_whole() -> None:
    source = long_source("")
    assert source.count("\n") >= 490
    tree = parse(source, "cuda")
    assert not tree.opaque
    assert len(tree.kernels) >= 20
    assert len({each.name for each in tree.functions}) == len(tree.functions)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_tactics_apply_in_a_long_file(name: str) -> None:
    alone = example(f"cuda/{name}", GPU)
    among = replace(alone, source=long_source(alone.source))
    for each in TACTICS:
        first, second = each.apply(alone), each.apply(among)
        assert isinstance(first, Rewrite) == isinstance(second, Rewrite), (each.name, first, second)
        if isinstance(second, Rewrite):
            tail = among.source.encode()[len(alone.source.rstrip().encode()) :].decode()
            assert second.source.endswith(tail)  # other kernels stay byte for byte
