"""KV transfers that do not work: prefill and decode do not find each other, hold an old handshake, or do not fit together."""

from __future__ import annotations

import http.client
import json
import os
from dataclasses import replace
from urllib.parse import urlsplit

from poise.testbed import model
from poise.testbed.errors import TestbedError
from poise.testbed.faults.fault import FAILED_ANSWERS, Fault, Needs, Raises, Sign, Target
from poise.testbed.request import authorization

# The name of a network device where an address belongs: the server listens on it, and nobody else can look it up.
NOT_AN_ADDRESS = "lo"
# The tiny model with other random weights.
OTHER_SEED = 1
# What a model that is no tiny one is started with instead: the same weights in another precision.
OTHER_DTYPE = "--dtype=float16"
ANSWER_SECONDS = 60.0

# What follows when KV does not arrive: requests fail, decode writes nothing, and prefill keeps what nobody fetches.
LOST_KV = (*FAILED_ANSWERS, "PDKVExpired", "PDPoolStarved", "EngineStalled")

PREFILL = Needs(role="prefill", router=True)
DECODE = Needs(role="decode", router=True)


def _kv_transfer_broken(target: Target) -> None:
    changed = replace(target.engine, side_channel_host=NOT_AN_ADDRESS)
    target.deployment.restart_engine(changed, "kv-transfer-broken", target.progress, through_router=False)


def _stale_peer(target: Target) -> None:
    changed = replace(target.engine, engine_id=engine_id(target))
    target.deployment.restart_engine(changed, "stale-peer", target.progress, through_router=False)


def _model_mismatch(target: Target) -> None:
    current = target.deployment.plan
    if current.model == model.TINY:
        other = str(model.make_tiny(current.environment.parent / "models", OTHER_SEED))
        changed = replace(target.engine, model=other)
    else:
        changed = replace(target.engine, arguments=(*target.engine.arguments, OTHER_DTYPE))
    target.deployment.restart_engine(changed, "model-mismatch", target.progress, through_router=False)


def engine_id(target: Target) -> str:
    """The id by which decode knows this prefill engine: it stands in the answer to a prefill request, as routers ask for one
    (vLLM 0.32, NixlConnector). Raises TestbedError when it does not."""
    url = target.engine.url
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    body = {"model": target.deployment.plan.served_name, "prompt": "server", "max_tokens": 1, "kv_transfer_params": wanted}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)
    try:
        headers = {"Content-Type": "application/json", **authorization(os.environ)}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())["kv_transfer_params"]["remote_engine_id"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise TestbedError(f"{url} does not tell under which id decode knows it: {error!r}") from None
    finally:
        connection.close()
    return str(found)


FAULTS = (
    Fault(
        name="kv-transfer-broken",
        group="prefill and decode",
        what=f"prefill names {NOT_AN_ADDRESS!r} as the host of its side channel, which decode cannot look up",
        needs=PREFILL,
        raises=Raises(
            series=(Sign("poise_engine_kv_transfer_failures_total", "counts", part="decode"),),
            checks=("kv_transfer",),
            alerts=("PDKVTransferFailing",),
            tolerated=LOST_KV,
        ),
        apply=_kv_transfer_broken,
        restarts=True,
    ),
    Fault(
        name="stale-peer",
        group="prefill and decode",
        what="prefill is restarted under the same engine id: decode holds a handshake with a process that is gone",
        needs=PREFILL,
        raises=Raises(
            series=(Sign("poise_engine_kv_transfer_failures_total", "counts", part="decode"),),
            checks=("kv_transfer",),
            alerts=("PDKVTransferFailing",),
            tolerated=LOST_KV,
        ),
        apply=_stale_peer,
        restarts=True,
    ),
    Fault(
        name="model-mismatch",
        group="prefill and decode",
        what="decode serves other weights than prefill under the same name",
        needs=DECODE,
        raises=Raises(
            series=(Sign("poise_engine_kv_transfer_failures_total", "counts", part="decode"),),
            checks=("pd_match", "kv_transfer"),
            alerts=("PDKVTransferFailing", "PDModelMismatch"),
            tolerated=LOST_KV,
        ),
        apply=_model_mismatch,
        restarts=True,
    ),
)
