"""AdamW over the trainable parameters, and what of it has to be kept to go on exactly."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.utils import get_total_norm

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.policy.reference import placed, whole

Transform = Callable[[Sequence[tuple[str, Parameter]]], None]
"""Changes the gradients of all ranks together (``parameter.grad``) before they are clipped."""

MAX_SKIPPED = 3
"""Updates in a row that may fail before a run is given up."""
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHTS = "weights"


class LearnerState(NamedTuple):
    """What an optimizer remembers: tensors for safetensors, numbers for JSON."""

    tensors: dict[str, Tensor]
    numbers: dict[str, int]


class Descent(NamedTuple):
    """What one optimizer step did."""

    loss: float
    grad_norm: float
    learning_rate: float

    @property
    def is_sound(self) -> bool:
        """Whether a step was made; a loss or gradient that is not finite forbids it."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Optimizer:
    """AdamW in float32 with a linear warm-up.

    Weights kept in a shorter precision are optimised as float32 copies: one part in a million of
    a bfloat16 number is rounded away, so at usual learning rates nothing would be learned.
    Their gradients too are added up in float32, as the backward passes make them.
    """

    def __init__(self, trainable: Iterable[tuple[str, Parameter]], config: GRPOConfig) -> None:
        self._model = dict(trainable)
        if not self._model:
            raise ConfigError("the policy has no trainable parameter; unfreeze it or set lora.r")
        self._config = config
        self.updates = 0
        self._skipped_in_a_row = 0
        self.parameters = {name: _optimised(given) for name, given in self._model.items()}
        self._adam = torch.optim.AdamW(
            self.parameters.values(),
            lr=config.learning_rate,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
            # One kernel for all weights; torch then keeps, and loads, step counts on the device.
            fused=all(given.device.type == "cuda" for given in self._model.values()),
        )

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        schedule = self._config.optimizer
        warm = min(1.0, (self.updates + 1) / max(1, schedule.warmup_steps))
        left = max(0.0, 1 - self.updates / schedule.decay_steps) if schedule.decay_steps else 1.0
        return self._config.learning_rate * warm * left

    def clear(self) -> None:
        """Forget all gradients."""
        for parameter in (*self._model.values(), *self.parameters.values()):
            parameter.grad = None

    def descend(self, loss: float, transform: Transform | None = None) -> Descent:
        """Move the weights along the gradients of ``loss``, unless something is not finite."""
        made = Descent(loss, self._gradient_norm(), self.learning_rate)
        if made.is_sound and transform is not None:
            transform(list(self.parameters.items()))
            made = made._replace(grad_norm=self._gradient_norm())
        if made.is_sound:
            self._skipped_in_a_row = 0
            self._step(made)
        else:
            self._skip(made)
        self.clear()
        return made

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights that learn, in the precision they are optimised in."""
        return {name: given.detach().clone() for name, given in self.parameters.items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from these weights, of some or all parameters, with the moments as they are."""
        with torch.no_grad():
            for name, value in weights.items():
                self.parameters[name].copy_(value)
            self._write_back()

    def forget(self) -> None:
        """Begin anew: no moments, no updates made."""
        self._adam.state.clear()
        self.updates = self._skipped_in_a_row = 0

    def state_dict(self) -> LearnerState:
        """Moments, float32 copies and counts; on all ranks together if the model is sharded."""
        tensors = {f"{WEIGHTS}/{name}": _kept(copy) for name, copy in self._copies()}
        if self.updates:
            for name, parameter in self.parameters.items():
                state = self._adam.state[parameter]
                tensors |= {f"{moment}/{name}": _kept(state[moment]) for moment in MOMENTS}
        numbers = {"updates": self.updates, "skipped_in_a_row": self._skipped_in_a_row}
        return LearnerState(tensors, numbers)

    def load_state_dict(self, state: LearnerState) -> None:
        """Take over a ``state_dict`` of the same parameters; all of it or nothing."""
        updates, skipped = _counts(state.numbers)
        self._check(state.tensors, updates=updates)
        with torch.no_grad():
            for name, copy in self._copies():
                copy.copy_(placed(state.tensors[f"{WEIGHTS}/{name}"], copy))
        self.updates, self._skipped_in_a_row = updates, skipped
        moments = {
            number: self._moments(state.tensors, name, parameter)
            for number, (name, parameter) in enumerate(self.parameters.items())
            if updates
        }
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": moments, "param_groups": groups})

    def _gradients(self) -> list[Tensor]:
        return [given.grad for given in self.parameters.values() if given.grad is not None]

    def _gradient_norm(self) -> float:
        return float(whole(get_total_norm(self._gradients())))

    @torch.no_grad()
    def _step(self, made: Descent) -> None:
        limit = self._config.max_grad_norm
        for group in self._adam.param_groups:
            group["lr"] = made.learning_rate
        if made.grad_norm > limit:
            gradients = [_local(gradient) for gradient in self._gradients()]
            torch._foreach_mul_(  # pyright: ignore[reportPrivateImportUsage] — has no other name
                gradients, limit / made.grad_norm
            )
        self._adam.step()
        self.updates += 1
        self._write_back()

    def _write_back(self) -> None:
        """Give the model the weights of the copies, without gradients."""
        if copies := self._copies():
            torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage] — has no other name
                [_local(self._model[name]) for name, _ in copies],
                [_local(copy) for _, copy in copies],
            )

    def _skip(self, made: Descent) -> None:
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED:
            raise ConfigError(
                f"{MAX_SKIPPED} updates in a row were not finite (loss {made.loss}, gradient norm "
                f"{made.grad_norm}) and none was made; go back to a checkpoint with a lower "
                "learning_rate, or set model_dtype=float32"
            )

    def _copies(self) -> list[tuple[str, Parameter]]:
        pairs = self.parameters.items()
        return [(name, copy) for name, copy in pairs if copy is not self._model[name]]

    def _moments(
        self, tensors: Mapping[str, Tensor], name: str, parameter: Parameter
    ) -> dict[str, Tensor]:
        # All parameters are stepped together, so one count is every parameter's.
        moments = {
            moment: placed(tensors[f"{moment}/{name}"], parameter).clone() for moment in MOMENTS
        }
        return {"step": torch.tensor(float(self.updates)), **moments}

    def _check(self, tensors: Mapping[str, Tensor], *, updates: int) -> None:
        kinds = MOMENTS if updates else ()
        expected = {
            f"{moment}/{name}": given.shape
            for name, given in self.parameters.items()
            for moment in kinds
        }
        expected |= {f"{WEIGHTS}/{name}": copy.shape for name, copy in self._copies()}
        found = {name: tensor.shape for name, tensor in tensors.items()}
        wrong = sorted(
            name for name in expected.keys() | found if expected.get(name) != found.get(name)
        )
        if wrong:
            raise CheckpointError(
                f"optimizer state does not fit the policy: {len(wrong)} tensors are missing, "
                f"unknown or of another shape, the first is {wrong[0]!r}; resume with the model, "
                "model_dtype and lora settings of the run that saved it"
            )


