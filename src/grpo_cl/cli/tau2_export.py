"""``grpo-cl export-tau2`` and ``import-tau2``: episodes as τ²-bench's results files, and back."""

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo_cl.config import default_data_dir
from grpo_cl.domains import Domain, load_domain
from grpo_cl.episodes import episode_line, read_episode
from grpo_cl.errors import ConfigError
from grpo_cl.recordings import Recording, execute
from grpo_cl.rewards import RewardOracle, Scored
from grpo_cl.rundir import RunDir, encode, read_journal, read_json, write_file
from grpo_cl.rundir.environment import source_commit
from grpo_cl.tau2_results import About, from_results, to_results
from grpo_cl.types import Task


class _Domains(dict[str, Domain]):
    """Domains, loaded when they are first asked for."""

    def __init__(self, data_dir: Path | None) -> None:
        super().__init__()
        self._data_dir = data_dir or default_data_dir()

    def __missing__(self, name: str) -> Domain:
        self[name] = load_domain(name, self._data_dir)
        return self[name]


def export_results(arguments: argparse.Namespace) -> int:
    """Write the episodes of a run or a file as results."""
    domains = _Domains(arguments.tau2_data_dir)
    episodes = [
        scored
        for scored in _episodes(arguments.source, domains)
        if arguments.domain in {None, scored.trajectory.task.domain}
    ]
    names = sorted({scored.trajectory.task.domain for scored in episodes})
    if len(names) != 1:
        told = ", ".join(names) or "none"
        raise ConfigError(f"a results file is of one domain and here are: {told}; use --domain")
    results = to_results(domains[names[0]], episodes, _about(arguments.source))
    write_file(arguments.out, [encode(results, indent=2), "\n"])
    print(f"{len(episodes)} episodes written to {arguments.out}")
    return 0


def import_results(arguments: argparse.Namespace) -> int:
    """Write the simulations of a results file as episodes, a line each."""
    results = read_json(arguments.file)
    domains = _Domains(arguments.tau2_data_dir)
    try:
        name = results["info"]["environment_info"]["domain_name"]
    except (KeyError, TypeError):
        raise ConfigError(f"{arguments.file} names no domain; is it τ²-bench's?") from None
    episodes = from_results(results, domains[name], RewardOracle(domains))
    lines = (f"{encode(_line(scored))}\n" for scored in episodes)
    write_file(arguments.out, lines)
    print(f"{len(episodes)} episodes written to {arguments.out}")
    return 0


def _line(scored: Scored) -> dict[str, Any]:
    """An episode with its task, which may be of another release than the tasks here."""
    return {**episode_line(*scored), "task": scored.trajectory.task.model_dump(mode="json")}


def _episodes(source: Path, domains: _Domains) -> Iterator[Scored]:
    path = RunDir(source).trajectories_journal if source.is_dir() else source
    if not path.is_file():
        raise ConfigError(f"no episodes at {path}; give a run directory or a file of JSON lines")
    oracle = RewardOracle(domains)
    for entry in read_journal(path):
        yield _scored(entry, domains, oracle)


def _scored(entry: Mapping[str, Any], domains: _Domains, oracle: RewardOracle) -> Scored:
    """One line: an episode of a journal or of ours, or a recording whose calls are executed."""
    given = entry.get("input", entry)
    if "termination_reason" in given:
        recording = Recording.model_validate(given)
        domain = domains[recording.domain]
        played = execute(domain, domain.task(recording.task_id), recording).trajectory
        return Scored(played, oracle.score(played))
    name = entry.get("domain")
    if not isinstance(name, str) or not isinstance(entry.get("task_id"), str):
        raise ConfigError(f"a line names no domain and task_id; it has {', '.join(entry)}")
    domain = domains[name]
    told = entry.get("task")
    task = domain.task(entry["task_id"]) if told is None else Task.model_validate(told)
    return read_episode(entry, task, oracle)


def _about(source: Path) -> About:
    """What the run says of itself; a file says nothing."""
    path = RunDir(source).config
    config: Mapping[str, Any] = read_json(path) if source.is_dir() and path.exists() else {}
    rollout, user = config.get("rollout", {}), config.get("user", {})
    limits = {name: rollout[name] for name in ("max_steps", "max_errors") if name in rollout}
    return About(
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=source_commit() or "unknown",
        agent=config.get("model_name_or_path"),
        user=user.get("model"),
        seed=config.get("seed"),
        **limits,
    )
