"""Writes what a run found for use elsewhere.

```
export_run(Path("runs/softmax"), Path("export"), formats=["source", "header"])
```
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelwright.errors import UsageError, UserError
from kernelwright.export.autotuning.t1 import t1_document
from kernelwright.export.autotuning.t4 import t4_document
from kernelwright.export.c_header.header import header_text
from kernelwright.export.choice import choice_file, choice_of, write_choice
from kernelwright.export.exchange import exchange_files
from kernelwright.export.source import source_text
from kernelwright.export.subject import ExportedRun
from kernelwright.export.summary import summary_document
from kernelwright.export.torch.module import module_file
from kernelwright.export.torch.operator import torch_files
from kernelwright.export.triton import configs_file, sglang_files, vllm_files
from kernelwright.modules.problem_files import signature_of
from kernelwright.source.language import Language
from kernelwright.store.files import explain, write_atomically

_Writer = Callable[[ExportedRun], Mapping[str, bytes]]
"""From a run to files: their contents by their path in the folder that is written to."""


def _json(document: Any) -> bytes:
    return f"{json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)}\n".encode()


_WRITERS: Mapping[str, _Writer] = MappingProxyType(
    {
        "source": lambda run: {run.template.file.name: source_text(run).encode()},
        "header": lambda run: {f"kernelwright_{run.identifier}.h": header_text(run).encode()},
        "torch": torch_files,
        "module": module_file,
        "json": lambda run: {f"{run.identifier}.json": _json(summary_document(run))},
        "t4": lambda run: {f"{run.identifier}.t4.json": _json(t4_document(run))},
        "t1": lambda run: {f"{run.identifier}.t1.json": _json(t1_document(run))},
        "choice": choice_file,
        "configs": configs_file,
        "vllm": vllm_files,
        "sglang": sglang_files,
        "flashinfer-trace": lambda run: exchange_files(run, "flashinfer-trace"),
        "sol-execbench": lambda run: exchange_files(run, "sol-execbench"),
    }
)

FORMATS = tuple(_WRITERS)
"""`source`: the winning source, ready to compile. `header`: C/C++ configs with their selection by sizes, and launches.
`torch`: a folder with a PyTorch operator. `module`: KernelBench's `ModelNew`, of a PyTorch module's program. `json`: a
plain summary, with the dispatch table. `t4`: the community's results format. `t1`: its input format. `choice`: what
`check` measures again. `configs`: a list of `triton.Config` with pruning. `vllm`, `sglang`: these servers' JSON.
`flashinfer-trace`, `sol-execbench`: a solution and traces of a definition."""
_ASKED = frozenset(("flashinfer-trace", "sol-execbench"))
"""Formats that are written where they are named only."""


def formats_for(language: Language, *, is_module: bool = False, is_alone: bool = True) -> tuple[str, ...]:
    """The formats that a kernel in this language has; one more where it is a PyTorch module's program.

    Args:
        language: of the kernel.
        is_module: whether it is such a program.
        is_alone: whether nothing outside the kernels happens between launches.
    """
    absent = {"torch"} if language != "cuda" else set()
    absent |= set() if is_alone else {"header", "torch", "t1"}
    absent |= {"source", "header", "t1"} if language == "triton" else {"configs", "vllm", "sglang"}
    absent |= _ASKED
    return tuple(name for name in FORMATS if name not in absent | (set() if is_module else {"module"}))


def usual_formats(run: Path | str) -> tuple[str, ...]:
    """What every run with a winner leaves: those of the common formats that its kernel's language has."""
    exported = ExportedRun.read(Path(run))
    known = formats_for(exported.template.language, is_alone=_is_alone(exported))
    return tuple(name for name in ("source", "header", "json", "t4") if name in known)


def _is_alone(run: ExportedRun) -> bool:
    """Whether nothing outside the kernels happens between launches."""
    return not any(each.after for each in run.problem.arguments)


def export_run(
    run: Path | str, out: Path | str, *, formats: Collection[str] | None = None, loss: float | None = None
) -> list[Path]:
    """Write the run in the folder `run` to files in the folder `out`, which is made; files there are replaced.

    Everything is made before anything is written, so that an error leaves no half of an export.

    Args:
        run: the run folder.
        out: where to.
        formats: some of `FORMATS`; None: all that fit the kernel.
        loss: what a shape may lose against its best config, as a fraction; None: what the run was probed for, else 2 %.

    Returns:
        The files, in the order of `formats`.

    Raises:
        UsageError: an unknown format, with the nearest known one, or none at all.
        UserError: nothing won, or the winner cannot be said in one of the formats.
        StoreError: the run cannot be read, or the files cannot be written.
    """
    chosen = list(dict.fromkeys(FORMATS if formats is None else formats))
    for name in chosen:
        if name not in _WRITERS:
            close = difflib.get_close_matches(name, FORMATS, 1, 0.4)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"unknown export format {name!r}", hint=f"{hint}formats are {', '.join(FORMATS)}")
    if not chosen:
        raise UsageError("no export format was asked for", hint=f"formats are {', '.join(FORMATS)}")
    if loss is not None and not 0 < loss < 1:
        raise UsageError(f"the loss is {loss:g}, expected a fraction between 0 and 1", hint="2 % is 0.02")
    exported = ExportedRun.read(Path(run), loss=loss)
    if exported.template.language != "triton" and (found := {"configs", "vllm", "sglang"} & set(formats or ())):
        raise UserError(f"{min(found)!r} is for Triton kernels; this one is {exported.template.language}")
    is_alone = _is_alone(exported)
    if not is_alone and (found := {"header", "torch", "t1"} & set(formats or ())):
        raise UserError(
            f"{min(found)!r} launches kernels only, and a library works between these", hint="export module"
        )
    files: dict[str, bytes] = {}
    is_module = formats is None and signature_of(exported.problem.reference) is not None
    for name in (
        chosen
        if formats is not None
        else formats_for(exported.template.language, is_module=is_module, is_alone=is_alone)
    ):
        try:
            files |= _WRITERS[name](exported)
        except UserError:
            if (
                formats is not None
                or name not in ("torch", "module", "vllm", "sglang")
                or exported.result.best_config is None
            ):
                raise  # what nobody asked for by name is left out where a kernel cannot become one
    return [_write(Path(out), name, data) for name, data in files.items()]


def export_choice(run: Path | str, store: Path | str, *, loss: float | None = None) -> Path:
    """Put what the run in the folder `run` chose into a store, one file a kernel; gives that file.

    Raises:
        UserError: nothing won.
        StoreError: the run cannot be read, or the file cannot be written.
    """
    return write_choice(Path(store), choice_of(ExportedRun.read(Path(run), loss=loss)))


def _write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise explain(error, "write", path) from error
    return path
