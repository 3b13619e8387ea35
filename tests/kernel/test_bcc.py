"""Test finding bcc on Debian, Fedora and RHEL, and the error message if it is missing."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offtop.kernel.bpf import compile as compiler
from offtop.kernel.bpf import distribution, program
from offtop.kernel.doctor import host_checks

_COMPILER = Path(compiler.__file__)
_IMPORT = """
import pathlib, runpy, sys
before = list(sys.path)
bcc = runpy.run_path(sys.argv[1])["import_bcc"](pathlib.Path(sys.argv[2]))
import bcc.libbcc, bcc.table
assert sys.path == before
assert hasattr(bcc, "BPF")
print(bcc.__file__)
import numpy
"""


@pytest.fixture
def installed() -> Path:
    """Return the directory of this machine's own bcc."""
    found = compiler.find_bcc()
    assert found
    return found / "bcc"


def site(root: Path, directory: str, bcc: Path) -> Path:
    """Make a package directory with bcc, and a NumPy that cannot be imported."""
    made = root / directory
    shutil.copytree(bcc, made / "bcc", ignore=shutil.ignore_patterns("__pycache__"))
    (made / "numpy").mkdir()
    (made / "numpy" / "__init__.py").write_text("raise SystemError('NumPy of another minor version')")
    return made


def imported_from(root: Path, *options: str) -> tuple[Path, str]:
    """Import bcc and then numpy in a root laid out like `root`.

    Returns the file that `import bcc` takes, and the error of `import numpy`.
    """
    command = [sys.executable, "-S", *(options or ("-I",)), "-c", _IMPORT, str(_COMPILER), str(root)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return Path(child.stdout.strip()), child.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "directory",
    [
        "usr/lib/python3/dist-packages",
        "usr/lib64/python3.9/site-packages",
        "usr/lib/python3.9/site-packages",
        "usr/lib/python3.14/site-packages",
    ],
    ids=["Debian", "RHEL 9", "Amazon Linux 2023", "Fedora"],
)
def test_only_bcc_is_imported_whichever_python_it_is_packaged_for(
    tmp_path: Path, installed: Path, directory: str
) -> None:
    made = site(tmp_path, directory, installed)
    assert imported_from(tmp_path) == (made / "bcc" / "__init__.py", "ModuleNotFoundError: No module named 'numpy'")


def test_of_several_the_one_for_the_newest_python_is_taken(tmp_path: Path, installed: Path) -> None:
    site(tmp_path, "usr/lib/python3.9/site-packages", installed)
    newest = site(tmp_path, "usr/lib64/python3.11/site-packages", installed)
    assert imported_from(tmp_path)[0].is_relative_to(newest)


def test_another_project_of_that_name_is_ignored(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lattices = tmp_path / "venv" / "bcc"
    lattices.mkdir(parents=True)
    (lattices / "__init__.py").write_text("raise SystemError('lattices')")
    made = site(tmp_path, "usr/lib64/python3.9/site-packages", installed)
    monkeypatch.setenv("PYTHONPATH", str(lattices.parent))
    assert imported_from(tmp_path, "-s")[0].is_relative_to(made)


def test_a_root_without_bcc_has_none(tmp_path: Path) -> None:
    assert compiler.find_bcc(tmp_path) is None
    assert imported_from(tmp_path)[1].startswith("ImportError: the BPF Compiler Collection")


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ({"ID": "debian"}, "sudo apt install python3-bpfcc"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "sudo apt install python3-bpfcc"),
        ({"ID": "fedora"}, "sudo dnf install python3-bcc"),
        ({"ID": "rhel", "ID_LIKE": "fedora"}, "sudo dnf install python3-bcc"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf install python3-bcc"),
        ({"ID": "amzn", "ID_LIKE": "fedora"}, "sudo dnf install python3-bcc"),
        ({"ID": "arch"}, "install python3-bpfcc (Debian's name) or python3-bcc (Fedora's name)"),
    ],
)
def test_error_and_doctor_name_the_distributions_command(
    release: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert distribution.install_command("python3-bpfcc", "python3-bcc") == command
    error = program._explain_failure({"error": "import"}, "", "exit")  # pyright: ignore[reportPrivateUsage]
    assert str(error).endswith(f"not from PyPI: {command}")
    monkeypatch.setattr(host_checks, "__file__", "/nowhere/hostchecks.py")  # there is no compile.py
    assert host_checks.bcc().remedy.startswith(command)
