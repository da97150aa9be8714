"""What devices there are, found out in a process of its own, so that this one loads no GPU library.

```
report = probe_devices()                        # ProbeReport: devices, and why a backend has none
device = select_device(report, "opencl:gpu")    # a DeviceInfo, or an error that lists what is there
```
"""

from __future__ import annotations

import contextlib
import difflib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.registry import BACKENDS, get_backend
from kernelwright.errors import InfrastructureError, KernelwrightError, MissingDependency, UsageError
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.source.language import Language

PROBER_FACTORY = f"{__name__}:make_prober"
EAGER_FACTORY = f"{__name__}:make_eager_prober"
HOST_FACTORY = "kernelwright.evaluate.device.worker:make_host"

PROBE_TIMEOUT_S = 60.0
"""A driver that wakes a GPU from sleep can take tens of seconds."""
_SILENT = f"its driver did not answer within {PROBE_TIMEOUT_S:g} s"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found."""

    devices: tuple[DeviceInfo, ...]
    """By backend in the registry's order, best first within each."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """By backend, why it offers no device and what to install."""
    probe_s: float = 0.0


class DeviceHosts:
    """Processes that have asked a driver for devices and can open one: they have loaded what takes time."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._workers: dict[str, WorkerProcess] = {}

    def keep(self, backend: str, worker: WorkerProcess) -> None:
        """Keep the process of a backend."""
        self._workers[backend] = worker

    def take(self, backend: str) -> WorkerProcess | None:
        """The process of a backend, for whoever asks first; it is theirs to close."""
        return self._workers.pop(backend, None)

    def close(self) -> None:
        """End those that nobody took."""
        while self._workers:
            self._workers.popitem()[1].close()


@contextlib.contextmanager
def begun_probes(*backends: str) -> Iterator[DeviceHosts]:
    """Processes that load these backends' drivers from now on, while the caller imports; ended behind the block."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-probe-") as scratch:
        begun = DeviceHosts(Path(scratch))
        try:
            for name in backends:
                worker = WorkerProcess(WorkerSettings(f"probe-{name}", EAGER_FACTORY, name), scratch=begun.scratch)
                begun.keep(name, worker)
                worker.warm()
            yield begun
        finally:
            begun.close()


def probe_devices(
    *, backends: Sequence[str] | None = None, hosts: DeviceHosts | None = None, begun: DeviceHosts | None = None
) -> ProbeReport:
    """Ask every backend for its devices; a driver that crashes or hangs is a reason, not an error.

    Args:
        backends: names; None: all.
        hosts: where the processes of backends with a device are kept; None: each ends when it has answered.
        begun: of `begun_probes`, which answer sooner; one that does not answer is asked anew.

    Raises:
        UsageError: a name in `backends` is unknown.
    """
    names = tuple(BACKENDS) if backends is None else tuple(backends)
    for name in names:
        get_backend(name)
    start_s = time.perf_counter()
    devices: list[DeviceInfo] = []
    unavailable: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kernelwright-probe-") as scratch:
        for name in names:  # each in its own process: one driver's crash must not hide another's devices
            found = _begun_answer(name, begun) or _probe_one(name, Path(scratch), hosts)
            if isinstance(found, str):
                unavailable[name] = found
            else:
                devices.extend(found)
    return ProbeReport(tuple(devices), unavailable, time.perf_counter() - start_s)


def _begun_answer(name: str, begun: DeviceHosts | None) -> tuple[DeviceInfo, ...] | str:
    """The devices that a process begun early tells of, or that it says nothing in time; else empty: ask anew."""
    worker = None if begun is None else begun.take(name)
    if worker is None:
        return ()
    with worker, contextlib.suppress(KernelwrightError):
        try:
            found = worker.call(None, timeout_s=PROBE_TIMEOUT_S)
        except JobTimeout:
            return _SILENT  # whoever asks anew waits as long again
        if isinstance(found, tuple) and all(isinstance(each, DeviceInfo) for each in found):
            return found
    return ()


def _probe_one(name: str, scratch: Path, hosts: DeviceHosts | None) -> tuple[DeviceInfo, ...] | str:
    factory = PROBER_FACTORY if hosts is None else HOST_FACTORY
    settings = WorkerSettings(f"probe-{name}", factory, name)
    with contextlib.ExitStack() as ending:
        worker = WorkerProcess(settings, scratch=scratch if hosts is None else hosts.scratch)
        ending.callback(worker.close)
        try:
            found = worker.call(None, timeout_s=PROBE_TIMEOUT_S)
            if hosts is not None and isinstance(found, tuple) and found:
                hosts.keep(name, worker)
                ending.pop_all()
        except JobTimeout:
            return _SILENT
        except WorkerDied as error:
            return f"its driver crashed while it was asked for devices ({error.message})\n{error.log_tail}".rstrip()
        except KernelwrightError as error:
            return str(error)
    if isinstance(found, str):
        return found
    if isinstance(found, tuple) and all(isinstance(each, DeviceInfo) for each in found):
        return found
    raise InfrastructureError(f"the probe of {name!r} answered with {type(found).__name__}")


