"""SkyRL's FSDP workers: they need no flash-attn and keep tied embeddings tied.

Ray imports this module in the process of each worker, so both changes are made there.
"""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

from typing import Any, NamedTuple

import ray

from grpo_cl.integrations.skyrl.attention import replace_flash_attn

replace_flash_attn()

from skyrl.backends.skyrl_train.distributed import fsdp_strategy  # noqa: E402  # as above
from skyrl.backends.skyrl_train.distributed.fsdp_utils import apply_fsdp2  # noqa: E402
from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker  # noqa: E402


def shard_tied(module: Any, *arguments: Any) -> None:
    """Shard a model with FSDP2 after tying its embeddings again.

    SkyRL moves a model to the meta device before, which gives a tied output layer a weight of its
    own: it would be trained, and vLLM, which has tied weights, would never get it.
    """
    module.tie_weights()  # nothing if the model's config has no tied embeddings
    apply_fsdp2(module, *arguments)


fsdp_strategy.apply_fsdp2 = shard_tied


class PolicyWorker(fsdp_worker.FSDPPolicyWorkerBase):
    """The policy under training."""


class CriticWorker(fsdp_worker.FSDPCriticWorkerBase):
    """The value model of PPO."""


class RefWorker(fsdp_worker.FSDPRefWorkerBase):
    """The reference model."""


class Workers(NamedTuple):
    """Ray actors, in the order that SkyRL's trainer expects."""

    policy: Any
    critic: Any
    ref: Any


def fsdp_workers() -> Workers:
    """The workers as Ray actors."""
    actor = ray.remote(num_gpus=1)
    return Workers(actor(PolicyWorker), actor(CriticWorker), actor(RefWorker))
