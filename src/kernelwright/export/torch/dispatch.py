"""The generated `dispatch.py` of a PyTorch operator: which kernel serves which sizes. There is no torch in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.backend.base import BuildFailed, DeviceInfo
from kernelwright.backend.cuda.compile.options import parse_options
from kernelwright.dispatching.rule import Rule
from kernelwright.errors import UserError
from kernelwright.evaluate.builds.render import build_unit
from kernelwright.export.subject import ExportedRun, one_line, wrapped
from kernelwright.export.torch.expression import RUNTIME, bare, docstring_safe, literal, python_text
from kernelwright.problem.config import Config, Value
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.results.configured_source import recorded_names
from kernelwright.template.model import Candidate, Template
from kernelwright.tuning.device_limits import device_constraints


@dataclass(frozen=True, slots=True)
class _Given:
    """What a caller of the operator gives beside tensors."""

    scalars: tuple[Argument, ...]
    """Scalars whose value follows from no size."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(each.name for each in self.scalars)

    def defaults(self, limits: Mapping[str, Value]) -> dict[str, int | float]:
        """Their values when it was tuned."""
        found: dict[str, int | float] = {}
        for each in self.scalars:
            value = each.value.evaluate(limits) if each.value is not None else 0
            if isinstance(value, str):
                raise UserError(f"scalar {each.name!r} is the text {value!r}, expected a number")
            found[each.name] = float(value) if DTYPES[each.dtype].kind == "float" else int(value)
        return found


def given_scalars(run: ExportedRun) -> _Given:
    """Scalars of the problem that are no function of the sizes: they are arguments of the operator."""
    sizes = set(run.problem.size_names)
    return _Given(
        tuple(
            each
            for each in run.problem.arguments
            if each.role == "scalar" and each.value is not None and not each.value.names & sizes
        )
    )


def dispatch_text(run: ExportedRun) -> str:
    """The module's text.

    Raises:
        UserError: nothing won, or a kernel needs what the runtime cannot do.
    """
    return _Writer(run).text()


