"""`kernelwright.tuned` launches what was measured where it was measured, and the caller's launch everywhere else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kernelwright
from kernelwright.errors import SpecError, UsageError
from kernelwright.export import tuned as tuned_module
from kernelwright.export.run import export_run
from kernelwright.source.triton.reading import kernel_hash

RecordRun = Callable[..., Path]
KERNEL = """
def scale(x_ptr, y_ptr, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, x * by, mask=at < n)
"""
HEADER = """# /// kernelwright
# [parameters]
# BLOCK = { values = [64, 128, 256], default = 64 }
# num_warps = { values = [1, 2], default = 1 }
# [constraints]
# fits = "BLOCK <= rows * 32"
# [launch]
# entry = "scale"
# grid = ["ceil_div(rows * 32, BLOCK)"]
# ///
"""
IMPORTS = "import triton\nimport triton.language as tl\n\n\n@triton.jit"
PROBLEM = """
name = "scale"
kernel = "kernel.py"
entry = "scale"
reference = "reference.py:reference"

[arguments]
x_ptr = { role = "input", dtype = "float32", shape = ["rows", "32"] }
y_ptr = { role = "output", dtype = "float32", shape = ["rows", "32"] }
n = { role = "scalar", dtype = "int32", value = "rows * 32" }
by = { role = "scalar", dtype = "float32", value = "2.0" }

[[workloads]]
name = "small"
rows = 4

[[workloads]]
name = "large"
rows = 64
"""
HERE = ("Made-up device", "3.6.0")


class Kernel:
    """What Triton makes of a function, as far as launches go."""

    def __init__(self, function: Any) -> None:
        self.fn = function
        self.__name__ = function.__name__
        self.arg_names = ["x_ptr", "y_ptr", "n", "by", "BLOCK"]
        self.launched: list[tuple[Any, dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            self.launched.append((grid(given) if callable(grid) else grid, given))

        return launch


class Autotuner(Kernel):
    """What `@triton.autotune` makes; it must never be asked to launch."""

    def __init__(self, kernel: Kernel, *configs: Any) -> None:
        self.fn: Any = kernel
        self.configs = list(configs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        raise AssertionError("tuned at a launch")


def listed(hook: Any = None, **values: int) -> Any:
    """What `triton.Config` makes."""
    return SimpleNamespace(pre_hook=hook, all_kwargs=lambda: {"num_warps": 4, **values})


def tensor(*shape: int) -> Any:
    count = 1
    for each in shape:
        count *= each
    return SimpleNamespace(shape=shape, numel=lambda: count)


@pytest.fixture
def function(tmp_path: Path) -> Any:
    """The kernel's own text in a file, as a plain function."""
    file = tmp_path / "kernels.py"
    file.write_text(f"from __future__ import annotations\n\n{KERNEL}")
    spec = importlib.util.spec_from_file_location("kernels_of_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scale


@pytest.fixture
def file(tmp_path: Path, record_run: RecordRun) -> Path:
    """An export in which 128 is the choice of many rows, and 256 of few."""
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "problem.toml").write_text(PROBLEM)
    (folder / "kernel.py").write_text(f"{HEADER}{IMPORTS}{KERNEL}")
    (folder / "reference.py").write_text("def reference(x_ptr, by):\n    return x_ptr * by\n")
    configs: list[Mapping[str, object]] = [{"BLOCK": 128}, {"BLOCK": 128, "num_warps": 2}]
    (path,) = export_run(record_run(folder, configs), tmp_path / "out", formats=["json"])
    document = json.loads(path.read_text())
    document["device"]["facts"] = {"triton": HERE[1]}
    document["dispatch"]["configs"] = [
        {"config": {"BLOCK": 128, "num_warps": 2}, "serves": ["small"]},
        {"config": {"BLOCK": 256, "num_warps": 1}, "serves": ["large"]},
    ]
    document["dispatch"]["rule"] = {
        "product_of": ["rows"], "at_most": 16, "measured_between": [4, 64], "then": {"order": [0, 1]},
        "else": {"order": [1, 0]},
    }  # fmt: skip
    for shape, choice in zip(document["dispatch"]["shapes"], (0, 1), strict=True):
        shape["choice"] = choice
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(autouse=True)
def on_the_tuned_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_module, "here", lambda: HERE)


