"""Compile and attach one BPF program with bcc, pass its file descriptors to the parent, and exit.

This is a separate program, because bcc's compiler takes 100 MB that the parent need not keep, prints to descriptors
that the parent uses for its screen, and may be installed in the directories of another Python. It imports nothing of
offtop. It reads one JSON request on stdin and answers with one message on a socket, whose descriptor is its argument:
JSON, and the file descriptors (SCM_RIGHTS) in the order in which the JSON names them.
Then, if the request names a cache file, it writes the compiled program to it, from which cache.py loads it without bcc.
The parent does not wait for that, because a write never returns if the file system hangs.
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
"""Directories of distributions' Python packages, relative to the root: Debian; Fedora, RHEL and Amazon Linux."""
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
_FUNCTION_KEYS = ("raw_tracepoints", "kprobes", "uprobes", "iterators", "typed_tracepoints")
"""Keys of a request whose values are functions to load."""
_COMPILER_LIBRARY = re.compile(r"/lib(bcc|bpf|clang|clang-cpp|LLVM)\b[^/]*$")
"""Matches the libraries that take part in compiling."""
_CACHE_FILE = re.compile(r"[0-9a-f]{64}\.(json|\d+)")
"""Matches the names of cache files, and of temporary files while they are written."""
_MAX_FILES = 64
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
    """Argument of bpf(2) for BPF_PROG_LOAD, up to the last member that is used here.

    See include/uapi/linux/bpf.h.
    """

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

    bcc uses only ctypes, so any Python 3 can import it, whichever minor version it was packaged for. Nothing else is
    imported from its directory: a NumPy of another minor version would not load.
    """
    directory = find_bcc(root)
    spec = importlib.machinery.PathFinder.find_spec("bcc", [str(directory)]) if directory else None
    if spec is None or spec.loader is None:
        raise ImportError("the BPF Compiler Collection's Python module, bcc, is not installed")
    bcc = sys.modules["bcc"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bcc)
    return bcc


def find_bcc(root: Path = Path("/")) -> Path | None:
    """Find the directory of bcc on sys.path, or else the distribution's, newest Python first.

    libbcc.py distinguishes the BPF Compiler Collection from PyPI's `bcc`, which is another project.
    """
    found = [directory for pattern in _PACKAGE_DIRECTORIES for directory in root.glob(pattern)]
    found.sort(
        key=lambda directory: [int(number) for number in re.findall(r"\d+", directory.parent.name)], reverse=True
    )
    directories = [*map(Path, sys.path), *found]
    return next((directory for directory in directories if (directory / "bcc" / "libbcc.py").is_file()), None)


_WARNINGS = ("-Werror=incompatible-pointer-types",)
"""bcc prints warnings only if a program is refused."""


def load(request: dict[str, Any]) -> tuple[dict[str, Any], list[int], Any]:
    """Compile, load and attach what a request names.

    Returns the answer, the descriptors, and an object that must stay alive until they are sent.
    """
    os.environ["BCC_KERNEL_SOURCE"] = request["headers"]
    bcc = import_bcc()
    lib: Any = importlib.import_module("bcc.libbcc").lib

    source = Path(request["source"])
    program = bcc.BPF(text=inline_includes(source), cflags=[f"-I{source.parent}", *_WARNINGS, *request["flags"]])
    fds: list[int] = []
    names: list[str] = []

    def keep(name: str, fd: int) -> None:
        names.append(name)
        fds.append(fd)

    for name in request["random_maps"]:
        fill_with_random_bytes(lib.bpf_table_fd(program.module, name.encode()))
    for function, tracepoint in request["raw_tracepoints"].items():
        share_maps(lib, program.module, function, request["shared_maps"])
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
    for function, map_name in request["iterators"].items():
        patch_kfunc_calls(lib, program.module, function, request["kfuncs"])
        loaded = program.load_func(function, _TRACING)
        map_fd = ct.c_uint32(lib.bpf_table_fd(program.module, map_name.encode())) if map_name else None
        link = lib.bcc_iter_attach(loaded.fd, map_fd and ct.byref(map_fd), ct.sizeof(map_fd) if map_fd else 0)
        if link < 0:
            raise OSError(ct.get_errno(), f"attaching {function}: {os.strerror(ct.get_errno())}")
        keep(f"program {function}", loaded.fd)
        keep(f"link {function}", link)
    refused = ""
    for function, (tracepoint, type_id) in request["typed_tracepoints"].items():
        share_maps(lib, program.module, function, request["shared_maps"])
        try:
            keep(f"program {tracepoint}", load_typed(lib, program.module, function, type_id, request["bpf_syscall"]))
        except OSError as error:
            refused = str(error)
    for name in request["maps"]:
        keep(f"map {name}", lib.bpf_table_fd(program.module, name.encode()))
    return {"fds": names, "bcc": str(bcc.__version__), "refused": refused}, fds, program


def describe_compiled(module: Any, request: dict[str, Any], version: str) -> dict[str, Any]:
    """Describe the compiled program in a form from which cache.py can load it.

    Raises KeyError or OSError if that is impossible.
    """
    lib: Any = importlib.import_module("bcc.libbcc").lib
    lib.bpf_table_name.restype, lib.bpf_table_name.argtypes = ct.c_char_p, [ct.c_void_p, ct.c_size_t]
    lib.bpf_num_tables.argtypes = [ct.c_void_p]
    names = [lib.bpf_table_name(module, number).decode() for number in range(lib.bpf_num_tables(module))]
    fds = {lib.bpf_table_fd(module, name.encode()): name for name in names}
    maps = {name: describe_map(fd, request["inner_maps"].get(name, "")) for fd, name in fds.items()}
    fds |= {fd: name for name, fd in request["shared_maps"].items()}
    functions = [function for key in _FUNCTION_KEYS for function in request[key]]
    programs = {function: describe_code(_instructions(lib, module, function), fds) for function in functions}
    answer = {"bcc": version, "refused": ""}
    return {"answer": answer, "maps": maps, "programs": programs, "compiler_libraries": compiler_libraries()}


def compiler_libraries() -> dict[str, list[int]]:
    """Size and mtime of each library that took part in compiling, by path.

    If one differs later, the library was updated.
    """
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    stats = {path: Path(path).stat() for path in sorted(paths) if _COMPILER_LIBRARY.search(path)}
    return {path: [found.st_size, found.st_mtime_ns] for path, found in stats.items()}


def describe_code(code: Any, fds: dict[int, str]) -> dict[str, Any]:
    """Encode instructions, with the position and the name of each map that they refer to."""
    map_uses = [
        (number, fds[one.immediate])
        for number, one in enumerate(code)
        if one.code == _LOAD_64 and one.registers >> 4 == _PSEUDO_MAP_FD
    ]
    return {"code": base64.b64encode(bytes(code)).decode(), "maps": map_uses}


def describe_map(fd: int, inner: str) -> dict[str, Any]:
    """Describe a map, so that it can be created again. `inner`: for an array of maps, the name of its inner map."""
    info = _MapInformation()
    _read_info(fd, info)
    described = {
        "kind": info.type,
        "key_bytes": info.key_size,
        "value_bytes": info.value_size,
        "entries": info.max_entries,
        "flags": info.map_flags,
        "inner": inner,
        "types": "",
    }
    if info.type == _TASK_STORAGE:  # the kernel creates it only with BTF
        types = libbpf().bpf_btf_get_fd_by_id(info.btf_id)
        btf_info = _TypesInformation()
        _read_info(types, btf_info)
        content = ct.create_string_buffer(btf_info.btf_size)
        btf_info = _TypesInformation(btf=ct.addressof(content), btf_size=btf_info.btf_size)
        _read_info(types, btf_info)
        described["types"] = base64.b64encode(content.raw).decode()
        described |= {"key_type": info.btf_key_type_id, "value_type": info.btf_value_type_id}
    return described


def _read_info(fd: int, info: ct.Structure) -> None:
    size = ct.c_uint32(ct.sizeof(info))
    if libbpf().bpf_obj_get_info_by_fd(fd, ct.byref(info), ct.byref(size)):
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))


def fill_with_random_bytes(fd: int) -> None:
    """Fill every entry of a per-CPU array with the same random bytes, on each CPU.

    Raises OSError.
    """
    info = _MapInformation()
    _read_info(fd, info)
    value = os.urandom(info.value_size) * libbpf().libbpf_num_possible_cpus()
    for number in range(info.max_entries):
        if libbpf().bpf_map_update_elem(fd, ct.byref(ct.c_uint32(number)), value, ct.c_uint64(0)):
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))


def libbpf() -> ct.CDLL:
    try:
        return ct.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        return ct.CDLL("libbpf.so.0", use_errno=True)


def write_cache_file(file: Path, program: dict[str, Any]) -> None:
    """Write a cache file atomically, if no other user can write to its directory.

    Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        file.parent.mkdir(mode=0o700)
    directory_fd = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(directory_fd)
    if found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
        return
    evict_oldest(directory_fd)
    body, temporary = json.dumps(program).encode(), f"{file.stem}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=directory_fd)
    try:
        with os.fdopen(fd, "wb") as opened:
            opened.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.rename(temporary, file.name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:
        os.unlink(temporary, dir_fd=directory_fd)
        raise


def evict_oldest(directory_fd: int) -> None:
    """Delete the oldest cache files of a directory if there are too many. Keeps all other files."""
    ages: list[tuple[int, str]] = []
    for name in filter(_CACHE_FILE.fullmatch, os.listdir(directory_fd)):
        with contextlib.suppress(OSError):
            ages.append((os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mtime_ns, name))
    for _, name in sorted(ages)[: max(0, len(ages) + 1 - _MAX_FILES)]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory_fd)


