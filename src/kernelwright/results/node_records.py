"""Whether a run of `optimize` still has what its nodes measured, and the problems that they measured."""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.errors import StoreError
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.run_folder import RunFolder, is_run
from kernelwright.store.view import RunView


def damaged_nodes(result: OptimizeResult, *, index: int | None = None) -> Iterator[StoreError]:
    """What is wrong with the folders of nodes that have measured something: missing, or not readable any more.

    Args:
        result: the run, in its folder.
        index: only of this node; None: of all.
    """
    for node in result.tree if index is None else [result.tree[index]]:
        if node.has_run or (node.status == "failed" and is_run(result.place_of(node.index))):
            try:
                RunView.read(result.node_folder(node.index))
            except StoreError as error:
                yield error


def require_nodes(result: OptimizeResult, *, frozen: bool) -> None:
    """Refuse a run of which something is missing that it has recorded: going on without it would lose it for good.

    Args:
        result: the run, in its folder.
        frozen: whether its problem and its nodes' must be as they were recorded, too.

    Raises:
        StoreError: a node's folder is missing or its record is damaged; or a problem is not what was recorded.
    """
    for error in damaged_nodes(result):
        raise error
    if frozen and result.folder is not None:
        for path in [result.folder, *(result.node_folder(node.index) for node in result.tree if node.has_run)]:
            with RunFolder.open(path, writable=False) as folder:
                folder.problem_files()
