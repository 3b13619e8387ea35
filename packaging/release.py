"""Prepare a release: check that it can be one, build everything into dist/VERSION/, and tag the commit.

Nothing is published. The tag is made last, so that a failed build leaves none.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import parts

from offtop import __version__

_HERE = Path(__file__).resolve().parent
_KINDS = ("pyz", "deb", "rpm")
SUMS = "SHA256SUMS"
_BUNDLED = re.compile(r"^Name: (.+)\nFiles: (.+)\nDescription: (.+)\nAvailability: (.+)\nLicense: (.+)$", re.MULTILINE)
"""What NumPy's licence file says about a library in its wheel."""


def main() -> None:
    parser = argparse.ArgumentParser(description="prepare a release")
    parser.add_argument("version", help="such as 0.1.0")
    version: str = parser.parse_args().version
    changelog = (parts.ROOT / "CHANGELOG.md").read_text()
    tag = f"v{version}"
    commit, is_clean = _git("rev-parse", "HEAD"), not _git("status", "--porcelain")
    if reason := refusal(version, __version__, changelog, is_clean, is_tagged=bool(_git("tag", "--list", tag))):
        sys.exit(f"offtop: {reason}")
    into = parts.ROOT / "dist" / version
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
    for machine in parts.MACHINES:
        command = [sys.executable, _HERE / "dist.py", into, *_KINDS, "--machine", machine]
        subprocess.run(command, check=True, env=environment)
    one_files = {machine: into / f"offtop-{version}-{machine}.pyz" for machine in parts.MACHINES}
    _write_sbom(one_files, into / f"offtop-{version}.cdx.json", environment)
    (into / SUMS).write_text(sums(into))
    tag_commit(tag, f"offtop {version}\n\n{notes(changelog, version)}", commit)
    print(f"{into}: ready, and tagged {tag}. Nothing is published: see docs/releases.md")


def refusal(version: str, current: str, changelog: str, is_clean: bool, is_tagged: bool) -> str:
    """Return why this cannot be released as `version`, and the remedy; empty if it can."""
    if not is_clean:
        return "The working tree has changes. Commit or stash them"
    if is_tagged:
        return f"There is a tag v{version} already. Choose another version"
    if version != current:
        return f"offtop/__init__.py says {current}, not {version}. Change one of them"
    heads = re.findall(r"^## \[(.+?)\](.*)$", changelog, re.MULTILINE)
    if not heads or heads[0][0] != version:
        return f"CHANGELOG.md does not begin with version {version}. Add it"
    if not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", heads[0][1]):
        return f"CHANGELOG.md has no date for {version}. Write it: ## [{version}] - 2026-01-31"
    if not notes(changelog, version):
        return f"CHANGELOG.md says nothing about {version}. Add what a user would notice"
    return ""


def notes(changelog: str, version: str) -> str:
    """Return what the changelog says about a version, without its heading."""
    _, _, rest = changelog.partition(f"## [{version}]")
    return rest.partition("\n")[2].partition("\n## ")[0].strip()


def tag_commit(tag: str, message: str, commit: str) -> None:
    """Tag the commit that was built. Exits if it is no longer what the working tree has."""
    if _git("rev-parse", "HEAD") != commit or _git("status", "--porcelain"):
        sys.exit("offtop: The working tree has changed during the build, so nothing is tagged. Start again")
    _git("tag", "--annotate", tag, "--cleanup=verbatim", "--message", message, commit)


def sums(directory: Path) -> str:
    """Return a line for `sha256sum -c` for each file in a directory."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def bundled(members: Mapping[str, bytes], machine: str) -> list[dict[str, Any]]:
    """Return CycloneDX components for the shared libraries that wheels bundle, from the wheels' licence files.

    `members`: the Python parts, by name. Only OpenBLAS gets a version, because NumPy names no other. Exits if no
    licence file names one of the libraries.
    """
    openblas = re.search(rb"OpenBLAS ([\d.]+)", members.get("numpy/__config__.py", b""))
    components: list[dict[str, Any]] = []
    libraries = {name for name in members if ".libs/" in name}
    unnamed = {*libraries}
    for text in (content.decode(errors="replace") for name, content in members.items() if ".dist-info/" in name):
        for name, pattern, description, url, licence in _BUNDLED.findall(text):
            for file in fnmatch.filter(sorted(libraries), f"{pattern}*"):
                unnamed.discard(file)
                version = {"version": openblas[1].decode()} if openblas and name == "OpenBLAS" else {}
                components.append(
                    {
                        "type": "library",
                        "bom-ref": f"{file}#{name}",
                        "name": name,
                        **version,
                        "description": f"{description} ({machine})",
                        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(members[file]).hexdigest()}],
                        "licenses": [{"expression": licence}],
                        "externalReferences": [{"type": "website", "url": url}],
                        "properties": [{"name": "offtop:file", "value": file}],
                    }
                )
    if unnamed:
        sys.exit(f"no licence file of a wheel names {', '.join(sorted(unnamed))}")
    return components


def _write_sbom(one_files: Mapping[str, Path], sbom: Path, environment: dict[str, str]) -> None:
    """Write what the one files contain as a CycloneDX SBOM. cyclonedx-py reads installed packages: make it some."""
    with tempfile.TemporaryDirectory() as directory:
        tools, contents = Path(directory, "tools"), Path(directory, "contents")
        venv.create(tools, with_pip=True)
        venv.create(contents)
        (packages,) = contents.glob("lib/python*/site-packages")
        with zipfile.ZipFile(one_files[parts.MACHINES[0]]) as archive:
            archive.extractall(packages, [name for name in archive.namelist() if ".dist-info/" in name])
        group = subprocess.run([_HERE / "group.sh", "release"], check=True, capture_output=True, text=True)
        pip = [tools / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *group.stdout.splitlines()], check=True)
        command = [tools / "bin/cyclonedx-py", "environment", "--output-reproducible", "--pyproject"]
        command += [parts.ROOT / "pyproject.toml", "-o", sbom, contents / "bin/python"]
        subprocess.run(command, check=True, env=environment)
    listed = json.loads(sbom.read_text())
    listed["metadata"]["component"]["version"] = __version__  # it is not in pyproject.toml
    for machine, one_file in one_files.items():
        with zipfile.ZipFile(one_file) as archive:
            listed["components"] += bundled({name: archive.read(name) for name in archive.namelist()}, machine)
    sbom.write_text(json.dumps(listed, indent=2) + "\n")


def _git(*arguments: str) -> str:
    command = ["git", "-C", parts.ROOT, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    main()
