"""The page over all problems of a batch, of the same look as the page of one run."""

from __future__ import annotations

from pathlib import Path

from kernelwright.batch.view import BatchView, MemberView
from kernelwright.evaluate.words import interval_text
from kernelwright.insights.forecast import percent_text
from kernelwright.insights.verdict_words import tree_verdict_text
from kernelwright.report.html.writing import render_page, write_page
from kernelwright.report.stats import duration


def write_batch_report(view: BatchView, out: Path) -> Path:
    """Write the page and return its path; it links to the runs' own pages beside it.

    Raises:
        StoreError: the file cannot be written.
    """
    total = view.speedup
    ordered = sorted(view.members, key=lambda each: (-each.share, each.name))
    context = {
        "name": view.folder.resolve().name,
        "created": view.batch.created,
        "profile": view.batch.profile,
        "budget": duration(view.batch.budget_s),
        "spent": duration(view.spent_s),
        "total": interval_text(total, times="×") if total is not None else "",
        "confidence": f"{total.confidence:.0%}" if total is not None else "",
        "members": [_row(each, out) for each in ordered],
    }
    return write_page(render_page("batch.html.j2", context), out)


def _row(member: MemberView, out: Path) -> dict[str, object]:
    page = member.folder / "report.html"
    is_open = member.status in ("waiting", "open")
    device = member.result.view.started.device.get("name") if member.result is not None else None
    return {
        "name": member.name,
        "page": page.relative_to(out.parent).as_posix() if page.is_file() and page.is_relative_to(out.parent) else "",
        "share": percent_text(member.share),
        "left": percent_text(member.share * member.left),
        "status": member.status,
        "slices": len(member.slices),
        "spent": duration(member.spent_s),
        "speedup": interval_text(member.speedup, times="×") if member.speedup is not None else "–",
        "still": percent_text(member.still) if is_open else "–",
        "device": str(device or ""),
        "words": member.failure or (tree_verdict_text(member.result) if member.result is not None else "not begun"),
    }
