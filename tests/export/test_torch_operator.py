"""The exported PyTorch operator, without a GPU: what is generated, what it chooses and launches, how it fails."""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from exported_operators import operator, without_torch, write_scale
from hypothesis import example, given
from hypothesis import strategies as st
from recorded_runs import LIMITS

from kernelwright.backend.base import BufferArgument, DeviceInfo, ScalarArgument
from kernelwright.dispatching.table import dispatch_table
from kernelwright.errors import SpecError, UserError
from kernelwright.evaluate.builds.render import render_workload
from kernelwright.export.run import export_run
from kernelwright.export.torch import runtime as torch_runtime
from kernelwright.export.torch.expression import python_text
from kernelwright.problem.config import Config
from kernelwright.problem.dtypes import DTYPES, encode_scalar
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Workload
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.tune import TuningProblem

RecordRun = Callable[..., Path]
CONFIGS: list[Mapping[str, object]] = [{"BLOCK": 256, "VEC": 4}, {"BLOCK": 64, "VEC": 2}]
DEVICE = DeviceInfo("cuda", "made-up:0", "Made up", "gpu", LIMITS)
EXAMPLES = Path(__file__).resolve().parents[2] / "src/kernelwright/examples" / "cuda"


@pytest.fixture
def scale_run(tmp_path: Path, record_run: RecordRun) -> Path:
    return record_run(write_scale(tmp_path / "scale"), CONFIGS)


@pytest.fixture
def package(scale_run: Path, tmp_path: Path) -> Path:
    export_run(scale_run, tmp_path / "out", formats=["torch"])
    return tmp_path / "out" / "kernelwright_scale_rows"


# Failure paths


def test_an_opencl_kernel_is_no_pytorch_operator(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="CUDA kernels"):
        export_run(record_run(saxpy, [{}]), tmp_path / "out", formats=["torch"])
    assert not (tmp_path / "out").exists()


def test_a_kernel_for_nvcc_alone_is_refused(tmp_path: Path, record_run: RecordRun) -> None:
    folder = write_scale(tmp_path / "scale")
    source = folder / "scale.cu"
    source.write_text(
        source.read_text().replace("// [parameters]", '// options = ["--compiler=nvcc"]\n// [parameters]')
    )
    run = record_run(folder, CONFIGS)
    with pytest.raises(UserError, match="NVRTC"):
        export_run(run, tmp_path / "out", formats=["torch"])
    assert "kernelwright_scale_rows.h" in {path.name for path in export_run(run, tmp_path / "rest")}
    assert not (tmp_path / "rest" / "kernelwright_scale_rows").exists()


# What is generated, without torch


def test_the_folder_holds_the_sources_byte_for_byte(package: Path, scale_run: Path) -> None:
    problem = scale_run / "problem"
    found = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert found == {
        "__init__.py", "dispatch.py", "runtime.py", "support.py", "source/scale.cu", "source/more.cuh",
        "source/baseline.cu", "reference/reference.py",
    }  # fmt: skip
    for name in ("scale.cu", "more.cuh", "baseline.cu"):
        assert (package / "source" / name).read_bytes() == (problem / name).read_bytes()
    for file in package.glob("*.py"):
        ast.parse(file.read_text())


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if (path / "problem.toml").exists()))
def test_every_cuda_example_becomes_an_operator(name: str, record_run: RecordRun, tmp_path: Path) -> None:
    run = record_run(EXAMPLES / name, [{}])
    files = export_run(run, tmp_path / "out", formats=["torch"])
    for file in files:
        if file.suffix == ".py":
            ast.parse(file.read_text())
    package = next(file.parent for file in files if file.name == "dispatch.py")
    subject = TuningProblem.load(run / "problem" / "problem.toml")
    with without_torch(package) as modules:
        for workload in subject.problem.workloads:
            plan = modules["dispatch"].plan(tuple(workload.sizes.values()))
            assert plan.label == "config 0"
            rendered = render_workload(
                Candidate(subject.template, subject.template.default), subject.problem, workload, DEVICE
            )
            assert launches_of(plan) == expected_launches(rendered.plan)


