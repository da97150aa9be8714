"""What every exported PyTorch operator does with its tensors: checks, choice of memory, launch, and the slow way.

Copied as it stands beside every exported operator, which has imported torch before.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.export.torch import runtime
else:
    from . import runtime

Tensor = Any

ALIGNMENT_BYTES = 16
"""Every tensor's first element is aligned to the widest load or store of a thread. What is not aligned is copied."""


# Checks


def check_rank(name: str, tensor: Tensor, rank: int) -> None:
    """Refuse a tensor with another number of dimensions."""
    if tensor.dim() != rank:
        raise ValueError(f"{name} has {tensor.dim()} dimensions {tuple(tensor.shape)}, expected {rank}")


def check_shape(name: str, tensor: Tensor, wanted: Sequence[int]) -> None:
    """Refuse a tensor of another shape than the other tensors' say."""
    if tuple(tensor.shape) != tuple(wanted):
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, expected {tuple(wanted)}")


def check_tensors(tensors: Mapping[str, Tensor], dtypes: Mapping[str, Any]) -> None:
    """Refuse other dtypes, several devices, and tensors that are not contiguous."""
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.dtype != dtypes[name]:
            raise TypeError(f"{name} is {tensor.dtype}, expected {dtypes[name]}")
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device}, but {first_name} on {first.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous: pass {name}.contiguous()")


# Kernels


@functools.cache
def capability_of(device: Any) -> int:
    """The compute capability of a device, e.g. 90."""
    major, minor = sys.modules["torch"].cuda.get_device_capability(device)
    return int(10 * major + minor)


def run(plan: runtime.KernelPlan, folder: Path, tensors: Mapping[str, Tensor], written: Sequence[str]) -> None:
    """Launch a plan on the current stream of the tensors' device.

    Args:
        plan: what to launch.
        folder: of the operator.
        tensors: all buffers but scratch, by argument.
        written: which of them the kernels write.
    """
    torch = sys.modules["torch"]
    device = next(iter(tensors.values())).device
    with torch.cuda.device(device):
        aligned = {
            name: tensor if tensor.data_ptr() % ALIGNMENT_BYTES == 0 else tensor.clone()
            for name, tensor in tensors.items()
        }
        needed = {
            each.name: each.byte_count
            for launch in plan.launches
            for each in launch.arguments
            if each.role == "scratch"
        }
        scratch = {name: torch.empty(max(count, 1), dtype=torch.uint8, device=device) for name, count in needed.items()}
        index = torch.cuda.current_device()
        runtime.KERNELS.launch(
            folder,
            plan.unit,
            plan.launches,
            {name: tensor.data_ptr() for name, tensor in (*aligned.items(), *scratch.items())},
            device=index,
            capability=capability_of(device),
            stream=torch.cuda.current_stream(device).cuda_stream,
            major=runtime.version_major(torch.version.cuda),
        )
        for name in written:
            if aligned[name] is not tensors[name]:
                tensors[name].copy_(aligned[name])


# The slow way


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@functools.cache
def _reference(file: Path, function: str) -> tuple[Callable[..., Any], bool]:
    """The reference and whether it takes tensors: it does when its file imports torch."""
    spec = importlib.util.spec_from_file_location(f"kernelwright_reference_{file.parent.parent.name}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _importing_from(file.parent):
        spec.loader.exec_module(module)
    origins = (
        getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in vars(module).values()
    )
    return getattr(module, function), any(str(origin).partition(".")[0] == "torch" for origin in origins)


def run_reference(
    file: Path,
    function: str,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float],
    written: Mapping[str, Tensor],
) -> None:
    """Compute by the reference, in float64 on the CPU: slow and right.

    Args:
        file: of the reference.
        function: its name.
        tensors: inputs and in-outs by argument.
        numbers: scalars and sizes by name.
        written: outputs and in-outs in the problem's order, which are filled.
    """
    call, takes_tensors = _reference(file, function)
    available: dict[str, Any] = dict(numbers)
    for name, tensor in tensors.items():
        wide = _widened(tensor.detach().cpu())
        available[name] = wide if takes_tensors else wide.numpy()
    result = call(**_wanted(call, available))
    if not isinstance(result, Mapping):
        values = result if isinstance(result, tuple | list) else (result,)
        result = dict(zip(written, values, strict=True))
    torch = sys.modules["torch"]
    for name, tensor in written.items():
        tensor.copy_(torch.as_tensor(result[name]).reshape(tensor.shape).to(tensor.dtype))


def _widened(tensor: Tensor) -> Tensor:
    """A copy in the type that references compute in."""
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bool or tensor.dtype == torch.uint64:
        return tensor.clone()
    return tensor.to(torch.float64 if tensor.dtype.is_floating_point else torch.int64, copy=True)


def _wanted(call: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    """What the function's parameters ask for; everything when it takes `**kwargs`."""
    parameters = inspect.signature(call).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(available)
    return {each.name: available[each.name] for each in parameters if each.name in available}
