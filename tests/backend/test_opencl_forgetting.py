"""Kernels that remember on a CPU device: what a launch left is gone, or out of reach, at the next one.

Each kernel leaves marks with the launch's number and counts those of earlier launches that it finds.
"""

from __future__ import annotations

import errno
import os
import platform
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from confined_worker import make_confined_worker

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildFailed,
    BuildUnit,
    PlanStep,
)
from kernelwright.backend.opencl.driver import is_pocl
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.evaluate.device.arena import Arena, BufferSpec, Job
from kernelwright.evaluate.process.worker_process import WorkerProcess, WorkerSettings

pytestmark = pytest.mark.opencl

MARKS = """
#define MARK(launch) (0x5eed0000 | (launch))
#define IS_EARLIER(word, launch) (((word) & 0xffff0000) == 0x5eed0000 && ((word) & 0xffff) < (launch))
#define STEP 16  /* integers in a line of cache */
int visit(volatile int *memory, int count, int launch) {
  int found = 0;
  for (int i = 0; i < count; i += STEP) {
    if (IS_EARLIER(memory[i], launch)) ++found;
    memory[i] = MARK(launch);
  }
  return found;
}
"""
PRIVATE = """
__kernel void k(__global const int *launch, __global int *found) {
  volatile int memory[%d];
  found[get_group_id(0)] = visit(memory, %d, launch[0]);
}
"""
BELOW = """
__kernel void k(__global const int *launch, __global int *found) {
  volatile int *memory = (volatile int *)((ulong)__builtin_frame_address(0) - 700000);
  found[get_group_id(0)] = visit(memory, 100000, launch[0]);
}
"""
EACH_ITEM = """
__kernel void k(__global const int *launch, __global int *found) {
  volatile int memory[256];
  __local int total;
  if (get_local_id(0) == 0) total = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  int mine = visit(memory, 256, launch[0]);
  barrier(CLK_LOCAL_MEM_FENCE);
  memory[get_local_id(0)] += 0;
  atomic_add(&total, mine);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_local_id(0) == 0) found[get_group_id(0)] = total;
}
"""
EACH_ELEMENT = """
__kernel void k(__global const int *launch, __global int *found) {
  volatile int memory[65536];
  int group = get_group_id(0), hits = 0;
  volatile int *mine = memory + 256 * group;  /* a place for each group, as for each element */
  for (int i = 0; i < 256; i += STEP) if (IS_EARLIER(mine[i], launch[0])) ++hits;
  for (int i = 0; i < 256; ++i) mine[i] = MARK(launch[0]);
  found[group] = hits;
}
"""
TABLE = """
extern __constant char environ[];  /* which the linker takes for the object's beginning */
__kernel void k(__global const int *launch, __global int *found) {
  char text[256];
  if (launch[0] < 0) __builtin_memset(text, launch[1], launch[2]);  /* never called */
  ulong base = (ulong)environ, headers = base + *(ulong *)(base + 32), end = 0;
  if (*(uint *)base != 0x464c457f) { found[0] = -1; return; }
  for (int i = 0; i < *(ushort *)(base + 56); ++i) {
    uint *header = (uint *)(headers + 56 * i);
    if (header[0] == 1 && (header[1] & 2)) end = base + *(ulong *)(header + 4) + *(ulong *)(header + 10);
  }
  if (!end) { found[0] = -1; return; }
  end = (end + 4095) & ~4095ul;
  found[get_group_id(0)] = visit((volatile int *)(end - 2048), 512, launch[0]) + (launch[0] < 0 ? text[5] : 0);
}
"""
ZEROS = """
__global int table[3000];
__kernel void k(__global const int *launch, __global int *found) {
  found[get_group_id(0)] = visit((volatile int *)(ulong)table, 3000, launch[0]);
}
"""
FIRST_VALUES = """
__constant int values[1024] __attribute__((section(".data"))) = {7, 8};
__kernel void k(__global const int *launch, __global int *found) {
  volatile int *table = (volatile int *)(ulong)values;
  found[get_group_id(0)] = visit(table, 1024, launch[0]) + (table[1] != 8);
}
"""


@dataclass(frozen=True)
class Attack:
    """A kernel that remembers, and how it is launched."""

    source: str
    groups: int = 1
    block: int = 1
    options: tuple[str, ...] = ()


