"""The exported PyTorch operator on a GPU: configs, baseline, streams, graphs, torch.compile give PyTorch's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exported_operators import operator

from kernelwright.export.run import export_run

pytestmark = pytest.mark.gpu

SILU = Path(__file__).resolve().parents[2] / "src/kernelwright/examples" / "cuda" / "silu_and_mul"


@pytest.fixture
def silu(record_run: Callable[..., Path], tmp_path: Path) -> Iterator[Any]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    run = record_run(SILU, [{"BLOCK": 128}, {"BLOCK": 512}])
    export_run(run, tmp_path / "out", formats=["torch"])
    with operator(tmp_path / "out" / "kernelwright_silu_and_mul") as module:
        major, minor = torch.cuda.get_device_capability()
        module._dispatch.CAPABILITY = 10 * major + minor  # the run is made up; any device will do
        yield module


def inputs(tokens: int, d: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.randn(tokens, 2 * d, device="cuda").to(torch.bfloat16)


def expected(x: Any) -> Any:
    import torch

    gate, up = x.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up).to(torch.bfloat16)


def check(found: Any, x: Any) -> None:
    import torch

    torch.testing.assert_close(found, expected(x), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(("tokens", "d"), [(128, 11008), (256, 8192), (128, 8192), (100, 8192), (3, 77), (1, 8)])
def test_every_kernel_gives_pytorchs_numbers(silu: Any, tokens: int, d: int) -> None:
    x = inputs(tokens, d)
    label = silu.which_silu_and_mul(x)
    is_inside = 128 <= tokens <= 256 and d >= 8192
    assert label.startswith("config") == is_inside, label
    assert is_inside or label == "baseline"
    check(silu.silu_and_mul(x), x)


def test_each_config_of_the_table_runs(silu: Any) -> None:
    assert {silu.which_silu_and_mul(inputs(*each)) for each in ((128, 11008), (256, 8192))} == {"config 0", "config 1"}


def test_it_runs_on_the_current_stream_and_in_a_graph(silu: Any) -> None:
    import torch

    x = inputs(128, 11008)
    silu.silu_and_mul(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = silu.silu_and_mul(x)
    stream.synchronize()
    check(found, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = silu.silu_and_mul(x)
    x.copy_(inputs(128, 11008) * 2)
    graph.replay()
    torch.cuda.synchronize()
    check(found, x)


def test_it_compiles_into_a_larger_function(silu: Any) -> None:
    import torch

    x = inputs(256, 8192)
    compiled = torch.compile(lambda x: silu.silu_and_mul(x * 0.5) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(x), expected(x * 0.5) + 1, rtol=2e-2, atol=1e-2)
    torch.library.opcheck(silu.silu_and_mul, (x,))


def test_a_view_that_is_not_aligned_is_right(silu: Any) -> None:
    import torch

    storage = torch.zeros(128 * 2 * 11008 + 1, dtype=torch.bfloat16, device="cuda")
    x = storage[1:].view(128, 2 * 11008)
    x.copy_(inputs(128, 11008))
    check(silu.silu_and_mul(x), x)


def test_threads_share_what_is_loaded(silu: Any) -> None:
    import threading

    x = inputs(128, 11008)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(silu.silu_and_mul(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for each in found:
        check(each, x)
