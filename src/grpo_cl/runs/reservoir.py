"""Reservoir sampling of one domain's episodes, with indexes for fast draws."""

from array import array
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import fsum
from random import Random
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from grpo_cl.runs.stored_records import StoredRecords
from grpo_cl.types import Record, RewardType, Task, Trajectory

Strategy = Literal["random", "high_reward", "recent", "has_variance"]
"""``random`` uniform; ``high_reward`` the highest rewards, ties at random; ``recent`` the last
episodes, up to 256 of them, and then the newest kept ones; ``has_variance`` episodes of tasks whose
kept rewards differ."""

NUM_LATEST = 256
"""Last episodes of a domain that are kept besides the reservoir's uniform sample."""


class Experience(Record):
    """One kept episode."""

    trajectory: Trajectory
    reward: float
    """The reward of the oracle, never a shaped one."""
    step: int
    """The policy update it was played for."""
    advantage: float | tuple[float, ...] | None = None
    """The advantage in its update, one number or one per turn; None after an infrastructure error
    and in files that have none."""
    components: dict[RewardType, float] = Field(default_factory=dict)
    """The components of the reward that could be computed; empty in files that have none."""
    basis_name: str = "tau2"
    """The rule by which the components make up the reward, as in ``Reward``."""
    timestamp: str | None = None
    """UTC time at which the episode was added, ISO 8601; None in files that have none."""

    @property
    def task(self) -> Task:
        """The task that was played."""
        return self.trajectory.task

    @property
    def mean_advantage(self) -> float:
        """The advantage as one number: the mean over turns; 0 where there is none."""
        if isinstance(self.advantage, tuple):
            return fmean(self.advantage) if self.advantage else 0.0
        return self.advantage or 0.0


class Slots:
    """A set of slot numbers with constant-time add, remove and random draw.

    Sets without a common slot share ``positions``: where each slot stands in its set.
    """

    def __init__(self, positions: "array[int]", order: Iterable[int] = ()) -> None:
        self.order = array("q", order)
        self._positions = positions
        for position, slot in enumerate(self.order):
            positions[slot] = position

    def add(self, slot: int) -> None:
        """Append ``slot``, which is not in the set."""
        self._positions[slot] = len(self.order)
        self.order.append(slot)

    def remove(self, slot: int) -> None:
        """Remove ``slot``; the last slot takes its position."""
        last = self.order.pop()
        position = self._positions[slot]
        if last != slot:
            self.order[position] = last
            self._positions[last] = position

    def draw(self, count: int, rng: Random) -> list[int]:
        """``count`` random slots, or all."""
        chosen = rng.sample(range(len(self.order)), min(count, len(self.order)))
        return [self.order[position] for position in chosen]


class TaskSlots:
    """The slots of one task's episodes, and the count of each reward."""

    def __init__(self) -> None:
        self.slots: set[int] = set()
        self.rewards: Counter[float] = Counter()


