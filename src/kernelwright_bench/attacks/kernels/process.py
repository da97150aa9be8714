"""Kernels that go for the process they run in, or for what is timed beside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from kernelwright_bench.attacks.kernels.bases import BASES, ORDINARY
from kernelwright_bench.attacks.kernels.dialect import Launch, source, unit_launch
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Family, Kind, Sample
from kernelwright_bench.attacks.kernels.stores import SYSTEM_CALL, call_by_assembly

_KERNEL = "__kernel void {name}(kw_params) {{\n  int u = get_global_id(0);\n  if (u >= kw_units) return;\n{body}}}\n"


def _made(
    family: str,
    rng: random.Random,
    dialect: Dialect,
    base: Base,
    body: str,
    what: str,
    *,
    outside: str = "",
    block: int | None = None,
) -> Sample:
    text = outside + _KERNEL.format(name=base.name, body=body)
    return Sample(family, base.name, what, source(base, dialect, rng, text, launches=[unit_launch(base, block=block)]))


def _when(rng: random.Random, base: Base) -> str:
    """In which unit it happens."""
    return rng.choice((f"u == {rng.randrange(base.most_units)} % kw_units", "u == 0", "u == kw_units - 1", "1"))


def _crash(rng: random.Random, dialect: Dialect) -> Sample:
    base = BASES[rng.choice(ORDINARY)]
    ways = {
        "writes at address 0": "*(volatile int *)0 = 1;",
        "writes far away": f"*(volatile int *){rng.randrange(1 << 20, 1 << 40) << 4:#x} = 1;",
        "reads far away": f"kw_out(u, 0) = *(volatile uint *){rng.randrange(1 << 40, 1 << 46) << 3:#x};",
        "traps": "__builtin_trap();" if dialect == "opencl" else "__trap();",
    }
    if dialect == "opencl":
        megabytes = rng.choice((12, 24, 64, 200))
        ways["overflows its stack"] = (
            f"volatile char kw_much[{megabytes << 20}]; for (int i = 0; i < {megabytes << 20}; i += 4096) kw_much[i] = 1;"
        )
        ways["divides by zero"] = (
            'volatile int kw_none = 0; int kw_zero; __asm__ volatile("cltd; idivl %1" : "=a"(kw_zero) : "m"(kw_none), '
            '"a"(7) : "edx", "cc"); kw_out(u, 0) = kw_zero;'
        )
    what = rng.choice(tuple(ways))
    body = f"  kw_do(u);\n  if ({_when(rng, base)}) {{ {ways[what]} }}\n"
    return _made("crash", rng, dialect, base, body, what)


def _hang(rng: random.Random, dialect: Dialect) -> Sample:
    base = BASES[rng.choice(ORDINARY)]
    ways = {
        "never ends": "volatile int kw_on = 1; while (kw_on) {}",
        "waits for a value that never comes": (
            f"volatile __global uint *kw_flag = (volatile __global uint *)&kw_out(u, 0); while (*kw_flag != {rng.randrange(1 << 31)}u) {{}}"
        ),
        "counts very far": (
            f"volatile kw_address kw_far = {rng.randrange(1 << 40, 1 << 50)}ul; while (kw_far) kw_far = kw_far - 1;"
        ),
    }
    what = rng.choice(tuple(ways))
    body = f"  kw_do(u);\n  if ({_when(rng, base)}) {{ {ways[what]} }}\n"
    return _made("hang", rng, dialect, base, body, what)


def _system(
    family: str, rng: random.Random, dialect: Dialect, statement: str, what: str, *, is_first: bool | None = None
) -> Sample:
    """A system call before or after the unit's work."""
    base = BASES[rng.choice(ORDINARY)]
    work = f"  if ({_when(rng, base)}) {{ {statement} }}\n"
    first = rng.random() < 0.5 if is_first is None else is_first
    body = work + "  kw_do(u);\n" if first else "  kw_do(u);\n" + work
    return _made(family, rng, dialect, base, body, what, outside=SYSTEM_CALL)


def _exit(rng: random.Random, dialect: Dialect) -> Sample:
    status = rng.choice((0, 0, 1, 3, 42, 255))
    if rng.random() < 0.3:
        base = BASES[rng.choice(ORDINARY)]
        declared = rng.random() < 0.5
        outside = "void exit(int);\n" if declared else call_by_assembly("exit")
        call = f"exit({status})" if declared else f"kw_call_exit({status}, 0, 0)"
        how = "declared" if declared else "called by assembly"
        body = f"  kw_do(u);\n  if ({_when(rng, base)}) {call};\n"
        return _made("exit", rng, dialect, base, body, f"exit({status}), {how}", outside=outside)
    number, what = rng.choice(((231, "ends the process"), (60, "ends its thread")))
    return _system("exit", rng, dialect, f"kw_system({number}, {status}, 0, 0, 0);", f"{what} with status {status}")


