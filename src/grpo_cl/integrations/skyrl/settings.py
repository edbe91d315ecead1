"""Settings of a SkyRL run: SkyRL's own and those of this project, checked before Ray starts."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from skyrl.train.config import SkyRLGymConfig, SkyRLTrainConfig
from skyrl.train.config.config import DataConfig, EnvironmentConfig
from skyrl.train.utils import validate_cfg

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import episode_config
from grpo_cl.integrations.rows import ENVIRONMENT, TRAIN, VALIDATION
from grpo_cl.integrations.skyrl.attention import FLASH_ATTENTION, PACKING, has_flash_attn
from grpo_cl.integrations.skyrl.tables import check_tables, fit_batch_sizes, table_of
from grpo_cl.policy.chat.dialects import dialect_named

DEFAULTS = (
    "data.train_data=[]",
    "data.val_data=[]",
    "data.dataloader.num_workers=0",
    "trainer.algorithm.advantage_estimator=grpo",
    "trainer.epochs=20",
    "trainer.max_prompt_length=16384",
    "trainer.logger=console",
    "generator.max_turns=20",
    "generator.max_input_length=24576",
)
"""Changes to SkyRL's defaults: prompts with policy and tools are long, episodes have many turns,
tables are so short that loading needs no processes, and logging needs no account. Batch sizes
depend on the table."""

OURS = f"environment.skyrl_gym.{ENVIRONMENT}"
TRAIN_BATCH, MINI_BATCH = "trainer.train_batch_size", "trainer.policy_mini_batch_size"


@dataclass
class GymConfig(SkyRLGymConfig):
    """``environment.skyrl_gym`` with the section ``grpo_cl``."""

    grpo_cl: dict[str, Any] = field(default_factory=dict)


@dataclass
class EpisodeEnvironmentConfig(EnvironmentConfig):
    """``environment``: ``grpo_cl`` is the default environment."""

    env_class: str = ENVIRONMENT
    skyrl_gym: GymConfig = field(default_factory=GymConfig)


@dataclass
class TaskTableConfig(DataConfig):
    """``data``: with ``shuffle=false`` the rows keep their order, which a plan needs."""

    shuffle: bool = True


@dataclass
class TrainConfig(SkyRLTrainConfig):
    """SkyRL's settings with those of this project."""

    data: TaskTableConfig = field(default_factory=TaskTableConfig)
    environment: EpisodeEnvironmentConfig = field(default_factory=EpisodeEnvironmentConfig)


def read_settings(overrides: Sequence[str]) -> TrainConfig:
    """Settings from ``key=value`` overrides; the tables they name are not read."""
    if word := next((word for word in overrides if "=" not in word), None):
        raise ConfigError(f"{word!r} is no setting; write key=value, such as trainer.epochs=20")
    try:
        settings = TrainConfig.from_cli_overrides([*DEFAULTS, *_attention(), *overrides])
    except ValueError as error:
        raise ConfigError(_unknown_setting(overrides) or _rejected(error)) from error
    _check_types(settings)
    _require_supported(settings)
    if not settings.data.val_data:
        settings.trainer.eval_interval = -1  # SkyRL fails if it evaluates without data
    options = settings.environment.skyrl_gym.grpo_cl
    if not isinstance(options, dict):
        raise ConfigError(f"{OURS}={options!r} is a section; set {OURS}.NAME=VALUE")
    config = episode_config(episode_options(settings))
    named = options.get("sampling", {}).get("dialect")
    if named not in (None, options.get("dialect", named)):
        raise ConfigError(
            f"{OURS}.dialect={options['dialect']!r} and {OURS}.sampling.dialect={named!r} are one "
            "setting with two values; leave one of them out"
        )
    options.setdefault("dialect", config.sampling.dialect)
    if options["dialect"] != "auto":  # the generator reads it from the model's chat template
        dialect_named(options["dialect"])
    if config.tools:
        options["tools"] = config.tools  # absolute: workers start in other directories
    return settings


def _require_supported(settings: TrainConfig) -> None:
    """Refuse settings of SkyRL that episodes or the installed packages exclude."""
    if settings.generator.batched or settings.generator.step_wise_trajectories:
        raise ConfigError(
            "a multi-turn episode is trained as one sequence of tokens; leave generator.batched "
            "and generator.step_wise_trajectories at false"
        )
    trainer = settings.trainer
    needs_flash_attn = trainer.flash_attn or trainer.remove_microbatch_padding
    if trainer.strategy != "megatron" and needs_flash_attn and not has_flash_attn():
        raise ConfigError(
            f"{FLASH_ATTENTION}=true and {PACKING}=true need flash-attn, which is not installed; "
            "leave both out"
        )
    if settings.environment.env_class != ENVIRONMENT:
        raise ConfigError(
            f"environment.env_class={settings.environment.env_class!r} is not the environment of "
            f"this command; leave it at {ENVIRONMENT!r}"
        )


