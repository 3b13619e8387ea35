"""The packages: their fields, their files, and that the same input gives the same bytes."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path

import deb
import dist
import parts
import pytest
import rpm
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from offtop import __version__

_MEMBERS = {
    "offtop/__init__.py": b"",
    "offtop/start.py": b"def main() -> None:\n    print('it runs')\n",
    "rich-15.0.0.dist-info/licenses/LICENSE": b"Rich's licence",
    "numpy-2.4.6.dist-info/licenses/numpy/_core/src/dragon4_LICENSE.txt": b"Dragon4's licence",
}
_EPOCH = 1_700_000_000
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is missing")
needs_rpm = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is missing: apt-get install rpm")


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return deb.files(_MEMBERS, _EPOCH)


@pytest.fixture(scope="module")
def package(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deb.build(files, tmp_path_factory.mktemp("deb"), "x86_64", _EPOCH)


def field(package: Path, name: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", package, name], capture_output=True, text=True, check=True).stdout.strip()


def entries(package: Path, option: str) -> list[tarfile.TarInfo]:
    archive = subprocess.run(["dpkg-deb", option, package], capture_output=True, check=True).stdout
    return tarfile.open(fileobj=BytesIO(archive)).getmembers()


@needs_dpkg
def test_deb_names_what_it_needs_of_the_system(package: Path) -> None:
    assert package.name == f"offtop_{__version__}-1_amd64.deb"
    needed = field(package, "Depends").split(", ")
    assert {"python3-bpfcc", "libbpf1", "libdw1t64 | libdw1", "libseccomp2", "python3 (>= 3.11)"} <= {*needed}
    assert field(package, "Architecture") == "amd64"


@needs_dpkg
def test_deb_has_command_parts_man_page_completions_and_recorder(package: Path) -> None:
    modes = {one.name.removeprefix("./"): one.mode for one in entries(package, "--fsys-tarfile") if one.isfile()}
    assert modes["usr/bin/offtop"] == 0o755
    assert modes["usr/lib/offtop/offtop/start.py"] == 0o644
    for name in ("man/man8/offtop.8.gz", "bash-completion/completions/offtop", "zsh/vendor-completions/_offtop"):
        assert modes[f"usr/share/{name}"] == 0o644
    assert modes["usr/lib/systemd/system/offtop-record.service"] == 0o644
    assert modes["usr/lib/systemd/system/offtop-agent.service"] == 0o644
    assert "usr/share/fish/vendor_completions.d/offtop.fish" in modes
    for name in ("README.md", "prometheus/rules.yml", "grafana/dashboard.json", "untested/daemonset.yaml"):
        assert modes[f"usr/share/doc/offtop/fleet/{name}"] == 0o644
    assert all(one.startswith("usr/") for one in modes)


@needs_dpkg
def test_all_of_the_deb_belongs_to_root_and_has_one_time(package: Path) -> None:
    found = [*entries(package, "--fsys-tarfile"), *entries(package, "--ctrl-tarfile")]
    assert {(one.uid, one.gid, one.mtime) for one in found} == {(0, 0, _EPOCH)}
    assert {one.mode for one in found if one.isdir()} == {0o755}


def test_packages_have_the_licences_of_all_parts(files: dict[str, bytes]) -> None:
    text = files["usr/share/doc/offtop/copyright"].decode()
    assert "MIT License" in text and "GNU GENERAL PUBLIC LICENSE" in text and "Rich's licence" in text
    assert "Dragon4's licence" in text


@needs_dpkg
def test_same_files_and_time_give_the_same_deb(files: dict[str, bytes], package: Path, tmp_path: Path) -> None:
    again = deb.build(dict(reversed(files.items())), tmp_path, "x86_64", _EPOCH)
    assert again.read_bytes() == package.read_bytes()


def test_its_command_runs_the_parts_beside_it(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    command = tmp_path / "usr/bin/offtop"
    command.write_text(command.read_text().replace("/usr/lib", f"{tmp_path}/usr/lib"))
    ran = subprocess.run(["/usr/bin/python3", "-I", command], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("it runs\n", "", 0)


@needs_rpm
def test_rpm_is_complete_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        rpm.build(rpm.files(_MEMBERS), directory, "x86_64", _EPOCH)
    (package,) = first.iterdir()
    assert package.name == f"offtop-{__version__}-1.x86_64.rpm"
    assert package.read_bytes() == (second / package.name).read_bytes()
    query = ["rpm", "--dbpath", tmp_path, "-qp", "--requires", "-l", package]
    found = {*subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()}
    assert {"python3-bcc", "libbpf", "elfutils-libs", "libseccomp"} <= found
    assert {f"/{name}" for name in rpm.files(_MEMBERS)} <= found


def test_command_of_the_rpm_takes_a_python_that_is_new_enough(tmp_path: Path) -> None:
    for name, content in rpm.files(_MEMBERS).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = tmp_path / "python3.11"
    found.symlink_to(sys.executable)
    for python, out, status in ((found, "it runs\n", 0), (tmp_path / "python3.9", "", 4)):
        command = (tmp_path / "usr/bin/offtop").read_text().replace("/usr/bin/python3.1", f"{tmp_path}/none3.1")
        command = command.replace("$(readlink -f /usr/bin/python3)", str(python)).replace(
            "/usr/lib", f"{tmp_path}/usr/lib"
        )
        (tmp_path / "command").write_text(command)
        start = tmp_path / "usr/lib/offtop/system_start.py"
        start.write_text(start.read_text().replace('"/usr/lib', f'"{tmp_path}/usr/lib'))
        ran = subprocess.run(["sh", tmp_path / "command"], capture_output=True, text=True, timeout=60)
        assert (ran.stdout, ran.returncode) == (out, status), ran.stderr


@pytest.mark.parametrize("script", ["postinst configure 0.0.9-1", "prerm remove", "postrm remove"])
def test_a_recorder_that_does_not_start_or_stop_does_not_block_dpkg(script: str, tmp_path: Path) -> None:
    (tmp_path / "usr/lib/offtop").mkdir(parents=True)
    ran = run_script(script, tmp_path, systemctl_status=1)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "systemctl" in ran.stdout


def test_removing_the_deb_leaves_no_compiled_python(tmp_path: Path) -> None:
    home = tmp_path / "usr/lib/offtop"
    for name in ("a.py", "__pycache__/a.cpython-313.pyc", "offtop/__pycache__/b.cpython-314.pyc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    ran = run_script("prerm upgrade 0.2.0-1", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {*home.rglob("*")} == {home / "a.py", home / "offtop"}
    (home / "__pycache__").mkdir()  # by an offtop that still runs
    ran = run_script("postrm remove", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not home.exists()


def test_the_deb_can_be_removed_although_somebody_has_removed_its_files(tmp_path: Path) -> None:
    for script in ("prerm remove", "postrm remove"):
        ran = run_script(script, tmp_path)
        assert (ran.returncode, ran.stderr) == (0, ""), script


def run_script(script: str, root: Path, systemctl_status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a maintainer script, given with its arguments, for the package below `root`."""
    name, *arguments = script.split()
    text = (Path(deb.__file__).parent / "deb" / name).read_text()
    text = text.replace("/run/systemd/system", str(root)).replace("/usr/lib/", f"{root}/usr/lib/")
    tools = root / "tools"
    tools.mkdir(exist_ok=True)
    for tool, status in (("systemctl", systemctl_status), ("py3compile", 0)):
        (tools / tool).write_text(f'#!/bin/sh\necho "{tool} $*"\nexit {status}\n')
        (tools / tool).chmod(0o755)
    path = f"{tools}:/usr/bin:/bin"
    return subprocess.run(["/bin/sh", "-c", text, name, *arguments], env={"PATH": path}, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("name", ["offtop-record.service", "offtop-agent.service"])
def test_systemd_accepts_recorder_and_agent(name: str, tmp_path: Path) -> None:
    unit = tmp_path / name
    text = (Path(deb.__file__).parent / unit.name).read_text()
    unit.write_text(text.replace("/usr/bin/offtop", "/bin/true"))
    # Without --recursive-errors, warnings do not change the status.
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit]
    ran = subprocess.run(verify, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(("kind", "tool"), [("deb", "dpkg-deb"), ("rpm", "rpmbuild")])
def test_a_missing_tool_is_named_before_anything_is_built(
    kind: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["dist.py", str(tmp_path), "pyz", kind])
    with pytest.raises(SystemExit, match=f"{tool} is missing. Install it, or build without {kind}"):
        dist.main()
    assert [*tmp_path.iterdir()] == []


def test_packages_get_one_release_of_each_dependency_with_hashes_of_its_wheels() -> None:
    project = tomllib.loads((parts.ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(one) for one in chain(project["dependencies"], *project["optional-dependencies"].values())]
    locked = parts.LOCK.read_text().replace("\\\n", "").splitlines()[1:]
    versions = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2].split()[0] for line in locked}
    assert len(versions) == len(locked)
    assert not [one for one in wanted if versions.get(canonicalize_name(one.name), "") not in one.specifier]
    assert all("--hash=sha256:" in line for line in locked)


