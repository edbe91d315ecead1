"""The rollouts of a step: played before it, or during the update of the step before it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from grpo_cl.runs.state_files import StateKind, restoring
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import write_file
from grpo_cl.trainer.collect import Batch
from grpo_cl.types import Record, TrajectoryGroup


class Rollouts(NamedTuple):
    """The groups of a step, and the counts of ``RolloutStats`` over their episodes."""

    batch: Batch
    counts: Mapping[str, float]


class _SavedRollouts(Record):
    """The contents of ``rollouts.json``."""

    groups: tuple[TrajectoryGroup, ...]
    num_resampled: int
    counts: dict[str, float]


SAVED = StateKind(
    "the rollouts of the next step", _SavedRollouts, "resume from an older checkpoint"
)


class RolloutsAhead:
    """Plays the episodes of the next step in a thread while the policy is updated."""

    def __init__(self) -> None:
        self._next: Future[Rollouts] | None = None

    def start(self, play: Callable[[], Rollouts]) -> None:
        """Begin the rollouts of the next step."""
        assert self._next is None, "rollouts are more than one step ahead"
        thread = ThreadPoolExecutor(1, "rollouts")
        self._next = thread.submit(play)
        thread.shutdown(wait=False)  # it ends with the rollouts

    def take(self) -> Rollouts | None:
        """The rollouts that were started or restored, when they have ended; None without any."""
        taken, self._next = self._next, None
        return None if taken is None else taken.result()

    def wait(self) -> None:
        """Wait until the rollouts have ended, and keep them for ``take``."""
        if self._next is not None:
            self._next.result()

    def save(self, path: Path) -> None:
        """Write the rollouts, if there are any, when they have ended."""
        if self._next is None:
            return
        batch, counts = self._next.result()
        saved = _SavedRollouts(
            groups=tuple(batch.groups), num_resampled=batch.num_resampled, counts=dict(counts)
        )
        write_file(path, [encode(saved.model_dump(mode="json"))])

    def load(self, path: Path) -> None:
        """Restore what ``save`` wrote; a checkpoint without rollouts has no file."""
        if not path.exists():
            return
        with restoring(path, SAVED):
            saved = _SavedRollouts.model_validate_json(path.read_bytes())
        batch = Batch(list(saved.groups), saved.num_resampled)
        self._next = Future()
        self._next.set_result(Rollouts(batch, saved.counts))

    def close(self) -> None:
        """Wait until the rollouts have ended or failed, and drop them."""
        ending, self._next = self._next, None
        if ending is not None:
            wait([ending])
