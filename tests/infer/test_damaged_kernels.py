"""Kernels with tokens lost, doubled or exchanged: inferred or refused in words, never with a traceback."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import pytest
from kernel_truths import FOLDER

from kernelwright.errors import KernelwrightError
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.problem_files import files_of
from kernelwright.infer.words import read_words

FILES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".cl", ".cu", ".hip"))
INSERTED = ("-", "*", "%", "0", "n", "(", ")", "{", "}", ";", "1", "/", "in", "<<<", ">>>", "?", ":")
DAMAGES = 12


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_damaged_kernel_is_no_traceback(file: Path, tmp_path: Path) -> None:
    rng = random.Random(file.name)
    whole = re.findall(r"\w+|\s+|[^\w\s]", file.read_text())
    entry = "partial_sums" if file.stem == "two_step_sum" else None
    for _ in range(DAMAGES):
        tokens = list(whole)
        for _ in range(rng.choice((1, 2, 4))):
            at = rng.randrange(len(tokens))
            tokens[at : at + 1] = rng.choice(([], [rng.choice(whole)], [tokens[at], rng.choice(INSERTED)]))
        damaged = tmp_path / file.name
        damaged.write_text("".join(tokens))
        with contextlib.suppress(KernelwrightError):
            found = infer(damaged, Given(read_words(()), entry, asks=rng.random() < 0.5))
            assert found.array_bytes >= 0
            files_of(found)
