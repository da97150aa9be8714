"""What `analyse` says of a Triton file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelwright.source.triton.reading import TritonKernel, TritonParameter

NOTHING_RAN = "this is what the text says; nothing of the file was run"


def triton_lines(kernel: TritonKernel, file: Path) -> Iterator[str]:
    """One kernel in plain words, as lines."""
    yield f"{file.name}:{kernel.line}: kernel {kernel.name} (Triton)"
    for title, rows in (
        ("parameters", [_parameter(each) for each in kernel.parameters]),
        ("autotune", list(_autotune(kernel))),
        ("heuristics", [f"{name} = {_short(value)}" for name, value in kernel.heuristics.items()]),
        ("launches", [_launch(each) for each in kernel.launches]),
        ("calls", list(kernel.calls)),
        ("other decorators, not understood", [_short(each) for each in kernel.other_decorators]),
    ):
        if rows:
            yield title
            yield from (f"  {row}" for row in rows)


def _parameter(each: TritonParameter) -> str:
    annotation = "" if each.annotation is None else f" {_short(each.annotation)}"
    kind = " constexpr" if each.is_constexpr else annotation
    return f"{each.name}:{kind or ' argument'}" + ("" if each.default is None else f", default {_short(each.default)}")


def _autotune(kernel: TritonKernel) -> Iterator[str]:
    for config in kernel.configs:
        yield _pairs(config) or "a configuration without values"
    if kernel.configs_code is not None:
        yield f"made by code, which was not run: {_short(kernel.configs_code)}"
    if kernel.key:
        yield f"tuned anew when one of these changes: {', '.join(kernel.key)}"


def _launch(options: Mapping[str, str]) -> str:
    rest = {name: value for name, value in options.items() if name not in ("line", "grid")}
    return f"line {options['line']}: grid {_short(options['grid'])}" + (f", {_pairs(rest)}" if rest else "")


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:79]}…"
