"""Training with SkyRL on the environment and settings of this project."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.base import GeneratorInput, GeneratorOutput
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.utils import initialize_ray
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.plan.folder import CONFIG_VARIABLE
from grpo_cl.integrations.skyrl.environment import FAILED_METRIC, register
from grpo_cl.integrations.skyrl.loss_masks import mask_failed_episodes
from grpo_cl.integrations.skyrl.settings import GymConfig, TrainConfig, load_settings
from grpo_cl.integrations.skyrl.workers import fsdp_workers
from grpo_cl.policy.chat.chat import Chat
from grpo_cl.runs.episodes import FOLDER_VARIABLE


class GrpoClGenerator(SkyRLGymGenerator):
    """SkyRL's generator; masks episodes that an endpoint failure ended.

    The dialect of its environments is that of the policy's chat template, as in a local run.
    """

    def __init__(self, *, skyrl_gym_cfg: GymConfig, tokenizer: Any, **parts: Any) -> None:
        options = skyrl_gym_cfg.grpo_cl
        chat = Chat(tokenizer, dialect=options.get("dialect", "auto"))
        section = replace(skyrl_gym_cfg, grpo_cl={**options, "dialect": chat.dialect.name})
        super().__init__(skyrl_gym_cfg=section, tokenizer=tokenizer, **parts)

    async def generate(
        self, input_batch: GeneratorInput, *, disable_tqdm: bool = False
    ) -> GeneratorOutput:
        """Run one episode per row of the batch."""
        output = await super().generate(input_batch, disable_tqdm)
        failed = [bool(metrics.get(FAILED_METRIC)) for metrics in output["env_metrics"] or ()]
        if not any(failed):
            return output
        ids = input_batch.get("trajectory_ids") or [None] * len(failed)
        groups = [entry.instance_id if entry else None for entry in ids]
        rewards, masks = mask_failed_episodes(
            output["rewards"], output["loss_masks"], groups=groups, failed=failed
        )
        return {**output, "rewards": rewards, "loss_masks": masks}


def ordered_loader(settings: TrainConfig, dataset: PromptDataset) -> StatefulDataLoader:
    """A data loader that keeps the order of the training rows."""
    return StatefulDataLoader(
        dataset,
        batch_size=settings.trainer.train_batch_size,
        shuffle=False,
        collate_fn=dataset.collate_fn,
        drop_last=True,
    )


def workers_for(settings: TrainConfig, workers: Sequence[Any]) -> Sequence[Any]:
    """The workers given, or those for FSDP that need no flash-attn and keep embeddings tied."""
    return fsdp_workers() if settings.trainer.strategy == "fsdp" else workers


class OrderedTrainer(RayPPOTrainer):
    """SkyRL's trainer; keeps the row order if ``data.shuffle`` is false."""

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        super()._build_train_dataloader_and_compute_training_steps()
        if not self.cfg.data.shuffle:
            self.train_dataloader = ordered_loader(self.cfg, self.train_dataset)

    def build_models(self, *workers: Any) -> None:
        """Start the Ray actors of the models."""
        super().build_models(*workers_for(self.cfg, workers))


class Experiment(BasePPOExp):
    """SkyRL's experiment with the generator and trainer above."""

    def get_train_dataset(self) -> PromptDataset:
        """The training rows whose prompts are not too long."""
        dataset, trainer = self._dataset(self.cfg.data.train_data), self.cfg.trainer
        if len(dataset) < trainer.train_batch_size:
            raise ConfigError(
                f"only {len(dataset)} rows of data.train_data have a prompt of at most "
                f"trainer.max_prompt_length={trainer.max_prompt_length} tokens, fewer than "
                f"trainer.train_batch_size={trainer.train_batch_size}; raise the first or lower "
                "the second"
            )
        return dataset

    def get_eval_dataset(self) -> PromptDataset | None:
        """The validation rows; None without evaluation."""
        paths = self.cfg.data.val_data
        return self._dataset(paths) if paths and self.cfg.trainer.eval_interval > 0 else None

    def _dataset(self, paths: list[str]) -> PromptDataset:
        length = self.cfg.trainer.max_prompt_length
        return PromptDataset(paths, self.tokenizer, max_prompt_length=length, num_workers=1)

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        """A ``GrpoClGenerator``."""
        return GrpoClGenerator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    def get_trainer(self, **parts: Any) -> OrderedTrainer:
        """An ``OrderedTrainer``."""
        return OrderedTrainer(**parts)


def train(overrides: Sequence[str]) -> None:
    """Run the training on Ray to its end."""
    settings = load_settings(overrides)
    initialize_ray(settings)
    ray.get(on_worker(_run).remote(settings))


def on_worker(function: Callable[..., Any]) -> Any:
    """The function as a Ray task that has the variables of a plan's script.

    The workers of a cluster that was started before have the variables of `ray start`.
    """
    names = FOLDER_VARIABLE, CONFIG_VARIABLE
    variables = {name: os.environ[name] for name in names if name in os.environ}
    return ray.remote(num_cpus=1, runtime_env={"env_vars": variables})(function)


def _run(settings: TrainConfig) -> None:
    register()  # in the Ray worker, which has its own registry
    Experiment(settings).run()