ATTACKS = {
    "half a megabyte of private array": Attack(PRIVATE % (1 << 17, 1 << 17)),
    "a shallow private array": Attack(PRIVATE % (2048, 2048)),
    "six megabytes of private array": Attack(PRIVATE % (3 << 19, 3 << 19)),
    "only the deep end of a private array": Attack(PRIVATE % (1 << 19, 1024)),
    "stacks of all threads": Attack(PRIVATE % (1 << 15, 1 << 15), groups=64),
    "a place for each element": Attack(EACH_ELEMENT, groups=256),
    "private arrays of many items": Attack(EACH_ITEM, groups=8, block=64),
    "memory below the frame": Attack(BELOW),
    "the page of the linker's table": Attack(TABLE),
    "variables without first values": Attack(ZEROS, options=("-cl-std=CL2.0",)),
    "constants that are written": Attack(FIRST_VALUES),
}
LAUNCHES = 12
LEFT_LINES = 6
"""Lines of cache around a waiting thread's stack pointer, which are in use or may be."""


@pytest.fixture(scope="module")
def session(opencl_device):
    if not is_pocl(opencl_device):
        pytest.skip(f"needs PoCL, whose kernels are threads of this process: {opencl_device.id}")
    session = get_backend("opencl").open(opencl_device)
    yield session
    session.close()


