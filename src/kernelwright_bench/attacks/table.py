"""A run of the corpus as tables for a person, and as a document."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kernelwright.version import VERSION
from kernelwright_bench.attacks.corpus import CorpusResult, Judged, one_line


def markdown(result: CorpusResult) -> str:
    """Attacks by family, honest kernels by family, and every one with which the evaluator was wrong."""
    attacks = [each for each in result.judged if not each.is_honest]
    honest = [each for each in result.judged if each.is_honest]
    parts = [f"Seed {result.seed}, {result.device.name}, Kernelwright {VERSION}"]
    if attacks:
        parts.append(_attack_table(attacks))
    if honest:
        parts.append(_honest_table(honest))
    parts.append(summary(result))
    if result.wrong:
        parts.append("\n".join(f"- {one_line(each)}. {each.verdict.message}".rstrip() for each in result.wrong))
    return "\n\n".join(parts)


def summary(result: CorpusResult) -> str:
    """One sentence of each corpus."""
    attacks = Counter(each.verdict.fate for each in result.judged if not each.is_honest)
    honest = [each for each in result.judged if each.is_honest]
    refused = sum(not each.is_right for each in honest)
    costs = (
        f" Each took {_median(each.verdict.search_s for each in honest)} s in the search "
        f"and {_median(each.verdict.finals_s for each in honest)} s as a finalist (medians)."
        if honest
        else ""
    )
    return (
        f"{sum(attacks.values())} attacks: {attacks['claimed']} claimed, {attacks['stopped']} stopped, "
        f"{attacks['harmless']} harmless (accepted, and no faster), {attacks['broke']} ended the evaluator.\n"
        f"{len(honest)} honest kernels: {refused} refused.{costs}"
    )


def _attack_table(attacks: Sequence[Judged]) -> str:
    lines = [
        "| family | kind | drawn | stopped at | harmless | claimed | broke | refused from a model |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, group in _by_family(attacks).items():
        fates = Counter(each.verdict.fate for each in group)
        places = Counter(
            f"{each.verdict.stage} ({each.verdict.reason})" for each in group if each.verdict.fate == "stopped"
        )
        where = ", ".join(f"{count} {place}" for place, count in places.most_common()) or "-"
        fenced = sum(bool(each.verdict.fence) for each in group)
        numbers = (fates["harmless"], fates["claimed"], fates["broke"], fenced)
        lines.append(f"| {name} | {group[0].kind} | {len(group)} | {where} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def _honest_table(honest: Sequence[Judged]) -> str:
    lines = ["| honest family | drawn | refused | search, s | finals, s |", "|---|---|---|---|---|"]
    for name, group in _by_family(honest).items():
        refused = sum(not each.is_right for each in group)
        search, finals = (_median(getattr(each.verdict, key) for each in group) for key in ("search_s", "finals_s"))
        lines.append(f"| {name} | {len(group)} | {refused} | {search} | {finals} |")
    return "\n".join(lines)


def _by_family(judged: Sequence[Judged]) -> Mapping[str, list[Judged]]:
    groups: dict[str, list[Judged]] = {}
    for each in judged:
        groups.setdefault(each.sample.family, []).append(each)
    return groups


def _median(values: Any) -> str:
    return f"{statistics.median(values):.1f}"


def document(result: CorpusResult) -> dict[str, Any]:
    """Everything, with sources, for a file."""
    return {
        "kernelwright": VERSION,
        "seed": result.seed,
        "dialect": result.dialect,
        "device": asdict(result.device),
        "claimed": sum(each.verdict.fate == "claimed" for each in result.judged if not each.is_honest),
        "broke": sum(each.verdict.fate == "broke" for each in result.judged),
        "refused": sum(not each.is_right for each in result.judged if each.is_honest),
        "kernels": [
            {
                "kind": each.kind,
                "family": each.sample.family,
                "problem": each.sample.base,
                "what": each.sample.what,
                "is_right": each.is_right,
                **asdict(each.verdict),
                "source": each.sample.source,
            }
            for each in result.judged
        ],
    }
