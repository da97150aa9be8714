"""What `scripts/count_house` counts, on a small checkout whose figures are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "count_house"
FILES = {
    "README.md": "# Title\n\nOne two three four. Five six seven!\n\n```\nnot counted as a sentence here\n```\n",
    "CONTRIBUTING.md": "- A first `inline code here` item of six.\n- A [second one](docs/page.md) is here.\n\n"
    "| a table | is none |\n",
    "docs/design/page.md": "Label.\n\n1. A number begins this sentence, which\n   goes on.\n",
    "src/kernelwright/__init__.py": "",
    "src/kernelwright/one/__init__.py": "",
    "src/kernelwright/one/x.py": "import kernelwright.one.y\nclass Same: ...\nclass _Hidden: ...\n",
    "src/kernelwright/one/y.py": "from kernelwright.two import z\n",
    "src/kernelwright/two/__init__.py": "",
    "src/kernelwright/two/z.py": "from kernelwright.one import x\nclass Same:\n    class Inner: ...\n",
    "src/kernelwright/two/alone.py": "from kernelwright.two import z\n",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    done = run("--root", str(tmp_path))
    assert done.returncode == 2
    assert f"{str(tmp_path)!r} is no checkout" in done.stderr


def test_every_figure_of_a_small_checkout(checkout: Path) -> None:
    done = run("--root", str(checkout), "--json")
    assert json.loads(done.stdout) == {
        "lines_of_code": 8,
        "files": 7,
        "most_files_in_a_folder": 3,
        "folder_with_most_files": "src/kernelwright/one",
        "folders_above_15_files": 0,
        "public_classes": 3,
        "types_on_the_way_of_a_configuration": [],
        "duplicate_class_names": ["Same"],
        "import_circles": [["kernelwright.one.x", "kernelwright.one.y", "kernelwright.two.z"]],
        "words_of_docs": sum(len(text.split()) for name, text in FILES.items() if name.endswith(".md")),
        "words_of_readme": 17,
        "sentences_of_docs": 5,
        "median_sentence_words": 5,
        "sentence_words_90th_percentile": pytest.approx(8, abs=1.5),
        "sentences_above_20_words": 0,
    }


def test_each_figure_is_one_line(checkout: Path) -> None:
    lines = run("--root", str(checkout)).stdout.splitlines()
    assert "public classes: 3" in lines
    assert "duplicate class names: 1 (Same)" in lines
    assert "import circles: 1 (kernelwright.one.x - kernelwright.one.y - kernelwright.two.z)" in lines
    assert len(lines) == 15
