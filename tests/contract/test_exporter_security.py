"""The exporter behind TLS, client certificates and basic auth, before its real readers: a Prometheus that scrapes it so, and curl."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from poise.exporter.server import HttpServer
from poise.exporter.settings import SettingsError
from poise.exporter.web import config
from poise.exporter.web.security import WebSecurity

from tests.certificates import Authority
from tests.exporter_http import serving
from tests.monitoring import Server, free_port, started
from tests.needs import needs
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

CURL_SECONDS = 30
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)]


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


# -------------------------------------------------------------------------------------------------- promtool on what we document
def promtool(*arguments: str | Path) -> tuple[int, str]:
    command = [needs("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CURL_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr


def web_configurations() -> list[str]:
    (documented,) = [block for block in BLOCKS if "tls_server_config:" in block]
    tls = "tls_server_config: {cert_file: server.pem, key_file: server.key"
    suites, headers = (
        ", ".join(config.CIPHER_SUITES),
        ", ".join(f"{name}: {(values or ['a'])[0]}" for name, values in config.HEADERS.items()),
    )
    return [
        documented,
        "",
        f"{tls}, cipher_suites: [{suites}], curve_preferences: [CurveP521], prefer_server_cipher_suites: false}}\n",
        f"{tls}, client_ca_file: authority.pem, client_auth_type: VerifyClientCertIfGiven, max_version: TLS12}}\n",
        f"http_server_config: {{http2: false, headers: {{{headers}}}}}\n",
    ]


def refused_by_both() -> list[str]:
    tls = "tls_server_config: {cert_file: server.pem, key_file: server.key"
    return [
        f"{tls}}}\n{tls}}}\n",
        f"{tls}, client_ca_file: authority.pem}}\n",
        "tls_server_config: {cert_file: server.pem}\n",
        f"{tls}, client_auth_type: Perhaps}}\n",
        f"{tls}, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}}\n",
        f"{tls}, keyfile: a}}\n",
        "basic_auth_users: {alice: sesame}\n",
        "http_server_config: {headers: {Server: me}}\n",
        "http_server_config: {headers: {X-Frame-Options: maybe}}\n",
    ]


@pytest.mark.parametrize("text", web_configurations(), ids=lambda text: text[:40])
def test_what_we_take_exporter_toolkit_takes(text: str, authority: Authority) -> None:
    path = authority.folder / "taken.yml"
    # A promtool of 2022 knows neither rate limits nor names of clients.
    older = re.sub(r"rate_limit:\n(  .*\n)+|  client_allowed_sans:.*\n(    - .*\n)+", "", text)
    path.write_text(older)
    assert promtool("check", "web-config", path)[0] == 0
    path.write_text(text)
    WebSecurity(path)


@pytest.mark.parametrize("text", refused_by_both(), ids=lambda text: text[:60])
def test_what_exporter_toolkit_refuses_we_refuse(text: str, authority: Authority) -> None:
    path = authority.folder / "refused.yml"
    path.write_text(text)
    assert promtool("check", "web-config", path)[0] != 0
    with pytest.raises(SettingsError, match=r"refused\.yml"):
        WebSecurity(path)


def test_the_scrape_jobs_of_the_page_are_a_configuration(authority: Authority) -> None:
    jobs = [block for block in BLOCKS if block.lstrip().startswith("scrape_configs:")]
    assert len(jobs) >= 4
    for number, job in enumerate(jobs):
        path = authority.folder / f"prometheus{number}.yml"
        path.write_text(job)
        code, said = promtool("check", "config", "--syntax-only", path)
        assert code == 0, said
