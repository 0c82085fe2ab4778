"""A stand-in for `vllm` that answers every request, and the environment in which it is found: the real launcher in a second."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

from poise.testbed import environment

PROGRAM = f"""#!{sys.executable}
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{}})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({{"choices": [{{"text": "server"}}], "kv_transfer_params": {{"remote_engine_id": "id-of-prefill"}}}})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def make(folder: Path) -> None:
    """Makes an environment in `folder` in which `vllm` is the stand-in."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def install(cache: Path) -> None:
    """As `poise testbed install` leaves the CPU build."""
    found = environment.locate("cpu", cache)
    make(found.folder)
    found.marker.write_text(json.dumps({"build": "cpu"}))
