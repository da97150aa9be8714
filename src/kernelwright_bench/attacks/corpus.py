"""All families, drawing from them, and one run of the corpus on a device.

```
plan = CorpusPlan(attack_count=150, honest_count=60, seed=7)
result = run_corpus(plan, device, "opencl", scratch, tell=print)
```
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import MissingDependency, UsageError
from kernelwright.tuning.machine import LocalMachine
from kernelwright_bench.attacks.kernels import cuda_only, honest, lazy, modest, numbers, outputs, process, state, text
from kernelwright_bench.attacks.kernels.bases import BASES
from kernelwright_bench.attacks.kernels.model import Dialect, Family, Sample
from kernelwright_bench.attacks.trial import Trial, Verdict


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """What is drawn."""

    attack_count: int = 150
    honest_count: int = 60
    seed: int | None = None
    """None: drawn, so that nobody knows the corpus before."""
    families: tuple[str, ...] = ()
    """Parts of names; empty: all."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One kernel and what came of it."""

    sample: Sample
    kind: str
    verdict: Verdict

    @property
    def is_honest(self) -> bool:
        """Whether it is one that must be accepted."""
        return self.kind == "honest"

    @property
    def is_right(self) -> bool:
        """Whether the evaluator did what it should: no attack claimed, no honest kernel refused, nothing broken."""
        if self.is_honest:
            return self.verdict.fate in ("claimed", "harmless")
        return self.verdict.fate in ("stopped", "harmless")


@dataclass(frozen=True, slots=True)
class CorpusResult:
    """A run of the corpus."""

    seed: int
    dialect: Dialect
    device: DeviceInfo
    judged: tuple[Judged, ...]

    @property
    def wrong(self) -> tuple[Judged, ...]:
        """Those with which the evaluator did what it must not."""
        return tuple(each for each in self.judged if not each.is_right)


def all_families(dialect: Dialect) -> tuple[Family, ...]:
    """Attacks first, then honest kernels."""
    modules = (state, modest, outputs, lazy, numbers, process, text, cuda_only, honest)
    return tuple(family for module in modules for family in module.families() if dialect in family.dialects)


def choose_families(dialect: Dialect, words: Sequence[str]) -> tuple[Family, ...]:
    """Those whose name holds one of the words; all without words.

    Raises:
        UsageError: a word that no family has.
    """
    known = all_families(dialect)
    for word in words:
        if not any(word in family.name for family in known):
            names = ", ".join(family.name for family in known)
            raise UsageError(f"--families {word!r} is in no family's name", hint=f"there are {names}")
    return tuple(family for family in known if not words or any(word in family.name for word in words))


def draw(families: Sequence[Family], count: int, seed: int, dialect: Dialect) -> list[tuple[Family, Sample]]:
    """So many kernels, the families in turn; each from its own generator, so that a part can be drawn again."""
    drawn = []
    for index in range(count if families else 0):
        family = families[index % len(families)]
        rng = random.Random(f"{seed}/{dialect}/{family.name}/{index // len(families)}")
        drawn.append((family, family.draw(rng, dialect)))
    return drawn


def find_device(selector: str | None) -> tuple[DeviceInfo, Dialect]:
    """The device that a selector names, else an NVIDIA GPU, else an OpenCL device.

    Raises:
        UsageError: no device fits.
        MissingDependency: nothing here runs kernels.
    """
    try:
        return LocalMachine().device(selector, "cuda"), "cuda"
    except (MissingDependency, UsageError):
        return LocalMachine().device(selector, "opencl"), "opencl"


def run_corpus(
    plan: CorpusPlan,
    device: DeviceInfo,
    dialect: Dialect,
    scratch: Path,
    *,
    tell: Callable[[str], None] = lambda _: None,
    keep: Callable[[CorpusResult], None] = lambda _: None,
) -> CorpusResult:
    """Judge everything that the plan draws, one base problem after the other; `keep` is given all so far each time."""
    seed = secrets.randbelow(1 << 32) if plan.seed is None else plan.seed
    tell(f"seed {seed} on {device.id} ({device.name})")
    families = choose_families(dialect, plan.families)
    attacks = draw([each for each in families if each.kind != "honest"], plan.attack_count, seed, dialect)
    honest_ones = draw([each for each in families if each.kind == "honest"], plan.honest_count, seed, dialect)
    judged: list[Judged] = []
    drawn = [*honest_ones, *attacks]
    for base in BASES.values():
        chosen = [each for each in drawn if each[1].base == base.name]
        if not chosen:
            continue
        with Trial(base, dialect, device, scratch / base.name) as trial:
            for family, sample in chosen:
                verdict = trial.judge(sample)
                if family.kind == "honest" and verdict.reason == "crash":  # it may have died of something else
                    tell(f"a second look at {sample.family} ({sample.base}): {verdict.message}")
                    verdict = trial.judge(sample)
                judged.append(Judged(sample, family.kind, verdict))
                tell(f"[{len(judged)}/{len(drawn)}] {one_line(judged[-1])}")
                keep(CorpusResult(seed, dialect, device, tuple(judged)))
    return CorpusResult(seed, dialect, device, tuple(judged))


def one_line(judged: Judged) -> str:
    """What came of one kernel, in a line."""
    verdict, sample = judged.verdict, judged.sample
    fate = "accepted" if judged.is_honest and judged.is_right else verdict.fate
    where = f" at {verdict.stage}: {verdict.reason}" if verdict.stage else ""
    faster = "" if verdict.speedup is None else f", {verdict.speedup.estimate:.2f}x"
    return f"{fate}{where}{faster}  {sample.family} ({sample.base}): {sample.what}"
