"""What won as a solution of FlashInfer-Trace or SOL-ExecBench, with its measurements as traces.

Of a CUDA run the solution is the PyTorch operator of `export --format torch`, of a Triton run its kernel. Both are in
Python, choose by sizes, and return the outputs. Each workload of the definition gets a trace of what serves it.

Schemas: flashinfer-ai/flashinfer-bench at commit 40e6ca7, NVIDIA/SOL-ExecBench at commit 8d2237d.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from kernelwright.dispatching.rule import Rule
from kernelwright.errors import UserError
from kernelwright.export.subject import ExportedRun, one_line
from kernelwright.export.torch import runtime
from kernelwright.export.torch.expression import RUNTIME, bare, docstring_safe, literal, python_text
from kernelwright.export.torch.operator import torch_files
from kernelwright.export.triton import own_baseline
from kernelwright.modules.exchange.inputs import record_of
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.outcome import Passed
from kernelwright.results.tune_result import WorkloadResult
from kernelwright.source.triton.reading import OPTIONS
from kernelwright.template.header import strip_header

Format = Literal["flashinfer-trace", "sol-execbench"]
_MAIN = "main.py"
_HELPERS = ("ceil_div", "round_up", "round_down", "log2", "floor_log2", "is_power_of_two", "next_power_of_two")


def exchange_files(run: ExportedRun, suite: Format) -> dict[str, bytes]:
    """The solution and its traces, by path.

    Raises:
        UserError: nothing won, the problem is no definition's, or neither a CUDA nor a Triton kernel.
    """
    found = record_of(run.problem.reference.file) if run.problem.reference.file.suffix == ".py" else None
    if found is None:
        raise UserError(
            f"{run.problem.name} is no problem of a definition, which a solution is for",
            hint="kernelwright init DEFINITION.json makes one",
        )
    if run.template.language not in ("cuda", "triton"):
        raise UserError(
            f"{run.template.file.name} is {run.template.language}, and solutions of {suite} are CUDA or Triton",
            hint='name program.cu under kernel in problem.toml, or export "source"',
        )
    sources = _triton_sources(run, found) if run.template.language == "triton" else _cuda_sources(run, found)
    solution = _solution(run, found, sources, suite)
    traces = "".join(f"{json.dumps(each, allow_nan=False)}\n" for each in _traces(run, found, solution["name"]))
    return {
        f"{suite}/{run.identifier}.solution.json": f"{json.dumps(solution, indent=2)}\n".encode(),
        f"{suite}/{run.identifier}.trace.jsonl": traces.encode(),
    }


def _solution(run: ExportedRun, record: Mapping[str, Any], sources: Mapping[str, str], suite: Format) -> dict[str, Any]:
    is_triton = run.template.language == "triton"
    is_sol = suite == "sol-execbench"
    word = "triton" if is_triton else "pytorch" if is_sol else "python"
    spec: dict[str, Any] = {
        **({"languages": [word]} if is_sol else {"language": word}),
        "target_hardware": ["LOCAL"] if is_sol else [run.device_name],
        "entry_point": f"{_MAIN}::run",
        "dependencies": ["torch", "triton"] if is_triton else ["torch"],
        "destination_passing_style": False,
    }
    return {
        "name": re.sub(r"[^\w.-]", "_", f"kernelwright_{run.identifier}_{run.view.started.run_id}"),
        "definition": record["name"],
        "author": f"Kernelwright {run.view.started.version}",
        "description": f"{run.claim}. Tuned on {run.device_name}.",
        "spec": spec,
        "sources": [{"path": path, "content": text} for path, text in sources.items()],
    }


# Sources


def _head(run: ExportedRun) -> str:
    lines = (f"{run.problem.name}, tuned by Kernelwright on {run.device_name}.", f"Measured: {run.claim}.")
    return '"""' + docstring_safe("\n\n".join(map(one_line, lines))) + '\n"""\n\n'


def _signature(record: Mapping[str, Any]) -> str:
    """All inputs of the definition, in its order."""
    return ", ".join(name for name in record["dtypes"] if name not in record["outputs"])


def _checks(record: Mapping[str, Any]) -> str:
    """What is passed by value must be what the kernel was tuned for."""
    return "".join(
        f"    if {name} != {value!r}:\n"
        f'        raise ValueError(f"{name} is {{{name}}}, and the kernel is for {value!r}")\n'
        for name, value in record["scalars"].items()
    )


def _cuda_sources(run: ExportedRun, record: Mapping[str, Any]) -> dict[str, str]:
    package = f"kernelwright_{run.identifier}"
    list(_sizes(run, record))  # refuses what the operator would have to be told
    files = {path: data.decode() for path, data in torch_files(run).items()}
    names = {own: name for name, own in record["inputs"].items()}
    given = [names[each.name] for each in run.problem.arguments if each.role == "input"]
    written = [each.name for each in run.problem.arguments if each.role == "output"]
    outputs = [written.index(own) for own in record["outputs"].values()]
    result = "found" if len(outputs) == 1 else f"({', '.join(f'found[{place}]' for place in outputs)})"
    main = (
        f"{_head(run)}try:\n    from .{package} import {run.identifier} as _operator\n"
        f"except ImportError:\n    from {package} import {run.identifier} as _operator\n\n\n"
        f"def run({_signature(record)}):\n{_checks(record)}"
        f"    found = _operator({', '.join(f'{name}.contiguous()' for name in given)})\n    return {result}\n"
    )
    return {_MAIN: main, **{path: text or "\n" for path, text in files.items()}}


def _triton_sources(run: ExportedRun, record: Mapping[str, Any]) -> dict[str, str]:
    kernel = f"{run.identifier}_kernel"
    text = strip_header(run.template.source)
    (step,) = run.template.steps
    configs = list(dict.fromkeys([*run.configs, *([base] if (base := own_baseline(run)) is not None else [])]))
    outside = configs.index(base) if base is not None else configs.index(run.config)
    limits = run.table.limits

    named = {name: f"sizes[{name!r}]" for name in run.problem.size_names}
    named |= {name: f"config[{name!r}]" for name in run.config}

    def shown(expression: Expression) -> str:
        value = bare(python_text(expression, limits, renamed=named))
        return {'"None"': "None"}.get(value, re.sub(r'"tl\.(\w+)"', r"tl.\1", value))

    calls = [f"{each.name}={_passed(run, record, each.name, shown)}" for each in run.problem.arguments]
    calls += [f"{name}={shown(value)}" for name, value in run.template.defines.items()]
    calls += [f'{name}=config["{name}"]' for name in run.config if name not in OPTIONS]
    calls += [f"**{{name: config[name] for name in {tuple(n for n in run.config if n in OPTIONS)!r} if config[name]}}"]
    made = "".join(
        f"    {own}_made = torch.empty({_shape(record['shapes'][name])}, dtype=torch.{record['dtypes'][name]}, "
        f"device={next(iter(record['inputs']))}.device)\n"
        for name, own in record["outputs"].items()
    )
    returned = ", ".join(f"{own}_made" for own in record["outputs"].values())
    grid = ", ".join(shown(each) for each in step.grid)
    passed = ",\n        ".join(calls)
    main = (
        f"{_head(run)}import math\n\nimport torch\nimport triton.language as tl  # noqa: F401\n\n"
        f"try:\n    from . import {kernel} as _source\nexcept ImportError:\n    import {kernel} as _source\n\n"
        f"CONFIGS = [\n{''.join(f'    {literal(dict(each))},{chr(10)}' for each in configs)}]\n\n\n"
        f"{_helpers()}\n\ndef _choose(sizes):\n{''.join(_choosing(run, configs, outside))}\n\n"
        f"_kernel = _source.{step.entry}\n"
        'while type(_kernel).__name__ in ("Autotuner", "Heuristics"):  # the choice is made here\n'
        "    _kernel = _kernel.fn\n\n\n"
        f"def run({_signature(record)}):\n{_checks(record)}{''.join(_sizes(run, record))}"
        f"    config = _choose(sizes)\n{made}"
        f"    _kernel[({grid},)](\n        {passed},\n"
        f"    )\n    return {returned}\n"
    )
    return {_MAIN: main, f"{kernel}.py": text}


def _passed(run: ExportedRun, record: Mapping[str, Any], name: str, shown: Any) -> str:
    argument = next(each for each in run.problem.arguments if each.name == name)
    if argument.role == "scalar":
        assert argument.value is not None
        return str(shown(argument.value))
    own = {own: tensor for tensor, own in record["inputs"].items()}
    return f"{own[name]}.contiguous()" if name in own else f"{name}_made"


def _helpers() -> str:
    """The functions of expressions, under the name that they are called by."""
    texts = "\n\n".join(inspect.getsource(getattr(runtime, name)) for name in _HELPERS)
    return f"{texts}\n\nclass {RUNTIME}:\n    math = math\n" + "".join(
        f"    {name} = staticmethod({name})\n" for name in _HELPERS
    )


def _shape(extents: list[str] | None) -> str:
    texts = [_in_sizes(each) for each in extents or ("1",)]
    return f"({', '.join(texts)},)"


def _in_sizes(text: str) -> str:
    expression = Expression.parse(text)
    return bare(python_text(expression, {}, renamed={name: f"sizes[{name!r}]" for name in expression.names}))


def _sizes(run: ExportedRun, record: Mapping[str, Any]) -> Iterator[str]:
    """Each size from the first axis that is it; then every shape is held against them.

    Raises:
        UserError: no input has an axis of a size.
    """
    known: dict[str, str] = {}
    for name in record["inputs"]:
        for place, extent in enumerate(record["shapes"][name]):
            known.setdefault(extent, f"{name}.shape[{place}]")
    for size in run.problem.size_names:
        if size not in known:
            raise UserError(f"no input of {run.problem.name} has an axis {size!r}, so a solution cannot know it")
    yield f"    sizes = {{{', '.join(f'{size!r}: {known[size]}' for size in run.problem.size_names)}}}\n"
    for name in record["inputs"]:
        wanted = _shape(record["shapes"][name])
        yield f"    if tuple({name}.shape) != {wanted}:\n"
        yield f'        raise ValueError(f"{name} is {{tuple({name}.shape)}}, expected {{{wanted}}}")\n'


def _choosing(run: ExportedRun, configs: list[Config], outside: int) -> Iterator[str]:
    names = {name: f"sizes[{name!r}]" for name in run.problem.size_names}
    for name, span in run.table.domain.ranges.items():
        test = f"{span.low} <= {names[name]} <= {span.high} and {names[name]} % {span.step} == 0"
        yield f"    if not ({test}):\n        return CONFIGS[{outside}]  # nothing near it was measured\n"
    yield from _questions(run, run.table.rule, configs, outside, names, "    ")


def _questions(
    run: ExportedRun, rule: Rule, configs: list[Config], outside: int, names: Mapping[str, str], indent: str
) -> Iterator[str]:
    if isinstance(rule, tuple):
        config = run.table.configs[rule[0]]
        yield f"{indent}return CONFIGS[{outside if config is None else configs.index(config)}]\n"
        return
    yield f"{indent}if {rule.text(lambda name: names[name])}:\n"
    yield from _questions(run, rule.low, configs, outside, names, f"{indent}    ")
    yield from _questions(run, rule.high, configs, outside, names, indent)


# Traces


def _traces(run: ExportedRun, record: Mapping[str, Any], solution: str) -> Iterator[dict[str, Any]]:
    """One for each workload of the definition that was measured; those alike in their axes were measured once."""
    rows = {each.workload: each for each in run.result.workloads}
    for workload in run.problem.workloads:
        row = rows.get(workload.name)
        config = run.table.select(workload.sizes)
        latency = None if row is None else _latency_ms(run, row, config)
        if row is None or latency is None:
            continue
        for each in record["workloads"].get(workload.name, ()):
            yield {
                "definition": record["name"],
                "workload": each,
                "solution": solution,
                "evaluation": _evaluation(run, row, config, latency),
            }


def _latency_ms(run: ExportedRun, row: WorkloadResult, config: Config | None) -> float | None:
    """Of what serves the workload; None: it was not measured there."""
    if config is None:
        return row.baseline_ms
    known = {row.specialised_config: row.specialised_ms, run.config: row.best_ms}
    return known.get(config)


def _evaluation(run: ExportedRun, row: WorkloadResult, config: Config | None, latency_ms: float) -> dict[str, Any]:
    """The reference was run for its numbers and never timed, so its latency and the factor stay 0, as the schema's."""
    found = [
        error
        for event in run.view.evaluations
        if isinstance(event.outcome, Passed) and event.config == config
        for error in event.outcome.errors
    ]
    interval = "" if row.speedup is None else f", {row.speedup.low:.3g} to {row.speedup.high:.3g} times as fast"
    return {
        "status": "PASSED",
        "environment": {"hardware": run.device_name, "libs": {"kernelwright": run.view.started.version}},
        "timestamp": run.view.started.created,
        "log": f"the baseline took {row.baseline_ms:.6g} ms beside it{interval}; the reference was not timed",
        "correctness": {
            "max_absolute_error": max((each.max_abs for each in found), default=0.0),
            "max_relative_error": 0.0,
            "extra": {
                "most_of_tolerance": max((each.tolerance_fraction for each in found), default=None),
                "relative_error": "not measured",
                "checked_against": "the reference in float64",
            },
        },
        "performance": {"latency_ms": latency_ms, "reference_latency_ms": 0.0, "speedup_factor": 0.0},
    }
