"""A run's kernels in a model of one's own: modules like the run's get them in place, and keep their own `forward`.

```python
import kernelwright

swapped = kernelwright.apply(model, "runs/gate-1")    # names of the modules
```

A call goes to the kernels where its shapes, types, device and plain values are those that they are made for and no
gradient is asked for; every other call goes to the module's own `forward`. The first call in each training mode, and
with each set of plain attributes, computes both, also on its numbers in another order; a module whose results differ
keeps its own. A copy of a module
is served with its own weights; a pickled one has its own `forward`.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib.util
import inspect
import sys
import tempfile
import textwrap
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelwright.errors import UserError
from kernelwright.export.subject import ExportedRun
from kernelwright.export.torch.agreement import agree, results_of
from kernelwright.export.torch.module import module_file
from kernelwright.identity import content_id
from kernelwright.imports import require
from kernelwright.modules.problem_files import MODULE
from kernelwright.problem.reference_file import parse_python

_MOST_MODES = 64
"""Verdicts that are kept of a module: one that counts its calls has a new mode for each."""


def apply(model: Any, run: Path | str) -> tuple[str, ...]:
    """Give the modules in `model` that are the run's the kernels that won; `del module.forward` takes them back.

    A module is the run's where its class has the source of the run's `Model`, whatever its name.

    Args:
        model: a `torch.nn.Module`, changed in place.
        run: the folder of a run of a PyTorch module's program.

    Returns:
        The modules' names in `model`; `""` is the model itself.

    Raises:
        UserError: nothing won, the run is no module's, or the model has no such module.
        MissingDependency: PyTorch is not installed, or pyopencl for a run of OpenCL kernels.
        ReferenceFailed: the frozen module is not Python.
    """
    torch = require("torch", purpose="a run's kernels in a model")
    exported = ExportedRun.read(Path(run))
    (text,) = module_file(exported).values()
    if exported.template.language == "opencl":
        require("pyopencl", purpose="OpenCL kernels in a model")
    wanted = _body(parse_python(exported.problem.reference.file.with_name(MODULE)))
    answer, operator = _loaded(text, f"{exported.identifier}_{content_id(text.decode())}")
    own = {kind for kind in {type(each) for each in model.modules()} if _source(kind) == wanted}
    found = [(name, each) for name, each in model.named_modules() if type(each) in own and _has_state(each, answer)]
    if not found:
        raise UserError(
            f"the model has no module with the source of the run's Model ({exported.problem.name})",
            hint="apply takes modules of the class that kernelwright init was given",
        )
    for _, module in found:
        module.forward = types.MethodType(_guarded(torch, module, answer, operator), module)
    return tuple(name for name, _ in found)


def _body(tree: ast.Module) -> str:
    """A class without its name, docstrings and places."""
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    if not classes:
        return ""
    found = next((each for each in classes if each.name == "Model"), classes[0])

    class _Plain(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name("Model", node.ctx) if node.id == found.name else node

        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    return "\n".join(ast.dump(each) for line in found.body if (each := _Plain().visit(line)) is not None)


def _source(kind: Any) -> str | None:
    """Of a module's class, as `_body` gives it; None: Python cannot show it."""
    try:
        return _body(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):
        return None


@functools.cache
def _loaded(text: bytes, name: str) -> tuple[Any, Callable[..., Any]]:
    """The file as a module, and its operator: a process knows one of a name."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-apply-") as scratch:
        file = Path(scratch) / "answer.py"
        file.write_bytes(text)
        spec = importlib.util.spec_from_file_location(f"kernelwright_applied_{name}", file)
        assert spec is not None
        assert spec.loader is not None
        loaded = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where compilers look for globals
        spec.loader.exec_module(loaded)
    return loaded, _operator(require("torch", purpose="an operator"), loaded, f"kernelwright::{name}")


def _has_state(module: Any, answer: Any) -> bool:
    """Whether it has the parameters and buffers that the kernels read, in their shapes."""
    known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return all(
        target in known and tuple(known[target].shape) == tuple(answer._TENSORS[name][0])  # noqa: SLF001 - ours
        for name, target in _targets(answer).items()
    )


def _targets(answer: Any) -> dict[str, str]:
    return {name: ".".join(path) for name, path in answer._PATHS.items()}  # noqa: SLF001 - our own file's


def _operator(torch: Any, answer: Any, name: str) -> Callable[..., Any]:
    """The kernels as an operator of `torch.library`, which compilers see as one; it has no gradient."""
    results: Mapping[str, Any] = answer._RESULTS  # noqa: SLF001 - our own file's
    kept = {each: answer._OUTPUTS[each] for each in answer._UPDATES.values()}  # noqa: SLF001
    rows = [*results.values(), *kept.values()]

    def computed(tensors: list[Any]) -> list[Any]:
        given = dict(zip(answer._TENSORS, (each.contiguous() for each in tensors), strict=True))  # noqa: SLF001
        found = answer._computed(given)  # noqa: SLF001 - our own file's
        return [found[each].clone(memory_format=torch.contiguous_format) for each in (*results, *kept)]

    def like(tensors: list[Any]) -> list[Any]:
        return [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in rows]

    tensors = list[torch.Tensor]
    for each in (computed, like):
        each.__annotations__ = {"tensors": tensors, "return": tensors}
    made = torch.library.custom_op(name, computed, mutates_args=())
    made.register_fake(like)
    return made  # type: ignore[no-any-return]


def _guarded(torch: Any, like: Any, answer: Any, operator: Callable[..., Any]) -> Callable[..., Any]:
    """A method: a copy of a module has it with the copy, and a pickled module the method of its class."""
    kind = type(like)
    asked = [
        [name for name, each in vars(part).items() if isinstance(each, bool | int | float | str)]
        for part in like.modules()
    ]
    whole = inspect.signature(kind.forward)
    signature = whole.replace(parameters=[*whole.parameters.values()][1:])
    places = [*signature.parameters]
    verdicts: dict[tuple[Any, ...], bool] = {}

    @functools.wraps(kind.forward)
    def forward(module: Any, *given: Any, **named: Any) -> Any:
        parts = tuple(module.modules())
        tensors = None if _is_watched(torch, parts) else _taken(torch, answer, module, signature, given, named)
        if tensors is None:
            return kind.forward(module, *given, **named)
        unread = tuple(
            (tuple(each.shape), each.dtype)
            for place, each in (
                *enumerate(given),
                *((places.index(name), each) for name, each in named.items() if name in places),
            )
            if torch.is_tensor(each) and place not in answer._PLACES  # noqa: SLF001 - our own file's
        )
        plain = (getattr(part, name, None) for part, names in zip(parts, asked, strict=False) for name in names)
        mode = (*plain, *unread)  # `training`, a dropout's `p`: whatever `forward` may ask
        if len(verdicts) >= _MOST_MODES and mode not in verdicts:
            return kind.forward(module, *given, **named)
        if torch.compiler.is_compiling():
            if not verdicts.get(mode, False):  # only a call outside of a compiler can compare
                return kind.forward(module, *given, **named)
            found = operator([tensors[name] for name in answer._TENSORS])  # noqa: SLF001 - our own file's
            names = (*answer._RESULTS, *answer._UPDATES.values())  # noqa: SLF001
            return answer._returned(module, dict(zip(names, found, strict=True)))  # noqa: SLF001
        if mode not in verdicts:
            verdicts[mode], result = _tried(torch, module, answer, signature, given, named, tensors)
            return result
        if not verdicts[mode]:
            return kind.forward(module, *given, **named)
        return answer._returned(module, answer._computed(tensors))  # noqa: SLF001

    return forward


def _is_watched(torch: Any, parts: tuple[Any, ...]) -> bool:
    """Whether hooks of parts want their calls, which kernels do not make, or the context other types of results."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return True
    return any(each._forward_hooks or each._forward_pre_hooks for each in parts[1:])  # noqa: SLF001 - no other way


