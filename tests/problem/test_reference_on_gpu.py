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
    """A PyTorch that sees a GPU, and takes TF32 where it is not told otherwise."""
    cuda = SimpleNamespace(is_available=lambda: True, empty_cache=lambda: None)
    cudnn, matmul = (SimpleNamespace(allow_tf32=True) for _ in range(2))
    fake = SimpleNamespace(cuda=cuda, backends=SimpleNamespace(cudnn=cudnn, cuda=SimpleNamespace(matmul=matmul)))
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


class Held(Tensor):
    """On the GPU, of the memory that `held` counts."""

    def __init__(self, count: int, place: str, held: list[int]) -> None:
        super().__init__(count, place)
        self.held = held
        held.append(count)

    def cuda(self) -> Tensor:
        return Held(self.count, "cuda", self.held)

    def __del__(self) -> None:
        self.held.remove(self.count)


def test_memory_of_what_failed_on_the_gpu_is_given_back_before_the_host_computes(torch: SimpleNamespace) -> None:
    held: list[int] = []
    emptied: list[int] = []
    torch.cuda.empty_cache = lambda: emptied.append(len(held))

    def fails(given: Mapping[str, Any]) -> str:
        if given["x"].place == "cuda":
            raise RuntimeError("out of memory")
        return f"{len(held)} held, emptied {len(emptied)} times"

    x = Held(WORTH_MOVING, "cpu", held)
    assert TorchDevice().computed(fails, {"x": x}) == "1 held, emptied 1 times"
    assert emptied == [1], "nothing but the host's own tensor is left by then"


def test_a_gpu_that_cannot_be_used_any_more_does_not_keep_the_host_from_computing(torch: SimpleNamespace) -> None:
    def lost() -> None:
        raise RuntimeError("device-side assert triggered")

    def needs_host(given: Mapping[str, Any]) -> list[str]:
        if given["x"].place == "cuda":
            lost()
        return places(given)

    torch.cuda.empty_cache = lost
    assert TorchDevice().computed(needs_host, {"x": Tensor(WORTH_MOVING)}) == ["cpu"]


@pytest.mark.usefixtures("torch")
def test_what_a_gpu_has_computed_before_it_failed_is_told_too() -> None:
    device, failing = TorchDevice(), list[bool]()

    def computed(given: Mapping[str, Any]) -> list[str]:
        if failing and given["x"].place == "cuda":
            raise RuntimeError
        return places(given)

    assert device.computed(computed, {"x": Tensor(WORTH_MOVING)}) == ["cuda"]
    failing.append(True)
    assert device.computed(computed, {"x": Tensor(WORTH_MOVING)}) == ["cpu"]
    assert "ran on a GPU" in device.note


def test_numbers_of_single_precision_keep_their_digits_as_on_the_host(torch: SimpleNamespace) -> None:
    def takes_tf32(_: object) -> list[bool]:
        return [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]

    assert TorchDevice().computed(takes_tf32, {"x": Tensor(WORTH_MOVING)}) == [False, False]
