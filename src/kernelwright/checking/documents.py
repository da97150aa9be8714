"""What a check found, for people's CI: JSON, JUnit's XML, an exit status."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

from kernelwright.checking.check import CheckedChoice
from kernelwright.export.summary import interval_record

FORMAT = 1


def exit_status(found: Sequence[CheckedChoice]) -> int:
    """0: all hold, or better is known; 1: one is slower or wrong; 2: one could not be checked."""
    kinds = {each.kind for each in found}
    if "not checked" in kinds:
        return 2
    return 1 if kinds & {"slower", "wrong"} else 0


def check_record(found: Sequence[CheckedChoice]) -> dict[str, Any]:
    """All of it as data; speedups are over the baseline."""
    return {
        "format": FORMAT,
        "status": exit_status(found),
        "choices": [
            {
                "kernel": each.kernel,
                "folder": str(each.folder),
                "kind": each.kind,
                "words": each.words,
                "device": each.device,
                "workloads": {
                    name: {"speedup": interval_record(now), "recorded": interval_record(each.recorded.get(name))}
                    for name, now in each.speedups.items()
                },
                "seconds": round(each.seconds, 3),
            }
            for each in found
        ],
    }


def junit_text(found: Sequence[CheckedChoice]) -> str:
    """One test case a kernel: slower and wrong fail, what could not be checked is an error."""
    failed = [each for each in found if each.kind in ("slower", "wrong")]
    errors = [each for each in found if each.kind == "not checked"]
    suite = ElementTree.Element(
        "testsuite",
        name="kernelwright check",
        tests=str(len(found)),
        failures=str(len(failed)),
        errors=str(len(errors)),
        time=f"{sum(each.seconds for each in found):.3f}",
    )
    for each in found:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_clean(str(each.folder)), name=_clean(each.kernel), time=f"{each.seconds:.3f}"
        )
        words = _clean(each.words)
        if each in failed:
            ElementTree.SubElement(case, "failure", type=each.kind, message=words)
        elif each in errors:
            ElementTree.SubElement(case, "error", type=each.kind, message=words)
        else:
            ElementTree.SubElement(case, "system-out").text = f"{each.kind}: {words}"
    ElementTree.indent(suite)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(suite, encoding='unicode')}\n"


def _clean(text: str) -> str:
    """Without characters that XML cannot hold."""
    return re.sub("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text)
