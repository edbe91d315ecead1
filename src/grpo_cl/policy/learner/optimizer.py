"""AdamW over the trainable parameters, and its state for an exact resume."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Self

import torch
from pydantic import NonNegativeInt
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.utils import get_total_norm

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.policy.model.weights import full_tensor, shard_like
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.types import Record

GradientTransform = Callable[[Sequence[tuple[str, Parameter]]], None]
"""Changes the gradients, summed over ranks (``parameter.grad``), before they are clipped."""

MAX_SKIPPED_UPDATES = 3
"""Consecutive non-finite updates after which a run is stopped."""
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHTS = "weights"
TENSORS_FILE, NUMBERS_FILE = "optimizer.safetensors", "optimizer.json"


class UpdateCounts(Record):
    """The contents of ``optimizer.json``."""

    updates: NonNegativeInt
    skipped_in_a_row: NonNegativeInt


COUNTS = StateKind("the counts of an optimizer", UpdateCounts, "resume from another checkpoint")


class LearnerState(NamedTuple):
    """Optimizer state: tensors for safetensors, numbers for JSON."""

    tensors: dict[str, Tensor]
    numbers: dict[str, int]

    def save(self, folder: Path) -> None:
        """Write both into ``folder``."""
        contiguous = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        save_file(contiguous, folder / TENSORS_FILE)
        write_state(folder / NUMBERS_FILE, COUNTS, self.numbers)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote."""
        return cls(load_file(folder / TENSORS_FILE), read_state(folder / NUMBERS_FILE, COUNTS))


