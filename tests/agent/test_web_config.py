"""TLS and users come from the file of Prometheus's exporters, read again when it changes; errors say what to do."""

import base64
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import bcrypt
import pytest

from offtop.agent.server import Answer, Page
from offtop.agent.web_config import OPEN, Access, WebConfig
from offtop.errors import UsageError
from tests.agent.serving import get, serving
from tests.command import call

PAGES: Mapping[str, Page] = {"/": lambda _: Answer(200, b"hello")}
ANN = bcrypt.hashpw(b"secret", b"$2b$04$abcdefghijklmnopqrstuu").decode()
"""Always the same, because it is part of the names of tests."""
USERS = f"basic_auth_users:\n  ann: {ANN}\n"
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def certificate(directory: Path, name: str, *options: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", *options]
    files = ["-keyout", directory / f"{name}.key", "-out", directory / f"{name}.crt"]
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    certificate(directory, "server")
    certificate(directory, "client")
    return directory


def written(directory: Path, text: str) -> Path:
    path = directory / "web.yml"
    path.write_text(text)
    return path


def access_of(config: WebConfig) -> Callable[[], Access]:
    return lambda: config.access


def trusting(directory: Path, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=directory / "server.crt")
    if client:
        context.load_cert_chain(directory / f"{client}.crt", directory / f"{client}.key")
    return context


def password(user: str, text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{text}'.encode()).decode()}"}


def test_without_a_file_there_is_neither_tls_nor_a_password() -> None:
    assert (OPEN.tls, OPEN.needs_password, OPEN.is_closed) == (None, False, False)
    assert OPEN.admits("", "", 0)


def test_tls_and_password_let_only_known_users_in(certificates: Path) -> None:
    config = WebConfig(written(certificates, TLS + USERS))
    assert config.access.is_closed
    assert config.access.tls and config.access.tls.minimum_version == ssl.TLSVersion.TLSv1_2
    with serving(PAGES, access_of(config), seconds=5.0) as server:
        tls = trusting(certificates)
        assert get(server, "/", password("ann", "secret"), tls).body == b"hello"
        for headers in (None, password("ann", "wrong"), password("bob", "secret"), {"Authorization": "Basic x"}):
            refused = get(server, "/", headers, tls)
            assert (refused.status, refused.text) == (401, "Wrong user or password\n")
            assert refused.headers["WWW-Authenticate"] == 'Basic realm="offtop"'
        with pytest.raises(OSError):
            get(server, "/", password("ann", "secret"))  # without TLS
        assert get(server, "/", password("ann", "secret"), tls).status == 200


def test_client_certificates_are_another_way_in(certificates: Path) -> None:
    text = f"{TLS}  client_ca_file: client.crt\n  client_auth_type: RequireAndVerifyClientCert\n  min_version: TLS13\n"
    config = WebConfig(written(certificates, text))
    assert config.access.is_closed
    with serving(PAGES, access_of(config)) as server:
        assert get(server, "/", tls=trusting(certificates, "client")).body == b"hello"
        with pytest.raises(OSError):
            get(server, "/", tls=trusting(certificates))


def test_a_file_without_users_or_without_tls_does_not_close_the_port(certificates: Path) -> None:
    for text in ("", TLS, USERS):
        assert not WebConfig(written(certificates, text)).access.is_closed


def test_a_correct_password_is_checked_once_and_wrong_ones_one_after_another(tmp_path: Path) -> None:
    slow = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    access = WebConfig(written(tmp_path, f"basic_auth_users: {{ann: {slow}}}")).access
    assert access.admits("ann", "secret", 1)
    began_s = time.thread_time()
    assert all(access.admits("ann", "secret", 1) for _ in range(100))
    assert time.thread_time() - began_s < 0.05  # one check takes that long
    began_s = time.monotonic()
    assert not access.admits("ann", "wrong", 0.3)
    assert not access.admits("nobody", "secret", 0.3)
    assert not access.admits("ann", "x" * 100, 0.3)
    assert time.monotonic() - began_s > 0.9
    with serving(PAGES, lambda: access, seconds=0.5) as server:
        assert get(server, "/", password("ann", "secret")).status == 200


def test_changed_files_count_from_the_next_connection_on(
    certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(certificates, USERS)
    config = WebConfig(path)
    assert not config.access.admits("bob", "secret", 0)
    path.write_text(USERS.replace("ann", "bob"))
    assert config.access.admits("bob", "secret", 0)
    path.write_text("basic_auth_users: [")
    assert config.access.admits("bob", "secret", 0)
    assert "is not YAML" in capsys.readouterr().err
    assert config.access.admits("bob", "secret", 0)
    assert capsys.readouterr().err == ""  # said once
    path.write_text(TLS)
    first = config.access.tls
    assert first and config.access.tls is first
    certificate(certificates, "server")
    assert config.access.tls is not first


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tls_server_config: {cert_file: a}", "Object missing required field `key_file`"),
        ("tls_server_config: {cert_file: a, key_file: b}", "cert_file, key_file: No such file or directory. Name PEM"),
        ("{cert_file: a}", "Object contains unknown field `cert_file`. Known are tls_server_config (cert_file, "),
        ("basic_auth_users: {ann: secret}", "password of user 'ann' is not a bcrypt hash with a cost from 4 to 14"),
        ('basic_auth_users: {"a\\e[31mn": x}', "password of user 'a\\x1b[31mn' is not a bcrypt hash"),
        (f"basic_auth_users: {{ann: {ANN.replace('$04$', '$31$')}}}", "is not a bcrypt hash with a cost from 4 to 14"),
        ("basic_auth_users: [", "is not YAML. See the example in docs/agent.md"),
        ("\x00", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("x" * 70_000, "is larger than 64 KB"),
        (f"{TLS}  min_version: TLS10\n", "min_version is not one of TLS12, TLS13"),
        (f"{TLS}  client_auth_type: maybe\n", "client_auth_type is not one of NoClientCert"),
        (f"{TLS}  client_ca_file: client.crt\n", "client_auth_type and client_ca_file need each other"),
        (f"{TLS.replace('server.key', 'client.key')}", "cert_file, key_file: "),
        (f"{TLS.replace('server.crt', 'web.yml')}", "cert_file, key_file: "),
    ],
)
def test_wrong_files_are_refused_with_a_remedy(certificates: Path, text: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        WebConfig(written(certificates, text))
    said = str(refused.value)
    assert said.startswith("--web.config.file: ")
    assert error in said.replace(f"{certificates}/web.yml", "")
    assert said.isprintable()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file or directory. Name a file that .* can read"):
        WebConfig(tmp_path / "nosuch")
    with pytest.raises(UsageError, match="Is a directory"):
        WebConfig(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--listen 0.0.0.0:9877", "--listen 0.0.0.0:9877 needs --web.config.file, and other machines could read"),
        ("--listen :9877", "needs --web.config.file"),
        ("--listen 9877", "'9877' is not an address and a port"),
        ("--listen :9877 --web.config.file /nosuch", "--web.config.file: /nosuch: No such file"),
        ("--keep 2h", "--keep, --max-size and --cmdlines are for recordings. Add --directory DIR, or omit them"),
        ("--directory /nosuch", "/nosuch: No such file or directory"),
        ("--series 0", "'0' is not a whole number from 1 up"),
        ("x", "offtop agent does not take 'x'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(arguments: str, error: str) -> None:
    ended = call("agent", *arguments.split())
    assert ended.status in (1, 2)
    assert error in ended.sentence


def test_a_file_that_does_not_close_the_port_is_refused_for_other_machines(certificates: Path) -> None:
    path = written(certificates, TLS)
    ended = call("agent", "--listen", "0.0.0.0:9877", "--web.config.file", str(path))
    assert ended.status == 2
    assert f"--web.config.file: {path} has no TLS, or no users and no client certificates" in ended.sentence
