"""A tabular policy for the toy domains, whose updates can be computed by hand.

It is a softmax over options whose logits are linear in the features of the signal: one feature
shared by all signals, and one per signal. The next domain overwrites the shared weights; the
weights of a signal's own feature stay.

Shapes: B sequences, T token positions, F features, O options, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from typing_extensions import override

from grpo_cl.envs.toy.domain import CHOOSE, OPTIONS, signal_names, signal_of
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall

TABULAR = "tabular"
CONTEXT = 16
SHARED_FEATURE = 2.0
"""The value of the shared feature; that of a signal's own feature is 1."""
MASKED_LOGIT = -1e4
"""The logit of a token that is not an option; its probability is exactly 0."""


class TabularConfig(PretrainedConfig):
    """The configuration of the policy for transformers."""

    model_type = TABULAR

    def __init__(self, **settings: Any) -> None:
        self.vocab_size = len(OPTIONS) + len(signal_names())
        self.hidden_size = len(OPTIONS)
        self.max_position_embeddings = CONTEXT
        super().__init__(**settings)


class SignalEmbedding(nn.Module):
    """Features of tokens as a fixed embedding; options have none."""

    def __init__(self) -> None:
        super().__init__()
        num_signals, num_options = len(signal_names()), len(OPTIONS)
        weight_VF = torch.zeros(num_options + num_signals, 1 + num_signals)
        weight_VF[num_options:, 0] = SHARED_FEATURE
        weight_VF[num_options:, 1:] = torch.eye(num_signals)
        self.register_buffer("weight", weight_VF)

    @override
    def forward(self, ids_BT: Tensor) -> Tensor:
        return cast(Tensor, self.weight)[ids_BT]


class OptionHead(nn.Module):
    """Pads the logits of the options to the vocabulary, in which options come first."""

    def __init__(self) -> None:
        super().__init__()
        self.num_others = len(signal_names())

    @override
    def forward(self, logits_BTO: Tensor) -> Tensor:
        return nn.functional.pad(logits_BTO, (0, self.num_others), value=MASKED_LOGIT)


class TabularModel(PreTrainedModel):
    """Features and one trainable matrix."""

    config_class = TabularConfig
    _supports_sdpa = True  # it has no attention, so every implementation fits

    def __init__(self, config: TabularConfig) -> None:
        super().__init__(config)
        self.signals = SignalEmbedding()
        self.choice = nn.Linear(1 + len(signal_names()), len(OPTIONS), bias=False)
        nn.init.zeros_(self.choice.weight)
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        """Keep the zeros: the untrained policy is uniform."""

    @override
    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        hidden_BTO = self.choice(self.signals(input_ids).to(self.dtype))
        return BaseModelOutput(last_hidden_state=hidden_BTO)


class TabularForCausalLM(PreTrainedModel, GenerationMixin):  # peft requires the mixin
    """The policy as a language model from a signal to an option."""

    config_class = TabularConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: TabularConfig) -> None:
        super().__init__(config)
        self.model = TabularModel(config)
        self.lm_head = OptionHead()
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        """Keep the zeros."""

    @override
    def get_input_embeddings(self) -> nn.Module:
        return self.model.signals

    @override
    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    @override
    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        hidden_BTO = self.model(input_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden_BTO))


def new_tabular(dtype: str) -> TabularForCausalLM:
    """An untrained, uniform policy."""
    module: Any = TabularForCausalLM(TabularConfig())
    module.name_or_path = TABULAR  # the base model that an adapter records
    return module.to(getattr(torch, dtype))


def register() -> None:
    """Register the model type with transformers, so that saved policies load."""
    AutoConfig.register(TABULAR, TabularConfig, exist_ok=True)
    AutoModelForCausalLM.register(TabularConfig, TabularForCausalLM, exist_ok=True)


def tabular_tokenizer() -> PreTrainedTokenizerFast:
    """One token per option, then one per signal."""
    words = {name: number for number, name in enumerate([*OPTIONS, *signal_names()])}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token=OPTIONS[0])),
        unk_token=OPTIONS[0],
        pad_token=OPTIONS[0],
    )


class TabularChat:
    """The chat of the tabular policy; see ``Chat`` for the meaning of the methods."""

    stop_ids = tuple(range(len(OPTIONS)))

    def __init__(self) -> None:
        self._ids = {name: id for id, name in enumerate(signal_names(), len(OPTIONS))}

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """The token of the signal."""
        del messages
        return [self._ids[signal_of(scene.task)]]

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """No tokens: there is one reply."""
        del messages, ended
        return []

    def parse_reply(self, ids: Sequence[int]) -> Message:
        """The tool call of the chosen option."""
        call = ToolCall(name=CHOOSE, arguments={"option": OPTIONS[ids[0]]})
        return Message(role="assistant", tool_calls=(call,))
