"""Where the files are that are not Python: beside the package in a checkout, inside it when installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _found(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.exists() else _PACKAGE.parent / name


def bpf() -> Path:
    """The directory of C sources that the kernel side compiles."""
    return _found("bpf")


def themes() -> Path:
    """The directory of themes, one TOML each."""
    return _found("themes")


def theme_names() -> list[str]:
    """Names of the themes, sorted."""
    return sorted(path.stem for path in themes().glob("*.toml"))


def categories() -> Path:
    """The rules by which a stack gets its category."""
    return _PACKAGE / "categories.toml"


def rules() -> Path:
    """Those by which a wait is told what it is for."""
    return _PACKAGE / "rules.toml"


def demo() -> Path:
    """The recording that `offtop demo` shows."""
    return _PACKAGE / "demo.offtop"
