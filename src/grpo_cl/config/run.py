"""The configuration of a run: frozen, validated, written into the run directory."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from grpo_cl.config.base import ConfigRecord, Seconds, Share
from grpo_cl.config.models import JudgeConfig, MemoryConfig, ModelsConfig, Temperature, UserConfig
from grpo_cl.errors import ConfigError
from grpo_cl.registry import with_absolute_file
from grpo_cl.types import Record, RewardType

DATA_DIR_VARIABLE = "GRPO_CL_TAU2_DATA_DIR"

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of a running average of the optimizer."""

TINY: dict[str, Any] = {
    "model_dtype": "float32",
    "temperature": 1.0,
    "max_new_tokens": 256,
    "num_samples_per_prompt": 8,
    "kl_coef": 0.0,
    "batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "num_steps_per_task": 10,
    "learning_rate": 3e-4,
    "tasks": {"own": False, "generated": 400, "difficulty": 0.0},
    "rollout": {"user": "solo", "prompt": "compact", "max_turns": 20},
    "sampling": {"max_context": 3072, "dialect": "compact"},
    "evaluation": {"generated": 32, "trials": 2},
}
"""Defaults for ``model_name_or_path: tiny``: it was fine-tuned on compact prompts of generated
tasks, and needs far fewer episodes than a large model."""