def _instructions(lib: Any, module: Any, function: str) -> Any:
    """Instructions of a compiled function. If changed here, it is loaded with the changes."""
    name = function.encode()
    count = lib.bpf_function_size(module, name) // ct.sizeof(_Instruction)
    return (_Instruction * count).from_address(lib.bpf_function_start(module, name))


def share_maps(lib: Any, module: Any, function: str, shared_maps: dict[str, int]) -> None:
    """Make a function use the maps of a running program instead of its own.

    `shared_maps`: map name → descriptor.
    """
    others = {lib.bpf_table_fd(module, name.encode()): fd for name, fd in shared_maps.items()}
    for one in _instructions(lib, module, function):
        if one.code == _LOAD_64 and one.registers >> 4 == _PSEUDO_MAP_FD:
            one.immediate = others.get(one.immediate, one.immediate)


def load_typed(lib: Any, module: Any, function: str, type_id: int, bpf_syscall: int) -> int:
    """Load a compiled function as a BTF-typed tracepoint program, and return its descriptor.

    Raises OSError.

    `type_id`: id of the tracepoint's type in the kernel's BTF. With it the verifier knows the types of the arguments.
    bcc cannot load such programs. `bpf_syscall`: the number of the system call bpf(2).
    """
    code, log = _instructions(lib, module, function), ct.create_string_buffer(_LOG_BYTES)
    attr = _Load(
        prog_type=_TRACING,
        insn_cnt=len(code),
        insns=ct.addressof(code),
        license=ct.cast(ct.c_char_p(_LICENSE), ct.c_void_p).value,
        prog_name=function.encode()[:15],
        expected_attach_type=_TRACE_RAW_TP,
        attach_btf_id=type_id,
    )
    fd = ct.CDLL(None, use_errno=True).syscall(bpf_syscall, _PROG_LOAD, ct.byref(attr), ct.sizeof(attr))
    if fd < 0:
        failed = ct.get_errno()
        attr.log_level, attr.log_size, attr.log_buf = 1, _LOG_BYTES, ct.addressof(log)
        ct.CDLL(None).syscall(bpf_syscall, _PROG_LOAD, ct.byref(attr), ct.sizeof(attr))
        last_lines = log.value.decode(errors="replace").strip().splitlines()[-3:]
        raise OSError(failed, f"{function}: {os.strerror(failed)}: {' '.join(last_lines)}")
    return fd