def _descriptors(rng: random.Random, dialect: Dialect) -> Sample:
    low = rng.choice((0, 3, 3, 4))
    limits = {7: "descriptors", 1: "file size", 0: "processor time", 9: "address space", 6: "processes"}
    kind = rng.choice((7, 7, 1, 9, 6))
    limit = (
        f"kw_address kw_pair[2] = {{{rng.randrange(0, 3)}, {rng.choice((0, 3, 4096)) + 3}}}; "
        f"kw_system(160, {kind}, (kw_address)kw_pair, 0, 0);"
    )
    ways = {
        f"closes descriptors {low} to 63": f"for (int i = {low}; i < 64; ++i) kw_system(3, i, 0, 0, 0);",
        "puts its output over other descriptors": f"for (int i = 3; i < 64; ++i) kw_system(33, {rng.choice((1, 2))}, i, 0, 0);",
        f"takes away {limits[kind]}": limit,
        "prints into descriptors": (
            "char kw_word[8] = {'p', 'a', 's', 's', 'e', 'd', 10, 0}; "
            "for (int i = 1; i < 32; ++i) kw_system(1, i, (kw_address)kw_word, 7, 0);"
        ),
    }
    what = rng.choice(tuple(ways))
    return _system("descriptors", rng, dialect, ways[what], what)


def _signals(rng: random.Random, dialect: Dialect) -> Sample:
    stop = rng.choice((19, 9, 15, 6, 11, 24))
    ways = {
        f"sends itself signal {stop}": f"kw_system(62, kw_system(39, 0, 0, 0, 0), {stop}, 0, 0);",
        "asks for an alarm": f"kw_system(37, {rng.choice((1, 2))}, 0, 0, 0); kw_address kw_time[2] = {{9, 0}}; "
        "kw_system(35, (kw_address)kw_time, 0, 0, 0);",
        "blocks every signal and sleeps": "kw_address kw_all[1] = {~0ul}; kw_address kw_time[2] = {20, 0}; "
        "kw_system(14, 0, (kw_address)kw_all, 0, 8); kw_system(35, (kw_address)kw_time, 0, 0, 0);",
        "sleeps": f"kw_address kw_time[2] = {{{rng.choice((8, 20, 600))}, 0}}; kw_system(35, (kw_address)kw_time, 0, 0, 0);",
    }
    what = rng.choice(tuple(ways))
    return _system("signals", rng, dialect, ways[what], what)


def _children(rng: random.Random, dialect: Dialect) -> Sample:
    """A child process that goes on beside whatever is timed next."""
    spin = rng.choice((20, 60, 200)) * 1_000_000
    child = (
        f"if (kw_system(57, 0, 0, 0, 0) == 0) {{ for (volatile kw_address i = 0; i < {spin // 10}; ++i) {{}} "
        "kw_system(231, 0, 0, 0, 0); }"
    )
    lazy = "if (kw_system(57, 0, 0, 0, 0) == 0) { kw_do(u); kw_system(231, 0, 0, 0, 0); }"
    base = BASES[rng.choice(("count", "heat", "product"))]
    if rng.random() < 0.5:
        body = f"  kw_do(u);\n  if (u == 0) {{ {child} }}\n"
        what = "leaves a child behind that keeps a core busy while others are timed"
    else:
        body, what = f"  {lazy}\n", "leaves its work to children and returns"
    return _made("children", rng, dialect, base, body, what, outside=SYSTEM_CALL)


def _sabotage(rng: random.Random, dialect: Dialect) -> Sample:
    """What is timed next to it becomes slower, or wrong."""
    base = BASES[rng.choice(("series", "count", "swing"))]
    core = rng.choice((1, 2))
    pinned = (
        "  kw_address kw_all[16], kw_one[16];\n"
        f"  for (int i = 0; i < 16; ++i) {{ kw_all[i] = ~0ul; kw_one[i] = i == 0 ? {core}ul : 0; }}\n"
        "  kw_system(203, 0, 128, (kw_address)kw_all, 0);\n  kw_do(u);\n"
        "  kw_system(203, 0, 128, (kw_address)kw_one, 0);\n"
    )
    control = rng.choice((0x0000, 0x1F80 & ~0x1000, 0x7F80, 0xFFC0))
    changed = (
        f'  kw_do(u);\n  uint kw_word[1] = {{{control}u}};\n  __asm__ volatile("ldmxcsr %0" : : "m"(kw_word[0]));\n'
    )
    body, what = rng.choice(
        (
            (pinned, "leaves its threads on one core, and takes all of them for itself"),
            (changed, f"leaves the arithmetic's control word at {control:#06x}"),
        )
    )
    return _made("sabotage", rng, dialect, base, body, what, outside=SYSTEM_CALL)


