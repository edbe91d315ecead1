"""A random Llama of a few thousand weights, and trajectories to train it on."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.model.loading import ModelSource
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.types import (
    Reward,
    Task,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
    UserScenario,
)

torch.set_num_threads(1)  # at this size threads only add overhead

VOCABULARY = 64
TASK = Task(id="toy", domain="toy", user_scenario=UserScenario(instructions=""))

Batch = tuple[list[TrajectoryGroup], list[list[float]]]


def settings(**changes: Any) -> GRPOConfig:
    defaults: dict[str, Any] = {
        "model_dtype": "float32",
        "temperature": 1.0,
        "kl_coef": 0.0,
        "learning_rate": 1e-3,
    }
    return GRPOConfig(**{**defaults, **changes})


def tiny_policy(config: GRPOConfig, *, tied: bool = False) -> PolicyModel:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token="w0"
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = tiny_module(config.model_dtype, tied=tied)
        adapted = with_adapter(module, config) if config.lora.r else module
    return PolicyModel.build(
        adapted.eval(), tokenizer, ModelSource(name="random", place="random"), config
    )


def tiny_module(dtype: str, *, tied: bool) -> LlamaForCausalLM:
    sizes = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    sizes.dtype = dtype
    return LlamaForCausalLM._from_config(sizes)


def with_adapter(
    module: LlamaForCausalLM, config: GRPOConfig, *, targets: str | list[str] = "all-linear"
) -> PeftModel:
    dropout = config.lora.dropout
    lora = LoraConfig(r=config.lora.r, lora_dropout=dropout, target_modules=targets)
    adapted = get_peft_model(module, lora)
    assert isinstance(adapted, PeftModel)
    return adapted


def trace(ids: Sequence[int], *turns: tuple[int, int], is_truncated: bool = False) -> TokenTrace:
    mask = [any(start <= index < end for start, end in turns) for index in range(len(ids))]
    return TokenTrace(
        ids=tuple(ids),
        mask=tuple(mask),
        logprobs=(-4.0,) * sum(mask),
        turns=turns,
        is_truncated=is_truncated,
    )


def group(*traces: TokenTrace | None) -> TrajectoryGroup:
    trajectories = [
        Trajectory(task=TASK, messages=(), termination=Termination.AGENT_STOP, tokens=tokens)
        for tokens in traces
    ]
    reward = Reward(value=0.0, basis=None, basis_name="tau2")
    return TrajectoryGroup(
        task=TASK,
        trajectories=tuple(trajectories),
        rewards=(reward,) * len(traces),
        training_rewards=(0.0,) * len(traces),
    )


def random_traces(count: int, *, seed: int = 0) -> list[TokenTrace]:
    rng = Random(seed)
    traces: list[TokenTrace] = []
    for _ in range(count):
        length = rng.randint(8, 30)
        ids = [rng.randrange(1, VOCABULARY) for _ in range(length)]
        middle = rng.randint(4, length - 2)
        traces.append(trace(ids, (2, 4), (middle, rng.randint(middle + 1, length))))
    return traces


def random_batch(count: int, *, seed: int = 0) -> Batch:
    rng = Random(f"advantages/{seed}")
    advantages = [[rng.uniform(-1, 1) for _ in range(count)]]
    return [group(*random_traces(count, seed=seed))], advantages
