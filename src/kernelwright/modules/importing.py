"""A module's file to its graph: a worker process imports it, this one never does."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from kernelwright.errors import Location, SpecError
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.modules.capture import FACTORY
from kernelwright.modules.graph import Graph, read_graph

TIMEOUT_S = 600.0
"""For the module's constructor, its example inputs and the export."""


def import_module(file: Path, *, importer: WorkerProcess | None = None, library: bool = False) -> Graph:
    """The graph of a file's `Model` on what its `get_inputs` gives.

    Args:
        file: in KernelBench's form.
        importer: that has imported no module yet, or only such as are alike; None: one is started for this file.
        library: whether attention stays one operator, and what a library computes is looked at.

    Raises:
        ReferenceFailed: the file raises, lacks something, or PyTorch cannot export the module.
        SpecError: there is no such file, or the import takes too long or kills its process.
    """
    if not file.is_file():
        raise SpecError(f"{file} is not a file", hint="name a Python file with a Model", location=Location(file))
    with tempfile.TemporaryDirectory(prefix="kernelwright-import-") as scratch, contextlib.ExitStack() as stack:
        worker = importer or stack.enter_context(importer_in(Path(scratch)))
        try:
            found = worker.call({"file": str(file.resolve()), "library": library}, timeout_s=TIMEOUT_S)
        except (JobTimeout, WorkerDied) as error:
            raise SpecError(
                f"the import of the module ended without an answer: {error}",
                hint="give get_inputs smaller tensors",
                location=Location(file),
            ) from error
    if not isinstance(found, dict):
        raise SpecError(f"the import of {file} gave {type(found).__name__}, expected a graph", hint="import it again")
    return read_graph(found)


def importer_in(scratch: Path, *, is_early: bool = False) -> WorkerProcess:
    """A worker that imports modules, not yet started; with `is_early` it loads PyTorch when it starts."""
    return WorkerProcess(WorkerSettings("import", FACTORY, is_early), scratch=scratch)
