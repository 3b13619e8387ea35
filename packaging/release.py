"""Prepare a release: check that it can be one, build everything into dist/VERSION/, and tag the commit.

Nothing is published. The tag is made last, so that a failed build leaves none.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import parts

from offtop import __version__

_HERE = Path(__file__).resolve().parent
_KINDS = ("pyz", "deb", "rpm")
SUMS = "SHA256SUMS"


def main() -> None:
    parser = argparse.ArgumentParser(description="prepare a release")
    parser.add_argument("version", help="such as 0.1.0")
    version: str = parser.parse_args().version
    changelog = (parts.ROOT / "CHANGELOG.md").read_text()
    tag = f"v{version}"
    is_clean = not _git("status", "--porcelain")
    if reason := refusal(version, __version__, changelog, is_clean, is_tagged=bool(_git("tag", "--list", tag))):
        sys.exit(f"offtop: {reason}")
    into = parts.ROOT / "dist" / version
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
    for machine in parts.MACHINES:
        command = [sys.executable, _HERE / "dist.py", into, *_KINDS, "--machine", machine]
        subprocess.run(command, check=True, env=environment)
    _write_sbom(into / f"offtop-{version}-{parts.MACHINES[0]}.pyz", into / f"offtop-{version}.cdx.json", environment)
    (into / SUMS).write_text(sums(into))
    _git(
        "tag", "--annotate", tag, "--cleanup=verbatim", "--message", f"offtop {version}\n\n{notes(changelog, version)}"
    )
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


def sums(directory: Path) -> str:
    """Return a line for `sha256sum -c` for each file in a directory."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def _write_sbom(one_file: Path, sbom: Path, environment: dict[str, str]) -> None:
    """Write what the one file contains as a CycloneDX SBOM. cyclonedx-py reads installed packages: make it some."""
    with tempfile.TemporaryDirectory() as directory:
        tools, contents = Path(directory, "tools"), Path(directory, "contents")
        venv.create(tools, with_pip=True)
        venv.create(contents)
        (packages,) = contents.glob("lib/python*/site-packages")
        with zipfile.ZipFile(one_file) as members:
            members.extractall(packages, [name for name in members.namelist() if ".dist-info/" in name])
        group = subprocess.run([_HERE / "group.sh", "release"], check=True, capture_output=True, text=True)
        pip = [tools / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *group.stdout.splitlines()], check=True)
        command = [tools / "bin/cyclonedx-py", "environment", "--output-reproducible", "--pyproject"]
        command += [parts.ROOT / "pyproject.toml", "-o", sbom, contents / "bin/python"]
        subprocess.run(command, check=True, env=environment)


def _git(*arguments: str) -> str:
    command = ["git", "-C", parts.ROOT, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
