"""Named weight snapshots of a policy: one per domain, a previous policy, or an average."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor

from grpo_cl.policy.continual.tensors import Tensors, flatten_groups, load_tensors, save_tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.weights import WeightSnapshot


class PolicyStore:
    """Snapshots of the optimizer's weights on the CPU: GPU memory has room for few copies.

    A name that was never stored stands for the initial policy. A run builds its store before it
    loads a checkpoint, so the initial policy is not saved. Every method is a collective.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._snapshots: dict[str, WeightSnapshot] = {}
        self.initial = self.current_weights()

    def __len__(self) -> int:
        return len(self._snapshots)

    def __getitem__(self, name: str) -> Tensors:
        snapshot = self._snapshots.get(name)
        return snapshot.tensors if snapshot else self.initial

    def current_weights(self) -> Tensors:
        """Unsharded copies of the current weights."""
        return WeightSnapshot.take(self._learner, on_cpu=True).tensors

    def put(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Store unsharded weights under ``name``."""
        self._snapshots[name] = WeightSnapshot(weights)

    def swapped_in(self, name: str) -> AbstractContextManager[None]:
        """A context in which the policy has the weights stored under ``name``."""
        return WeightSnapshot(self[name]).swapped_into(self._learner)

    def save(self, folder: Path) -> None:
        """Write all stored snapshots."""
        groups = {name: snapshot.tensors for name, snapshot in self._snapshots.items()}
        save_tensors(folder, flatten_groups(groups), is_main=self._learner.ranks.is_main)

    def load(self, folder: Path) -> None:
        """Restore the snapshots that ``save`` wrote."""
        groups: dict[str, Tensors] = {}
        for full_name, weight in load_tensors(folder).items():
            name, _, parameter = full_name.rpartition("/")
            groups.setdefault(name, {})[parameter] = weight
        self._snapshots = {name: WeightSnapshot(weights) for name, weights in groups.items()}
