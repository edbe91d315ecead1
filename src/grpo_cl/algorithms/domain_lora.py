"""One adapter per domain: nothing is forgotten, because nothing is shared."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.policy.continual.adapters import is_new, new_adapter, require_adapter
from grpo_cl.policy.continual.shelf import Shelf
from grpo_cl.types import Record


class DomainLoraOptions(Record):
    """How an adapter begins."""

    warm_start: bool = False
    """Whether a domain goes on with the adapter of the one before."""


class DomainLoraCL(CLAlgorithm[DomainLoraOptions]):
    """Learns each domain in an adapter of its own, which is chosen by the domain's name."""

    options_type = DomainLoraOptions
    stores = "weights"
    cost = "memory for one adapter per domain"
    needs_domain = True
    shares_first_stage = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._learned_now: str | None = None

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._config = trainer.config
        self._learner = trainer.policy.learner
        require_adapter(self._learner, "domain_lora")
        self._shelf = Shelf(self._learner)

    @override
    def before_task(self, domain: str) -> None:
        self._learned_now = domain
        if domain == self._config.task_order[0]:
            return  # the adapter the run started with is new
        if not self.options.warm_start:
            self._begin_adapter(domain)
        self._learner.forget_moments()

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        self._shelf.put(domain, self._shelf.today())

    @override
    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        return nullcontext() if domain == self._learned_now else self._shelf.instead(domain)

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"cl/adapters": float(len(self._shelf) + 1)}

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

    def _begin_adapter(self, domain: str) -> None:
        start = self._shelf.start
        if is_new(start):
            seed = Random(f"{self._config.seed}/adapter/{domain}").getrandbits(48)
            start = new_adapter(start, seed)
        self._shelf.load(start)
