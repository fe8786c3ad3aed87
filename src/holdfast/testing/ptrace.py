"""The kernel's tracing interface by ctypes: a filter that stops on chosen calls, and the verbs on a stopped thread."""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

# A guard is (argument position, mask): the call is only of interest if every guard's argument has a bit of its mask.
Guards = tuple[tuple[int, int], ...]

EVENT_SECCOMP: Final = 7
EVENT_STOP: Final = 128
WALL: Final = 0x40000000

_PTRACE_CONT, _PTRACE_SYSCALL = 7, 24
_PTRACE_GETREGSET, _PTRACE_SETREGSET = 0x4204, 0x4205
_PTRACE_SEIZE, _PTRACE_LISTEN, _PTRACE_GET_SYSCALL_INFO = 0x4206, 0x4208, 0x420E
_NT_PRSTATUS, _NT_ARM_SYSTEM_CALL = 1, 0x404

_SYSGOOD, _FORK, _VFORK, _CLONE, _SECCOMP, _EXITKILL = 1, 2, 4, 8, 0x80, 0x100000
_OPTIONS = _SYSGOOD | _FORK | _VFORK | _CLONE | _SECCOMP | _EXITKILL

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SECCOMP_MODE_FILTER = 2
_RET_ALLOW, _RET_TRACE = 0x7FFF0000, 0x7FF00000

_BPF_LOAD, _BPF_EQUAL, _BPF_ANY_BIT, _BPF_RETURN = 0x20, 0x15, 0x45, 0x06
_PAGE = 4096


class TracingUnavailable(RuntimeError):
    """This system cannot trace its children: that needs Linux 5.3 or newer on x86_64 or aarch64, and ptrace allowed."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What differs between processors: its name, its call numbers, and where a call's number and result are kept."""

    audit: int
    numbers: Mapping[str, int]
    number_set: int
    number_at: int
    result_at: int


def _numbers(table: str) -> Mapping[str, int]:
    return {name: int(number) for name, number in (pair.split("=") for pair in table.split())}


