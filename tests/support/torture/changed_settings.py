"""Settings that are changed at a resume: allowed without effect on results, or refused."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_cl.runs.settings import LOCATION, MAY_CHANGE
from torture.cases import Bench, Case, Verdict, crash, lost, survived, wrong
from torture.damaged_files import contents, interrupted
from torture.processes import run_command
from torture.toy import RESUME, Reference, copied, difference, reference

ALLOWED: dict[str, str] = {
    "logging.trackers": "[tensorboard]",
    "wandb_project": "none",
    "logging.keep_checkpoints": "1",
    "logging.save_interval": "2",
    "logging.keep_stage_ends": "false",
    "logging.keep_evaluation_episodes": "3",
    "num_steps_per_task": "3",
    "task_order": "[toy_left, toy_right, toy_up]",
    "tau2_data_dir": "elsewhere",
    "models.cache_dir": "cache",
    "user.base_url": "http://127.0.0.1:1/v1",
    "judge.base_url": "http://127.0.0.1:1/v1",
    "memory.answerer.base_url": "http://127.0.0.1:1/v1",
    "memory.judge.base_url": "http://127.0.0.1:1/v1",
    "sampling.servers": "[http://127.0.0.1:1]",
    "sampling.publish_dir": "published",
    "models.timeout_s": "5",
    "models.retries": "7",
    "models.backoff_s": "0.5",
    "models.max_backoff_s": "9",
    "models.concurrency": "3",
    "models.requests_per_minute": "9",
    "models.budget_tokens": "1000",
    "models.budget_money": "1.5",
    "models.prices": "{m: [1, 2]}",
    "sampling.slots": "2",
    "sampling.gpu_share": "0.5",
    "sampling.cuda_graphs": "false",
    "sampling.release_cache": "true",
    "sharding": "fsdp",
    "gradient_checkpointing": "true",
    "optimizer.micro_batch_tokens": "64",
    "batch_size_per_gpu": "1",
    "gradient_accumulation_steps": "2",
}
"""Another value for each setting that a resumed run may change."""
EXTENDING = frozenset({"num_steps_per_task", "task_order"})


def change_settings(bench: Bench) -> Iterator[Case]:
    """Change each setting of a run at its resume, one by one."""
    unlisted = set(ALLOWED) ^ set(MAY_CHANGE)
    assert not unlisted, f"give another value in ALLOWED for what may change: {unlisted}"
    made = reference(bench.prepared("settings"))
    broken = interrupted(bench.prepared("settings_interrupted"), made)
    own = json.loads((broken / "config.json").read_text())
    rng = bench.rng("settings")
    for name in rng.sample(sorted(ALLOWED), bench.amount(len(ALLOWED))):
        yield Case(f"allowed {name}", _allowed(broken, made, name))
    refused = sorted(_refused(own))
    for name, before, after in rng.sample(refused, bench.amount(len(refused))):
        yield Case(f"refused {name}", _refusal(broken, name, before, after))


def _refused(own: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Names of settings that may not change, with the value and another one."""
    for name, value in _leaves(own):
        parts = name.split(".")
        prefixes = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        if prefixes & (LOCATION | set(MAY_CHANGE)):
            continue
        if isinstance(value, bool):
            yield name, repr(value), str(not value).lower()
        elif isinstance(value, int):
            yield name, repr(value), repr(value + 1)
        elif isinstance(value, float):
            yield name, repr(value), repr(value / 2 + 0.125)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, dict):
            yield from _leaves(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def _allowed(broken: Path, made: Reference, name: str) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        run = copied(broken, folder)
        before = contents(run)
        lines = (run / "metrics.jsonl").read_bytes()
        ended = run_command((*RESUME, f"--{name}", ALLOWED[name]), folder)
        if ended.status != 0:  # it has no effect in this run, or this machine cannot do it
            is_whole = ended.is_refusal and contents(run) == before
            return survived() if is_whole else lost(crash(ended))
        if name in EXTENDING:
            is_longer = (run / "metrics.jsonl").read_bytes().startswith(lines)
            return survived() if is_longer else wrong("earlier metrics differ")
        found = difference(run, made.run)
        is_pruned = name.startswith("logging.") and found and found.startswith("checkpoints/")
        return survived() if not found or is_pruned else wrong(found)

    return attempt


def _refusal(broken: Path, name: str, value: str, other: str) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        run = copied(broken, folder)
        before = contents(run)
        ended = run_command((*RESUME, f"--{name}", other), folder)
        if ended.status == 0:
            return wrong(f"{name} changed from {value} to {other}")
        if not ended.is_refusal or contents(run) != before:
            return lost(crash(ended))
        is_named = name in ended.errors or name.rpartition(".")[2] in ended.errors
        return survived() if is_named else lost(f"{name} is not named: {crash(ended)}")

    return attempt
