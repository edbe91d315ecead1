"""Lengths of the episodes of each domain: its prompts as they are rendered, and the turns after."""

import json
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

from grpo_cl.config import GRPOConfig, RolloutConfig
from grpo_cl.envs.base import Domain
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.rollout import Opening, Scene, known_opening
from grpo_cl.types import Message, Task

CHARACTERS_PER_TOKEN = 4
"""Assumed without the model's tokenizer; SmolLM2's has 3.9 to 4.1 in the full prompts of
airline, retail and telecom."""
TURN_TOKENS = 384
"""Assumed tokens of a tool's or user's message. Demonstrations of retail, which has the longest
tool results, have about 330 (docs/training.md)."""
MAX_GENERATED = 32
"""Generated tasks per domain whose prompts are compared."""

Encode = Callable[[Scene, Sequence[Message]], Sequence[int]]
"""The token ids of a prompt: ``opening`` of a chat format."""


class EpisodeLengths(NamedTuple):
    """Lengths of the episodes of one domain, in tokens."""

    domain: str
    prompt_tokens: int
    """The longest prompt; the first message of a user is not part of it."""
    shared_tokens: int
    """The common prefix of the prompts of all tasks."""
    turn_tokens: int
    """A message between two replies."""
    max_replies: int
    """Replies after which an episode ends."""


def measure_episodes(config: GRPOConfig, encode: Encode | None) -> list[EpisodeLengths]:
    """The lengths in each domain of ``task_order``.

    Without ``encode``, a prompt has a token for every ``CHARACTERS_PER_TOKEN`` characters.
    """
    generated = min(config.tasks.generated, MAX_GENERATED)
    tasks = config.tasks.model_copy(update={"generated": generated})
    loader = TaskDataLoader(config.model_copy(update={"tasks": tasks}))
    lengths: list[EpisodeLengths] = []
    for name, domain in loader.domains.items():
        loader.require_train_tasks(name)
        lengths.append(_measure(domain, loader.train_tasks(name), config.rollout, encode))
    return lengths


def _measure(
    domain: Domain, tasks: Sequence[Task], config: RolloutConfig, encode: Encode | None
) -> EpisodeLengths:
    openings = sorted((known_opening(domain, task, config) for task in tasks), key=_num_characters)
    if config.prompt == "full":
        # Most of a prompt is the same in all tasks, so the longest text has the most tokens.
        openings = [openings[0], openings[-1]]
    prompts: list[Any] = [
        _text(opening) if encode is None else encode(*opening) for opening in openings
    ]
    per_token = CHARACTERS_PER_TOKEN if encode is None else 1
    observations = _observation_lengths(domain, openings[-1].scene.task)
    return EpisodeLengths(
        domain.name,
        prompt_tokens=ceil(max(map(len, prompts)) / per_token),
        shared_tokens=_num_shared(prompts) // per_token,
        turn_tokens=max([TURN_TOKENS, *observations]),
        # A reply and its answer are two steps, as τ²-bench counts them.
        max_replies=len(observations) or config.max_turns or ceil(config.max_steps / 2),
    )


def _num_shared(prompts: Sequence[Any]) -> int:
    """Length of the common prefix of texts, or of lists of token ids."""
    first, last = min(prompts), max(prompts)
    pairs = enumerate(zip(first, last, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(last)))


def _text(opening: Opening) -> str:
    """All of a prompt but the markup of a chat template."""
    tools = (json.dumps(schema, ensure_ascii=False) for schema in opening.scene.tools)
    contents = (message.content or "" for message in opening.messages)
    return "\n".join((*tools, opening.scene.system, *contents))


def _num_characters(opening: Opening) -> int:
    return len(_text(opening))


def _observation_lengths(domain: Domain, task: Task) -> list[int]:
    """The assumed tokens of each observation; none in a domain whose environment sends none."""
    environment = domain.streaming_environment(task)
    lengths: list[int] = []
    while environment and (observation := environment.next_observation()) is not None:
        lengths.append(ceil(len(observation) / CHARACTERS_PER_TOKEN))
    return lengths
