"""Compiles and attaches one BPF program with bcc, hands its descriptors to the parent, and ends.

A program of its own, because bcc's compiler takes 100 MB that the parent need not keep, prints to
descriptors that a screen would not survive, and may live in another Python's directories. It imports
nothing of offtop. Reads one JSON request on stdin, answers with one message on a socket, whose
descriptor is its argument: JSON, and the descriptors beside it (SCM_RIGHTS), in the order that the JSON names them.
"""

import ctypes as ct
import importlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DIST_PACKAGES = (
    "/usr/lib/python3/dist-packages",
    f"/usr/lib/python3.{sys.version_info[1]}/site-packages",
    f"/usr/lib64/python3.{sys.version_info[1]}/site-packages",
    "/usr/lib/python3/site-packages",
)
_TRACING = 26  # BPF_PROG_TYPE_TRACING
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_CALL = 0x85  # BPF_JMP | BPF_CALL
_PSEUDO_KFUNC_CALL = 2


class _Instruction(ct.Structure):
    """`struct bpf_insn`."""

    _fields_ = (("code", ct.c_uint8), ("registers", ct.c_uint8), ("offset", ct.c_int16), ("immediate", ct.c_int32))
    code: int
    registers: int
    immediate: int


def import_bcc() -> Any:
    """The distribution's bcc: plain ctypes, so any Python 3 can import it from where another one has it."""
    sys.path.extend(path for path in _DIST_PACKAGES if path not in sys.path)
    import bcc  # pyright: ignore[reportMissingImports]

    if not hasattr(bcc, "BPF"):  # PyPI's `bcc` is another project
        raise ImportError(f"{bcc.__file__} is not the BPF Compiler Collection")
    return bcc


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

    for function, tracepoint in request["raw_tracepoints"].items():
        loaded = program.load_func(function, bcc.BPF.RAW_TRACEPOINT)
        keep(f"program {tracepoint}", loaded.fd)
        link = lib.bpf_attach_raw_tracepoint(loaded.fd, tracepoint.encode())
        if link < 0:
            raise OSError(ct.get_errno(), f"attaching to {tracepoint}: {os.strerror(ct.get_errno())}")
        keep(f"link {tracepoint}", link)
    for function, symbol in request["kprobes"].items():
        loaded = program.load_func(function, bcc.BPF.KPROBE)
        keep(f"program {symbol}", loaded.fd)
        event = f"offtop_{os.getpid()}_{function}".encode()
        link = lib.bpf_attach_kprobe(loaded.fd, 0, event, symbol.encode(), 0, 0)
        if link < 0:
            raise OSError(ct.get_errno(), f"attaching to {symbol}: {os.strerror(ct.get_errno())}")
        keep(f"link {symbol}", link)
    for function, over in request["iterators"].items():
        make_calls(lib, program.module, function, request["functions"])
        loaded = program.load_func(function, _TRACING)
        of_map = ct.c_uint32(lib.bpf_table_fd(program.module, over.encode())) if over else None
        link = lib.bcc_iter_attach(loaded.fd, of_map and ct.byref(of_map), ct.sizeof(of_map) if of_map else 0)
        if link < 0:
            raise OSError(ct.get_errno(), f"attaching {function}: {os.strerror(ct.get_errno())}")
        keep(f"program {function}", loaded.fd)
        keep(f"link {function}", link)
    for name in request["maps"]:
        keep(f"map {name}", lib.bpf_table_fd(program.module, name.encode()))
    return {"fds": names, "bcc": str(bcc.__version__)}, fds, program


def whole(source: Path) -> str:
    """The program's text, with the .c files that it includes in their places: bcc rewrites map calls there alone."""

    def put_in(line: re.Match[str]) -> str:
        return f'#line 1 "{line[1]}"\n{(source.parent / line[1]).read_text()}'

    return re.sub(r'^#include "(\w+\.c)"$', put_in, source.read_text(), flags=re.MULTILINE)


def make_calls(lib: Any, module: Any, function: str, functions: Sequence[int]) -> None:
    """Of compiled calls by these numbers, make calls of the kernel's own functions (kfuncs): clang knows calls of
    helpers alone, which have small numbers. They differ in the source register (include/uapi/linux/bpf.h)."""
    name = function.encode()
    code = (_Instruction * (lib.bpf_function_size(module, name) // ct.sizeof(_Instruction))).from_address(
        lib.bpf_function_start(module, name)
    )
    for one in code:
        if one.code == _CALL and one.immediate in functions:
            one.registers = _PSEUDO_KFUNC_CALL << 4


def main() -> None:
    ct.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)  # nobody needs it then
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
    del keep_alive
    sys.stdout.flush()
    os._exit(0)  # without bcc's clean-up, which would only close what dies with us anyway


if __name__ == "__main__":
    main()