_X86_64 = Machine(
    audit=0xC000003E,
    numbers=_numbers(
        "write=1 open=2 mmap=9 pwrite64=18 writev=20 sendfile=40 fsync=74 fdatasync=75 truncate=76 ftruncate=77 "
        "rename=82 mkdir=83 rmdir=84 creat=85 link=86 unlink=87 symlink=88 openat=257 mkdirat=258 unlinkat=263 "
        "renameat=264 linkat=265 symlinkat=266 fallocate=285 pwritev=296 renameat2=316 copy_file_range=326 pwritev2=328"
    ),
    number_set=_NT_PRSTATUS,
    number_at=15 * 8,
    result_at=10 * 8,
)
_AARCH64 = Machine(
    audit=0xC00000B7,
    numbers=_numbers(
        "mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38 truncate=45 ftruncate=46 fallocate=47 openat=56 "
        "write=64 writev=66 pwrite64=68 pwritev=70 sendfile=71 fsync=82 fdatasync=83 mmap=222 renameat2=276 "
        "copy_file_range=285 pwritev2=287"
    ),
    number_set=_NT_ARM_SYSTEM_CALL,
    number_at=0,
    result_at=0,
)
_MACHINES = {"x86_64": _X86_64, "AMD64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _CallSeen(ctypes.Structure):
    """The kernel's `ptrace_syscall_info` at a seccomp stop."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
        ("filter_data", ctypes.c_uint32),
    )


@cache
def machine() -> Machine:
    """Return this processor's facts.

    Raises:
        TracingUnavailable: this is not Linux, or a processor without a table here.
    """
    found = _MACHINES.get(platform.machine()) if sys.platform == "linux" else None
    if found is None:
        raise TracingUnavailable(
            f"tracing system calls needs Linux on x86_64 or aarch64; this is {sys.platform} on {platform.machine()}"
        )
    return found


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    spans = (ctypes.POINTER(_Span), ctypes.c_ulong)
    libc.process_vm_readv.argtypes = (ctypes.c_int, *spans, *spans, ctypes.c_ulong)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    result: int = _libc().ptrace(request, thread, address, data)
    if result == -1:
        raise _failed(f"ptrace request {request:#x} on {thread}")
    return result


def _prctl(option: int, value: int, more: int = 0) -> None:
    if _libc().prctl(option, value, more, 0, 0) == -1:
        raise _failed(f"prctl {option}")


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as the thread that forked it is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stop_on(calls: Mapping[str, Guards]) -> None:
    """Make this thread, and all that it starts, stop for its tracer at each of `calls`; the rest run at full speed.

    There is no way back: without a tracer these calls fail with ENOSYS from here on.
    """
    code = _filter(calls)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    program = _Program(len(code), (_Instruction * len(code))(*code))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _filter(calls: Mapping[str, Guards]) -> Sequence[_Instruction]:
    # The fields of the kernel's seccomp_data: number at 0, processor at 4, six 64-bit arguments from 16.
    code = [(_BPF_LOAD, 0, 0, 4), (_BPF_EQUAL, 1, 0, machine().audit), (_BPF_RETURN, 0, 0, _RET_ALLOW)]
    code.append((_BPF_LOAD, 0, 0, 0))
    for name, guards in calls.items():
        if name in machine().numbers:
            rule = _rule(guards)
            code += [(_BPF_EQUAL, 0, len(rule), machine().numbers[name]), *rule]
    code.append((_BPF_RETURN, 0, 0, _RET_ALLOW))
    return [_Instruction(*each) for each in code]


def _rule(guards: Guards) -> list[tuple[int, int, int, int]]:
    rule: list[tuple[int, int, int, int]] = []
    for position, mask in guards:
        rule += [(_BPF_LOAD, 0, 0, 16 + 8 * position), (_BPF_ANY_BIT, 1, 0, mask), (_BPF_RETURN, 0, 0, _RET_ALLOW)]
    return [*rule, (_BPF_RETURN, 0, 0, _RET_TRACE)]


def seize(process: int) -> None:
    """Become the tracer of a child; only the calling thread may trace it, and its death kills the child.

    Raises:
        TracingUnavailable: the system forbids it.
    """
    try:
        _ptrace(_PTRACE_SEIZE, process, data=_OPTIONS)
    except PermissionError as error:
        raise TracingUnavailable("this system forbids a process to trace its own child") from error


def resume(thread: int, deliver: int = 0) -> None:
    """Let a stopped thread run on, with a signal or none."""
    _ptrace(_PTRACE_CONT, thread, data=deliver)


def stay_stopped(thread: int) -> None:
    """Leave a thread in a group stop until a SIGCONT comes."""
    _ptrace(_PTRACE_LISTEN, thread)


def resume_to_exit(thread: int) -> None:
    """Let a thread that is stopped at a call perform it and stop once more right after it."""
    _ptrace(_PTRACE_SYSCALL, thread)


def call_at(thread: int) -> tuple[int, tuple[int, ...]]:
    """Return number and arguments of the call that a thread is stopped at."""
    seen = _seen(thread)
    return int(seen.number), tuple(seen.args)


def result_at(thread: int) -> int:
    """Return the result of the call that a thread has just made; an error is a negative errno."""
    return ctypes.c_int64(_seen(thread).number).value  # in the exit form the result stands where the number was


def _seen(thread: int) -> _CallSeen:
    seen = _CallSeen()
    _ptrace(_PTRACE_GET_SYSCALL_INFO, thread, ctypes.sizeof(seen), ctypes.addressof(seen))
    return seen


def skip_call(thread: int) -> None:
    """Make the call that a thread is stopped at not happen."""
    _poke(thread, machine().number_set, machine().number_at, -1)


def set_result(thread: int, result: int) -> None:
    """Replace the result of the call that a thread has just made."""
    _poke(thread, _NT_PRSTATUS, machine().result_at, result)


def _poke(thread: int, register_set: int, at: int, value: int) -> None:
    registers = ctypes.create_string_buffer(512)
    span = _Span(ctypes.addressof(registers), len(registers))
    _ptrace(_PTRACE_GETREGSET, thread, register_set, ctypes.addressof(span))
    size = 8 if span.length > 4 else 4  # the ARM call number is a set of its own, of one 32-bit integer
    ctypes.memmove(ctypes.addressof(registers) + at, value.to_bytes(size, sys.byteorder, signed=True), size)
    _ptrace(_PTRACE_SETREGSET, thread, register_set, ctypes.addressof(span))


def read_memory(thread: int, address: int, length: int) -> bytes:
    """Return up to `length` bytes of a thread's memory: fewer where the mapped part ends."""
    if length == 0:
        return b""
    into = ctypes.create_string_buffer(length)
    here, there = _Span(ctypes.addressof(into), length), _Span(address, length)
    got: int = _libc().process_vm_readv(thread, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if got == -1:
        raise _failed(f"reading memory of {thread}")
    return into.raw[:got]


def read_string(thread: int, address: int) -> str:
    """Return the C string at `address` in a thread's memory."""
    found = b""
    while b"\0" not in found:
        at = address + len(found)
        # Up to the page's end and no further: the next page may not be there.
        found += read_memory(thread, at, _PAGE - at % _PAGE)
    return os.fsdecode(found.split(b"\0", 1)[0])


def read_vector(thread: int, address: int, count: int) -> bytes:
    """Return the joined buffers of an `iovec` array in a thread's memory."""
    raw = read_memory(thread, address, count * ctypes.sizeof(_Span))
    spans = (_Span * count).from_buffer_copy(raw)
    return b"".join(read_memory(thread, span.base or 0, span.length) for span in spans)
