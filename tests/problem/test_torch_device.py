"""A reference in PyTorch computes on a GPU where that works, and on the host where anything is in its way."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.problem.torch_device import WORTH_MOVING, TorchDevice


class Tensor:
    """As much of PyTorch's as is asked for."""

    def __init__(self, count: int, place: str = "cpu") -> None:
        self.count, self.place = count, place

    def numel(self) -> int:
        return self.count

    def cuda(self) -> Tensor:
        return Tensor(self.count, "cuda")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A PyTorch that sees a GPU."""
    cuda = SimpleNamespace(is_available=lambda: True, empty_cache=lambda: None)
    fake = SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def places(given: Mapping[str, Any]) -> list[str]:
    return [value.place if isinstance(value, Tensor) else "number" for value in given.values()]


@pytest.mark.usefixtures("torch")
def test_large_inputs_are_computed_with_on_the_gpu_which_the_claim_says() -> None:
    device = TorchDevice()
    assert device.computed(places, {"x": Tensor(WORTH_MOVING), "n": 3}) == ["cuda", "number"]
    assert "ran on a GPU" in device.note


@pytest.mark.usefixtures("torch")
def test_small_inputs_stay_on_the_host() -> None:
    device = TorchDevice()
    assert device.computed(places, {"x": Tensor(WORTH_MOVING - 1)}) == ["cpu"]
    assert device.note == ""


def test_without_a_gpu_nothing_moves(torch: SimpleNamespace) -> None:
    torch.cuda.is_available = lambda: False
    assert TorchDevice().computed(places, {"x": Tensor(WORTH_MOVING)}) == ["cpu"]


@pytest.mark.usefixtures("torch")
def test_what_fails_on_the_gpu_is_computed_on_the_host_from_then_on() -> None:
    tried: list[str] = []

    def needs_host(given: Mapping[str, Any]) -> str:
        tried.append(given["x"].place)
        if given["x"].place == "cuda":
            raise RuntimeError("expected all tensors to be on the same device")
        return "right"

    device = TorchDevice()
    assert device.computed(needs_host, {"x": Tensor(WORTH_MOVING)}) == "right"
    assert device.computed(needs_host, {"x": Tensor(WORTH_MOVING)}) == "right"
    assert tried == ["cuda", "cpu", "cpu"]
    assert device.note == ""


@pytest.mark.usefixtures("torch")
def test_what_fails_on_the_host_too_is_told_as_there() -> None:
    def fails(given: Mapping[str, Any]) -> None:
        raise ValueError(given["x"].place)

    with pytest.raises(ValueError, match="cpu"):
        TorchDevice().computed(fails, {"x": Tensor(WORTH_MOVING)})