class StepResult(NamedTuple):
    """Loss, gradient norm and learning rate of one optimizer step."""

    loss: float
    grad_norm: float
    learning_rate: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are finite; otherwise the step was skipped."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Optimizer:
    """AdamW in float32 with linear warm-up and decay.

    Weights in lower precision have float32 master copies: bfloat16 would round updates of usual
    learning rates to nothing. Their gradients are accumulated in float32 too, during the backward
    passes.
    """

    def __init__(self, trainable: Iterable[tuple[str, Parameter]], config: GRPOConfig) -> None:
        self._model = dict(trainable)
        if not self._model:
            raise ConfigError("the policy has no trainable parameters; unfreeze it or set lora.r")
        self._config = config
        self.updates = 0
        self._skipped_in_a_row = 0
        self.parameters = {name: _master_copy(weight) for name, weight in self._model.items()}
        self._adam = torch.optim.AdamW(
            self.parameters.values(),
            lr=config.learning_rate,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
            # One kernel for all weights; its step counts are on the device.
            fused=all(weight.device.type == "cuda" for weight in self._model.values()),
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        schedule = self._config.optimizer
        warmup = min(1.0, (self.updates + 1) / max(1, schedule.warmup_steps))
        decay = max(0.0, 1 - self.updates / schedule.decay_steps) if schedule.decay_steps else 1.0
        return self._config.learning_rate * warmup * decay

    def clear(self) -> None:
        """Drop all gradients."""
        for parameter in (*self._model.values(), *self.parameters.values()):
            parameter.grad = None

    def step(self, loss: float, transform: GradientTransform | None = None) -> StepResult:
        """Update the weights with the gradients of ``loss``; skipped if either is not finite."""
        result = StepResult(loss, self._gradient_norm(), self.learning_rate)
        if result.is_finite and transform is not None:
            transform(list(self.parameters.items()))
            result = result._replace(grad_norm=self._gradient_norm())
        if result.is_finite:
            self._skipped_in_a_row = 0
            self._step(result)
        else:
            self._skip(result)
        self.clear()
        return result

    def weights(self) -> dict[str, Tensor]:
        """Copies of the trainable weights, in the precision of the optimizer."""
        return {name: weight.detach().clone() for name, weight in self.parameters.items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the weights of some or all parameters; moments stay."""
        with torch.no_grad():
            for name, value in weights.items():
                self.parameters[name].copy_(shard_like(value, self.parameters[name]))
            self._write_back()

    def reset(self) -> None:
        """Clear the moments and the update count."""
        self._adam.state.clear()
        self.updates = self._skipped_in_a_row = 0

    def state_dict(self) -> LearnerState:
        """Moments, float32 master copies and counts; a collective if the model is sharded."""
        tensors = {f"{WEIGHTS}/{name}": _on_cpu(copy) for name, copy in self._copies()}
        if self.updates:
            for name, parameter in self.parameters.items():
                state = self._adam.state[parameter]
                tensors |= {f"{moment}/{name}": _on_cpu(state[moment]) for moment in MOMENTS}
        numbers = {"updates": self.updates, "skipped_in_a_row": self._skipped_in_a_row}
        return LearnerState(tensors, numbers)

    def load_state_dict(self, state: LearnerState) -> None:
        """Restore a ``state_dict`` of the same parameters; nothing changes if it does not match."""
        updates, skipped = _counts(state.numbers)
        self._check(state.tensors, updates=updates)
        with torch.no_grad():
            for name, copy in self._copies():
                copy.copy_(shard_like(state.tensors[f"{WEIGHTS}/{name}"], copy))
        self.updates, self._skipped_in_a_row = updates, skipped
        moments = {
            number: self._moments(state.tensors, name, parameter)
            for number, (name, parameter) in enumerate(self.parameters.items())
            if updates
        }
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": moments, "param_groups": groups})

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.parameters.values() if weight.grad is not None]

    def _gradient_norm(self) -> float:
        return float(full_tensor(get_total_norm(self._gradients())))

    @torch.no_grad()
    def _step(self, result: StepResult) -> None:
        limit = self._config.max_grad_norm
        for group in self._adam.param_groups:
            group["lr"] = result.learning_rate
        if result.grad_norm > limit:
            gradients = [_local(gradient) for gradient in self._gradients()]
            torch._foreach_mul_(  # pyright: ignore[reportPrivateImportUsage] — has no other name
                gradients, limit / result.grad_norm
            )
        self._adam.step()
        self.updates += 1
        self._write_back()

    def _write_back(self) -> None:
        """Copy the master weights into the model."""
        if copies := self._copies():
            torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage] — has no other name
                [_local(self._model[name]) for name, _ in copies],
                [_local(copy) for _, copy in copies],
            )

    def _skip(self, result: StepResult) -> None:
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_UPDATES:
            raise ConfigError(
                f"{MAX_SKIPPED_UPDATES} updates in a row were not finite (loss {result.loss}, "
                f"gradient norm {result.grad_norm}) and were skipped; resume from a checkpoint "
                "with a lower learning_rate, or set model_dtype=float32"
            )

    def _copies(self) -> list[tuple[str, Parameter]]:
        """The float32 master copies, of weights in lower precision."""
        pairs = self.parameters.items()
        return [(name, copy) for name, copy in pairs if copy is not self._model[name]]

    def _moments(
        self, tensors: Mapping[str, Tensor], name: str, parameter: Parameter
    ) -> dict[str, Tensor]:
        # All parameters are updated together, so they share one step count.
        moments = {
            moment: shard_like(tensors[f"{moment}/{name}"], parameter).clone() for moment in MOMENTS
        }
        return {"step": torch.tensor(float(self.updates)), **moments}

    def _check(self, tensors: Mapping[str, Tensor], *, updates: int) -> None:
        kinds = MOMENTS if updates else ()
        expected = {
            f"{moment}/{name}": weight.shape
            for name, weight in self.parameters.items()
            for moment in kinds
        }
        expected |= {f"{WEIGHTS}/{name}": copy.shape for name, copy in self._copies()}
        saved = {name: tensor.shape for name, tensor in tensors.items()}
        wrong = sorted(
            name for name in expected.keys() | saved if expected.get(name) != saved.get(name)
        )
        if wrong:
            raise CheckpointError(
                f"the optimizer state does not match the policy: {len(wrong)} tensors are missing, "
                f"unknown or of another shape, the first is {wrong[0]!r}; resume with the model, "
                "model_dtype and lora settings of the run that saved it"
            )


def summary(results: Sequence[StepResult]) -> dict[str, float]:
    """Means over the steps, and the number of skipped ones, under the keys of ``metrics.json``."""
    steps = [result for result in results if result.is_finite]
    return {
        "loss": fmean(step.loss for step in steps) if steps else 0.0,
        "grad_norm": fmean(step.grad_norm for step in steps) if steps else 0.0,
        "learning_rate": steps[-1].learning_rate if steps else 0.0,
        "skipped_updates": float(len(results) - len(steps)),
    }


def _counts(numbers: Mapping[str, int]) -> tuple[int, int]:
    try:
        return numbers["updates"], numbers["skipped_in_a_row"]
    except KeyError as error:
        raise CheckpointError(
            f"the optimizer state has no count {error}; resume from another checkpoint"
        ) from error


def _master_copy(weight: Parameter) -> Parameter:
    """A float32 copy that accumulates the weight's gradients; float32 weights themselves."""
    if weight.dtype.itemsize >= torch.float32.itemsize:
        return weight
    copy = Parameter(weight.detach().float())

    def accumulate(parameter: Tensor) -> None:
        assert parameter.grad is not None
        # Immediately, so that the gradients of the model are never held twice.
        if copy.grad is None:
            copy.grad = parameter.grad.float()
        else:
            copy.grad.add_(parameter.grad)
        parameter.grad = None

    weight.register_post_accumulate_grad_hook(accumulate)
    return copy


def _local(tensor: Tensor) -> Tensor:
    """The local shard, a view: foreach operations do not support sharded tensors."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _on_cpu(tensor: Tensor) -> Tensor:
    return full_tensor(tensor.detach()).to("cpu", copy=True)
