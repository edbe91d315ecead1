"""What a run is: one frozen, validated description."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from grpo_cl.errors import ConfigError
from grpo_cl.roles import JudgeConfig, MemoryConfig, ModelsConfig, UserConfig
from grpo_cl.types import Record, RewardType

DATA_DIR_VARIABLE = "GRPO_CL_TAU2_DATA_DIR"

Share = Annotated[float, Field(ge=0, le=1)]

TINY: dict[str, Any] = {
    "model_dtype": "float32",
    "temperature": 1.0,
    "max_new_tokens": 128,
    "num_samples_per_prompt": 8,
    "kl_coef": 0.0,
    "batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "num_steps_per_task": 10,
    "learning_rate": 3e-4,
    "tasks": {"own": False, "generated": 400, "difficulty": 0.0},
    "rollout": {"user": "solo", "prompt": "compact", "max_turns": 16},
    "sampling": {"max_context": 1536, "dialect": "compact"},
    "evaluation": {"generated": 32, "trials": 2},
}
"""What is set for ``model_name_or_path: tiny`` unless told otherwise: it was taught compact prompts
on generated tasks, and learns from far fewer episodes than a large model would."""


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
    own: bool = True
    """Whether a domain's own training tasks are drawn, besides generated ones."""
    generated: NonNegativeInt = 0
    """Generated training tasks added to each domain that can make them."""
    difficulty: Share | dict[str, Share] | None = None
    """Difficulty of the generated tasks, for all domains or for each as tasks.difficulty.NAME; None
    mixes all."""
    eval_split: str = "test"

    def difficulty_of(self, domain: str) -> float | None:
        """Of a domain's generated tasks; None for a mixture."""
        asked = self.difficulty
        if not isinstance(asked, dict):
            return asked
        if domain not in asked:
            raise ConfigError(
                f"tasks.difficulty has {', '.join(asked)} but not {domain!r}; "
                "name it too, or give one number for all domains"
            )
        return asked[domain]


class RolloutConfig(Record):
    """How an episode is played."""

    user: str = "solo"
    """Who talks to the agent."""
    prompt: Literal["full", "compact"] = "full"
    """``compact`` leaves policy and tool schemas out, for policies that were taught them."""
    max_turns: PositiveInt | None = None
    """Replies of the agent; None leaves the limit to ``max_steps``."""
    max_steps: PositiveInt = 200
    """Messages and batches of tool calls, as τ²-bench counts them."""
    max_errors: PositiveInt = 10
    """Failed tool calls over the whole episode, the user's too."""
    replays: NonNegativeInt = 1
    """How often an episode is played again that the failure of a user's or agent's endpoint ended;
    it is left out and counted if the last fails too."""
    timeout_s: PositiveFloat | None = None
    """Wall-clock limit of one episode; a limit that is reached makes a run irreproducible."""


class SamplingConfig(Record):
    """How the policy writes, besides ``temperature`` and ``max_new_tokens``."""

    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_context: PositiveInt | None = None
    """Tokens of a whole episode; None takes the model's own limit."""
    slots: PositiveInt = 64
    """Episodes decoded at once; more wait for a free place."""
    dialect: Literal["auto", "hermes", "llama", "mistral", "json", "compact"] = "auto"
    """How tool calls are written; ``auto`` asks the chat template."""
    gpu_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of a GPU's memory that vLLM takes in the trainer's process."""
    cuda_graphs: bool | None = None
    """Whether eight tokens at a time are written from CUDA graphs, whose cache stays allocated;
    None does so on a GPU."""
    release_cache: bool = False
    """Whether vLLM's cache is given up between rollouts, so that its memory is the update's."""
    engine: Literal["transformers", "vllm", "server"] = "transformers"
    """Who writes: the trainer's own weights, vLLM in the same process, or ``servers``."""
    servers: tuple[str, ...] = ()
    """Addresses of vLLM or ``grpo-cl serve``, as in http://127.0.0.1:8000 (docs/serving.md)."""
    publish_dir: Path | None = None
    """Where servers find new weights; None is a folder of ``log_dir``."""
    sync_tolerance: PositiveFloat | None = None
    """How far a server's log-probs may be from the trainer's after new weights, in the mean over a
    probe; None allows 0.001 in float32 and 0.2 in half precision."""

    @model_validator(mode="after")
    def _servers_have_a_use(self) -> Self:
        if bool(self.servers) != (self.engine == "server"):
            raise ValueError("sampling.servers and sampling.engine='server' go together")
        if self.engine != "server" and (self.publish_dir or self.sync_tolerance):
            raise ValueError(
                "sampling.publish_dir and sampling.sync_tolerance are for sampling.engine='server'"
            )
        return self


class LossConfig(Record):
    """The objective. Formulas in docs/grpo.md."""

    kind: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = "dapo"
    epsilon_low: PositiveFloat = 0.2
    epsilon_high: PositiveFloat = 0.28
    advantage: Literal["mean", "std", "leave_one_out"] = "mean"
    """Baseline of a group: its mean, its mean and spread, or the mean of the others."""
    per_action: bool = False
    """Credit a reply with the discounted reward that follows it, not with the episode's whole."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    updates_per_batch: PositiveInt = 1
    importance_cap: PositiveFloat | None = 2.0
    """Truncates the trainer/sampler probability ratio of a token; None leaves it out."""
    zero_variance: Literal["skip", "resample"] = "skip"
    """What to do with groups whose rewards are all equal; they are counted either way."""
    max_resamples: NonNegativeInt = 2
    overlong: Literal["keep", "mask"] = "keep"
    """Whether a reply that was cut off is learned from."""


class LoraConfig(Record):
    """Low-rank adapters; rank 0 trains all weights."""

    r: NonNegativeInt = 0
    alpha: PositiveInt = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: tuple[str, ...] = ("all-linear",)


class OptimizerConfig(Record):
    """AdamW and its schedule."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    warmup_steps: NonNegativeInt = 0
    decay_steps: NonNegativeInt = 0
    """Updates over which the learning rate falls to zero; 0 keeps it."""
    micro_batch_tokens: PositiveInt = 16384
    """Tokens, padding included, of one forward and backward pass."""


