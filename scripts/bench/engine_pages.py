"""Serves a recorded vLLM page on some ports of 127.0.0.1, as as many engines would, until its standard input ends.

engine_pages.py PAGE COUNT     prints the ports as JSON once it serves
"""

from __future__ import annotations

import json
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = b'{"version":"0.32.0"}'


def handler_of(page: bytes) -> type[BaseHTTPRequestHandler]:
    """Answers /metrics with the page and /version."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = {"/metrics": page, "/version": VERSION}.get(self.path)
            self.send_response(HTTPStatus.OK if body is not None else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    return Handler


def main(page: str, count: int) -> None:
    handler = handler_of(Path(page).read_bytes())
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(count)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps([server.server_port for server in servers]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
