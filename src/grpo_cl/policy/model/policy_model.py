"""The policy: a causal language model, its tokenizer and its KL reference model.

Shapes: B sequences, T token positions.
"""

import hashlib
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.gpu_memory.constants import MAX_LOGITS
from grpo_cl.policy.chat.chat import Chat, chat_for
from grpo_cl.policy.chat.compact import CompactChat
from grpo_cl.policy.kernels.packing import Layout
from grpo_cl.policy.model.distributed import default_device
from grpo_cl.policy.model.loading import (
    ModelSource,
    load_model_config,
    load_module,
    load_tokenizer,
    resolve,
)
from grpo_cl.policy.model.logprobs import (
    LogitsFunction,
    LogprobComputer,
    PaddedBatch,
    TokenLogprobs,
    causal_model,
    predicting_positions,
)
from grpo_cl.policy.model.reference_model import AdapterReference, CopyReference, ReferenceModel
from grpo_cl.policy.model.saving import save_policy
from grpo_cl.policy.model.tabular import TabularChat, TabularConfig, TabularForCausalLM
from grpo_cl.policy.model.weights import full_tensor, reshard, restore, trainable_parameters

_POLICY = "policy."
_REFERENCE = "reference."

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of a number of bytes."""


class PolicyModel:
    """The trained model; its module is in evaluation mode except during updates."""

    def __init__(
        self,
        computer: LogprobComputer,
        tokenizer: PreTrainedTokenizerFast,
        source: ModelSource,
        config: GRPOConfig,
    ) -> None:
        self.module = computer.module
        self.tokenizer = tokenizer
        self.context = context_length(self.module.config, tokenizer, config)
        self._dialect = config.sampling.dialect
        self._source = source
        self._computer = self._active = computer
        self._reference: ReferenceModel | None = None

    @classmethod
    def build(
        cls,
        module: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerFast,
        source: ModelSource,
        config: GRPOConfig,
        *,
        device: torch.device | None = None,
    ) -> Self:
        """A policy around a module in evaluation mode, with the reference the run needs.

        ``device`` is where it will compute, by default where the module is.
        """
        policy = cls(LogprobComputer.build(module, device), tokenizer, source, config)
        if config.kl_coef > 0 or isinstance(module, PeftModel):
            policy._reference = policy._new_reference(device)
        return policy

    @classmethod
    def load(
        cls,
        config: GRPOConfig,
        *,
        device: torch.device | None = None,
        source: ModelSource | None = None,
        will_be_sharded: bool = False,
    ) -> Self:
        """The initial policy of a run, on ``device``, by default the first GPU or the CPU.

        ``source`` has its files, by default those of ``model_name_or_path``. A policy that will be
        sharded stays on the CPU, since the whole of it may not fit on the device of a shard.
        """
        source = source or resolve(config.model_name_or_path)
        tokenizer = load_tokenizer(source)
        module = load_module(source, config)
        _check_vocabulary(module, tokenizer, source)
        device = device or default_device()
        if not will_be_sharded:
            cast(Any, module).to(device)
        return cls.build(module.eval(), tokenizer, source, config, device=device)

    @cached_property
    def chat(self) -> Chat | CompactChat | TabularChat:
        """Renders conversations as tokens and parses replies."""
        if isinstance(causal_model(self.module), TabularForCausalLM):
            return TabularChat()
        return chat_for(self.tokenizer, self._dialect)

    @property
    def modules(self) -> list[PreTrainedModel | PeftModel]:
        """The modules with weights of their own: the policy's, and that of a reference copy."""
        reference = self._reference
        return [self.module, *([reference.module] if isinstance(reference, CopyReference) else [])]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.module.parameters()).device

    @property
    def num_parameters(self) -> int:
        """The number of weights, adapters included; tied ones count once."""
        return sum(weight.numel() for weight in self.module.parameters())

    @property
    def vocabulary(self) -> int:
        """The number of token ids that the model embeds: at least those of its tokenizer."""
        return int(cast(Tensor, self.module.get_input_embeddings().weight).shape[0])

    def trainable(self) -> list[tuple[str, Parameter]]:
        """The trainable parameters and their names, always in the same order."""
        return trainable_parameters(self.module)

    def logprobs(
        self,
        ids_BT: Tensor,
        attention_BT: Tensor,
        *,
        mask_BT: Tensor | None = None,
        temperature: float = 1.0,
        max_logits: int = MAX_LOGITS,
        layout: Layout | None = None,
    ) -> TokenLogprobs:
        """Log-prob and entropy of each token given the tokens before it; the first has 0.

        Sequences are padded on the right. Positions outside ``mask_BT`` are 0. At most
        ``max_logits`` logits are held at a time, in the backward pass too. The packed ``layout``
        of the same sequences is used instead of them if the model supports it.
        """
        return self._active.logprobs(
            PaddedBatch(ids_BT, attention_BT, layout),
            mask_BT=mask_BT,
            temperature=temperature,
            max_logits=max_logits,
        )

    def token_logprobs(self, ids: Sequence[int], *, temperature: float = 1.0) -> list[float]:
        """Log-probs of all tokens of one sequence but the first, in evaluation mode.

        Every rank of a sharded policy must call.
        """
        ids_BT = torch.tensor([list(ids)], device=self.device)
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                scores = self.logprobs(ids_BT, torch.ones_like(ids_BT), temperature=temperature)
        finally:
            self.module.train(was_training)
        return scores.logprobs_BT[0, 1:].tolist()

    def map_logits(
        self,
        function: LogitsFunction,
        ids_BT: Tensor,
        attention_BT: Tensor,
        *,
        mask_BT: Tensor,
        inputs: Sequence[Tensor] = (),
        layout: Layout | None = None,
    ) -> tuple[Tensor, ...]:
        """``function`` of the float32 logits that predict the tokens of ``mask_BT``.

        It is called for chunks of these tokens, with the logits and the matching rows of each
        tensor of ``inputs``.
        """

        def in_float32(logits_NV: Tensor, *chunk: Tensor) -> tuple[Tensor, ...]:
            return function(logits_NV.float(), *chunk)

        before = predicting_positions(attention_BT, mask_BT)
        return self._active.map_logits(
            in_float32, PaddedBatch(ids_BT, attention_BT, layout), before=before, inputs=inputs
        )

    @contextmanager
    def reference(self) -> Generator[None]:
        """A context in which ``logprobs`` are the reference model's, without gradients."""
        if self._reference is None:
            raise ConfigError(
                "there is no reference model with kl_coef=0; "
                "set kl_coef above 0, or call refresh_reference first"
            )
        was_training = self.module.training
        self.module.eval()  # dropout would make the reference random
        try:
            with torch.no_grad(), self._reference.logprob_computer() as self._active:
                yield
        finally:
            self._active = self._computer
            self.module.train(was_training)

    def refresh_reference(self) -> None:
        """Make the current policy the reference."""
        if self._reference is None:
            self._reference = self._new_reference()
        self._reference.refresh()

    def fingerprint(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes of the trainable weights."""
        digest = hashlib.sha256()
        for name, weight in self.trainable():
            tensor = full_tensor(weight.detach()).cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def file_checksum(self) -> str:
        """Checksum of the weights that were read from files; a new adapter is left out.

        Sums of the bits as integers: a pass over the memory, equal on every device. It notices
        another model or damage, not intent. Called before a policy is sharded or trained.
        """
        is_new = isinstance(self.module, PeftModel) and self._source.adapter_dir is None
        left_out = {name for name, _ in self.trainable()} if is_new else set[str]()
        digest = hashlib.sha256()
        for name, tensor in self.module.state_dict().items():
            if name not in left_out:
                total = int(_as_integers(tensor).sum(dtype=torch.int64))
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {total}\n".encode())
        return digest.hexdigest()

    def save(self, path: Path, *, is_main: bool = True) -> None:
        """Write a directory that transformers, or peft for an adapter, can load.

        A collective if the policy is sharded; only ``is_main`` writes.
        """
        save_policy(path, self.module, self.tokenizer, self._source, is_main=is_main)

    def state_dict(self) -> dict[str, Tensor]:
        """The trainable weights, and those of the reference once it was refreshed."""
        reshard(self.module)
        policy = {_POLICY + name: _on_cpu(weight) for name, weight in self.trainable()}
        reference = {} if self._reference is None else self._reference.weights()
        return policy | {_REFERENCE + name: weight for name, weight in reference.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a ``state_dict`` of the same run."""
        weights = _with_prefix(_POLICY, state)
        expected = {name: weight.shape for name, weight in self.trainable()}
        if {name: weight.shape for name, weight in weights.items()} != expected:
            raise CheckpointError(
                f"the saved weights ({len(weights)} tensors) do not match the policy "
                f"({len(expected)} tensors); resume with the model and lora settings of that run"
            )
        restore(self.module, weights)
        reference = _with_prefix(_REFERENCE, state)
        if reference:
            self._reference = self._reference or self._new_reference()
            self._reference.load_weights(reference)

    def _new_reference(self, device: torch.device | None = None) -> ReferenceModel:
        if isinstance(self.module, PeftModel):
            return AdapterReference(
                self.module,
                self._computer,
                has_initial_adapter=self._source.adapter_dir is not None,
            )
        return CopyReference.copy_of(self.module, device)


def _as_integers(tensor: Tensor) -> Tensor:
    """A view of the bits of a tensor's numbers."""
    return tensor.contiguous().view(_INTEGERS[tensor.dtype.itemsize])


def _on_cpu(weight: Tensor) -> Tensor:
    """An unsharded copy; the copies of all weights may not fit on the device of a shard."""
    return full_tensor(weight.detach()).to("cpu", copy=True)


def _with_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def _check_vocabulary(
    module: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerFast, source: ModelSource
) -> None:
    num_embeddings = cast(Tensor, module.get_input_embeddings().weight).shape[0]
    if len(tokenizer) > num_embeddings:
        raise ConfigError(
            f"{source.name} embeds {num_embeddings} tokens and its tokenizer has {len(tokenizer)}; "
            "they belong to different models"
        )


class PromptFormat(NamedTuple):
    """How a policy reads a conversation; needs its tokenizer and not its weights."""

    chat: Chat | CompactChat | TabularChat
    context: int
    """Maximum tokens of an episode."""

    @classmethod
    def load(cls, config: GRPOConfig) -> Self:
        """The format of the run's initial policy."""
        source = resolve(config.model_name_or_path)
        tokenizer, settings = load_tokenizer(source), load_model_config(source)
        is_tabular = isinstance(settings, TabularConfig)
        chat = TabularChat() if is_tabular else chat_for(tokenizer, config.sampling.dialect)
        return cls(chat, context_length(settings, tokenizer, config))


def context_length(
    settings: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, config: GRPOConfig
) -> int:
    """Maximum tokens of an episode: the model's own, or a lower ``sampling.max_context``."""
    # Architectures without a maximum length do not have this attribute.
    own = getattr(settings.get_text_config(), "max_position_embeddings", None)
    return min(int(own or tokenizer.model_max_length), config.sampling.max_context or sys.maxsize)
