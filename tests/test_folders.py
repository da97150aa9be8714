"""What a stranger can rely on in the layout: small folders, and a package that stands without what measures it."""

import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_FILES = 15


def test_no_folder_holds_more_files_than_one_can_look_over() -> None:
    counts = Counter(file.parent.relative_to(ROOT) for file in (ROOT / "src").rglob("*.py"))
    assert {str(folder): count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_every_folder_says_in_one_sentence_what_it_holds() -> None:
    examples = ROOT / "src" / "kernelwright" / "examples"
    folders = {file.parent for file in (ROOT / "src").rglob("*.py") if examples not in file.parent.parents}
    silent = [folder for folder in folders if not (folder / "__init__.py").read_text().startswith('"""')]
    assert silent == []


def test_a_wheel_has_the_package_alone() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = [".".join(file.parent.relative_to(ROOT / "src").parts) for file in (ROOT / "src").rglob("__init__.py")]
    chosen = {name for name in packages if any(fnmatch(name, pattern) for pattern in patterns)}
    assert chosen == {name for name in packages if name.split(".")[0] == "kernelwright"}
