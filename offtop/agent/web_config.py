"""TLS and users of the agent's HTTP server, from the file that Prometheus's own exporters take (`--web.config.file`).

Its format is that of prometheus/exporter-toolkit (docs/web-configuration.md): YAML, with paths relative to the file. Of
it, what is named below is known; anything else is refused rather than ignored, because it may be meant to protect.
"""

import hashlib
import hmac
import os
import re
import secrets
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from offtop.errors import UsageError, warn
from offtop.printable import printable

OPTION = "--web.config.file"
_MOST_BYTES = 1 << 16
_FAILURE_SECONDS = 1.0
"""How long a wrong password keeps others from being checked: a check takes 50 ms of CPU or more."""
_MOST_REMEMBERED = 100
"""Correct passwords that are remembered, so that not each request costs that time."""
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{53}")
"""bcrypt's, with a cost up to 14: that takes a second of CPU."""


class _Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cert_file: str
    key_file: str
    client_auth_type: str = "NoClientCert"
    client_ca_file: str = ""
    min_version: str = "TLS12"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tls_server_config: _Tls | None = None
    basic_auth_users: dict[str, str] = {}


class Access:
    """Who may connect, and how. Thread-safe."""

    def __init__(self, tls: ssl.SSLContext | None, users: Mapping[str, str], has_client_certificates: bool) -> None:
        """`users`: name → bcrypt hash; empty: no password is needed."""
        self.tls, self._users = tls, users
        self.is_closed = tls is not None and (bool(users) or has_client_certificates)
        """Whether strangers neither read along nor get an answer."""
        self._checking = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._correct: set[bytes] = set()

    def admits(self, user: str, password: str, seconds: float) -> bool:
        """Return whether a password is right. Raises TimeoutError if others were checked for `seconds`."""
        if not self._users:
            return True
        known = hmac.digest(self._key, f"{user}\0{password}".encode(errors="replace"), hashlib.sha256)
        if known in self._correct:
            return True
        if not self._checking.acquire(timeout=max(0.0, seconds)):
            raise TimeoutError
        try:
            # If there is no such user, another one's hash is checked, so that the time does not tell who exists.
            hashed = self._users.get(user) or next(iter(self._users.values()))
            is_right = _is_right(password, hashed) and user in self._users
            if is_right:
                if len(self._correct) >= _MOST_REMEMBERED:
                    self._correct.clear()
                self._correct.add(known)
            else:
                time.sleep(min(_FAILURE_SECONDS, max(0.0, seconds)))
        finally:
            self._checking.release()
        return is_right

    @property
    def needs_password(self) -> bool:
        return bool(self._users)


OPEN = Access(None, {}, False)
"""No TLS and no users."""


class WebConfig:
    """The file, and the files that it names; all are read again when one of them changes. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read the files. Raises UsageError."""
        self._path = path
        self._reading = threading.Lock()
        self._access, self._files = _read(path)
        self._seen = self._states()

    @property
    def access(self) -> Access:
        """What the files say now. If they cannot be read any more, what they said before, with a warning."""
        with self._reading:
            states = self._states()
            if states != self._seen:
                self._seen = states
                try:
                    self._access, self._files = _read(self._path)
                except UsageError as error:
                    warn(f"offtop: {error}. The earlier content stays in effect")
                else:
                    self._seen = self._states()
            return self._access

    def _states(self) -> Sequence[tuple[int, ...]]:
        return [_state(path) for path in (self._path, *self._files)]


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> tuple[Access, Sequence[Path]]:
    """Return what the file says, and the files that it names."""
    where = f"{OPTION}: {printable(str(path))}"
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}. Name a file that {_own_name()} can read") from None
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{where} is larger than {_MOST_BYTES >> 10} KB. Name a file with TLS and users")
    try:
        read = msgspec.yaml.decode(content or b"{}", type=_File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {printable(str(error))}. Known are {_known()}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise UsageError(f"{where} is not YAML. See the example in docs/agent.md") from None
    for user, hashed in read.basic_auth_users.items():
        if not _HASH.fullmatch(hashed):
            raise UsageError(
                f"{where}: the password of user '{printable(user)}' is not a bcrypt hash with a cost from 4 to 14. "
                "Make one: htpasswd -nBC 10 ''"
            )
    tls, directory = read.tls_server_config, path.parent
    if tls is None:
        return Access(None, read.basic_auth_users, False), ()
    names = [directory / name for name in (tls.cert_file, tls.key_file, tls.client_ca_file) if name]
    return Access(_context(tls, directory, where), read.basic_auth_users, _verifies(tls)), names


def _verifies(tls: _Tls) -> bool:
    return tls.client_auth_type == "RequireAndVerifyClientCert"


def _context(tls: _Tls, directory: Path, where: str) -> ssl.SSLContext:
    if tls.min_version not in _VERSIONS:
        raise UsageError(f"{where}: min_version is not one of {', '.join(_VERSIONS)}. Older ones are not safe")
    if tls.client_auth_type not in _CLIENT_AUTH:
        raise UsageError(f"{where}: client_auth_type is not one of {', '.join(_CLIENT_AUTH)}. Use one of them")
    mode = _CLIENT_AUTH[tls.client_auth_type]
    if (mode != ssl.CERT_NONE) != bool(tls.client_ca_file):
        raise UsageError(f"{where}: client_auth_type and client_ca_file need each other. Give both, or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    names = "cert_file, key_file"
    try:
        context.load_cert_chain(directory / tls.cert_file, directory / tls.key_file, password="")
        if tls.client_ca_file:
            names = "client_ca_file"
            context.load_verify_locations(directory / tls.client_ca_file)
    except (OSError, ValueError) as error:  # SSLError is an OSError, too
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{where}: {names}: {printable(reason)}. Name PEM files that {_own_name()} can read and that fit together"
        ) from None
    context.verify_mode = mode
    return context


def _known() -> str:
    fields = ", ".join(_Tls.__struct_fields__)
    return f"tls_server_config ({fields}) and basic_auth_users"


def _own_name() -> str:
    return f"user {os.geteuid()}" if os.geteuid() else "root"


def _is_right(password: str, hashed: str) -> bool:
    import bcrypt  # here, because most agents have no users

    try:
        return bcrypt.checkpw(password.encode(errors="replace"), hashed.encode())
    except ValueError:  # it refuses passwords of more than 72 bytes
        return False
