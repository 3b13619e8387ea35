"""Load a BPF program that an earlier start compiled, which saves the second that the compiler takes.

The child process that compiles (compile.py) stores the instructions and descriptions of the maps in a file, whose name
is a hash of everything that the compiler was given. The kernel's verifier checks the program, as usual; and a file that
another user could have written is not used. If anything is wrong with a file, the program is compiled.
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
from offtop.kernel.bpf.libbpf import ProgramOptions, library

VARIABLE = "OFFTOP_CACHE"
"""Environment variable that names another cache directory; empty disables the cache."""
_DIRECTORY = "/var/cache/offtop"
_FORMAT_VERSION = 2
"""Version of the file format. Change it whenever the meaning of the file changes."""
_MOST_BYTES = 16 << 20
_WRITABLE_BY_OTHERS = 0o022
_INSTRUCTION_BYTES = 8
_IMMEDIATE = slice(4, 8)
"""Position of the immediate operand in an instruction."""
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


class _LinkOptions(ct.Structure):
    """The head of libbpf's `struct bpf_link_create_opts`."""

    _fields_ = (
        ("sz", ct.c_size_t),
        ("flags", ct.c_uint32),
        ("iter_info", ct.c_void_p),
        ("iter_info_len", ct.c_uint32),
        ("target_btf_id", ct.c_uint32),
    )


def cache_file(request: Mapping[str, Any]) -> Path | None:
    """Path of the cache file for the program compiled from `request`. It need not exist.

    None if the cache is disabled.
    """
    directory = cache_directory()
    return directory / f"{hashlib.sha256(_key(request)).hexdigest()}.json" if directory else None


def cache_directory() -> Path | None:
    """Path of the cache directory.

    None if the user has disabled the cache, or if there is no default because we are not root.
    """
    path = Path(os.environ.get(VARIABLE, _DIRECTORY if os.geteuid() == 0 else ""))
    return path if path.is_absolute() else None


def why_unusable(directory: Path) -> str:
    """Why programs cannot be cached in `directory`; empty if they can. Writes nothing."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return "" if os.access(directory.parent, os.W_OK | os.X_OK) else "it cannot be created"
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if not _is_ours(found, stat.S_ISDIR):
        return "other users can write to it"
    return "" if os.access(directory, os.W_OK | os.X_OK) else "it is not writable"


def load(file: Path, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]] | None:
    """Load and attach the program from a cache file.

    Returns the compiler's answer, and the descriptors of what was loaded and attached; None if the file is not usable,
    or if the compiler has been updated since. Writes nothing, because that would hang if the file system does.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        stored = json.loads(_read(file))
        answer = dict(stored["answer"])
        if any([found.st_size, found.st_mtime_ns] != expected for found, expected in _compiler_libraries(stored)):
            return None
        with contextlib.ExitStack() as undo:
            fd_by_name = _load_all(stored, request, undo)
            undo.pop_all()
        return {**answer, "fds": [*fd_by_name]}, [*fd_by_name.values()]
    return None


def _compiler_libraries(stored: Any) -> list[tuple[os.stat_result, list[int]]]:
    return [(Path(path).stat(), size_and_mtime) for path, size_and_mtime in stored["compiler_libraries"].items()]


def _is_ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of this kind (stat.S_IS*), and only this user can write to it."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS


def _read(file: Path) -> bytes:
    """Read a cache file.

    Raises OSError, and ValueError if another user could have written it, or if its checksum is wrong.
    """
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
    """Serialize everything that determines the compiled program, and the kernel version."""
    source = Path(request["source"])
    texts = {
        str(file.relative_to(source.parent)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(source.parent.rglob("*.[ch]"))
    }
    texts[""] = hashlib.sha256(Path(__file__).with_name("compile.py").read_bytes()).hexdigest()
    others = {
        name: value for name, value in request.items() if name not in ("source", "headers", "shared_maps", "cache_file")
    }
    kernel = platform.release(), platform.version(), platform.machine()
    inputs = [_FORMAT_VERSION, kernel, texts, others, sorted(request["shared_maps"])]
    return json.dumps(inputs, sort_keys=True).encode()


def _load_all(stored: Any, request: Mapping[str, Any], undo: contextlib.ExitStack) -> dict[str, int]:
    """Load and attach everything that compile.py would have returned.

    Returns the descriptors by name. Raises OSError.
    """
    programs = {name: _Function(one) for name, one in stored["programs"].items()}
    wanted = {*request["maps"], *filter(None, request["iterators"].values())}
    wanted.update(name for one in programs.values() for name in one.maps)
    inner = {stored["maps"][name]["inner"] for name in wanted - request["shared_maps"].keys()} - {""}
    with contextlib.ExitStack() as until_loaded:
        maps = dict(request["shared_maps"])
        for name in [*inner, *wanted - inner - request["shared_maps"].keys()]:
            holder = undo if name in request["maps"] else until_loaded
            maps[name] = _owned(_create_map(name, stored["maps"][name], maps), holder)
        for name in request["random_maps"]:
            fill_with_random_bytes(maps[name])
        return {**_attach_all(programs, request, maps, undo), **{f"map {name}": maps[name] for name in request["maps"]}}


def _attach_all(
    programs: Mapping[str, "_Function"],
    request: Mapping[str, Any],
    maps: Mapping[str, int],
    undo: contextlib.ExitStack,
) -> dict[str, int]:
    found: dict[str, int] = {}
    lib = library()

    def loaded(name: str, function: str, kind: int, attach: int = 0, attach_to: int = 0) -> int:
        fd = found[f"program {name}"] = _owned(programs[function].load(function, maps, kind, attach, attach_to), undo)
        return fd

    for function, tracepoint in request["raw_tracepoints"].items():
        fd = loaded(tracepoint, function, _RAW_TRACEPOINT)
        found[f"link {tracepoint}"] = _owned(lib.bpf_raw_tracepoint_open(tracepoint.encode(), fd), undo)
    for function, symbol in request["kprobes"].items():
        loaded(symbol, function, _KPROBE)
    for function in request["uprobes"]:
        loaded(function, function, _KPROBE)
    for function, map_name in request["iterators"].items():
        target = lib.libbpf_find_vmlinux_btf_id(function.removeprefix("bpf_iter__").encode(), _TRACE_ITER)
        fd = loaded(function, function, _TRACING, _TRACE_ITER, target)
        link_options = _LinkOptions(ct.sizeof(_LinkOptions))
        if map_name:
            map_fd = ct.c_uint32(maps[map_name])
            link_options.iter_info, link_options.iter_info_len = ct.addressof(map_fd), ct.sizeof(map_fd)
        found[f"link {function}"] = _owned(lib.bpf_link_create(fd, 0, _TRACE_ITER, ct.byref(link_options)), undo)
    for function, (tracepoint, type_id) in request["typed_tracepoints"].items():
        loaded(tracepoint, function, _TRACING, _TRACE_RAW_TP, type_id)
    return found


def _owned(fd: int, holder: contextlib.ExitStack) -> int:
    """Return the descriptor, which is closed with `holder`.

    Raises OSError if it is an error code instead.
    """
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    holder.callback(os.close, fd)
    return fd


class _Function:
    """A cached function: its instructions, and which of them refer to a map."""

    def __init__(self, stored: Any) -> None:
        self._code = bytearray(base64.b64decode(stored["code"]))
        self._map_uses: Sequence[tuple[int, str]] = [(int(number), str(name)) for number, name in stored["maps"]]

    @property
    def maps(self) -> set[str]:
        return {name for _, name in self._map_uses}

    def load(self, function: str, maps: Mapping[str, int], kind: int, attach: int, attach_to: int) -> int:
        """Load the function; returns a descriptor, or a negative error code."""
        code = memoryview(self._code).cast("B")
        for number, name in self._map_uses:
            at = number * _INSTRUCTION_BYTES
            code[at : at + _INSTRUCTION_BYTES][_IMMEDIATE] = maps[name].to_bytes(4, sys.byteorder)
        options = ProgramOptions(ct.sizeof(ProgramOptions), expected_attach_type=attach, attach_btf_id=attach_to)
        held = (ct.c_char * len(code)).from_buffer(code)
        count = ct.c_size_t(len(code) // _INSTRUCTION_BYTES)
        return library().bpf_prog_load(kind, function.encode()[:15], _LICENSE, held, count, ct.byref(options))


def _create_map(name: str, stored: Any, maps: Mapping[str, int]) -> int:
    lib = library()
    options = _MapOptions(ct.sizeof(_MapOptions), map_flags=stored["flags"])
    types = -1
    if stored["inner"]:
        options.inner_map_fd = maps[stored["inner"]]
    if stored["types"]:
        content = base64.b64decode(stored["types"])
        types = lib.bpf_btf_load(content, ct.c_size_t(len(content)), None)
        if types < 0:
            return types
        options.btf_fd = types
        options.btf_key_type_id, options.btf_value_type_id = stored["key_type"], stored["value_type"]
    try:
        sizes = stored["key_bytes"], stored["value_bytes"], stored["entries"]
        return lib.bpf_map_create(stored["kind"], name.encode()[:15], *sizes, ct.byref(options))
    finally:
        if types >= 0:
            os.close(types)
