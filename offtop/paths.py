"""Locate the files that are not Python: next to the package in a checkout, inside it when installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _found(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.exists() else _PACKAGE.parent / name


def bpf() -> Path:
    """The directory of the BPF programs' C sources."""
    return _found("bpf")


def themes() -> Path:
    """The directory of themes, one TOML file each."""
    return _found("themes")


def theme_names() -> list[str]:
    """Return the names of the themes, sorted."""
    return sorted(path.stem for path in themes().glob("*.toml"))


def categories() -> Path:
    """The category rules, which map a kernel stack to a category."""
    return _PACKAGE / "categories.toml"


def rules() -> Path:
    """The cause rules, which name what a wait is for."""
    return _PACKAGE / "rules.toml"


def suspects() -> Path:
    """The weights by which offtop chooses whom it names first."""
    return _PACKAGE / "suspects.toml"


def demo() -> Path:
    """The recording that `offtop demo` replays."""
    return _PACKAGE / "demo.offtop"
