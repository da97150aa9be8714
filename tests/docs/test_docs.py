"""Documentation that says what the code does."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import kernelwright
from kernelwright.cli.main import app
from kernelwright.evaluate.data import datasets
from kernelwright.export.run import FORMATS
from kernelwright.problem.checks import DEVICE_NAMES
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.syntax import ARITY
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem, Role
from kernelwright.problem.outcome import STAGES
from kernelwright.search.registry import SEARCHERS, check_options
from kernelwright.store.event import Event
from kernelwright.template.header import parse_header
from kernelwright.template.load import load_baseline, load_template
from kernelwright.tuning.settings import TuneSettings, parse_budget

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# -- links ---------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The ids that a heading gets on the usual hosts."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    readme = text_of("README.md")
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"({page.relative_to(ROOT)})" in readme, page.name


@every_page
def test_nothing_is_left_to_fill_in(page: Path) -> None:
    assert not re.search(r"^[A-Z]{4,}$|TODO|TBD|FIXME", prose(page), re.MULTILINE)


def test_pages_are_short() -> None:
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES if page.name != "CHANGELOG.md"}
    assert words[ROOT / "README.md"] <= 800
    assert sum(words.values()) <= 25_000, "all pages together; figures go to docs/measurements"


# -- commands ------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command line that a page shows, in blocks and in running text."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^(?:\$ )?kernelwright ([a-z-].*)$", text, re.MULTILINE)
    lines += re.findall(r"`kernelwright ([a-z-][^`]*)`", prose(page))
    for line in lines:
        yield shlex.split(" ".join(line.split()), comments=True)


@every_page
def test_commands_exist_with_their_options(page: Path) -> None:
    for words in commands(page):
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        is_help = rest in (["--help"], [])
        assert is_help or rest[0].startswith("--") or not hasattr(command, "commands"), f"no such command: {words}"
        takes_value = {
            name: not getattr(parameter, "is_flag", False)
            for parameter in command.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        while rest:
            word = rest.pop(0)
            if not word.startswith("--") or word == "--help":
                continue
            assert word in takes_value, f"{word} in: {words}"
            if takes_value[word]:
                assert rest, f"{word} needs a value in: {words}"
                check_value(word, rest.pop(0))


def check_value(option: str, value: str) -> None:
    if value.isupper():  # a placeholder
        return
    match option:
        case "--budget":
            parse_budget(value)
        case "--searcher":
            assert value in SEARCHERS
        case "--format":
            assert value in FORMATS


def test_every_command_is_shown_somewhere() -> None:
    shown = {tuple(words[:2]) for page in PAGES for words in commands(page)}
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            for nested in command.commands:
                assert (name, nested) in shown
        else:
            assert any(words[:1] == (name,) for words in shown), name


# -- python --------------------------------------------------------------------------------------------


@every_page
def test_python_blocks_parse_and_use_what_is_there(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            match node:
                case ast.Attribute(value=ast.Name(id="kernelwright"), attr=name):
                    assert hasattr(kernelwright, name), name
                case ast.ImportFrom(module=str(module), names=names) if module.startswith("kernelwright"):
                    found = __import__(module, fromlist=["*"])
                    assert all(hasattr(found, each.name) for each in names), module
                case ast.Call(func=ast.Name(id="TuneSettings"), keywords=given):
                    assert {each.arg for each in given} <= {*TuneSettings.__dataclass_fields__}


def test_the_python_page_has_every_setting_with_its_default_and_every_public_function() -> None:
    page = text_of("docs/howto-python.md")
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    settings = TuneSettings()
    for name in TuneSettings.__dataclass_fields__:
        assert f"`{name}`" in table, name
    for name in ("seed", "precision", "seconds_per_measurement", "launch_timeout_s"):
        assert f"| `{name}` | {getattr(settings, name):g} |" in table, name
    assert f"| {settings.finalists}, {settings.comparison_rounds} |" in table
    functions = [name for name in kernelwright.__all__ if name.islower() and not name.startswith("_")]
    for name in functions:
        assert f"| `{name}(" in table, name


def test_the_searcher_of_the_searchers_page_keeps_the_contract() -> None:
    namespace: dict[str, Any] = {}
    own, test = blocks(ROOT / "docs/howto-searchers.md", "python")
    exec(compile(own + test, "howto-searchers.md", "exec"), namespace)
    promises = namespace["TestFirstFit"]()
    names = [name for name in dir(promises) if name.startswith("test_")]
    assert len(names) > 5
    for name in names:
        try:
            getattr(promises, name)()
        except pytest.skip.Exception:
            continue


# -- files ---------------------------------------------------------------------------------------------

HEAD = """name = "row_sum"
kernel = "row_sum.cl"
entry = "row_sum"
reference = "reference.py:row_sum"
"""
SECTIONS = {
    "arguments": """[arguments]
