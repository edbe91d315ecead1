"""The base of the algorithms with one policy per domain, selected by domain at evaluation."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, Options, TrainerView
from grpo_cl.policy.continual.policy_store import PolicyStore


class RoutedCL(CLAlgorithm[Options]):
    """Stores the policy of each stage, and evaluates each domain with its own."""

    stores = "weights"
    needs_domain = True
    shares_first_stage = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.trained_domain: str | None = None

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self.policies = PolicyStore(trainer.policy.learner)

    @override
    def before_task(self, domain: str) -> None:
        self.trained_domain = domain

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        self.policies.put(domain, self.policies.current_weights())

    @override
    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        is_current = domain == self.trained_domain
        return nullcontext() if is_current else self.policies.swapped_in(domain)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"learned_now": self.trained_domain}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trained_domain = state["learned_now"]

    @override
    def save_state(self, folder: Path) -> None:
        self.policies.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self.policies.load(folder)
