"""A problem whose kernel is Triton: what loads, what is refused, and what its compiler gets. Triton is not needed."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from triton_problems import HEADER, HOPPER, KERNEL, PROBLEM

from kernelwright.agent.written import written_template
from kernelwright.backend.base import BufferArgument, PlanStep, ScalarArgument
from kernelwright.backend.cuda.triton_launch import TritonLaunch
from kernelwright.errors import SpecError, UserError
from kernelwright.evaluate.builds.render import render
from kernelwright.export.run import export_run, formats_for, usual_formats
from kernelwright.problem.config import Config
from kernelwright.problem.dtypes import DTYPES, encode_scalar
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed
from kernelwright.template.load import load_template, template_of_text
from kernelwright.template.model import Candidate
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

VALUES = "{ values = [1, 2], default = 1 }\n# "


def rendered(folder, **config):
    problem = load_problem(folder)
    template = load_template(problem)
    return render(Candidate(template, Config({**template.default, **config})), problem, HOPPER)


@pytest.mark.parametrize(
    ("header", "kernel", "message"),
    [
        (HEADER.replace('# grid', '# block = ["128"]\n# grid'), KERNEL, "'block' in the launch of a Triton kernel"),
        (HEADER.replace('# grid', '# shared_bytes = "4"\n# grid'), KERNEL, "'shared_bytes' in the launch"),
        (HEADER.replace("BLOCK = {", f"OTHER = {VALUES}BLOCK = {{"), KERNEL, "parameter 'OTHER' is used nowhere"),
        (HEADER.replace("BLOCK = {", f"at = {VALUES}BLOCK = {{"), KERNEL, "parameter 'at' is used nowhere"),
        (HEADER, KERNEL.replace("BLOCK: tl", "WIDE: tl.constexpr, BLOCK: tl"), "nothing gives 'WIDE'"),
        (HEADER, KERNEL.replace("n, factor", "n, factor, more"), "passes 4 arguments .* takes 5"),
        (HEADER, KERNEL.replace("x, y, n", "y, x, n"), "passes 4 arguments"),
        (HEADER, KERNEL.replace("@triton.jit\n", ""), "scale.py: .*no @triton.jit function"),
        (HEADER, KERNEL + "\ndef f(:\n", r"scale.py:\d+.*no Python"),
        (HEADER.replace("# [parameters]", '# options = ["-O3"]\n# [parameters]'), KERNEL, "no compile options.*'-O3'"),
        (HEADER.replace('"scale"', '"scal"'), KERNEL, "entry 'scal' is not defined"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_runs(triton_problem, header, kernel, message):
    problem = load_problem(triton_problem(header=header, kernel=kernel))
    with pytest.raises(SpecError, match=message):
        load_template(problem)


def test_the_block_follows_from_the_warps(triton_problem):
    jobs = rendered(triton_problem(), num_warps=2)
    assert [step.block for job in jobs for step in job.plan] == [(64, 1, 1)] * 2
    jobs = rendered(triton_problem(header=HEADER.replace("# num_warps = { values = [2, 4], default = 4 }\n", "")))
    assert jobs[0].plan[0].block == (128, 1, 1)
    defined = HEADER.replace(
        "# num_warps = { values = [2, 4], default = 4 }\n", '# [defines]\n# num_warps = "BLOCK // 16"\n'
    )
    assert rendered(triton_problem(header=defined), BLOCK=256)[0].plan[0].block == (512, 1, 1)


def test_each_kind_of_argument_is_a_unit_of_its_own(triton_problem):
    even, odd = rendered(triton_problem(), BLOCK=256)
    assert dict(even.unit.macros) == {"BLOCK": "256", "num_warps": "4"}
    assert json.loads(even.unit.options[0]) == {"scale": ["*float32", "*float32", 16, 2.0]}
    assert json.loads(odd.unit.options[0]) == {"scale": ["*float32", "*float32", 18, 2.0]}
    assert even.unit.id != odd.unit.id


def _kind(triton_problem, value, dtype="int64"):
    text = PROBLEM.replace('dtype = "int32", value = "n"', f'dtype = "{dtype}", value = "{value}"')
    jobs = rendered(triton_problem(problem=text))
    return json.loads(jobs[0].unit.options[0])["scale"][2]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, 1), (0, 16), (16, 16), (17, 18), (-16, 16), (-3, 18), (2**31 - 1, 18), (2**31, 2**31),
        (2**31 + 1, 2**31 + 2), (-(2**31), 16), (-(2**31) - 1, 2**31 + 2),
    ],
)  # fmt: skip
def test_an_integer_is_typed_by_its_value_as_the_jit_does(triton_problem, value, kind):
    assert _kind(triton_problem, value) == kind


def test_large_unsigned_and_true_have_kinds_of_their_own(triton_problem):
    assert _kind(triton_problem, 2**63, "uint64") == 2**63
    assert _kind(triton_problem, "n > 0", "bool") is True


def test_a_size_gives_a_constant_of_its_name(triton_problem):
    kernel = KERNEL.replace("BLOCK: tl", "rows: tl.constexpr, BLOCK: tl")
    problem = PROBLEM.replace("n = 4096", "n = 4096\nrows = 7").replace("n = 4099", "n = 4099\nrows = 9")
    even, odd = rendered(triton_problem(kernel=kernel, problem=problem))
    assert (dict(even.unit.macros)["rows"], dict(odd.unit.macros)["rows"]) == ("7", "9")


def test_constants_keep_their_types(triton_problem):
    kinds = """# KIND = { values = ["tl.float16", "it's"], default = "tl.float16" }\n"""
    flags = "# FLAG = { values = [true, false], default = true }\n"
    header = HEADER.replace("# [launch]", f"{kinds}{flags}# [launch]")
    kernel = KERNEL.replace("BLOCK: tl", "KIND: tl.constexpr, FLAG: tl.constexpr, BLOCK: tl")
    macros = dict(rendered(triton_problem(header=header, kernel=kernel))[0].unit.macros)
    assert (macros["KIND"], macros["FLAG"]) == ("'tl.float16'", "True")


