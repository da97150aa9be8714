"""The table of a KernelBench run: each problem, shares that are correct and faster, geometric means, disagreements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernelwright.evaluate.statistics import ConfidenceInterval, combined_interval

THRESHOLDS = (0.8, 1.0, 1.5, 2.0)
"""KernelBench's fast_p: the share of all problems that are correct and more than p times as fast."""
OTHERS = ("eager", "compiled", "max-autotune")

Record = Mapping[str, Any]


def document(records: Sequence[Record], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as JSON: `settings`, `summary`, and `problems` with their disagreements."""
    problems = [{**each, "correct": is_correct(each), "disagreements": disagreements(each)} for each in records]
    return {"settings": dict(settings), "summary": summary(records), "problems": problems}


def is_correct(record: Record) -> bool:
    """Whether there is an answer that agrees with eager PyTorch; the referee judged it before, on inputs of its own."""
    found = record.get("compared")
    return found is not None and not found["differs"]


def is_degenerate(record: Record) -> bool:
    """Whether a wrong answer could pass, too."""
    return any(note.startswith("degenerate") for note in record.get("compared", {}).get("notes", ()))


def interval(record: Record, other: str) -> ConfidenceInterval | None:
    """How many times as fast the answer is as another; None: one of the two was not timed."""
    row = record.get("compared", {}).get("rows", {}).get(other, {})
    if "low" not in row:
        return None
    return ConfidenceInterval(row["answer_speedup"], row["low"], row["high"], 0.95)


def official_ratio(record: Record) -> float | None:
    """The official evaluator's own ratio to eager; None: it gave none."""
    found = record.get("official", {})
    own, reference = found.get("runtime"), found.get("ref_runtime")
    return reference / own if own and reference else None


def disagreements(record: Record) -> list[str]:
    """Where the official evaluator says something else than we do."""
    official = record.get("official", {})
    if not official.get("is_asked"):
        return []
    if "error" in official:
        return [f"the official evaluator gave no verdict: {official['error']}"]
    found = []
    if official["is_correct"] != is_correct(record):
        said = "correct" if official["is_correct"] else "wrong" if official["compiled"] else "not compiled"
        found.append(f"the official evaluator says {said}: {_metadata(official)}")
    if not official["static"]["is_valid"]:
        found.append(f"its static checker refuses: {'; '.join(official['static']['errors'])}")
    ratio, ours = official_ratio(record), interval(record, "eager")
    if ratio is not None and ours is not None and not ours.low <= ratio <= ours.high:
        found.append(f"its ratio {ratio:.3g} is outside of [{ours.low:.3g}, {ours.high:.3g}]")
    if official["is_excessive"]:
        found.append("it marks the speedup as excessive")
    return found


def _metadata(official: Record) -> str:
    told = [f"{name}: {value}" for name, value in official["metadata"].items() if name not in ("hardware", "device")]
    return "; ".join(told) or "without a reason"


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Counts, fast_p and geometric means; with and without degenerate problems, and those that algebra rewrote."""
    own = [each for each in records if not each.get("algebra")]
    sound = [each for each in records if not is_degenerate(each)]
    asked = [each["official"] for each in records if each.get("official", {}).get("is_asked")]
    return {
        "problems": len(records),
        "correct": sum(map(is_correct, records)),
        "degenerate": len(records) - len(sound),
        "all": _figures(records),
        "without_degenerate": _figures(sound),
        "without_algebra": _figures(own),
        "official": {
            "asked": len(asked),
            "correct": sum(bool(each.get("is_correct")) for each in asked),
            "fast_p": {f"{p:g}": _share(records, p, _official_speed) for p in THRESHOLDS},
        },
    }


def _official_speed(record: Record) -> float | None:
    return official_ratio(record) if record.get("official", {}).get("is_correct") else None


def _figures(records: Sequence[Record]) -> dict[str, Any]:
    found: dict[str, Any] = {"problems": len(records)}
    for other in OTHERS:
        parts = [part for each in records if is_correct(each) and (part := interval(each, other)) is not None]
        if not parts:
            continue
        mean = combined_interval(parts, weights=[1.0] * len(parts))
        found[other] = {
            "measured": len(parts),
            "geometric_mean": {"estimate": mean.estimate, "low": mean.low, "high": mean.high},
            "fast_p": {f"{p:g}": _share(records, p, lambda each, other=other: _speed(each, other)) for p in THRESHOLDS},
        }
    return found


def _speed(record: Record, other: str) -> float | None:
    found = interval(record, other)
    return found.estimate if found is not None and is_correct(record) else None


def _share(records: Sequence[Record], threshold: float, speed: Any) -> float:
    """Of all problems, those without an answer too."""
    fast = sum((found := speed(each)) is not None and found > threshold for each in records)
    return fast / len(records) if records else 0.0


# As text


def markdown(records: Sequence[Record], settings: Mapping[str, Any]) -> str:
    """The table, the figures below it, and each disagreement."""
    heads = ["problem", "kernels", "correct", "answer ms", *(f"to {each}" for each in OTHERS), "official", "remarks"]
    rows = [_row(each) for each in records]
    lines = [", ".join(f"{name}: {value}" for name, value in settings.items()), ""]
    lines += [_line(heads), _line(["---"] * len(heads)), *map(_line, rows), ""]
    told = summary(records)
    lines.append(f"{told['correct']} of {told['problems']} correct; {told['degenerate']} degenerate.")
    titles = {"All": "all", "Without degenerate ones": "without_degenerate"}
    if any(each.get("algebra") for each in records):
        titles["Without those that exact algebra changed"] = "without_algebra"
    for title, key in titles.items():
        lines += [f"- {title}, {text}" for text in [*_sentences(told[key])] or ["nothing was timed"]]
    if told["official"]["asked"]:
        shares = ", ".join(f"fast_{p} {share:.0%}" for p, share in told["official"]["fast_p"].items())
        lines.append(f"- Official evaluator: {told['official']['correct']} of {told['official']['asked']}; {shares}")
    lines += [f"- Disagreement on {each['name']}: {text}" for each in records for text in disagreements(each)]
    return "\n".join(lines) + "\n"


def _sentences(figures: Mapping[str, Any]) -> Iterable[str]:
    for other in OTHERS:
        if other in figures:
            mean = figures[other]["geometric_mean"]
            shares = ", ".join(f"fast_{p} {share:.0%}" for p, share in figures[other]["fast_p"].items())
            yield (
                f"to {other}: {mean['estimate']:.3g}x [{mean['low']:.3g}, {mean['high']:.3g}] in the geometric mean "
                f"of {figures[other]['measured']}; {shares}"
            )


def _row(record: Record) -> list[str]:
    compared = record.get("compared", {})
    median = compared.get("rows", {}).get("answer", {}).get("median_ms")
    return [
        str(record["name"]),
        str(record.get("kernels", "")),
        "yes" if is_correct(record) else "no",
        f"{median:.4g}" if median is not None else "",
        *(_interval_text(interval(record, other)) for other in OTHERS),
        _official_text(record),
        "; ".join(_remarks(record)),
    ]


def _remarks(record: Record) -> Iterable[str]:
    compared = record.get("compared", {})
    if record["why"]:
        yield f"{record['stage']}: {record['why']}"
    if record.get("is_unsearched"):
        yield "the first steps of rules, not searched"
    elif record.get("is_plain"):
        yield "the plain program"
    elif not record.get("is_compared", True):
        yield "the fastest of a search that had no time to compare"
    if "rules_failed" in record:
        yield f"rules failed: {record['rules_failed']}"
    if compared.get("differs"):
        yield str(compared["differs"])
    yield from (f"exact algebra, {label}" for label in record.get("algebra", ()))
    yield from compared.get("notes", ())
    yield from (f"{name} was not measured: {why}" for name, why in compared.get("refused", {}).items())


def _official_text(record: Record) -> str:
    official = record.get("official", {})
    if not official.get("is_asked"):
        return f"not asked: {official['why']}" if "why" in official else ""
    if "error" in official:
        return "no verdict"
    ratio = official_ratio(record)
    told = "correct" if official["is_correct"] else "wrong" if official["compiled"] else "not compiled"
    return f"{told}, {ratio:.3g}x" if ratio is not None else told


def _interval_text(found: ConfidenceInterval | None) -> str:
    return f"{found.estimate:.3g}x [{found.low:.3g}, {found.high:.3g}]" if found is not None else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(each.replace("|", "\\|").split()) for each in cells) + " |"
