"""What a run is: one frozen, validated description."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from grpo_cl.types import Record, RewardType

DATA_DIR_VARIABLE = "GRPO_CL_TAU2_DATA_DIR"

Share = Annotated[float, Field(ge=0, le=1)]


def default_data_dir() -> Path | None:
    """The τ²-bench checkout named by the environment, if one is."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


class TasksConfig(Record):
    """Which tasks are played."""

    strategy: Literal["random", "epoch", "curriculum", "weighted"] = "epoch"
    """How training batches are drawn: anew each time, without repetition, from easy to hard,
    or by observed success so that the episodes of a group differ."""
    curriculum_draws: PositiveInt = 1000
    """Draws after which a curriculum has reached the hardest tasks."""
    generated: NonNegativeInt = 0
    """Generated training tasks added to each domain that can make them."""
    difficulty: Share | None = None
    """Difficulty of the generated tasks; None mixes all."""
    eval_split: str = "test"


class RolloutConfig(Record):
    """How an episode is played."""

    user: str = "scripted"
    """Who talks to the agent."""
    max_turns: PositiveInt | None = None
    """Replies of the agent; None leaves the limit to ``max_steps``."""
    max_steps: PositiveInt = 200
    """Messages and batches of tool calls, as τ²-bench counts them."""
    max_errors: PositiveInt = 10
    """Failed tool calls over the whole episode, the user's too."""
    timeout_s: PositiveFloat | None = None
    """Wall-clock limit of one episode; a limit that is reached makes a run irreproducible."""


class RewardConfig(Record):
    """How an episode is scored."""

    basis: Literal["tau2", "judge_free"] = "tau2"
    """``tau2`` multiplies each task's own components; ``judge_free`` replaces natural-language
    assertions by COMMUNICATE where they restate it."""
    shaping: Literal["progress", "tool_accuracy", "weighted"] | None = None
    """A denser reward for training; evaluation never uses it."""
    weights: dict[RewardType, float] = Field(default_factory=dict)
    """Weights of the components for ``weighted`` shaping."""

    @model_validator(mode="after")
    def _weights_have_a_use(self) -> Self:
        if bool(self.weights) != (self.shaping == "weighted"):
            raise ValueError("reward.weights and reward.shaping='weighted' go together")
        return self


class GRPOConfig(Record):
    """One run: a sequence of domains learned one after another."""

    task_order: Annotated[tuple[str, ...], Field(min_length=1)] = ("airline", "retail", "telecom")
    """Domains in the order they are learned."""
    max_tasks_per_domain: PositiveInt | None = None
    """Training tasks kept of each domain."""
    train_split: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of training tasks in a domain that has no split of its own."""
    tau2_data_dir: Path | None = Field(default_factory=default_data_dir)
    """A τ²-bench checkout, or its data/tau2 folder, whose tasks replace the installed ones."""
    seed: int = 0
    tasks: TasksConfig = TasksConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()

    @model_validator(mode="after")
    def _domains_are_distinct(self) -> Self:
        if len(set(self.task_order)) != len(self.task_order):
            raise ValueError(f"task_order repeats a domain: {', '.join(self.task_order)}")
        return self
