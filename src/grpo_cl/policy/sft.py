"""Supervised warm start: learn from demonstrations before any reward is to be had."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import NamedTuple, Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.demonstrations import agent_turns, demonstrate
from grpo_cl.domains import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.rollout import Scene, system_prompt
from grpo_cl.types import Message, TokenTrace

CHUNK = 250
"""Tasks one worker process demonstrates at a time."""


class Example(NamedTuple):
    """A conversation to imitate."""

    scene: Scene
    messages: tuple[Message, ...]


class Lesson(NamedTuple):
    """Which demonstrations to make: generated training tasks of one domain."""

    domain: str
    seed: int
    num_tasks: int
    difficulty: float | None
    is_compact: bool
    mistakes: float = 0.0
    """Share of the demonstrations that have one."""
    config: GRPOConfig = GRPOConfig()
    """Whose dials the domain has, where it has any, and whose model reads the demonstrations."""


class Conversing(Protocol):
    """What a chat needs for examples; ``Chat`` and ``CompactChat`` have it."""

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """Everything up to the first reply."""
        ...

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Everything between two replies."""
        ...

    def reply(self, message: Message) -> list[int]:
        """A reply as it should be written."""
        ...


def examples(lesson: Lesson) -> list[Example]:
    """The demonstrations of one lesson; tasks that cannot be demonstrated alone are left out."""
    domain = load_domain(lesson.domain).configured(lesson.config)
    tasks = domain.generate(
        seed=lesson.seed, count=lesson.num_tasks, split="train", difficulty=lesson.difficulty
    )
    found: list[Example] = []
    rng = Random(f"{lesson.seed}/mistakes")
    for task in tasks:
        is_careless = rng.random() < lesson.mistakes
        solved = demonstrate(domain, task, careless=rng if is_careless else None)
        if solved is not None:
            solo = solved.solo
            system = system_prompt(domain, task, solo=solo, compact=lesson.is_compact)
            tools = () if lesson.is_compact else domain.tools(solo=solo)
            found.append(
                Example(Scene(task, system, tools, solo=solo, seed=0), agent_turns(solved))
            )
    return found


def all_examples(lessons: Iterable[Lesson], *, workers: int) -> Iterator[list[Example]]:
    """The demonstrations of many lessons, in order, made by several processes."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(examples, _parts(lessons))


def all_traces(
    lessons: Iterable[Lesson], *, workers: int, context: int
) -> Iterator[list[TokenTrace | None]]:
    """As ``all_examples``, read by the model of the lessons where they are made.

    Thousands of long prompts take minutes to be put into tokens by one process.
    """
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(traces, context=context), _parts(lessons))


def traces(lesson: Lesson, *, context: int) -> list[TokenTrace | None]:
    """The demonstrations of one lesson as its model reads them; None for what does not fit."""
    from grpo_cl.policy.chat import chat_for  # noqa: PLC0415  # transformers is slow to import
    from grpo_cl.policy.loading import load_tokenizer, resolve  # noqa: PLC0415  # as is torch

    tokenizer = load_tokenizer(resolve(lesson.config.model_name_or_path))
    chat = chat_for(tokenizer, lesson.config.sampling.dialect)
    return [trace(chat, example, context=context) for example in examples(lesson)]


def _parts(lessons: Iterable[Lesson]) -> list[Lesson]:
    """Lessons as large as one process takes at a time."""
    return [
        lesson._replace(
            seed=lesson.seed * 1_000_003 + number, num_tasks=min(CHUNK, lesson.num_tasks - start)
        )
        for lesson in lessons
        for number, start in enumerate(range(0, lesson.num_tasks, CHUNK))
    ]


def trace(chat: Conversing, example: Example, *, context: int) -> TokenTrace | None:
    """The example as the policy would have read and written it; None if it does not fit."""
    ids: list[int] = []
    mask: list[bool] = []
    turns: list[tuple[int, int]] = []
    waiting: list[Message] = []
    for message in example.messages:
        if message.role != "assistant":
            waiting.append(message)
            continue
        between = (
            chat.continuation(waiting, ended=True)
            if turns
            else chat.opening(example.scene, waiting)
        )
        waiting = []
        reply = chat.reply(message)
        ids += between
        turns.append((len(ids), len(ids) + len(reply)))
        ids += reply
        mask += [False] * len(between) + [True] * len(reply)
    if len(ids) > context:
        return None
    logprobs = (0.0,) * sum(mask)
    return TokenTrace(ids=tuple(ids), mask=tuple(mask), logprobs=logprobs, turns=tuple(turns))


def batches(traces: Sequence[TokenTrace], *, size: int, seed: int) -> Iterator[list[TokenTrace]]:
    """Endless batches, every trace once per epoch, less what does not fill a batch."""
    if len(traces) < size:
        raise ConfigError(
            f"{len(traces)} demonstrations do not fill a batch of {size}; raise --count or lower "
            "--batch_size"
        )
    epoch = 0
    while True:
        order = Random(f"{seed}/{epoch}").sample(range(len(traces)), len(traces))
        for start in range(0, len(order) - size + 1, size):
            yield [traces[index] for index in order[start : start + size]]
        epoch += 1
