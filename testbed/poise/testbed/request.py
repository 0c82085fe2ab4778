"""One plain request to an OpenAI-compatible server, to see that it answers. Knows nothing of load or statistics."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from poise.testbed.errors import TestbedError


def authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """The header for a server that was started with VLLM_API_KEY."""
    key = environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def complete(url: str, model: str, prompt: str, max_tokens: int, timeout: float, environ: Mapping[str, str]) -> Mapping[str, object]:
    """Posts to /v1/completions, greedily decoded, and returns the answer. Raises TestbedError with status and text when it is not 200."""
    target = urlsplit(url)
    wanted = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    body = json.dumps(wanted)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=timeout)
    try:
        headers = {"Content-Type": "application/json", **authorization(environ)}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise TestbedError(f"{url} did not answer a request within {timeout:.0f} s: {error!r}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise TestbedError(f"{url} answered a request with status {answer.status}: {text[:300].decode('utf-8', 'replace')}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TestbedError(f"{url} answered a request with something that is no completion: {text[:300]!r}")
    return value