def test_one_kernel_twice_with_other_kinds_of_arguments_is_a_failure_that_says_so(triton_problem):
    launch = HEADER[HEADER.index("# [launch]") : -len("# ///\n")].replace("[launch]", "[[launch]]")
    header = HEADER[: HEADER.index("# [launch]")] + "".join(
        f'{launch}# arguments = ["x", "y", "{size}", "factor"]\n' for size in ("n", "m")
    )
    problem = PROBLEM.replace("factor =", 'm = { role = "scalar", dtype = "int32", value = "7" }\nfactor =')
    failed = rendered(triton_problem(header=f"{header}# ///\n", problem=problem))
    assert isinstance(failed, Failed)
    assert "'scale' is launched more than once" in failed.message


def test_a_template_as_agents_get_it_loads_again(triton_problem):
    problem = load_problem(triton_problem())
    template = load_template(problem)
    written = written_template(template)
    again = template_of_text(problem, written.text, spec=problem.kernel)
    assert written.text.startswith("# /// kernelwright")
    assert (again.steps[0].block, again.default) == (template.steps[0].block, template.default)


def test_no_export_is_asked_of_triton_that_needs_macros():
    assert set(formats_for("triton")) == {"json", "t4", "choice", "configs", "vllm", "sglang"}


# The launch of what was compiled


def _step(**scalars):
    given = tuple(ScalarArgument(name, dtype, encode_scalar(dtype, value)) for name, (dtype, value) in scalars.items())
    return PlanStep("k", (6, 5, 4), (128, 1, 1), 0, (BufferArgument("x", 64), *given))


LAUNCH = TritonLaunch("k_0", ((0, "*fp32"), (2, "fp32"), (3, "i64")), 256, 49152, 2, False, (16, 0))


def test_a_launch_is_as_triton_compiled_it():
    step = _step(one=("int32", 1), eps=("float64", 0.1), n=("int32", -5))
    pointer = (4096).to_bytes(8, "little")
    values = [pointer, *(each.data for each in step.arguments[1:])]
    assert LAUNCH.values(step, values) == [pointer, encode_scalar("float32", 0.1), encode_scalar("int64", -5)]
    made = LAUNCH.step(step)
    assert [each.name for each in made.arguments] == ["x", "eps", "n"]
    assert (made.grid, made.block, made.shared_bytes, made.cluster) == ((12, 5, 4), (256, 1, 1), 49152, (2, 1, 1))
    assert LAUNCH.scratch_bytes(made) == [16 * 12 * 5 * 4, 0]


