"""Log-probabilities of given tokens, without ever holding all logits.

Shapes: B sequences, T token positions, N positions that are scored, D the hidden size, V the
vocabulary. The logits of a batch, B·T·V numbers, are by far the largest tensor of a pass, and most
positions (prompts, tool results, padding) carry no loss.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from peft import PeftModel
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from grpo_cl.errors import ConfigError
from grpo_cl.policy import attention
from grpo_cl.policy.layers import FusedLayers, can_be_fused, unfuse
from grpo_cl.policy.packing import Layout, pack
from grpo_cl.policy.siblings import Family
from grpo_cl.policy.triton_here import has_triton, kernels_of

MAX_LOGITS = 2**26
"""Logits held at once: 256 MB in float32."""

DROPOUT = ("attention_dropout", "attn_pdrop")
"""What models call the share of attention weights that they drop while they learn."""

RowFunction = Callable[..., tuple[Tensor, ...]]
"""Logits of N positions, and what else belongs to them, to tensors of N rows."""


Places = tuple[Tensor, Tensor]
"""Rows and positions of N tokens."""


class Scores(NamedTuple):
    """What a policy thinks of tokens; 0 where nothing was scored."""

    logprobs_BT: Tensor
    """Of each token given the ones before it."""
    entropy_BT: Tensor
    """Of the distribution the token was drawn from, in nats; carries no gradient."""


class Rows(NamedTuple):
    """Sequences to be read, padded on the right."""

    ids_BT: Tensor
    attention_BT: Tensor
    """1 on tokens, 0 on padding."""
    layout: Layout | None = None
    """The same without padding and repetition, read instead where that can be done."""


class Scorer:
    """Scores tokens with a module, whose head is applied to chunks of positions."""

    def __init__(self, module: PreTrainedModel | PeftModel) -> None:
        self._module = module
        self._causal = causal_model(module)
        self._head = Head(self._causal)
        if self._causal.config._attn_implementation == "sdpa":
            attention.register()
            self._causal.config._attn_implementation = attention.NAME
        unfuse(self._causal)
        self._is_split = True
        self._is_split = self._head_is_exact()
        self._can_pack = True
        self._can_pack = self._is_split and self._packing_is_exact()
        if self._can_pack and self._causal.device.type == "cuda" and can_be_fused(self._causal):
            self._fuse()

    def score(
        self, rows: Rows, *, mask_BT: Tensor | None, temperature: float, max_logits: int
    ) -> Scores:
        """Score the positions of ``mask_BT``, or all that have a token before them."""
        if temperature <= 0:
            raise ConfigError(
                f"temperature {temperature} leaves no distribution to score; it must be above 0"
            )
        before = places_before(rows.attention_BT, mask_BT)
        places = before[0], before[1] + 1
        found = self.map_rows(
            partial(_score_rows, temperature=temperature),
            rows,
            before=before,
            given=(rows.ids_BT[places],),
            max_logits=max_logits,
        )
        empty_BT = torch.zeros(rows.ids_BT.shape, device=rows.ids_BT.device)
        return Scores(*(empty_BT.index_put(places, values_N) for values_N in found))

    def map_rows(
        self,
        function: RowFunction,
        rows: Rows,
        *,
        before: Places,
        given: Sequence[Tensor] = (),
        max_logits: int = MAX_LOGITS,
    ) -> tuple[Tensor, ...]:
        """``function`` of the logits at N places, each before the token it predicts, in chunks.

        It is called with the logits of some positions and the same rows of each tensor of
        ``given``, again in the backward pass; the chunks of what it returns are joined.
        """
        rows_ND = self._read(rows, before)
        head = self._head if self._is_split else _identity
        size = max(1, max_logits // self._head.width)

        def work(rows: Tensor, *part: Tensor) -> tuple[Tensor, ...]:
            return function(head(rows), *part)

        parts = [
            cast(tuple[Tensor, ...], checkpoint(work, *part, use_reentrant=False))
            for part in zip(*(column.split(size) for column in (rows_ND, *given)), strict=True)
        ]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _read(self, rows: Rows, places: Places) -> Tensor:
        """Hidden states at the places; logits where the head is not apart."""
        ids_BT, attention_BT, layout = rows
        if not self._is_split:
            output = self._module(ids_BT, attention_mask=attention_BT, use_cache=False)
            return output.logits[places]
        if layout is None or not self._can_pack:
            # No mask is given: rows are padded on the right, where no token that counts looks.
            return self._hidden(ids_BT)[places]
        places_N = layout.places_BT[places]
        # A mask of four dimensions keeps transformers from guessing one from the positions.
        options = {"attention_mask": layout.ids_1N[None, None], "layout": layout}
        hidden_1ND = self._hidden(layout.ids_1N, position_ids=layout.positions_1N, **options)
        return hidden_1ND[0][places_N]

    def _hidden(self, ids_BT: Tensor, **options: Any) -> Tensor:
        # The whole module is called, since a sharded one gathers its weights only then; the hook
        # takes the hidden states on their way to a head that sees one position.
        taken: list[Tensor] = []

        def take(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            taken.append(output[0])

        handle = self._causal.base_model.register_forward_hook(take)
        try:
            self._module(ids_BT, logits_to_keep=1, use_cache=False, **options)
        finally:
            handle.remove()
        (hidden_BTD,) = taken
        return hidden_BTD

    def _fuse(self) -> None:
        """Read packed rows with fused kernels, if that gives what the layers give."""
        if not FusedLayers(self._causal).are_exact():
            unfuse(self._causal)

    @torch.no_grad()
    def _packing_is_exact(self) -> bool:
        """Whether the model lets rows be packed: some look at a window, or have their own way."""
        config = self._causal.config
        if config._attn_implementation != attention.NAME or not sees_all(config):
            return False
        sequences = [[number % self._head.width for number in (1, 2, 3, last)] for last in (4, 5)]
        ids_BT = torch.tensor(sequences, device=self._causal.device)
        layout = pack(sequences, [Family((0, 1), 3)]).to(ids_BT.device)
        rows = Rows(ids_BT, torch.ones_like(ids_BT))
        before = places_before(rows.attention_BT, None)
        expected = self._read(rows, before)
        return attention.are_alike(self._read(rows._replace(layout=layout), before), expected)

    @torch.no_grad()
    def _head_is_exact(self) -> bool:
        """Whether hidden states and head give the module's own logits; some scale them after."""
        ids_BT = torch.arange(4, device=self._causal.device)[None] % self._head.width
        attention_BT = torch.ones_like(ids_BT)
        expected = self._causal(ids_BT, attention_mask=attention_BT, use_cache=False).logits
        return attention.are_alike(self._head(self._hidden(ids_BT)), expected)


