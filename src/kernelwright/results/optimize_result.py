"""What `optimize` gives back: the claim over all nodes, the tree, and the path from the baseline to the winner."""

from __future__ import annotations

import dataclasses
import math
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernelwright.errors import StoreError
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.problem.config import Config
from kernelwright.results.tune_result import TuneResult, WorkloadResult
from kernelwright.results.verdict import Verdict, compared_interval
from kernelwright.results.workload_gains import PartialGain, workload_verdicts
from kernelwright.roofline.speed_of_light import recorded_floors, share_of_floor
from kernelwright.store.event import RECORD_KEY, FinalistsCompared
from kernelwright.store.run_folder import NODES_FOLDER, RunFolder
from kernelwright.store.view import RunView, weighted_geometric_mean
from kernelwright.tree.model import Node, Tree


@dataclass(frozen=True, slots=True)
class PathStep:
    """One node on the way from the baseline to the winner."""

    node: Node
    predicted_gain: float | None
    """Over the step before."""
    gain: ConfidenceInterval | None
    """Over the step before, from interleaved rounds; None where one of the two was not compared."""
    search_gain: float | None
    """Over the step before, from the search's own measurements: provisional."""
    total: ConfidenceInterval | None
    """Over the baseline, from interleaved rounds."""


@dataclass(frozen=True)
class OptimizeResult:
    """A finished (or interrupted) run of `optimize`."""

    view: RunView
    """The whole run; each node's own is in its folder."""

    @classmethod
    def read(cls, folder: Path | str) -> OptimizeResult:
        """The result of the run in a folder.

        Raises:
            StoreError: no run of `optimize` there.
        """
        view = RunView.read(Path(folder))
        if not is_optimize_run(view):
            shown = f"kernelwright show run {shlex.quote(str(folder))}"
            raise StoreError(f"{folder} is a run of `tune`, it has no tree", hint=shown)
        return cls(view)

    @property
    def folder(self) -> Path | None:
        """The run folder, for `report`, `export` and `resume`."""
        return self.view.folder

    @property
    def reason(self) -> str | None:
        """Why it ended: `budget`, `exhausted`, `no-gain`, `limit`, `interrupted`; None: it has not."""
        return self.view.finished.reason if self.view.finished else None

    @cached_property
    def tree(self) -> Tree:
        """All nodes."""
        return Tree.of(self.view.tree_events)

    @cached_property
    def compared(self) -> TuneResult:
        """The final comparison over all nodes as a result of `tune`: its tables and intervals."""
        return TuneResult(self.view)

    @property
    def verdict(self) -> Verdict:
        """What may be said of the run; all that is claimed, printed and exported follows from it."""
        return self.compared.verdict

    @property
    def speedup(self) -> ConfidenceInterval | None:
        """Weighted geometric mean over the workloads, of the fastest over the baseline; None without a comparison."""
        return self.compared.speedup

    @property
    def is_gain(self) -> bool:
        """Whether a speedup may be claimed; else the baseline is the result."""
        return self.compared.is_gain

    @property
    def workloads(self) -> tuple[WorkloadResult, ...]:
        """The final table; a workload's own best may belong to another node than the winner."""
        return self.compared.workloads

    @property
    def own_best_elsewhere(self) -> Mapping[str, int]:
        """By workload the node of its own best, where that is surely faster than the baseline and the fastest node.

        Sure is what an interval says that is wide enough for all finalists on all workloads together.
        """
        comparison, fastest = self.view.comparison, self.fastest
        if comparison is None or fastest is None or not comparison.nodes:
            return {}
        beaten = [0, *(place for place in self._standing(comparison) if comparison.nodes[place] == fastest.index)]
        found = {}
        for name, best in self.view.winner_per_workload.items():
            place = comparison.candidate_ids.index(best.candidate_id, 1)
            if place not in beaten and all(self._is_faster(place, name, against=each) for each in beaten):
                found[name] = comparison.nodes[place]
        return found

    def _standing(self, comparison: FinalistsCompared) -> list[int]:
        """The places of the finalists that were not rejected; place 0 is the baseline."""
        ids = comparison.candidate_ids
        return [place for place in range(1, len(ids)) if ids[place] not in comparison.rejected]

    def _is_faster(self, place: int, workload: str, *, against: int) -> bool:
        """Whether one finalist is surely faster than another on a workload."""
        verdicts = workload_verdicts(self.view, place, against=against)
        return any(each.workload == workload and each.finding == "faster" for each in verdicts)

    @cached_property
    def fastest(self) -> Node | None:
        """The node of the finalist that the verdict is about.

        Without a comparison the best of the search; None: nothing passed.
        """
        comparison = self.view.comparison
        if comparison is not None and self.verdict.place:
            return self.tree[comparison.nodes[self.verdict.place]]
        return self.tree.best

    @property
    def partial(self) -> PartialGain | None:
        """Where there is no gain over all workloads: what is surely faster on some of them."""
        return self.compared.partial

    @property
    def winner(self) -> Node | None:
        """The node to use on all workloads; None: keep the baseline, because no gain over all of them was shown."""
        return self.fastest if self.is_gain else None

    @property
    def used(self) -> Node | None:
        """The node to use, on all workloads or on those of `partial`; None: the baseline everywhere."""
        return self.fastest if self.is_gain or self.partial is not None else None

    @property
    def best_config(self) -> Config | None:
        """The fastest finalist's config; without a comparison the best of the search."""
        if self.compared.leader is not None:
            return self.compared.best_config
        best = self.fastest
        return Config(best.best_config) if best is not None and best.best_config else None

    def place_of(self, index: int) -> Path:
        """Where the run folder of one node is, if it has one.

        Raises:
            StoreError: there is no such node, or the run is not in a folder.
        """
        if self.folder is None or not 0 <= index < len(self.tree):
            raise StoreError(f"there is no node {index}", hint=f"nodes are numbered 0 to {len(self.tree) - 1}")
        return self.folder / NODES_FOLDER / f"{index:03d}"

    def node_folder(self, index: int) -> Path:
        """The run folder of one node.

        Raises:
            StoreError: it has none, because it was never built, or it is missing, or the run is not in a folder.
        """
        path = self.place_of(index)
        if not path.is_dir():
            if self.tree[index].has_run:
                raise StoreError(
                    f"{path} is missing: node {index} was built, and its measurements were kept there",
                    hint="restore it from a copy of the run; whoever copies a run copies nodes/ with it",
                )
            raise StoreError(f"node {index} has no run: {self._why_no_run(self.tree[index])}")
        return path

    @staticmethod
    def _why_no_run(node: Node) -> str:
        if node.failure is not None:
            return f"{node.status}: {node.failure.message}"
        return "it is the baseline, which has nothing to tune" if node.parent is None else "it was never built"

    @property
    def winner_folder(self) -> Path:
        """The run folder of the node to use, on some workloads at least: what `export` writes out.

        Raises:
            StoreError: no node is shown to be faster than the baseline.
        """
        if self.used is None:
            raise StoreError(
                f"no node is shown to be faster than the baseline ({self.verdict.kind}), so there is nothing to "
                "export: keep the baseline",
                hint="the report shows what was tried; a longer --budget or more --rounds may show more",
            )
        return self.node_folder(self.used.index)

    def tuned(self, index: int) -> TuneResult:
        """The result of one node's own run, with its part of the whole run's comparison.

        A run that was killed may not have told its nodes, or have told them of an earlier comparison.

        Raises:
            StoreError: it has none.
        """
        own, whole = RunView.read(self.node_folder(index)), self.view.comparison
        return TuneResult(dataclasses.replace(own, comparison=of_node(whole, index) if whole is not None else None))

    def source(self, index: int) -> str:
        """A node's template, header and source.

        Raises:
            StoreError: it was refused before anything was written.
        """
        node = self.tree[index]
        if not node.source_blob or self.folder is None:
            raise StoreError(f"node {index} has no source: {node.failure.message if node.failure else 'none written'}")
        with RunFolder.open(self.folder, writable=False) as run:
            return run.blobs.get_text(node.source_blob)

    @cached_property
    def evaluated_count(self) -> int:
        """Evaluations of all nodes, as far as the run has recorded them."""
        return sum(node.tuning.evaluated_count for node in self.tree)

    @property
    def floor_fraction(self) -> float | None:
        """Which part of what the device allows the fastest reaches, or the baseline if nothing won; None: unknown."""
        floors, times_ms = recorded_floors(self.view.started), dict(self.view.baseline_ms)
        if self.is_gain and self.compared.leader is not None:
            times_ms = dict(self.compared.leader.medians_ms)
        return share_of_floor(floors, times_ms, self.view.weights)

    @cached_property
    def path(self) -> tuple[PathStep, ...]:
        """From the baseline to the fastest node; failed nodes that were repaired are left out."""
        fastest = self.fastest
        if fastest is None:
            return ()
        steps: list[PathStep] = []
        for node in self.tree.path(fastest.index):
            if not node.is_working:
                continue
            row, before = self._row(node), steps[-1].node if steps else None
            search_gain = self.tree.gain(node.index) if before is not None else None
            steps.append(
                PathStep(
                    node,
                    node.predicted_gain,
                    compared_interval(self.view, self._row(before), row) if before is not None else None,
                    search_gain,
                    compared_interval(self.view, 0, row) if before is not None else None,
                )
            )
        return tuple(steps)

    def step_interval(self, index: int) -> ConfidenceInterval | None:
        """A node over what it was made from, from interleaved rounds; None where one of the two was not compared."""
        before = self.tree.ancestor(index)
        if before is None:
            return None
        return compared_interval(self.view, self.compared_row(before), self._row(self.tree[index]))

    def compared_row(self, node: Node | None) -> int | None:
        """The row of a node's best finalist in the comparison, 0 for the baseline; None where it had none."""
        if node is not None and node.parent is None and self.view.comparison is not None:
            return self._row(node) or 0
        return self._row(node)

    def compared_config(self, index: int) -> Config | None:
        """A node's best finalist; None where it had none."""
        row, comparison = self._row(self.tree[index]), self.view.comparison
        return Config(comparison.configs[row]) if row and comparison is not None else None

    def _row(self, node: Node | None) -> int | None:
        """The row of the node's best finalist in the comparison; 0 is the baseline."""
        comparison = self.view.comparison
        if comparison is None or node is None:
            return None
        places = [
            place
            for place, index in enumerate(comparison.nodes)
            if index == node.index and comparison.candidate_ids[place] not in comparison.rejected
        ]
        return min(places, key=lambda place: self._ratio(comparison, place), default=None)

    def _ratio(self, comparison: FinalistsCompared, place: int) -> float:
        ratios = {
            name: statistics.median(rows[place]) / statistics.median(rows[0])
            for name, rows in comparison.samples_ms.items()
            if name in self.view.weights and rows[0] and len(rows) > place and rows[place]
        }
        if not ratios:
            return math.inf
        return weighted_geometric_mean(ratios, {name: self.view.weights[name] for name in ratios})


