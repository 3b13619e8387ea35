"""A program that was compiled before is loaded again without the compiler, which takes a second of each start.

The compiler's child (compile.py) leaves the instructions and what maps they use in a file, under a name that is made
of all that the compiler was given. It is the kernel's verifier that judges it, as ever; but only a file that nobody
else could have written is looked at. Whatever is wrong with one, the compiler is asked as if it were not there.
"""

import base64
import contextlib
import ctypes as ct
import hashlib
import json
import os
import platform
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offtop.kernel.bpf.compile import fill_with_random_bytes
from offtop.kernel.bpf.libbpf import library

VARIABLE = "OFFTOP_CACHE"
"""Of the environment: another directory; empty: none."""
_DIRECTORY = "/var/cache/offtop"
_FORM = 2
"""Another one whenever the file means another thing."""
_MOST_BYTES = 16 << 20
_WRITABLE_BY_OTHERS = 0o022
_INSTRUCTION_BYTES = 8
_IMMEDIATE = slice(4, 8)
"""Where an instruction has it."""
_RAW_TRACEPOINT, _KPROBE, _TRACING = 17, 2, 26  # enum bpf_prog_type
_TRACE_RAW_TP, _TRACE_ITER = 23, 28  # enum bpf_attach_type
_LICENSE = b"GPL"


class _MapOptions(ct.Structure):
    """The head of libbpf's `struct bpf_map_create_opts`."""

    _fields_ = (
        ("sz", ct.c_size_t),
        ("btf_fd", ct.c_uint32),
        ("btf_key_type_id", ct.c_uint32),
        ("btf_value_type_id", ct.c_uint32),
        ("btf_vmlinux_value_type_id", ct.c_uint32),
        ("inner_map_fd", ct.c_uint32),
        ("map_flags", ct.c_uint32),
    )


class _ProgramOptions(ct.Structure):
    """The head of libbpf's `struct bpf_prog_load_opts`."""

    _fields_ = (
        ("sz", ct.c_size_t),
        ("attempts", ct.c_int),
        ("expected_attach_type", ct.c_uint32),
        ("prog_btf_fd", ct.c_uint32),
        ("prog_flags", ct.c_uint32),
        ("prog_ifindex", ct.c_uint32),
        ("kern_version", ct.c_uint32),
        ("attach_btf_id", ct.c_uint32),
        ("attach_prog_fd", ct.c_uint32),
    )


class _LinkOptions(ct.Structure):
    """The head of libbpf's `struct bpf_link_create_opts`."""

    _fields_ = (
        ("sz", ct.c_size_t),
        ("flags", ct.c_uint32),
        ("iter_info", ct.c_void_p),
        ("iter_info_len", ct.c_uint32),
        ("target_btf_id", ct.c_uint32),
    )


def place(request: Mapping[str, Any]) -> Path | None:
    """Where what the compiler makes of `request` is, or is to be, kept; None: nowhere."""
    where = directory()
    return where / f"{hashlib.sha256(_key(request)).hexdigest()}.json" if where else None


def directory() -> Path | None:
    """Where files are kept; None: nowhere, as somebody asked for, or where this user has no place of its own."""
    said = Path(os.environ.get(VARIABLE, _DIRECTORY if os.geteuid() == 0 else ""))
    return said if said.is_absolute() else None


def trouble(where: Path) -> str:
    """Why nothing can be kept in `where`; empty: it can. Nothing is written to tell."""
    try:
        found = where.lstat()
    except FileNotFoundError:
        return "" if os.access(where.parent, os.W_OK | os.X_OK) else "it cannot be made there"
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory"
    if not _is_ours(found, stat.S_ISDIR):
        return "others can write to it"
    return "" if os.access(where, os.W_OK | os.X_OK) else "it cannot be written to"


def load(file: Path, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]] | None:
    """The compiler's answer, and the descriptors of what is loaded and attached; None where the file is of no use, or
    made by what is another version by now. Nothing is written: that would hang where the file system does."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = json.loads(_read(file))
        answer = dict(kept["answer"])
        if any([found.st_size, found.st_mtime_ns] != told for found, told in _makers(kept)):
            return None
        with contextlib.ExitStack() as undo:
            named = _loaded(kept, request, undo)
            undo.pop_all()
        return {**answer, "fds": [*named]}, [*named.values()]
    return None


def _makers(kept: Any) -> list[tuple[os.stat_result, list[int]]]:
    return [(Path(path).stat(), told) for path, told in kept["makers"].items()]


def _is_ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether only this user can have written it."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS


def _read(file: Path) -> bytes:
    """Raises OSError, ValueError where somebody else could have written it, or it is not as it was written."""
    if not _is_ours(file.parent.lstat(), stat.S_ISDIR):
        raise ValueError
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as opened:
        found = os.fstat(fd)
        if not _is_ours(found, stat.S_ISREG) or found.st_size > _MOST_BYTES:
            raise ValueError
        digest, _, body = opened.read(_MOST_BYTES).partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError
    return body


def _key(request: Mapping[str, Any]) -> bytes:
    """All that the compiler is given, and the kernel that it is for."""
    source = Path(request["source"])
    texts = {
        str(file.relative_to(source.parent)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(source.parent.rglob("*.[ch]"))
    }
    texts[""] = hashlib.sha256(Path(__file__).with_name("compile.py").read_bytes()).hexdigest()
    others = {name: value for name, value in request.items() if name not in ("source", "headers", "given", "keep")}
    kernel = platform.release(), platform.version(), platform.machine()
    whole = [_FORM, kernel, texts, others, sorted(request["given"])]
    return json.dumps(whole, sort_keys=True).encode()


def _loaded(kept: Any, request: Mapping[str, Any], undo: contextlib.ExitStack) -> dict[str, int]:
    """Everything that the compiler's child would have handed over, by name. Raises OSError."""
    programs = {name: _Kept(one) for name, one in kept["programs"].items()}
    wanted = {*request["maps"], *filter(None, request["iterators"].values())}
    wanted.update(name for one in programs.values() for name in one.maps)
    inner = {kept["maps"][name]["inner"] for name in wanted - request["given"].keys()} - {""}
    with contextlib.ExitStack() as until_loaded:
        maps = dict(request["given"])
        for name in [*inner, *wanted - inner - request["given"].keys()]:
            holder = undo if name in request["maps"] else until_loaded
            maps[name] = _held(_made_map(name, kept["maps"][name], maps), holder)
        for name in request["random"]:
            fill_with_random_bytes(maps[name])
        return {**_attached(programs, request, maps, undo), **{f"map {name}": maps[name] for name in request["maps"]}}


