"""Which tasks a step trains on and which an evaluation uses."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from random import Random
from typing import Any

from grpo_cl.config import GRPOConfig
from grpo_cl.domains import Domain, load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.types import Task

FIRST_SHARE = 0.1
"""Share of the tasks, easiest first, that a curriculum starts with."""


class TaskDataLoader:
    """Training batches and evaluation tasks of each domain; training never sees a test id."""

    def __init__(self, config: GRPOConfig, *, domains: Mapping[str, Domain] | None = None) -> None:
        self.config = config
        self.domains: dict[str, Domain] = dict(
            domains
            or {
                name: load_domain(name, config.tau2_data_dir).configured(config)
                for name in config.task_order
            }
        )
        self._train: dict[str, list[Task]] = {}
        self._drawn: Counter[str] = Counter()
        self._observed: dict[str, dict[str, list[int]]] = {name: {} for name in self.domains}

    @property
    def releases(self) -> dict[str, str]:
        """The task release of each domain, for the record of a run."""
        return {name: domain.release for name, domain in self.domains.items()}

    def train_tasks(self, domain: str) -> list[Task]:
        """All tasks that training may draw, generated ones last."""
        if domain not in self._train:
            chosen = self.config.tasks
            own = own_tasks(self._domain(domain), "train", self.config.train_split)
            tasks = own if chosen.own else []
            tasks += self._generated(domain, chosen.generated, "train")
            self._train[domain] = tasks[: self.config.max_tasks_per_domain]
        return self._train[domain]

    def evaluation_tasks(self, domain: str, split: str | None = None) -> list[Task]:
        """The tasks of an evaluation, the same ones at every call."""
        measured = self.config.evaluation
        if measured.generated and split is None:
            return self._generated(domain, measured.generated, "test")
        split = split or self.config.tasks.eval_split
        tasks = own_tasks(self._domain(domain), split, self.config.train_split)
        tasks = tasks[: measured.max_tasks]
        trained = {task.id for task in self.train_tasks(domain)}
        shared = sum(task.id in trained for task in tasks)
        if shared:
            warnings.warn(
                f"{shared} of the {len(tasks)} tasks of {domain}/{split} are training tasks; "
                "report split 'test' instead",
                stacklevel=2,
            )
        return tasks

    def next_batch(self, domain: str, count: int) -> list[Task]:
        """``count`` training tasks; they differ unless the domain has fewer or an epoch ends."""
        tasks = self.train_tasks(domain)
        if not tasks:
            raise ConfigError(f"domain {domain!r} has no training tasks; see tasks.generated")
        start = self._drawn[domain]
        self._drawn[domain] += count
        batch: list[Task] = []
        while len(batch) < count:
            size = min(count - len(batch), len(tasks))
            batch += _STRATEGIES[self.config.tasks.strategy](self, domain, start + len(batch), size)
        return batch

    def give_back(self, domain: str, count: int) -> None:
        """Undo the last ``count`` draws, of tasks that were not played; they are drawn again."""
        self._drawn[domain] -= count

    def observe(self, task: Task, *, successes: int, trials: int) -> None:
        """Tell how a training task went, for the ``weighted`` strategy."""
        seen = self._observed[task.domain].setdefault(task.id, [0, 0])
        seen[0] += successes
        seen[1] += trials

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, as plain JSON."""
        observed = {name: dict(tasks) for name, tasks in self._observed.items()}
        return {"drawn": dict(self._drawn), "observed": observed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where ``state_dict`` was taken."""
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
        # Whoever is trained with another seed is measured on the same tasks.
        seed = self.config.seed if split == "train" else 0
        level = self.config.tasks.difficulty_of(domain)
        return self._domain(domain).generate(seed=seed, count=count, split=split, difficulty=level)

    def _rng(self, domain: str, purpose: str, number: int) -> Random:
        return Random(f"{self.config.seed}/{domain}/{purpose}/{number}")

    # The strategies. Each is a function of the seed and the position, so a position is a state.

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
        passed = min(1.0, position / self.config.tasks.curriculum_draws)
        share = sqrt(passed * (1 - FIRST_SHARE**2) + FIRST_SHARE**2)
        unlocked = max(count, round(share * len(tasks)))
        return self._rng(domain, "curriculum", position).sample(tasks[:unlocked], count)

    def _weighted(self, domain: str, position: int, count: int) -> list[Task]:
        rng = self._rng(domain, "weighted", position)
        observed = self._observed[domain]

        def key(task: Task) -> float:
            successes, trials = observed.get(task.id, (0, 0))
            rate = (successes + 1) / (trials + 2)
            # Sampling without replacement by weight: Efraimidis and Spirakis 2006.
            return rng.random() ** (1 / (rate * (1 - rate)))

        ranked = sorted(
            ((key(task), task) for task in self.train_tasks(domain)), key=_first, reverse=True
        )
        # The best first: whoever leaves out some of a batch leaves out the last.
        return [task for _, task in ranked[:count]]


def _first(pair: tuple[float, Task]) -> float:
    return pair[0]


_STRATEGIES: dict[str, Callable[[TaskDataLoader, str, int, int], list[Task]]] = {
    "random": TaskDataLoader._random,
    "epoch": TaskDataLoader._epoch,
    "curriculum": TaskDataLoader._curriculum,
    "weighted": TaskDataLoader._weighted,
}


def difficulty(task: Task) -> float:
    """How hard a task is: a generator's own dial, else the number of gold actions on its scale."""
    if task.difficulty is not None:
        return task.difficulty
    return min(1.0, len(task.gold_actions) / 10)


def own_tasks(domain: Domain, split: str, train_share: float) -> list[Task]:
    """The tasks of a split; a domain that has none of its own is divided by ``train_share``."""
    if split in domain.splits or split not in {"train", "test"}:
        return list(domain.tasks(split))
    # By a hash of the id, so that every run and every seed agrees on what is held out.
    ranked = sorted(domain.tasks("base"), key=_rank)
    cut = round(train_share * len(ranked))
    return _in_file_order(domain, ranked[:cut] if split == "train" else ranked[cut:])


def _in_file_order(domain: Domain, tasks: Sequence[Task]) -> list[Task]:
    order = {task_id: place for place, task_id in enumerate(domain.splits["base"])}
    return sorted(tasks, key=lambda task: order[task.id])


def _rank(task: Task) -> str:
    return hashlib.sha256(task.id.encode()).hexdigest()
