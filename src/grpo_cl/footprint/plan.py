"""What is to be estimated: a run's settings, a model's shape, and how long its episodes are."""

from dataclasses import dataclass
from typing import NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.footprint.shape import Shape, read_shape

SHORTEST_BEGINNING = 32
"""Tokens from which a shared beginning is computed once, as ``policy.siblings.SHORTEST``."""
PROMPT_TOKENS = {"full": 6000, "compact": 400}
"""Policy text, tools and ticket of a task, by ``rollout.prompt``, where nothing is said."""
TICKET_TOKENS = 256
"""At the end of a prompt, by which the tasks of a domain differ, where nothing is said."""
GPU_MEMORY = 80 * 2**30
TURN_TOKENS = 128
"""Tokens of a tool's or user's answer, where nothing is said."""
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""


class Pass(NamedTuple):
    """One forward and backward pass of an update."""

    rows: int = 0
    tokens: int = 0
    """Positions that are computed."""

    def __add__(self, other: tuple[int, ...]) -> "Pass":  # type: ignore[override]
        return Pass(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, as far as its memory goes."""

    config: GRPOConfig
    shape: Shape
    prompt_tokens: int
    reply_tokens: int
    """Of a whole episode, all that comes after the prompt."""
    turn_tokens: int = TURN_TOKENS
    """Read between two replies of an episode; 0 where each has one reply."""
    gpus: int = 1
    memory: int = GPU_MEMORY
    """Bytes of one GPU."""
    has_shared_prompt: bool = True
    """Whether the episodes of a group begin with the same prompt."""
    shared_tokens: int = 0
    """Of that prompt, what the tasks of all groups begin with."""
    has_kernels: bool = True
    """Whether Triton is there, in which packed rows are read and tokens scored on a GPU."""

    @property
    def item(self) -> int:
        """Bytes of a weight, and of most activations."""
        return ITEM[self.config.model_dtype]

    @property
    def length(self) -> int:
        """Tokens of an episode."""
        return self.prompt_tokens + self.reply_tokens

    @property
    def context(self) -> int:
        """Tokens that an episode can have."""
        return _context(self.config, self.shape)

    @property
    def episodes(self) -> int:
        """Played by one process for one update."""
        return self.config.tasks_per_step * self.config.num_samples_per_prompt

    @property
    def seats(self) -> int:
        """Of them, those that are played at once."""
        return min(self.episodes, self.config.sampling.slots)

    @property
    def beginnings(self) -> int:
        """Prompts that differ."""
        return self.config.tasks_per_step if self.is_family else self.episodes

    @property
    def is_sharded(self) -> bool:
        """Whether weights are spread over the GPUs."""
        return self.config.sharding == "fsdp" and self.gpus > 1

    @property
    def shards(self) -> int:
        """Parts a weight is cut into."""
        return self.gpus if self.is_sharded else 1

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained and not the weights themselves."""
        return self.config.lora.r > 0

    @property
    def trained(self) -> int:
        """Weights that learn."""
        lora = self.config.lora
        if self.has_adapters:
            return self.shape.adapter_parameters(lora.r, lora.targets)
        return self.shape.parameters

    @property
    def is_family(self) -> bool:
        """Whether what the episodes of a group begin with is long enough to be shared."""
        return self.has_shared_prompt and self.prompt_tokens >= SHORTEST_BEGINNING

    @property
    def passes(self) -> list[Pass]:
        """The passes of an update, as ``policy.batching`` makes them of episodes of one length."""
        budget = self.config.optimizer.micro_batch_tokens
        parts = sorted(self._parts(budget), key=lambda part: -part.tokens)
        passes: list[Pass] = []
        for part in parts:
            fits = (n for n, one in enumerate(passes) if one.tokens + part.tokens <= budget)
            place = next(fits, None)
            if place is None:
                passes.append(part)
            else:
                passes[place] += part
        return passes if self.shape.can_be_packed else [self._padded(one.rows) for one in passes]

    @property
    def widest_pass(self) -> Pass:
        """The pass that computes most."""
        return max(self.passes, key=lambda one: (one.tokens, one.rows))

    def _parts(self, budget: int) -> list[Pass]:
        """Each group, or its members one by one where they share too little, cut by ``budget``."""
        size = self.config.num_samples_per_prompt
        if not self.is_family:
            return [self._padded(1)] * self.episodes
        most = max(1, (budget - self.prompt_tokens) // self.reply_tokens)
        cuts = [most] * (size // most) + ([size % most] if size % most else [])
        return [self._family(rows) for rows in cuts] * self.config.tasks_per_step

    def _family(self, rows: int) -> Pass:
        if rows == 1:
            return self._padded(1)
        return Pass(rows, self.prompt_tokens + rows * self.reply_tokens)

    def _padded(self, rows: int) -> Pass:
        return Pass(rows, rows * self.length)


class Lengths(NamedTuple):
    """How long episodes are; None takes what the run's settings suggest."""

    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    turn_tokens: int = TURN_TOKENS
    shared_tokens: int | None = None


def _context(config: GRPOConfig, shape: Shape) -> int:
    own = shape.max_position_embeddings
    return min(own, config.sampling.max_context or own)


def read_plan(
    config: GRPOConfig,
    lengths: Lengths | None = None,
    *,
    gpus: int = 1,
    memory: int = GPU_MEMORY,
) -> Plan:
    """The plan of a run; its model is looked for by ``model_name_or_path``."""
    given = lengths or Lengths()
    shape = read_shape(config.model_name_or_path)
    context = _context(config, shape)
    prompt = given.prompt_tokens or PROMPT_TOKENS[config.rollout.prompt]
    if prompt >= context:
        raise ConfigError(
            f"a prompt of {prompt} tokens leaves no room for a reply in a context of {context}; "
            "give --prompt_tokens, or raise sampling.max_context"
        )
    if config.sharding == "fsdp" and gpus == 1:
        raise ConfigError("sharding=fsdp needs several GPUs; give --gpus 2 or more")
    shared = given.shared_tokens
    if shared is None:
        shared = max(prompt - TICKET_TOKENS, 0)
    if shared > prompt:
        raise ConfigError(
            f"prompts of {prompt} tokens cannot share {shared}; give --shared_tokens 0 to {prompt}"
        )
    reply = min(given.reply_tokens or config.max_new_tokens, context - prompt)
    return Plan(
        config=config,
        shape=shape,
        prompt_tokens=prompt,
        reply_tokens=reply,
        turn_tokens=given.turn_tokens,
        shared_tokens=shared,
        gpus=gpus,
        memory=memory,
    )
