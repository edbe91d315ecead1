"""Log-probabilities of given tokens, computed without holding all logits at once.

Shapes: B sequences, T token positions, N scored positions, D hidden size, V vocabulary size. The
logits of a batch, B·T·V values, are by far the largest tensor of a forward pass, and most positions
(prompts, tool results, padding) carry no loss.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, cast

import torch
from peft import PeftModel
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from grpo_cl.errors import ConfigError
from grpo_cl.gpu_memory.constants import MAX_LOGITS
from grpo_cl.policy.kernels import attention_dispatch as attention
from grpo_cl.policy.kernels.fused_blocks import (
    fuse_blocks,
    fused_blocks_are_exact,
    unfuse_blocks,
)
from grpo_cl.policy.kernels.llama_block import supports_fused_blocks
from grpo_cl.policy.kernels.packing import Layout, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup
from grpo_cl.policy.kernels.triton_support import has_triton, load_kernels

DROPOUT_SETTINGS = ("attention_dropout", "attn_pdrop")
"""Names of the attention dropout rate in model configurations."""

LogitsFunction = Callable[..., tuple[Tensor, ...]]
"""Maps the logits of N positions, and further inputs with N rows, to tensors with N rows."""

TokenIndex = tuple[Tensor, Tensor]
"""Sequence numbers and positions of N tokens, as an index into a tensor of shape BT."""


class TokenLogprobs(NamedTuple):
    """Log-probs and entropies per token; 0 at positions that were not scored."""

    logprobs_BT: Tensor
    """Of each token given the tokens before it."""
    entropy_BT: Tensor
    """Of the distribution that predicts the token, in nats; without gradient."""


class PaddedBatch(NamedTuple):
    """Token sequences, padded on the right."""

    ids_BT: Tensor
    attention_BT: Tensor
    """1 on tokens, 0 on padding."""
    layout: Layout | None = None
    """The same sequences packed, without padding and repeated prefixes; used if supported."""


class LogprobComputer:
    """Computes log-probs with a module, applying its LM head to chunks of positions."""

    def __init__(
        self, module: PreTrainedModel | PeftModel, *, has_separate_head: bool, can_pack: bool
    ) -> None:
        self.module = module
        self._causal = causal_model(module)
        self._head = LMHead(self._causal)
        self._has_separate_head = has_separate_head
        self._can_pack = can_pack
        self._max_packed = plain_causal_length(self._causal.config)

    @classmethod
    def build(cls, module: PreTrainedModel | PeftModel, device: torch.device | None = None) -> Self:
        """Choose what the module supports, by comparing small forward passes.

        Sets the attention implementation of the module, and fuses its blocks if ``device``, by
        default that of the module, is a GPU.
        """
        causal = causal_model(module)
        if causal.config._attn_implementation == "sdpa":
            attention.register()
            causal.config._attn_implementation = attention.NAME
        unfuse_blocks(causal)
        probe = cls(module, has_separate_head=True, can_pack=True)
        has_separate_head = probe._head_is_exact()
        can_pack = has_separate_head and probe._packing_is_exact()
        device = device or causal.device
        if can_pack and device.type == "cuda" and supports_fused_blocks(causal):
            fuse_blocks(causal)
            if not fused_blocks_are_exact(causal, device):
                unfuse_blocks(causal)
        return cls(module, has_separate_head=has_separate_head, can_pack=can_pack)

    def logprobs(
        self, batch: PaddedBatch, *, mask_BT: Tensor | None, temperature: float, max_logits: int
    ) -> TokenLogprobs:
        """Log-probs at the positions of ``mask_BT``, or at all with a token before them."""
        if temperature <= 0:
            raise ConfigError(
                f"temperature {temperature} leaves no distribution to score; it must be above 0"
            )
        before = predicting_positions(batch.attention_BT, mask_BT)
        targets = before[0], before[1] + 1
        values = self.map_logits(
            partial(_token_logprobs, temperature=temperature),
            batch,
            before=before,
            inputs=(batch.ids_BT[targets],),
            max_logits=max_logits,
        )
        zeros_BT = torch.zeros(batch.ids_BT.shape, device=batch.ids_BT.device)
        return TokenLogprobs(*(zeros_BT.index_put(targets, values_N) for values_N in values))

    def map_logits(
        self,
        function: LogitsFunction,
        batch: PaddedBatch,
        *,
        before: TokenIndex,
        inputs: Sequence[Tensor] = (),
        max_logits: int = MAX_LOGITS,
    ) -> tuple[Tensor, ...]:
        """``function`` of the logits at N positions, each before the token it predicts.

        It is called for chunks of the positions, with their logits and their rows of each tensor
        of ``inputs``, and again in the backward pass; the outputs are concatenated.
        """
        rows_ND = self._forward(batch, before)
        head = self._head if self._has_separate_head else _identity
        size = max(1, max_logits // self._head.vocab_size)

        def apply(rows: Tensor, *chunk: Tensor) -> tuple[Tensor, ...]:
            return function(head(rows), *chunk)

        outputs = [
            cast(tuple[Tensor, ...], checkpoint(apply, *chunk, use_reentrant=False))
            for chunk in zip(*(column.split(size) for column in (rows_ND, *inputs)), strict=True)
        ]
        return tuple(torch.cat(column) for column in zip(*outputs, strict=True))

    def _forward(self, batch: PaddedBatch, positions: TokenIndex) -> Tensor:
        """Hidden states at the positions; logits if the head cannot be applied separately."""
        ids_BT, attention_BT, layout = batch
        if not self._has_separate_head:
            output = self.module(ids_BT, attention_mask=attention_BT, use_cache=False)
            return output.logits[positions]
        if layout is None or not self._can_pack or ids_BT.shape[1] > self._max_packed:
            # Without a mask: padding is on the right, so no token attends to it.
            return self._hidden_states(ids_BT)[positions]
        index_N = layout.gather_index_BT[positions]
        # A 4D mask keeps transformers from deriving one from the position ids.
        options = {"attention_mask": layout.ids_1N[None, None], "layout": layout}
        hidden_1ND = self._hidden_states(layout.ids_1N, position_ids=layout.positions_1N, **options)
        return hidden_1ND[0][index_N]

    def _hidden_states(self, ids_BT: Tensor, **options: Any) -> Tensor:
        # The root module is called, since FSDP unshards its weights only then; a hook captures the
        # hidden states before the head, which is applied to one position.
        captured: list[Tensor] = []

        def capture(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            captured.append(output[0])

        handle = self._causal.base_model.register_forward_hook(capture)
        try:
            self.module(ids_BT, logits_to_keep=1, use_cache=False, **options)
        finally:
            handle.remove()
        (hidden_BTD,) = captured
        return hidden_BTD

    @torch.no_grad()
    def _packing_is_exact(self) -> bool:
        """Whether packed sequences give the same hidden states as padded ones."""
        vocab_size = self._head.vocab_size
        ends = (3, 4), (3, 5), (6, 7)
        sequences = [[number % vocab_size for number in (1, 2, *end)] for end in ends]
        ids_BT = torch.tensor(sequences, device=self._causal.device)
        is_ours = self._causal.config._attn_implementation == attention.NAME
        if not is_ours or ids_BT.shape[1] > self._max_packed:
            return False
        group = PrefixGroup((0, 1, 2), 2, inner=(PrefixGroup((0, 1), 3),))
        layout = pack(sequences, [group]).to(ids_BT.device)
        batch = PaddedBatch(ids_BT, torch.ones_like(ids_BT))
        before = predicting_positions(batch.attention_BT, None)
        expected = self._forward(batch, before)
        packed = self._forward(batch._replace(layout=layout), before)
        return attention.allclose_relative(packed, expected)

    @torch.no_grad()
    def _head_is_exact(self) -> bool:
        """Whether hidden states and head give the module's logits; some models rescale them."""
        ids_BT = torch.arange(4, device=self._causal.device)[None] % self._head.vocab_size
        attention_BT = torch.ones_like(ids_BT)
        expected = self._causal(ids_BT, attention_mask=attention_BT, use_cache=False).logits
        return attention.allclose_relative(self._head(self._hidden_states(ids_BT)), expected)


