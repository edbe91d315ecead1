"""What the algorithms share that keep a policy for each domain and measure it with that one."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, Options, TrainerView
from grpo_cl.policy.continual.shelf import Shelf


class RoutedCL(CLAlgorithm[Options]):
    """Puts what a stage learned on a shelf, and measures each domain with its own."""

    stores = "weights"
    needs_domain = True
    shares_first_stage = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.learned_now: str | None = None

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self.learner = trainer.policy.learner
        self.shelf = Shelf(self.learner)

    @override
    def before_task(self, domain: str) -> None:
        self.learned_now = domain

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        self.shelf.put(domain, self.shelf.today())

    @override
    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        return nullcontext() if domain == self.learned_now else self.shelf.instead(domain)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"learned_now": self.learned_now}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learned_now = state["learned_now"]

    @override
    def save_state(self, folder: Path) -> None:
        self.shelf.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self.shelf.read(folder)