def launched(kernel: Any, rows: int, grid: Any = None, **given: Any) -> tuple[Any, dict[str, Any]]:
    """What a call with so many rows came to."""
    meta = grid or (lambda names: (-(-rows * 32 // names["BLOCK"]),))
    kernel[meta](tensor(rows, 32), tensor(rows, 32), rows * 32, 2.0, **{"BLOCK": 64, **given})
    found = kernel.fn.launched[-1]
    return found[0], {name: found[1][name] for name in ("BLOCK", "num_warps") if name in found[1]}


BASELINE = {"BLOCK": 64}


# Failure paths


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "is no export of a Triton kernel"),
        ('{"format": 9}', "its format is 9, expected 1"),
        ('{"format": 1, "dispatch": {}, "device": {"name": "x"}}', "kernel_hash"),
    ],
)
def test_a_file_that_is_no_export_is_refused_where_it_is_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(SpecError, match=reason):
        kernelwright.tuned(tmp_path / "bad.json")
    with pytest.raises(SpecError, match="cannot read"):
        kernelwright.tuned(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="no file"):
        kernelwright.tuned()


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ((None, HERE[1]), "there is no GPU here"),
        (("Another device", HERE[1]), "this is Another device"),
        ((HERE[0], "3.7.0"), "tuned with Triton 3.6.0, and this is 3.7.0"),
    ],
)
def test_elsewhere_the_caller_s_launch_is_made_and_told_once(
    machine: Any, reason: str, file: Path, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_module, "here", lambda: machine)
    kernel = kernelwright.tuned(file)(Kernel(function))
    with pytest.warns(RuntimeWarning, match=reason) as told:
        found = [launched(kernel, rows) for rows in (4, 64)]
    assert found == [((2,), BASELINE), ((32,), BASELINE)]
    assert len(told) == 1


def test_another_text_of_the_kernel_is_not_launched_with_these_configs(file: Path, function: Any) -> None:
    document = json.loads(file.read_text())
    document["kernel_hash"] = kernel_hash(KERNEL.replace("x * by", "x + by"))
    file.write_text(json.dumps(document))
    kernel = kernelwright.tuned(file)(Kernel(function))
    with pytest.warns(RuntimeWarning, match="another text of the kernel"):
        assert launched(kernel, 64) == ((32,), BASELINE)


def test_a_grid_that_was_not_measured_keeps_the_caller_s_launch(file: Path, function: Any) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    with pytest.warns(RuntimeWarning, match=r"the grid \(7,\) is not that of scale.json"):
        assert launched(kernel, 64, (7,)) == ((7,), BASELINE)


def test_a_function_that_reads_no_config_keeps_the_caller_s_launch(file: Path, function: Any) -> None:
    """Its grid would be too large or too small for every other config."""
    kernel = kernelwright.tuned(file)(Kernel(function))
    with pytest.warns(RuntimeWarning, match="which reads no config"):
        assert launched(kernel, 64, lambda _: (32,)) == ((32,), BASELINE)


