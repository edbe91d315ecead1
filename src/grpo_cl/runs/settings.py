"""The settings of a run that goes on: its own, and those that may differ from then on."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.config import GRPOConfig, deep_update
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.runs.checkpoints import newest_checkpoint
from grpo_cl.runs.layout import CheckpointFiles, RunDir, recorded_settings
from grpo_cl.storage.files import read_json
from grpo_cl.storage.redaction import HIDDEN, hide
from grpo_cl.types import Record

LOCATION = frozenset({"log_dir", "resume_from", "fork", "accept_damage"})
"""Settings that say where a run is and how it is found, not what it does."""

NOT_RECORDED: dict[str, Any] = {"resume_from": None, "fork": None, "accept_damage": False}
"""Settings of one resume, as they are in a run's own configuration."""


class Change(Record):
    """A setting that has another value from some step on."""

    name: str
    before: Any = None
    after: Any = None


class Rule(NamedTuple):
    """A setting that a resumed run may change."""

    reason: str
    """Why the results before and after the change belong to one run."""
    allows: Callable[[Any, Any], bool] = lambda before, after: True
    limit: str = ""
    """What ``allows`` asks for, in words."""


def _is_raised(before: Any, after: Any) -> bool:
    return after > before


def _is_extended(before: Any, after: Any) -> bool:
    return after[: len(before)] == before


_OUTPUT = Rule("it decides where numbers are shown, not what they are")
_DISK = Rule("it decides which checkpoints are on the disk")
_CALLS = Rule("it decides how often and how fast a model is called, not what it replies")
_ADDRESS = Rule("it is where the same thing is found on this machine")
_SAMPLER_MEMORY = Rule("it divides the memory of sampling; draws depend on seed and position alone")
_UPDATE_MEMORY = Rule("it divides the memory of an update; the loss is a sum over the global batch")
_STEP_DIVISION = Rule("it divides a step among ranks; the trainer compares the tasks of a step")

MAY_CHANGE: dict[str, Rule] = {
    "logging.trackers": _OUTPUT,
    "wandb_project": _OUTPUT,
    "logging.keep_checkpoints": _DISK,
    "logging.save_interval": _DISK,
    "logging.keep_stage_ends": _DISK,
    "logging.keep_evaluation_episodes": Rule("it decides which episodes are on the disk"),
    "num_steps_per_task": Rule(
        "it extends the present stage and later ones", _is_raised, "may only grow"
    ),
    "task_order": Rule(
        "it adds stages after the present ones",
        _is_extended,
        "may only get further domains at its end",
    ),
    "tau2_data_dir": _ADDRESS,  # the releases of the tasks are compared
    "models.cache_dir": _ADDRESS,
    "user.base_url": _ADDRESS,
    "judge.base_url": _ADDRESS,
    "memory.answerer.base_url": _ADDRESS,
    "memory.judge.base_url": _ADDRESS,
    "sampling.servers": _ADDRESS,
    "sampling.publish_dir": _ADDRESS,
    "models.timeout_s": _CALLS,
    "models.retries": _CALLS,
    "models.backoff_s": _CALLS,
    "models.max_backoff_s": _CALLS,
    "models.concurrency": _CALLS,
    "models.requests_per_minute": _CALLS,
    "models.budget_tokens": _CALLS,
    "models.budget_money": _CALLS,
    "models.prices": _CALLS,
    "sampling.slots": _SAMPLER_MEMORY,
    "sampling.gpu_share": _SAMPLER_MEMORY,
    "sampling.cuda_graphs": _SAMPLER_MEMORY,
    "sampling.release_cache": _SAMPLER_MEMORY,
    "sharding": _UPDATE_MEMORY,
    "gradient_checkpointing": _UPDATE_MEMORY,
    "optimizer.micro_batch_tokens": _UPDATE_MEMORY,
    "batch_size_per_gpu": _STEP_DIVISION,
    "gradient_accumulation_steps": _STEP_DIVISION,
}
"""Everything else is refused: results before and after would not belong to one run."""


def read_settings(path: Path) -> GRPOConfig:
    """The settings in a ``config.json``; those it does not have take their defaults."""
    stored = read_json(path)
    try:
        return GRPOConfig.model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "settings"
        raise ConfigError(
            f"{path} is not a configuration of this version ({name}: {first['msg']}); continue "
            "with the version that the run's environment.json names"
        ) from error