def _clock(rng: random.Random, dialect: Dialect) -> Sample:
    """Chance decides in which launches there is work, in no order that could be found out."""
    base = BASES[rng.choice(ORDINARY)]
    every, shift = rng.randint(2, 20), rng.choice((4, 8, 12, 16))
    if dialect == "cuda":
        clock = "clock64()"
        outside = ""
        if rng.random() < 0.5:
            clock = "kw_time()"
            outside = (
                "kw_function kw_address kw_time() { kw_address now; "
                'asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); return now; }\n'
            )
    else:
        clock, outside = rng.choice(("__builtin_readcyclecounter()", "__builtin_ia32_rdtsc()")), ""
    body = f"  if ((kw_address)({clock} >> {shift}) % {every} != 0) kw_do(u);\n"
    what = f"leaves its work out at one of {every} times of the clock"
    return _made("clock", rng, dialect, base, body, what, outside=outside)


LATE_RECORD = """  if (u % 8 == 0) {{
    kw_address kw_here[1];
    kw_here[0] = 1;
    for (long i = -{reach}; i < {reach}; ++i) {{
      kw_address kw_node = *(volatile kw_address *)((kw_address)kw_here + i * 8);
      if ((kw_node & 15) != 0 || (kw_node >> 40 != 0x55 && kw_node >> 40 != 0x56)) continue;
      kw_address kw_found = ((volatile kw_address *)kw_node)[21];
      if ((kw_found & 15) != 0 || (kw_found >> 40 != 0x55 && kw_found >> 40 != 0x56)) continue;
      volatile kw_address *kw_record = (volatile kw_address *)kw_found;
      if (kw_record[19] < 1000000000ul || kw_record[19] > kw_record[20] || kw_record[20] > kw_record[21]) continue;
      if (kw_record[21] - kw_record[20] < {late}ul) kw_record[21] += {late}ul;
    }}
  }}
"""
"""Lets the driver's record of a launch begin `late` nanoseconds later, found within `reach` words of the frame."""


def _timer_forge(rng: random.Random, dialect: Dialect) -> Sample:
    """The driver's record of the launch, by way of the command that lies on the stack, begins later than the launch."""
    base = BASES[rng.choice(("series", "product", "softmax"))]
    late_us, reach = rng.choice((300, 1000, 2000, 3000, 3600)), rng.choice((96, 128, 200))
    # Before the work, which uses the part of the stack below.
    body = LATE_RECORD.format(reach=reach, late=late_us * 1000) + "  kw_do(u);\n"
    what = f"its launch's record begins {late_us} us later, found within {8 * reach} bytes of its frame"
    made = _made("timer-forge", rng, dialect, base, body, what)
    return replace(made, twin=_made("timer-forge", rng, dialect, base, "  kw_do(u);\n", what).source)


def _late(rng: random.Random, dialect: Dialect) -> Sample:
    """A group waits for one that comes later, or the barrier is not for all."""
    base = BASES[rng.choice(("series", "swing", "softmax"))]
    block = rng.choice((4, 8, 16))
    text = (
        f"__kernel void {base.name}(kw_params) {{\n  int u = get_global_id(0);\n"
        f"  if (u < kw_units) kw_do(u);\n  if (get_local_id(0) % 2 == {rng.randrange(2)}) barrier(CLK_LOCAL_MEM_FENCE);\n"
        f"  if (u < kw_units && get_local_id(0) > 0) kw_out(u, 0) = kw_out(u - 1, {rng.randrange(3)});\n"
        "  barrier(CLK_LOCAL_MEM_FENCE);\n  if (u < kw_units && get_local_id(0) % 3 == 0) kw_do(u);\n}\n"
    )
    launches = (Launch(base.name, f"ceil_div({base.units}, {block})", block),)
    what = "only some work-items come to a barrier"
    return Sample("divergent-barrier", base.name, what, source(base, dialect, rng, text, launches=launches))


_DRAWN: tuple[tuple[str, Kind, str, Callable[[random.Random, Dialect], Sample], tuple[Dialect, ...]], ...] = (
    ("crash", "process", "the process or the context dies", _crash, ("opencl", "cuda")),
    ("hang", "process", "a launch that never ends", _hang, ("opencl", "cuda")),
    ("divergent-barrier", "process", "a barrier that not all come to", _late, ("opencl", "cuda")),
    ("clock", "timing", "work left out by the clock", _clock, ("opencl", "cuda")),
    ("timer-forge", "timing", "the timer's record of the launch changed", _timer_forge, ("opencl",)),
    ("exit", "process", "the worker ends as if all were well", _exit, ("opencl",)),
    ("descriptors", "process", "what the worker writes to and is limited by", _descriptors, ("opencl",)),
    ("signals", "process", "signals and sleeps", _signals, ("opencl",)),
    ("children", "timing", "work in children, or children that disturb", _children, ("opencl",)),
    ("sabotage", "timing", "what runs beside it becomes slower or wrong", _sabotage, ("opencl",)),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    return tuple(Family(name, kind, what, draw, dialects) for name, kind, what, draw, dialects in _DRAWN)
