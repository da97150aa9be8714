"""A program's run as one Python file with `ModelNew`, in KernelBench's form.

The class is the module's own, without its `forward`: what runs is the program's launches and the library's calls
between them, and nothing else. On a GPU the launches are CUDA kernels, built by `load_inline`; on a CPU OpenCL kernels
on PyTorch's CPU tensors, by pyopencl.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kernelwright.backend.base import BufferArgument, DeviceInfo, LaunchPlan, LocalArgument, PlanStep, ScalarArgument
from kernelwright.backend.cuda.compile.options import parse_options
from kernelwright.backend.opencl.cpu import processor
from kernelwright.errors import UserError
from kernelwright.evaluate.builds.render import render_workload
from kernelwright.evaluate.device.arena import Job
from kernelwright.export.subject import ExportedRun, one_line
from kernelwright.export.torch.expression import docstring_safe, literal
from kernelwright.modules.graph import GraphNode
from kernelwright.modules.library import VIEWS, call_text, outputs_before, read_by, word
from kernelwright.modules.problem_files import MODULE, signature_of
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Problem
from kernelwright.problem.reference_file import parse_python
from kernelwright.source.lexer import definitions_of, directives, masked
from kernelwright.source.normal.draft import masked_comments
from kernelwright.store.event import RunStarted
from kernelwright.template.model import Candidate, Template
from kernelwright.template.outside import launches_before

ALIGNMENT = 512
MOST_OF_A_PRAGMA = 1000
"""Characters; names whose values name each other twice would double it at each step."""
_HOST_HEADERS = ("cstdint", "stdexcept", "vector")
_LAUNCH = (
    "void launch(const std::vector<std::uintptr_t> &addresses, int device, std::uintptr_t stream_address, int first, "
    "int last)"
)
_BINDING = "".join(f"#include <{name}>\n" for name in ("pybind11/pybind11.h", "pybind11/stl.h", *_HOST_HEADERS)) + (
    f'{_LAUNCH};\n\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("launch", &launch); }}\n'
)
"""Our own: where `load_inline` writes it, it names a function of PyTorch's headers."""


def module_file(run: ExportedRun) -> Mapping[str, bytes]:
    """The file of what won, by its name.

    Raises:
        UserError: nothing won, the problem is no PyTorch module's, or a launch cannot be said in such a file.
        ReferenceFailed: the frozen module is not Python.
    """
    candidate = Candidate(run.template, run.config)
    return {f"{run.identifier}_model_new.py": model_new(run.problem, candidate, run.view.started, run.claim)}


def model_new(problem: Problem, candidate: Candidate, started: RunStarted, claim: str) -> bytes:
    """The file with a candidate of a module's problem; the baseline is one too.

    Args:
        problem: frozen in a run, the module's file beside its reference.
        candidate: what is launched.
        started: of the run, for the device that everything was measured on.
        claim: what may be said of its speed beside the plain program's.

    Raises:
        UserError: the problem is no PyTorch module's, or a launch cannot be said in such a file.
        ReferenceFailed: the frozen module is not Python.
    """
    signature, language = signature_of(problem.reference), candidate.template.language
    if signature is None or language not in ("opencl", "cuda"):
        raise UserError(
            f"{problem.name} is no program of a PyTorch module", hint="kernelwright init MODULE.py makes one"
        )
    recorded = started.device.get("limits", {})
    limits = dict(recorded) if isinstance(recorded, Mapping) else {}
    kind: Literal["cpu", "gpu"] = "cpu" if language == "opencl" else "gpu"
    device = DeviceInfo(language, "recorded", one_line(str(started.device.get("name", "unknown device"))), kind, limits)
    rendered = render_workload(candidate, problem, problem.workloads[0], device)
    for step in rendered.plan:
        _refuse_special(step)
    name = "kernelwright_" + re.sub(r"\W", "_", f"{problem.name}_{candidate.id}", flags=re.ASCII)
    parts = (
        _docstring(problem, started, device.name, claim, signature["algebra"]),
        _own_class(problem.reference.file.with_name(MODULE), signature),
        _tensors(problem, kind, signature),
        _steps(candidate.template, signature),
        _opencl(rendered, device) if kind == "cpu" else _cuda(rendered, device, name),
    )
    return "\n\n".join(part.strip("\n") + "\n" for part in parts).encode()


