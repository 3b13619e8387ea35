"""Compiles and attaches one BPF program with bcc, hands its descriptors to the parent, and ends.

A program of its own, because bcc's compiler takes 100 MB that the parent need not keep, prints to
descriptors that a screen would not survive, and may live in another Python's directories. It imports
nothing of offtop. Reads one JSON request on stdin, answers with one message on a socket, whose
descriptor is its argument: JSON, and the descriptors beside it (SCM_RIGHTS), in the order that the JSON names them.
Then what it made goes into a file, if the request names one, from which ready.py loads it without bcc. Nobody waits for
that: it may take for ever where a file system hangs.
"""

import base64
import contextlib
import ctypes as ct
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGE_DIRECTORIES = (
    "usr/lib/python3/dist-packages",
    "usr/lib64/python3*/site-packages",
    "usr/lib/python3*/site-packages",
)
"""Where distributions install Python packages, below the root: Debian; Fedora, RHEL and Amazon Linux."""
_TRACING = 26  # BPF_PROG_TYPE_TRACING
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_TRACE_RAW_TP = 23  # BPF_TRACE_RAW_TP
_PROG_LOAD = 5  # BPF_PROG_LOAD
_LICENSE = b"GPL"
_MOST_DESCRIPTORS = 1 << 16
_LOG_BYTES = 1 << 20
_LOAD_64 = 0x18  # BPF_LD | BPF_DW | BPF_IMM
_PSEUDO_MAP_FD = 1
_TASK_STORAGE = 29  # BPF_MAP_TYPE_TASK_STORAGE
_ATTACHED = ("raw_tracepoints", "kprobes", "uprobes", "iterators", "typed_tracepoints")
"""Of a request: what has functions."""
_MAKERS = re.compile(r"/lib(bcc|bpf|clang|clang-cpp|LLVM)\b[^/]*$")
_OF_OURS = re.compile(r"[0-9a-f]{64}\.(json|\d+)")
"""Names of kept files, and of those that are being written."""
_MOST_FILES = 64
_WRITABLE_BY_OTHERS = 0o022
_CALL = 0x85  # BPF_JMP | BPF_CALL
_PSEUDO_KFUNC_CALL = 2


class _Instruction(ct.Structure):
    """`struct bpf_insn`."""

    _fields_ = (("code", ct.c_uint8), ("registers", ct.c_uint8), ("offset", ct.c_int16), ("immediate", ct.c_int32))
    code: int
    registers: int
    immediate: int


class _Load(ct.Structure):
    """What bpf(2) takes with BPF_PROG_LOAD (include/uapi/linux/bpf.h), up to the last that is given here."""

    _fields_ = (
        ("prog_type", ct.c_uint32),
        ("insn_cnt", ct.c_uint32),
        ("insns", ct.c_uint64),
        ("license", ct.c_uint64),
        ("log_level", ct.c_uint32),
        ("log_size", ct.c_uint32),
        ("log_buf", ct.c_uint64),
        ("kern_version", ct.c_uint32),
        ("prog_flags", ct.c_uint32),
        ("prog_name", ct.c_char * 16),
        ("prog_ifindex", ct.c_uint32),
        ("expected_attach_type", ct.c_uint32),
        ("prog_btf_fd", ct.c_uint32),
        ("func_info_rec_size", ct.c_uint32),
        ("func_info", ct.c_uint64),
        ("func_info_cnt", ct.c_uint32),
        ("line_info_rec_size", ct.c_uint32),
        ("line_info", ct.c_uint64),
        ("line_info_cnt", ct.c_uint32),
        ("attach_btf_id", ct.c_uint32),
    )


class _MapInformation(ct.Structure):
    """The head of the kernel's `struct bpf_map_info`."""

    _fields_ = (
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("key_size", ct.c_uint32),
        ("value_size", ct.c_uint32),
        ("max_entries", ct.c_uint32),
        ("map_flags", ct.c_uint32),
        ("name", ct.c_char * 16),
        ("ifindex", ct.c_uint32),
        ("btf_vmlinux_value_type_id", ct.c_uint32),
        ("netns_dev", ct.c_uint64),
        ("netns_ino", ct.c_uint64),
        ("btf_id", ct.c_uint32),
        ("btf_key_type_id", ct.c_uint32),
        ("btf_value_type_id", ct.c_uint32),
    )