def _attention() -> list[str]:
    """The attention that SkyRL can use here; its default is flash-attn on packed batches."""
    return [] if has_flash_attn() else [f"{FLASH_ATTENTION}=false", f"{PACKING}=false"]


def load_settings(overrides: Sequence[str]) -> TrainConfig:
    """Settings that SkyRL accepts, for tables whose episodes can be played."""
    settings = read_settings(overrides)
    data, trainer, options = settings.data, settings.trainer, episode_options(settings)
    if not data.train_data:
        raise ConfigError(
            "data.train_data is not set; name a table of `grpo-cl prepare-data` or a task file"
        )
    folder = Path(trainer.export_path) / "tables"
    data.train_data = [table_of(path, options, folder, split=TRAIN) for path in data.train_data]
    data.val_data = [table_of(path, options, folder, split=VALIDATION) for path in data.val_data]
    check_tables(data.val_data, options)
    given = {override.partition("=")[0] for override in overrides}
    sizes = fit_batch_sizes(
        check_tables(data.train_data, options),
        train=trainer.train_batch_size if TRAIN_BATCH in given else None,
        mini=trainer.policy_mini_batch_size if MINI_BATCH in given else None,
        num_gpus=trainer.placement.policy_num_nodes * trainer.placement.policy_num_gpus_per_node,
    )
    trainer.train_batch_size, trainer.policy_mini_batch_size = sizes
    try:
        validate_cfg(settings)
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise ConfigError(_rejected(error)) from error
    return settings


def episode_options(settings: TrainConfig) -> dict[str, Any]:
    """Our settings without ``dialect``, which is not part of an episode's config."""
    options = {"max_turns": settings.generator.max_turns, **settings.environment.skyrl_gym.grpo_cl}
    options.pop("dialect", None)
    return options


def _rejected(error: Exception) -> str:
    return f"SkyRL rejects these settings: {error}"


def _unknown_setting(overrides: Sequence[str]) -> str | None:
    """The first override that names no setting, with a setting of a similar name."""
    known = dict(_settings_of(TrainConfig()))
    for override in overrides:
        name = override.partition("=")[0]
        if name in known or _is_accepted(override):
            continue
        if name.startswith("+"):
            return f"SkyRL's settings have no '+'; write {name.lstrip('+')!r} instead of {name!r}"
        if name.startswith("environment.skyrl_gym."):
            return f"unknown setting {name!r}; settings of episodes are under {OURS}"
        section, word = name.partition(".")[0], name.rpartition(".")[2]
        similar = {
            path.rpartition(".")[2]: path
            for path, setting in known.items()
            if path.startswith(f"{section}.") and not is_dataclass(setting.value)
        }
        close = get_close_matches(word, similar, n=1, cutoff=0.68)
        hint = f"; did you mean {similar[close[0]]!r}?" if close else ""
        return f"unknown SkyRL setting {name!r}{hint}"
    return None


def _is_accepted(override: str) -> bool:
    """Whether SkyRL takes the override: some sections are free, some old names are read."""
    try:
        TrainConfig.from_cli_overrides([override])
    except ValueError:
        return False
    return True


class _Setting(NamedTuple):
    value: Any
    is_optional: bool
    """Whether null is a value."""


def _settings_of(section: Any, prefix: str = "") -> Iterator[tuple[str, _Setting]]:
    """The settings of a section, and its sections, with their dotted names."""
    for entry in fields(section):
        name, value = f"{prefix}{entry.name}", getattr(section, entry.name)
        yield name, _Setting(value, NoneType in get_args(entry.type))
        if is_dataclass(value):
            yield from _settings_of(value, f"{name}.")


def _check_types(settings: TrainConfig) -> None:
    """SkyRL takes any text for a number and a path for a list, and fails much later."""
    given = dict(_settings_of(settings))
    kinds = {bool: "true or false", int: "an integer", float: "a number", list: "a list: ['FILE']"}
    for name, (default, is_optional) in _settings_of(TrainConfig()):
        value = given[name].value if name in given else default
        wanted = kinds.get(type(default))
        if wanted is None or (value is None and is_optional):
            continue
        types = (int, float) if isinstance(default, float) else type(default)
        is_bool = isinstance(default, bool), isinstance(value, bool)
        if not isinstance(value, types) or is_bool == (False, True):
            raise ConfigError(f"{name} must be {wanted}, not {value!r}")
