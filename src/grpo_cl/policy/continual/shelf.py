"""Policies kept by name, to be taken out again."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from grpo_cl.policy.continual.tensors import Tensors, load_tensors, save_tensors
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.reference import placed, whole


class Shelf:
    """Whole copies of the weights that learn, in main memory: a device has room for few.

    What was never kept is the policy the shelf was made with. A run makes its shelf before it goes
    back to a checkpoint, so that first policy is not written down. All ranks ask together.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kept: dict[str, Tensors] = {}
        self.start = self.today()

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, name: str) -> Tensors:
        return self._kept.get(name, self.start)

    def today(self) -> Tensors:
        """A copy of the policy of now."""
        return kept(self._learner.weights())

    def put(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Keep whole weights in the place of those of that name."""
        self._kept[name] = dict(weights)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Make whole weights the policy."""
        own = self._learner.weights()
        self._learner.load_weights({name: placed(w, own[name]) for name, w in weights.items()})

    @contextmanager
    def instead(self, name: str) -> Generator[None]:
        """The kept policy in the place of today's."""
        today = self._learner.weights()
        self.load(self[name])
        try:
            yield
        finally:
            self._learner.load_weights(today)

    def save(self, folder: Path) -> None:
        """Write what was kept."""
        flat = {
            f"{name}/{parameter}": weight
            for name, weights in self._kept.items()
            for parameter, weight in weights.items()
        }
        save_tensors(folder, flat, is_main=self._learner.ranks.is_main)

    def read(self, folder: Path) -> None:
        """Go on from ``save``."""
        self._kept = {}
        for full_name, weight in load_tensors(folder).items():
            name, _, parameter = full_name.rpartition("/")
            self._kept.setdefault(name, {})[parameter] = weight


def kept(weights: Mapping[str, Tensor]) -> Tensors:
    """Whole copies in main memory."""
    return {name: whole(weight.detach()).to("cpu", copy=True) for name, weight in weights.items()}
