"""Training with AReaL on the tasks, workflow and settings of this project."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from areal.api.alloc_mode import AllocationValidationError, ModelAllocation
from areal.api.cli_args import GRPOConfig as ArealConfig
from areal.api.cli_args import load_expr_config
from datasets import Dataset
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.envs.tasks import own_tasks
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import episode_config, require_hosted_models
from grpo_cl.integrations.rows import read_table
from grpo_cl.types import Task

_WORKFLOW = "grpo_cl.integrations.areal.workflow"

Row = dict[str, str]
"""A dataset row: ``task`` is the task as JSON."""


@dataclass
class EpisodesConfig:
    """``econfig``: domains, users and limits of the episodes."""

    domain: str = "airline"
    """A domain, or several separated by commas."""
    solo_mode: bool = False
    user_strategy: str | None = None
    """User strategy; None means ``llm`` if there is a ``user_model``, else ``scripted``."""
    user_model: str | None = None
    user_base_url: str | None = None
    judge_model: str | None = None
    max_turns: int | None = None
    drop_flat_groups: bool = False
    """Whether groups with equal rewards are dropped and replaced."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further sections of a run's config: reward, rollout, sampling, models."""

    @property
    def domains(self) -> list[str]:
        """The domain names."""
        return [name.strip() for name in self.domain.split(",")]

    @property
    def settings(self) -> dict[str, Any]:
        """Options for ``episode_config``."""
        if self.solo_mode and (self.user_model or self.user_strategy not in {None, "solo"}):
            raise ConfigError(
                "econfig.solo_mode=true has no user; remove econfig.user_strategy and "
                "econfig.user_model"
            )
        strategy = "solo" if self.solo_mode else self.user_strategy
        short = {
            "user_strategy": strategy or ("llm" if self.user_model else "scripted"),
            "user_model": self.user_model,
            "user_base_url": self.user_base_url,
            "judge_model": self.judge_model,
            "max_turns": self.max_turns,
        }
        return self.options | {name: value for name, value in short.items() if value is not None}


@dataclass
class TrainConfig(ArealConfig):
    """AReaL's settings with the section ``econfig``."""

    econfig: EpisodesConfig = field(default_factory=EpisodesConfig)


def read_settings(arguments: Sequence[str]) -> TrainConfig:
    """Settings from ``current_arguments``; AReaL also writes them to its log folder."""
    try:
        settings, _ = load_expr_config([*arguments], TrainConfig)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"AReaL rejects these settings: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"cannot write the logs of the run: {error}; set cluster.fileroot to another folder"
        ) from error
    _check_backends(settings)
    _check_attention(settings)
    # Rejects invalid settings before AReaL starts.
    require_hosted_models(episode_config(settings.econfig.settings))
    return settings


def _check_backends(settings: TrainConfig) -> None:
    for role in ("rollout", "actor"):
        backend = getattr(settings, role).backend
        try:
            name = ModelAllocation.from_str(backend, name=role).backend
        except (AllocationValidationError, ValueError) as error:
            raise ConfigError(
                f"{role}.backend={backend!r} is no backend of AReaL; write its name and the sizes "
                "of its parallelism, such as sglang:d6 for rollouts and fsdp:d2 for training"
            ) from error
    if settings.actor.use_lora and name == "archon":
        raise ConfigError(
            f"actor.use_lora=true needs an FSDP backend, Archon trains full weights only; write "
            f"{settings.actor.backend.replace('archon', 'fsdp')} for actor.backend"
        )


def _check_attention(settings: TrainConfig) -> None:
    """AReaL packs the sequences of a micro-batch and gives no mask that separates them."""
    actor = settings.actor
    if actor.backend.startswith("fsdp") and actor.attn_impl in {"eager", "sdpa", "flex_attention"}:
        raise ConfigError(
            f"actor.attn_impl={actor.attn_impl} lets packed sequences attend to each other in "
            "AReaL 1.0.4; leave it at flash_attention_2, which needs flash-attn"
        )


def dataset(part: Any, econfig: EpisodesConfig) -> Dataset:
    """The dataset of ``train_dataset`` or ``valid_dataset``."""
    rows = task_rows(part.path, econfig.domains, episode_config(econfig.settings))
    return Dataset.from_list(_fill_batch(rows, part.batch_size))


def task_rows(path: str, domains: Sequence[str], config: GRPOConfig) -> list[Row]:
    """The tasks of a parquet file of ``prepare-data``, or of a split: train, test, small."""
    tasks: Sequence[Task]
    if path.endswith(".parquet"):
        tasks = read_table(Path(path)).tasks
    else:
        split = path.rsplit("/", 1)[-1]
        tasks = [
            task
            for name in domains
            for task in own_tasks(
                load_domain(name, config.tau2_data_dir), split, config.train_split
            )
        ]
    return [{"task": task.model_dump_json(exclude_none=True)} for task in tasks]


def _fill_batch(rows: Sequence[Row], batch_size: int) -> list[Row]:
    """The rows, repeated until they fill a batch: AReaL drops incomplete batches."""
    if not rows:
        raise ConfigError("there are no tasks; name another split or domain")
    return [*rows] * ceil(batch_size / len(rows))


def workflow_arguments(settings: TrainConfig, generation: Any) -> dict[str, Any]:
    """Constructor arguments of ``GrpoClWorkflow``; AReaL creates it in its worker processes."""
    return {
        "settings": settings.econfig.settings,
        "gconfig": generation,
        "tokenizer": settings.tokenizer_path,
    }


def train(arguments: Sequence[str]) -> None:
    """Run the training to its end; ``arguments`` are those of ``current_arguments``."""
    settings = read_settings(arguments)
    from areal import PPOTrainer  # noqa: PLC0415  # slow to import; invalid settings fail before

    econfig, valid = settings.econfig, settings.valid_dataset
    with PPOTrainer(
        settings,
        train_dataset=dataset(settings.train_dataset, econfig),
        valid_dataset=dataset(valid, econfig) if valid else None,
    ) as trainer:
        trainer.train(
            workflow=f"{_WORKFLOW}.GrpoClWorkflow",
            workflow_kwargs=workflow_arguments(settings, settings.gconfig),
            eval_workflow=f"{_WORKFLOW}.GrpoClWorkflow",
            eval_workflow_kwargs=workflow_arguments(settings, settings.eval_gconfig),
            dynamic_filter_fn=f"{_WORKFLOW}.has_reward_variance"
            if econfig.drop_flat_groups
            else None,
        )
