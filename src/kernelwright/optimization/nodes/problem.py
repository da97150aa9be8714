"""The files of one node: the problem as it was, with the node's template in the place of the kernel.

Each node is tuned by a run of its own, so its folder holds a whole problem that loads, resumes and exports like any.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import PurePosixPath

from kernelwright.problem.model import Problem, SourceSpec
from kernelwright.problem.toml.writing import to_toml


def node_files(
    problem: Problem, files: Mapping[str, bytes], *, text: str, options: tuple[str, ...], root: SourceSpec
) -> dict[str, bytes]:
    """All files of a node's problem, by path inside its folder.

    Args:
        problem: the run's.
        files: its files, as `template.load.problem_files` gives them.
        text: the node's template.
        options: compile options of what the node was made from.
        root: the source that every node is compared with: the problem's baseline, or its kernel where it has none.
    """
    name = template_name(problem, files)
    document = tomllib.loads(files[problem.file.name].decode("utf-8-sig"))
    baseline = dict(document.get("baseline", {})) or {"kernel": document["kernel"]}
    if root.options != options:
        baseline["options"] = list(root.options)
    document |= {"kernel": name, "options": list(options), "baseline": baseline}
    return {**files, problem.file.name: to_toml(document).encode(), name: text.encode()}


def template_name(problem: Problem, files: Mapping[str, bytes]) -> str:
    """The file name of every node's template: the problem's name, and another one where a file is called so."""
    suffix = problem.kernel.file.suffix
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", problem.name) or "kernel"
    taken = {PurePosixPath(each).name for each in files}
    names = (f"{stem}{ending}{suffix}" for ending in ("", "_template", *(f"_template_{n}" for n in range(2, 99))))
    return next(each for each in names if each not in taken)