def _taken(
    torch: Any, answer: Any, module: Any, signature: inspect.Signature, given: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any] | None:
    """The tensors of a call that the kernels are made for; None: it is another one."""
    if named or len(given) != len(signature.parameters):
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            return None
        bound.apply_defaults()
        given = bound.args
    try:
        tensors: dict[str, Any] = answer._taken(module, given)  # noqa: SLF001 - our own file's
    except (ValueError, AttributeError, IndexError, KeyError, TypeError, RuntimeError):
        return None
    if len({each.device for each in tensors.values()}) != 1:
        return None
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors.values()):
        return None
    return tensors


def _tried(
    torch: Any,
    module: Any,
    answer: Any,
    signature: inspect.Signature,
    given: tuple[Any, ...],
    named: dict[str, Any],
    tensors: dict[str, Any],
) -> tuple[bool, Any]:
    """Whether the kernels give what the module gives, and the module's own result; its buffers are changed once.

    One call may agree by chance, so the numbers of this one are also tried in another order.
    """
    others = tuple(_shuffled(torch, each) for each in given), {name: _shuffled(torch, named[name]) for name in named}
    is_right = True
    with contextlib.suppress(Exception):  # a module may refuse numbers in another order, or to be copied
        twin = copy.deepcopy(module)  # its counters and buffers go on by one call alone
        other = _taken(torch, answer, twin, signature, *others)
        is_right = other is None or _compared(torch, twin, answer, *others, other)[0]
    is_same, result = _compared(torch, module, answer, given, named, tensors)
    if not (is_right and is_same):
        warnings.warn(
            f"the kernels differ from {type(module).__name__}'s own forward here, which is kept", stacklevel=3
        )
    return is_right and is_same, result


def _shuffled(torch: Any, value: Any) -> Any:
    """A tensor's floats in another order, drawn by a generator of its own; floats that are all the same: drawn.

    Whole numbers stay in their places, each of which may have bounds of its own: on a GPU an index beyond a table ends
    the process.
    """
    if not torch.is_tensor(value):
        return value
    if value.numel() < 2 or not value.is_floating_point():
        return value.clone()
    drawn = torch.Generator(device=value.device)
    drawn.seed()
    flat = value.detach().reshape(-1)
    if bool((flat == flat[0]).all()):
        return torch.empty_like(value).normal_(generator=drawn)
    return flat[torch.randperm(len(flat), generator=drawn, device=value.device)].reshape(value.shape)


def _compared(
    torch: Any, module: Any, answer: Any, given: tuple[Any, ...], named: dict[str, Any], tensors: dict[str, Any]
) -> tuple[bool, Any]:
    """Whether both agree on a call, and the module's own result; its buffers are changed by that alone."""
    before = {name: each.clone() for name, each in module.named_buffers()}
    kept = {name: each.clone() for name, each in tensors.items()}
    found = results_of(answer._returned(module, answer._computed(kept)))  # noqa: SLF001 - our own file's
    after = {name: each.clone() for name, each in module.named_buffers()}
    for name, each in module.named_buffers():
        each.copy_(before[name])
    result = type(module).forward(module, *given, **named)
    wanted = results_of(result)
    pairs = [*zip(found, wanted, strict=False), *((after[name], each) for name, each in module.named_buffers())]
    return len(found) == len(wanted) and all(agree(torch, *pair) for pair in pairs), result
