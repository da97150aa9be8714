"""The device side of the operator suite: one worker process that holds a shape's buffers and times what it is given.

```
measure = make_measurer(MeasurerArgument(device))     # in a worker process
measure(OpenShape(...))                               # buffers, inputs, the baseline's results
measure(Screen(runnable, incumbent_ms))               # a few times, and whether results agree with the baseline's
measure(Compare({"baseline": ..., "tuned": ...}))     # interleaved rounds, PyTorch among them
```

Before each timed launch 512 MB are written, as when the suite's upstream figures were taken: the cache then holds
neither inputs nor room that needs no writing back, up to 50 MB of other kernels' results go to memory meanwhile, and as
much of this kernel's own may stay behind. In-out arguments are put back before that.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildFailed,
    BuildUnit,
    DeviceInfo,
    LaunchArgument,
    LaunchFailed,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.device.arena import Job
from kernelwright.problem.dtypes import DTYPES, machine_epsilon
from kernelwright_bench.operators.messages import (
    CLEAN,
    Buffer,
    Ceilings,
    Compare,
    Compared,
    MeasurerArgument,
    OpenShape,
    Screen,
    Screened,
)

if TYPE_CHECKING:
    from kernelwright.backend.cuda.handles import CudaBuffer, CudaModule
    from kernelwright.backend.cuda.session import CudaSession
    from kernelwright_bench.operators.torch_calls import TorchCalls

MEASURER_FACTORY = "kernelwright_bench.operators.worker:make_measurer"

DIRTY_BYTES = 512_000_000
"""Written before each timed launch, as upstream's protocol has it."""

PERIOD_ELEMENTS = 4_000_037
"""Inputs repeat after so many elements, a prime: drawing hundreds of millions of numbers on the host takes minutes."""

SCREEN_LOOKS = ((3, 1.25), (5, 1.08))
"""`(count, ratio)`: a candidate whose fastest of `count` launches is above `ratio` times the incumbent is given up."""
SCREEN_COUNT = 9

DIFFER_SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
typedef unsigned long long u64;
template <typename T> __device__ void square_sum(const T *x, u64 n, double *sum) {
  double own = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x) {
    own += (double)(float)x[i] * (double)(float)x[i];
  }
  atomicAdd(sum, own);
}
template <typename T> __device__ void differ(const T *x, const T *y, u64 n, float rtol, float atol, u64 *count) {
  u64 own = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x) {
    const float got = (float)x[i], wanted = (float)y[i];
    own += !(fabsf(got - wanted) <= rtol * fabsf(wanted) + atol);
  }
  if (own) atomicAdd(count, own);
}
#define BOTH(NAME, TYPE)                                                                                       \
  extern "C" __global__ void square_sum_##NAME(const TYPE *x, u64 n, double *sum) { square_sum(x, n, sum); }    \
  extern "C" __global__ void differ_##NAME(const TYPE *x, const TYPE *y, u64 n, float rtol, float atol,         \
                                           u64 *count) { differ(x, y, n, rtol, atol, count); }
