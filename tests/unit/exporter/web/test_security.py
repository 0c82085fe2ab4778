"""The configuration in force: the newest that was good, whatever happens to the files."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest
from poise.exporter.settings import SettingsError
from poise.exporter.web.config import RateLimit
from poise.exporter.web.security import Limiter, WebSecurity

from tests.certificates import Authority, encrypt
from tests.waiting import PATIENCE_SECONDS

HASH = "$2y$04$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("authority"))
    made.issue("one")
    made.issue("two")
    return made


@pytest.fixture
def file(tmp_path: Path, authority: Authority) -> Path:
    """A configuration with certificate and key beside it."""
    for suffix in ("pem", "key"):
        (tmp_path / f"server.{suffix}").write_bytes((authority.folder / f"one.{suffix}").read_bytes())
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}\n")
    return path


def put(path: Path, content: str | bytes) -> None:
    """Replaces a file as a careful program does: at once, and by another file."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(beside, path)


def test_what_does_not_change_is_read_once(file: Path) -> None:
    security = WebSecurity(file)
    first = security.current()
    assert first.context is not None
    assert security.current() is first


def test_new_users_hold_at_once(file: Path) -> None:
    security = WebSecurity(file)
    put(file, file.read_text() + f"basic_auth_users: {{alice: {HASH}}}\n")
    assert set(security.current().config.users) == {"alice"}


def test_a_new_certificate_is_loaded_once_its_key_is_there_too(file: Path, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    security = WebSecurity(file)
    first = security.current().context
    put(file.with_name("server.pem"), (authority.folder / "two.pem").read_bytes())
    assert security.current().context is first
    assert "no certificate with its key (key values mismatch); what was read before stays in force" in caplog.text
    put(file.with_name("server.key"), (authority.folder / "two.key").read_bytes())
    assert security.current().context is not first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tls_server_config: [", "not YAML"),
        ("tls_server_config: {cert_file: nowhere.pem, key_file: server.key}", "cert_file="),
        ("tls_server_config: {cert_file: server.key, key_file: server.pem}", "no certificate with its key"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: server.key, client_auth_type: VerifyClientCertIfGiven}", "holds no certificate"),
        ("rate_limit: {interval: 0}", "would switch TLS off; restart"),
        ("\udcff", "not text in UTF-8"),
    ],
)  # fmt: skip
def test_a_broken_file_is_logged_once_and_the_old_one_stays(text: str, words: str, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    security = WebSecurity(file)
    first = security.current()
    put(file, text.encode("utf-8", "surrogateescape"))
    for _ in range(3):
        assert security.current() is first
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert words in record.getMessage()
    assert f"--web.config.file={file}" in record.getMessage()
    put(file, "tls_server_config: {cert_file: server.pem, key_file: server.key, min_version: TLS13}")
    assert security.current() is not first, "a mended file is taken"


def test_a_file_that_is_gone_is_logged_and_its_return_is_seen(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    security = WebSecurity(file)
    first = security.current()
    text = file.read_text()
    file.unlink()
    assert security.current() is first
    assert "No such file" in caplog.text
    file.write_text(text + "rate_limit: {interval: 1s, burst: 2}\n")
    assert security.current().config.rate_limit == RateLimit(1.0, 2)


def test_tls_is_not_switched_on_while_it_runs(tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plain.yml"
    path.write_text("")
    security = WebSecurity(path)
    path.write_text(file.read_text())
    assert security.current().context is None
    assert "would switch TLS on; restart" in caplog.text
    assert not security.renew()


def test_what_is_wrong_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--web\.config\.file=.*nowhere\.yml: No such file"):
        WebSecurity(tmp_path / "nowhere.yml")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="not an ordinary file"):
        WebSecurity(tmp_path / "pipe")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: pipe, key_file: pipe}")
    with pytest.raises(SettingsError, match=r"tls_server_config\.cert_file=.*pipe: not an ordinary file"):
        WebSecurity(tmp_path / "web.yml")


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(file: Path) -> None:
    encrypt(file.with_name("server.key"), "hunter2")
    with pytest.raises(SettingsError, match="key_file is encrypted"):
        WebSecurity(file)


def test_nobody_waits_for_a_look_at_a_disk_that_hangs(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = WebSecurity(file)
    first = security.current()
    looking, held = threading.Event(), threading.Event()

    look = security._look

    def hang(_self: WebSecurity) -> object:
        looking.set()
        held.wait(PATIENCE_SECONDS)
        return look()

    monkeypatch.setattr(WebSecurity, "_look", hang)
    thread = threading.Thread(target=security.current)
    thread.start()
    try:
        assert looking.wait(PATIENCE_SECONDS)
        assert security.current() is first
        monkeypatch.setattr("poise.exporter.web.security.RENEW_SECONDS", 0.01)
        assert not security.renew()
        assert "does their disk hang?" in caplog.text
    finally:
        held.set()
        thread.join(PATIENCE_SECONDS)


def test_the_bucket_of_requests_fills_with_time() -> None:
    now = [0.0]
    limiter = Limiter(RateLimit(2.0, 3), lambda: now[0])
    assert [limiter.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 1.9
    assert not limiter.take()
    now[0] = 2.1
    assert [limiter.take() for _ in range(2)] == [True, False]
    now[0] = 1000.0
    assert [limiter.take() for _ in range(4)] == [True, True, True, False]


def test_an_unchanged_limit_goes_on_where_it_was(file: Path) -> None:
    put(file, file.read_text() + "rate_limit: {interval: 1h, burst: 1}\n")
    security = WebSecurity(file)
    limiter = security.current().limiter
    put(file, file.read_text() + "http_server_config: {http2: false}\n")
    assert security.current().limiter is limiter
