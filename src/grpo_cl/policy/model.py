"""The policy: a causal language model, its tokenizer, and the reference it is held to.

Shapes: B sequences, T token positions.
"""

import hashlib
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.policy.chat import Chat, chat_for
from grpo_cl.policy.compact import CompactChat
from grpo_cl.policy.loading import Source, load_module, load_tokenizer, resolve
from grpo_cl.policy.packing import Layout
from grpo_cl.policy.ranks import default_device
from grpo_cl.policy.reference import (
    AdapterReference,
    CopyReference,
    Reference,
    restore,
    snapshot,
    trainable,
    whole,
)
from grpo_cl.policy.saving import save_policy
from grpo_cl.policy.scoring import (
    MAX_LOGITS,
    RowFunction,
    Rows,
    Scorer,
    Scores,
    causal_model,
    places_before,
)
from grpo_cl.policy.tabular import TabularChat, TabularForCausalLM

_POLICY = "policy."
_REFERENCE = "reference."


class PolicyModel:
    """What is trained; its module is handed over in evaluation mode."""

    def __init__(
        self,
        module: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerFast,
        source: Source,
        config: GRPOConfig,
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.context = _context(module, tokenizer, config)
        self._dialect = config.sampling.dialect
        self._source = source
        self._scorer = self._active = Scorer(module)
        self._reference: Reference | None = None
        if config.kl_coef > 0 or isinstance(module, PeftModel):
            self._reference = self._new_reference()

    @classmethod
    def load(cls, config: GRPOConfig, *, device: torch.device | None = None) -> Self:
        """The policy a run starts from, on ``device`` or else on the first GPU or the CPU."""
        source = resolve(config.model_name_or_path)
        tokenizer = load_tokenizer(source)
        module = load_module(source, config)
        _check_vocabulary(module, tokenizer, source)
        return cls(_placed(module, device or default_device()), tokenizer, source, config)

    @cached_property
    def chat(self) -> Chat | CompactChat | TabularChat:
        """How conversations become tokens and replies become messages."""
        if isinstance(causal_model(self.module), TabularForCausalLM):
            return TabularChat()
        return chat_for(self.tokenizer, self._dialect)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    @property
    def num_parameters(self) -> int:
        """All weights, those of an adapter too; tied ones count once."""
        return sum(weight.numel() for weight in self.module.parameters())

    def trainable(self) -> list[tuple[str, Parameter]]:
        """The parameters that learn and their names, always in the same order."""
        return trainable(self.module)

    def logprobs(
        self,
        ids_BT: Tensor,
        attention_BT: Tensor,
        *,
        mask_BT: Tensor | None = None,
        temperature: float = 1.0,
        max_logits: int = MAX_LOGITS,
        layout: Layout | None = None,
    ) -> Scores:
        """Log-probability and entropy of each token given the ones before; the first is 0.

        Rows are padded on the right. Only positions of ``mask_BT`` are scored, the others are 0,
        and no more than ``max_logits`` logits are held at a time, in the backward pass too. Where
        a ``layout`` of the rows is given and the model allows it, that is read instead of them.
        """
        return self._active.score(
            Rows(ids_BT, attention_BT, layout),
            mask_BT=mask_BT,
            temperature=temperature,
            max_logits=max_logits,
        )

    def map_logits(
        self,
        function: RowFunction,
        ids_BT: Tensor,
        attention_BT: Tensor,
        *,
        mask_BT: Tensor,
        given: Sequence[Tensor] = (),
        layout: Layout | None = None,
    ) -> tuple[Tensor, ...]:
        """``function`` of the logits that predict the tokens of ``mask_BT``, in chunks of rows.

        They are float32. Each tensor of ``given`` has a row for each of them, which the function
        gets too.
        """

        def precisely(logits_NV: Tensor, *part: Tensor) -> tuple[Tensor, ...]:
            return function(logits_NV.float(), *part)

        before = places_before(attention_BT, mask_BT)
        return self._active.map_rows(
            precisely, Rows(ids_BT, attention_BT, layout), before=before, given=given
        )

    @contextmanager
    def reference(self) -> Generator[None]:
        """Under it ``logprobs`` are the reference policy's, without gradient."""
        if self._reference is None:
            raise ConfigError(
                "no reference policy is kept with kl_coef=0; "
                "set kl_coef above 0, or call refresh_reference first"
            )
        was_training = self.module.training
        self.module.eval()  # a reference with dropout would be another one each time
        try:
            with torch.no_grad(), self._reference.scorer() as self._active:
                yield
        finally:
            self._active = self._scorer
            self.module.train(was_training)

    def refresh_reference(self) -> None:
        """Make today's policy the reference from now on."""
        if self._reference is None:
            self._reference = self._new_reference()
        self._reference.refresh()

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes and bits of the weights that learn."""
        digest = hashlib.sha256()
        for name, weight in self.trainable():
            tensor = whole(weight.detach()).cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: Path, *, is_main: bool = True) -> None:
        """Write a directory that transformers, or peft for an adapter, loads unchanged.

        Every rank of a sharded policy must call; only ``is_main`` writes.
        """
        save_policy(path, self.module, self.tokenizer, self._source, is_main=is_main)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights that learn, and those of the reference once it was refreshed."""
        own = {_POLICY + name: weight for name, weight in snapshot(self.module).items()}
        kept = {} if self._reference is None else self._reference.weights()
        return own | {_REFERENCE + name: weight for name, weight in kept.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a ``state_dict`` of the same run."""
        weights = _under(_POLICY, state)
        expected = {name: weight.shape for name, weight in self.trainable()}
        if {name: weight.shape for name, weight in weights.items()} != expected:
            raise CheckpointError(
                f"the saved weights ({len(weights)} tensors) do not fit the policy "
                f"({len(expected)} tensors); resume with the model and lora settings of that run"
            )
        restore(self.module, weights)
        kept = _under(_REFERENCE, state)
        if kept:
            self._reference = self._reference or self._new_reference()
            self._reference.load_weights(kept)

    def _new_reference(self) -> Reference:
        if isinstance(self.module, PeftModel):
            starts_adapted = self._source.adapter_dir is not None
            return AdapterReference(self.module, self._scorer, starts_adapted=starts_adapted)
        return CopyReference(self.module)


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def _placed(
    module: PreTrainedModel | PeftModel, device: torch.device
) -> PreTrainedModel | PeftModel:
    cast(Any, module).to(device)
    return module.eval()


def _check_vocabulary(
    module: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerFast, source: Source
) -> None:
    rows = cast(Tensor, module.get_input_embeddings().weight).shape[0]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"{source.name} embeds {rows} tokens and its tokenizer has {len(tokenizer)}; "
            "they belong to different models"
        )


def _context(
    module: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerFast, config: GRPOConfig
) -> int:
    settings = module.config.get_text_config()
    # Some architectures have no limit of their own and then no such attribute.
    own = getattr(settings, "max_position_embeddings", None) or tokenizer.model_max_length
    return min(int(own), config.sampling.max_context or sys.maxsize)
