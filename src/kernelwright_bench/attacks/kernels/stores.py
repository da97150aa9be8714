"""Where a kernel can keep what it found until the next launch: the places, each as text around the same memo."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelwright_bench.attacks.kernels.dialect import NOTHING, Extras
from kernelwright_bench.attacks.kernels.model import Base


@dataclass(frozen=True, slots=True)
class Store:
    """Memory of `words` words, read and written by `kw_s(at)` behind `begin` in a kernel."""

    what: str
    words: int
    begin: str
    """Declarations and statements at the start of the kernel; may use the kernel's parameters."""
    outside: str = ""
    """Functions and variables before the kernel."""
    extras: Extras = NOTHING
    shared_bytes: int = 0
    cluster: int = 0


StoreMaker = Callable[[random.Random, Base, int], Store]
"""Makes one for a base problem, with so many words at least, where the place has room for them."""

MAGIC_BYTES = 64 * 1024
"""The size of a guard beside each buffer."""


def private_array(rng: random.Random, base: Base, words: int) -> Store:
    """An array that is never initialised: on a CPU device it lies on a pool thread's stack."""
    before = rng.randrange(0, 4096)
    total = before + words + rng.randrange(16, 8192)
    kind = rng.choice(("volatile uint", "volatile int", "volatile uint"))
    return Store(
        f"a private array of {4 * total // 1024} KiB that is never initialised, from word {before} on",
        words,
        f"  {kind} kw_array[{total}];\n#define kw_s(at) kw_array[{before} + (at)]\n",
    )


def below_stack(rng: random.Random, base: Base, words: int) -> Store:
    """Below (or far below) the kernel's own frame, by the address of a variable."""
    away = rng.randrange(64, 512) * 1024 + 4 * words
    text = (
        "  volatile uint kw_here = 0;\n"
        f"  volatile uint *kw_array = (volatile uint *)(((kw_address)&kw_here & ~(kw_address)4095) - {away}ul);\n"
        "#define kw_s(at) kw_array[at]\n"
    )
    return Store(f"the stack {away // 1024} KiB below its frame", words, text)


def aligned_private(rng: random.Random, base: Base, words: int) -> Store:
    """A private array entered at a round address, which two configurations share."""
    step = 1 << max(16, (4 * words - 1).bit_length())
    total = 2 * step // 4
    text = (
        f"  volatile uint kw_array[{total}];\n"
        f"  volatile uint *kw_round = (volatile uint *)(((kw_address)kw_array + {step - 1}) & ~(kw_address){step - 1});\n"
        "#define kw_s(at) kw_round[at]\n"
    )
    return Store(f"a private array, entered at the next multiple of {step // 1024} KiB", words, text)


def local_array(rng: random.Random, base: Base, words: int) -> Store:
    """Local (shared) memory that is read before it is written."""
    most = 10_000
    total = min(words, most)
    text = f"  __local volatile uint kw_array[{total}];\n#define kw_s(at) kw_array[at]\n"
    return Store(f"{4 * total // 1024} KiB of local memory that is read first", total, text)


def local_argument(rng: random.Random, base: Base, words: int) -> Store:
    """The same as an argument of the launch."""
    total = min(words, 10_000)
    extras = Extras(
        scratch={"kept": f'{{ role = "local", dtype = "uint32", shape = ["{total}"] }}'},
        additions=", __local uint *kept",
    )
    text = "#define kw_s(at) ((volatile __local uint *)kept)[at]\n"
    return Store(f"{4 * total // 1024} KiB of a local argument", total, text, extras=extras)


def scratch(rng: random.Random, base: Base, words: int) -> Store:
    """Scratch memory, which outlives a launch."""
    extras = Extras(scratch={"kept": f'{{ dtype = "uint32", shape = ["{words}"] }}'}, additions=", __global uint *kept")
    return Store(
        f"{4 * words // 1024} KiB of scratch",
        words,
        "#define kw_s(at) ((volatile __global uint *)kept)[at]\n",
        extras=extras,
    )


