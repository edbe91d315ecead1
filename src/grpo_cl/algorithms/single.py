"""The reference for transfer: every domain is learned alone."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.policy.continual.shelf import Shelf


class SingleCL(CLAlgorithm):
    """Learns each domain from the policy the run started from, and measures each with its own."""

    stores = "weights"
    cost = "memory for one copy of the weights per domain"
    needs_domain = True
    shares_first_stage = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._learned_now: str | None = None

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._learner = trainer.policy.learner
        self._shelf = Shelf(self._learner)

    @override
    def before_task(self, domain: str) -> None:
        self._learned_now = domain
        self._shelf.load(self._shelf.start)
        self._learner.forget_moments()

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        self._shelf.put(domain, self._shelf.today())

    @override
    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        return nullcontext() if domain == self._learned_now else self._shelf.instead(domain)

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"cl/policies_kept": float(len(self._shelf))}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"learned_now": self._learned_now}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._learned_now = state["learned_now"]

    @override
    def save_state(self, folder: Path) -> None:
        self._shelf.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self._shelf.read(folder)
