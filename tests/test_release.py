"""What `make release` refuses, and what it says about a version."""

import hashlib
import subprocess
from pathlib import Path

import parts
import pytest
import release

_CHANGELOG = """# Changelog

## [0.2.0] - 2026-12-01

- New: this.

## [0.1.0] - 2026-11-30

- All.
"""


def test_a_dated_first_version_can_be_released() -> None:
    assert release.refusal("0.2.0", "0.2.0", _CHANGELOG, is_clean=True, is_tagged=False) == ""


@pytest.mark.parametrize(
    ("version", "changelog", "is_clean", "is_tagged", "why"),
    [
        ("0.2.0", _CHANGELOG, False, False, "has changes"),
        ("0.2.0", _CHANGELOG, True, True, "tag v0.2.0 already"),
        ("0.1.0", _CHANGELOG, True, False, "says 0.2.0, not 0.1.0"),
        ("0.2.0", _CHANGELOG.replace("0.2.0", "0.3.0"), True, False, "does not begin with version 0.2.0"),
        ("0.2.0", _CHANGELOG.replace("2026-12-01", "unreleased"), True, False, "no date for 0.2.0"),
        ("0.2.0", _CHANGELOG.replace("- New: this.", ""), True, False, "says nothing about 0.2.0"),
    ],
)
def test_anything_else_is_refused_with_a_reason(
    version: str, changelog: str, is_clean: bool, is_tagged: bool, why: str
) -> None:
    assert why in release.refusal(version, "0.2.0", changelog, is_clean, is_tagged)


def test_notes_are_those_of_one_version() -> None:
    assert release.notes(_CHANGELOG, "0.2.0") == "- New: this."
    assert release.notes(_CHANGELOG, "0.1.0") == "- All."


def test_a_change_during_the_build_is_not_tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "ann")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@localhost")

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "built")
    built = git("rev-parse", "HEAD").strip()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="has changed during the build"):
        release.tag_commit("v0.2.0", "offtop 0.2.0", built)
    git("add", "file")
    git("commit", "-q", "-m", "later")
    with pytest.raises(SystemExit, match="has changed during the build"):
        release.tag_commit("v0.2.0", "offtop 0.2.0", built)
    assert git("tag") == ""
    git("reset", "-q", "--hard", built)
    release.tag_commit("v0.2.0", "offtop 0.2.0", built)
    assert git("rev-parse", "v0.2.0^{commit}").strip() == built


def test_sums_are_of_all_files_but_themselves(tmp_path: Path) -> None:
    for name, content in (("b", b"two"), ("a", b"one"), (release.SUMS, b"")):
        (tmp_path / name).write_bytes(content)
    one, two = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    assert release.sums(tmp_path) == f"{one}  a\n{two}  b\n"


_LICENCE = b"""Name: OpenBLAS
Files: numpy.libs/libscipy_openblas*.so
Description: bundled as a dynamically linked library
Availability: https://github.com/OpenMathLib/OpenBLAS/
License: BSD-3-Clause
  Copyright (c) 2011-2014, The OpenBLAS Project


Name: GCC runtime library
Files: numpy.libs/libgfortran*.so
Description: dynamically linked to files compiled with gcc
Availability: https://gcc.gnu.org/git/
License: GPL-3.0-or-later WITH GCC-exception-3.1
"""
_MEMBERS = {
    "numpy/__config__.py": b'"openblas configuration": r"OpenBLAS 0.3.31.188.0  USE64BITINT"',
    "numpy-2.4.6.dist-info/licenses/LICENSE.txt": _LICENCE,
    "numpy.libs/libscipy_openblas64_-32a4b2a6.so": b"code",
}


def test_bundled_libraries_are_listed_with_version_licence_and_hash() -> None:
    (found,) = release.bundled(_MEMBERS, "x86_64")
    assert (found["name"], found["version"]) == ("OpenBLAS", "0.3.31.188.0")
    assert found["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert found["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"code").hexdigest()}]


def test_a_bundled_library_without_a_licence_stops_the_release() -> None:
    with pytest.raises(SystemExit, match=r"no licence file of a wheel names numpy\.libs/libnew\.so"):
        release.bundled({**_MEMBERS, "numpy.libs/libnew.so": b""}, "x86_64")