@pytest.fixture(scope="module")
def pool(opencl_device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    cache = ArtifactCache(folder / "cache")
    pool = BuildPool("opencl", opencl_device, process_count=1, cache=cache, scratch=folder / "scratch")
    yield pool
    pool.close()


@pytest.fixture
def compiled(opencl_device, pool, tmp_path):
    def compile_(source, options=(), *, plan=None):
        unit = BuildUnit("opencl", source, "k.cl", (), options, ("k",))
        if plan:
            return pool.submit(unit, (plan,)).result(timeout=300)[0]
        folder = tmp_path / f"artifact-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return get_backend("opencl").compile(unit, opencl_device, folder)

    return compile_


def plan_of(attack):
    arguments = (BufferArgument("launch", 16), BufferArgument("found", 4 * attack.groups))
    return (PlanStep("k", (attack.groups, 1, 1), (attack.block, 1, 1), 0, arguments),)


def most_found(session, artifact, attack, *, forgets, first=1):
    """The most marks of earlier launches that a launch found."""
    buffers = {"launch": session.allocate(16), "found": session.allocate(4 * attack.groups)}
    module, most = session.load(artifact), 0
    bound = {name: BoundBuffer(buffer, 0, buffer.byte_count) for name, buffer in buffers.items()}
    launches = [BoundLaunch(module, step, bound) for step in plan_of(attack)]
    for number in range(first, first + LAUNCHES):
        session.upload(buffers["launch"], np.array([number, 0, 0, 0], np.int32).view(np.uint8))
        session.fill(buffers["found"], b"\0", 4 * attack.groups)
        if forgets:
            session.forget_module_memory()
            session.forget_thread_memory()
        session.time(launches)
        found = np.empty(4 * attack.groups, np.uint8)
        session.download(buffers["found"], found)
        if number > first:  # an earlier test's marks may be there before the first one
            most = max(most, int(found.view(np.int32).max()))
    for buffer in buffers.values():
        session.free(buffer)
    return most


@pytest.mark.parametrize("is_compiled_before", [True, False], ids=["compiled-before", "compiled-at-first-launch"])
@pytest.mark.parametrize("what", ATTACKS)
def test_what_a_launch_left_is_gone_at_the_next(session, compiled, what, is_compiled_before):
    attack = ATTACKS[what]
    artifact = compiled(MARKS + attack.source, attack.options, plan=plan_of(attack) if is_compiled_before else None)
    remembered = most_found(session, artifact, attack, forgets=False)
    if not remembered:
        pytest.skip("this driver does not let it remember anyway")
    # The first of these launches finds what those before have left, if anything does.
    assert most_found(session, artifact, attack, forgets=True, first=LAUNCHES + 1) <= LEFT_LINES < remembered
    # A process of a parallel test run has threads of its own that wait for their channel and not for another thread.
    own = ("not overwritten in full: the system does not tell where they are",) * ("PYTEST_XDIST_WORKER" in os.environ)
    assert [note for note in session.notes if not note.endswith(own)] == []


def test_every_launch_of_an_arena_forgets(session, compiled, tmp_path):
    attack = ATTACKS["stacks of all threads"]
    artifact = compiled(MARKS + attack.source)
    names = {"launch": "input", "found": "output"}
    sizes = {argument.name: argument.byte_count for argument in plan_of(attack)[0].arguments}
    specs = tuple(BufferSpec(name, role, sizes[name], b"\xff") for name, role in names.items())
    job, rng = Job("w", artifact, plan_of(attack), specs), np.random.default_rng(0)
    inputs = []
    for number in (1, 2):
        inputs.append({"launch": tmp_path / f"launch-{number}"})
        inputs[-1]["launch"].write_bytes(np.array([number, 0, 0, 0], np.int32).tobytes())
    with Arena(session, [job], inputs) as arena:
        make_ready = partial(arena.make_ready, rng=rng, secret=1)
        for ready in (arena.poison, make_ready, arena.poison_outputs):
            for index in (0, 1):
                ready(index, job)
                session.time(arena.launches(session.load(artifact), index, job))
            arena.write(1, tmp_path / "out", job)
            out = np.fromfile(tmp_path / "out" / "found.bin", np.int32)
            assert np.all(out[len(out) // 2 - attack.groups // 2 :][: attack.groups] <= LEFT_LINES)


# ---- out of reach: what is no memory of the kernel's ----

REFUSED = {
    "a heap": ("void *malloc(ulong size);", "malloc(64)"),
    "the compiler's heap": ("", "__builtin_malloc(64)"),
    "a mapping": ("void *mmap(void *at, ulong size, int a, int b, int c, long d);", "mmap(0, 64, 3, 34, -1, 0)"),
    "a thread's own variable": ("__thread int own[16];", "&own[launch[0]]"),
    "a thread's own static": ("", "({ static __thread int own[16]; &own[launch[0]]; })"),
    "a file": ("void *fopen(const char *path, const char *mode);", 'fopen("/dev/shm/memo", "r+")'),
    "the environment": ("char *getenv(const char *name);", 'getenv("HOME")'),
    "a variable of the kernel library": ("extern __global char *__global _printf_buffer;", "_printf_buffer"),
    "an array as long as it likes": ("", "({ volatile int memory[launch[0]]; memory; })"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_memory_of_the_process_cannot_be_named(session, compiled, what):
    top, value = REFUSED[what]
    source = (
        f"{top}\n__kernel void k(__global int *launch, __global int *found) {{ found[0] = (int)(ulong)({value}); }}"
    )
    with pytest.raises(BuildFailed):
        compiled(source)


@pytest.mark.parametrize("name", ["environ", "stdout", "stderr", "__malloc_hook"])
def test_a_variable_of_the_c_library_is_not_what_it_seems(session, compiled, name):
    source = f"""
    extern __constant char {name}[];
    __kernel void k(__global const int *launch, __global int *found) {{ found[0] = *(__constant int *){name}; }}
    """
    attack = Attack(source)
    own_beginning = int.from_bytes(b"\x7fELF", "little")
    assert most_found(session, compiled(source), attack, forgets=True) == own_beginning


@pytest.mark.parametrize("when", ["constructor", "destructor"])
def test_what_runs_when_a_program_is_loaded_is_state_without_a_limit(session, compiled, when):
    """It is before the first launch of a fresh process, and may fill a table wherever it likes."""
    source = f"""
    __attribute__((noinline, {when})) void begin(void) {{ for (volatile int i = 0; i < 9; ++i) {{}} }}
    __kernel void k(__global const int *launch, __global int *found) {{ if (launch[0] == 77) begin(); }}
    """
    assert [each.byte_count for each in compiled(source).state] == [None]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembly is for x86-64")
def test_memory_that_assembly_maps_stays_so_it_must_be_told(session, compiled):
    source = """
    __kernel void k(__global const int *launch, __global int *found) {
      long got;
      __asm__ volatile("movl $0x100022, %%r10d\\n movq $-1, %%r8\\n xorl %%r9d, %%r9d\\n syscall" : "=a"(got)
        : "a"(9l), "D"(0x10000000000l), "S"(4096l), "d"(3l) : "rcx", "r8", "r9", "r10", "r11", "memory");
      volatile int *memory = (volatile int *)0x10000000000l;
      found[0] = memory[0];
      memory[0] = launch[0];
    }
    """
    artifact = compiled(source)
    assert most_found(session, artifact, Attack(source), forgets=True) == LAUNCHES - 1  # nothing else stops it
    assert artifact.assembly


# ---- the filter ----


@pytest.fixture
def confined(opencl_device, tmp_path):
    factory = f"{make_confined_worker.__module__}:{make_confined_worker.__name__}"
    with WorkerProcess(WorkerSettings("confined", factory, opencl_device), scratch=tmp_path) as worker:
        yield worker


def test_a_confined_worker_still_compiles_and_launches(session, confined):
    source = '__kernel void k(__global long *x) { x[0] += 21; x[1] = printf("%d\\n", 5); }'
    values, notes = confined.call((source, 2), timeout_s=300)
    assert values[0] == 42
    assert notes == ()


CALL = """
long call(long number, long a, long b, long c) {
  long got;
  __asm__ volatile("syscall" : "=a"(got) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return got;
}
"""
REFUSED_CALLS = {
    "socket": (41, 1, 1, 0), "shmget": (29, 0, 4096, 0o1600), "memfd_create": (319, "name", 0, 0),
    "ptrace": (101, 0, 0, 0), "process_vm_readv": (310, 1, 0, 0), "keyctl": (250, 0, -3, 1),
    "io_uring_setup": (425, 8, "name", 0), "setrlimit": (160, 7, "name", 0), "kill": (62, 0, 0, 0),
    "unshare": (272, 0x10000000, 0, 0), "prctl": (157, 1, 0, 0), "x32": (0x40000000 | 39, 0, 0, 0),
    "symlink": (88, "name", "name", 0), "setxattr": (188, "name", "name", "name"), "utimensat": (280, -100, "name", 0),
    "setpriority": (141, 0, 0, 5), "sched_setaffinity": (203, 0, 8, "name"), "fcntl F_SETOWN": (72, 1, 8, 1),
    "a new thread": (56, 0x10F00, 0, 0), "setitimer": (38, 0, 0, 0), "timer_create": (222, 0, 0, 0),
    "prctl PR_SET_SPECULATION_CTRL": (157, 53, 0, 4), "mprotect PROT_EXEC": (10, "name", 0, 5),
}  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembly is for x86-64")
def test_a_kernel_cannot_call_what_no_launch_needs(session, confined):
    lines = [
        f"x[{index}] = call({', '.join(f'(long){each}' for each in call)});"
        for index, call in enumerate([(39, 0, 0, 0), *REFUSED_CALLS.values()])
    ]
    source = CALL + "__kernel void k(__global long *x) { volatile char name[16] = {0};\n" + "\n".join(lines) + "}"
    (own, *answers), notes = confined.call((source, 1 + len(REFUSED_CALLS)), timeout_s=300)
    if notes:
        pytest.skip(f"no filter here: {notes}")
    assert own > 0  # getpid
    assert dict(zip(REFUSED_CALLS, answers, strict=True)) == dict.fromkeys(REFUSED_CALLS, -1)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembly is for x86-64")
def test_a_library_that_asks_for_a_thread_in_the_new_way_falls_back_to_the_one_that_is_seen(session, confined):
    """The flags of clone3 lie in memory, which no filter sees; libraries use clone where it is not known."""
    source = f"{CALL}__kernel void k(__global long *x) {{ x[0] = call(435, 0, 0, 0); }}"
    (answer,), notes = confined.call((source, 1), timeout_s=300)
    if notes:
        pytest.skip(f"no filter here: {notes}")
    assert answer == -errno.ENOSYS


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembly is for x86-64")
def test_a_kernel_that_changes_a_files_mode_changes_nothing(session, confined):
    """Modes outlive processes, and no fence for writes covers them."""
    calls = "x[0] = call(90, (long)name, 0, 0); x[1] = call(72, 1, 3, 0);"  # chmod, and fcntl F_GETFL
    source = f"{CALL}__kernel void k(__global long *x) {{ volatile char name[2] = {{'.', 0}}; {calls} }}"
    (answer, flags), notes = confined.call((source, 2), timeout_s=300)
    if notes:
        pytest.skip(f"no filter here: {notes}")
    assert answer == 0, "a linker goes on"
    assert flags > 0, "other questions about a file are answered"
    assert confined.folder.stat().st_mode & 0o777