class Head:
    """What turns hidden states into logits: the output embedding, a scale, a soft cap."""

    def __init__(self, causal: PreTrainedModel) -> None:
        settings = causal.config.get_text_config().to_dict()
        self._linear = cast(torch.nn.Module, causal.get_output_embeddings())
        self._scale = float(settings.get("logit_scale") or 1) / float(
            settings.get("logits_scaling") or 1
        )
        self._cap = settings.get("final_logit_softcapping")
        self.width = int(settings["vocab_size"])

    def __call__(self, rows_ND: Tensor) -> Tensor:
        """The logits of each row."""
        logits_NV = self._linear(rows_ND)
        if self._scale != 1:
            logits_NV = logits_NV * self._scale
        if self._cap is not None:
            logits_NV = torch.tanh(logits_NV / self._cap) * self._cap
        return logits_NV


def causal_model(module: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The language model inside its adapters, if it has any."""
    if isinstance(module, PeftModel):
        return cast(PreTrainedModel, module.get_base_model())
    return module


def sees_all(config: PreTrainedConfig) -> bool:
    """Whether every layer looks at all tokens before; a window has no place in a packed row.

    Nor has dropout: what is seen in two looks cannot be dropped as in one.
    """
    settings = config.get_text_config().to_dict()
    if any(settings.get(name) for name in DROPOUT):
        return False
    kinds = set(settings.get("layer_types") or ["full_attention"])
    return kinds == {"full_attention"} and not settings.get("sliding_window")


def _identity(rows_NV: Tensor) -> Tensor:
    return rows_NV


def scored_positions(attention_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Of the positions after the first: tokens of the mask, or all, with a token before them."""
    wanted_BT = attention_BT[:, 1:].bool() & attention_BT[:, :-1].bool()
    return wanted_BT if mask_BT is None else wanted_BT & mask_BT[:, 1:].bool()


def places_before(attention_BT: Tensor, mask_BT: Tensor | None) -> Places:
    """The places before ``scored_positions``; found before a pass, as it waits for a GPU."""
    rows_N, before_N = scored_positions(attention_BT, mask_BT).nonzero(as_tuple=True)
    return rows_N, before_N


def _score_rows(raw_NV: Tensor, targets_N: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    if raw_NV.is_cuda and has_triton():
        return kernels_of("fused_scores").scored(raw_NV, targets_N, temperature)
    logits_NV = raw_NV.float() / temperature
    normaliser_N = logits_NV.logsumexp(-1)
    logprobs_N = logits_NV.gather(-1, targets_N[:, None])[:, 0] - normaliser_N
    with torch.no_grad():
        chances_NV = (logits_NV - normaliser_N[:, None]).exp()
        entropy_N = normaliser_N - (chances_NV * logits_NV).sum(-1)
    return logprobs_N, entropy_N