def _attached(
    programs: Mapping[str, "_Kept"], request: Mapping[str, Any], maps: Mapping[str, int], undo: contextlib.ExitStack
) -> dict[str, int]:
    found: dict[str, int] = {}
    lib = library()

    def loaded(name: str, function: str, kind: int, attach: int = 0, attach_to: int = 0) -> int:
        fd = found[f"program {name}"] = _held(programs[function].load(function, maps, kind, attach, attach_to), undo)
        return fd

    for function, tracepoint in request["raw_tracepoints"].items():
        fd = loaded(tracepoint, function, _RAW_TRACEPOINT)
        found[f"link {tracepoint}"] = _held(lib.bpf_raw_tracepoint_open(tracepoint.encode(), fd), undo)
    for function, symbol in request["kprobes"].items():
        loaded(symbol, function, _KPROBE)
    for function in request["uprobes"]:
        loaded(function, function, _KPROBE)
    for function, over in request["iterators"].items():
        target = lib.libbpf_find_vmlinux_btf_id(function.removeprefix("bpf_iter__").encode(), _TRACE_ITER)
        fd = loaded(function, function, _TRACING, _TRACE_ITER, target)
        about = _LinkOptions(ct.sizeof(_LinkOptions))
        if over:
            of_map = ct.c_uint32(maps[over])
            about.iter_info, about.iter_info_len = ct.addressof(of_map), ct.sizeof(of_map)
        found[f"link {function}"] = _held(lib.bpf_link_create(fd, 0, _TRACE_ITER, ct.byref(about)), undo)
    for function, (tracepoint, typed) in request["typed_tracepoints"].items():
        loaded(tracepoint, function, _TRACING, _TRACE_RAW_TP, typed)
    return found


def _held(fd: int, holder: contextlib.ExitStack) -> int:
    """A descriptor that is closed with `holder`. Raises OSError where it is an error."""
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    holder.callback(os.close, fd)
    return fd


class _Kept:
    """A function: its instructions, and which of them name a map."""

    def __init__(self, told: Any) -> None:
        self._code = bytearray(base64.b64decode(told["code"]))
        self._places: Sequence[tuple[int, str]] = [(int(number), str(name)) for number, name in told["maps"]]

    @property
    def maps(self) -> set[str]:
        return {name for _, name in self._places}

    def load(self, function: str, maps: Mapping[str, int], kind: int, attach: int, attach_to: int) -> int:
        """A descriptor, or an error below 0."""
        code = memoryview(self._code).cast("B")
        for number, name in self._places:
            at = number * _INSTRUCTION_BYTES
            code[at : at + _INSTRUCTION_BYTES][_IMMEDIATE] = maps[name].to_bytes(4, sys.byteorder)
        options = _ProgramOptions(ct.sizeof(_ProgramOptions), expected_attach_type=attach, attach_btf_id=attach_to)
        held = (ct.c_char * len(code)).from_buffer(code)
        count = ct.c_size_t(len(code) // _INSTRUCTION_BYTES)
        return library().bpf_prog_load(kind, function.encode()[:15], _LICENSE, held, count, ct.byref(options))


def _made_map(name: str, told: Any, maps: Mapping[str, int]) -> int:
    lib = library()
    options = _MapOptions(ct.sizeof(_MapOptions), map_flags=told["flags"])
    types = -1
    if told["inner"]:
        options.inner_map_fd = maps[told["inner"]]
    if told["types"]:
        content = base64.b64decode(told["types"])
        types = lib.bpf_btf_load(content, ct.c_size_t(len(content)), None)
        if types < 0:
            return types
        options.btf_fd = types
        options.btf_key_type_id, options.btf_value_type_id = told["key_type"], told["value_type"]
    try:
        sizes = told["key_bytes"], told["value_bytes"], told["entries"]
        return lib.bpf_map_create(told["kind"], name.encode()[:15], *sizes, ct.byref(options))
    finally:
        if types >= 0:
            os.close(types)
