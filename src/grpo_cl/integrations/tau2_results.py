"""Exports scored episodes as a τ²-bench results file and imports them back.

Tasks, messages, termination, seed, and the reward with its checks are kept exactly. Token ids and
model calls are not part of the file. Reward fields that τ²-bench does not have are stored in
``reward_info.info``, which it leaves free.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from grpo_cl.envs import Domain
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rewards.criteria import check_actions
from grpo_cl.runs.episodes import RecordedEpisode
from grpo_cl.types import (
    Action,
    ActionCheck,
    EvaluationCriteria,
    Message,
    Record,
    Reward,
    RewardType,
    Task,
    Trajectory,
)

EXTRA_KEY = "grpo_cl"
"""Key of the fields that only this project writes."""
_EXTRA_REWARD_FIELDS = ("basis_name", "not_judged", "reason", "agreement", "judgement")
_SOLO_AGENT, _AGENT = "llm_agent_solo", "llm_agent"
_SOLO_USER, _USER = "dummy_user", "user_simulator"
_TOOL_TYPES = {"calculate": "generic", "transfer_to_human_agents": "generic", "think": "think"}
"""τ²-bench's types of the tools that neither read nor write."""
_COMPONENTS = ("DB", "ENV_ASSERTION", "NL_ASSERTION", "ACTION", "COMMUNICATE")
"""Reward components of τ²-bench."""


class ResultsInfo(Record):
    """Metadata of a results file, common to all its simulations."""

    timestamp: str
    """Time of the export; also used as start and end time of the episodes, which have none."""
    commit: str = "unknown"
    agent: str | None = None
    """The evaluated model."""
    user: str | None = None
    """The user's model."""
    max_steps: int = 200
    max_errors: int = 10
    seed: int | None = None


def to_results(
    domain: Domain, episodes: Sequence[ScoredTrajectory], info: ResultsInfo
) -> dict[str, Any]:
    """The contents of a results file; as in τ²-bench, all episodes are of one domain."""
    tasks: dict[str, Task] = {}
    for trajectory, reward in episodes:
        _require_exportable(domain, trajectory, reward)
        first = tasks.setdefault(trajectory.task.id, trajectory.task)
        if first != trajectory.task:
            raise TaskDataError(
                f"two different tasks have the id {first.id!r}; export each task release to a "
                "separate file"
            )
    trials: Counter[str] = Counter()
    simulations: list[dict[str, Any]] = []
    for scored in episodes:
        task_id = scored.trajectory.task.id
        simulations.append(_simulation(scored, info, trial=trials[task_id]))
        trials[task_id] += 1
    solo = all(trajectory.solo for trajectory, _ in episodes)
    return {
        "timestamp": info.timestamp,
        "info": _info(domain, info, num_trials=max(trials.values(), default=0), solo=solo),
        "tasks": [task.model_dump(mode="json", exclude={"domain"}) for task in tasks.values()],
        "simulations": simulations,
    }


def _require_exportable(domain: Domain, trajectory: Trajectory, reward: Reward) -> None:
    task = trajectory.task
    if task.domain != domain.name:
        raise TaskDataError(
            f"task {task.id!r} belongs to {task.domain!r}, the results file to {domain.name!r}; "
            "name one domain with --domain"
        )
    if unknown := [part.value for part in reward.components if part.value not in _COMPONENTS]:
        raise TaskDataError(f"τ²-bench has no reward component {unknown[0]!r}")


def _info(domain: Domain, info: ResultsInfo, *, num_trials: int, solo: bool) -> dict[str, Any]:
    return {
        "git_commit": info.commit,
        "num_trials": num_trials,
        "max_steps": info.max_steps,
        "max_errors": info.max_errors,
        "user_info": {
            "implementation": _SOLO_USER if solo else _USER,
            "llm": info.user,
            "llm_args": None,
            "global_simulation_guidelines": None,
        },
        "agent_info": {
            "implementation": _SOLO_AGENT if solo else _AGENT,
            "llm": info.agent,
            "llm_args": None,
        },
        "environment_info": {
            "domain_name": domain.name,
            "policy": domain.policy_text(solo=solo),
            "tool_defs": None,
        },
        "seed": info.seed,
    }


