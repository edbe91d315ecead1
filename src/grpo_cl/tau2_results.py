"""Scored episodes as τ²-bench's results file, and back.

What both can express is kept exactly: tasks, messages, how an episode ended, its seed, and the
reward with its checks. Tokens and calls of models have no place in that file. What only we know of
a reward stands in ``reward_info.info``, which τ²-bench leaves to whoever writes it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from grpo_cl.domains import Domain
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards import RewardOracle, Scored
from grpo_cl.rewards.criteria import check_actions
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

OWN = "grpo_cl"
"""Under which the file keeps what only this project writes."""
_UNTOLD = ("basis_name", "not_judged", "reason", "agreement", "judgement")
_SOLO_AGENT, _AGENT = "llm_agent_solo", "llm_agent"
_SOLO_USER, _USER = "dummy_user", "user_simulator"
_TYPES = {"calculate": "generic", "transfer_to_human_agents": "generic", "think": "think"}
"""Tools that neither read nor write, by the type τ²-bench gives them."""
_PARTS = ("DB", "ENV_ASSERTION", "NL_ASSERTION", "ACTION", "COMMUNICATE")
"""The components that τ²-bench knows."""


class About(Record):
    """What a results file says about all its simulations."""

    timestamp: str
    """Of the file; episodes do not keep the time of day, so it stands for theirs too."""
    commit: str = "unknown"
    agent: str | None = None
    """The model that was measured."""
    user: str | None = None
    """The model that played the user."""
    max_steps: int = 200
    max_errors: int = 10
    seed: int | None = None


def to_results(domain: Domain, episodes: Sequence[Scored], about: About) -> dict[str, Any]:
    """The contents of a results file; all episodes are of one domain, as τ²-bench has it."""
    tasks: dict[str, Task] = {}
    for trajectory, reward in episodes:
        _require_known(domain, trajectory, reward)
        known = tasks.setdefault(trajectory.task.id, trajectory.task)
        if known != trajectory.task:
            raise TaskDataError(
                f"two tasks are called {known.id!r}; a results file has one of each name, "
                "so write each release of the tasks to a file of its own"
            )
    trials: Counter[str] = Counter()
    simulations: list[dict[str, Any]] = []
    for scored in episodes:
        task_id = scored.trajectory.task.id
        simulations.append(_simulation(scored, about, trial=trials[task_id]))
        trials[task_id] += 1
    solo = all(trajectory.solo for trajectory, _ in episodes)
    return {
        "timestamp": about.timestamp,
        "info": _info(domain, about, num_trials=max(trials.values(), default=0), solo=solo),
        "tasks": [task.model_dump(mode="json", exclude={"domain"}) for task in tasks.values()],
        "simulations": simulations,
    }


def _require_known(domain: Domain, trajectory: Trajectory, reward: Reward) -> None:
    task = trajectory.task
    if task.domain != domain.name:
        raise TaskDataError(
            f"task {task.id!r} is of {task.domain!r} in a results file of {domain.name!r}; "
            "name one domain with --domain"
        )
    if unknown := [part.value for part in reward.components if part.value not in _PARTS]:
        raise TaskDataError(f"τ²-bench knows no component {unknown[0]!r} of a reward")


def _info(domain: Domain, about: About, *, num_trials: int, solo: bool) -> dict[str, Any]:
    return {
        "git_commit": about.commit,
        "num_trials": num_trials,
        "max_steps": about.max_steps,
        "max_errors": about.max_errors,
        "user_info": {
            "implementation": _SOLO_USER if solo else _USER,
            "llm": about.user,
            "llm_args": None,
            "global_simulation_guidelines": None,
        },
        "agent_info": {
            "implementation": _SOLO_AGENT if solo else _AGENT,
            "llm": about.agent,
            "llm_args": None,
        },
        "environment_info": {
            "domain_name": domain.name,
            "policy": domain.policy_text(solo=solo),
            "tool_defs": None,
        },
        "seed": about.seed,
    }


def _simulation(scored: Scored, about: About, *, trial: int) -> dict[str, Any]:
    trajectory, reward = scored
    task = trajectory.task
    return {
        "id": f"{task.domain}-{task.id}-{trial}",
        "task_id": task.id,
        "timestamp": about.timestamp,
        "start_time": about.timestamp,
        "end_time": about.timestamp,
        "duration": trajectory.duration_s,
        "termination_reason": trajectory.termination.value,
        "agent_cost": None,
        "user_cost": None,
        "reward_info": _reward_info(task, reward),
        "messages": [_message(message, turn) for turn, message in enumerate(trajectory.messages)],
        "trial": trial,
        "seed": trajectory.seed,
        "info": {OWN: {"solo": trajectory.solo}},
    }


def _message(message: Message, turn: int) -> dict[str, Any]:
    names = {"role", "content"}
    names |= {"id", "requestor", "error"} if message.role == "tool" else {"tool_calls"}
    return {**message.model_dump(mode="json", include=names), "turn_idx": turn}


def _reward_info(task: Task, reward: Reward) -> dict[str, Any]:
    criteria = task.evaluation_criteria or EvaluationCriteria()
    parts, basis = reward.components, reward.basis
    own = reward.model_dump(mode="json", include=set(_UNTOLD))
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
                "tool_type": "write" if check.is_write else _TYPES.get(check.name, "read"),
            }
            for action, check in zip(task.gold_actions, reward.action_checks, strict=False)
        ],
        "nl_assertions": _judged(criteria, reward),
        "communicate_checks": [
            {"info": info, "met": met, "justification": ""}
            for info, met in zip(
                criteria.communicate_info or (), reward.communicate_checks, strict=False
            )
        ],
        "reward_basis": None if basis is None else [part.value for part in basis],
        "reward_breakdown": {part.value: parts[part] for part in basis or () if part in parts},
        "info": {OWN: own, **({"note": reward.reason} if reward.reason else {})},
    }


def _judged(criteria: EvaluationCriteria, reward: Reward) -> list[dict[str, Any]] | None:
    if RewardType.NL_ASSERTION not in reward.components:
        return None
    met = reward.judgement.met if reward.judgement else ()
    return [
        {"nl_assertion": text, "met": is_met, "justification": ""}
        for text, is_met in zip(criteria.nl_assertions or (), met, strict=False)
    ]


def from_results(results: Mapping[str, Any], domain: Domain, oracle: RewardOracle) -> list[Scored]:
    """The simulations of a results file; those that were not evaluated are scored."""
    try:
        info = results["info"]
        named = {"domain": info["environment_info"]["domain_name"]}
        tasks = [Task.model_validate({**task, **named}) for task in results["tasks"]]
        is_solo = info["agent_info"]["implementation"] == _SOLO_AGENT
        by_id = {task.id: task for task in tasks}
        found = [
            (_trajectory(entry, by_id[str(entry["task_id"])], solo=is_solo), entry["reward_info"])
            for entry in results["simulations"]
        ]
        return [
            Scored(episode, _reward(info, episode, domain) if info else oracle.score(episode))
            for episode, info in found
        ]
    except (KeyError, TypeError, ValidationError) as error:
        raise TaskDataError(
            f"no results of τ²-bench ({error!r}); a file has info, tasks and simulations with "
            "messages, as its runs save them in one piece"
        ) from error


def _trajectory(entry: Mapping[str, Any], task: Task, *, solo: bool) -> Trajectory:
    own = (entry.get("info") or {}).get(OWN) or {}
    # Answers to several calls may be one message.
    told = [part for told in entry["messages"] for part in told.get("tool_messages", [told])]
    return Trajectory(
        task=task,
        messages=tuple(Message.model_validate(message) for message in told),
        termination=entry["termination_reason"],
        solo=own.get("solo", solo),
        seed=entry.get("seed") or 0,
        duration_s=entry["duration"],
    )


def _reward(info: Mapping[str, Any], trajectory: Trajectory, domain: Domain) -> Reward:
    own = (info.get("info") or {}).get(OWN) or {"basis_name": "tau2"}
    actions = _action_checks(info.get("action_checks") or (), trajectory, domain)
    held = tuple(check["met"] for check in info.get("env_assertions") or ())
    told = tuple(check["met"] for check in info.get("communicate_checks") or ())
    matched = [check.match for check in actions]
    return Reward.model_validate(
        {
            "value": info["reward"],
            "basis": info["reward_basis"],
            "components": _components(info, held=held, matched=matched, told=told),
            "action_checks": actions,
            "env_assertions": held,
            "communicate_checks": told,
            "tool_accuracy": sum(matched) / len(matched) if matched else None,
            **own,
        }
    )


def _components(
    info: Mapping[str, Any], *, held: Sequence[bool], matched: Sequence[bool], told: Sequence[bool]
) -> dict[RewardType, float]:
    """Each component that was evaluated: where the database was, all that need no judge were."""
    if info.get("db_check") is None:
        breakdown = info.get("reward_breakdown") or {}
        return {RewardType(part): value for part, value in breakdown.items()}
    parts = {
        RewardType.DB: float(info["db_check"]["db_reward"]),
        RewardType.ENV_ASSERTION: float(all(held)),
        RewardType.ACTION: float(all(matched)),
        RewardType.COMMUNICATE: float(all(told)),
    }
    if (judged := info.get("nl_assertions")) is not None:
        parts[RewardType.NL_ASSERTION] = float(all(check["met"] for check in judged))
    return parts


def _action_checks(
    checks: Sequence[Mapping[str, Any]], trajectory: Trajectory, domain: Domain
) -> tuple[ActionCheck, ...]:
    """τ²-bench's verdicts, with ours on names and arguments, which it does not tell."""
    if not checks:
        return ()
    actions = [Action.model_validate(check["action"]) for check in checks]
    environment = domain.environment(trajectory.task, solo=trajectory.solo)
    found = check_actions(environment, actions, trajectory.tool_calls)
    return tuple(
        own.model_copy(update={"match": check["action_match"]})
        for own, check in zip(found, checks, strict=True)
    )
