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

from kernelwright.errors import StoreError, UsageError
from kernelwright.export.header import header_text
from kernelwright.export.source import source_text
from kernelwright.export.subject import ExportedRun
from kernelwright.export.summary import summary_document
from kernelwright.export.t1 import t1_document
from kernelwright.export.t4 import t4_document
from kernelwright.store.files import write_atomically

_Writer = Callable[[ExportedRun], tuple[str, str]]
"""From a run to a file's name and text."""


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


_WRITERS: Mapping[str, _Writer] = MappingProxyType(
    {
        "source": lambda run: (run.template.file.name, source_text(run)),
        "header": lambda run: (f"kernelwright_{run.identifier}.h", header_text(run)),
        "json": lambda run: (f"{run.identifier}.json", _json(summary_document(run))),
        "t4": lambda run: (f"{run.identifier}.t4.json", _json(t4_document(run))),
        "t1": lambda run: (f"{run.identifier}.t1.json", _json(t1_document(run))),
    }
)

FORMATS = tuple(_WRITERS)
"""`source`: the winning source, ready to compile. `header`: C/C++ constants, configs per workload with their selection,
and launch geometry. `json`: a plain summary. `t4`: the community's results format. `t1`: its input format."""


def export_run(run: Path | str, out: Path | str, *, formats: Collection[str] = FORMATS) -> list[Path]:
    """Write the run in the folder `run` to files in the folder `out`, which is made; files there are replaced.

    Everything is made before anything is written, so that an error leaves no half of an export.

    Returns:
        The files, in the order of `formats`.

    Raises:
        UsageError: an unknown format, with the nearest known one, or none at all.
        UserError: nothing won, or the winner cannot be said in one of the formats.
        StoreError: the run cannot be read, or the files cannot be written.
    """
    chosen = list(dict.fromkeys(formats))
    for name in chosen:
        if name not in _WRITERS:
            close = difflib.get_close_matches(name, FORMATS, 1, 0.4)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"unknown export format {name!r}", hint=f"{hint}formats are {', '.join(FORMATS)}")
    if not chosen:
        raise UsageError("no export format was asked for", hint=f"formats are {', '.join(FORMATS)}")
    exported = ExportedRun.read(Path(run))
    files = [_WRITERS[name](exported) for name in chosen]
    return [_write(Path(out), name, text) for name, text in files]


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}",
            hint="name a folder that you may write to",
        ) from error
    return path