def summary(descents: Sequence[Descent]) -> dict[str, float]:
    """Means over the steps that were made, and how many were not."""
    made = [descent for descent in descents if descent.is_sound]
    return {
        "loss": fmean(descent.loss for descent in made) if made else 0.0,
        "grad_norm": fmean(descent.grad_norm for descent in made) if made else 0.0,
        "learning_rate": made[-1].learning_rate if made else 0.0,
        "skipped_updates": float(len(descents) - len(made)),
    }


def _counts(numbers: Mapping[str, int]) -> tuple[int, int]:
    try:
        return numbers["updates"], numbers["skipped_in_a_row"]
    except KeyError as error:
        raise CheckpointError(
            f"optimizer state lacks its count {error}; resume from another checkpoint"
        ) from error


def _optimised(given: Parameter) -> Parameter:
    if given.dtype.itemsize >= torch.float32.itemsize:
        return given
    copy = Parameter(given.detach().float())

    def add_up(parameter: Tensor) -> None:
        assert parameter.grad is not None
        # At once, so that no pass holds the gradients of the whole model a second time.
        if copy.grad is None:
            copy.grad = parameter.grad.float()
        else:
            copy.grad.add_(parameter.grad)
        parameter.grad = None

    given.register_post_accumulate_grad_hook(add_up)
    return copy


def _local(tensor: Tensor) -> Tensor:
    """The part on this rank, in place: lists of sharded tensors cannot be copied at once."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _kept(tensor: Tensor) -> Tensor:
    return whole(tensor.detach()).to("cpu", copy=True)
