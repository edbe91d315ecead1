"""What a continual-learning algorithm may do, and when."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol

from typing_extensions import TypeVar

from grpo_cl.buffer import TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Record, Task, TrajectoryGroup

Stored = Literal["nothing", "weights", "prompts", "trajectories", "environments"]


class TrainerView(Protocol):
    """What an algorithm sees of the trainer it is bound to."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer

    @property
    def policy(self) -> Any:
        """The policy that learns, a ``policy.runtime.PolicyRuntime``."""
        ...


class NoOptions(Record):
    """For algorithms that have nothing to set."""


Options = TypeVar("Options", bound=Record, default=NoOptions)


class CLAlgorithm(Generic[Options]):
    """Learns the domains one after another and does nothing else; others override its moments."""

    options_type: ClassVar[type[Record]] = NoOptions
    """What can be set; ``cl_options`` of a run is read as one of these."""
    stores: ClassVar[Stored] = "nothing"
    """What it keeps of earlier domains."""
    cost: ClassVar[str] = "none"
    """What a step costs besides the plain one."""
    needs_domain: ClassVar[bool] = False
    """Whether it must be told the domain when it is measured."""
    shares_first_stage: ClassVar[bool] = False
    """Whether it neither does nor notes anything before ``post_task_hook`` of the first domain, so
    that a campaign may train that stage once for all such algorithms."""

    def __init__(self, **options: Any) -> None:
        self.options: Options = self.options_type.model_validate(options)  # type: ignore[assignment]
        self.trainer: TrainerView | None = None

    def check(self, config: GRPOConfig) -> None:
        """Refuse a run with settings it cannot serve, before anything is loaded."""

    def bind(self, trainer: TrainerView) -> None:
        """Serve this trainer from now on; a policy it cannot serve is refused here."""
        self.trainer = trainer

    def before_task(self, domain: str) -> None:
        """Before the first step of a domain."""

    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        """The tasks of a step, given the new ones; each is played in its own domain."""
        del current_domain
        return new_tasks

    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        """The groups a step learns from, given those it played."""
        del current_domain
        return groups

    def shape_rewards(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        """The rewards a group is judged by."""
        del group
        return rewards

    def auxiliary_loss(self, policy: Any) -> Any:
        """A scalar tensor added to the loss of every update, or None."""
        del policy

    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        """Change the gradients in place, before they are clipped."""
        del parameters

    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        """After each update."""

    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        """After the last step of a domain, before it is evaluated."""

    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        """A context in which the policy is the one to be measured on ``domain``."""
        del domain
        return nullcontext()

    def telemetry(self) -> Mapping[str, float]:
        """Numbers that show that the algorithm is at work, logged with each step."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict``."""

    def save_state(self, folder: Path) -> None:
        """Write into the empty ``folder`` what is too large for ``state_dict``.

        Every process calls; the policy's main one writes.
        """

    def load_state(self, folder: Path) -> None:
        """Go on from ``save_state``."""
