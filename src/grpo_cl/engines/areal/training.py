"""AReaL's own training with our workflow, tasks and settings."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal.api.cli_args import GRPOConfig as ArealConfig
from areal.api.cli_args import load_expr_config
from datasets import Dataset
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from grpo_cl.engines.areal.tables import filled, task_rows
from grpo_cl.engines.venue import episode_config
from grpo_cl.errors import ConfigError

CONFIG = Path(__file__).with_name("areal.yaml")
"""The settings that words change; ``--config`` names others."""

_WORKFLOW = "grpo_cl.engines.areal.workflow"


@dataclass
class EpisodesConfig:
    """``econfig``: which episodes are played, and with whom."""

    domain: str = "airline"
    """A domain, or several with commas between them."""
    solo_mode: bool = False
    user_strategy: str | None = None
    """Who talks to the agent; None takes ``llm`` where there is a ``user_model``, otherwise
    ``scripted``."""
    user_model: str | None = None
    user_base_url: str | None = None
    judge_model: str | None = None
    max_turns: int | None = None
    drop_flat_groups: bool = False
    """Whether groups whose rewards are all equal are replaced by others."""
    options: dict[str, Any] = field(default_factory=dict)
    """Sections of a run's config: reward, rollout, sampling, models."""

    @property
    def domains(self) -> list[str]:
        """The domains by name."""
        return [name.strip() for name in self.domain.split(",")]

    @property
    def settings(self) -> dict[str, Any]:
        """What ``episode_config`` takes."""
        if self.solo_mode and (self.user_model or self.user_strategy not in {None, "solo"}):
            raise ConfigError(
                "econfig.solo_mode=true has no user; leave econfig.user_strategy and "
                "econfig.user_model out"
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
    """AReaL's settings and ours."""

    econfig: EpisodesConfig = field(default_factory=EpisodesConfig)


def read_settings(words: Sequence[str]) -> TrainConfig:
    """AReaL's settings from a YAML file and ``key=value`` words."""
    chosen = [] if "--config" in words else ["--config", str(CONFIG)]
    try:
        settings, _ = load_expr_config([*chosen, *words], TrainConfig)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"AReaL does not take these settings: {error}") from error
    episode_config(settings.econfig.settings)  # what could not be played is refused at once
    return settings


def dataset(part: Any, econfig: EpisodesConfig) -> Dataset:
    """The tasks of ``train_dataset`` or ``valid_dataset``."""
    rows = task_rows(part.path, econfig.domains, episode_config(econfig.settings))
    return Dataset.from_list(filled(rows, part.batch_size))


def workflow_arguments(settings: TrainConfig, generation: Any) -> dict[str, Any]:
    """What the workflow is made with, wherever AReaL makes it."""
    return {
        "settings": settings.econfig.settings,
        "gconfig": generation,
        "tokenizer": settings.tokenizer_path,
    }


def train(words: Sequence[str]) -> None:
    """Train; returns when the training is over."""
    from areal import PPOTrainer  # noqa: PLC0415  # takes half a minute, a mistake need not wait

    settings = read_settings(words)
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
            dynamic_filter_fn=f"{_WORKFLOW}.is_telling" if econfig.drop_flat_groups else None,
        )