def _simulation(scored: ScoredTrajectory, info: ResultsInfo, *, trial: int) -> dict[str, Any]:
    trajectory, reward = scored
    task = trajectory.task
    return {
        "id": f"{task.domain}-{task.id}-{trial}",
        "task_id": task.id,
        "timestamp": info.timestamp,
        "start_time": info.timestamp,
        "end_time": info.timestamp,
        "duration": trajectory.duration_s,
        "termination_reason": trajectory.termination.value,
        "agent_cost": None,
        "user_cost": None,
        "reward_info": _reward_info(task, reward),
        "messages": [_message(message, turn) for turn, message in enumerate(trajectory.messages)],
        "trial": trial,
        "seed": trajectory.seed,
        "info": {EXTRA_KEY: {"solo": trajectory.solo}},
    }


def _message(message: Message, turn: int) -> dict[str, Any]:
    names = {"role", "content"}
    names |= {"id", "requestor", "error"} if message.role == "tool" else {"tool_calls"}
    return {**message.model_dump(mode="json", include=names), "turn_idx": turn}


def _reward_info(task: Task, reward: Reward) -> dict[str, Any]:
    criteria = task.evaluation_criteria or EvaluationCriteria()
    parts, basis = reward.components, reward.basis
    extra = reward.model_dump(mode="json", include=set(_EXTRA_REWARD_FIELDS))
    return {
        "reward": reward.value,
        "db_check": None
        if RewardType.DB not in parts
        else {"db_match": bool(parts[RewardType.DB]), "db_reward": parts[RewardType.DB]},
        "env_assertions": [
            {"env_assertion": entry.model_dump(mode="json"), "met": met, "reward": float(met)}
            for entry, met in zip(
                criteria.env_assertions or (), reward.env_assertions, strict=False
            )
        ],
        "action_checks": [
            {
                "action": action.model_dump(mode="json"),
                "action_match": check.match,
                "action_reward": float(check.match),
                "tool_type": "write" if check.is_write else _TOOL_TYPES.get(check.name, "read"),
            }
            for action, check in zip(task.gold_actions, reward.action_checks, strict=False)
        ],
        "nl_assertions": _nl_assertions(criteria, reward),
        "communicate_checks": [
            {"info": info, "met": met, "justification": ""}
            for info, met in zip(
                criteria.communicate_info or (), reward.communicate_checks, strict=False
            )
        ],
        "reward_basis": None if basis is None else [part.value for part in basis],
        "reward_breakdown": {part.value: parts[part] for part in basis or () if part in parts},
        "info": {EXTRA_KEY: extra, **({"note": reward.reason} if reward.reason else {})},
    }


def _nl_assertions(criteria: EvaluationCriteria, reward: Reward) -> list[dict[str, Any]] | None:
    if RewardType.NL_ASSERTION not in reward.components:
        return None
    met = reward.judgement.met if reward.judgement else ()
    return [
        {"nl_assertion": text, "met": is_met, "justification": ""}
        for text, is_met in zip(criteria.nl_assertions or (), met, strict=False)
    ]


def from_results(
    results: Mapping[str, Any], domain: Domain, oracle: RewardOracle
) -> list[ScoredTrajectory]:
    """Read the simulations of a results file; those without a reward are scored."""
    return [episode.scored(oracle) for episode in read_simulations(results, domain)]


def results_domain(results: Mapping[str, Any]) -> str:
    """The name of the domain of a results file."""
    try:
        return results["info"]["environment_info"]["domain_name"]
    except (KeyError, TypeError) as error:
        raise _not_results(error) from error