class EvaluationConfig(Record):
    """How a policy is measured."""

    trials: PositiveInt = 1
    """Plays per task; with one trial the policy writes greedily."""
    max_tasks: PositiveInt | None = None
    generated: NonNegativeInt = 0
    """Measure on this many generated test tasks instead of the split."""
    drift: bool = False
    """Also measure how far the policy is from earlier ones: docs/metrics.md."""

    @property
    def is_sampled(self) -> bool:
        """Whether the policy draws its tokens when it is measured."""
        return self.trials > 1


class LoggingConfig(Record):
    """Where numbers go besides the run directory."""

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    keep_checkpoints: PositiveInt = 2
    save_interval: PositiveInt = 10
    """Steps between checkpoints within a stage."""


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
    """One run: a sequence of domains learned one after another with GRPO."""

    model_name_or_path: str = "Qwen/Qwen2.5-7B-Instruct"
    """A Hugging Face id, a local path, a GGUF file, ``tiny`` for the embedded policy, or
    ``tabular`` for one that plays the toy domains."""
    model_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    gradient_checkpointing: bool = False
    flash_attention: bool = False
    sharding: Literal["none", "fsdp"] = "none"
    """``fsdp`` spreads weights, gradients and moments over the processes of ``torchrun``."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    max_new_tokens: PositiveInt = 2048
    """Tokens of one reply."""
    num_samples_per_prompt: Annotated[int, Field(ge=2)] = 4
    """Episodes per task; the group is the baseline, so one is never enough."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.1
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    batch_size_per_gpu: PositiveInt = 4
    """Tasks of one accumulation step on one process."""
    gradient_accumulation_steps: PositiveInt = 2
    num_steps_per_task: PositiveInt = 100
    """Policy updates per domain."""
    learning_rate: PositiveFloat = 1e-6
    max_grad_norm: PositiveFloat = 1.0
    cl_algorithm: str = "sequential"
    cl_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the algorithm, each as cl_options.NAME; docs/algorithms.md lists them."""
    replay_buffer_size: PositiveInt = 1000
    """Trajectories kept per domain."""
    replay_ratio: Annotated[float, Field(ge=0)] = 0.2
    """Share of a step's groups that are tasks of earlier domains, where tasks are replayed."""
    task_order: Annotated[tuple[str, ...], Field(min_length=1)] = ("airline", "retail", "telecom")
    """Domains in the order they are learned."""
    max_tasks_per_domain: PositiveInt | None = None
    """Training tasks kept of each domain."""
    train_split: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of training tasks in a domain that has no split of its own."""
    eval_interval: PositiveInt | None = None
    """Steps between evaluations within a stage, of all domains learned so far; None for none."""
    log_dir: Path = Path("runs/default")
    wandb_project: str | None = None
    resume_from: Path | None = None
    """A checkpoint, or a run directory whose last good checkpoint is taken."""
    tau2_data_dir: Path | None = Field(default_factory=default_data_dir)
    """A τ²-bench checkout, or its data/tau2 folder, whose tasks replace the installed ones."""
    seed: int = 0
    tasks: TasksConfig = TasksConfig()
    rollout: RolloutConfig = RolloutConfig()
    user: UserConfig = UserConfig()
    judge: JudgeConfig = JudgeConfig()
    models: ModelsConfig = ModelsConfig()
    sampling: SamplingConfig = SamplingConfig()
    reward: RewardConfig = RewardConfig()
    memory: MemoryConfig = MemoryConfig()
    loss: LossConfig = LossConfig()
    lora: LoraConfig = LoraConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _the_embedded_policy_has_defaults_of_its_own(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("model_name_or_path") != "tiny":
            return given
        merged = {**TINY, **given}
        for name, section in TINY.items():
            chosen = merged[name]
            if isinstance(chosen, Record):
                chosen = chosen.model_dump(exclude_unset=True)
            if isinstance(section, dict) and isinstance(chosen, dict):
                merged[name] = {**section, **chosen}
        return merged

    @model_validator(mode="after")
    def _domains_are_distinct(self) -> Self:
        if len(set(self.task_order)) != len(self.task_order):
            raise ValueError(f"task_order repeats a domain: {', '.join(self.task_order)}")
        return self

    @model_validator(mode="after")
    def _no_domain_is_without_a_difficulty(self) -> Self:
        for name in self.task_order:
            self.tasks.difficulty_of(name)
        return self

    @model_validator(mode="after")
    def _gamma_has_a_use(self) -> Self:
        if self.gamma != 1.0 and not self.loss.per_action:
            raise ValueError("gamma discounts per-action credit; set loss.per_action=true with it")
        return self

    @property
    def tasks_per_step(self) -> int:
        """Tasks of one update on one process."""
        return self.batch_size_per_gpu * self.gradient_accumulation_steps
