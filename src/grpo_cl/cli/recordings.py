"""``grpo-cl score``, ``export-tau2``, ``import-tau2``: recorded episodes and τ²-bench results."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from grpo_cl.config import (
    GRPOConfig,
    JudgeConfig,
    ModelsConfig,
    default_data_dir,
    hosted_model_name,
)
from grpo_cl.envs import Domain, load_domain
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.integrations.recorded_episodes import compare_rewards, episode_file, read_recorded
from grpo_cl.integrations.tau2_results import (
    ResultsInfo,
    from_results,
    results_domain,
    to_results,
)
from grpo_cl.llm import ModelPool
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rewards.judge import LLMJudge
from grpo_cl.rewards.oracle import BasisName
from grpo_cl.rollout.recordings import Recording, execute, score_recording
from grpo_cl.runs.environment import source_commit
from grpo_cl.runs.episodes import self_contained_line
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.runs.settings import read_settings
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import read_json, write_file
from grpo_cl.types import Reward


class _Domains(dict[str, Domain]):
    """Domains by name, as a run configured them, others loaded on first use."""

    def __init__(
        self, data_dir: Path | None, config: GRPOConfig | None, *, tools: str | None = None
    ) -> None:
        given = {"tau2_data_dir": data_dir, "tools": tools}
        if config is not None:
            update = {name: value for name, value in given.items() if value is not None}
            config = config.model_copy(update=update)
        self._tools = tools
        super().__init__(TaskDataLoader(config).domains if config else {})
        self._data_dir = data_dir or default_data_dir()

    def __missing__(self, name: str) -> Domain:
        self[name] = load_domain(name, self._data_dir, tools=self._tools)
        return self[name]


def score(arguments: argparse.Namespace) -> int:
    """Score the episodes of a run or a file again; prints one JSON object per line.

    Returns 1 if a reward differs from the recorded one.
    """
    path = episode_file(arguments.source)
    run_config = _run_config(path)
    domains = _Domains(arguments.tau2_data_dir, run_config, tools=arguments.tools)
    with ModelPool(run_config.models if run_config else ModelsConfig()) as models:
        name = arguments.judge and hosted_model_name(arguments.judge)
        config = JudgeConfig(model=name, base_url=arguments.judge_base_url)
        judge = LLMJudge(models, config) if config.model else None

        @cache
        def oracle(basis: BasisName) -> RewardOracle:
            return RewardOracle(domains, basis=basis, judge=judge, models=models)

        differing: list[bool] = []
        for episode in read_recorded(path, domains):
            if isinstance(episode, Recording):
                basis = arguments.basis or "tau2"
                result = score_recording(domains[episode.domain], oracle(basis), episode)
            else:
                basis = arguments.basis or _recorded_basis(episode.reward)
                result = compare_rewards(episode, oracle(basis).score(episode.trajectory))
                differing.append(bool(result["differences"]))
            print(json.dumps(result), flush=True)
    if differing:
        count = f"{sum(differing)} of {len(differing)} episodes"
        print(f"{count} differ from their recorded reward", file=sys.stderr)
    return int(any(differing))


def _recorded_basis(reward: Reward | None) -> BasisName:
    return "judge_free" if reward is not None and reward.basis_name == "judge_free" else "tau2"


def export_results(arguments: argparse.Namespace) -> int:
    """Write the episodes of a run or a file as a τ²-bench results file."""
    path = episode_file(arguments.source)
    domains = _Domains(arguments.tau2_data_dir, _run_config(path))
    episodes = [
        scored
        for scored in _scored_episodes(path, domains)
        if arguments.domain in {None, scored.trajectory.task.domain}
    ]
    names = sorted({scored.trajectory.task.domain for scored in episodes})
    if len(names) != 1:
        found = ", ".join(names) or "none"
        wanted = "one domain" if arguments.domain is None else repr(arguments.domain)
        raise ConfigError(
            f"a results file needs episodes of {wanted}, {arguments.source} has {found}; "
            "choose one of its domains with --domain"
        )
    results = to_results(domains[names[0]], episodes, _results_info(arguments.source))
    write_file(arguments.out, [encode(results, indent=2), "\n"])
    print(f"{len(episodes)} episodes written to {arguments.out}")
    return 0


def import_results(arguments: argparse.Namespace) -> int:
    """Write the simulations of a results file as episodes, one per line."""
    domains = _Domains(arguments.tau2_data_dir, None)
    try:
        results = json.loads(arguments.file.read_bytes())
        name = results_domain(results)
    except TaskDataError as error:
        raise ConfigError(f"{arguments.file} is {error}") from error
    except ValueError as error:
        raise ConfigError(f"{arguments.file} is not a JSON file: {error}") from error
    episodes = from_results(results, domains[name], RewardOracle(domains))
    lines = (f"{encode(self_contained_line(*scored))}\n" for scored in episodes)
    write_file(arguments.out, lines)
    print(f"{len(episodes)} episodes written to {arguments.out}")
    return 0


def _run_config(path: Path) -> GRPOConfig | None:
    """The configuration of the run or checkpoint that a file of episodes belongs to."""
    run = RunDir(path.parent.parent)
    if path.parent == run.evaluations_dir and run.config.is_file():
        return read_settings(run.config)
    config = CheckpointFiles(path.parent).config
    own = (RunDir(path.parent).trajectories_journal, CheckpointFiles(path.parent).trajectories)
    return read_settings(config) if path in own and config.is_file() else None


def _scored_episodes(path: Path, domains: _Domains) -> Iterator[ScoredTrajectory]:
    oracle = RewardOracle(domains)
    for episode in read_recorded(path, domains):
        if isinstance(episode, Recording):
            domain = domains[episode.domain]
            trajectory = execute(domain, domain.task(episode.task_id), episode).trajectory
            yield ScoredTrajectory(trajectory, oracle.score(trajectory))
        else:
            yield episode.scored(oracle)


def _results_info(source: Path) -> ResultsInfo:
    """Metadata from the run's config; without it for a file of episodes."""
    path = RunDir(source).config
    config: Mapping[str, Any] = read_json(path) if source.is_dir() and path.exists() else {}
    rollout, user = config.get("rollout", {}), config.get("user", {})
    limits = {name: rollout[name] for name in ("max_steps", "max_errors") if name in rollout}
    return ResultsInfo(
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=source_commit() or "unknown",
        agent=config.get("model_name_or_path"),
        user=user.get("model"),
        seed=config.get("seed"),
        **limits,
    )