def read_simulations(results: Mapping[str, Any], domain: Domain) -> list[RecordedEpisode]:
    """The simulations of a results file with their recorded rewards."""
    try:
        info = results["info"]
        domain_field = {"domain": info["environment_info"]["domain_name"]}
        tasks = [Task.model_validate({**task, **domain_field}) for task in results["tasks"]]
        is_solo = info["agent_info"]["implementation"] == _SOLO_AGENT
        by_id = {task.id: task for task in tasks}
        episodes = [
            (_trajectory(entry, by_id[str(entry["task_id"])], solo=is_solo), entry["reward_info"])
            for entry in results["simulations"]
        ]
        return [
            RecordedEpisode(
                trajectory, _reward(reward_info, trajectory, domain) if reward_info else None
            )
            for trajectory, reward_info in episodes
        ]
    except (KeyError, TypeError, ValidationError) as error:
        raise _not_results(error) from error


def _not_results(error: Exception) -> TaskDataError:
    return TaskDataError(
        f"not a τ²-bench results file ({error!r}); a file has info, tasks and simulations with "
        "messages, saved as a single JSON file"
    )


def _trajectory(entry: Mapping[str, Any], task: Task, *, solo: bool) -> Trajectory:
    extra = (entry.get("info") or {}).get(EXTRA_KEY) or {}
    # One message may hold the results of several calls.
    messages = [
        part for message in entry["messages"] for part in message.get("tool_messages", [message])
    ]
    return Trajectory(
        task=task,
        messages=tuple(Message.model_validate(message) for message in messages),
        termination=entry["termination_reason"],
        solo=extra.get("solo", solo),
        seed=entry.get("seed") or 0,
        duration_s=entry["duration"],
    )


def _reward(info: Mapping[str, Any], trajectory: Trajectory, domain: Domain) -> Reward:
    extra = (info.get("info") or {}).get(EXTRA_KEY) or {"basis_name": "tau2"}
    actions = _action_checks(info.get("action_checks") or (), trajectory, domain)
    assertions = tuple(check["met"] for check in info.get("env_assertions") or ())
    communicated = tuple(check["met"] for check in info.get("communicate_checks") or ())
    matched = [check.match for check in actions]
    return Reward.model_validate(
        {
            "value": info["reward"],
            "basis": info["reward_basis"],
            "components": _components(
                info, assertions=assertions, matched=matched, communicated=communicated
            ),
            "action_checks": actions,
            "env_assertions": assertions,
            "communicate_checks": communicated,
            "tool_accuracy": sum(matched) / len(matched) if matched else None,
            **extra,
        }
    )


def _components(
    info: Mapping[str, Any],
    *,
    assertions: Sequence[bool],
    matched: Sequence[bool],
    communicated: Sequence[bool],
) -> dict[RewardType, float]:
    """The evaluated components; a database check implies all components that need no judge."""
    if info.get("db_check") is None:
        breakdown = info.get("reward_breakdown") or {}
        return {RewardType(part): value for part, value in breakdown.items()}
    parts = {
        RewardType.DB: float(info["db_check"]["db_reward"]),
        RewardType.ENV_ASSERTION: float(all(assertions)),
        RewardType.ACTION: float(all(matched)),
        RewardType.COMMUNICATE: float(all(communicated)),
    }
    if (judged := info.get("nl_assertions")) is not None:
        parts[RewardType.NL_ASSERTION] = float(all(check["met"] for check in judged))
    return parts


def _action_checks(
    checks: Sequence[Mapping[str, Any]], trajectory: Trajectory, domain: Domain
) -> tuple[ActionCheck, ...]:
    """Action checks with τ²-bench's ``match`` and our name and argument checks, which it lacks."""
    if not checks:
        return ()
    actions = [Action.model_validate(check["action"]) for check in checks]
    environment = domain.environment(trajectory.task, solo=trajectory.solo)
    checked = check_actions(environment, actions, trajectory.tool_calls)
    return tuple(
        own.model_copy(update={"match": check["action_match"]})
        for own, check in zip(checked, checks, strict=True)
    )
