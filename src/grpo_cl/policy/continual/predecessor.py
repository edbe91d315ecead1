"""The policy as it was when the previous stage ended."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor

from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.reference import restore, snapshot


class Predecessor:
    """Weights that take the policy's place for a while; nothing is loaded a second time."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    @classmethod
    def of(cls, policy: PolicyModel) -> "Predecessor":
        """What ``policy`` is now."""
        return cls(snapshot(policy.module))

    @contextmanager
    def in_place_of(self, policy: PolicyModel) -> Generator[None]:
        """Under it ``policy`` acts and scores as it did."""
        current = snapshot(policy.module)
        restore(policy.module, self.weights)
        try:
            yield
        finally:
            restore(policy.module, current)