def make_prober(argument: object) -> Callable[[object], object]:
    """The handler of a probe process: the devices of a backend, or why it has none."""
    backend = get_backend(str(argument))

    def handle(_: object) -> object:
        reason = backend.unavailable_because()
        return tuple(backend.devices()) if reason is None else reason

    return handle


def make_eager_prober(argument: object) -> Callable[[object], object]:
    """`make_prober`, which loads the driver before it is asked."""
    get_backend(str(argument)).unavailable_because()
    return make_prober(argument)


def select_device(report: ProbeReport, selector: str | None = None, *, language: Language | None = None) -> DeviceInfo:
    """The device that `selector` means, among those that take `language`.

    A selector is a whole id, the beginning of one up to a colon (`opencl`, `opencl:pocl-3.0`), a kind (`cpu`,
    `gpu`), a backend with a kind (`opencl:gpu`), or a part of the device's name. Without one: the best device.

    Raises:
        MissingDependency: there is no device, or none for `language`; says what to install.
        UsageError: the selector fits none; lists what is there.
    """
    fitting = [device for device in report.devices if language is None or language in _languages(device)]
    if not fitting:
        raise _none_fits(report, language)
    if not selector:
        return fitting[0]
    for matches in (_is_id, _is_id_prefix, _is_kind, _is_name_part):
        chosen = [device for device in fitting if matches(device, selector)]
        if chosen:
            return chosen[0]
    near = difflib.get_close_matches(selector, [device.id for device in fitting], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "give an id, a kind (cpu, gpu) or a part of the name"
    raise UsageError(f"no device fits {selector!r}; there is {_listed(fitting)}", hint=hint)


def select_devices(
    report: ProbeReport, selector: str | None = None, *, language: Language | None = None
) -> tuple[DeviceInfo, ...]:
    """The devices that `selector` means: several of one model, separated by commas, or `all` of a model.

    `cuda:0,cuda:2` names two; `all` means every device like the best one, `cuda:all` every one like the best of
    that backend. Anything else means one, as for `select_device`.

    Raises:
        MissingDependency: there is no device, or none for `language`.
        UsageError: a selector fits none, one device is named twice, or they differ in model.
    """
    words = [word.strip() for word in (selector or "").split(",")]
    if len(words) == 1 and is_several(words[0]):
        best = select_device(report, words[0].removesuffix("all").removesuffix(":") or None, language=language)
        alike = [each for each in report.devices if each.backend == best.backend and each.name == best.name]
        return (best, *(each for each in alike if each.id != best.id))
    chosen = tuple(select_device(report, word or None, language=language) for word in words)
    first, ids = chosen[0], [each.id for each in chosen]
    if len(set(ids)) < len(ids):
        raise UsageError(
            f"{selector!r} means {', '.join(ids)}: a device twice", hint=f"choose from {_listed(report.devices)}"
        )
    for other in chosen[1:]:
        if (other.backend, other.name) != (first.backend, first.name):
            raise UsageError(
                f"{first.id} is {first.name!r} and {other.id} is {other.name!r}, but one run needs one model",
                hint=f"times on different models do not compare; choose from {_listed(report.devices)}",
            )
    return chosen


def is_several(selector: str | None) -> bool:
    """Whether a selector may mean more than one device."""
    return selector is not None and ("," in selector or selector == "all" or selector.endswith(":all"))


def _is_id(device: DeviceInfo, selector: str) -> bool:
    return device.id == selector


def _is_id_prefix(device: DeviceInfo, selector: str) -> bool:
    return device.id.startswith(selector.rstrip(":") + ":")


def _is_kind(device: DeviceInfo, selector: str) -> bool:
    return selector in (device.kind, f"{device.backend}:{device.kind}")


def _is_name_part(device: DeviceInfo, selector: str) -> bool:
    return selector.lower() in device.name.lower()


def _languages(device: DeviceInfo) -> tuple[Language, ...]:
    return get_backend(device.backend).languages


def _listed(devices: Sequence[DeviceInfo]) -> str:
    return ", ".join(f"{device.id} ({device.name})" for device in devices)


_WITHOUT_GPU = "`tune --device interpreter` checks a Triton kernel without a GPU, and times nothing"


def _none_fits(report: ProbeReport, language: Language | None) -> MissingDependency:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in report.unavailable.items())
    if report.devices:
        return MissingDependency(
            f"no device here runs {language} kernels; there is {_listed(report.devices)}",
            hint="; ".join(filter(None, (reasons, _WITHOUT_GPU if language == "triton" else "")))
            or "write the kernel for one of these devices",
        )
    return MissingDependency(
        f"no device was found ({reasons or 'no backend was asked'})",
        hint=_WITHOUT_GPU
        if language == "triton"
        else "pip install 'kernelwright[opencl]' runs kernels on the CPU; `kernelwright doctor` says more",
    )