def settings_in_force(given: GRPOConfig, run: RunDir) -> GRPOConfig:
    """The settings with which ``run`` goes on: its own, with the changes that ``given`` makes.

    Only fields that were given are compared. A change that a resumed run may not make is refused;
    with ``given.fork`` every change is made.
    """
    if not run.config.exists():
        raise ConfigError(
            f"{run.root} has no {run.config.name}, from which a resumed run takes its settings; "
            "restore it, a copy is in every checkpoint"
        )
    own = read_settings(run.config)
    _require_settings_of_checkpoint(own, run)
    _require_same_place(given, own, run)
    before = own.model_dump(mode="json", exclude=set(LOCATION))
    after = given.model_dump(mode="json", exclude_unset=True, exclude=set(LOCATION))
    if given.fork is None:
        for change in differences(before, after):
            _require_allowed(change, run)
    merged = deep_update(before, after)
    require_secrets(merged, run.config)
    log_dir = given.fork or (own.log_dir if _is_same_path(own.log_dir, run.root) else run.root)
    place = {"log_dir": log_dir, **{name: getattr(given, name) for name in NOT_RECORDED}}
    try:
        return GRPOConfig.model_validate({**merged, **place})
    except ValidationError as error:
        problems = "; ".join(str(entry["msg"]) for entry in error.errors())
        raise ConfigError(f"with the settings of {run.root}: {problems}") from error


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The settings of ``after`` that differ from ``before``, by dotted name."""
    known = dict(_leaves(before))
    return [
        Change(name=".".join(path), before=known.get(path), after=value)
        for path, value in _leaves(after)
        if path[0] not in LOCATION and not _is_equal(known.get(path), value)
    ]


def changes_between(before: GRPOConfig, after: GRPOConfig) -> list[Change]:
    """The changes from one set of settings to another, without secrets."""
    return differences(recorded_settings(before), recorded_settings(after))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _leaves(entry, (*path, str(name)))
    else:
        yield path, value


def _is_equal(before: Any, after: Any) -> bool:
    """Whether two JSON values are the same setting; a redacted part may be anything."""
    if before == after:
        return True
    if isinstance(before, str) and isinstance(after, str):
        pattern = ".*".join(map(re.escape, before.split(HIDDEN)))
        return bool(re.fullmatch(pattern, after)) or _is_same_path(before, after)
    if isinstance(before, Sequence) and isinstance(after, Sequence):
        pairs = zip(before, after, strict=False)
        return len(before) == len(after) and all(_is_equal(*pair) for pair in pairs)
    return False


def _is_same_path(one: str | Path, other: str | Path) -> bool:
    """Whether two names are one existing file or directory, relative or absolute."""
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):  # ValueError: a text with a null byte
        return False


def _require_same_place(given: GRPOConfig, own: GRPOConfig, run: RunDir) -> None:
    if "log_dir" not in given.model_fields_set or given.log_dir in {own.log_dir, given.fork}:
        return
    if _is_same_path(given.log_dir, run.root):
        return
    raise ConfigError(
        f"log_dir is {str(given.log_dir)!r}, but the run that resume_from names is in "
        f"{str(run.root)!r}; leave log_dir out, or start a new run there with --fork "
        f"{given.log_dir}"
    )


def _require_settings_of_checkpoint(own: GRPOConfig, run: RunDir) -> None:
    """Refuse a damaged ``config.json`` before another model than the run's is loaded."""
    newest = newest_checkpoint(run.checkpoints_dir)
    if newest is None:
        return
    files = CheckpointFiles(newest)
    try:
        kept = read_settings(files.config)
    except (CheckpointError, ConfigError):
        return  # a damaged checkpoint is skipped, and an older one has its own settings
    require_own_settings(changes_between(kept, own), run, files)


def require_own_settings(changes: Iterable[Change], run: RunDir, files: CheckpointFiles) -> None:
    """Refuse a ``config.json`` whose settings a resume cannot have made out of a checkpoint's."""
    for change in changes:
        rule = _rule(change)
        if rule is None or not rule.allows(change.before, change.after):
            raise CheckpointError(
                f"{change.name} is {_shown(change.after)} in {run.config} and "
                f"{_shown(change.before)} in the checkpoint {files.root}; restore "
                f"{run.config.name}, a copy is in the checkpoint, or start a new run with --fork "
                "DIR"
            )


def _rule(change: Change) -> Rule | None:
    parts = change.name.split(".")
    prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((MAY_CHANGE[name] for name in prefixes if name in MAY_CHANGE), None)


def _require_allowed(change: Change, run: RunDir) -> None:
    rule = _rule(change)
    if rule is not None and rule.allows(change.before, change.after):
        return
    why = f", and it {rule.limit}" if rule else ""
    raise ConfigError(
        f"{change.name} is {_shown(change.before)} in the run {run.root} and "
        f"{_shown(change.after)} was given{why}; leave it out, or start a new run from that "
        "checkpoint with --fork DIR"
    )


def _shown(value: Any) -> str:
    return hide(repr(value), variables=os.environ)


def require_secrets(settings: Mapping[str, Any], file: Path) -> None:
    """Refuse a setting whose secret part is not in ``config.json`` and was not given again."""
    for path, value in _leaves(settings):
        if HIDDEN in str(value):
            raise ConfigError(
                f"{'.'.join(path)} has a secret that {file} does not keep ({value}); give it again "
                f"as --{'.'.join(path)}"
            )
