"""A Triton run as files that others read: the JSON of vLLM and SGLang, and a list of `triton.Config` with its pruning.

A file of vLLM or SGLang is for one key: the size with the most measured values (a number of tokens). The other sizes
stand in its name, so there is one file for each of their combinations: `E=8,N=4096,device_name=NVIDIA_H100.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kernelwright.dispatching.rule import Rule
from kernelwright.errors import UserError
from kernelwright.export.subject import ExportedRun, one_line, wrapped
from kernelwright.export.torch.expression import docstring_safe, literal
from kernelwright.problem.config import Config
from kernelwright.source.triton.reading import OPTIONS


def vllm_files(run: ExportedRun) -> dict[str, bytes]:
    """By name, vLLM's files of a run.

    Raises:
        UserError: nothing won, or the baseline that serves a shape is another kernel.
    """
    version = _triton_version(run)
    last = {"triton_version": version} if version else {}
    return {name: _json({**keys, **last}) for name, keys in _by_key(run).items()}


def sglang_files(run: ExportedRun) -> dict[str, bytes]:
    """By path, SGLang's files of a run: the same, in a folder for the version of Triton.

    Raises:
        UserError: as for vLLM, or the run does not tell the version.
    """
    version = _triton_version(run)
    if not version:
        raise UserError(
            f"the run {run.view.started.run_id!r} does not record Triton's version, which names SGLang's folder",
            hint="export vllm, or tune again with this version of Kernelwright",
        )
    return {f"triton_{version.replace('.', '_')}/{name}": _json(keys) for name, keys in _by_key(run).items()}


def configs_file(run: ExportedRun) -> dict[str, bytes]:
    """A Python file with `CONFIGS` and `prune`, for `@triton.autotune(configs=CONFIGS, key=[...], ...)`.

    `prune` gives the config of the dispatch table inside the domain, the baseline outside, and all where the kernel's
    arguments do not tell the sizes.

    Raises:
        UserError: nothing won.
    """
    return {f"{run.identifier}_configs.py": _configs_text(run).encode()}


def _json(document: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False)}\n".encode()


def _triton_version(run: ExportedRun) -> str:
    facts = run.view.started.device.get("facts", {})
    return str(facts.get("triton", "")) if isinstance(facts, Mapping) else ""


def own_baseline(run: ExportedRun) -> Config | None:
    """The baseline's config; None: it is another kernel."""
    baseline = run.subject.baseline
    is_same = baseline.template.source == run.template.source and set(baseline.config) == set(run.template.default)
    return baseline.config if is_same else None


# vLLM and SGLang


def _by_key(run: ExportedRun) -> dict[str, dict[str, dict[str, Any]]]:
    """By file name and key, the config that serves there."""
    table, device = run.table, re.sub(r"[^\w.-]", "_", run.device_name, flags=re.ASCII)
    key = _key(run)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for shape in table.shapes:
        named = [f"{name}={shape.sizes[name]}" for name in table.size_names if name != key]
        file = ",".join([*named, f"device_name={device}"])
        found.setdefault(f"{file}.json", {})[shape.sizes[key]] = _served(run, shape.sizes, shape.name)
    return {file: {str(value): keys[value] for value in sorted(keys)} for file, keys in found.items()}


def _key(run: ExportedRun) -> str:
    """The size with the most measured values, the first of several."""
    table = run.table
    return max(table.size_names, key=lambda name: len({shape.sizes[name] for shape in table.shapes}))


def _served(run: ExportedRun, sizes: Mapping[str, int], shape: str) -> dict[str, Any]:
    config = run.table.select(sizes) or own_baseline(run)
    if config is None:
        raise UserError(
            f"on {shape} the baseline is the choice, and it is another kernel, which this format cannot name",
            hint="export configs or json, which can leave a size to the baseline",
        )
    return dict(config)


# A list for the autotuner


def _configs_text(run: ExportedRun) -> str:
    places = [*run.configs]
    baseline = own_baseline(run)
    listed = list(dict.fromkeys([*places, baseline] if baseline is not None else places))
    outside = "configs" if baseline is None else f"[CONFIGS[{listed.index(baseline)}]]"
    sizes = _size_arguments(run)
    return (
        f"{_docstring(run)}\n\nimport triton\n\nCONFIGS = [\n"
        + "".join(f"    {_config_text(each)},\n" for each in listed)
        + f']\nSIZES = {literal(sizes)}\n"""By size, the kernel\'s argument that tells it."""\n\n\n'
        "def prune(configs, named_args, **kwargs):\n"
        '    """The measured choice for these arguments; all configs where they do not tell the sizes."""\n'
        "    given = {**named_args, **kwargs}\n"
        "    if any(type(given.get(name)) is not int for name in SIZES.values()):\n        return configs\n"
        + "".join(f'    {size} = given["{name}"]\n' for size, name in sizes.items())
        + _choosing(run, sizes, listed, outside)
    )


def _docstring(run: ExportedRun) -> str:
    lines = [
        f"Configs of {run.problem.name}, made by Kernelwright {run.view.started.version}.",
        "",
        f"Tuned on {run.device_name}; run {run.view.started.run_id}, started {run.view.started.created}.",
        f"Measured: {run.claim}.",
        "",
        '@triton.autotune(configs=CONFIGS, key=[...], prune_configs_by={"early_config_prune": prune})',
    ]
    text = [each for line in lines for each in wrapped(one_line(line))]
    return '"""' + docstring_safe("\n".join(text)) + '\n"""'


def _config_text(config: Config) -> str:
    constants = {name: value for name, value in config.items() if name not in OPTIONS}
    options = "".join(f", {name}={config[name]!r}" for name in config if name in OPTIONS and config[name])
    return f"triton.Config({literal(constants)}{options})"


def _size_arguments(run: ExportedRun) -> dict[str, str]:
    """By size the scalar argument that is it."""
    scalars = {
        each.value.text: each.name for each in run.problem.arguments if each.role == "scalar" and each.value is not None
    }
    return {size: scalars[size] for size in run.table.size_names if size in scalars}


def _choosing(run: ExportedRun, sizes: Mapping[str, str], listed: list[Config], outside: str) -> str:
    if set(sizes) != set(run.table.size_names):
        return "    return configs  # which size a call has cannot be told by its arguments\n"
    tests = [
        f"{span.low} <= {name} <= {span.high} and {name} % {span.step} == 0"
        for name, span in run.table.domain.ranges.items()
    ]
    return f"    if not ({' and '.join(tests)}):\n        return {outside}\n" + _questions(
        run, run.table.rule, listed, outside, "    "
    )


def _questions(run: ExportedRun, rule: Rule, listed: list[Config], outside: str, indent: str) -> str:
    if not isinstance(rule, tuple):
        low = _questions(run, rule.low, listed, outside, f"{indent}    ")
        return f"{indent}if {rule.text()}:\n{low}{_questions(run, rule.high, listed, outside, indent)}"
    configs = [run.table.configs[place] for place in rule]
    if configs[0] is None:
        return f"{indent}return {outside}\n"
    depends = any(each.names & set(run.problem.size_names) for each in run.table.constraints)
    kept = [each for each in configs if each is not None][: None if depends else 1]
    return f"{indent}return [{', '.join(f'CONFIGS[{listed.index(each)}]' for each in kept)}]\n"