def _refuse_special(step: PlanStep) -> None:
    what = "in clusters of blocks" if step.cluster else "with __constant__ variables" if step.constants else ""
    if what:
        raise UserError(
            f"{step.entry} is launched {what}, which a ModelNew file does not do", hint="export torch or header"
        )


def _docstring(problem: Problem, started: RunStarted, device: str, claim: str, algebra: Sequence[str]) -> str:
    is_alone = not any(each.after for each in problem.arguments)
    lines = [
        f"{problem.name} as KernelBench's ModelNew, made by Kernelwright {started.version}.",
        "",
        f"Tuned on {device}; run {started.run_id}, started {started.created}.",
        f"Measured against the plain {'program' if is_alone else 'kernels'}, not against PyTorch: {claim}.",
        "For the shapes and types of its example inputs only; there is no gradient.",
        *(f"Exact algebra, {label}." for label in algebra),
    ]
    return '"""' + docstring_safe("\n".join(one_line(line) for line in lines)) + '\n"""\n'


class _Renamed(ast.NodeTransformer):
    """`Model` as `ModelNew`, and no docstrings, which checkers of answers read as code."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("ModelNew", node.ctx) if node.id == "Model" else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.body = node.body or [ast.Return(None)]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.body = node.body or [ast.Expr(ast.Constant(...))]
        return node


def _own_class(file: Path, signature: Mapping[str, Any]) -> str:
    """The module's file with `ModelNew` for `Model`, whose `forward` runs the kernels."""
    tree = parse_python(file)
    found = next((each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Model"), None)
    methods = found.body if found is not None else []
    forward = next((each for each in methods if isinstance(each, ast.FunctionDef) and each.name == "forward"), None)
    if found is None or forward is None:
        raise UserError(f"{file.name} defines no class Model with its own forward", hint="define it in that file")
    names = [each.arg for each in (*forward.args.posonlyargs, *forward.args.args)]
    if len(names) <= len(signature["call"]):
        raise UserError(f"forward of {file.name} takes more arguments than it names", hint="name each argument")
    given = ", ".join(names[1 : 1 + len(signature["call"])])
    body = f"return _run({names[0]}, ({given},))"
    found.name, forward.body = "ModelNew", ast.parse(body).body
    forward.decorator_list, forward.returns = [], None
    return ast.unparse(ast.fix_missing_locations(_Renamed().visit(tree)))


def _tensors(problem: Problem, kind: str, signature: Mapping[str, Any]) -> str:
    """What the kernels take and give, and the check of it."""
    places = {place: each["ref"] for place, each in enumerate(signature["call"]) if isinstance(each, dict)}
    fixed = {place: each for place, each in enumerate(signature["call"]) if not isinstance(each, dict)}
    read = signature["dtypes"] or {each.name: each.dtype for each in problem.arguments if each.role == "input"}
    taken = {place: name for place, name in places.items() if name in read}
    rows = {name: f"({tuple(signature['tensors'][name])!r}, torch.{read[name]})" for name in read}
    outputs = {
        each.name: f"({tuple(signature['outputs'][each.name])!r}, torch.{each.dtype})" for each in problem.outputs
    }
    results = {name: f"({tuple(shape)!r}, torch.{dtype})" for name, (shape, dtype) in signature["results"].items()}
    results = results or {name: row for name, row in outputs.items() if name not in signature["updates"].values()}
    returned = {"tensor": "found[0]", "tuple": "tuple(found)", "list": "found"}[signature["returns"]]
    device = "cpu" if kind == "cpu" else "cuda"
    head, steps = "", "_steps(named, _memory(next(iter(named.values())).device))"
    if kind == "cpu":
        head = (
            "_ONE_AT_A_TIME = threading.Lock()  # kernels have one set of arguments and one scratch memory a process\n"
        )
        steps = f"with _ONE_AT_A_TIME:\n        {steps}"
    return f"""{"import threading" if head else ""}
import torch

{head}_PLACES = {taken!r}  # which arguments of forward the kernels read
_FIXED = {fixed!r}  # and which they are made for
_STATE = {signature["state"]!r}
_PATHS = {{name: target.split(".") for target, name in _STATE.items()}}
_TENSORS = {{{", ".join(f"{name!r}: {row}" for name, row in rows.items())}}}
_UPDATES = {signature["updates"]!r}  # buffers that forward changes
_OUTPUTS = {{{", ".join(f"{name!r}: {row}" for name, row in outputs.items())}}}
_RESULTS = {{{", ".join(f"{name!r}: {row}" for name, row in results.items())}}}


def _state(module, path):
    for part in path[:-1]:
        module = module._modules[part]  # a module's own attributes take ten times as long
    found = module._parameters.get(path[-1])
    return module._buffers[path[-1]] if found is None else found


def _taken(module, given):
    for place, value in _FIXED.items():
        if given[place] != value:
            raise ValueError(f"argument {{place}} is {{given[place]!r}}, and the kernels are made for {{value!r}}")
    named = {{name: given[place] for place, name in _PLACES.items()}}
    for name, path in _PATHS.items():
        named[name] = _state(module, path)
    for name, tensor in named.items():
        shape, dtype = _TENSORS[name]
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_{device}:
            raise ValueError(
                f"{{name}} is {{tuple(tensor.shape)}} of {{tensor.dtype}} on {{tensor.device}}, "
                f"and the kernels are made for {{shape}} of {{dtype}} on {device}"
            )
        if not tensor.is_contiguous():
            named[name] = tensor.contiguous()
    return named


def _allocate(tensors, names):
    device = next(iter(tensors.values())).device
    for name in names:
        shape, dtype = _OUTPUTS[name]
        tensors[name] = torch.empty(shape, dtype=dtype, device=device)


def _computed(named):
    {steps}
    return named


def _returned(module, named):
    for target, name in _UPDATES.items():
        _state(module, target.split(".")).copy_(named[name])
    found = [named[name] for name in _RESULTS]
    return {returned}


def _run(module, given):
    return _returned(module, _computed(_taken(module, given)))
"""


def _steps(template: Template, signature: Mapping[str, Any]) -> str:
    """Launches by their numbers, and the library's calls between them, each as early as it can be.

    A buffer is allocated before the first step that has it, and freed after the last one.
    """
    calls = [[GraphNode(name, op, given, ()) for name, op, given in call] for call in signature["calls"]]
    before = outputs_before([tuple(call) for call in calls], signature["outputs"])
    steps: list[tuple[list[str], set[str]]] = []
    done = 0

    def launch_until(place: int) -> None:
        nonlocal done
        if place > done:
            taken = {name for step in template.steps[done:place] for name in step.arguments or ()}
            steps.append(([f"_launch(tensors, memory, {done}, {place})"], taken))
            done = place

    for call in sorted(calls, key=lambda call: launches_before(template, before[call[-1].name])):
        launch_until(launches_before(template, before[call[-1].name]))
        steps.append(([f"_call_{call[-1].name}(tensors)"], {*read_by(call), call[-1].name}))
    launch_until(len(template.steps))
    head = "@torch.no_grad()\n" if calls else ""
    lines = "".join(f"    {line}\n" for line in _with_lives(steps, signature))
    names = (
        f"_ENTRIES = {tuple(step.entry for step in template.steps)!r}  # what is launched, by number\n"
        f"_CALLED = { ({call[-1].name: call[-1].op for call in calls})!r}  # the library's operator in each call\n"
    )
    return "\n\n".join([names, *map(_call_text, calls), f"{head}def _steps(tensors, memory):\n{lines}"])


def _with_lives(steps: Sequence[tuple[list[str], set[str]]], signature: Mapping[str, Any]) -> Iterator[str]:
    """The steps with what is allocated before each, and what is freed after it."""
    passing = [call[-1][0] for call in signature["calls"]]
    kept = {*signature["results"], *signature["updates"].values()} if passing else {*signature["outputs"]}
    last = {name: place for place, (_, taken) in enumerate(steps) for name in taken}
    made: set[str] = set()
    for place, (lines, taken) in enumerate(steps):
        if new := [name for name in signature["outputs"] if name in taken - made]:
            yield f"_allocate(tensors, {new!r})"
        made |= taken
        yield from lines
        if over := [name for name in (*signature["outputs"], *passing) if name not in kept and last.get(name) == place]:
            yield f"del {', '.join(f'tensors[{name!r}]' for name in over)}"


def _call_text(call: Sequence[GraphNode]) -> str:
    """The function of a library's call, so that a call has a name to be timed and blamed by."""
    own = {each.name for each in call[:-1]}

    def shown(name: str) -> str:
        return f"v_{name}" if name in own else f"tensors[{name!r}]"

    views = "".join(f"    v_{each.name} = {call_text(each, shown)}\n" for each in call[:-1])
    name, ending = call[-1].name, "" if word(call[-1]) in VIEWS else ".contiguous()"
    return f"def _call_{name}(tensors):\n{views}    tensors[{name!r}] = {call_text(call[-1], shown)}{ending}\n"


def _names(step: PlanStep) -> tuple[str, ...]:
    return tuple(each.name for each in step.arguments)


def _values(plan: LaunchPlan, kind: type[ScalarArgument | LocalArgument]) -> dict[str, Any]:
    return {
        each.name: each.data if isinstance(each, ScalarArgument) else each.byte_count
        for step in plan
        for each in step.arguments
        if isinstance(each, kind) and not isinstance(each, BufferArgument)
    }


def _source(rendered: Job) -> str:
    """The kernels with their values on top, without comments, which checkers of answers read as code.

    Pragmas have values for names: nvcc, other than NVRTC, defines no macros there.
    """
    values = dict(rendered.unit.macros)
    defines = "".join(f"#define {name} {text}\n" for name, text in values.items())
    source = masked_comments(rendered.unit.source)
    code = masked(source)
    own = {each.name: each.body.strip() for each in definitions_of(code) if each.parameters is None}
    for each in reversed(list(directives(code))):
        if each.word == "pragma":
            pragma = _with_values(source[each.rest_start : each.end], {**own, **values})
            source = source[: each.rest_start] + pragma + source[each.end :]
    lines = [""]
    for line in source.splitlines():
        if line.strip() or lines[-1].endswith("\\"):  # an empty line ends a macro that goes on
            lines.append(line.rstrip())
    return defines + "\n".join(lines[1:]) + "\n"


def _with_values(text: str, values: Mapping[str, str]) -> str:
    """A text in which names have their values, also names of values, as far as they do not go in circles."""
    for _ in values:
        before, text = text, re.sub(r"\b[A-Za-z_]\w*\b(?!\s*\()", lambda word: values.get(word[0], word[0]), text)
        if text == before or len(text) > MOST_OF_A_PRAGMA:
            break
    return text


def _quoted(text: str) -> str:
    """A literal over lines where that is the same text, else on one line."""
    is_plain = "'''" not in text and not text.endswith(("'", "\\"))
    return f"r'''{text}'''" if is_plain else literal(text)


def _opencl(rendered: Job, device: DeviceInfo) -> str:
    launches = "".join(
        f"    ({literal(step.entry)}, {tuple(g * b for g, b in zip(step.grid, step.block, strict=True))!r}, "
        f"{step.block!r}, {_names(step)!r}),\n"
        for step in rendered.plan
    )
    return f'''import functools

import numpy
import pyopencl as cl

{inspect.getsource(processor)}

_DEVICE = {literal(device.name)}  # that was tuned on; else the first CPU
_SOURCE = {_quoted(_source(rendered))}
_OPTIONS = {list(rendered.unit.options)!r}
_SCRATCH = {rendered.scratch_bytes!r}
_SCALARS = {_values(rendered.plan, ScalarArgument)!r}
_LOCAL = {_values(rendered.plan, LocalArgument)!r}
_LAUNCHES = (  # kernel, work-items, of a group, arguments
{launches})


@functools.cache
def _built():
    devices = [each for platform in cl.get_platforms() for each in platform.get_devices()]
    fitting = [each for each in devices if _DEVICE in each.name] or [
        each for each in devices if each.type & cl.device_type.CPU
    ]
    if not fitting:
        raise RuntimeError("no OpenCL device is a CPU: pip install pocl-binary-distribution")
    name_processor(fitting[0].int_ptr)
    context = cl.Context(fitting[:1])
    program = cl.Program(context, _SOURCE).build(_OPTIONS)
    known = {{name: cl.Buffer(context, cl.mem_flags.READ_WRITE, max(1, count)) for name, count in _SCRATCH.items()}}
    known |= {{name: numpy.frombuffer(data, numpy.uint8) for name, data in _SCALARS.items()}}
    known |= {{name: cl.LocalMemory(count) for name, count in _LOCAL.items()}}
    kernels = [cl.Kernel(program, entry) for entry, *_ in _LAUNCHES]
    return context, cl.CommandQueue(context), kernels, known


def _memory(device):
    return _built()


def _launch(tensors, memory, first, last):
    """The kernels work on the tensors' own memory."""
    context, queue, kernels, known = memory
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    used = dict.fromkeys(name for launch in _LAUNCHES[first:last] for name in launch[3] if name not in known)
    arrays = {{name: tensors[name].detach().reshape(-1).view(torch.uint8).numpy() for name in used}}
    buffers = known | {{name: cl.Buffer(context, flags, hostbuf=array) for name, array in arrays.items()}}
    for kernel, (_, work_items, group, names) in zip(kernels[first:last], _LAUNCHES[first:last]):
        kernel.set_args(*(buffers[name] for name in names))
        cl.enqueue_nd_range_kernel(queue, kernel, work_items, group)
    for name in used:  # a map is what makes the results visible in the tensors' memory
        if name not in _OUTPUTS:
            continue
        array = arrays[name]
        mapped, _ = cl.enqueue_map_buffer(queue, buffers[name], cl.map_flags.READ, 0, array.shape, array.dtype)
        mapped.base.release(queue)
    queue.finish()
'''


def _cuda(rendered: Job, device: DeviceInfo, name: str) -> str:
    number = device.limits.get("compute_capability", 0)
    options = [
        each
        for each in parse_options(rendered.unit.options, capability=number).passed
        if not each.startswith(("-default-device", "--device-as-default"))
    ]
    if rendered.unit.include_paths:
        raise UserError("the kernels include the problem's own headers", hint="export torch, which takes them along")
    tensors = list(dict.fromkeys(
        each.name for step in rendered.plan for each in step.arguments if isinstance(each, BufferArgument)
    ))  # fmt: skip
    launches = "".join(_cuda_launch(step, tensors, place) for place, step in enumerate(rendered.plan))
    head = "".join(f"#include <{name}>\n" for name in ("cuda_runtime.h", *_HOST_HEADERS)) + "\n"
    return f"""import inspect

from torch.utils.cpp_extension import load_inline

_ARGUMENTS = {tensors!r}
_SCRATCH_BYTES, _OFFSETS = {_packed(rendered.scratch_bytes)!r}  # one allocation a call
_SOURCE = {_quoted(head + _source(rendered) + _host(launches))}
_SLIM = "no_implicit_headers"  # PyTorch's own headers, which are not needed, take most of a minute
_BUILT = load_inline(
    name={literal(name)},
    cpp_sources={literal(_BINDING)},
    cuda_sources=_SOURCE,
    extra_cuda_cflags={options!r},
    **({{_SLIM: True}} if _SLIM in inspect.signature(load_inline).parameters else {{}}),
)


_RAW_STREAM = torch._C._cuda_getCurrentRawStream  # torch.cuda.current_stream makes an object for each call


def _memory(device):
    scratch = torch.empty(_SCRATCH_BYTES, dtype=torch.uint8, device=device) if _SCRATCH_BYTES else None
    return scratch, device.index


def _launch(tensors, memory, first, last):
    scratch, index = memory
    known = {{name: tensor.data_ptr() for name, tensor in tensors.items()}}
    if scratch is not None:
        begin = scratch.data_ptr()
        known |= {{name: begin + offset for name, offset in _OFFSETS.items()}}
    addresses = [known.get(name, 0) for name in _ARGUMENTS]
    _BUILT.launch(addresses, index, _RAW_STREAM(index), first, last)
"""


def _packed(byte_counts: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Bytes of one allocation for all buffers, and where each begins, aligned as PyTorch aligns its own."""
    end, offsets = 0, {}
    for name, count in byte_counts.items():
        offsets[name] = end
        end += -(-max(1, count) // ALIGNMENT) * ALIGNMENT
    return end, offsets


def _host(launches: str) -> str:
    """What launches the kernels on a device's stream, and leaves the current device as it was."""
    return (
        "\n\nstatic void checked(cudaError_t error) {\n"
        "  if (error != cudaSuccess) {\n"
        "    throw std::runtime_error(cudaGetErrorString(error));\n"
        "  }\n}\n\n"
        f"{_LAUNCH} {{\n"
        "  const cudaStream_t stream = reinterpret_cast<cudaStream_t>(stream_address);\n"
        "  int current = 0;\n"
        "  checked(cudaGetDevice(&current));\n"
        "  if (current != device) {\n"
        "    checked(cudaSetDevice(device));\n"
        "  }\n"
        f"{launches}"
        "  if (current != device) {\n"
        "    checked(cudaSetDevice(current));\n"
        "  }\n}\n"
    )


def _cuda_launch(step: PlanStep, tensors: list[str], number: int) -> str:
    """One launch in C++; arguments go by their addresses, so that no type is said twice."""
    kernel = f"reinterpret_cast<const void *>(&{step.entry})"
    lines = []
    for place, each in enumerate(step.arguments):
        if isinstance(each, BufferArgument):
            lines.append(f"std::uintptr_t a{place} = addresses[{tensors.index(each.name)}];")
        elif isinstance(each, ScalarArgument):
            size = DTYPES[each.dtype].item_bytes
            lines.append(f"alignas({size}) unsigned char a{place}[] = {{{', '.join(map(str, each.data))}}};")
    lines.append(f"void *arguments[] = {{{', '.join(f'&a{place}' for place in range(len(step.arguments)))}}};")
    if step.shared_bytes > 48 << 10:
        attribute = "cudaFuncAttributeMaxDynamicSharedMemorySize"
        lines.append(f"checked(cudaFuncSetAttribute({kernel}, {attribute}, {step.shared_bytes}));")
    call = "cudaLaunchCooperativeKernel" if step.is_cooperative else "cudaLaunchKernel"
    grid, block = (", ".join(map(str, each)) for each in (step.grid, step.block))
    lines.append(f"checked({call}({kernel}, dim3({grid}), dim3({block}), arguments, {step.shared_bytes}, stream));")
    head = f"  if (first <= {number} && {number} < last) {{\n"
    return head + "".join(f"    {line}\n" for line in lines) + "  }\n"
