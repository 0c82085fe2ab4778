"""Every number that decides a check, with its source. "Heuristic" means that nobody has published one."""

from __future__ import annotations

#: Load verdicts: a mean over this long is worth watching / is a problem (seconds). Healthy tensor-parallel ranks alternate at one-second
#: sampling, so nothing shorter is judged.
WATCH_WINDOW = 10.0
PROBLEM_WINDOW = 60.0

#: A window counts as covered when its oldest moment is at least this share of it away: one late tick must not blind a verdict.
WINDOW_COVERAGE = 0.85

#: A card below this share of busy time is idle, above that one saturated: the 90/10 of the report that Poise was made for. Small gaps are
#: not judged: 20 samples at 15 s carry a standard error of up to 11 points.
IDLE_RATIO = 0.10
SATURATED_RATIO = 0.90

#: From here on a card carries load, and an idle neighbour is worth naming even when this one is not saturated (heuristic).
LOADED_RATIO = 0.50

#: Below this many tokens per second an engine is not under load (heuristic; health checks and probes stay below).
TOKENS_FLOOR = 10.0

#: Power as second witness: an idle card draws at most this share of what the busy one draws (heuristic; idle H100 70–120 W of 700 W).
IDLE_POWER_SHARE = 0.60

#: Used device memory may differ by this share of the card between ranks: context and CUDA graphs of rank 0 need about 1 GB (heuristic).
MEMORY_GAP = 0.10

#: A rank whose SM clock is below this share of its group's fastest, while all are busy, holds the others up (heuristic).
CLOCK_SHARE = 0.85

#: An engine process that is younger than this and whose page does not answer is loading (large models from slow disks; seconds).
LOADING_GRACE = 1200.0

#: Prefill and decode. Below this many prompt tokens in the window, or since the start, shares of them say nothing (a few probes; heuristic).
PROMPT_TOKENS_FLOOR = 1000.0

#: A decode engine that computes more than this share of its prompt tokens recomputes; more than the other one: it gets no KV at all. The last
#: token is always local before vLLM 0.21 (vllm-project/vllm#25815, #27083; heuristic).
RECOMPUTED_SHARE = 0.20
RECOMPUTED_NEARLY_ALL = 0.90

#: So many failed transfers, and this share of all, are more than an engine that restarts (heuristic).
FAILED_TRANSFERS = 3.0
FAILED_TRANSFER_SHARE = 0.01

#: So many failed requests of a router, and this share of all it sent, are more than clients that left (heuristic).
FAILED_REQUESTS = 3.0
FAILED_REQUEST_SHARE = 0.01

#: So many requests must be finished before their number in one pool says anything about the other.
ROUTED_REQUESTS = 20.0

#: A prefill engine generates one token per request, because routers ask it for max_tokens=1 (vLLM's proxy contract); above this it decodes.
PREFILL_TOKENS = 2.0

#: Round trip to an engine within one site, in seconds: data-centre networks stay below a millisecond, between sites it is tens (heuristic).
ROUND_TRIP = 0.010

#: A fatal XID is news for this long, in seconds: whoever reset the card knows of it (heuristic).
FRESH_XID = 3600.0

#: A fatal XID that came so many seconds before a card was last read, or later, is why it answers no more (heuristic).
XID_BEFORE_LOSS = 600.0

#: NVLink bytes per generated token below which ranks do not talk over NVLink. The smallest real model (Qwen2.5-0.5B: 24 layers × 896 × 2 bytes ×
#: 2 sums) moves 86,016 bytes per token and rank.
NVLINK_BYTES_PER_TOKEN = 1024.0

#: Less than this between nodes in the window says nothing about the way that it took: management traffic is of that size (heuristic; bytes).
RDMA_BYTES_FLOOR = 1e6

#: No token for this long, in seconds, while requests are held is worth watching: a prompt of 100,000 tokens takes some ten (heuristic).
STALL_WINDOW = 30.0

#: Data-parallel ranks. Below this many requests per rank there is nothing to share; a rank with more than the one share of the mean, or less than
#: the other, is out of balance (heuristic; with two ranks the first can only be reached by a rank that has nothing).
RANK_REQUESTS_FLOOR = 2.0
RANK_REQUESTS_MOST = 2.0
RANK_REQUESTS_LEAST = 0.1

#: --max-num-seqs. The batch is full from this share of it on; the KV cache has room below the one share and is full above the other (vLLM's
#: guidance: high use without preemption is efficient).
BATCH_FULL = 0.95
KV_ROOM = 0.50
KV_FULL = 0.90

#: --gpu-memory-utilization. vLLM's default is 0.92 (0.32, config/cache.py; 0.9 before); above the one share NCCL buffers and graphs do not fit beside it, below the
#: other a card that nobody shares is mostly unused (heuristic).
MEMORY_SHARE_MOST = 0.97
MEMORY_SHARE_LEAST = 0.50

#: Measured all-reduces. NVLink carries several times what goes through host memory (an H100's links 450 GB/s in one direction, its PCIe slot some
#: 55), so less than this many times as much with peer-to-peer as without is none (heuristic).
ALL_REDUCE_GAIN = 1.2
#: NCCL's bus bandwidth reaches 75 to 80 % of what the links carry (nccl-tests on NVSwitch: A100 some 235 of 300 GB/s, H100 some 365 of 450; above 100 %
#: where the switch sums, NVLS). Below half something is wrong (heuristic), if the message is large enough to fill the links (bytes; heuristic).
ALL_REDUCE_SHARE = 0.50
ALL_REDUCE_LARGE = 64 << 20

#: A card is slowed by its own hardware for this share of the time, or by the driver for that. Single events at a change of performance state are normal
#: (nvml.h, HwSlowdown); gpud alerts at 0.6 events a minute over ten (heuristic).
HARDWARE_SLOWDOWN_SHARE = 0.10
SOFTWARE_SLOWDOWN_SHARE = 0.25

#: More packets than this repeated or damaged on the links of one card in a minute, as in the alert NVLinkErrors: NVLink repeats a few over its life
#: (heuristic). Each time that a link trains anew or loses data counts.
LINK_REPEATS = 6.0
