"""The file of promtool's --http.config.file: users, tokens, headers, and secrets that others cannot read."""

from pathlib import Path

import pytest

from offtop.errors import UsageError
from offtop.fleet.access import Access
from offtop.fleet.client import Client
from tests.fleet.api import always, serving, vector


def config(directory: Path, text: str, mode: int = 0o600) -> str:
    path = directory / "http.yml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def secret(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("basic_auth: {username: me, password: pass}", {"Authorization": "Basic bWU6cGFzcw=="}),
        ("basic_auth: {username: me, password_file: secret}", {"Authorization": "Basic bWU6cGFzcw=="}),
        ("authorization: {credentials: abc}", {"Authorization": "Bearer abc"}),
        ("authorization: {type: Token, credentials_file: secret}", {"Authorization": "Token pass"}),
        ("http_headers: {X-Scope-OrgID: {values: [a]}}", {"X-Scope-OrgID": "a"}),
        ("", {}),
    ],
)
def test_headers_are_what_the_file_says(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    secret(tmp_path, "pass\n")
    assert Access(config(tmp_path, text)).headers() == expected


def test_headers_are_sent_and_a_token_that_changed_is_read_again(tmp_path: Path) -> None:
    file = secret(tmp_path, "first")
    access = Access(config(tmp_path, "authorization: {credentials_file: secret}", 0o644))
    with serving(always(vector(({}, 1.0)))) as api:
        client = Client(api.url, access)
        client.query("up")
        file.write_text("second")
        client.query("up")
        assert [one.headers["Authorization"] for one in api.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    "text",
    ["basic_auth: {username: me, password: p}", "authorization: {credentials: a}", "http_headers: {A: {values: [b]}}"],
)
def test_secret_that_others_can_read_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"holds a secret, and other users can read it\. Fix: chmod 600"):
        Access(config(tmp_path, text, 0o640))
    secret(tmp_path, "pass", 0o604)
    with pytest.raises(UsageError, match="secret holds a secret"):
        Access(config(tmp_path, "authorization: {credentials_file: secret}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("basic_auth: [", "it is not YAML"),
        ("basic_auth: {username: me, pasword: p}", "unknown field `pasword`"),
        ("tls_config: {insecure_skip_verify: true}", "unknown field `insecure_skip_verify`"),
        (
            "basic_auth: {username: a, password: b}\nauthorization: {credentials: c}",
            "both basic_auth and authorization",
        ),
        ('http_headers: {A: {values: ["b\\nC: d"]}}', "other than printable ASCII"),
        ("tls_config: {ca_file: none.crt}", "there is no such file"),
        ("authorization: {credentials_file: none}", "No such file"),
        ("\x1b[2J", "it is not YAML"),
        ("- a", "Expected `object`"),
        ("basic_auth: 2024-13-45", "a date is impossible"),
        ("[" * 3_000, "brackets are nested too deep"),
        ('basic_auth: {username: "\\uD800", password: p}', "the user name or the password is not text"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        Access(config(tmp_path, text))
    said = str(raised.value)
    assert expected in said and said.isprintable()


def test_missing_and_huge_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="Give the right path"):
            Access(str(path))
    with pytest.raises(UsageError, match="larger than 64 KB"):
        Access(config(tmp_path, "#" * 70_000))
    with pytest.raises(UsageError, match="there is no such file"):
        Access(ca_file=str(tmp_path / "none"))
