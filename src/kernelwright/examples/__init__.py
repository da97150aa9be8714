"""Problems to begin with. Each folder has a plain baseline, a template, a NumPy reference and a problem file.

Folders beside this file are OpenCL, those under `cuda` are CUDA: `matmul`, `cuda/matmul`.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from kernelwright.errors import UsageError

FOLDER = Path(__file__).parent


def example_names() -> tuple[str, ...]:
    """All names, OpenCL first."""
    names = (file.parent.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("problem.toml"))
    return tuple(sorted(names, key=lambda name: (name.count("/"), name)))


def example_folder(name: str) -> Path:
    """The folder of an example, to read from; `load_problem` takes it.

    Raises:
        UsageError: there is no such example.
    """
    names = example_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"there is no example {name!r}", hint=f"{meant}there are {', '.join(names)}")
    return FOLDER / name