class _Writer:
    """One module while it is written."""

    def __init__(self, run: ExportedRun) -> None:
        self.run = run
        self.table = run.table
        self.sizes = run.problem.size_names
        self.limits = self.table.limits
        capability = self.limits.get("device.compute_capability")
        self.capability = capability if isinstance(capability, int) else None
        self.given = given_scalars(run)

    def text(self) -> str:
        """All parts, in the order of a reader."""
        parts = [
            self._docstring(),
            "from __future__ import annotations\n\nimport functools\nfrom typing import Any\n\n"
            + f"from . import runtime as {RUNTIME}\n",
            self._constants(),
            self._select(),
            self._feasible("_meets", self.table.constraints, self.run.template),
            self._unit("_tuned_unit", self.run.template),
            self._launches("_tuned_launches", self.run.template),
            self._baseline(),
            self._plan(),
            self._scalars(),
        ]
        return "\n\n".join(part.strip("\n") + "\n" for part in parts)

    def _docstring(self) -> str:
        run = self.run
        lines = [
            f"Which kernel serves which sizes of {run.problem.name}, made by Kernelwright {run.view.started.version}.",
            "",
            f"Tuned on {run.device_name}; run {run.view.started.run_id}, started {run.view.started.created}.",
            f"Measured: {run.claim}.",
            "",
            *self.table.rule_lines(),
            "",
            *run.table_notes(),
        ]
        text = [each for line in lines for each in wrapped(one_line(line))]
        return '"""' + docstring_safe("\n".join(text)) + '\n"""\n'

    def _constants(self) -> str:
        rows = "".join(f"    {literal(config)},\n" for config in self.run.configs)
        options = "".join(f"    {literal(self._options(self.run.template, each)[0])},\n" for each in self.run.configs)
        defaults = ", ".join(f'"{name}": {value!r}' for name, value in self.given.defaults(self.limits).items())
        return (
            f"SIZES = {literal(tuple(self.sizes))}\n"
            f"SCALARS: dict[str, float] = {{{defaults}}}  # that no size tells, with their values when it was tuned\n"
            f"CAPABILITY = {self.capability!r}  # of the device that was tuned on\n"
            f"CONFIGS: tuple[dict[str, Any], ...] = (\n{rows})\n"
            f"OPTIONS: tuple[tuple[str, ...], ...] = (\n{options})  # for the compiler, by config\n"
        )

    # -- which config --------------------------------------------------------------------------------------------

    def _select(self) -> str:
        sizes = ", ".join(f"{name}: int" for name in self.sizes)
        names = ", ".join(self.sizes)
        tests = "".join(f"        {'and ' if i else ''}{test}\n" for i, test in enumerate(self._domain_tests()))
        return (
            f"def in_domain({sizes}) -> bool:\n"
            '    """Whether these sizes lie between the measured ones."""\n'
            f"    return (\n{tests}    )\n\n\n"
            f"def select({sizes}) -> int | None:\n"
            '    """The place of the config for these sizes; None: use the baseline."""\n'
            f"    if not in_domain({names}):\n        return None\n"
            f"{self._questions(self.table.rule, '    ')}"
            f"    return next((_place for _place in _order if _meets(**CONFIGS[_place], {self._passed()})), None)\n"
        )

    def _passed(self) -> str:
        return ", ".join(f"{name}={name}" for name in self.sizes)

    def _domain_tests(self) -> list[str]:
        domain, tests = self.table.domain, []
        for name, span in domain.ranges.items():
            tests.append(f"{span.low} <= {name} <= {span.high}" if span.low != span.high else f"{name} == {span.low}")
            if span.step > 1 and span.low != span.high:
                tests.append(f"{name} % {span.step} == 0")
        for name, expression in domain.derived.items():
            tests.append(f"{name} == {python_text(expression, {})}")
        tests.append(f"{bare(python_text(domain.bytes, {}))} <= {domain.most_bytes}")
        return tests

    def _questions(self, rule: Rule, indent: str) -> str:
        if isinstance(rule, tuple):
            real = [place for place, config in enumerate(self.table.configs) if config is not None]
            places = {place: number for number, place in enumerate(real)}
            order = tuple(places[place] for place in rule if place in places)
            return f"{indent}_order: tuple[int, ...] = {order!r}\n"
        return (
            f"{indent}if {rule.text()}:\n{self._questions(rule.low, indent + '    ')}"
            f"{indent}else:\n{self._questions(rule.high, indent + '    ')}"
        )

    def _feasible(self, name: str, constraints: Sequence[Expression], template: Template) -> str:
        for each in constraints:
            unknown = [name for name in each.names if name.startswith("device.") and name not in self.limits]
            if unknown:
                raise UserError(f"the value of {unknown[0]!r} is not known in this run's record")
        tests = [f"{RUNTIME}.holds(lambda: {bare(python_text(each, self.limits))})" for each in constraints]
        joined = "".join(f"        {'and ' if place else ''}{test}\n" for place, test in enumerate(tests or ["True"]))
        return (
            f"def {name}(\n{self._parameters(template)}) -> bool:\n"
            f'    """Whether every constraint holds."""\n    return (\n{joined}    )\n'
        )

    def _parameters(self, template: Template, *, scalars: bool = False) -> str:
        sizes = [f"{name}: int" for name in self.sizes]
        names = [f"{name}: {_annotation(template.default[name])}" for name in template.default]
        own = [f"{_given(name)}: float" for name in self.given.names] if scalars else []
        return "".join(f"    {each},\n" for each in ["*", *sizes, *names, *own])

    # -- launches ------------------------------------------------------------------------------------------------

    def _unit(self, name: str, template: Template) -> str:
        words = [f'f"-D{each}={{{RUNTIME}.text({each})}}"' for each in template.default]
        words += [
            f'f"-D{each}={{{RUNTIME}.text({bare(python_text(expression, self.limits))})}}"'
            for each, expression in template.defines.items()
        ]
        names = recorded_names(self.run.view.started, self.run.problem)
        unit = build_unit(Candidate(template, template.default), {**next(iter(names.values())), **template.default})
        folder = self.run.problem.file.parent
        include = tuple(path.relative_to(folder).as_posix() for path in unit.include_paths)
        listed = "".join(f"            {word},\n" for word in words)
        return (
            f"def {name}(\n    options: tuple[str, ...],\n{self._parameters(template)}) -> {RUNTIME}.Unit:\n"
            f'    """What to compile."""\n    return {RUNTIME}.Unit(\n'
            f"        {literal(template.file.relative_to(folder).as_posix())},\n"
            f"        (\n            *options,\n{listed}        ),\n        {literal(unit.entries)},\n"
            f"        arch={literal(self._options(template, template.default)[1])},\n"
            f"        include={literal(include)},\n    )\n"
        )

    def _options(self, template: Template, config: Config) -> tuple[tuple[str, ...], str]:
        """Compile options for NVRTC with a config, and the architecture where it is not the device's plain one.

        Raises:
            UserError: NVRTC cannot build it, or the options depend on sizes.
        """
        candidate = Candidate(template, config)
        units = [
            build_unit(candidate, {**names, **config})
            for names in recorded_names(self.run.view.started, self.run.problem).values()
        ]
        if any(unit.options != units[0].options for unit in units):
            raise UserError("compile options that depend on sizes cannot be exported for PyTorch")
        try:
            options = parse_options(units[0].options, capability=self.capability or 0)
        except BuildFailed as error:
            raise UserError(error.message) from error
        if options.compiler == "nvcc":
            raise UserError(
                f"{template.file.name} is built with nvcc, and the exported operator compiles with NVRTC",
                hint="see whether the source builds without --compiler=nvcc",
            )
        return options.passed, "" if options.arch == f"sm_{self.capability or 0}" else options.arch

    def _launches(self, name: str, template: Template) -> str:
        arguments = {each.name: each for each in (*self.run.problem.arguments, *template.scratch)}
        steps = "".join(self._launch(step, arguments) for step in template.steps)
        return (
            f"def {name}(\n{self._parameters(template, scalars=True)}) -> tuple[{RUNTIME}.Launch, ...]:\n"
            f'    """What to launch, in order."""\n    return (\n{steps}    )\n'
        )

    def _launch(self, step: LaunchStep, arguments: Mapping[str, Argument]) -> str:
        order = tuple(arguments) if step.arguments is None else step.arguments
        listed = "".join(f"                {self._argument(arguments[name])},\n" for name in order)
        extras = ""
        if step.shared_bytes is not None:
            extras += f"            shared_bytes={self._extent(step.shared_bytes)},\n"
        if step.cluster:
            extras += f"            cluster={self._extents(step.cluster)},\n"
        if step.constants:
            rows = "".join(
                f"                {RUNTIME}.ModuleConstant({literal(variable)}, {literal(name)}, "
                f"{self._bytes(arguments[name])}),\n"
                for variable, name in step.constants
            )
            extras += f"            constants=(\n{rows}            ),\n"
        if step.is_cooperative:
            extras += "            is_cooperative=True,\n"
        return (
            f"        {RUNTIME}.Launch(\n            {literal(step.entry)},\n"
            f"            grid={self._extents(step.grid)},\n"
            f"            block={self._extents(step.block)},\n            arguments=(\n{listed}            ),\n"
            f"{extras}        ),\n"
        )

    def _scalars(self) -> str:
        """Numbers for the reference, rounded as the kernel gets them."""
        lines = []
        for each in self.run.problem.arguments:
            if each.role == "scalar" and each.value is not None:
                is_given = each.name in self.given.names
                value = (
                    f"scalars[{self.given.names.index(each.name)}]"
                    if is_given
                    else bare(python_text(each.value, self.limits))
                )
                lines.append(f'        "{each.name}": {RUNTIME}.rounded({literal(each.dtype)}, {value}),\n')
        unpacked = f"    {', '.join(self.sizes)}{',' if len(self.sizes) == 1 else ''} = sizes\n"
        return (
            "def scalars_of(sizes: tuple[int, ...], scalars: tuple[float, ...] = ()) -> dict[str, float]:\n"
            '    """All scalar arguments by name, rounded to their types."""\n'
            f"{unpacked}    return {{\n{''.join(lines)}    }}\n"
        )

    def _extents(self, expressions: Sequence[Expression]) -> str:
        return f"({', '.join([*(self._extent(each) for each in expressions), '1', '1'][:3])})"

    def _extent(self, expression: Expression) -> str:
        return f"{RUNTIME}.extent({bare(python_text(expression, self.limits))})"

    def _argument(self, argument: Argument) -> str:
        dtype = DTYPES[argument.dtype]
        kind = f"{RUNTIME}.KernelArgument({literal(argument.name)}, {literal(argument.role)}"
        if argument.role == "scalar":
            assert argument.value is not None
            is_given = argument.name in self.given.names
            value = _given(argument.name) if is_given else bare(python_text(argument.value, self.limits))
            return f"{kind}, {dtype.item_bytes}, {RUNTIME}.scalar({literal(argument.dtype)}, {value}))"
        return f"{kind}, {self._bytes(argument)})"

    def _bytes(self, argument: Argument) -> str:
        extents = [self._extent(each) for each in argument.shape]
        return " * ".join([*extents, str(DTYPES[argument.dtype].item_bytes)])

    # -- the whole -----------------------------------------------------------------------------------------------

    def _baseline(self) -> str:
        template, config = self.run.subject.baseline.template, self.run.subject.baseline.config
        recorded = self.run.view.started.device.get("limits", {})
        limits = {name: int(value) for name, value in recorded.items()} if isinstance(recorded, Mapping) else {}
        device = DeviceInfo("cuda", "recorded", self.run.device_name, "gpu", limits)
        constraints = [
            each.expression for each in (*template.constraints, *device_constraints(self.run.problem, template, device))
        ]
        return "\n\n".join([
            f"BASELINE: dict[str, Any] = {literal(config)}\n"
            f"BASELINE_OPTIONS = {literal(self._options(template, config)[0])}\n",
            self._feasible("_baseline_meets", constraints, template),
            self._unit("_baseline_unit", template),
            self._launches("_baseline_launches", template),
        ])  # fmt: skip

    def _plan(self) -> str:
        own = "".join(f", {_given(name)}=scalars[{place}]" for place, name in enumerate(self.given.names))
        return (
            "@functools.lru_cache(maxsize=4096)\n"
            "def plan(\n    sizes: tuple[int, ...],\n"
            "    scalars: tuple[float, ...] = tuple(SCALARS.values()),\n    *,\n"
            f"    is_tuned_device: bool = True,\n) -> {RUNTIME}.KernelPlan | None:\n"
            '    """The kernel for these sizes: a tuned config, else the baseline; None: neither.\n\n'
            "    `sizes` are in the order of `SIZES`, `scalars` in that of `SCALARS`.\n"
            '    """\n'
            "    named = dict(zip(SIZES, sizes, strict=True))\n"
            "    place = select(**named) if is_tuned_device else None\n"
            "    if place is not None:\n        config = CONFIGS[place]\n"
            f'        return {RUNTIME}.KernelPlan(\n            f"config {{place}}",\n'
            "            _tuned_unit(OPTIONS[place], **named, **config),\n"
            f"            _tuned_launches(**named, **config{own}),\n        )\n"
            "    if min(sizes) < 1 or not _baseline_meets(**named, **BASELINE):\n        return None\n"
            f'    return {RUNTIME}.usable(\n        "baseline",\n'
            "        lambda: _baseline_unit(BASELINE_OPTIONS, **named, **BASELINE),\n"
            f"        lambda: _baseline_launches(**named, **BASELINE{own}),\n    )\n"
        )


def _given(name: str) -> str:
    """A scalar that the caller gives may be called like a size."""
    return f"given_{name}"


def _annotation(value: Value) -> str:
    return "float" if isinstance(value, float) else type(value).__name__


def _config(values: Mapping[str, Value]) -> Config:
    return values if isinstance(values, Config) else Config(values)
