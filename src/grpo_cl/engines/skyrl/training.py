"""SkyRL's own training with our environment, settings and treatment of lost episodes."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.config import SkyRLGymConfig, SkyRLTrainConfig
from skyrl.train.config.config import DataConfig, EnvironmentConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.base import GeneratorInput, GeneratorOutput
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo_cl.engines.skyrl.environment import LOST, register
from grpo_cl.engines.skyrl.lost import leave_out
from grpo_cl.engines.venue import episode_config
from grpo_cl.errors import ConfigError
from grpo_cl.rows import ENVIRONMENT

DEFAULTS = (
    "trainer.algorithm.advantage_estimator=grpo",
    "generator.max_turns=30",
    "generator.max_input_length=24576",
    "trainer.max_prompt_length=16384",
    "trainer.logger=console",
    "data.val_data=[]",
)
"""What differs from SkyRL's own defaults: a policy and its tools are long, so is an episode, and
nobody has an account with a tracker until they say so."""


@dataclass
class GymConfig(SkyRLGymConfig):
    """``environment.skyrl_gym``, with a section for our environment."""

    grpo_cl: dict[str, Any] = field(default_factory=dict)


@dataclass
class WorldConfig(EnvironmentConfig):
    """``environment``: our environment is played unless a row names another."""

    env_class: str = ENVIRONMENT
    skyrl_gym: GymConfig = field(default_factory=GymConfig)


@dataclass
class TableConfig(DataConfig):
    """``data``: SkyRL shuffles; a plan has an order of its own."""

    shuffle: bool = True


@dataclass
class TrainConfig(SkyRLTrainConfig):
    """SkyRL's settings and ours."""

    data: TableConfig = field(default_factory=TableConfig)
    environment: WorldConfig = field(default_factory=WorldConfig)


class GrpoClGenerator(SkyRLGymGenerator):
    """SkyRL's generator; episodes that a failing endpoint ended teach nothing."""

    async def generate(
        self, input_batch: GeneratorInput, *, disable_tqdm: bool = False
    ) -> GeneratorOutput:
        """Play the batch, each row an episode."""
        output = await super().generate(input_batch, disable_tqdm)
        lost = [bool(metrics.get(LOST)) for metrics in output["env_metrics"] or ()]
        if not any(lost):
            return output
        names = input_batch.get("trajectory_ids") or [None] * len(lost)
        groups = [name.instance_id if name else None for name in names]
        rewards, masks = leave_out(
            output["rewards"], output["loss_masks"], groups=groups, lost=lost
        )
        return {**output, "rewards": rewards, "loss_masks": masks}


def ordered_loader(settings: TrainConfig, dataset: PromptDataset) -> StatefulDataLoader:
    """Batches of the training table in its own order."""
    return StatefulDataLoader(
        dataset,
        batch_size=settings.trainer.train_batch_size,
        shuffle=False,
        collate_fn=dataset.collate_fn,
        drop_last=True,
    )


class Trainer(RayPPOTrainer):
    """SkyRL's trainer, which keeps the order of a table where it is told to."""

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        super()._build_train_dataloader_and_compute_training_steps()
        if not self.cfg.data.shuffle:
            self.train_dataloader = ordered_loader(self.cfg, self.train_dataset)


class Experiment(BasePPOExp):
    """One training of SkyRL."""

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        """The generator above."""
        return GrpoClGenerator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    def get_trainer(self, **parts: Any) -> Trainer:
        """The trainer above."""
        return Trainer(**parts)


def read_settings(words: Sequence[str]) -> TrainConfig:
    """SkyRL's settings from ``key=value`` words; what could not be played is refused at once."""
    try:
        settings = TrainConfig.from_cli_overrides([*DEFAULTS, *words])
    except ValueError as error:
        raise ConfigError(f"SkyRL does not take these settings: {error}") from error
    if settings.generator.batched or settings.generator.step_wise_trajectories:
        raise ConfigError(
            "an episode has many turns and is one sequence of tokens; leave generator.batched and "
            "generator.step_wise_trajectories at false"
        )
    if not settings.data.val_data:
        settings.trainer.eval_interval = -1  # else SkyRL measures on nothing, and stops
    ours = {**settings.environment.skyrl_gym.grpo_cl}
    ours.pop("dialect", None)
    episode_config(ours)
    return settings


def train(words: Sequence[str]) -> None:
    """Train, on Ray; returns when the training is over."""
    settings = read_settings(words)
    validate_cfg(settings)
    initialize_ray(settings)
    ray.get(ray.remote(num_cpus=1)(_run).remote(settings))


def _run(settings: TrainConfig) -> None:
    register()  # the registry is the process's own, and this is the process that plays
    Experiment(settings).run()