class LMHead:
    """Maps hidden states to logits: output embedding, scale, soft cap."""

    def __init__(self, causal: PreTrainedModel) -> None:
        settings = causal.config.get_text_config().to_dict()
        self._linear = cast(torch.nn.Module, causal.get_output_embeddings())
        self._scale = float(settings.get("logit_scale") or 1) / float(
            settings.get("logits_scaling") or 1
        )
        self._cap = settings.get("final_logit_softcapping")
        self.vocab_size = int(settings["vocab_size"])

    def __call__(self, rows_ND: Tensor) -> Tensor:
        """The logits of each row."""
        logits_NV = self._linear(rows_ND)
        if self._scale != 1:
            logits_NV = logits_NV * self._scale
        if self._cap is not None:
            logits_NV = torch.tanh(logits_NV / self._cap) * self._cap
        return logits_NV


def causal_model(module: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The language model without its adapters, if it has any."""
    if isinstance(module, PeftModel):
        return cast(PreTrainedModel, module.get_base_model())
    return module


def plain_causal_length(config: PreTrainedConfig) -> int:
    """Up to which length every layer attends to all earlier tokens of a sequence, without dropout.

    Packing supports nothing else; attention dropout cannot be split over two attention calls.
    """
    settings = config.get_text_config().to_dict()
    layer_types = set(settings.get("layer_types") or ["full_attention"])
    has_dropout = any(settings.get(name) for name in DROPOUT_SETTINGS)
    if has_dropout or not layer_types <= {"full_attention", "sliding_attention"}:
        return 0
    return settings.get("sliding_window") or sys.maxsize


def _identity(rows_NV: Tensor) -> Tensor:
    return rows_NV


def scored_positions(attention_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Mask over positions 1…T−1: tokens with a token before them, in ``mask_BT`` if given."""
    scored_BT = attention_BT[:, 1:].bool() & attention_BT[:, :-1].bool()
    return scored_BT if mask_BT is None else scored_BT & mask_BT[:, 1:].bool()


def predicting_positions(attention_BT: Tensor, mask_BT: Tensor | None) -> TokenIndex:
    """The positions whose logits predict the scored tokens; synchronises with the device."""
    rows_N, before_N = scored_positions(attention_BT, mask_BT).nonzero(as_tuple=True)
    return rows_N, before_N


def _token_logprobs(
    raw_NV: Tensor, targets_N: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    if raw_NV.is_cuda and has_triton():
        return load_kernels("logprobs").logprobs_and_entropy(raw_NV, targets_N, temperature)
    logits_NV = raw_NV.float() / temperature
    lse_N = logits_NV.logsumexp(-1)
    logprobs_N = logits_NV.gather(-1, targets_N[:, None])[:, 0] - lse_N
    with torch.no_grad():
        probs_NV = (logits_NV - lse_N[:, None]).exp()
        entropy_N = lse_N - (probs_NV * logits_NV).sum(-1)
    return logprobs_N, entropy_N