def deep_update(base: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``base`` with ``update`` merged in recursively; lists and scalars are replaced."""
    merged = dict(base)
    for key, value in update.items():
        previous = merged.get(key)
        if isinstance(previous, dict) and isinstance(value, dict):
            merged[key] = deep_update(previous, value)
        else:
            merged[key] = value
    return merged


def default_data_dir() -> Path | None:
    """The τ²-bench checkout named by ``$GRPO_CL_TAU2_DATA_DIR``, if it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


def _absolute_tools(source: str) -> str:
    # A run is resumed, and an engine's workers are started, in other directories.
    return str(Path(source).expanduser().absolute()) if source.endswith(".py") else source


PluginName = Annotated[str, AfterValidator(with_absolute_file)]
"""The name of a plug-in, or FILE.py:NAME."""


TaskWording = Literal["plain", "varied"]
"""How the texts of generated tasks are written."""


class TasksConfig(ConfigRecord):
    """Training and evaluation tasks."""

    strategy: Literal["random", "epoch", "curriculum", "weighted"] = "epoch"
    """How training batches are drawn: with replacement, by epoch, from easy to hard, or weighted by
    the variance of the observed success rate."""
    curriculum_draws: PositiveInt = 1000
    """Number of drawn tasks after which the curriculum includes the hardest ones."""
    own: bool = True
    """Whether to train on the domain's own training tasks, besides generated ones."""
    generated: NonNegativeInt = 0
    """Number of generated training tasks, in each domain that has a generator."""
    difficulty: Share | dict[str, Share] | None = None
    """Difficulty of generated tasks, for all domains or per domain as tasks.difficulty.NAME; None
    mixes all difficulties."""
    wording: TaskWording = "plain"
    """How generated tasks are told: in the few phrases that `tiny` was fine-tuned on, or in varied
    prose; customers, gold actions and rewards are the same."""
    eval_split: str = "test"
    """Split of the evaluation tasks."""

    def difficulty_of(self, domain: str) -> float | None:
        """Difficulty of a domain's generated tasks; None for a mixture."""
        difficulty_setting = self.difficulty
        if not isinstance(difficulty_setting, dict):
            return difficulty_setting
        if domain not in difficulty_setting:
            raise ConfigError(
                f"tasks.difficulty has {', '.join(difficulty_setting)} but not {domain!r}; "
                "name it too, or give one number for all domains"
            )
        return difficulty_setting[domain]


class RolloutConfig(ConfigRecord):
    """Episodes: user, prompt and limits."""

    user: PluginName = "solo"
    """The user simulator: solo (no user), scripted, llm, react, verify, reflection, the name of a
    plug-in, or FILE.py:CLASS."""
    prompt: Literal["full", "compact"] = "full"
    """``compact`` omits policy text and tool schemas, for policies fine-tuned on such prompts."""
    max_turns: PositiveInt | None = None
    """Maximum number of agent replies; None leaves the limit to ``max_steps``."""
    max_steps: PositiveInt = 200
    """Maximum number of messages and batches of tool calls, as τ²-bench counts them."""
    max_errors: PositiveInt = 10
    """Maximum number of failed tool calls in an episode, including the user's."""
    replays: NonNegativeInt = 1
    """Retries of an episode after an endpoint failure; if the last fails too, the episode is
    excluded and counted."""
    timeout_s: Seconds | None = None
    """Wall-clock limit of one episode; a run in which it is reached is not reproducible."""


class SamplingConfig(ConfigRecord):
    """Inference, besides ``temperature`` and ``max_new_tokens``."""

    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this total probability; 1 samples from all."""
    max_context: PositiveInt | None = None
    """Maximum tokens of an episode; None takes the model's context length."""
    slots: PositiveInt = 64
    """KV-cache slots: sequences decoded at once; further ones wait for a free slot."""
    dialect: Literal["auto", "hermes", "llama", "mistral", "json", "compact"] = "auto"
    """Format of tool calls; ``auto`` detects it from the chat template and the tokenizer."""
    gpu_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Fraction of GPU memory for vLLM in the trainer's process (``gpu_memory_utilization``)."""
    cuda_graphs: bool | None = None
    """Whether to decode eight tokens per call with CUDA graphs, whose KV cache stays allocated;
    None enables them on a GPU."""
    release_cache: bool = False
    """Whether vLLM frees its KV cache between rollouts (sleep mode), so that updates can use it."""
    engine: Literal["transformers", "vllm", "server"] = "transformers"
    """Inference backend: the trainer's own weights, vLLM in the same process, or ``servers``."""
    servers: tuple[str, ...] = ()
    """URLs of vLLM or ``grpo-cl serve``, such as http://127.0.0.1:8000 (docs/serving.md)."""
    max_staleness: Literal[0, 1] = 0
    """Updates between the weights that sample an episode and those that it updates. With 1 the
    episodes of the next step are played on ``servers`` during the update; the loss corrects for it
    by truncated importance sampling (``loss.importance_cap``)."""
    publish_dir: Path | None = None
    """Directory in which servers find new weights; None is a directory in ``log_dir``."""
    sync_tolerance: PositiveFloat | None = None
    """Maximum mean difference between a server's and the trainer's log-probs on a probe after a
    weight sync; None allows 0.001 in float32 and 0.2 in half precision."""

    @model_validator(mode="after")
    def _servers_need_the_server_engine(self) -> Self:
        if bool(self.servers) != (self.engine == "server"):
            raise ValueError("sampling.servers and sampling.engine='server' require each other")
        if self.engine != "server" and (self.publish_dir or self.sync_tolerance):
            raise ValueError(
                "sampling.publish_dir and sampling.sync_tolerance require sampling.engine='server'"
            )
        if self.engine != "server" and self.max_staleness:
            raise ValueError(
                f"sampling.max_staleness={self.max_staleness} requires sampling.engine='server': "
                f"{self.engine} shares the GPU with the update; start servers and name them in "
                "sampling.servers"
            )
        return self


class LossConfig(ConfigRecord):
    """The loss. Formulas in docs/grpo.md."""

    kind: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = "dapo"
    """Form of the policy loss."""
    epsilon_low: PositiveFloat = 0.2
    """Probability ratios below 1 − epsilon_low are clipped."""
    epsilon_high: PositiveFloat = 0.28
    """Probability ratios above 1 + epsilon_high are clipped."""
    advantage: Literal["mean", "std", "leave_one_out"] = "mean"
    """Baseline of a group: its mean, its mean with division by the standard deviation, or the mean
    of the other episodes."""
    per_action: bool = False
    """One advantage per turn from discounted returns-to-go, instead of one per episode."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL penalty from the sampled tokens."""
    updates_per_batch: PositiveInt = 1
    """Optimizer steps on the episodes of one step."""
    importance_cap: PositiveFloat | None = 2.0
    """Truncation of the per-token importance ratio trainer/sampler; None disables it."""
    zero_variance: Literal["skip", "resample"] = "skip"
    """Skip groups whose rewards are all equal, or replace them by groups of further tasks; both
    are counted."""
    max_resamples: NonNegativeInt = 2
    """Maximum number of replacements of a group for ``zero_variance=resample``."""
    overlong: Literal["keep", "mask"] = "keep"
    """Whether truncated replies are trained on."""


class LoraConfig(ConfigRecord):
    """Low-rank adapters; rank 0 trains all weights."""

    r: NonNegativeInt = 0
    """Rank of the adapters; 0 trains all weights without adapters."""
    alpha: PositiveInt = 32
    """The output of an adapter is scaled by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout probability of the input of the adapters."""
    targets: tuple[str, ...] = ("all-linear",)
    """Names of the modules that get adapters; ``all-linear`` is every linear layer but the head."""


class OptimizerConfig(ConfigRecord):
    """AdamW and its learning-rate schedule."""

    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay rates of the running averages of the gradient and of its square."""
    warmup_steps: NonNegativeInt = 0
    """Updates over which the learning rate rises from zero."""
    decay_steps: NonNegativeInt = 0
    """Updates over which the learning rate decays to zero; 0 keeps it constant."""
    micro_batch_tokens: PositiveInt = 16384
    """Maximum tokens of one forward and backward pass, padding included; a batch_size_per_gpu with
    more is divided again. An episode with more has a pass to itself."""


class EvaluationConfig(ConfigRecord):
    """Evaluation of the policy."""

    trials: PositiveInt = 1
    """Episodes per task; with one trial decoding is greedy."""
    max_tasks: PositiveInt | None = None
    """Maximum number of evaluation tasks per domain."""
    generated: NonNegativeInt = 0
    """Number of generated test tasks to evaluate on instead of the split."""
    drift: bool = False
    """Also measure KL divergence and weight distance from earlier policies: docs/metrics.md."""

    @property
    def is_sampled(self) -> bool:
        """Whether evaluation samples with ``temperature`` instead of greedy decoding."""
        return self.trials > 1


class LoggingConfig(ConfigRecord):
    """Experiment trackers and checkpoints."""

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Experiment trackers that get the metrics; the run directory has them in any case."""
    keep_checkpoints: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    save_interval: PositiveInt = 10
    """Steps between checkpoints within a stage."""
    keep_stage_ends: bool = True
    """Whether the checkpoint at the end of a stage stays, besides the newest ``keep_checkpoints``,
    so that ``--resume_from RUN/checkpoint_task_N`` can continue from it."""
    keep_evaluation_episodes: NonNegativeInt = 200
    """Episodes kept of each cell of the R-matrix, for ``grpo-cl view``; 0 keeps none. One takes 0.5
    to 5 kB, so S domains take at most S × (S + 1) × 200 × 5 kB: 12 MB for three."""


class RewardConfig(ConfigRecord):
    """Rewards of episodes."""

    basis: Literal["tau2", "judge_free"] = "tau2"
    """``tau2`` multiplies each task's own components; ``judge_free`` replaces natural-language
    assertions by COMMUNICATE where they restate it."""
    shaping: Literal["progress", "tool_accuracy", "weighted"] | PluginName | None = None
    """A denser training reward, also the name of a plug-in or FILE.py:FUNCTION; evaluation never
    uses it."""
    weights: dict[RewardType, float] = Field(default_factory=dict)
    """Weights of the components for ``weighted`` shaping."""

    @model_validator(mode="after")
    def _weights_need_weighted_shaping(self) -> Self:
        if bool(self.weights) != (self.shaping == "weighted"):
            raise ValueError("reward.weights and reward.shaping='weighted' require each other")
        return self


class GRPOConfig(ConfigRecord):
    """One run: GRPO on a sequence of domains."""

    model_name_or_path: str = "Qwen/Qwen2.5-7B-Instruct"
    """A Hugging Face id, a local path, a GGUF file, ``tiny`` for the embedded policy, or
    ``tabular`` for the policy of the toy domains."""
    model_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of the weights, the activations and the KV cache."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    flash_attention: bool = False
    """Use the flash-attn package, which must be installed, instead of the attention of PyTorch."""
    sharding: Literal["none", "fsdp"] = "none"
    """``fsdp`` shards weights, gradients and optimizer state over the ranks of ``torchrun``."""
    temperature: Temperature = 0.7
    """Sampling temperature of the training episodes, and of evaluations with several trials."""
    max_new_tokens: PositiveInt = 2048
    """Maximum tokens of one reply."""
    num_samples_per_prompt: Annotated[int, Field(ge=2)] = 4
    """Episodes per task (group size); the group is the baseline, so at least two."""
    kl_coef: NonNegativeFloat = 0.1
    """Weight of the KL penalty to the reference model; 0 needs no reference model."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount of the rewards of later turns; needs ``loss.per_action``."""
    batch_size_per_gpu: PositiveInt = 4
    """Tasks of one forward and backward pass on one GPU (rank), each with num_samples_per_prompt
    episodes. A step has batch_size_per_gpu × gradient_accumulation_steps × ranks tasks."""
    gradient_accumulation_steps: PositiveInt = 2
    """Forward and backward passes into which a rank divides an update, at least. Half the batch
    and twice the accumulation give the same update with less memory."""
    num_steps_per_task: PositiveInt = 100
    """Policy updates per domain."""
    learning_rate: PositiveFloat = 1e-6
    """Learning rate of AdamW after the warm-up."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients with a larger norm are scaled down to it."""
    cl_algorithm: PluginName = "sequential"
    """Continual-learning algorithm: a name of docs/algorithms.md, a plug-in, or FILE.py:CLASS."""
    cl_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the algorithm as cl_options.NAME; docs/algorithms.md lists them."""
    replay_buffer_size: PositiveInt = 1000
    """Trajectories kept per domain."""
    replay_ratio: NonNegativeFloat = 0.2
    """Replayed tasks of earlier domains as a fraction of a step's groups, for replay algorithms."""
    task_order: Annotated[tuple[str, ...], Field(min_length=1)] = ("airline", "retail", "telecom")
    """Domains in training order; on the command line also FILE.py:CLASS."""
    domain_files: dict[str, PluginName] = Field(default_factory=dict)
    """FILE.py:CLASS of domains of task_order that are in files, by name."""
    max_tasks_per_domain: PositiveInt | None = None
    """Maximum number of training tasks per domain; evaluations have evaluation.max_tasks."""
    train_split: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Fraction of training tasks in domains without a train/test split of their own; refused if
    every domain of the run has one."""
    eval_interval: PositiveInt | None = None
    """Steps between evaluations within a stage, on all domains seen so far; None disables them."""
    log_dir: Path = Path("runs/default")
    """Run directory to write; it must be new."""
    wandb_project: str | None = None
    """Project of the trackers wandb and trackio; naming one adds wandb to ``logging.trackers``."""
    resume_from: Path | None = None
    """A run directory, which continues from its last intact checkpoint; the end of one of its
    stages, RUN/checkpoint_task_N; or a directory in its checkpoints/. Settings are the run's."""
    fork: Path | None = None
    """Directory of a new run that starts from the checkpoint of ``resume_from``; it may have other
    settings than the run it comes from."""
    accept_damage: bool = False
    """Whether a resumed run goes on without damaged lines of its journals; the run directory and
    the report say what is lost."""
    tau2_data_dir: Path | None = Field(default_factory=default_data_dir)
    """A τ²-bench checkout, or its data/tau2 folder, whose tasks replace the installed ones."""
    tools: Annotated[str, AfterValidator(_absolute_tools)] | None = None
    """A Python file, MODULE or MODULE:NAME, whose functions the agent can call beside the tools of
    every domain of the run: docs/domains.md."""
    seed: int = 0
    """Seed of tasks, episodes and sampling; two runs with the same seed and settings are equal."""
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

    @model_validator(mode="wrap")
    @classmethod
    def _apply_defaults_of_tiny(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, dict) or given.get("model_name_or_path") != "tiny":
            return validate(given)
        merged = {**TINY, **given}
        chosen_sections: dict[str, dict[str, Any]] = {}
        for name, section in TINY.items():
            chosen = merged[name]
            if isinstance(chosen, Record):
                chosen = chosen.model_dump(exclude_unset=True)
            if isinstance(section, dict) and isinstance(chosen, dict):
                merged[name] = {**section, **chosen}
                chosen_sections[name] = chosen if name in given else {}
        config = validate(merged)
        # A default was not given: a resumed run compares what was given with its own settings.
        config.model_fields_set.difference_update(TINY.keys() - given.keys())
        for name, chosen in chosen_sections.items():
            getattr(config, name).model_fields_set.difference_update(TINY[name].keys() - chosen)
        return config

    @model_validator(mode="after")
    def _fork_needs_a_checkpoint(self) -> Self:
        if self.fork is not None and self.resume_from is None:
            raise ValueError(
                f"fork {str(self.fork)!r} starts a run from a checkpoint; name it with resume_from"
            )
        return self

    @model_validator(mode="after")
    def _stale_episodes_need_importance_sampling(self) -> Self:
        if self.sampling.max_staleness and self.loss.importance_cap is None:
            raise ValueError(
                "sampling.max_staleness=1 trains on episodes of the weights before the last "
                "update, which loss.importance_cap corrects for; set loss.importance_cap, such as 2"
            )
        return self

    @model_validator(mode="after")
    def _damage_is_accepted_at_a_resume(self) -> Self:
        if self.accept_damage and self.resume_from is None:
            raise ValueError("accept_damage needs resume_from: a new run has no damaged files")
        return self

    @model_validator(mode="after")
    def _domains_are_distinct(self) -> Self:
        if len(set(self.task_order)) != len(self.task_order):
            raise ValueError(f"task_order repeats a domain: {', '.join(self.task_order)}")
        return self

    @model_validator(mode="after")
    def _every_domain_has_a_difficulty(self) -> Self:
        for name in self.task_order:
            self.tasks.difficulty_of(name)
        return self

    @model_validator(mode="after")
    def _gamma_needs_per_action(self) -> Self:
        if self.gamma != 1.0 and not self.loss.per_action:
            raise ValueError("gamma discounts per-action returns; it requires loss.per_action=true")
        return self

    def tasks_per_step(self, *, world_size: int) -> int:
        """Tasks of one update, on all ranks together."""
        return self.batch_size_per_gpu * self.gradient_accumulation_steps * world_size
