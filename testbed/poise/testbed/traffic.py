"""Bytes that the ranks of vLLM servers send each other, from what the servers counted: pure arithmetic, values in, values out.

Owns the volumes (tensor parallel, pipeline parallel, prefill to decode) and who sends to whom. Knows nothing of cards' links
(wiring.py) and of how pages are read (engine_page.py). A volume is payload: what protocols add is the card's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poise.testbed.model import ModelShape

# Qwen2 and its kin hand two tensors from stage to stage, hidden states and residual (vllm/model_executor/models/qwen2.py, 0.32).
STAGE_TENSORS = 2
# A tensor-parallel layer is reduced behind the attention's output projection and behind the MLP's down projection (Megatron-LM,
# arXiv 1909.08053) …
REDUCTIONS_PER_LAYER = 2
# … and the first stage once more, behind the embedding that is split by vocabulary.
REDUCTIONS_OF_EMBEDDING = 1


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes from one place to another: cards by their position on the node."""

    source: int
    target: int
    count: float


@dataclass(frozen=True, slots=True)
class Grid:
    """How the ranks of one server are arranged, and which card each is on. A rank without a card is not in `cards`."""

    tensor: int
    pipeline: int
    data: int
    cards: Mapping[int, int]  # local rank → card; local rank = (data × pipeline size + stage) × tensor size + tensor rank

    def card(self, data: int, stage: int, tensor: int) -> int | None:
        return self.cards.get((data * self.pipeline + stage) * self.tensor + tensor)


def stage_layers(layers: int, stages: int) -> list[int]:
    """How many layers each pipeline stage has: evenly, what is left over to stages before the last (vLLM 0.32, get_pp_indices)."""
    found = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        found[-place] += 1
    return found


def all_reduce_bytes_per_token(shape: ModelShape, tensor: int, layers: int, embeds: bool) -> float:
    """Bytes that each rank of a stage with so many `layers` sends, and receives, for one token that goes through it.

    A ring all-reduce of S bytes over n ranks sends 2·(n−1)/n·S from each. The gathering of logits, one row for each sampled
    token, is left out.
    """
    if tensor < 2:
        return 0.0
    reductions = REDUCTIONS_PER_LAYER * layers + (REDUCTIONS_OF_EMBEDDING if embeds else 0)
    return 2 * (tensor - 1) / tensor * reductions * shape.hidden_size * shape.element_bytes


def stage_bytes_per_token(shape: ModelShape, tensor: int) -> float:
    """Bytes that each rank of a stage sends to its like in the next: with tensor parallelism each sends a part of the whole."""
    return STAGE_TENSORS * shape.hidden_size * shape.element_bytes / tensor


def gather_bytes_per_token(shape: ModelShape, tensor: int) -> float:
    """Bytes that each rank of a stage that has received parts sends to the others of the stage, so that each has the whole: a
    ring all-gather of S bytes over n ranks sends (n−1)/n·S from each (vLLM 0.32, irecv_tensor_dict with all_gather_group)."""
    return (tensor - 1) * stage_bytes_per_token(shape, tensor)


def kv_bytes_per_token(shape: ModelShape, tensor: int, layers: int, element_bytes: int) -> int:
    """Bytes of KV cache that one rank keeps for one token: K and V of its layers and of its part of the KV heads, at least one."""
    heads = max(1, shape.num_key_value_heads // tensor)
    return 2 * layers * heads * (shape.hidden_size // shape.num_attention_heads) * element_bytes


def compute_flows(grid: Grid, shape: ModelShape, tokens: Mapping[int, float]) -> Iterator[Flow]:
    """What the ranks of one server send each other for so many tokens that went through the model, by data-parallel rank.

    Data-parallel ranks of a dense model send each other nothing.
    """
    layers = stage_layers(shape.num_hidden_layers, grid.pipeline)
    for data, count in tokens.items():
        for stage in range(grid.pipeline):
            ring = all_reduce_bytes_per_token(shape, grid.tensor, layers[stage], embeds=stage == 0)
            if stage > 0:
                ring += gather_bytes_per_token(shape, grid.tensor)
                for rank in range(grid.tensor):
                    part = count * stage_bytes_per_token(shape, grid.tensor)
                    yield from _flow(grid.card(data, stage - 1, rank), grid.card(data, stage, rank), part)
            for rank in range(grid.tensor if grid.tensor > 1 else 0):
                yield from _flow(grid.card(data, stage, rank), grid.card(data, stage, (rank + 1) % grid.tensor), count * ring)


def transfer_flows(sources: Sequence[tuple[Grid, float]], target: Grid, layers: int, counts: Mapping[int, float]) -> Iterator[Flow]:
    """The KV cache that a decode server pulled, `counts` bytes by its data-parallel rank, from prefill servers and each one's
    share of it (any scale).

    A prefill rank gives its layers and its heads: of ranks that are more than the decode server's each gives an equal part, of
    fewer each decode rank pulls its heads (NIXL, vLLM 0.32). Data-parallel ranks of a prefill server give alike, for nobody counts
    them apart. A decode server in stages, which NIXL refuses, shows nothing.
    """
    whole = sum(share for _, share in sources)
    if whole <= 0 or target.pipeline > 1:
        return
    for data, count in counts.items():
        for source, share in sources:
            parts = max(source.tensor, target.tensor)
            for origin in range(source.data):
                given = count * share / whole / source.data
                for stage, own in enumerate(stage_layers(layers, source.pipeline)):
                    for part in range(parts):
                        yield from _flow(
                            source.card(origin, stage, part * source.tensor // parts),
                            target.card(data, 0, part * target.tensor // parts),
                            given * own / layers / parts,
                        )


def _flow(source: int | None, target: int | None, count: float) -> Iterator[Flow]:
    """A rank that is on no card sends and receives nothing; one card has no link to itself."""
    if source is not None and target is not None and source != target and count > 0:
        yield Flow(source, target, count)


def whole_parts(count: int, places: int) -> list[int]:
    """`count` in so many whole parts that differ by one at most and add up."""
    return [count // places + (place < count % places) for place in range(places)]
