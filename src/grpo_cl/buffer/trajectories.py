"""Past experience: a fair sample of the episodes of each domain, saved and drawn from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

from grpo_cl.advantages import group_advantages, known_rewards
from grpo_cl.buffer.reservoir import STRATEGIES, Experience, Reservoir, Strategy
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.registry import pick
from grpo_cl.rundir import encode, write_file
from grpo_cl.types import SUCCESS, Task, TrajectoryGroup


class TrajectoryBuffer:
    """Keeps ``replay_buffer_size`` episodes of each domain, each as likely as any other."""

    def __init__(self, config: GRPOConfig, *, rng: Random | None = None) -> None:
        self.config = config
        self._rng = rng or Random(f"{config.seed}/buffer")
        self._reservoirs: dict[str, Reservoir] = {}

    def __len__(self) -> int:
        return sum(len(reservoir.records) for reservoir in self._reservoirs.values())

    @property
    def domains(self) -> list[str]:
        """Domains with episodes, in the order they were first seen."""
        return list(self._reservoirs)

    def records(self, domain: str) -> Sequence[Experience]:
        """Everything kept of ``domain``."""
        return tuple(self._reservoirs[domain].records) if domain in self._reservoirs else ()

    def add(self, group: TrajectoryGroup, step: int) -> None:
        """Offer the episodes of one task, played for the update ``step``."""
        reservoir = self._reservoirs.setdefault(group.task.domain, Reservoir())
        for trajectory, reward, advantage in zip(
            group.trajectories, group.rewards, self._advantages(group), strict=True
        ):
            record = Experience.model_construct(
                trajectory=trajectory,
                reward=_finite(reward.value, group.task),
                step=step,
                advantage=advantage,
            )
            reservoir.offer(record, capacity=self.config.replay_buffer_size, rng=self._rng)

    def sample(self, domain: str, count: int, strategy: Strategy = "random") -> list[Experience]:
        """Draw ``count`` different episodes of ``domain``, or as many as there are."""
        draw = pick(STRATEGIES, strategy, "sampling strategy")
        reservoir = self._reservoirs.get(domain)
        if reservoir is None:
            return []
        return [reservoir.records[slot] for slot in draw(reservoir, count, self._rng)]

    def sample_multi_domain(
        self,
        *,
        domains: Sequence[str],
        num_samples_per_domain: int,
        strategy: Strategy = "random",
    ) -> list[Experience]:
        """Draw from each of ``domains`` in turn."""
        return [
            record
            for domain in domains
            for record in self.sample(domain, num_samples_per_domain, strategy)
        ]

    def get_statistics(self, *, high_reward: float = SUCCESS) -> dict[str, dict[str, float]]:
        """Size and rewards of each domain; an episode counts as good from ``high_reward`` on."""
        return {
            domain: reservoir.statistics(high_reward)
            for domain, reservoir in self._reservoirs.items()
        }

    def export_trajectories(self, path: str | PathLike[str], *, min_reward: float = -inf) -> int:
        """Write the episodes of at least ``min_reward``, one JSON line each; return the count."""
        chosen = [
            record
            for reservoir in self._reservoirs.values()
            for record in reservoir.records
            if record.reward >= min_reward
        ]
        write_file(Path(path), (f"{_line(record)}\n" for record in chosen))
        return len(chosen)

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything as one JSON document, an episode per line.

        Drawing goes on from it as if never interrupted.
        """
        write_file(Path(path), self._document())

    def load(self, path: str | PathLike[str]) -> None:
        """Take the place of what ``save`` wrote; more than the capacity stays until replaced."""
        try:
            state = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read trajectories {path}: {error.strerror}") from error
        except ValueError as error:
            raise TaskDataError(f"{path} is no JSON: {error}; it was not saved whole") from error
        try:
            self._restore(state)
        except (KeyError, TypeError, ValueError) as error:
            raise TaskDataError(
                f"{path} is no saved buffer: {error!r}; give a trajectories.json of a checkpoint"
            ) from error

    def _restore(self, state: Mapping[str, Any]) -> None:
        version, words, gauss = state["rng"]
        reservoirs = {
            domain: Reservoir.restored(saved) for domain, saved in state["domains"].items()
        }
        self._rng.setstate((version, tuple(words), gauss))
        self._reservoirs = reservoirs

    def _advantages(self, group: TrajectoryGroup) -> tuple[float | None, ...]:
        """Each episode's, while its peers are at hand; the buffer may keep it without them."""
        known = known_rewards(group, group.training_rewards)
        return group_advantages(known, self.config.loss.advantage)

    def _document(self) -> Iterator[str]:
        """The document in pieces, so that a large buffer is never in memory twice."""
        yield f'{{"rng": {encode(self._rng.getstate())},\n"domains": {{'
        for place, (domain, reservoir) in enumerate(self._reservoirs.items()):
            order = encode(reservoir.order())
            yield f'{"," if place else ""}\n{encode(domain)}: {order[:-1]}, "records": ['
            for number, record in enumerate(reservoir.records):
                yield f"{',' if number else ''}\n{_line(record)}"
            yield "]}"
        yield "}}\n"


def _finite(reward: float, task: Task) -> float:
    if not isfinite(reward):
        raise TaskDataError(f"task {task.id!r} was rewarded with {reward}, which is no number")
    return reward


def _line(record: Experience) -> str:
    return encode(record.model_dump(mode="json"))
