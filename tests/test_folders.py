"""What a stranger can rely on in the layout: small folders, and a package that stands without what measures it."""

import re
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


def test_the_architecture_page_has_every_package_in_the_order_of_the_import_rules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (rules,) = [each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    layers = [[name.strip() for name in re.split(r"[|:]", line)] for line in rules["layers"]]
    page = (ROOT / "docs/architecture.md").read_text()
    drawn = page.partition("## Who may import whom")[2].split("```")[1].strip().splitlines()
    told = [re.split(r" \| |, ", re.split(r"  +", line)[0]) for line in drawn]
    assert [set(line) - {"version"} for line in layers] == [set(line) for line in told]
    folders = {folder.name for folder in (ROOT / "src" / "kernelwright").iterdir() if (folder / "__init__.py").exists()}
    assert folders == {name for line in told for name in line if (ROOT / "src" / "kernelwright" / name).is_dir()} | {
        "testing"
    }
