"""Training batches and evaluation tasks of each domain."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from random import Random
from typing import Any

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import Domain, domain_for
from grpo_cl.errors import ConfigError
from grpo_cl.types import Task

INITIAL_COMPETENCE = 0.1
"""Share of the tasks, easiest first, with which a curriculum starts."""


class TaskDataLoader:
    """Draws training batches and selects evaluation tasks; test tasks are never drawn."""

    def __init__(self, config: GRPOConfig, *, domains: Mapping[str, Domain] | None = None) -> None:
        self.config = config
        self.domains: dict[str, Domain] = dict(
            domains or {name: domain_for(config, name) for name in config.task_order}
        )
        self._train: dict[str, list[Task]] = {}
        self._evaluation: dict[tuple[str, str | None], list[Task]] = {}
        self._drawn: Counter[str] = Counter()
        self._observed: dict[str, dict[str, list[int]]] = {name: {} for name in self.domains}

    @property
    def releases(self) -> dict[str, str]:
        """The task release of each domain, with that of generated tasks if the run uses them."""
        has_generated = bool(self.config.tasks.generated or self.config.evaluation.generated)
        return {
            name: domain.release_with_generated
            if has_generated and domain.can_generate
            else domain.release
            for name, domain in self.domains.items()
        }

    def train_tasks(self, domain: str) -> list[Task]:
        """All training tasks; generated tasks come last."""
        if domain not in self._train:
            tasks = self._own_train_tasks(domain)
            tasks += self._generated(domain, self._num_generated(domain), "train")
            self._train[domain] = tasks[: self.config.max_tasks_per_domain]
        return self._train[domain]

    def require_train_tasks(self, domain: str) -> None:
        """Refuse a domain without training tasks; none are generated for it."""
        if not self._own_train_tasks(domain) and not self._num_generated(domain):
            raise ConfigError(self._no_train_tasks(domain))

    def evaluation_tasks(self, domain: str, split: str | None = None) -> list[Task]:
        """The tasks of an evaluation; every call returns the same tasks."""
        key = (domain, split)
        if key not in self._evaluation:
            tasks = self._evaluation_tasks(domain, split)
            self._evaluation[key] = tasks[: self.config.evaluation.max_tasks]
        return self._evaluation[key]

    def require_evaluation_tasks(self, domain: str) -> None:
        """Refuse a domain without evaluation tasks; none are generated for it."""
        section, split = self.config.evaluation, self.config.tasks.eval_split
        if section.generated and not self._domain(domain).can_generate:
            raise ConfigError(
                f"evaluation.generated={section.generated} needs a task generator, which domain "
                f"{domain!r} does not have; set evaluation.generated=0 to evaluate on its split "
                f"{split!r}"
            )
        if section.generated:
            return
        if not own_tasks(self._domain(domain), split, self.config.train_split):
            raise ConfigError(
                f"split {split!r} of domain {domain!r} has no task with "
                f"train_split={self.config.train_split}; lower train_split"
            )

    def _own_train_tasks(self, domain: str) -> list[Task]:
        own = self.config.tasks.own
        return own_tasks(self._domain(domain), "train", self.config.train_split) if own else []

    def _num_generated(self, domain: str) -> int:
        """Generated training tasks; none in a domain without a generator."""
        return self.config.tasks.generated if self._domain(domain).can_generate else 0

    def _no_train_tasks(self, domain: str) -> str:
        section, can_generate = self.config.tasks, self._domain(domain).can_generate
        own = f"train_split={self.config.train_split}" if section.own else "tasks.own=false"
        given = f"tasks.generated={section.generated}" if can_generate else "no task generator"
        change = "raise train_split" if section.own else "set tasks.own=true"
        more = " or tasks.generated above 0" if can_generate else ""
        return f"domain {domain!r} has no training tasks: {own} and {given}; {change}{more}"

    def _evaluation_tasks(self, domain: str, split: str | None) -> list[Task]:
        section = self.config.evaluation
        if section.generated and split is None:
            return self._generated(domain, section.generated, "test")
        split = split or self.config.tasks.eval_split
        tasks = own_tasks(self._domain(domain), split, self.config.train_split)
        tasks = tasks[: section.max_tasks]
        train_ids = {task.id for task in self.train_tasks(domain)}
        num_shared = sum(task.id in train_ids for task in tasks)
        if num_shared:
            warnings.warn(
                f"{num_shared} of the {len(tasks)} tasks of {domain}/{split} are training tasks; "
                "report split 'test' instead",
                stacklevel=2,
            )
        return tasks

    def next_batch(self, domain: str, count: int) -> list[Task]:
        """``count`` training tasks; distinct unless the domain has fewer or an epoch ends."""
        tasks = self.train_tasks(domain)
        if not tasks:
            raise ConfigError(self._no_train_tasks(domain))
        start = self._drawn[domain]
        self._drawn[domain] += count
        batch: list[Task] = []
        while len(batch) < count:
            size = min(count - len(batch), len(tasks))
            batch += _STRATEGIES[self.config.tasks.strategy](self, domain, start + len(batch), size)
        return batch

    def give_back(self, domain: str, count: int) -> None:
        """Undo the last ``count`` draws, for tasks that were not played; they are drawn again."""
        self._drawn[domain] -= count

    def observe(self, task: Task, *, successes: int, trials: int) -> None:
        """Record the outcomes of a training task, for the ``weighted`` strategy."""
        counts = self._observed[task.domain].setdefault(task.id, [0, 0])
        counts[0] += successes
        counts[1] += trials

    def state_dict(self) -> dict[str, Any]:
        """The loader's position and observations, as plain JSON."""
        observed = {name: dict(tasks) for name, tasks in self._observed.items()}
        return {"drawn": dict(self._drawn), "observed": observed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self._drawn = Counter(state["drawn"])
        self._observed = {
            name: {task: list(counts) for task, counts in state["observed"].get(name, {}).items()}
            for name in self.domains
        }

    def _domain(self, name: str) -> Domain:
        if name not in self.domains:
            known = ", ".join(self.domains)
            raise ConfigError(f"domain {name!r} is not in task_order; known here: {known}")
        return self.domains[name]

    def _generated(self, domain: str, count: int, split: str) -> list[Task]:
        if not count:
            return []
        # Runs with different seeds are evaluated on the same tasks.
        seed = self.config.seed if split == "train" else 0
        level = self.config.tasks.difficulty_of(domain)
        return self._domain(domain).generate(seed=seed, count=count, split=split, difficulty=level)

    def _rng(self, domain: str, purpose: str, number: int) -> Random:
        return Random(f"{self.config.seed}/{domain}/{purpose}/{number}")

    # Strategies: functions of the seed and the position, so the position is the state.

    def _random(self, domain: str, position: int, count: int) -> list[Task]:
        return self._rng(domain, "random", position).sample(self.train_tasks(domain), count)

    def _epoch(self, domain: str, position: int, count: int) -> list[Task]:
        tasks = self.train_tasks(domain)
        epoch, offset = divmod(position, len(tasks))
        order = self._rng(domain, "epoch", epoch).sample(tasks, len(tasks))
        return order[offset : offset + count]

    def _curriculum(self, domain: str, position: int, count: int) -> list[Task]:
        # Competence-based pacing of Platanios et al. 2019, arXiv:1903.09848, square root.
        tasks = sorted(self.train_tasks(domain), key=lambda task: (difficulty(task), task.id))
        progress = min(1.0, position / self.config.tasks.curriculum_draws)
        competence = sqrt(progress * (1 - INITIAL_COMPETENCE**2) + INITIAL_COMPETENCE**2)
        unlocked = max(count, round(competence * len(tasks)))
        return self._rng(domain, "curriculum", position).sample(tasks[:unlocked], count)

    def _weighted(self, domain: str, position: int, count: int) -> list[Task]:
        rng = self._rng(domain, "weighted", position)
        observed = self._observed[domain]

        def key(task: Task) -> float:
            successes, trials = observed.get(task.id, (0, 0))
            rate = (successes + 1) / (trials + 2)
            # Sampling without replacement by weight: Efraimidis and Spirakis 2006.
            return rng.random() ** (1 / (rate * (1 - rate)))

        # Highest keys first: a caller that replaces part of a batch replaces the last tasks.
        return sorted(self.train_tasks(domain), key=key, reverse=True)[:count]


_STRATEGIES: dict[str, Callable[[TaskDataLoader, str, int, int], list[Task]]] = {
    "random": TaskDataLoader._random,
    "epoch": TaskDataLoader._epoch,
    "curriculum": TaskDataLoader._curriculum,
    "weighted": TaskDataLoader._weighted,
}


def difficulty(task: Task) -> float:
    """The difficulty of a generated task, else the number of gold actions mapped to [0, 1]."""
    if task.difficulty is not None:
        return task.difficulty
    return min(1.0, len(task.gold_actions) / 10)


HELD_OUT = ("train", "test")
"""Splits that every domain has: one without them is divided by ``train_split``."""


def own_tasks(domain: Domain, split: str, train_share: float) -> list[Task]:
    """The tasks of a split; a domain without splits is divided by ``train_share``."""
    if split in domain.splits:
        return list(domain.tasks(split))
    if split not in HELD_OUT:
        known = ", ".join(sorted({*domain.splits, *HELD_OUT}))
        raise ConfigError(f"domain {domain.name!r} has no split {split!r}; known: {known}")
    # Ranked by a hash of the id, so that all runs and seeds hold out the same tasks.
    ranked = sorted(domain.tasks("base"), key=_rank)
    cut = round(train_share * len(ranked))
    return _in_file_order(domain, ranked[:cut] if split == "train" else ranked[cut:])


def _in_file_order(domain: Domain, tasks: Sequence[Task]) -> list[Task]:
    order = {task_id: index for index, task_id in enumerate(domain.splits["base"])}
    return sorted(tasks, key=lambda task: order[task.id])


def _rank(task: Task) -> str:
    return hashlib.sha256(task.id.encode()).hexdigest()
