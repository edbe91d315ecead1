"""A causal language model that reads many conversations with one cache of keys and values.

Each conversation owns a row of the cache, after the part of a trunk that it goes on from. A forward
pass appends to any set of rows, each at its own position, so rows of different lengths share a
batch without padding on the left.

Shapes: B rows of a pass, T new tokens of a row (padded on the right), K tokens a row can look at,
N new tokens of all rows, V vocabulary.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from grpo_cl.errors import ConfigError
from grpo_cl.policy import attention
from grpo_cl.policy.slots import SlotCache, Span
from grpo_cl.policy.trunks import COUNT, LEAST, NOWHERE, PAGE, Place, Used

FULL, SLIDING = "full_attention", "sliding_attention"


class Chunk(NamedTuple):
    """Tokens that a row reads next."""

    row: int
    start: int
    """How many tokens the row already holds."""
    ids: Sequence[int]
    place: Place = NOWHERE
    """What comes before the row's first token."""


class SlotReader:
    """Runs a causal language model over rows of a cache."""

    def __init__(
        self, module: nn.Module, *, context: int, slots: int, device: torch.device, piece: int
    ) -> None:
        self.slots = slots
        self.context = context
        self.cache = SlotCache(slots + 1, context)
        """One row more than there are slots: it belongs to nobody and takes what is not kept."""
        self.trunks = SlotCache(COUNT, -(-context // LEAST) * LEAST)
        self._piece = piece
        self._module = module
        self.device = device
        config: Any = module.config
        self._config = config.get_text_config()
        self._windows = _windows(self._config.to_dict())
        if self._config._attn_implementation != "eager" and not module._supports_sdpa:
            raise ConfigError(
                f"the transformers sampler cannot pass its masks to the "
                f"{self._config._attn_implementation!r} attention of model type "
                f"{self._config.model_type!r}; load the model with flash_attention=false."
            )
        attention.register()

    def read(self, chunks: Sequence[Chunk]) -> Tensor:
        """Append each chunk to its row; logits_BV after the last column of the batch.

        Only where all chunks are equally long are these the logits after each chunk. Chunks of
        more than one token all go on from the same place.
        """
        return self._append(self.cache, chunks, self.used([chunk.place for chunk in chunks]))

    def plant(self, trunk: int, ids: Sequence[int]) -> None:
        """Fill a trunk."""
        for start in range(0, len(ids), self._piece):
            part = ids[start : start + self._piece]
            self._append(self.trunks, [Chunk(trunk, start, part)], None)

    def sees_trunks(self) -> bool:
        """Whether the model finds a beginning that is kept apart; some attend in their own way."""
        ids = [number % int(self._config.vocab_size) for number in range(PAGE + 1)]
        if len(ids) > self.context or set(self._windows) != {FULL}:
            return False
        # Both ways in rows of the trunks' cache, of which there are none yet.
        expected = self._append(self.trunks, [Chunk(0, 0, ids)], None)
        place = Place(0, PAGE)
        found = self._append(self.trunks, [Chunk(1, 0, ids[PAGE:], place)], self.used([place]))
        return attention.are_alike(found, expected)

    def used(self, places: Sequence[Place]) -> Used | None:
        """What the rows of a pass see of trunks; None if nothing."""
        seen = self.rounded(places, PAGE)
        if not seen:
            return None
        columns_B2 = self._tensor(places)
        return Used(self.trunks, seen, columns_B2[:, 0], columns_B2[:, 1])

    def rounded(self, places: Sequence[Place], step: int) -> tuple[Place, ...]:
        """The trunks among the rows' places and, in steps, how far any row sees of each.

        There is room for that much of them afterwards.
        """
        lengths = {trunk: 0 for trunk, _ in places if trunk != NOWHERE.trunk}
        for trunk, length in places:
            if trunk in lengths:
                lengths[trunk] = max(lengths[trunk], -(-length // step) * step)
        if lengths:
            self.trunks.fit(max(lengths) + 1, max(lengths.values()))
        return tuple(Place(trunk, lengths[trunk]) for trunk in sorted(lengths))

    def clear(self) -> None:
        """Give all memory back."""
        self.cache.clear()
        self.trunks.clear()

    def reserve(self, length: int) -> None:
        """Have room for ``length`` tokens in every row, and let it stay where it is."""
        if self.cache.address is None:  # only a pass tells how many layers there are
            self.read([Chunk(self.slots, 0, [0])])
        self.cache.fit(self.slots + 1, length)

    @contextmanager
    def sampling(self) -> Generator[None]:
        """Evaluation mode, no gradients, and an attention that takes masks of any form."""
        chosen, was_training = self._config._attn_implementation, self._module.training
        if was_training:
            self._module.eval()
        if chosen != "eager":  # what a model with its own attention is loaded with
            self._config._attn_implementation = attention.NAME
        try:
            with torch.inference_mode():
                yield
        finally:
            self._config._attn_implementation = chosen
            if was_training:
                self._module.train()

    def forward(
        self, cache: SlotCache, span: Span, ids_BT: Tensor, positions_BT: Tensor, used: Used | None
    ) -> Tensor:
        """Logits_BV after the last column; the positions are those in the rows."""
        options = self._options(cache, span, positions_BT, used)
        output: Any = self._module(input_ids=ids_BT, logits_to_keep=1, **options)
        return output.logits[:, -1]

    def pass_layer(self, layer: nn.Module, chunk: Chunk, hidden_1TE: Tensor) -> Tensor:
        """What one of the model's layers makes of hidden states in the place of a chunk's tokens.

        Its keys and values are written to the row.
        """
        positions_1T, span = self._places([chunk])
        used = self.used([chunk.place])
        options = self._options(self.cache, span, positions_1T, used)
        base: Any = self._module.base_model
        turns = base.rotary_emb(hidden_1TE, options["position_ids"])
        return layer(hidden_1TE, position_embeddings=turns, **options)

    def span_of(self, chunk: Chunk) -> Span:
        """Where the tokens of a chunk are written."""
        return self._places([chunk])[1]

    def _options(
        self, cache: SlotCache, span: Span, positions_BT: Tensor, used: Used | None
    ) -> dict[str, Any]:
        cache.place(span)
        return {
            "position_ids": positions_BT
            if used is None
            else positions_BT + used.lengths_B[:, None],
            "attention_mask": self._mask(positions_BT, span.length),
            "past_key_values": cache,
            "use_cache": True,
            **({} if used is None else {"used": used}),
        }

    def _append(self, cache: SlotCache, chunks: Sequence[Chunk], used: Used | None) -> Tensor:
        positions_BT, span = self._places(chunks)
        width = positions_BT.shape[1]
        padded = [[*chunk.ids, *[0] * (width - len(chunk.ids))] for chunk in chunks]
        return self.forward(cache, span, self._tensor(padded), positions_BT, used)

    def _places(self, chunks: Sequence[Chunk]) -> tuple[Tensor, Span]:
        """Positions_BT of the chunks' tokens, padded on the right, and where they are written."""
        width = max(len(chunk.ids) for chunk in chunks)
        length = max(chunk.start + len(chunk.ids) for chunk in chunks)
        starts_B1 = self._tensor([[chunk.start] for chunk in chunks])
        positions_BT = starts_B1 + torch.arange(width, device=self.device)
        positions_BT.clamp_(max=length - 1)  # padding may reach past what a model can count
        return positions_BT, self._span(chunks, positions_BT, length)

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _span(self, chunks: Sequence[Chunk], positions_BT: Tensor, length: int) -> Span:
        rows = [chunk.row for chunk in chunks]
        first, end = rows[0], rows[0] + len(rows)
        sources_N = self._sources([len(chunk.ids) for chunk in chunks], positions_BT.shape[1])
        positions_N = positions_BT.flatten()
        return Span(
            rows=slice(first, end) if rows == list(range(first, end)) else self._tensor(rows),
            rows_N=self._tensor([chunk.row for chunk in chunks for _ in chunk.ids]),
            positions_N=positions_N if sources_N is None else positions_N[sources_N],
            sources_N=sources_N,
            num_rows=max(rows) + 1,
            length=length,
        )

    def _sources(self, lengths: Sequence[int], width: int) -> Tensor | None:
        if min(lengths) == width:
            return None
        starts = range(0, len(lengths) * width, width)
        pairs = zip(starts, lengths, strict=True)
        return self._tensor([start + t for start, count in pairs for t in range(count)])

    def _mask(self, positions_BT: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """What the tokens at ``positions_BT`` see of ``length``, for each kind of layer."""
        dtype = next(self._module.parameters()).dtype
        keys_K = torch.arange(length, device=self.device)
        queries_B1T1 = positions_BT[:, None, :, None]
        masks: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            seen_B1TK = keys_K <= queries_B1T1
            if window is not None:
                seen_B1TK &= keys_K > queries_B1T1 - window
            hidden = torch.zeros(seen_B1TK.shape, dtype=dtype, device=self.device)
            masks[kind] = hidden.masked_fill_(~seen_B1TK, torch.finfo(dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _windows(config: dict[str, Any]) -> dict[str, int | None]:
    """How far back the layers of each kind look; None for all the way."""
    window = config.get("sliding_window")
    kinds = set(config.get("layer_types") or [SLIDING if window else FULL])
    unknown = sorted(kinds - {FULL, SLIDING})
    if unknown:
        raise ConfigError(
            f"model type {config.get('model_type')!r} has layers of kind {', '.join(unknown)}; the "
            f"transformers sampler knows {FULL} and {SLIDING}. Sample with another engine."
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}
