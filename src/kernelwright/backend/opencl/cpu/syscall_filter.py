"""A filter that keeps this process, its threads and what it starts from system calls that no kernel launch needs.

Native code of a candidate could keep results outside of its process (shared memory, sockets, queues), reach into other
processes, or change limits that later candidates run under. It could leave a thread, a timer or changed code behind,
which slow down what is measured next. What the driver, its linker and the worker's open channel need stays allowed.
Linux only; https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.backend.opencl.cpu.process_calls import library

_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_SET_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
_LOAD_WORD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in seccomp_data
_ALLOW, _REFUSE, _IGNORE = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000
_UNKNOWN = 0x00050000 | errno.ENOSYS
_X32_BIT = 0x40000000
_NAMES = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA: all of prctl that libraries use
_EXECUTE = 4  # PROT_EXEC
_CLONE3 = 435  # its flags lie in memory, which no filter sees; without it libraries use clone
_OWNERS = (8, 15)  # F_SETOWN, F_SETOWN_EX: whom a file's signals go to
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
_NEW_THREAD = 0x00010000  # CLONE_THREAD: the driver has all of its threads by then

_SAME_NUMBERS = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447, "process_mrelease": 448, "setxattrat": 463,
    "removexattrat": 466,
}  # fmt: skip
"""Numbers of refused calls that all machines share."""

_X86_64 = {
    "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42, "accept": 43, "sendmsg": 46, "recvmsg": 47,
    "bind": 49, "listen": 50, "socketpair": 53, "semget": 64, "semop": 65, "semctl": 66, "shmdt": 67, "msgget": 68,
    "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "ptrace": 101, "syslog": 103, "setpgid": 109, "setsid": 112,
    "personality": 135, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "setrlimit": 160, "chroot": 161,
    "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "kill": 62, "tkill": 200, "semtimedop": 220, "clock_settime": 227, "mq_open": 240,
    "mq_unlink": 241, "mq_timedsend": 242, "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "accept4": 288,
    "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "recvmmsg": 299, "fanotify_init": 300,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "sendmmsg": 307, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "link": 86, "symlink": 88, "linkat": 265, "symlinkat": 266,
    "mknod": 133, "mknodat": 259, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setxattr": 188,
    "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utime": 132,
    "utimes": 235, "futimesat": 261, "utimensat": 280, "setpriority": 141, "sched_setparam": 142,
    "sched_setscheduler": 144, "sched_setaffinity": 203, "ioprio_set": 251, "sched_setattr": 314, "alarm": 37,
    "setitimer": 38, "timer_create": 222, "timerfd_create": 283, "pkey_mprotect": 329,
}  # fmt: skip

_AARCH64 = {
    "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "personality": 92,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
    "ptrace": 117, "kill": 129, "tkill": 130, "rt_sigqueueinfo": 138, "reboot": 142, "setpgid": 154, "setsid": 157,
    "sethostname": 161, "setdomainname": 162, "setrlimit": 164, "settimeofday": 170, "adjtimex": 171, "mq_open": 180,
    "mq_unlink": 181, "mq_timedsend": 182, "mq_timedreceive": 183, "mq_notify": 184, "mq_getsetattr": 185,
    "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192,
    "semop": 193, "shmget": 194, "shmctl": 195, "shmat": 196, "shmdt": 197, "socket": 198, "socketpair": 199,
    "bind": 200, "listen": 201, "accept": 202, "connect": 203, "sendmsg": 211, "recvmsg": 212, "add_key": 217,
    "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "rt_tgsigqueueinfo": 240,
    "perf_event_open": 241, "accept4": 242, "recvmmsg": 243, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "sendmmsg": 269, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15,
    "fremovexattr": 16, "mknodat": 33, "symlinkat": 36, "linkat": 37, "fchownat": 54, "fchown": 55, "utimensat": 88,
    "ioprio_set": 30, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140,
    "sched_setattr": 274, "setitimer": 103, "timer_create": 107, "timerfd_create": 85, "pkey_mprotect": 288,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Machine:
    """What the filter has to know of a processor's system calls."""

    architecture: int
    refused: dict[str, int]
    seccomp: int
    prlimit: int
    tgkill: int
    prctl: int
    clone: int
    fcntl: int
    mprotect: int
    modes: tuple[int, ...]
    """Calls that change the mode of a file, wherever it is. They do nothing: linkers and copies of files make some."""


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, _X86_64, seccomp=317, prlimit=302, tgkill=234, prctl=157, clone=56, fcntl=72,
        mprotect=10, modes=(90, 91, 268, 452),
    ),
    "aarch64": _Machine(
        0xC00000B7, _AARCH64, seccomp=277, prlimit=261, tgkill=131, prctl=167, clone=220, fcntl=25,
        mprotect=226, modes=(52, 53, 452),
    ),
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_char_p))