class Reservoir:
    """The kept episodes of one domain in numbered slots, indexed by age, reward and task.

    The indexes take about 200 bytes per episode; saved episodes are read when they are drawn.
    """

    def __init__(self) -> None:
        self.records = StoredRecords(Experience)
        self._seen = 0
        # By slot: which offer filled it, its reward and task, its places in two of the indexes.
        self._offers = array("q")
        self._reward_of = array("d")
        self._task_of: list[str] = []
        self._level_positions = array("q")
        self._varied_positions = array("q")
        self._by_reward: dict[float, Slots] = {}
        self._rewards: list[float] = []  # distinct rewards, ascending
        self._tasks: dict[str, TaskSlots] = {}
        self._varied = Slots(self._varied_positions)  # slots of tasks whose rewards differ
        self._latest: deque[tuple[int, Experience]] = deque(maxlen=NUM_LATEST)  # offers, records

    @classmethod
    def restored(
        cls, saved: Mapping[str, Any], records: StoredRecords[Experience], tasks: Sequence[str]
    ) -> "Reservoir":
        """Restore a reservoir from its ``order``, its records and the task of each of them."""
        reservoir = cls()
        count = len(records)
        reservoir.records, reservoir._task_of = records, list(tasks)
        reservoir._offers = array("q", saved["offers"])
        if len(reservoir._offers) != count:
            raise ValueError("the number of offers differs from the number of records")
        reservoir._seen = int(saved["seen"])
        reservoir._restore_rewards(saved["by_reward"], count)
        reservoir._restore_tasks(saved["varied"])
        slots = reservoir._slots_since(
            min((offer for offer, _ in saved.get("latest", ())), default=0)
        )
        for offer, record in saved.get("latest", ()):
            slot = slots.get(offer)
            known = Experience.model_validate(record) if slot is None else records[slot]
            reservoir._latest.append((offer, known))
        return reservoir

    def _restore_rewards(
        self, by_reward: Sequence[tuple[float, Sequence[int]]], count: int
    ) -> None:
        if sorted(slot for _, order in by_reward for slot in order) != list(range(count)):
            raise ValueError("the order of the slots does not match the records")
        self._reward_of = array("d", bytes(8 * count))
        self._level_positions = array("q", bytes(8 * count))
        for reward, order in by_reward:
            self._by_reward[float(reward)] = Slots(self._level_positions, order)
            for slot in order:
                self._reward_of[slot] = reward
        self._rewards = sorted(self._by_reward)

    def _restore_tasks(self, varied: Sequence[int]) -> None:
        for slot, name in enumerate(self._task_of):
            task = self._tasks.setdefault(name, TaskSlots())
            task.slots.add(slot)
            task.rewards[self._reward_of[slot]] += 1
        found = {s for task in self._tasks.values() if len(task.rewards) > 1 for s in task.slots}
        if set(varied) != found or len(varied) != len(found):
            raise ValueError("the order of the slots does not match the records")
        self._varied_positions = array("q", bytes(8 * len(self.records)))
        self._varied = Slots(self._varied_positions, varied)

    def order(self) -> dict[str, Any]:
        """State besides the records that draws depend on."""
        slots = self._slots_since(self._latest[0][0] if self._latest else 0)
        return {
            "seen": self._seen,
            "offers": self._offers.tolist(),
            "by_reward": [
                [reward, self._by_reward[reward].order.tolist()] for reward in self._rewards
            ],
            "by_task": [[name, sorted(task.slots)] for name, task in self._tasks.items()],
            "varied": self._varied.order.tolist(),
            "latest": [
                [offer, None if offer in slots else record.model_dump(mode="json")]
                for offer, record in self._latest
            ],
        }

    def offer(self, record: Experience, *, capacity: int, rng: Random) -> None:
        """Keep ``record`` with the probability that makes all records so far equally likely."""
        self._seen += 1
        self._latest.append((self._seen, record))
        slot = len(self.records)
        if slot < capacity:
            self.records.append(record)
            for positions in (self._offers, self._level_positions, self._varied_positions):
                positions.append(0)
            self._reward_of.append(0.0)
            self._task_of.append("")
        else:
            # Algorithm R of Vitter 1985, doi:10.1145/3147.3165.
            slot = rng.randrange(self._seen)
            if slot >= len(self.records):
                return
            self._leave(slot)
            self.records[slot] = record
        self._enter(slot, record)

    def statistics(self, high_reward: float) -> dict[str, float]:
        """Size and rewards, in time linear in the number of distinct rewards."""
        counts = {reward: len(slots.order) for reward, slots in self._by_reward.items()}
        size = len(self.records)
        return {
            "size": size,
            "seen": self._seen,
            "reward_mean": fsum(reward * count for reward, count in counts.items()) / size,
            "reward_max": self._rewards[-1],
            "reward_min": self._rewards[0],
            "num_high_reward": self.num_rewarded(high_reward),
        }

    def num_rewarded(self, min_reward: float) -> int:
        """The number of records with at least ``min_reward``."""
        levels = self._by_reward.items()
        return sum(len(slots.order) for reward, slots in levels if reward >= min_reward)

    def rewarded(self, min_reward: float) -> Iterator[Experience]:
        """The records with at least ``min_reward``, one at a time."""
        for slot, reward in enumerate(self._reward_of):
            if reward >= min_reward:
                yield self.records[slot]

    def _slots_since(self, first: int) -> dict[int, int]:
        """The slots that were filled by the offer ``first`` or a later one, by offer."""
        return {offer: slot for slot, offer in enumerate(self._offers) if offer >= first}

    def _enter(self, slot: int, record: Experience) -> None:
        self._offers[slot] = self._seen
        reward = self._reward_of[slot] = record.reward
        name = self._task_of[slot] = record.task.id
        if reward not in self._by_reward:
            self._by_reward[reward] = Slots(self._level_positions)
            insort(self._rewards, reward)
        self._by_reward[reward].add(slot)
        task = self._tasks.setdefault(name, TaskSlots())
        was_varied = len(task.rewards) > 1
        task.slots.add(slot)
        task.rewards[reward] += 1
        if len(task.rewards) > 1:
            for other in (slot,) if was_varied else sorted(task.slots):
                self._varied.add(other)

    def _leave(self, slot: int) -> None:
        reward, name = self._reward_of[slot], self._task_of[slot]
        level = self._by_reward[reward]
        level.remove(slot)
        if not level.order:
            del self._by_reward[reward]
            del self._rewards[bisect_left(self._rewards, reward)]
        task = self._tasks[name]
        if len(task.rewards) > 1:
            gone = task.slots if _is_last_different(task, reward) else (slot,)
            for other in sorted(gone):
                self._varied.remove(other)
        task.slots.remove(slot)
        task.rewards[reward] -= 1
        if not task.rewards[reward]:
            del task.rewards[reward]
        if not task.slots:
            del self._tasks[name]

    # The sampling strategies; none scans all records.

    def draw_random(self, count: int, rng: Random) -> list[Experience]:
        """Uniformly random episodes."""
        return self._at(rng.sample(range(len(self.records)), min(count, len(self.records))))

    def draw_high_reward(self, count: int, rng: Random) -> list[Experience]:
        """The episodes with the highest rewards, ties at random."""
        chosen: list[int] = []
        for reward in reversed(self._rewards):
            chosen += self._by_reward[reward].draw(count - len(chosen), rng)
            if len(chosen) == count:
                break
        return self._at(chosen)

    def draw_recent(self, count: int, rng: Random) -> list[Experience]:
        """The last episodes and then the newest kept ones, newest first."""
        del rng
        latest = [record for _, record in reversed(self._latest)]
        first = self._latest[0][0] if self._latest else self._seen + 1
        older = (slot for slot, offer in enumerate(self._offers) if offer < first)
        missing = max(0, count - len(latest))
        newest = nlargest(missing, older, key=self._offers.__getitem__) if missing else ()
        return [*latest, *self._at(newest)][:count]

    def draw_has_variance(self, count: int, rng: Random) -> list[Experience]:
        """Episodes of tasks whose rewards differ."""
        return self._at(self._varied.draw(count, rng))

    def _at(self, slots: Iterable[int]) -> list[Experience]:
        return [self.records[slot] for slot in slots]


STRATEGIES: dict[str, Callable[[Reservoir, int, Random], list[Experience]]] = {
    "random": Reservoir.draw_random,
    "high_reward": Reservoir.draw_high_reward,
    "recent": Reservoir.draw_recent,
    "has_variance": Reservoir.draw_has_variance,
}


def _is_last_different(task: TaskSlots, reward: float) -> bool:
    """Whether this reward alone differs from the other rewards of the task."""
    return len(task.rewards) == 2 and task.rewards[reward] == 1


def even_shares(count: int, domains: Sequence[str], rng: Random) -> dict[str, int]:
    """``count`` divided evenly among the domains; the remainder goes to random ones."""
    share, rest = divmod(count, len(domains))
    extra = set(rng.sample(range(len(domains)), rest))
    return {name: share + (index in extra) for index, name in enumerate(domains)}
