"""The exporter behind TLS, client certificates and basic auth, before its real readers: a Prometheus that scrapes it so, and curl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from poise.exporter.server import HttpServer
from poise.exporter.web.security import WebSecurity

from tests.certificates import Authority
from tests.exporter_http import serving
from tests.monitoring import Server, free_port, started
from tests.needs import needs
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

CURL_SECONDS = 30


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("authority"))
    made.issue("server")
    made.issue("prometheus", "DNS:prometheus.example", "clientAuth")
    return made


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[HttpServer]:
    bcrypt = pytest.importorskip("bcrypt")
    configuration = {
        "tls_server_config": {
            "cert_file": "server.pem",
            "key_file": "server.key",
            "client_ca_file": "authority.pem",
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_allowed_sans": ["prometheus.example"],
            "min_version": "TLS13",
        },
        "basic_auth_users": {"prometheus": bcrypt.hashpw(b"sesame", bcrypt.gensalt(10)).decode()},
    }
    path = authority.folder / "web.yml"
    path.write_text(yaml.safe_dump(configuration))
    with serving(security=WebSecurity(path)) as running:
        yield running


def test_a_prometheus_with_certificate_and_password_scrapes_and_others_do_not(
    server: HttpServer, authority: Authority, tmp_path: Path
) -> None:
    """The scrape_config of docs/security.md."""
    tls = {"ca_file": "authority.pem", "cert_file": "prometheus.pem", "key_file": "prometheus.key"}
    user = {"username": "prometheus", "password": "sesame"}
    jobs: dict[str, dict[str, object]] = {
        "right": {"tls_config": tls, "basic_auth": user},
        "right_collectors": {"tls_config": tls, "basic_auth": user, "params": {"collect[]": ["memory", "checks"]}},
        "wrong_password": {"tls_config": tls, "basic_auth": {**user, "password": "Sesame"}},
        "no_certificate": {"tls_config": {"ca_file": "authority.pem"}, "basic_auth": user},
    }
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": name, "scheme": "https", "static_configs": [{"targets": [f"localhost:{server.server_port}"]}], **job}
            for name, job in jobs.items()
        ],
    }
    path = authority.folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [
        needs("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with started("prometheus", command, f"http://127.0.0.1:{port}", "/-/ready", tmp_path / "prometheus.log") as reader:
        wait_until(lambda: set(scraped(reader)) == set(jobs), "every job was tried")
        wait_until(lambda: scraped(reader)["right"] == scraped(reader)["right_collectors"] == 1, "Prometheus took the page")
        assert scraped(reader) == {"right": 1, "right_collectors": 1, "wrong_password": 0, "no_certificate": 0}
        samples = {
            result["metric"]["job"]: float(result["value"][1])
            for result in reader.get("/api/v1/query", query="scrape_samples_scraped")["data"]["result"]
        }
        assert 0 < samples["right_collectors"] < samples["right"]


def scraped(reader: Server) -> dict[str, float]:
    return {result["metric"]["job"]: float(result["value"][1]) for result in reader.get("/api/v1/query", query="up")["data"]["result"]}


def curl(server: HttpServer, *arguments: str | Path) -> tuple[int, str]:
    """Exit code and status of a real curl."""
    url = f"https://localhost:{server.server_port}/metrics"
    command = [needs("curl"), "--silent", "--compressed", "--output", "/dev/null", "--write-out", "%{http_code}", *map(str, arguments), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CURL_SECONDS, check=False)
    return done.returncode, done.stdout


def test_curl_gets_what_its_certificate_and_password_are_worth(server: HttpServer, authority: Authority) -> None:
    trusting = ("--cacert", authority.certificate)
    own = ("--cert", authority.folder / "prometheus.pem", "--key", authority.folder / "prometheus.key")
    assert curl(server, *trusting, *own, "--user", "prometheus:sesame") == (0, "200")
    assert curl(server, *trusting, *own, "--user", "prometheus:wrong") == (0, "401")
    assert curl(server, *trusting, *own) == (0, "401")
    code, status = curl(server, *trusting, "--user", "prometheus:sesame")
    assert (code != 0, status) == (True, "000")
    assert curl(server, *own)[0] == 60, "our authority is not the world's"
    stranger = authority.issue("grafana", "DNS:grafana.example", "clientAuth")
    code, status = curl(server, *trusting, "--cert", stranger.certificate, "--key", stranger.key)
    assert (code != 0, status) == (True, "000")