def test_elements_of_another_size_keep_the_caller_s_launch(file: Path, function: Any) -> None:
    """Blocks of theirs may not fit; the same shapes of the measured type do not lend them their choice."""
    kernel = kernelwright.tuned(file)(Kernel(function))
    for item_bytes, block in ((4, 256), (8, 64), (4, 256)):
        x, y = tensor(64, 32), tensor(64, 32)
        x.element_size = y.element_size = lambda count=item_bytes: count
        kernel[lambda meta: (2048 // meta["BLOCK"],)](x, y, 2048, 2.0, BLOCK=64)
        assert kernel.fn.launched[-1][1]["BLOCK"] == block


def test_sizes_that_contradict_each_other_are_none(file: Path, function: Any) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    kernel[(9,)](tensor(64, 32), tensor(32, 32), 64 * 32, 2.0, BLOCK=64)
    assert kernel.fn.launched[-1][1]["BLOCK"] == 64


# Choices


def test_the_measured_crossover_decides(file: Path, function: Any) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launched(kernel, 4) == ((1,), {"BLOCK": 128, "num_warps": 2})
        assert launched(kernel, 16) == ((4,), {"BLOCK": 128, "num_warps": 2})
        assert launched(kernel, 20) == ((3,), {"BLOCK": 256, "num_warps": 1})
        assert launched(kernel, 64) == ((8,), {"BLOCK": 256, "num_warps": 1})


def test_a_tuple_of_the_baseline_s_grid_becomes_that_of_the_config(file: Path, function: Any) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    assert launched(kernel, 64, (32,)) == ((8,), {"BLOCK": 256, "num_warps": 1})


def test_flat_tensors_tell_the_sizes_too(file: Path, function: Any) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    kernel[(32,)](tensor(2048), tensor(2048), 2048, 2.0, BLOCK=64)
    assert kernel.fn.launched[-1][1]["BLOCK"] == 256


@pytest.mark.parametrize("rows", [2, 65, 6])
def test_outside_the_measured_sizes_the_baseline_is_launched(rows: int, file: Path, function: Any) -> None:
    """6 is none of their multiples."""
    kernel = kernelwright.tuned(file)(Kernel(function))
    assert launched(kernel, rows)[1]["BLOCK"] == 64


def test_in_a_declared_domain_the_nearest_measured_sizes_decide(file: Path, function: Any) -> None:
    """And only while the constraints hold: 256 is too much for two rows."""
    kernel = kernelwright.tuned(file, domain={"rows": (2, 500)})(Kernel(function))
    assert launched(kernel, 6)[1] == {"BLOCK": 128, "num_warps": 2}
    assert launched(kernel, 400)[1] == {"BLOCK": 256, "num_warps": 1}
    assert launched(kernel, 501)[1]["BLOCK"] == 64
    assert launched(kernel, 2)[1]["BLOCK"] == 64


def test_a_config_of_the_baseline_is_the_caller_s_launch(file: Path, function: Any) -> None:
    document = json.loads(file.read_text())
    document["dispatch"]["configs"][1]["config"] = None
    file.write_text(json.dumps(document))
    kernel = kernelwright.tuned(file)(Kernel(function))
    assert launched(kernel, 64)[1]["BLOCK"] == 64


def test_what_the_caller_leaves_out_is_the_tuned_default(file: Path, function: Any) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    kernel[lambda names: (names["BLOCK"],)](tensor(3, 32), tensor(3, 32), 96, 2.0)
    assert kernel.fn.launched[-1][0] == (64,)


def test_of_several_files_the_one_of_this_device_counts(file: Path, function: Any, tmp_path: Path) -> None:
    document = json.loads(file.read_text())
    document["device"]["name"] = "Another device"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    kernel = kernelwright.tuned(other, file)(Kernel(function))
    assert launched(kernel, 64)[1]["BLOCK"] == 256


def test_nothing_is_asked_of_the_machine_before_the_first_launch(
    file: Path, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask() -> tuple[str, str]:
        asked.append("here")
        return HERE

    monkeypatch.setattr(tuned_module, "here", ask)
    kernel = kernelwright.tuned(file)(Autotuner(Kernel(function)))
    assert asked == []
    launched(kernel, 64)
    launched(kernel, 4)
    assert asked == ["here"]
    assert kernel.arg_names[0] == "x_ptr"


@pytest.mark.parametrize(
    "same",
    [
        KERNEL.replace("    at =", "\n    # where\n    at ="),
        "import triton\n\n@triton.jit\n" + KERNEL.strip(),
        "class Holder:\n" + "".join(f"    {line}\n" for line in KERNEL.strip().splitlines()),
    ],
)
def test_comments_decorators_and_layout_are_no_part_of_a_kernel_s_text(same: str) -> None:
    assert kernel_hash(same, "scale") == kernel_hash(KERNEL)
    assert kernel_hash(KERNEL.replace("0.0", "1.0")) != kernel_hash(KERNEL)
    with pytest.raises(ValueError, match="no function"):
        kernel_hash(KERNEL, "other")


@pytest.mark.thorough  # Triton's interpreter is loaded
def test_triton_s_own_kernel_is_launched_and_falls_back_without_a_gpu(file: Path, tmp_path: Path) -> None:
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    program = f"""
import os, warnings
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
import kernelwright
from kernelwright.export import tuned as module

@triton.autotune([triton.Config({{"BLOCK": 32}})], key=["n"])
@triton.jit{KERNEL}

def call(kernel, rows, **given):
    x, y = torch.randn(rows, 32), torch.zeros(rows, 32)
    kernel[lambda meta: (triton.cdiv(rows * 32, meta["BLOCK"]),)](x, y, rows * 32, 3.0, **given)
    torch.testing.assert_close(y, 3 * x)

decorate = kernelwright.tuned({str(file)!r})
kernel = decorate(scale)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for rows in (4, 64, 5):
        call(kernel, rows, BLOCK=64)
        call(kernel, rows)
print([str(each.message) for each in told if each.category is RuntimeWarning])
module.here = lambda: {HERE!r}
kernel = decorate(scale)
for rows in (4, 64, 5):
    call(kernel, rows, BLOCK=64)
print([each and each["BLOCK"] for each in kernel._kept.values()])
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("there is no GPU here") == 1
    assert "[128, 256, None]" in done.stdout


def test_hooks_of_an_autotuner_s_configs_are_called_before_each_launch(file: Path, function: Any) -> None:
    called: list[Any] = []
    inner = Kernel(function)
    configs = [listed(called.append, BLOCK=64, num_warps=1), listed(called.append, BLOCK=32)]
    kernel = kernelwright.tuned(file)(Autotuner(inner, *configs))
    kernel[lambda meta: (-(-128 // meta["BLOCK"]),)](tensor(4, 32), tensor(4, 32), 128, 2.0)
    (arguments,) = called
    assert (arguments["BLOCK"], arguments["n"]) == (128, 128)
    assert inner.launched[0][1]["num_warps"] == 2


def test_a_config_whose_hook_is_not_known_is_not_launched(file: Path, function: Any) -> None:
    called: list[str] = []
    configs = [
        listed(lambda given: called.append("first"), BLOCK=64, num_warps=1),
        listed(lambda given: called.append("second"), BLOCK=32),
    ]
    inner = Kernel(function)
    kernel = kernelwright.tuned(file)(Autotuner(inner, *configs))
    with pytest.warns(RuntimeWarning, match=r"no config of @triton\.autotune has the pre_hook"):
        kernel[lambda meta: (-(-128 // meta["BLOCK"]),)](tensor(4, 32), tensor(4, 32), 128, 2.0)
    assert (inner.launched[0][1]["BLOCK"], inner.launched[0][1]["num_warps"]) == (64, 1)
    assert called == ["first"]


def test_a_baseline_that_an_autotuner_no_longer_lists_gives_way_to_its_first_config(file: Path, function: Any) -> None:
    called: list[str] = []
    configs = [
        listed(lambda given: called.append("first"), BLOCK=16, num_warps=8),
        listed(lambda given: called.append("second"), BLOCK=32),
    ]
    inner = Kernel(function)
    kernel = kernelwright.tuned(file)(Autotuner(inner, *configs))
    with pytest.warns(RuntimeWarning, match="pre_hook"):
        kernel[lambda meta: (-(-128 // meta["BLOCK"]),)](tensor(4, 32), tensor(4, 32), 128, 2.0)
    assert inner.launched[0][0] == (8,)
    assert inner.launched[0][1]["num_warps"] == 8
    assert called == ["first"]


@pytest.mark.parametrize(
    ("more", "named", "reason"),
    [((64, 5), {}, "takes 5 arguments, and 6 are given"), ((), {"n": 3}, "gets 'n' twice")],
)
def test_arguments_that_the_kernel_does_not_take_are_refused(
    more: tuple[int, ...], named: dict[str, int], reason: str, file: Path, function: Any
) -> None:
    kernel = kernelwright.tuned(file)(Kernel(function))
    with pytest.raises(TypeError, match=reason):
        kernel[(2,)](tensor(4, 32), tensor(4, 32), 128, 2.0, *more, **named)
