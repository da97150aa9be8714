"""Every plain kernel that the tests have is inferred, asked about in words, or refused; what `init` writes loads."""

from __future__ import annotations

from pathlib import Path

import plain_kernels
import pytest
from plain_kernel_case import Case

from kernelwright.errors import SpecError
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of
from kernelwright.infer.words import read_words
from kernelwright.infer.work import MOST_BYTES
from kernelwright.scaffold.signature import read_kernels
from kernelwright.source.language import LANGUAGE_OF_SUFFIX

SUFFIX = {"opencl": ".cl", "cuda": ".cu", "hip": ".hip"}
REFUSALS = ("already has a template", "by value: ", "writes to none of its arguments", "is a template", "no dtype")


def inferred(file: Path, given: Given) -> Inferred | SpecError:
    """What is inferred, or why a kernel is refused."""
    try:
        return infer(file, given)
    except SpecError as error:
        return error


@pytest.mark.parametrize("case", plain_kernels.CASES, ids=lambda case: case.name)
def test_a_kernel_in_other_peoples_style(case: Case, tmp_path: Path) -> None:
    file = tmp_path / f"{case.name}{SUFFIX[case.language]}"
    file.write_text(case.source)
    for kernel in read_kernels(case.source, LANGUAGE_OF_SUFFIX[file.suffix], file=file):
        for asks in (True, False):
            found = inferred(file, Given(read_words(()), kernel.name, asks=asks))
            if isinstance(found, SpecError):
                assert any(words in found.message for words in REFUSALS), found
                assert found.hint
                continue
            if asks:
                assert all("=" in each.word or each.word.startswith("--") for each in found.questions)
                continue
            assert found.questions == ()
            assert found.array_bytes <= MOST_BYTES or not found.guessed_sizes
            files, _ = files_of(found)
            check_loads(file, kernel.name, files)