class _TypesInformation(ct.Structure):
    """The head of the kernel's `struct bpf_btf_info`."""

    _fields_ = (("btf", ct.c_uint64), ("btf_size", ct.c_uint32), ("id", ct.c_uint32))


def import_bcc(root: Path = Path("/")) -> Any:
    """Import the distribution's bcc. Raises ImportError if it is not installed.

    bcc is plain ctypes, so any Python 3 can import it, whichever minor version it was packaged for. Nothing else is
    imported from the directory that has it: a NumPy of another minor version would not load.
    """
    directory = find_bcc(root)
    spec = importlib.machinery.PathFinder.find_spec("bcc", [str(directory)]) if directory else None
    if spec is None or spec.loader is None:
        raise ImportError("the BPF Compiler Collection's Python module, bcc, is not installed")
    bcc = sys.modules["bcc"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bcc)
    return bcc


def find_bcc(root: Path = Path("/")) -> Path | None:
    """The directory that has bcc: one on sys.path, else the distribution's, newest Python first.

    libbcc.py tells the BPF Compiler Collection from PyPI's `bcc`, which is another project.
    """
    found = [directory for pattern in _PACKAGE_DIRECTORIES for directory in root.glob(pattern)]
    found.sort(
        key=lambda directory: [int(number) for number in re.findall(r"\d+", directory.parent.name)], reverse=True
    )
    places = [*map(Path, sys.path), *found]
    return next((directory for directory in places if (directory / "bcc" / "libbcc.py").is_file()), None)


def load(request: dict[str, Any]) -> tuple[dict[str, Any], list[int], Any]:
    """The answer, the descriptors, and what must live until they are sent."""
    os.environ["BCC_KERNEL_SOURCE"] = request["headers"]
    bcc = import_bcc()
    lib: Any = importlib.import_module("bcc.libbcc").lib

    source = Path(request["source"])
    program = bcc.BPF(text=whole(source), cflags=[f"-I{source.parent}", *request["flags"]])
    fds: list[int] = []
    names: list[str] = []

    def keep(name: str, fd: int) -> None:
        names.append(name)
        fds.append(fd)

    for name in request["random"]:
        fill_with_random_bytes(lib.bpf_table_fd(program.module, name.encode()))
    for function, tracepoint in request["raw_tracepoints"].items():
        loaded = program.load_func(function, bcc.BPF.RAW_TRACEPOINT)
        keep(f"program {tracepoint}", loaded.fd)
        link = lib.bpf_attach_raw_tracepoint(loaded.fd, tracepoint.encode())
        if link < 0:
            raise OSError(ct.get_errno(), f"attaching to {tracepoint}: {os.strerror(ct.get_errno())}")
        keep(f"link {tracepoint}", link)
    for function, symbol in request["kprobes"].items():
        keep(f"program {symbol}", program.load_func(function, bcc.BPF.KPROBE).fd)
    for function in request["uprobes"]:
        keep(f"program {function}", program.load_func(function, bcc.BPF.KPROBE).fd)
    for function, over in request["iterators"].items():
        make_calls(lib, program.module, function, request["functions"])
        loaded = program.load_func(function, _TRACING)
        of_map = ct.c_uint32(lib.bpf_table_fd(program.module, over.encode())) if over else None
        link = lib.bcc_iter_attach(loaded.fd, of_map and ct.byref(of_map), ct.sizeof(of_map) if of_map else 0)
        if link < 0:
            raise OSError(ct.get_errno(), f"attaching {function}: {os.strerror(ct.get_errno())}")
        keep(f"program {function}", loaded.fd)
        keep(f"link {function}", link)
    refused = ""
    for function, (tracepoint, typed) in request["typed_tracepoints"].items():
        share_maps(lib, program.module, function, request["given"])
        try:
            keep(f"program {tracepoint}", load_typed(lib, program.module, function, typed, request["bpf"]))
        except OSError as error:
            refused = str(error)
    for name in request["maps"]:
        keep(f"map {name}", lib.bpf_table_fd(program.module, name.encode()))
    return {"fds": names, "bcc": str(bcc.__version__), "refused": refused}, fds, program


