"""Write parts.txt: the newest releases of the dependencies, the same for all Pythons and machines, and their hashes.

Packages are made of these, so that no release gets into them without a commit, and no other file in its place.
"""

import hashlib
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import parts

_HEAD = "# The wheels in the packages and in the one file, with their hashes. `make lock` writes this file.\n"


def main() -> None:
    project = tomllib.loads((parts.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted: Sequence[str] = sorted({*project["dependencies"], *(one for extra in extras for one in extra)})
    with tempfile.TemporaryDirectory() as directory:
        for machine in parts.MACHINES:
            for version in parts.VERSIONS:
                parts.download(Path(directory), machine, version, *wanted)
                wanted = sorted(_locked(Path(directory)))
        locked = sorted(_locked(Path(directory)).items())
    parts.LOCK.write_text(_HEAD + "".join(_text(requirement, hashes) for requirement, hashes in locked))


def _locked(directory: Path) -> dict[str, list[str]]:
    """Return the hashes of wheels by requirement, such as `rich==15.0.0`."""
    found: dict[str, list[str]] = {}
    for path in directory.glob("*.whl"):
        name, version, _ = path.name.split("-", 2)
        found.setdefault(f"{name}=={version}", []).append(hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def _text(requirement: str, hashes: Sequence[str]) -> str:
    return " \\\n".join([requirement, *(f"    --hash=sha256:{one}" for one in sorted(hashes))]) + "\n"


if __name__ == "__main__":
    main()
