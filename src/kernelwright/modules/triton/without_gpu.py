"""PyTorch and Triton's autotuner on a machine without a GPU, as functions that launch kernels expect them on one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def on_host() -> Any:
    """PyTorch without a GPU: what asks for one gets the host's memory, which is what the interpreter reads."""
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
        return "cpu" if is_device else value

    class OnHost(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == torch.Tensor.is_cuda.__get__:
                return True
            if function is torch.Tensor.cuda:
                return args[0]
            moved_named = {name: moved(value) for name, value in (kwargs or {}).items()}
            moved_named.pop("pin_memory", None)
            return function(*[moved(each) for each in args], **moved_named)

    return OnHost()


def pretend_gpu() -> None:
    """What launching functions ask PyTorch of the GPU, answered as by a Hopper."""
    import contextlib

    import torch

    hopper = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, warp_size=32,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, gcnArchName="",
    )  # fmt: skip
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "synchronize": lambda *_, **__: None,
        "get_device_capability": lambda *_, **__: (9, 0),
        "get_device_properties": lambda *_, **__: hopper,
        "get_device_name": lambda *_, **__: hopper.name,
        "device": lambda *_, **__: contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def pruned(tuner: Any, given: dict[str, Any]) -> list[Any]:
    """The configurations from which an autotuner chooses; of a single one it asks nothing."""
    if len(tuner.configs) == 1:
        return list(tuner.configs)
    try:
        return list(tuner.prune_configs(given))
    except Exception:
        if tuner.perf_model is None:
            raise
    tuner.perf_model = None  # it may ask what only a GPU answers, and all that it leaves out is slow
    return list(tuner.prune_configs(given))


def prepare(tuner: Any, config: Any, given: dict[str, Any]) -> None:
    """What an autotuner does before it launches a configuration that it has chosen, or the only one."""
    if len(tuner.configs) > 1:
        tuner.pre_hook(given, reset_only=True)
    if config.pre_hook is not None:
        config.pre_hook(given)
