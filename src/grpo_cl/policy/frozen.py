"""Actors from models: the policy under training, and a copy that never learns."""

import torch

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.sampler import Sampler
from grpo_cl.policy.tabular import TabularActor, TabularChat


def policy_actor(
    model: PolicyModel, sampler: Sampler, config: GRPOConfig, *, temperature: float
) -> PolicyActor | TabularActor:
    """An actor that writes in a model's way what a sampler draws."""
    actor = PolicyActor(
        model.chat,
        sampler,
        temperature=temperature,
        max_new_tokens=config.max_new_tokens,
        top_p=config.sampling.top_p,
    )
    return TabularActor(actor) if isinstance(model.chat, TabularChat) else actor


def frozen_policy(config: GRPOConfig, device: torch.device) -> PolicyModel:
    """The model that a run starts from, once more."""
    plain = config.model_copy(update={"kl_coef": 0.0, "lora": LoraConfig()})
    return PolicyModel.load(plain, device=device)