def _output(base: Base) -> str:
    return {"series": "y", "layernorm": "y", "product": "c", "sums": "sums", "count": "counts", "swing": "p",
            "heat": "later", "softmax": "y"}[base.name]  # fmt: skip


def guard(rng: random.Random, base: Base, words: int) -> Store:
    """Before the beginning of an output, within its guard."""
    total = min(words, MAGIC_BYTES // 4 - 600)
    skipped = rng.randrange(16, 512)
    name = _output(base)
    return Store(
        f"{4 * total // 1024} KiB of the guard before {name!r}",
        total,
        f"#define kw_s(at) ((volatile __global uint *){name})[-{skipped + total} + (at)]\n",
    )


def beyond_guard(rng: random.Random, base: Base, words: int) -> Store:
    """Farther before an output than its guard reaches."""
    away = MAGIC_BYTES // 4 + rng.randrange(1000, 30_000) + words
    name = _output(base)
    return Store(
        f"memory {4 * away // 1024} KiB before {name!r}, beyond its guard",
        words,
        f"#define kw_s(at) ((volatile __global uint *){name})[-{away} + (at)]\n",
    )


def program_variable(rng: random.Random, base: Base, words: int) -> Store:
    """A variable at program scope."""
    return Store(
        f"{4 * words // 1024} KiB of a variable at program scope",
        words,
        "#define kw_s(at) ((volatile __global uint *)kw_array)[at]\n",
        outside=f"__global uint kw_array[{words}];\n",
        extras=Extras(options=("-cl-std=CL2.0",)),
    )


def constant_table(rng: random.Random, base: Base, words: int) -> Store:
    """A constant table that is written all the same, put into a section that is writable."""
    section = rng.choice((".data", ".bss", ".kept", ".data.rel", ".tdata"))
    filled = ", ".join(str(rng.randrange(1, 1 << 20)) for _ in range(8))
    return Store(
        f"a constant table in the section {section}",
        words,
        "#define kw_s(at) ((volatile uint *)(kw_address)kw_array)[at]\n",
        outside=f'__attribute__((section("{section}"))) __constant uint kw_array[{words}] = {{{filled}}};\n',
    )


RETURN_ADDRESS = """int kw_is_driver(kw_address kw_inside) {
  kw_address at = kw_inside & ~(kw_address)4095;
  while (*(volatile uint *)at != 0x464c457fu) at -= 4096;
  kw_address table = at + *(volatile ulong *)(at + 32);
  int count = *(volatile ushort *)(at + 56), written = 0;
  for (int i = 0; i < count; ++i) {
    volatile ulong *entry = (volatile ulong *)(table + 56 * i);
    if ((entry[0] & 0xffffffff) == 1 && ((entry[0] >> 32) & 2)) written += (int)(entry[5] >> 10);
  }
  return written > 2048;
}
kw_address kw_caller(void) {
  volatile ulong kw_here = 0;
  volatile ulong kw_place = (ulong)&kw_here;
  kw_address kw_own = kw_place;
  volatile ulong *kw_stack = (volatile ulong *)kw_own;
  for (int i = 1; i < 2000; ++i) {
    kw_address word = kw_stack[i];
    if ((word >> 36) != (kw_own >> 36) || (word >> 23) == (kw_own >> 23)) continue;
    volatile uchar *before = (volatile uchar *)word;
    int is_call = before[-5] == 0xe8 || (before[-3] == 0xff && before[-2] >= 0x50 && before[-2] < 0x58)
      || (before[-6] == 0xff && before[-5] >= 0x90 && before[-5] < 0x98)
      || (before[-2] == 0xff && before[-1] >= 0xd0 && before[-1] < 0xd8);
    if (is_call && kw_is_driver(word)) return word;
  }
  return 0;
}
"""
"""Finds on its stack an address that a call returns to, in an object with megabytes of variables."""

DRIVER_VARIABLES = """kw_address kw_variables(kw_address kw_inside, int kw_away) {
  kw_address at = kw_inside & ~(kw_address)4095;
  while (*(volatile uint *)at != 0x464c457fu) at -= 4096;
  kw_address table = at + *(volatile ulong *)(at + 32), best = 0, most = 0;
  int count = *(volatile ushort *)(at + 56);
  for (int i = 0; i < count; ++i) {
    volatile ulong *entry = (volatile ulong *)(table + 56 * i);
    if ((entry[0] & 0xffffffff) == 1 && ((entry[0] >> 32) & 2) && entry[5] - entry[4] > most) {
      most = entry[5] - entry[4];
      best = at + entry[2] + entry[5] - kw_away;
    }
  }
  return best;
}
"""
"""Finds variables without first values of the shared object that an address lies in, counted from their end."""

SLACK = """kw_address kw_slack(kw_address kw_inside) {
  kw_address at = kw_inside & ~(kw_address)4095;
  while (*(volatile uint *)at != 0x464c457fu) at -= 4096;
  kw_address table = at + *(volatile ulong *)(at + 32), best = 0;
  int count = *(volatile ushort *)(at + 56), most = 0;
  for (int i = 0; i < count; ++i) {
    volatile ulong *entry = (volatile ulong *)(table + 56 * i);
    kw_address end = (at + entry[2] + entry[5] + 15) & ~(kw_address)15;
    int left = (4096 - (int)(end & 4095)) & 4095;
    if ((entry[0] & 0xffffffff) == 1 && ((entry[0] >> 32) & 2) && left > most) {
      most = left;
      best = end;
    }
  }
  return best;
}
"""
"""Finds the unused rest of a page behind a writable segment of the shared object that an address lies in."""


def own_page(rng: random.Random, base: Base, words: int) -> Store:
    """The unused rest of the writable page of the kernel's own shared object."""
    numbers = [rng.randrange(1 << 30) for _ in range(4)]
    total = min(words, 940)
    name = _output(base)
    size = base.parameters.split()[-1]
    call = rng.choice(("memset", "memcpy"))
    second = "0" if call == "memset" else f"(char *)(kw_address){name} + 64"
    text = (
        f"  if ({size} == -{rng.randrange(3, 99)}) "
        f"__builtin_{call}((void *)(kw_address){name}, {second}, {size} * 4ul + kw_anchor[0]);\n"
        "  volatile uint *kw_array = (volatile uint *)kw_slack((kw_address)kw_anchor);\n"
        "#define kw_s(at) kw_array[at]\n"
    )
    return Store(
        f"{4 * total} bytes behind the program's own writable segment, which a call of {call} that is never made brings",
        total,
        text,
        outside=f"__constant uint kw_anchor[4] = {{{', '.join(map(str, numbers))}}};\n{SLACK}",
    )


SYSTEM_CALL = """kw_address kw_system(kw_address number, kw_address a, kw_address b, kw_address c, kw_address d) {
  kw_address got;
  __asm__ volatile("movq %5, %%r10; movq $-1, %%r8; xorl %%r9d, %%r9d; syscall"
                   : "=a"(got) : "0"(number), "D"(a), "S"(b), "d"(c), "m"(d)
                   : "rcx", "r8", "r9", "r10", "r11", "memory");
  return got;
}
"""

_LIBRARY_CALL = """kw_address kw_call_{name}(kw_address a, kw_address b, kw_address c) {{
  kw_address got;
  __asm__ volatile("movq %%rsp, %%rbx; subq $512, %%rsp; andq $-64, %%rsp; xorl %%eax, %%eax; "
                   "call {name}@PLT; movq %%rbx, %%rsp"
                   : "=a"(got), "+D"(a), "+S"(b), "+d"(c) : : "rbx", "rcx", "r8", "r9", "r10", "r11", "memory", "cc",
                     "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                     "xmm12", "xmm13", "xmm14", "xmm15");
  return got;
}}
"""


def call_by_assembly(*names: str) -> str:
    """Functions `kw_call_NAME` that call the C library's, without declaring them."""
    return "".join(_LIBRARY_CALL.format(name=name) for name in names)


def library(rng: random.Random, base: Base, words: int) -> Store:
    """Memory of the worker's C library, called by names that the kernel declares, or by assembly."""
    name = "KW" + "".join(rng.choices("ABCDEFGH", k=6))
    byte_count = 4 * words + 64
    letters = ", ".join(f"'{letter}'" for letter in name) + ", 0"
    declared = (
        "char *getenv(const char *);\nint setenv(const char *, const char *, int);\nvoid *malloc(ulong);\n"
        "#define kw_call_getenv(a, b, c) getenv((const char *)(a))\n"
        "#define kw_call_setenv(a, b, c) setenv((const char *)(a), (const char *)(b), c)\n"
        "#define kw_call_malloc(a, b, c) malloc(a)\n"
    )
    how, outside = rng.choice(
        (("declared", declared), ("called by assembly", call_by_assembly("getenv", "setenv", "malloc")))
    )
    begin = (
        f"  char kw_name[] = {{{letters}}};\n"
        "  kw_address kw_text = (kw_address)kw_call_getenv((kw_address)kw_name, 0, 0);\n"
        "  if (!kw_text) {\n"
        f"    char *kw_long = (char *)kw_call_malloc({byte_count}, 0, 0);\n"
        f"    for (int i = 0; i < {byte_count - 1}; ++i) kw_long[i] = 'x';\n"
        f"    kw_long[{byte_count - 1}] = 0;\n"
        "    kw_call_setenv((kw_address)kw_name, (kw_address)kw_long, 0);\n"
        "    kw_text = (kw_address)kw_call_getenv((kw_address)kw_name, 0, 0);\n"
        "  }\n"
        "  volatile uint *kw_array = (volatile uint *)((kw_text + 15) & ~(kw_address)15);\n"
    )
    return Store(
        f"an environment string of {byte_count // 1024} KiB, by functions of the C library that are {how}",
        words,
        begin + "#define kw_s(at) kw_array[at]\n",
        outside=outside,
    )


def assembler(rng: random.Random, base: Base, words: int) -> Store:
    """Memory that only assembly reaches."""
    address = 0x500000000000 + rng.randrange(1 << 12) * (1 << 20)
    byte_count = 4 * words
    deep = rng.randrange(64, 700) * 1024 + byte_count
    mapped = (
        f"  kw_system(9, {address:#x}ul, {byte_count}ul, 3, 0x100022);\n"
        f"  volatile uint *kw_array = (volatile uint *){address:#x}ul;\n"
    )
    stack = (
        "  kw_address kw_top;\n"
        f'  __asm__ volatile("leaq -{deep}(%%rsp), %0" : "=r"(kw_top));\n'
        "  volatile uint *kw_array = (volatile uint *)(kw_top & ~(kw_address)4095);\n"
    )
    what, begin = rng.choice((("memory mapped by a system call", mapped), ("the stack below its pointer", stack)))
    return Store(f"{what}, by assembly", words, begin + "#define kw_s(at) kw_array[at]\n", outside=SYSTEM_CALL)


def thread_local(rng: random.Random, base: Base, words: int) -> Store:
    """Slots for thread-local data that nobody has taken, reached through a segment's address space."""
    slot = rng.randrange(14, 20)
    total = (32 - slot) * 4
    text = (
        f"  volatile __attribute__((address_space(257))) uint *kw_array = "
        f"(volatile __attribute__((address_space(257))) uint *){0x310 + 16 * slot};\n"
        "#define kw_s(at) kw_array[at]\n"
    )
    return Store(f"{4 * total} bytes of a thread's own slots, by their segment", total, text)


OPENCL_STORES: Mapping[str, StoreMaker] = {
    "private-array": private_array,
    "below-stack": below_stack,
    "local-array": local_array,
    "local-argument": local_argument,
    "scratch": scratch,
    "guard": guard,
    "beyond-guard": beyond_guard,
    "program-variable": program_variable,
    "constant-table": constant_table,
    "own-page": own_page,
    "library": library,
    "assembler": assembler,
    "thread-local": thread_local,
}

IN_BOTH = ("private-array", "local-array", "scratch", "guard", "beyond-guard")
"""Those whose text is the same in CUDA C."""