BOTH(float32, float)
BOTH(float16, half)
BOTH(bfloat16, __nv_bfloat16)
BOTH(float8_e4m3fn, __nv_fp8_e4m3)
"""
COMPARED = ("float32", "float16", "bfloat16", "float8_e4m3fn")
ROUNDINGS = 2.5
"""Two results of 16 or 8 bits may be rounded to neighbours; of 32 bits they come from other orders of summation."""
FLOAT32_RTOL = 2e-4


def make_measurer(argument: MeasurerArgument) -> Callable[[object], object]:
    """The handler of measuring jobs; called in the child process."""
    session: Any = get_backend("cuda").open(argument.device)
    return Measurer(session, DeviceJudge(session, argument.device)).handle


class Measurer:
    """One open device and one shape at a time."""

    def __init__(self, session: CudaSession, judge: Judge) -> None:
        self._session = session
        self._judge = judge
        self._dirt = self._session.allocate(DIRTY_BYTES)
        self._shape: _OpenShape | None = None

    def handle(self, job: object) -> object:
        """Do one job.

        Raises:
            InfrastructureError: the device fails; a new process is needed.
            BuildFailed, LaunchFailed: the baseline cannot be run.
        """
        match job:
            case Ceilings():
                return self._session.measure_ceilings()
            case OpenShape():
                if self._shape is not None:
                    self._shape.close()
                self._shape = _OpenShape(self._session, self._judge, job)
                return self._median_ms(job.baseline)
            case Screen():
                return self._screen(job)
            case Compare():
                return self._compare(job)
        raise TypeError(f"not a measurer's job: {type(job).__name__}")

    # ---- jobs ----

    def _screen(self, job: Screen) -> Screened:
        shape = self._opened()
        times: list[float] = []
        try:
            launches = shape.bind(job.runnable)
            shape.restore()
            shape.poison()
            self._session.launch(launches)
            wrong = shape.find_wrong()
            if wrong is not None:
                return Screened((), f"check:mismatch {wrong}")
            while len(times) < SCREEN_COUNT:
                times.append(self._time(shape, launches))
                for count, ratio in SCREEN_LOOKS:
                    if len(times) == count and min(times) > ratio * job.incumbent_ms:
                        return Screened(tuple(times), is_partial=True)
        except (BuildFailed, LaunchFailed) as error:
            return Screened((), f"launch:{error.message}")
        return Screened(tuple(times))

    def _compare(self, job: Compare) -> Compared:
        from kernelwright_bench.operators.torch_calls import TorchCalls, torch_missing

        shape = self._opened()
        calls: dict[str, Callable[[], float]] = {}
        notes: dict[str, str] = {}
        for label, runnable in job.runnables.items():
            calls[label] = _timer(self._session, shape.bind(runnable))
        if job.clean is not None:
            calls[CLEAN] = _timer(self._session, shape.bind(job.clean))
        if job.torch is not None:
            missing = torch_missing()
            if missing is None:
                torch_calls = TorchCalls(self._session, shape.inputs(), job.torch)
                self._add_torch(torch_calls, shape, calls, notes)
            else:
                notes["eager"] = notes["compiled"] = missing
        samples = self._rounds(shape, calls, job)
        return Compared({label: tuple(each) for label, each in samples.items()}, notes, self._session.timer)

    def _add_torch(
        self, torch_calls: TorchCalls, shape: _OpenShape, calls: dict[str, Callable[[], float]], notes: dict[str, str]
    ) -> None:
        for label, prepare in (("eager", torch_calls.eager), ("compiled", torch_calls.compiled)):
            shape.restore()
            prepared = prepare()
            if isinstance(prepared, str):
                notes[label] = prepared
                continue
            wrong = shape.find_wrong(torch_calls.results(prepared))
            if wrong is not None:
                notes[label] = f"its results differ from the baseline's: {wrong}"
            calls[label] = _call_timer(self._session, torch_calls.on_stream(prepared))

    def _rounds(
        self, shape: _OpenShape, calls: Mapping[str, Callable[[], float]], job: Compare
    ) -> dict[str, list[float]]:
        samples: dict[str, list[float]] = {label: [] for label in calls}
        order, rng = list(calls), random.Random(job.seed)
        for round_index in range(-2, job.rounds):
            rng.shuffle(order)
            for label in order:
                self._make_cold(shape, is_clean=label == CLEAN)
                time_ms = calls[label]()
                if round_index >= 0:  # the first two only warm up
                    samples[label].append(time_ms)
        return samples

    # ---- times ----

    def _median_ms(self, runnable: Job) -> float:
        shape = self._opened()
        launches = shape.bind(runnable)
        return statistics.median(self._time(shape, launches) for _ in range(5))

    def _time(self, shape: _OpenShape, launches: Sequence[BoundLaunch]) -> float:
        self._make_cold(shape)
        return self._session.time(launches)

    def _make_cold(self, shape: _OpenShape, *, is_clean: bool = False) -> None:
        shape.restore()
        if is_clean:
            self._session.flush_cache()
            return
        self._session.fill(self._dirt, b"\x01\x00\x00\x00", DIRTY_BYTES)

    def _opened(self) -> _OpenShape:
        assert self._shape is not None, "OpenShape comes first"
        return self._shape


def _timer(session: CudaSession, launches: Sequence[BoundLaunch]) -> Callable[[], float]:
    return lambda: session.time(launches)


def _call_timer(session: CudaSession, call: Callable[[], None]) -> Callable[[], float]:
    return lambda: session.time_calls([call])


class Judge(Protocol):
    """Compares results where they lie."""

    def root_mean_square(self, values: CudaBuffer, buffer: Buffer) -> float:
        """The root mean square of all elements."""
        ...

    def count_wrong(self, got: CudaBuffer, wanted: CudaBuffer, buffer: Buffer, scale: float) -> int:
        """Elements that differ by more than rounding; `scale` is the root mean square of what is wanted."""
        ...


class DeviceJudge:
    """By kernels of its own."""

    def __init__(self, session: CudaSession, device: DeviceInfo) -> None:
        from kernelwright.backend.cuda.compile.build import compile_unit
        from kernelwright.backend.cuda.driver import load_driver
        from kernelwright.backend.cuda.handles import CudaModule

        entries = tuple(f"{kind}_{dtype}" for kind in ("square_sum", "differ") for dtype in COMPARED)
        compiled = compile_unit(BuildUnit("cuda", DIFFER_SOURCE, "differ.cu", (), (), entries), device)
        self._session = session
        self._module: CudaModule = CudaModule(load_driver(), compiled.cubin, compiled.names)
        self._blocks = 8 * device.limits.get("multiprocessors", 64)
        self._answer = session.allocate(8)

    def root_mean_square(self, values: CudaBuffer, buffer: Buffer) -> float:
        """The root mean square of all elements."""
        count = _count(buffer)
        total = self._run("square_sum", buffer.dtype, {"x": values}, (_u64(count),))
        return float(np.sqrt(total.view(np.float64)[0] / max(count, 1)))

    def count_wrong(self, got: CudaBuffer, wanted: CudaBuffer, buffer: Buffer, scale: float) -> int:
        """Elements that differ by more than rounding."""
        rtol = FLOAT32_RTOL if buffer.dtype == "float32" else ROUNDINGS * machine_epsilon(buffer.dtype)
        numbers = (_u64(_count(buffer)), _f32("rtol", rtol), _f32("atol", rtol * 0.1 * scale))
        return int(self._run("differ", buffer.dtype, {"x": got, "y": wanted}, numbers).view(np.uint64)[0])

    def _run(self, kind: str, dtype: str, pointers: Mapping[str, CudaBuffer], scalars: Sequence[ScalarArgument]) -> Any:
        buffers = {**pointers, "answer": self._answer}
        arguments: tuple[LaunchArgument, ...] = (
            *(BufferArgument(name, 0) for name in pointers), *scalars, BufferArgument("answer", 8),
        )  # fmt: skip
        step = PlanStep(f"{kind}_{dtype}", (self._blocks, 1, 1), (256, 1, 1), 0, arguments)
        bound = {name: BoundBuffer(each, 0, each.byte_count) for name, each in buffers.items()}
        self._session.fill(self._answer, b"\0", 8)
        self._session.launch([BoundLaunch(self._module, step, bound)])
        answer = np.empty(8, np.uint8)
        self._session.download(self._answer, answer)
        return answer


class _OpenShape:
    """The buffers of one shape."""

    def __init__(self, session: CudaSession, judge: Judge, job: OpenShape) -> None:
        self._session = session
        self._judge = judge
        self._buffers = {each.name: each for each in job.buffers}
        self._memory: dict[str, CudaBuffer] = {}
        self._pristine: dict[str, CudaBuffer] = {}
        self._expected: dict[str, CudaBuffer] = {}
        self._scales: dict[str, float] = {}
        for place, each in enumerate(job.buffers):
            self._memory[each.name] = session.allocate(each.byte_count)
            if each.role in ("input", "inout"):
                self._fill(each, place)
            if each.role == "inout":
                self._pristine[each.name] = self._copied(each)
        self.restore()
        session.launch(self.bind(job.baseline))
        for each in self._results():
            self._expected[each.name] = self._copied(each)
            self._scales[each.name] = judge.root_mean_square(self._expected[each.name], each)

    def bind(self, runnable: Job) -> list[BoundLaunch]:
        """The launches on this shape's memory; scratch is made on demand and kept."""
        for name, byte_count in runnable.scratch_bytes.items():
            known = self._memory.get(name)
            if known is None or known.byte_count < byte_count:
                self._memory[name] = self._session.allocate(byte_count)
        module = self._session.load(runnable.artifact)
        bound = {name: BoundBuffer(each, 0, each.byte_count) for name, each in self._memory.items()}
        return [BoundLaunch(module, step, bound) for step in runnable.plan]

    def restore(self) -> None:
        """In-out arguments as they were."""
        for each in self._results():
            if each.role == "inout":
                self._session.copy(self._pristine[each.name], self._memory[each.name], each.byte_count)

    def poison(self) -> None:
        """Fill the outputs, so that nobody passes with the results of the one before."""
        for each in self._results():
            if each.role == "output":
                self._session.fill(self._memory[each.name], b"\xff", each.byte_count)

    def find_wrong(self, results: Sequence[CudaBuffer] | None = None) -> str | None:
        """Which result differs from the baseline's, in words."""
        outputs = self._results()
        got = [self._memory[each.name] for each in outputs] if results is None else results
        for each, values in zip(outputs, got, strict=True):
            wrong = self._judge.count_wrong(values, self._expected[each.name], each, self._scales[each.name])
            if wrong:
                return f"{wrong} of {_count(each)} elements of {each.name!r}"
        return None

    def inputs(self) -> dict[str, tuple[Buffer, CudaBuffer]]:
        """What PyTorch gets."""
        return {
            name: (each, self._memory[name]) for name, each in self._buffers.items() if each.role in ("input", "inout")
        }

    def close(self) -> None:
        """Give the memory back."""
        for memory in (self._memory, self._pristine, self._expected):
            for each in memory.values():
                self._session.free(each)
            memory.clear()

    def _results(self) -> list[Buffer]:
        return [each for each in self._buffers.values() if each.role in ("output", "inout")]

    def _copied(self, buffer: Buffer) -> CudaBuffer:
        copy = self._session.allocate(buffer.byte_count)
        self._session.copy(self._memory[buffer.name], copy, buffer.byte_count)
        return copy

    def _fill(self, buffer: Buffer, seed: int) -> None:
        rng = np.random.default_rng(seed)
        count = min(_count(buffer), PERIOD_ELEMENTS)
        if buffer.low is not None and buffer.high is not None:
            values = rng.uniform(buffer.low, buffer.high, count).astype(np.float32)
        else:
            values = rng.standard_normal(count, np.float32)
        data = values.astype(DTYPES[buffer.dtype].numpy_dtype).view(np.uint8)
        target = self._memory[buffer.name]
        self._session.upload(target, data)
        done = data.size
        while done < buffer.byte_count:
            step = min(done, buffer.byte_count - done)
            self._session.copy(target, type(target)(target.address + done, step), step)
            done += step


def _count(buffer: Buffer) -> int:
    return buffer.byte_count // DTYPES[buffer.dtype].item_bytes


def _u64(value: int) -> ScalarArgument:
    return ScalarArgument("n", "uint64", value.to_bytes(8, "little"))


def _f32(name: str, value: float) -> ScalarArgument:
    return ScalarArgument(name, "float32", np.float32(value).tobytes())
