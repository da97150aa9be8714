"""The wheel that a user installs: all of the package, its examples among it, and nothing else."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from kernelwright.examples import FOLDER, example_names

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the project's backend from a copy of the checkout, as a fresh clone is; skipped where it is missing."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("pip is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    leavings = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info")
    shutil.copytree(ROOT, checkout, ignore=leavings)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--wheel-dir", folder, checkout], capture_output=True, text=True, check=False, timeout=600
    )
    if "Could not find a version that satisfies the requirement setuptools" in done.stderr:
        pytest.skip("the build's backend cannot be downloaded here")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


def test_nothing_but_the_package_is_in_it(names: list[PurePosixPath]) -> None:
    top = {name.parts[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"kernelwright"}
    folders = {part for name in names for part in name.parts[:-1]}
    assert folders & {"tests", "benchmarks", "docs", "__pycache__"} == set()


def test_every_file_of_the_package_is_in_it_and_no_other(names: list[PurePosixPath]) -> None:
    source = ROOT / "src"
    package = {path.relative_to(source).as_posix() for path in (source / "kernelwright").rglob("*") if path.is_file()}
    package = {name for name in package if "__pycache__" not in name}
    assert {str(name) for name in names if name.parts[0] == "kernelwright"} == package


def test_kernels_of_the_examples_are_in_it_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name) for name in archive.namelist()}
    kernels = sorted(FOLDER.rglob("*.c[lu]"))
    assert len(kernels) == 2 * len(example_names())
    for file in kernels:
        own = file.relative_to(FOLDER.parents[1]).as_posix()
        assert [name for name, text in texts.items() if text == file.read_bytes()] == [own]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files alone, unpacked; what it depends on is what runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_installed(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); import kernelwright; "
    program += f"assert kernelwright.__file__.startswith({str(installed)!r}); "
    program += "from kernelwright.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


def test_examples_are_written_out_by_what_is_installed(installed: Path, tmp_path: Path) -> None:
    done = run_installed(installed, tmp_path, "init", "--example", "matmul")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "matmul" / "problem.toml").is_file()
    done = run_installed(installed, tmp_path, "analyse", "matmul/baseline.cl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "contraction" in done.stdout


def test_no_message_points_to_a_checkout(installed: Path) -> None:
    """Nothing that a person may read names a folder that only a checkout has: no text, and no help of a command."""
    found = []
    for file in (installed / "kernelwright").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        is_help = file.parent.name == "cli"
        quiet = set() if is_help else {id(each) for each in docstrings(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet:
                hits = re.findall(r"\b(?:examples|scripts|benchmarks|tests|docs)/\w+|\bcheckout\b", node.value)
                found += [f"{file.name}:{node.lineno}: {hit}" for hit in hits]
    assert found == []


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts that stand for themselves: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
