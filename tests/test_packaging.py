"""An installed offtop is complete and works without the checkout; `make setup` finds a suitable Python."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from offtop import __version__

_ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the contents of the wheel only."""
    made, installed = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", made]
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = made.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed


def files(directory: Path) -> set[Path]:
    return {p.relative_to(directory) for p in directory.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


def test_wheel_has_package_bpf_programs_and_themes_but_no_tests(installed: Path) -> None:
    package = {Path("bpf") / p for p in files(_ROOT / "bpf")} | {Path("themes") / p for p in files(_ROOT / "themes")}
    assert Path("bpf/offcpu.c") in package
    assert any(p.suffix == ".toml" for p in package)
    assert files(installed / "offtop") == package | files(_ROOT / "offtop")
    assert {p.name.split("-")[0] for p in installed.iterdir()} == {"offtop"}


def test_installed_offtop_finds_its_bpf_programs_and_themes(installed: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "from offtop import paths; print(paths.__file__, paths.bpf() / 'offcpu.c', paths.themes(), sep='\\n')"
    )
    child = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    for path in map(Path, child.stdout.splitlines()):
        assert path.is_relative_to(installed)
        assert path.exists()


def test_python_m_offtop_runs_the_command(installed: Path) -> None:
    program = f"import runpy, sys; sys.path.insert(0, {str(installed)!r}); runpy.run_module('offtop', alter_sys=True)"
    for arguments, status, out in ((["--version"], 0, f"offtop {__version__}\n"), (["--nosuch"], 2, "")):
        child = subprocess.run([sys.executable, "-I", "-c", program, *arguments], capture_output=True, text=True)
        assert (child.returncode, child.stdout) == (status, out)


def test_checkout_finds_its_bpf_programs_and_themes() -> None:
    from offtop import paths

    assert paths.bpf() == _ROOT / "bpf"
    assert paths.themes() == _ROOT / "themes"


def test_bcc_from_pypi_is_not_a_dependency() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    names = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    assert not [name for name in names if name.startswith("bcc")]


def test_setup_finds_a_suitable_python_and_refuses_a_wrong_one() -> None:
    script = _ROOT / "packaging" / "python.sh"
    found = subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip()
    version = subprocess.run([found, "-c", "import sys, venv; print(sys.version_info >= (3, 11))"], capture_output=True)
    assert version.stdout == b"True\n"
    refused = subprocess.run(
        [script], env={"PYTHON": "/bin/false", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "Python 3.11" in refused.stderr and "/bin/false" in refused.stderr


def test_newest_python_of_dnf_is_installed_if_python_is_too_old(tmp_path: Path) -> None:
    for name in ("awk", "bash", "dirname", "id"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    log = tmp_path / "log"
    for name, script in (
        ("sudo", 'exec "$@"'),
        ("rpm", "exit 0"),
        ("dnf", f'echo "$*" >>{log}; [ "$3" != python3.13 ]'),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    subprocess.run(
        ["/bin/bash", _ROOT / "packaging" / "system.sh", "run"],
        env={"PATH": str(tmp_path), "PYTHON": "/bin/false"},
        check=True,
    )
    assert log.read_text().splitlines() == ["install -y python3.13", "install -y python3.12"]


def test_system_packages_have_a_purpose_and_a_fedora_name() -> None:
    lines = [line.split() for line in (_ROOT / "packaging" / "packages.txt").read_text().splitlines() if line[0] != "#"]
    assert {line[0] for line in lines} == {
        "run",
        "dist",
        "test",
        "bench",
        "incident",
        "consumer",
        "exits",
        "fleet",
        "guest",
        "package",
    }
    assert all(len(line) > 4 and line[3] == "#" for line in lines)
    assert "python3-bpfcc" in {line[1] for line in lines if line[0] == "run"}


def test_uninstall_leaves_what_a_package_installed(tmp_path: Path) -> None:
    home = tmp_path / "usr/lib/offtop"
    home.mkdir(parents=True)
    command = ["make", "-s", "uninstall", f"DESTDIR={tmp_path}", "PREFIX=/usr"]
    refused = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    assert (refused.returncode, home.exists()) == (2, True)
    assert "Remove the package instead" in refused.stderr
    (home / "pyvenv.cfg").touch()
    subprocess.run(command, cwd=_ROOT, check=True)
    assert not home.exists()


def test_dist_without_git_has_the_time_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "Makefile").symlink_to(_ROOT / "Makefile")
    (tmp_path / "CHANGELOG.md").touch()
    os.utime(tmp_path / "CHANGELOG.md", (1_700_000_000, 1_700_000_000))
    for name, script in (("packaging/venv.sh", ""), (".venv/bin/python", 'echo "$SOURCE_DATE_EPOCH" "$@"')):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    make = ["make", "-s", "dist", "SYSTEM=ready", "KINDS=pyz"]
    ran = subprocess.run(make, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("1700000000 packaging/dist.py dist pyz\n", "")
