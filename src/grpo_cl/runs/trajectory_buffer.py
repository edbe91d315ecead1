"""The replay buffer: a uniform sample of the episodes of each domain."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from math import inf, isfinite
from os import PathLike
from pathlib import Path
from random import Random

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.registry import pick
from grpo_cl.rewards.advantages import GroupAdvantages, compute_advantages
from grpo_cl.runs.buffer_exports import export_writer
from grpo_cl.runs.buffer_file import FORMAT, read_buffer
from grpo_cl.runs.reservoir import STRATEGIES, Experience, Reservoir, Strategy
from grpo_cl.runs.stored_records import Places, RecordFile
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import write_file
from grpo_cl.types import SUCCESS, Task, TrajectoryGroup, first_problem

MAX_IN_MEMORY = 10_000
"""Episodes that stay in memory after they were saved; one takes about 15 kB there."""


class TrajectoryBuffer:
    """Keeps ``replay_buffer_size`` episodes per domain by reservoir sampling."""

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
        """All kept episodes of ``domain``; those that were saved are read one at a time."""
        return self._reservoirs[domain].records if domain in self._reservoirs else ()

    def add(
        self, group: TrajectoryGroup, step: int, advantages: GroupAdvantages | None = None
    ) -> None:
        """Offer the episodes of one task, played for the update ``step``.

        ``advantages`` are those of the update; by default they are computed from the group.
        """
        if advantages is None:
            advantages = compute_advantages(group, group.training_rewards, self.config)
        reservoir = self._reservoirs.setdefault(group.task.domain, Reservoir())
        timestamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        for trajectory, reward, advantage in zip(
            group.trajectories, group.rewards, advantages, strict=True
        ):
            record = Experience.model_construct(
                trajectory=trajectory,
                reward=_finite(reward.value, group.task),
                step=step,
                advantage=advantage,
                components=reward.components,
                basis_name=reward.basis_name,
                timestamp=timestamp,
            )
            reservoir.offer(record, capacity=self.config.replay_buffer_size, rng=self._rng)

    def sample(self, domain: str, count: int, strategy: Strategy = "random") -> list[Experience]:
        """Draw ``count`` distinct episodes of ``domain``, or all if there are fewer."""
        draw = pick(STRATEGIES, strategy, "sampling strategy")
        reservoir = self._reservoirs.get(domain)
        if reservoir is None:
            return []
        return draw(reservoir, count, self._rng)

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
        """Size and rewards per domain; ``num_high_reward`` counts those from ``high_reward`` on."""
        return {
            domain: reservoir.statistics(high_reward)
            for domain, reservoir in self._reservoirs.items()
        }

    def export_trajectories(self, path: str | PathLike[str], *, min_reward: float = -inf) -> int:
        """Write the episodes with at least ``min_reward`` and return their number.

        The suffix selects the format: ``.jsonl`` one JSON object per line, ``.json`` a JSON array,
        ``.parquet`` a table.
        """
        write = export_writer(Path(path))
        reservoirs = self._reservoirs.values()
        write(Path(path), chain.from_iterable(each.rewarded(min_reward) for each in reservoirs))
        return sum(each.num_rewarded(min_reward) for each in reservoirs)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the buffer as one JSON document, an episode per line.

        Draws after ``load`` equal those of the saved buffer. More than ``MAX_IN_MEMORY`` episodes
        are read from the file from then on.
        """
        places = {domain: Places() for domain in self._reservoirs}
        write_file(Path(path), self._document(places))
        if len(self) > MAX_IN_MEMORY:
            file = RecordFile(Path(path))
            for domain, reservoir in self._reservoirs.items():
                reservoir.records.stored(file, places[domain])

    def load(self, path: str | PathLike[str]) -> None:
        """Restore what ``save`` wrote; records above the capacity stay until replaced.

        Episodes are read from the file when they are drawn.
        """
        try:
            state = read_buffer(Path(path))
        except OSError as error:
            raise ConfigError(f"cannot read trajectories {path}: {error.strerror}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise TaskDataError(
                f"{path} is not a saved buffer: {first_problem(error)}; give a trajectories.json "
                "of a checkpoint"
            ) from error
        self._rng.setstate(state.rng)
        self._reservoirs = state.reservoirs

    def _document(self, places: Mapping[str, Places]) -> Iterator[bytes]:
        """The document in pieces, so that a large buffer is not held in memory twice.

        ``places`` receives where the episodes stand.
        """
        position = 0
        for piece, domain in self._pieces():
            if domain is not None:
                places[domain].add(position, piece)
            position += len(piece)
            yield piece

    def _pieces(self) -> Iterator[tuple[bytes, str | None]]:
        """The pieces of the document, those that are an episode with its domain."""
        rng = encode(self._rng.getstate())
        yield f'{{"format": {FORMAT}, "rng": {rng},\n"domains": {{'.encode(), None
        for index, (domain, reservoir) in enumerate(self._reservoirs.items()):
            order = encode(reservoir.order())
            head = f'{"," if index else ""}\n{encode(domain)}: {order[:-1]}, "records": ['
            yield head.encode(), None
            for number, line in enumerate(reservoir.records.lines()):
                yield b",\n" if number else b"\n", None
                yield line, domain
            yield b"]}", None
        yield b"}}\n", None


def _finite(reward: float, task: Task) -> float:
    if not isfinite(reward):
        raise TaskDataError(f"task {task.id!r} has the reward {reward}, which is not finite")
    return reward