x = { role = "input", dtype = "float32", shape = ["rows", "cols"] }
sums = { role = "output", dtype = "float32", shape = ["rows"] }
""",
    "launch": '[launch]\ngrid = ["rows"]\nblock = [1]\n',
    "workloads": "[[workloads]]\nrows = 64\ncols = 1024\nn = 4096\n",
}


def load_fragment(folder: Path, fragment: str) -> Problem:
    """A problem with `fragment` in the place of its own sections of the same names."""
    rest = [text for name, text in SECTIONS.items() if name not in tomllib.loads(fragment)]
    (folder / "problem.toml").write_text("\n".join([HEAD, *rest, fragment]))
    (folder / "row_sum.cl").write_text("__kernel void row_sum(__global const float *x, __global float *sums) {}\n")
    (folder / "reference.py").write_text("def row_sum(x):\n    return x.sum(axis=1)\n")
    return load_problem(folder)


def test_the_problem_of_the_files_page_loads_as_it_stands(tmp_path: Path) -> None:
    page = ROOT / "docs/files.md"
    (tmp_path / "problem.toml").write_text(blocks(page, "toml")[0])
    (tmp_path / "row_sum.cl").write_text(blocks(page, "c")[0])
    (tmp_path / "baseline.cl").write_text(blocks(page, "opencl")[0])
    (tmp_path / "reference.py").write_text(blocks(page, "python")[0])
    problem = load_problem(tmp_path)
    template = load_template(problem)
    load_baseline(problem, template)
    assert [workload.name for workload in problem.workloads] == ["rows=4096", "few long rows"]
    assert problem.workloads[0].sizes["elements"] == 4096 * 1024
    assert [parameter.values for parameter in template.parameters] == [(8, 16, 32, 64), (1, 2, 4)]


@every_page
def test_toml_blocks_load(page: Path, tmp_path: Path) -> None:
    for index, block in enumerate(blocks(page, "toml")):
        if "kernel =" in block.partition("[")[0]:
            continue  # a whole problem: tested with its files
        folder = tmp_path / str(index)
        folder.mkdir()
        assert load_fragment(folder, block).arguments


@every_page
def test_template_headers_parse(page: Path) -> None:
    for block in blocks(page, "c"):
        if "/// kernelwright" in block:
            header = parse_header(block, page, entry="kernel")
            assert header.parameters
            assert header.steps


def test_the_values_of_the_template_header_are_what_the_files_page_says() -> None:
    header = parse_header(blocks(ROOT / "docs/files.md", "c")[1], Path("t.cl"), entry="k")
    values = {parameter.name: parameter.values for parameter in header.parameters}
    assert values == {
        "TILE": (16, 32, 48, 64),
        "SCALE": (0.5, 0.75, 1.0, 1.25, 1.5),
        "FAST": (False, True),
        "TYPE": ("float", "float4"),
    }


def literals(file: str, name: str) -> tuple[str, ...]:
    """A constant tuple of texts in a source, which is private there."""
    for node in ast.parse((ROOT / "src/kernelwright" / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            found = ast.literal_eval(node.value)
            assert isinstance(found, tuple)
            return found
    raise AssertionError(f"{file} has no {name}")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("problem/load/problem.py", "_KEYS"),
        ("problem/load/arguments.py", "_KEYS"),
        ("problem/load/launches.py", "_KEYS"),
        ("template/header.py", "_KEYS"),
        ("template/header_tables.py", "_PARAMETER_KEYS"),
    ],
)
def test_every_key_that_is_read_is_told(file: str, name: str) -> None:
    text = text_of("docs/files.md")
    for key in literals(file, name):
        assert re.search(rf"`\[*{key}\b", text), key


def test_every_word_of_the_formats_is_told() -> None:
    text = prose(ROOT / "docs/files.md")
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert told.issuperset(get_args(Role))
    assert told.issuperset(DTYPES)
    assert told.issuperset(ARITY)
    for name in DEVICE_NAMES:
        assert f"`{name}`" in text, name
    for kind in get_args(Event):
        assert f"| `{kind.__dataclass_fields__['kind'].default}` |" in text, kind
        fields = {*kind.__dataclass_fields__} - {"kind"}
        assert told >= fields, fields - told


def test_datasets_stages_and_formats_are_told() -> None:
    concepts, export = text_of("docs/concepts.md"), text_of("docs/howto-export.md")
    for variant in datasets.HOSTILE_VARIANTS:
        assert f"| `{variant}` |" in concepts
    for stage in STAGES:
        assert f"`{stage}`" in concepts
    for name in FORMATS:
        assert f"| `{name}` |" in export


# -- tables --------------------------------------------------------------------------------------------


def test_the_options_of_searchers_are_those_of_the_registry() -> None:
    text = text_of("docs/howto-searchers.md")
    expected = set()
    for info in SEARCHERS.values():
        assert f"| `{info.name}` |" in text
        for option in info.options:
            owner = "all" if option.name == "prior_count" else f"`{info.name}`"
            expected.add(f"| {owner} | `{option.name}` | `{option.default}` | {option.description} |")
            check_options(info, {option.name: option.default})
    section = text.partition("## Options")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert set(rows[1:]) == expected


def test_environment_variables_are_those_that_are_read() -> None:
    read = set(re.findall(r"KERNELWRIGHT_[A-Z]+(?:_[A-Z]+)*", text_of("src/kernelwright/knobs.py")))
    rows = set(re.findall(r"^\| `(KERNELWRIGHT_\w+)` \|", text_of("docs/troubleshooting.md"), re.MULTILINE))
    assert read
    assert rows == read


def test_messages_of_the_troubleshooting_page_are_ones_that_can_come() -> None:
    """Every run of words of a quoted message stands in some text of the sources, apart from what is filled in."""
    said = "\n".join(_texts_of_the_package())
    rows = re.findall(r"^\| (`.*?) \| ", text_of("docs/troubleshooting.md"), re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        for message in re.findall(r"`([^`]+)`", row):
            if message.startswith("KERNELWRIGHT_"):
                continue
            for part in re.split(r"\.\.\.|'[^']*'|\b[A-Z]{1,4}\b|\bdevice\.X\b|\b\d+\b|; ", message):
                words = part.strip(" :.,()")
                assert len(words) < 8 or words in said, f"{words!r} of {message!r}"


def _texts_of_the_package() -> Iterator[str]:
    for file in (ROOT / "src/kernelwright").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Constant(value=str(text)):
                    yield text
                case ast.JoinedStr(values=parts):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts)
