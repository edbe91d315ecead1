"""The interface of continual-learning algorithms: the hooks, and when the trainer calls them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol

from typing_extensions import TypeVar

from grpo_cl.config import ConfigRecord, GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.types import Record, Task, TrajectoryGroup

if TYPE_CHECKING:  # torch is slow to import, and not every algorithm needs it
    from grpo_cl.policy.learner.learner import Learner
    from grpo_cl.policy.model.policy_model import PolicyModel

Stored = Literal["nothing", "weights", "prompts", "trajectories", "environments"]


class PolicyView(Protocol):
    """What an algorithm sees of the trained policy, a ``policy.runtime.PolicyRuntime``."""

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files."""
        ...

    @property
    def model(self) -> "PolicyModel":
        """The model: log-probs and logits."""
        ...

    @property
    def learner(self) -> "Learner":
        """The learner: weights, gradients and the optimizer."""
        ...


class TrainerView(Protocol):
    """What an algorithm sees of the trainer it is bound to."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer

    @property
    def policy(self) -> PolicyView:
        """The trained policy."""
        ...


class NoOptions(ConfigRecord):
    """For algorithms without options."""


Options = TypeVar("Options", bound=Record, default=NoOptions)


class CLAlgorithm(Generic[Options]):
    """Trains on the domains one after another; subclasses override the hooks they need."""

    options_type: ClassVar[type[Record]] = NoOptions
    """The type of the options; ``cl_options`` of a run is validated as one."""
    stores: ClassVar[Stored] = "nothing"
    """What it stores of earlier domains."""
    cost: ClassVar[str] = "none"
    """What a step costs in addition to a step of plain fine-tuning."""
    needs_domain: ClassVar[bool] = False
    """Whether it needs the domain of a task at evaluation."""
    shares_first_stage: ClassVar[bool] = False
    """Whether it does and records nothing before ``post_task_hook`` of the first domain, so that
    a campaign may train that stage once for all such algorithms."""

    trainer: TrainerView
    """The trainer; ``bind`` sets it before any other hook is called."""

    def __init__(self, **options: Any) -> None:
        self.options: Options = self.options_type.model_validate(options)  # type: ignore[assignment]

    def check(self, config: GRPOConfig) -> None:
        """Raise ``ConfigError`` for unsupported settings, before anything is loaded."""

    def bind(self, trainer: TrainerView) -> None:
        """Attach to ``trainer``; an unsupported policy raises ``ConfigError`` here."""
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
        """The groups of an update, given those that were played in this step."""
        del current_domain
        return groups

    def shape_rewards(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        """The rewards from which the advantages of a group are computed."""
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
        """A context in which the policy has the weights to be evaluated on ``domain``."""
        del domain
        return nullcontext()

    def telemetry(self) -> Mapping[str, float]:
        """Metrics of the algorithm, logged with each step."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, as plain JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""

    def save_state(self, folder: Path) -> None:
        """Write state that is too large for ``state_dict`` into the empty ``folder``.

        Every rank calls it; the policy's main rank writes.
        """

    def load_state(self, folder: Path) -> None:
        """Restore ``save_state``."""
