"""Input of a memory estimate: a run's settings, a model's shape and the lengths of its episodes."""

from dataclasses import dataclass
from typing import NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.gpu_memory.constants import MIN_SHARED_TOKENS
from grpo_cl.gpu_memory.prompts import TURN_TOKENS
from grpo_cl.gpu_memory.shape import ModelShape, read_shape

TICKET_TOKENS = 256
"""Tokens at the end of a given prompt that are assumed to differ between the tasks of a domain."""
GPU_MEMORY = 80 * 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32_BYTES = 4
"""Norms, adapters and the loss are computed in float32."""


class MicroBatch(NamedTuple):
    """One forward and backward pass of an update."""

    rows: int = 0
    tokens: int = 0
    """Computed tokens; a shared prefix counts once."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What determines the GPU memory of a run."""

    config: GRPOConfig
    shape: ModelShape
    domain: str = ""
    """The domain of the episodes; empty for given lengths."""
    prompt_tokens: int
    reply_tokens: int
    """All tokens of an episode after its prompt."""
    turn_tokens: int = TURN_TOKENS
    """Tokens prefilled between two replies of an episode; 0 for single-turn episodes."""
    gpus: int = 1
    memory: int = GPU_MEMORY
    """Bytes of one GPU."""
    has_shared_prompt: bool = True
    """Whether the episodes of a group start with the same prompt."""
    shared_tokens: int = 0
    """Length of the prompt prefix that the tasks of all groups have in common."""
    has_triton: bool = True
    """Whether the Triton kernels for packed sequences and log-probs are available."""

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a weight, and of most activations."""
        return DTYPE_BYTES[self.config.model_dtype]

    @property
    def length(self) -> int:
        """Tokens of an episode."""
        return self.prompt_tokens + self.reply_tokens

    @property
    def context(self) -> int:
        """Maximum tokens of an episode."""
        return _context(self.config, self.shape)

    @property
    def tasks(self) -> int:
        """Tasks per process and update."""
        return self.config.tasks_per_step(world_size=1)

    @property
    def episodes(self) -> int:
        """Episodes per process and update."""
        return self.tasks * self.config.num_samples_per_prompt

    @property
    def slots(self) -> int:
        """Episodes that are sampled concurrently."""
        return min(self.episodes, self.config.sampling.slots)

    @property
    def distinct_prompts(self) -> int:
        """Different prompts per process and update."""
        return self.tasks if self.shares_prompts else self.episodes

    @property
    def is_sharded(self) -> bool:
        """Whether weights are sharded over the GPUs."""
        return self.config.sharding == "fsdp" and self.gpus > 1

    @property
    def shards(self) -> int:
        """Shards of each weight; 1 without sharding."""
        return self.gpus if self.is_sharded else 1

    @property
    def has_lora(self) -> bool:
        """Whether LoRA adapters are trained instead of all weights."""
        return self.config.lora.r > 0

    @property
    def trainable_parameters(self) -> int:
        """Parameters that the optimizer updates."""
        lora = self.config.lora
        if self.has_lora:
            return self.shape.lora_parameters(lora.r, lora.targets)
        return self.shape.parameters

    @property
    def shares_prompts(self) -> bool:
        """Whether the prompt of a group is long enough to be computed once."""
        return self.has_shared_prompt and self.prompt_tokens >= MIN_SHARED_TOKENS

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """Micro-batches of an update, as ``policy/learner/batching.py`` packs equal episodes."""
        budget = self.config.optimizer.micro_batch_tokens
        max_rows = self.config.batch_size_per_gpu * self.config.num_samples_per_prompt
        micro_batches: list[MicroBatch] = []
        for chunk in sorted(self._chunks(budget), key=lambda chunk: -chunk.tokens):
            for index, batch in enumerate(micro_batches):
                has_rows = batch.rows + chunk.rows <= max_rows
                if has_rows and batch.tokens + chunk.tokens <= budget:
                    micro_batches[index] = MicroBatch(
                        batch.rows + chunk.rows, batch.tokens + chunk.tokens
                    )
                    break
            else:
                micro_batches.append(chunk)
        if self.shape.can_be_packed:
            return micro_batches
        return [self._padded(batch.rows) for batch in micro_batches]

    @property
    def largest_micro_batch(self) -> MicroBatch:
        """The micro-batch with the most computed tokens."""
        return max(self.micro_batches, key=lambda batch: (batch.tokens, batch.rows))

    def _chunks(self, budget: int) -> list[MicroBatch]:
        """Each group, split to fit ``budget``; single episodes where no prompt is shared."""
        size = self.config.num_samples_per_prompt
        if not self.shares_prompts:
            return [self._padded(1)] * self.episodes
        max_rows = max(1, (budget - self.prompt_tokens) // self.reply_tokens)
        sizes = [max_rows] * (size // max_rows) + ([size % max_rows] if size % max_rows else [])
        return [self._packed(rows) for rows in sizes] * self.tasks

    def _packed(self, rows: int) -> MicroBatch:
        if rows == 1:
            return self._padded(1)
        return MicroBatch(rows, self.prompt_tokens + rows * self.reply_tokens)

    def _padded(self, rows: int) -> MicroBatch:
        return MicroBatch(rows, rows * self.length)


class Lengths(NamedTuple):
    """Lengths of episodes."""

    prompt_tokens: int
    reply_tokens: int
    """Tokens after the prompt; the context may end an episode before."""
    turn_tokens: int = TURN_TOKENS
    shared_tokens: int | None = None
    """None for all of the prompt but ``TICKET_TOKENS``."""
    domain: str = ""


def _context(config: GRPOConfig, shape: ModelShape) -> int:
    limit = shape.max_position_embeddings
    return min(limit, config.sampling.max_context or limit)


def read_workload(
    config: GRPOConfig, lengths: Lengths, *, gpus: int, memory: int = GPU_MEMORY
) -> Workload:
    """The workload of a run, with the shape of the model in ``model_name_or_path``."""
    shape = read_shape(config.model_name_or_path)
    context = _context(config, shape)
    if (shape.sliding_window or 0) >= context:
        shape = shape.model_copy(update={"sliding_window": None})  # no sequence exceeds it
    prompt, shared = lengths.prompt_tokens, lengths.shared_tokens
    if prompt >= context:
        where = f" of {lengths.domain}" if lengths.domain else ""
        raise ConfigError(
            f"a prompt{where} has {prompt} tokens and leaves no room for a reply in a context of "
            f"{context}; give --prompt_tokens, or raise sampling.max_context"
        )
    if config.sharding == "fsdp" and gpus == 1:
        raise ConfigError("sharding=fsdp needs several GPUs; give --gpus 2 or more")
    if shared is None:
        shared = max(prompt - TICKET_TOKENS, 0)
    if shared > prompt:
        raise ConfigError(
            f"prompts of {prompt} tokens cannot share {shared}; give --shared_tokens 0 to {prompt}"
        )
    return Workload(
        config=config,
        shape=shape,
        domain=lengths.domain,
        prompt_tokens=prompt,
        reply_tokens=min(lengths.reply_tokens, context - prompt),
        turn_tokens=lengths.turn_tokens,
        shared_tokens=shared,
        gpus=gpus,
        memory=memory,
    )
