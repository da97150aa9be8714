"""The drop-in decorator: a Triton kernel launched with the configs that a run found, chosen by sizes; never tuned here.

```python
@kernelwright.tuned("scale.json")     # as `kernelwright export RUN --format json` writes it
@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr): ...

scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, BLOCK=64)      # BLOCK=64: the baseline
```

A file counts for one GPU, one version of Triton and one text of the kernel. Elsewhere the kernel is launched as the
caller says, which is told once. Nothing is compiled before a launch needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelwright.dispatching.rule import Rule, Split, choose
from kernelwright.errors import Location, SpecError, UsageError
from kernelwright.json_text import read_json_text
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.triton.reading import kernel_hash

_FORMAT = 1
_MOST_KEPT = 4096
"""Choices that are kept, by what tells the sizes: a launch that was seen before costs a look into a table."""

Sizes = Mapping[str, int]


def tuned(*files: str | Path, domain: Mapping[str, tuple[int, int]] | None = None) -> Callable[[Any], Any]:
    """Launch a Triton kernel with the config that was measured to be right for the sizes of each call.

    Inside the measured domain the dispatch table's rule chooses. Between that and `domain` it is the config of the
    nearest measured sizes, by the ratio of each size. Outside, the launch is as the caller says.

    Args:
        files: exports of runs in the format `json`, one a device; the one that fits is used.
        domain: by size its least and largest value; None: the measured one.

    Returns:
        A decorator for a `@triton.jit` kernel, over `@triton.autotune` too, which does not tune then. The `pre_hook` of
        its configs is called before each launch, as there. A config whose hook is not known is not used, which is told.
        Its other hooks, `reset_to_zero` and `restore_value` are of its benchmarks, of which there are none.

    Raises:
        UsageError: no file is named.
        SpecError: a file cannot be read, is no such export, or not of a Triton kernel.
    """
    if not files:
        raise UsageError("no file is named", hint='say kernelwright.tuned("KERNEL.json")')
    tables = [_Table(Path(file)) for file in files]
    return lambda kernel: _Tuned(kernel, tables, domain or {})


class _Table:
    """One file, read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            record = read_json_text(file.read_bytes())
        except OSError as error:
            raise SpecError(f"cannot read {file}: {error.strerror}", hint="export it with --format json") from None
        except json.JSONDecodeError as error:
            raise SpecError(f"not JSON: {error.msg}", location=Location(file, error.lineno, error.colno)) from None
        try:
            self._read(record)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise SpecError(
                f"{file.name} is no export of a Triton kernel in the format json: {type(error).__name__}: {error}",
                hint="write it with kernelwright export RUN --format json",
                location=Location(file),
            ) from None

    def _read(self, record: Any) -> None:
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is {record['format']!r}, expected {_FORMAT}")
        dispatch, device = record["dispatch"], record["device"]
        self.hash = str(record["kernel_hash"])
        self.device = str(device["name"])
        self.triton = str(device.get("facts", {}).get("triton", ""))
        self.default = dict(record["default"])
        self.configs = [each["config"] for each in dispatch["configs"]]
        self.rule = _rule(dispatch["rule"])
        limits = {f"device.{name}": value for name, value in device.get("limits", {}).items()}
        self.constraints = [Expression.parse(each) for each in dispatch["constraints"]]
        self.limits: dict[str, Any] = limits
        self.spans = {name: (each["low"], each["high"], each["multiple_of"]) for name, each in _sizes(dispatch)}
        self.derived = {name: Expression.parse(each) for name, each in dispatch["domain"]["derived"].items()}
        self.bytes, self.most_bytes = Expression.parse(dispatch["domain"]["bytes"]), dispatch["domain"]["most_bytes"]
        self.shapes = [(dict(each["sizes"]), each["choice"]) for each in dispatch["shapes"]]
        (launch,) = record["launches"]
        self.grid = [Expression.parse(each) for each in launch["grid"]]
        self.arguments = {
            each["name"]: [Expression.parse(text) for text in each.get("shape", [each.get("value")])]
            for each in launch["arguments"]
        }
        self.scalars = {each["name"] for each in launch["arguments"] if "value" in each}
        self.item_bytes = {each["name"]: each.get("item_bytes") for each in launch["arguments"]}
        self.names = [*self.shapes[0][0]]

    def choice(self, sizes: Sizes, domain: Mapping[str, tuple[int, int]]) -> Mapping[str, Any] | None:
        """The config for these sizes; None: the baseline."""

        def is_usable(place: int) -> bool:
            config = self.configs[place]
            names = {**self.limits, **sizes, **(config or {})}
            return config is None or all(each.evaluate(names) for each in self.constraints)

        if self._is_measured(sizes):
            place = choose(self.rule, sizes, is_usable)
        elif all(low <= sizes[name] <= high for name, (low, high) in domain.items()) and domain:
            place = min(self.shapes, key=lambda shape: _distance(shape[0], sizes))[1]
        else:
            return None
        return self.configs[place] if place is not None and is_usable(place) else None

    def _is_measured(self, sizes: Sizes) -> bool:
        return (
            all(
                low <= sizes[name] <= high and sizes[name] % step == 0 for name, (low, high, step) in self.spans.items()
            )
            and all(each.evaluate(sizes) == sizes[name] for name, each in self.derived.items())
            and self.bytes.evaluate(sizes) <= self.most_bytes
        )

    def sizes_of(self, given: Mapping[str, Any]) -> Sizes | None:
        """The sizes that a call's tensors and numbers tell; None: they do not, or contradict each other.

        Elements of another size are another kernel to a GPU, which may not hold the blocks of a config.
        """
        if any(_item_bytes(given.get(name)) not in (None, count) for name, count in self.item_bytes.items()):
            return None
        equations: list[tuple[Expression, int]] = []
        for name, texts in self.arguments.items():
            value = given.get(name)
            if name in self.scalars:
                if isinstance(value, int) and not isinstance(value, bool):
                    equations.append((texts[0], value))
            elif value is not None and len(shape := tuple(getattr(value, "shape", ()))) == len(texts):
                equations += zip(texts, map(int, shape), strict=True)
            elif value is not None and hasattr(value, "numel"):
                whole = Expression.parse(" * ".join(f"({each.text})" for each in texts))
                equations.append((whole, int(value.numel())))
        known: dict[str, int] = {}
        for _ in self.names:
            for expression, number in equations:
                unknown = expression.names - known.keys()
                if len(unknown) == 1 and (found := _solved(expression, min(unknown), known, number)) is not None:
                    known[min(unknown)] = found
        is_told = known.keys() >= set(self.names)
        return known if is_told and all(each.evaluate(known) == number for each, number in equations) else None