def kept(module: Any, request: dict[str, Any], version: str) -> dict[str, Any]:
    """What ready.py needs to load the same once more. Raises KeyError, OSError for what it could not."""
    lib: Any = importlib.import_module("bcc.libbcc").lib
    lib.bpf_table_name.restype, lib.bpf_table_name.argtypes = ct.c_char_p, [ct.c_void_p, ct.c_size_t]
    lib.bpf_num_tables.argtypes = [ct.c_void_p]
    names = [lib.bpf_table_name(module, number).decode() for number in range(lib.bpf_num_tables(module))]
    fds = {lib.bpf_table_fd(module, name.encode()): name for name in names}
    maps = {name: told_of_map(fd, request["inner"].get(name, "")) for fd, name in fds.items()}
    fds |= {fd: name for name, fd in request["given"].items()}
    functions = [function for by in _ATTACHED for function in request[by]]
    programs = {function: told_of_code(_code(lib, module, function), fds) for function in functions}
    answer = {"bcc": version, "refused": ""}
    return {"answer": answer, "maps": maps, "programs": programs, "makers": makers()}


def makers() -> dict[str, list[int]]:
    """The libraries by which it was made, and what tells another version of each."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    stats = {path: Path(path).stat() for path in sorted(paths) if _MAKERS.search(path)}
    return {path: [found.st_size, found.st_mtime_ns] for path, found in stats.items()}


def told_of_code(code: Any, fds: dict[int, str]) -> dict[str, Any]:
    places = [
        (number, fds[one.immediate])
        for number, one in enumerate(code)
        if one.code == _LOAD_64 and one.registers >> 4 == _PSEUDO_MAP_FD
    ]
    return {"code": base64.b64encode(bytes(code)).decode(), "maps": places}


def told_of_map(fd: int, inner: str) -> dict[str, Any]:
    info = _MapInformation()
    _inform(fd, info)
    told = {
        "kind": info.type,
        "key_bytes": info.key_size,
        "value_bytes": info.value_size,
        "entries": info.max_entries,
        "flags": info.map_flags,
        "inner": inner,
        "types": "",
    }
    if info.type == _TASK_STORAGE:  # the kernel makes none without
        types = libbpf().bpf_btf_get_fd_by_id(info.btf_id)
        about = _TypesInformation()
        _inform(types, about)
        content = ct.create_string_buffer(about.btf_size)
        about = _TypesInformation(btf=ct.addressof(content), btf_size=about.btf_size)
        _inform(types, about)
        told["types"] = base64.b64encode(content.raw).decode()
        told |= {"key_type": info.btf_key_type_id, "value_type": info.btf_value_type_id}
    return told


def _inform(fd: int, info: ct.Structure) -> None:
    size = ct.c_uint32(ct.sizeof(info))
    if libbpf().bpf_obj_get_info_by_fd(fd, ct.byref(info), ct.byref(size)):
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))


def fill_with_random_bytes(fd: int) -> None:
    """The same ones in every entry of a per-CPU array, on each CPU. Raises OSError."""
    info = _MapInformation()
    _inform(fd, info)
    value = os.urandom(info.value_size) * libbpf().libbpf_num_possible_cpus()
    for number in range(info.max_entries):
        if libbpf().bpf_map_update_elem(fd, ct.byref(ct.c_uint32(number)), value, ct.c_uint64(0)):
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))


def libbpf() -> ct.CDLL:
    try:
        return ct.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        return ct.CDLL("libbpf.so.0", use_errno=True)


def keep_in_file(file: Path, told: dict[str, Any]) -> None:
    """Whole, or not at all, in a directory that nobody else can write to. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        file.parent.mkdir(mode=0o700)
    place = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(place)
    if found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
        return
    make_room(place)
    body, begun = json.dumps(told).encode(), f"{file.stem}.{os.getpid()}"
    fd = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=place)
    try:
        with os.fdopen(fd, "wb") as opened:
            opened.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.rename(begun, file.name, src_dir_fd=place, dst_dir_fd=place)
    except OSError:
        os.unlink(begun, dir_fd=place)
        raise


def make_room(place: int) -> None:
    """For one more kept file in the directory behind a descriptor: the oldest go. What else is there stays."""
    ages: list[tuple[int, str]] = []
    for name in filter(_OF_OURS.fullmatch, os.listdir(place)):
        with contextlib.suppress(OSError):
            ages.append((os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime_ns, name))
    for _, name in sorted(ages)[: max(0, len(ages) + 1 - _MOST_FILES)]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=place)