def launches_of(plan: Any) -> list[tuple[Any, ...]]:
    return [
        (
            each.entry,
            each.grid,
            each.block,
            each.shared_bytes,
            [tuple(constant) for constant in each.constants],
            [(a.name, a.byte_count, a.value) for a in each.arguments],
        )
        for each in plan.launches
    ]


def expected_launches(steps: Any) -> list[tuple[Any, ...]]:
    """What the evaluation itself would launch."""
    listed = []
    for step in steps:
        arguments: list[tuple[str, int, bytes]] = []
        for each in step.arguments:
            match each:
                case ScalarArgument():
                    arguments.append((each.name, len(each.data), each.data))
                case BufferArgument():
                    arguments.append((each.name, each.byte_count, b""))
        constants = [(variable, each.name, each.byte_count) for variable, each in step.constants]
        listed.append((step.entry, step.grid, step.block, step.shared_bytes, constants, arguments))
    return listed


def test_the_choice_and_the_launches_equal_the_table_for_random_sizes(package: Path, scale_run: Path) -> None:
    subject = TuningProblem.load(scale_run / "problem" / "problem.toml")
    table = dispatch_table(RunView.read(scale_run), subject)
    generator = random.Random(3)
    asked = [
        (generator.randint(0, 9) * 64, generator.randint(1, 5) * 128 - generator.choice((0, 0, 0, 1, 2)))
        for _ in range(300)
    ]
    seen = set()
    with without_torch(package) as modules:
        dispatch = modules["dispatch"]
        assert dispatch.SIZES == ("rows", "d", "middle")
        for rows, d in asked:
            sizes = {"rows": rows, "d": d, "middle": d // 2}
            config = table.select(sizes)
            plan = dispatch.plan(tuple(sizes.values()), (2.5, 3))
            try:
                expected = rendered(subject, config, sizes)
            except SpecError:
                assert plan is None
                seen.add("none")
                continue
            if plan is None:  # the baseline's block does not fit the device
                assert config is None
                assert d > LIMITS["max_threads_per_block"] or rows < 1
                continue
            assert launches_of(plan) == expected_launches(expected.plan), sizes
            macros = dict(expected.unit.macros)
            assert plan.unit.options == tuple(f"-D{name}={text}" for name, text in macros.items())
            assert plan.label == ("baseline" if config is None else f"config {table.place(sizes)}")
            seen.add(plan.label)
    assert seen == {"none", "baseline", "config 0", "config 1"}


def rendered(subject: TuningProblem, config: Config | None, sizes: Mapping[str, int]) -> Any:
    candidate = subject.baseline if config is None else Candidate(subject.template, config)
    return render_workload(candidate, subject.problem, Workload("asked", sizes), DEVICE)


def test_another_device_gets_the_baseline(package: Path) -> None:
    with without_torch(package) as modules:
        dispatch = modules["dispatch"]
        assert LIMITS["compute_capability"] == dispatch.CAPABILITY
        assert dispatch.plan((64, 128, 64), (2.5, 3)).label.startswith("config")
        assert dispatch.plan((64, 128, 64), (2.5, 3), is_tuned_device=False).label == "baseline"


NAMES = {"a": 7, "b": 3, "n": 4096, "f": 2.5, "t": "x", "ok": True}
TEXTS = (
    "a // b * n", "-a // b", "-a % b", "ceil_div(n, a) + round_up(a, b) - round_down(n, b)",
    "a if n > 10 and f < 3 else b",
    "(a > 1 and b) * 2", "not ok or a == 7", "a in (1, 7, 9)", "t == 'x'", "min(a, b, 1) ** 3", "n >> 2 << 1",
    "gcd(a, n) + lcm(a, b)", "floor(f) + ceil(f) + int(f)", "floor_log2(n) + next_power_of_two(a) + bit_length(a)",
    "is_power_of_two(n)", "sqrt(n) + log2(n)", "a / b", "float(a) // 2", "1 < b <= 3", "abs(b - a)", "f * -2",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_an_expression_as_python_has_its_value(text: str) -> None:
    expression = Expression.parse(text)
    source = python_text(expression, {"b": NAMES["b"]})
    value = eval(source, {"_runtime": torch_runtime}, {name: each for name, each in NAMES.items() if name != "b"})
    assert value == expression.evaluate(NAMES)
    assert type(value) is type(expression.evaluate(NAMES))


@example("bfloat16", -0.0)
@given(st.sampled_from(sorted(DTYPES)), st.one_of(st.integers(-300, 300), st.floats(-400, 400)))
def test_scalars_have_the_bytes_that_the_evaluation_passes(dtype: str, value: float) -> None:
    try:
        expected = encode_scalar(dtype, value)
    except SpecError:
        with pytest.raises(ValueError, match=r"whole|fit|extent"):
            torch_runtime.scalar(dtype, value)
        return
    assert torch_runtime.scalar(dtype, value) == expected
    assert encode_scalar(dtype, torch_runtime.rounded(dtype, value)) == expected


# With torch, on the CPU


@pytest.fixture
def exported(package: Path) -> Iterator[Any]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with operator(package) as module:
        yield module


def arguments(rows: int = 64, d: int = 128) -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(1)
    return torch.randn(rows, 2 * d + 2), torch.randn(rows, d), torch.randn(d).to(torch.bfloat16)


def test_the_operator_computes_on_the_cpu_and_changes_in_place(exported: Any) -> None:
    import torch

    x, y, weight = arguments()
    before = y.clone()
    total = exported.scale_rows(x, y, weight, alpha=0.5)
    assert torch.allclose(total, x.sum(dim=1), atol=1e-4)
    assert torch.allclose(y, before + 0.5 * 3 * weight.float() * x[:, :128], atol=1e-5)
    assert exported.which_scale_rows(x, y, weight) == "reference"


def test_the_operator_passes_pytorchs_own_check_and_compiles(exported: Any) -> None:
    import torch

    x, y, weight = arguments()
    torch.library.opcheck(exported.scale_rows, (x, y, weight), {"alpha": 0.5})

    def twice(x: Any, y: Any, weight: Any) -> Any:
        total = exported.scale_rows(x, y, weight) * 2
        return total + y.sum(dim=1)

    expected_y = y.clone()
    expected = twice(x, expected_y, weight)
    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.allclose(compiled(x, y, weight), expected, atol=1e-4)
    assert torch.equal(y, expected_y)


def test_the_fake_implementation_knows_shapes_and_types(exported: Any) -> None:
    import torch

    x, y, weight = (each.to("meta") for each in arguments(512, 512))
    total = exported.scale_rows(x, y, weight)
    assert (total.shape, total.dtype, total.device.type) == ((512,), torch.float32, "meta")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x, y, w: (x[:, :-1], y, w), ValueError, "x has the shape"),
        (lambda x, y, w: (x, y[:-1], w), ValueError, "y has the shape"),
        (lambda x, y, w: (x[0], y, w), ValueError, "x has 1 dimensions"),
        (lambda x, y, w: (x, y, w.float()), TypeError, "weight is torch.float32, expected torch.bfloat16"),
        (lambda x, y, w: (x.t().contiguous().t(), y, w), ValueError, "x is not contiguous"),
    ],
)
def test_wrong_tensors_are_refused(exported: Any, change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        exported.scale_rows(*change(*arguments()))


class Heard:
    """Stands where kernels are launched."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Mapping[str, int], Mapping[str, Any]]] = []

    def launch(self, folder: Path, unit: Any, launches: Any, pointers: Mapping[str, int], **where: Any) -> None:
        assert (folder / "source" / unit.file).exists()
        self.calls.append((unit, launches, pointers, where))


@pytest.fixture
def heard(exported: Any, monkeypatch: pytest.MonkeyPatch) -> Heard:
    """The operator with a CUDA device that is none: launches are heard of, tensors are on the CPU."""
    import contextlib

    import torch

    found = Heard()
    support = exported._support
    monkeypatch.setattr(support.runtime, "KERNELS", found)
    monkeypatch.setattr(support, "capability_of", lambda device: 90)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    stream = type("Stream", (), {"cuda_stream": 1234})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    plan = exported._dispatch.plan
    monkeypatch.setattr(exported, "_plan", lambda sizes, scalars, device: plan(sizes, scalars))
    return found


def test_a_launch_has_every_buffer_on_the_current_stream(exported: Any, heard: Heard) -> None:
    x, y, weight = arguments()
    total = exported.scale_rows(x, y, weight)
    ((unit, launches, pointers, where),) = heard.calls
    assert unit.file == "scale.cu"
    assert [each.entry for each in launches] == ["sum_rows", "scale_rows<VEC>"]
    assert where["stream"] == 1234
    assert where["capability"] == 90
    wanted = {each.name for launch in launches for each in launch.arguments if each.role != "scalar"}
    assert wanted <= pointers.keys()
    assert (pointers["x"], pointers["y"], pointers["total"]) == (x.data_ptr(), y.data_ptr(), total.data_ptr())
    scalars = {a.name: a.value for launch in launches for a in launch.arguments if a.role == "scalar"}
    assert scalars["alpha"] == encode_scalar("float32", 2.5)
    assert scalars["half_d"] == encode_scalar("int64", 64)


def test_outside_of_the_domain_the_baseline_runs(exported: Any, heard: Heard) -> None:
    exported.scale_rows(*arguments(65, 128), count=7)
    ((unit, launches, _, _),) = heard.calls
    assert unit.file == "baseline.cu"
    scalars = {a.name: a.value for launch in launches for a in launch.arguments if a.role == "scalar"}
    assert scalars["count"] == encode_scalar("int32", 7)


def test_where_the_baseline_cannot_run_either_the_reference_computes(exported: Any, heard: Heard) -> None:
    import torch

    x, y, weight = arguments(2, 2048)  # a block of 2048 threads fits no device
    total = exported.scale_rows(x, y, weight)
    assert heard.calls == []
    assert torch.allclose(total, x.sum(dim=1), atol=1e-3)


def test_a_tensor_that_is_not_aligned_is_copied_there_and_back(
    exported: Any, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    x, y, weight = arguments()
    storage = torch.zeros(64 * 128 + 1)
    shifted = storage[1:].view(64, 128)
    shifted.copy_(y)
    launch = heard.launch

    def writing(folder: Path, unit: Any, launches: Any, pointers: Mapping[str, int], **where: Any) -> None:
        import ctypes

        launch(folder, unit, launches, pointers, **where)
        ctypes.c_float.from_address(pointers["y"]).value = 42.0

    monkeypatch.setattr(heard, "launch", writing)
    exported.scale_rows(x, shifted, weight)
    assert heard.calls[0][2]["y"] % 16 == 0
    assert shifted[0, 0] == 42.0
    assert torch.equal(shifted.flatten()[1:], y.flatten()[1:])


# With NVRTC, which needs no device


def test_what_is_exported_compiles(package: Path) -> None:
    with without_torch(package) as modules:
        runtime, dispatch = modules["runtime"], modules["dispatch"]
        try:
            runtime._nvrtc(13)
        except runtime.KernelError as error:
            pytest.skip(str(error))
        if not runtime._include_folders():
            pytest.skip("CUDA's headers are not installed")
        plan = dispatch.plan((64, 128, 64), (2.5, 3))
        cubin, names = runtime.compile_unit(package, plan.unit, capability=90)
        assert cubin.startswith(b"\x7fELF")
        assert names["sum_rows"] == "sum_rows"
        assert names["scale_rows<VEC>"].startswith("_Z")
        (package / "source" / "more.cuh").write_text("#error gone\n")
        with pytest.raises(runtime.KernelError, match="gone"):
            runtime.compile_unit(package, plan.unit, capability=90)
        shutil.rmtree(package / "source")