class _Tuned:
    """A kernel that is launched as before, `kernel[grid](...)`."""

    def __init__(self, kernel: Any, tables: list[_Table], domain: Mapping[str, tuple[int, int]]) -> None:
        self._listed: list[Any] = []
        """The configs of an autotuner."""
        while type(kernel).__name__ == "Autotuner":
            self._listed += kernel.configs
            kernel = kernel.fn
        self.fn = kernel
        self._domain = domain
        self._tables = tables
        self._table: _Table | None = None
        self._is_known = False
        self._is_told = False
        self._heard: set[Any] = set()
        self._kept: dict[Any, Mapping[str, Any] | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """From inside another kernel."""
        return self.fn(*args, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch; with `warmup` only compile, as Triton has it."""
        given = self._by_name(args, kwargs)
        table = self._fitting()
        config = None if table is None else self._chosen(table, given)
        default = self._tables[0].default if table is None else table.default
        taken = {name: each for name, each in default.items() if self._listed or name in self.fn.arg_names}
        own = {**taken, **given}
        if table is not None and config is not None and self._is_hook_known(table, config):
            new = {**own, **config}
            launched = self._grid(table, grid, own, new)
            if launched is not None:
                return self._launch(launched, new, warmup)
        return self._launch(grid, own, warmup)

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self.fn.arg_names
        twice = [name for name in names[: len(args)] if name in kwargs]
        if len(args) > len(names) or twice:
            what = f"gets {twice[0]!r} twice" if twice else f"takes {len(names)} arguments, and {len(args)} are given"
            raise TypeError(f"{getattr(self.fn, '__name__', 'the kernel')} {what}")
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _launch(self, grid: Any, given: Mapping[str, Any], warmup: bool) -> Any:
        if not self._hooks(given):
            given = {**given, **self._listed[0].all_kwargs()}
        (hook,) = self._hooks(given)
        if hook is not None and not warmup:
            hook({**given})
        return self.fn.warmup(grid=grid, **given) if warmup else self.fn[grid](**given)

    def _hooks(self, given: Mapping[str, Any]) -> list[Any]:
        """What an autotuner calls before a launch with these arguments, or None; empty: its configs do not tell."""
        same = [
            each.pre_hook
            for each in self._listed
            if all(given.get(name, value) == value for name, value in each.all_kwargs().items())
        ]
        hooks = same or [each.pre_hook for each in self._listed] or [None]
        return hooks[:1] if same or all(each == hooks[0] for each in hooks) else []

    def _is_hook_known(self, table: _Table, config: Mapping[str, Any]) -> bool:
        if self._hooks(config):
            return True
        self._tell(f"no config of @triton.autotune has the pre_hook for {dict(config)} of {table.file.name}")
        return False

    def _chosen(self, table: _Table, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        key = tuple(
            value if isinstance(value, int) else (tuple(getattr(value, "shape", ())), _item_bytes(value))
            for value in map(given.get, table.arguments)
        )
        if key not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            sizes = table.sizes_of(given)
            self._kept[key] = None if sizes is None else table.choice(sizes, self._domain)
        return self._kept[key]

    def _grid(self, table: _Table, grid: Any, own: Mapping[str, Any], new: Mapping[str, Any]) -> Any:
        """The grid for another config: a tuple is replaced where it is what was measured.

        A function is asked again, unless it is what was measured for the caller's config only: it reads no `meta` then.
        """
        changed = [
            name
            for name, value in new.items()
            if name in self.fn.arg_names and value is not own.get(name) and value != own.get(name)
        ]
        code = getattr(grid, "__code__", type(grid))
        if not changed or (callable(grid) and code in self._heard):
            return grid
        sizes = table.sizes_of(own)
        if sizes is not None:
            before, after = (
                tuple(int(each.evaluate({**table.limits, **sizes, **_numbers(names)})) for each in table.grid)
                for names in (own, new)
            )
            if callable(grid):
                is_telling = _extents(before) != _extents(after)
                first = _asked(grid, own) if is_telling else None
                if not is_telling or first != _extents(before) or first != _asked(grid, new):
                    self._heard |= {code} if is_telling else set()  # asked once: a launch is short
                    return grid
            elif _extents(grid) == _extents(before):
                return after
        elif callable(grid):
            return grid
        shown = "of the function, which reads no config," if callable(grid) else tuple(grid)
        self._tell(f"the grid {shown} is not that of {table.file.name} for {', '.join(changed)}")
        return None

    # Which file counts

    def _fitting(self) -> _Table | None:
        """The file for this machine, looked for at the first launch: importing a kernel must touch no GPU."""
        if not self._is_known:
            self._is_known = True
            device, version = here()
            own = _text_hash(self.fn)
            reasons = [_reason(table, device, version, own) for table in self._tables]
            self._table = next((t for t, reason in zip(self._tables, reasons, strict=True) if reason is None), None)
            if self._table is None:
                self._tell(f"{self._tables[0].file.name}: {reasons[0]}")
        return self._table

    def _tell(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            name = getattr(self.fn, "__name__", "the kernel")
            warnings.warn(f"{name} is launched as it is called, untuned: {reason}", RuntimeWarning, stacklevel=5)


def here() -> tuple[str | None, str]:
    """The current GPU's name, None where there is none, and Triton's version."""
    version = "none"
    if importlib.util.find_spec("triton") is not None:
        version = str(importlib.import_module("triton").__version__)
    if importlib.util.find_spec("torch") is None:
        return None, version
    cuda = importlib.import_module("torch").cuda
    return (str(cuda.get_device_name()) if cuda.is_available() else None), version


def _reason(table: _Table, device: str | None, version: str, own: str) -> str | None:
    """Why a file does not count here; None: it does."""
    if device is None:
        return f"it was tuned on {table.device}, and there is no GPU here"
    if device != table.device:
        return f"it was tuned on {table.device}, and this is {device}"
    if version != table.triton:
        return f"it was tuned with Triton {table.triton or '(not recorded)'}, and this is {version}"
    return None if own == table.hash else "it is for another text of the kernel"


def _text_hash(kernel: Any) -> str:
    """Of the function inside; empty where its text is not to be had."""
    while not inspect.isfunction(kernel) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    try:
        return kernel_hash(inspect.getsource(kernel))
    except (OSError, TypeError, ValueError, SyntaxError):
        return ""


def _sizes(dispatch: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(dispatch["domain"]["sizes"].items())


def _rule(record: Mapping[str, Any]) -> Rule:
    if "order" in record:
        return tuple(record["order"])
    low, high = _rule(record["then"]), _rule(record["else"])
    below, above = record.get("measured_between", (0, 0))
    names, divisor = tuple(record["product_of"]), record.get("multiple_of", 0)
    return Split(names, record.get("at_most", 0), below, above, low, high, divisor)


def _solved(expression: Expression, name: str, known: Sizes, number: int) -> int | None:
    """The value of a name with which a linear expression has this value."""
    one, two = (expression.evaluate({**known, name: each}) for each in (1, 2))
    if not isinstance(one, int) or not isinstance(two, int) or two == one:
        return None
    value, rest = divmod(number - 2 * one + two, two - one)
    return value if rest == 0 and value > 0 else None


def _distance(measured: Sizes, sizes: Sizes) -> float:
    return sum(abs(math.log(sizes[name] / value)) for name, value in measured.items())


def _item_bytes(value: Any) -> int | None:
    return int(value.element_size()) if hasattr(value, "element_size") else None


def _asked(grid: Callable[[dict[str, Any]], Any], given: Mapping[str, Any]) -> tuple[int, ...] | None:
    try:
        return _extents(grid({**given}))
    except (KeyError, TypeError, ValueError):  # Triton gives it more
        return None


def _numbers(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if isinstance(value, bool | int | float | str)}


def _extents(grid: Any) -> tuple[int, ...]:
    found = [int(each) for each in (grid if isinstance(grid, tuple | list) else (grid,))]
    return tuple([*found, 1, 1][:3])