def is_optimize_run(view: RunView) -> bool:
    """Whether a run is one of `optimize`, with a tree of nodes."""
    return RECORD_KEY in view.started.settings


def tuned_run(folder: Path) -> Path:
    """Where the evaluations of a run are: the folder itself, or of a run of `optimize` that of its fastest node.

    Raises:
        StoreError: no run there, or a tree of which nothing was tuned.
    """
    view = RunView.read(folder)
    if not is_optimize_run(view):
        return folder
    result = OptimizeResult(view)
    if result.fastest is None:
        again = f"continue it with `kernelwright resume {shlex.quote(str(folder))}`"
        raise StoreError(f"nothing was measured in {folder}", hint=again)
    return result.node_folder(result.fastest.index)


def of_node(comparison: FinalistsCompared, index: int) -> FinalistsCompared | None:
    """The rows of the baseline and of one node's finalists; None when it has none."""
    places = [0, *(k for k, node in enumerate(comparison.nodes) if k > 0 and node == index)]
    if len(places) == 1:
        return None
    ids = tuple(comparison.candidate_ids[k] for k in places)
    return dataclasses.replace(
        comparison,
        candidate_ids=ids,
        configs=tuple(comparison.configs[k] for k in places),
        samples_ms={name: tuple(rows[k] for k in places) for name, rows in comparison.samples_ms.items()},
        rejected={each: why for each, why in comparison.rejected.items() if each in ids},
        nodes=(),
        finalist_count=len(comparison.candidate_ids) - 1,
    )
