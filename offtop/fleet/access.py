"""How to reach the API: certificates, user or token, headers.

They come from a file, because other users see a command line: the one that promtool takes with the same option.
"""

import base64
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml
from msgspec import Struct

from offtop.errors import UsageError
from offtop.printable import printable

OPTION = "--http.config.file"
_MOST_BYTES = 64 << 10
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

T = TypeVar("T")


class _BasicAuth(Struct, frozen=True, forbid_unknown_fields=True):
    username: str
    password: str = ""
    password_file: str = ""


class _Authorization(Struct, frozen=True, forbid_unknown_fields=True):
    type: str = "Bearer"
    credentials: str = ""
    credentials_file: str = ""


class _Tls(Struct, frozen=True, forbid_unknown_fields=True):
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""


class _Header(Struct, frozen=True, forbid_unknown_fields=True):
    values: list[str]


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    basic_auth: _BasicAuth | None = None
    authorization: _Authorization | None = None
    tls_config: _Tls = _Tls()
    http_headers: dict[str, _Header] = {}


class Access:
    """Who offtop is for the API, and whose certificates it trusts."""

    def __init__(self, config: str | None = None, ca_file: str | None = None) -> None:
        """`config`: the file of OPTION. `ca_file`: more important than the one in it. Raises UsageError."""
        self._path = Path(config) if config is not None else None
        self._read = _File()
        if self._path:
            self._read = self._parsed(self._path)
        tls = self._read.tls_config
        self.ca_file = _existing(ca_file) if ca_file is not None else self._named(tls.ca_file)
        """Empty: the authorities that this machine trusts."""
        self.cert_file, self.key_file = self._named(tls.cert_file), self._named(tls.key_file)
        self.server_name = tls.server_name
        """Name in the server's certificate, if it is not that of the URL."""
        self.headers()

    def headers(self) -> Mapping[str, str]:
        """Return the headers of a request. Raises UsageError.

        Files with secrets are read each time, because tokens change.
        """
        headers = {name: ",".join(one.values) for name, one in self._read.http_headers.items()}
        basic, token = self._read.basic_auth, self._read.authorization
        if basic:
            password = basic.password or self._secret(basic.password_file)
            try:
                both = f"{basic.username}:{password}".encode()
            except UnicodeEncodeError:
                raise self._error("the user name or the password is not text") from None
            headers["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
        elif token:
            headers["Authorization"] = f"{token.type} {token.credentials or self._secret(token.credentials_file)}"
        for name, value in headers.items():
            if not (name + value).isprintable() or not (name + value).isascii():
                raise self._error(f"the header {name} has characters other than printable ASCII")
        return headers

    def _parsed(self, path: Path) -> _File:
        text = _text(path)
        try:
            found = msgspec.convert(yaml.safe_load(text) or {}, _File)
        except yaml.YAMLError as error:
            raise self._error(f"it is not YAML ({' '.join(str(error).split())[:120]})") from None
        except msgspec.ValidationError as error:
            raise self._error(str(error)) from None
        except (ValueError, RecursionError):
            raise self._error("a date is impossible, or brackets are nested too deep") from None
        if found.basic_auth and found.authorization:
            raise self._error("it has both basic_auth and authorization; give one of them")
        has_secret = (
            (found.basic_auth and found.basic_auth.password)
            or (found.authorization and found.authorization.credentials)
            or found.http_headers
        )
        if has_secret:
            _check_mode(path)
        return found

    def _error(self, what: str) -> UsageError:
        return UsageError(f"{OPTION} {printable(str(self._path))}: {printable(what)}. See the page fleet of the manual")

    def _named(self, name: str) -> str:
        """Return the path of a file that is named in the file: relative paths are relative to it."""
        return _existing(str(self._path.parent / name)) if name and self._path else ""

    def _secret(self, name: str) -> str:
        if not name or not self._path:
            return ""
        path = self._path.parent / name
        text = _text(path).strip()
        _check_mode(path)
        return text


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{printable(str(path))}: {error.strerror}. Give the right path in or to {OPTION}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{printable(str(path))} is not text. Give the right path in or to {OPTION}") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{printable(str(path))} is larger than 64 KB. Give the right path in or to {OPTION}")
    return text


def _check_mode(path: Path) -> None:
    """Raise UsageError if others can read the secret in this file."""
    if path.stat().st_mode & _OTHERS and path.is_file():  # a pipe of `<(pass prometheus)` has no readers but us
        raise UsageError(f"{printable(str(path))} holds a secret, and other users can read it. Fix: chmod 600 it")


def _existing(name: str) -> str:
    if not Path(name).is_file():
        raise UsageError(f"{printable(name)}: there is no such file. Give the right path")
    return name
