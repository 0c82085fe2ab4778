"""`poise doctor` asks an exporter behind TLS, client certificates and users, and says what is missing when it is not let in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.cli.main import main
from poise.exporter.web.security import WebSecurity

from tests.certificates import Authority
from tests.exporter_http import serving

bcrypt = pytest.importorskip("bcrypt")


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Authority.create(tmp_path_factory.mktemp("doctor"))
    made.issue("server")
    made.issue("operator", "DNS:operator.example", "clientAuth")
    (made.folder / "password").write_text("sesame\n")
    (made.folder / "web.yml").write_text(
        "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n  client_ca_file: authority.pem\n"
        "  client_auth_type: RequireAndVerifyClientCert\n"
        f"basic_auth_users: {{alice: {bcrypt.hashpw(b'sesame', bcrypt.gensalt(4)).decode()}}}\n"
    )
    return made.folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(security=WebSecurity(folder / "web.yml")) as server:
        yield f"https://localhost:{server.server_port}"


def test_with_certificate_and_password_the_checklist_is_shown(url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    access = f"ca_file={folder}/authority.pem,cert_file={folder}/operator.pem,key_file={folder}/operator.key"
    main(["doctor", "--exporter", url, "--exporter-access", f"{access},username=alice,password_file={folder}/password"])
    assert f"exporter {url}" in capsys.readouterr().out.splitlines()[0]
    assert main(["doctor", "--exporter", url, "--exporter-access", access]) == 2
    assert "asks for a user and password" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--exporter-access", "ca_file=a.pem"], "say which with --exporter URL"),
        (["--exporter", "https://h:1", "--exporter-access", "password=hunter2"], "password_file=FILE"),
        (["--exporter", "https://h:1", "--exporter-access", "cafile=a.pem"], "unknown option 'cafile'"),
        (["--exporter", "http://h:1", "--exporter-access", "ca_file=a.pem"], "is about TLS"),
        (["--exporter", "https://alice:hunter2@h:1"], "username=NAME,password_file=FILE instead"),
        (["--exporter", "https://alice:hunter2/x@h:1"], "username=NAME,password_file=FILE instead"),
    ],
)
def test_what_cannot_be_is_said_without_secrets(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "hunter2" not in said


def test_a_certificate_that_nobody_vouched_for_is_said_first_with_the_way_out(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--exporter", url]) == 2
    error = capsys.readouterr().err
    assert "the certificate cannot be verified" in error
    assert "ca_file=FILE" in error


def test_http_to_a_port_with_tls_names_https(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--exporter", url.replace("https", "http")]) == 2
    assert "ask with https://" in capsys.readouterr().err