def inline_includes(source: Path) -> str:
    """Source text of the program, with each included .c file in place of its #include; these may include others.

    This is because bcc rewrites map calls only in the main file.
    """

    def inlined(line: re.Match[str]) -> str:
        return f'#line 1 "{line[1]}"\n{inline_includes(source.parent / line[1])}'

    return re.sub(r'^#include "(\w+\.c)"$', inlined, source.read_text(), flags=re.MULTILINE)


def patch_kfunc_calls(lib: Any, module: Any, function: str, kfuncs: Sequence[int]) -> None:
    """Turn compiled calls of the numbers `kfuncs` into calls of kernel functions (kfuncs).

    clang compiles only calls of helpers, which have small numbers. The two kinds of calls differ in the source register
    (include/uapi/linux/bpf.h).
    """
    for one in _instructions(lib, module, function):
        if one.code == _CALL and one.immediate in kfuncs:
            one.registers = _PSEUDO_KFUNC_CALL << 4


def main() -> None:
    ct.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    os.chdir("/")  # the compiler calls getcwd(), which fails if the current directory has been deleted
    request = json.load(sys.stdin)
    answer: dict[str, Any]
    fds: list[int] = []
    keep_alive: Any = None
    try:
        answer, fds, keep_alive = load(request)
    except ImportError as error:
        answer = {"error": "import", "what": str(error)}
    except Exception as error:  # bcc raises bare Exception; the parent turns it into an error message
        answer = {"error": "load", "what": str(error), "errno": getattr(error, "errno", 0) or ct.get_errno()}
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        socket.send_fds(parent, [json.dumps(answer).encode()], fds)
        parent.recv(1)  # keep the descriptors open until the parent has them
    if keep_alive is not None and request["cache_file"] and not answer["refused"]:
        with contextlib.suppress(OSError, KeyError, AttributeError):  # on errors, the next start compiles again
            compiled = describe_compiled(keep_alive.module, request, answer["bcc"])
            os.closerange(3, _MOST_DESCRIPTORS)  # otherwise BPF objects outlive the parent's close until we exit
            write_cache_file(Path(request["cache_file"]), compiled)
    sys.stdout.flush()
    os._exit(0)  # skip bcc's cleanup, which would only close what the exit closes anyway


if __name__ == "__main__":
    main()
