"""A fair sample of one domain's episodes in bounded space, and fast ways to draw from it."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import fsum
from random import Random
from typing import Any, Literal

from grpo_cl.types import Record, Task, Trajectory

Strategy = Literal["random", "high_reward", "recent", "has_variance"]
"""``random`` all alike; ``high_reward`` the best, by chance among equals; ``recent`` the newest of
those kept; ``has_variance`` those of tasks that went well at one time and badly at another."""


class Experience(Record):
    """One kept episode."""

    trajectory: Trajectory
    reward: float
    """What the oracle gave, never a shaped value."""
    step: int
    """The policy update it was played for."""
    advantage: float | None = None
    """Over its group as it was learned from, by ``loss.advantage``; None if it had none, or if the
    file it comes from does not tell."""

    @property
    def task(self) -> Task:
        """The task that was played."""
        return self.trajectory.task


class Slots:
    """Numbers that are added, removed and drawn in constant time, in an order of their own."""

    def __init__(self, order: Iterable[int] = ()) -> None:
        self.order = list(order)
        self._place = {slot: place for place, slot in enumerate(self.order)}

    def add(self, slot: int) -> None:
        """Put ``slot``, which is not here, at the end."""
        self._place[slot] = len(self.order)
        self.order.append(slot)

    def remove(self, slot: int) -> None:
        """Take ``slot`` out; the last one takes its place."""
        last = self.order.pop()
        place = self._place.pop(slot)
        if last != slot:
            self.order[place] = last
            self._place[last] = place

    def draw(self, count: int, rng: Random) -> list[int]:
        """``count`` of them by chance, or all."""
        return rng.sample(self.order, min(count, len(self.order)))


class TaskSlots:
    """Where the episodes of one task are, and how often each reward occurs among them."""

    def __init__(self) -> None:
        self.slots: set[int] = set()
        self.rewards: Counter[float] = Counter()


class Reservoir:
    """The kept episodes of one domain in numbered slots, and what is needed to find them fast."""

    def __init__(self) -> None:
        self.records: list[Experience] = []
        self._seen = 0
        self._offers: list[int] = []  # which offer filled each slot
        self._by_age: dict[int, int] = {}  # slots by that offer, oldest first
        self._by_reward: dict[float, Slots] = {}
        self._rewards: list[float] = []  # those that occur, ascending
        self._tasks: dict[str, TaskSlots] = {}
        self._varied = Slots()  # of the tasks whose rewards differ

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Reservoir":
        """The reservoir whose ``order`` and records these are."""
        reservoir = cls()
        reservoir.records = [Experience.model_validate(record) for record in saved["records"]]
        reservoir._offers = list(saved["offers"])
        if len(reservoir._offers) != len(reservoir.records):
            raise ValueError("there are not as many offers as records")
        for slot in sorted(range(len(reservoir.records)), key=reservoir._offers.__getitem__):
            reservoir._enter(slot, reservoir._offers[slot])
        by_reward = {reward: Slots(order) for reward, order in saved["by_reward"]}
        varied = Slots(saved["varied"])
        if not _same(by_reward, reservoir._by_reward) or not _same(
            {0.0: varied}, {0.0: reservoir._varied}
        ):
            raise ValueError("the order of the slots does not fit the records")
        reservoir._seen, reservoir._by_reward, reservoir._varied = saved["seen"], by_reward, varied
        return reservoir

    def order(self) -> dict[str, Any]:
        """What the records do not tell; drawing depends on it."""
        return {
            "seen": self._seen,
            "offers": list(self._offers),
            "by_reward": [
                [reward, list(self._by_reward[reward].order)] for reward in self._rewards
            ],
            "varied": list(self._varied.order),
        }

    def offer(self, record: Experience, *, capacity: int, rng: Random) -> None:
        """Keep ``record`` with the chance that makes all records so far equally likely."""
        self._seen += 1
        slot = len(self.records)
        if slot < capacity:
            self.records.append(record)
            self._offers.append(self._seen)
        else:
            # Algorithm R of Vitter 1985, doi:10.1145/3147.3165.
            slot = rng.randrange(self._seen)
            if slot >= len(self.records):
                return
            self._leave(slot)
            self.records[slot] = record
            self._offers[slot] = self._seen
        self._enter(slot, self._seen)

    def statistics(self, high_reward: float) -> dict[str, float]:
        """Size and rewards, in time that grows with the number of different rewards only."""
        counts = {reward: len(slots.order) for reward, slots in self._by_reward.items()}
        size = len(self.records)
        return {
            "size": size,
            "seen": self._seen,
            "reward_mean": fsum(reward * count for reward, count in counts.items()) / size,
            "reward_max": self._rewards[-1],
            "reward_min": self._rewards[0],
            "num_high_reward": sum(
                count for reward, count in counts.items() if reward >= high_reward
            ),
        }

    def _enter(self, slot: int, offer: int) -> None:
        record = self.records[slot]
        self._by_age[offer] = slot
        if record.reward not in self._by_reward:
            self._by_reward[record.reward] = Slots()
            insort(self._rewards, record.reward)
        self._by_reward[record.reward].add(slot)
        task = self._tasks.setdefault(record.task.id, TaskSlots())
        was_varied = len(task.rewards) > 1
        task.slots.add(slot)
        task.rewards[record.reward] += 1
        if len(task.rewards) > 1:
            for other in (slot,) if was_varied else sorted(task.slots):
                self._varied.add(other)

    def _leave(self, slot: int) -> None:
        record = self.records[slot]
        del self._by_age[self._offers[slot]]
        level = self._by_reward[record.reward]
        level.remove(slot)
        if not level.order:
            del self._by_reward[record.reward]
            del self._rewards[bisect_left(self._rewards, record.reward)]
        task = self._tasks[record.task.id]
        if len(task.rewards) > 1:
            gone = task.slots if _is_odd_one(task, record.reward) else (slot,)
            for other in sorted(gone):
                self._varied.remove(other)
        task.slots.remove(slot)
        task.rewards[record.reward] -= 1
        if not task.rewards[record.reward]:
            del task.rewards[record.reward]
        if not task.slots:
            del self._tasks[record.task.id]

    # The strategies: which slots to draw, without looking at all of them.

    def draw_random(self, count: int, rng: Random) -> list[int]:
        """Any slots."""
        return rng.sample(range(len(self.records)), min(count, len(self.records)))

    def draw_high_reward(self, count: int, rng: Random) -> list[int]:
        """The best slots, by chance among equals."""
        chosen: list[int] = []
        for reward in reversed(self._rewards):
            chosen += self._by_reward[reward].draw(count - len(chosen), rng)
            if len(chosen) == count:
                break
        return chosen

    def draw_recent(self, count: int, rng: Random) -> list[int]:
        """The newest slots, newest first."""
        del rng
        return list(islice(reversed(self._by_age.values()), count))

    def draw_has_variance(self, count: int, rng: Random) -> list[int]:
        """Slots of tasks whose rewards differ."""
        return self._varied.draw(count, rng)


STRATEGIES: dict[str, Callable[[Reservoir, int, Random], list[int]]] = {
    "random": Reservoir.draw_random,
    "high_reward": Reservoir.draw_high_reward,
    "recent": Reservoir.draw_recent,
    "has_variance": Reservoir.draw_has_variance,
}


def _is_odd_one(task: TaskSlots, reward: float) -> bool:
    """Whether the other rewards of a task are all equal, but not to this one."""
    return len(task.rewards) == 2 and task.rewards[reward] == 1


def _same(some: Mapping[float, Slots], others: Mapping[float, Slots]) -> bool:
    return {reward: set(slots.order) for reward, slots in some.items()} == {
        reward: set(slots.order) for reward, slots in others.items()
    }