def wheel(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_parts_of_all_pythons_are_merged_without_tests_and_headers_but_with_licences(tmp_path: Path) -> None:
    licence = "numpy-2.4.6.dist-info/licenses/numpy/_core/include/numpy/libdivide/LICENSE.txt"
    same = {"numpy/a.py": b"a", licence: b"l"}
    unused = {
        "yaml/_yaml.cpython-311.so": b"y",
        "numpy/tests/t.py": b"t",
        "numpy/_core/include/a.h": b"h",
        "numpy-2.4.6.dist-info/RECORD": b"r",
    }
    first = wheel(tmp_path / "cp311.whl", {**same, **unused, "numpy/a.cpython-311.so": b"1"})
    second = wheel(tmp_path / "cp312.whl", {**same, "numpy/a.cpython-312.so": b"2"})
    merged = parts.merged([first, second])
    assert merged == {**same, "numpy/a.cpython-311.so": b"1", "numpy/a.cpython-312.so": b"2"}


def test_python_code_that_differs_between_pythons_is_refused(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path / f"{n}.whl", {"numpy/a.py": b"%d" % n, "numpy/__config__.py": b"%d" % n}) for n in (1, 2)]
    with pytest.raises(SystemExit, match=r"numpy/a\.py in 2\.whl is not the same"):
        parts.merged(wheels)