def test_a_launch_reads_back_as_it_was_written():
    assert TritonLaunch.read(json.loads(json.dumps(LAUNCH.written()))) == LAUNCH


def test_every_dtype_has_a_pointer_that_is_named(triton_problem):
    for name in DTYPES:
        problem = PROBLEM.replace('x = { role = "input", dtype = "float32"', f'x = {{ role = "input", dtype = "{name}"')
        assert json.loads(rendered(triton_problem(problem=problem))[0].unit.options[0])["scale"][0] == f"*{name}"


def test_a_finished_run_is_exported_as_its_language_allows(triton_problem, tmp_path):
    settings = TuneSettings(budget=Budget(evaluations=3), data_seed=1)
    machine = SimulatedMachine(lambda config, workload: 2.0 - 0.1 * config["num_warps"] if config else 3.0)
    tune(triton_problem(), settings=settings, run=tmp_path / "run", machine=machine)
    written = export_run(tmp_path / "run", tmp_path / "out", formats=usual_formats(tmp_path / "run"))
    assert [each.name for each in written] == ["scale.json", "scale.t4.json"]
    for name in ("source", "header"):
        with pytest.raises(UserError, match="its values are arguments of the launch"):
            export_run(tmp_path / "run", tmp_path / "out", formats=(name,))


@pytest.fixture
def tuned_run(triton_problem, tmp_path):
    settings = TuneSettings(budget=Budget(evaluations=4), data_seed=1)
    small_blocks = {"even": 128, "odd": 256}

    def cost(config, workload):
        return (1.0 if config["BLOCK"] == small_blocks[workload.name] else 2.0) if config else 3.0

    tune(triton_problem(), settings=settings, run=tmp_path / "run", machine=SimulatedMachine(cost))
    return tmp_path / "run"


def test_vllm_gets_a_config_for_each_measured_key(tuned_run, tmp_path):
    (file,) = export_run(tuned_run, tmp_path / "out", formats=["vllm"])
    found = json.loads(file.read_text())
    assert file.name.startswith("device_name=")
    assert [(key, found[key]["BLOCK"]) for key in found if key != "triton_version"] == [("4096", 128), ("4099", 256)]


def test_sglang_needs_the_version_that_names_its_folder(tuned_run, tmp_path):
    with pytest.raises(UserError, match="does not record Triton's version"):
        export_run(tuned_run, tmp_path / "out", formats=["sglang"])
    everything = export_run(tuned_run, tmp_path / "out")  # leaves it out, since nobody asked for it by name
    assert "scale_configs.py" in {each.name for each in everything}


def test_the_autotuner_gets_the_measured_choice_inside_the_domain_alone(tuned_run, tmp_path, monkeypatch):
    (file,) = export_run(tuned_run, tmp_path / "out", formats=["configs"])
    stand_in = SimpleNamespace(Config=lambda constants, **options: {**constants, **options})
    monkeypatch.setitem(sys.modules, "triton", stand_in)
    made = runpy.run_path(str(file))
    configs, prune = made["CONFIGS"], made["prune"]
    assert [each["BLOCK"] for each in prune(configs, {"n": 4096})] == [128]
    assert [each["BLOCK"] for each in prune(configs, {"n": 4099})] == [256]
    assert prune(configs, {"n": 5_000_000}) == [{"BLOCK": 128, "num_warps": 4}]  # the baseline
    assert prune(configs, {}) == configs


def test_the_version_of_triton_is_in_what_servers_read(triton_problem, tmp_path):
    class Recorded(SimulatedMachine):
        def device(self, selector, language):
            return replace(super().device(selector, language), facts={"triton": "3.6.0"})

    settings = TuneSettings(budget=Budget(evaluations=3), data_seed=1)
    tune(triton_problem(), settings=settings, run=tmp_path / "run", machine=Recorded(lambda c, w: 1.0 if c else 3.0))
    vllm, sglang = export_run(tmp_path / "run", tmp_path / "out", formats=["vllm", "sglang"])
    assert json.loads(vllm.read_text())["triton_version"] == "3.6.0"
    assert sglang.parent.name == "triton_3_6_0"
    assert "triton_version" not in json.loads(sglang.read_text())