def refuse_calls() -> str:
    """Put the filter onto all threads of this process, for good; why that cannot be done, or empty."""
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None or sys.maxsize < 2**32:
        return f"no filter of system calls is known for {platform.machine()} {sys.platform}"
    code = b"".join(_filter(machine, os.getpid()))
    program = _Program(len(code) // 8, code)
    call = library()
    if call.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return f"the system refuses it: {os.strerror(ctypes.get_errno())}"
    failed = call.syscall(machine.seccomp, _SET_FILTER, _ALL_THREADS, ctypes.byref(program))
    if failed < 0:
        return f"the system refuses it: {os.strerror(ctypes.get_errno())}"
    return f"thread {failed} has another filter" if failed else ""


def _filter(machine: _Machine, process_id: int) -> Sequence[bytes]:
    """Instructions; a jump counts from the one behind it."""
    refused = {**machine.refused, **_SAME_NUMBERS}
    lines = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_IF_EQUAL, machine.architecture, yes=1),
        _instruction(_RETURN, _REFUSE),
        _instruction(_LOAD_WORD, _NUMBER),
    ]
    if machine.architecture == _MACHINES["x86_64"].architecture:
        lines += [_instruction(_IF_AT_LEAST, _X32_BIT, no=1), _instruction(_RETURN, _REFUSE)]
    for number in sorted(refused.values()):
        lines += [_instruction(_IF_EQUAL, number, no=1), _instruction(_RETURN, _REFUSE)]
    for number in machine.modes:
        lines += [_instruction(_IF_EQUAL, number, no=1), _instruction(_RETURN, _IGNORE)]
    lines += _if_argument(machine.fcntl, 1, _IF_EQUAL, _OWNERS[0]) + _if_argument(
        machine.fcntl, 1, _IF_EQUAL, _OWNERS[1]
    )
    lines += _unless_argument(machine.prlimit, 2, 0) + _unless_argument(machine.tgkill, 0, process_id)
    lines += _unless_low_half(machine.prctl, 0, _NAMES)
    lines += _if_argument(machine.clone, 0, _IF_ANY_BIT, _NEW_NAMESPACES | _NEW_THREAD)
    lines += _if_argument(machine.mprotect, 2, _IF_ANY_BIT, _EXECUTE)
    lines += [_instruction(_IF_EQUAL, _CLONE3, no=1), _instruction(_RETURN, _UNKNOWN)]
    return [*lines, _instruction(_RETURN, _ALLOW)]


def _unless_argument(number: int, index: int, value: int) -> list[bytes]:
    """Refuse a call unless both halves of one of its arguments are as they should be."""
    place = _ARGUMENTS + 8 * index
    return [
        _instruction(_IF_EQUAL, number, no=6),
        _instruction(_LOAD_WORD, place),
        _instruction(_IF_EQUAL, value, no=3),
        _instruction(_LOAD_WORD, place + 4),
        _instruction(_IF_EQUAL, 0, no=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _REFUSE),
    ]


def _unless_low_half(number: int, index: int, values: Sequence[int]) -> list[bytes]:
    """Refuse a call unless the low half of one of its arguments is one of the values."""
    count = len(values)
    return [
        _instruction(_IF_EQUAL, number, no=count + 3),
        _instruction(_LOAD_WORD, _ARGUMENTS + 8 * index),
        *(_instruction(_IF_EQUAL, value, yes=count - place) for place, value in enumerate(values)),
        _instruction(_RETURN, _REFUSE),
        _instruction(_RETURN, _ALLOW),
    ]


def _if_argument(number: int, index: int, comparison: int, value: int) -> list[bytes]:
    """Refuse a call for what the low half of one of its arguments is; what comes after it asks for the number anew."""
    return [
        _instruction(_IF_EQUAL, number, no=4),
        _instruction(_LOAD_WORD, _ARGUMENTS + 8 * index),
        _instruction(comparison, value, no=1),
        _instruction(_RETURN, _REFUSE),
        _instruction(_LOAD_WORD, _NUMBER),
    ]


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
