"""A policy for the toy domains whose learning can be worked out by hand.

It is a softmax over options whose logits are linear in the features of the signal: one feature
that all signals share, and one that is a signal's own. What the shared weights learn in one domain
the next overwrites; the others stay.

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

from grpo_cl.domains.base import DONE
from grpo_cl.domains.toy import CHOOSE, OPTIONS, signal_names, signal_of
from grpo_cl.policy.actor import PolicyActor, PolicyAgent
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, TokenTrace, ToolCall

TABULAR = "tabular"
CONTEXT = 16
SHARED = 2.0
"""The value of the feature that all signals have; their own has 1."""
NEVER = -1e4
"""The logit of a token that is no option; its probability is exactly 0."""


class TabularConfig(PretrainedConfig):
    """The sizes of the policy, in the words of transformers."""

    model_type = TABULAR

    def __init__(self, **settings: Any) -> None:
        self.vocab_size = len(OPTIONS) + len(signal_names())
        self.hidden_size = len(OPTIONS)
        self.max_position_embeddings = CONTEXT
        super().__init__(**settings)


class Signals(nn.Module):
    """The features of tokens; an option has none."""

    def __init__(self) -> None:
        super().__init__()
        num_signals, num_options = len(signal_names()), len(OPTIONS)
        weight_VF = torch.zeros(num_options + num_signals, 1 + num_signals)
        weight_VF[num_options:, 0] = SHARED
        weight_VF[num_options:, 1:] = torch.eye(num_signals)
        self.register_buffer("weight", weight_VF)

    @override
    def forward(self, ids_BT: Tensor) -> Tensor:
        return cast(Tensor, self.weight)[ids_BT]


class Vocabulary(nn.Module):
    """The logits of the options as those of all tokens; options come first."""

    def __init__(self) -> None:
        super().__init__()
        self.num_others = len(signal_names())

    @override
    def forward(self, logits_BTO: Tensor) -> Tensor:
        return nn.functional.pad(logits_BTO, (0, self.num_others), value=NEVER)


class TabularModel(PreTrainedModel):
    """Features and the one matrix that learns."""

    config_class = TabularConfig
    _supports_sdpa = True  # it attends to nothing, so any attention will do

    def __init__(self, config: TabularConfig) -> None:
        super().__init__(config)
        self.signals = Signals()
        self.choice = nn.Linear(1 + len(signal_names()), len(OPTIONS), bias=False)
        nn.init.zeros_(self.choice.weight)
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        """Leave the zeros: before it learns, the policy prefers nothing."""

    @override
    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        hidden_BTO = self.choice(self.signals(input_ids).to(self.dtype))
        return BaseModelOutput(last_hidden_state=hidden_BTO)


class TabularForCausalLM(PreTrainedModel, GenerationMixin):  # peft asks for the latter
    """The policy as a language model that reads a signal and writes an option."""

    config_class = TabularConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: TabularConfig) -> None:
        super().__init__(config)
        self.model = TabularModel(config)
        self.lm_head = Vocabulary()
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        """Leave the zeros."""

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
    """A policy that prefers nothing."""
    module: Any = TabularForCausalLM(TabularConfig())
    module.name_or_path = TABULAR  # what an adapter records as its base
    return module.to(getattr(torch, dtype))


def register() -> None:
    """Make saved tabular policies known to transformers."""
    AutoConfig.register(TABULAR, TabularConfig, exist_ok=True)
    AutoModelForCausalLM.register(TabularConfig, TabularForCausalLM, exist_ok=True)


def tabular_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each option, then one for each signal."""
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
        """The signal."""
        del messages
        return [self._ids[signal_of(scene.task)]]

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Nothing: there is one reply."""
        del messages, ended
        return []

    def read(self, ids: Sequence[int]) -> Message:
        """The choice."""
        call = ToolCall(name=CHOOSE, arguments={"option": OPTIONS[ids[0]]})
        return Message(role="assistant", tool_calls=(call,))


class TabularActor:
    """Plays with a policy that has only one thing to say."""

    def __init__(self, chooser: PolicyActor) -> None:
        self._chooser = chooser

    def join(self, scene: Scene) -> "TabularAgent":
        """An agent for one episode."""
        return TabularAgent(self._chooser.join(scene))


class TabularAgent:
    """Lets the policy choose, and then ends the episode by itself."""

    def __init__(self, chooser: PolicyAgent) -> None:
        self._chooser = chooser
        self._has_chosen = False

    async def act(self, messages: Sequence[Message]) -> Message:
        """The choice, or the end."""
        if self._has_chosen:
            return Message(role="assistant", tool_calls=(ToolCall(id=DONE, name=DONE),))
        self._has_chosen = True
        return await self._chooser.act(messages)

    def trace(self) -> TokenTrace:
        """The signal and the option."""
        return self._chooser.trace()