def _code(lib: Any, module: Any, function: str) -> Any:
    """The instructions of a compiled function, to be changed before it is loaded."""
    name = function.encode()
    count = lib.bpf_function_size(module, name) // ct.sizeof(_Instruction)
    return (_Instruction * count).from_address(lib.bpf_function_start(module, name))


def share_maps(lib: Any, module: Any, function: str, given: dict[str, int]) -> None:
    """Have a function use the maps `given` (name → descriptor) instead of its own: those of a program that runs."""
    others = {lib.bpf_table_fd(module, name.encode()): fd for name, fd in given.items()}
    for one in _code(lib, module, function):
        if one.code == _LOAD_64 and one.registers >> 4 == _PSEUDO_MAP_FD:
            one.immediate = others.get(one.immediate, one.immediate)


def load_typed(lib: Any, module: Any, function: str, typed: int, number: int) -> int:
    """A compiled function as a program at the tracepoint whose type is `typed` in the kernel's BTF: the verifier
    knows what its arguments point to. bcc has no word for these. `number`: of bpf(2). Raises OSError."""
    code, log = _code(lib, module, function), ct.create_string_buffer(_LOG_BYTES)
    attr = _Load(
        prog_type=_TRACING,
        insn_cnt=len(code),
        insns=ct.addressof(code),
        license=ct.cast(ct.c_char_p(_LICENSE), ct.c_void_p).value,
        prog_name=function.encode()[:15],
        expected_attach_type=_TRACE_RAW_TP,
        attach_btf_id=typed,
    )
    fd = ct.CDLL(None, use_errno=True).syscall(number, _PROG_LOAD, ct.byref(attr), ct.sizeof(attr))
    if fd < 0:
        why = ct.get_errno()
        attr.log_level, attr.log_size, attr.log_buf = 1, _LOG_BYTES, ct.addressof(log)
        ct.CDLL(None).syscall(number, _PROG_LOAD, ct.byref(attr), ct.sizeof(attr))
        said = log.value.decode(errors="replace").strip().splitlines()[-3:]
        raise OSError(why, f"{function}: {os.strerror(why)}: {' '.join(said)}")
    return fd


def whole(source: Path) -> str:
    """The program's text, with the .c files that it includes in their places: bcc rewrites map calls there alone."""

    def put_in(line: re.Match[str]) -> str:
        return f'#line 1 "{line[1]}"\n{(source.parent / line[1]).read_text()}'

    return re.sub(r'^#include "(\w+\.c)"$', put_in, source.read_text(), flags=re.MULTILINE)


def make_calls(lib: Any, module: Any, function: str, functions: Sequence[int]) -> None:
    """Of compiled calls by these numbers, make calls of the kernel's own functions (kfuncs): clang knows calls of
    helpers alone, which have small numbers. They differ in the source register (include/uapi/linux/bpf.h)."""
    for one in _code(lib, module, function):
        if one.code == _CALL and one.immediate in functions:
            one.registers = _PSEUDO_KFUNC_CALL << 4


def main() -> None:
    ct.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)  # nobody needs it then
    os.chdir("/")  # the directory that offtop was called from may be deleted: the compiler asks which it is
    request = json.load(sys.stdin)
    answer: dict[str, Any]
    fds: list[int] = []
    keep_alive: Any = None
    try:
        answer, fds, keep_alive = load(request)
    except ImportError as error:
        answer = {"error": "import", "what": str(error)}
    except Exception as error:  # bcc raises bare Exception; the parent turns it into a sentence
        answer = {"error": "load", "what": str(error), "errno": getattr(error, "errno", 0) or ct.get_errno()}
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        socket.send_fds(parent, [json.dumps(answer).encode()], fds)
        parent.recv(1)  # until the parent has them
    if keep_alive is not None and request["keep"] and not answer["refused"]:
        with contextlib.suppress(OSError, KeyError, AttributeError):  # then the next start compiles, too
            told = kept(keep_alive.module, request, answer["bcc"])
            os.closerange(3, _MOST_DESCRIPTORS)  # or what the parent closes would stay for as long as this takes
            keep_in_file(Path(request["keep"]), told)
    sys.stdout.flush()
    os._exit(0)  # without bcc's clean-up, which would only close what dies with us anyway


if __name__ == "__main__":
    main()
