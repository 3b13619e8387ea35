"""The files that the packages of Debian and Fedora install, and how they are laid out below a directory."""

import gzip
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import completions
import manpage

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent
HOME = "usr/lib/offtop"
"""Directory of all Python parts: what is in it hides no package of the distribution from other programs."""


def files(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return path below / → content, of what both packages have. `members`: the Python parts, by name."""
    installed = {f"{HOME}/{name}": content for name, content in members.items()}
    installed["usr/bin/offtop"] = (_HERE / "system_start.py").read_bytes()
    for unit in ("offtop-record.service", "offtop-agent.service"):
        installed[f"usr/lib/systemd/system/{unit}"] = (_HERE / unit).read_bytes()
    installed["usr/share/man/man8/offtop.8.gz"] = zipped(manpage.page().encode())
    with tempfile.TemporaryDirectory() as directory:
        completions.write(Path(directory))
        for path, name in (
            ("usr/share/bash-completion/completions/offtop", "offtop.bash"),
            ("usr/share/zsh/vendor-completions/_offtop", "_offtop"),
            ("usr/share/fish/vendor_completions.d/offtop.fish", "offtop.fish"),
        ):
            installed[path] = Path(directory, name).read_bytes()
    installed["usr/share/doc/offtop/README.md.gz"] = zipped((_ROOT / "README.md").read_bytes())
    installed["usr/share/doc/offtop/changelog.gz"] = zipped((_ROOT / "CHANGELOG.md").read_bytes())
    for file in sorted((_ROOT / "fleet").rglob("*")):
        if file.is_file():
            installed[f"usr/share/doc/offtop/{file.relative_to(_ROOT)}"] = file.read_bytes()
    return installed


def licences(members: Mapping[str, bytes]) -> str:
    """Return the licence of offtop, that of its BPF programs, and those of all other parts."""
    texts = [
        ("offtop", (_ROOT / "LICENSE").read_bytes()),
        ("offtop's BPF programs", (_ROOT / "bpf/LICENSE").read_bytes()),
    ]
    for name, content in sorted(members.items()):
        package, _, rest = name.partition(".dist-info/")
        is_licence = rest.startswith("licenses/") or rest.upper().startswith(
            ("LICENSE", "LICENCE", "COPYING", "NOTICE")
        )
        if is_licence and not package.startswith("offtop-"):
            texts.append((f"{package} ({rest})", content))
    parts = [f"{'=' * 78}\n{title}\n{'=' * 78}\n\n{text.decode(errors='replace').strip()}\n" for title, text in texts]
    return "The parts of offtop, and their licences:\n\n" + "\n".join(parts)


def zipped(content: bytes) -> bytes:
    """Compress without a time, so that the same content gives the same bytes."""
    return gzip.compress(content, 9, mtime=0)


def write(installed: Mapping[str, bytes], root: Path, epoch: int) -> None:
    """Write files below `root`, all with the time `epoch`: commands with mode 0755, others with 0644."""
    shutil.rmtree(root, ignore_errors=True)
    for name, content in installed.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.startswith("usr/bin/") else 0o644)
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            os.utime(Path(directory, name), (epoch, epoch))
        Path(directory).chmod(0o755)  # whatever the umask
        os.utime(directory, (epoch, epoch))
