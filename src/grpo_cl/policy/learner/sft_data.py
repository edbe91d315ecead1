"""Demonstrations for supervised fine-tuning: generated, tokenized, batched."""

import signal
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import count
from multiprocessing import get_context
from random import Random
from typing import NamedTuple, Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.config.sft import SFTSettings
from grpo_cl.envs import Domain, load_domain
from grpo_cl.envs.tasks import own_tasks
from grpo_cl.errors import ConfigError
from grpo_cl.rollout import Scene, system_prompt
from grpo_cl.rollout.demonstrations import Example, agent_turns, demonstrate
from grpo_cl.storage.parent_process import exit_with_parent
from grpo_cl.types import Message, Task, TokenTrace

CHUNK = 250
"""Tasks per job of a worker process."""
BATCHES_AHEAD = 2
"""New batches, per worker process, that are generated before they are needed."""
MAX_ATTEMPTS = 50
"""How often tasks without a demonstration that fits the context are replaced by others."""


class DemonstrationSpec(NamedTuple):
    """Which demonstrations to generate: training tasks of one domain."""

    domain: str
    seed: int
    num_tasks: int
    difficulty: float | None
    is_compact: bool
    mistakes: float = 0.0
    """Fraction of demonstrations with an injected error."""
    config: GRPOConfig = GRPOConfig()
    """Configures the domain, and names the model whose tokenizer is used."""
    own: bool = False
    """Whether the domain's own training tasks are drawn, with replacement, instead of generated."""


class ChatEncoder(Protocol):
    """Renders conversations as tokens: ``Chat`` or ``CompactChat``."""

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """The tokens before the first reply."""
        ...

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """The tokens between two replies."""
        ...

    def encode_reply(self, message: Message) -> list[int]:
        """The tokens of a reply."""
        ...


def demonstration_specs(settings: SFTSettings) -> list[DemonstrationSpec]:
    """The demonstrations of a fine-tuning, by difficulty and domain, those of own tasks last."""
    options, config = settings.options, settings.config
    levels: Sequence[float | None] = options.difficulty or (None,)
    generated = [
        DemonstrationSpec(
            domain,
            options.seed,
            count,
            config.tasks.difficulty_of(domain) if level is None else level,
            is_compact=config.rollout.prompt == "compact",
            mistakes=options.mistakes,
            config=config,
        )
        for level in levels
        for domain, count in zip(options.domain, options.counts, strict=True)
    ]
    if not options.own:
        return generated
    own = [spec._replace(num_tasks=options.own, own=True) for spec in generated]
    return [*generated, *own[: len(options.domain)]]


def require_tasks(spec: DemonstrationSpec) -> None:
    """Refuse an unknown domain, and one without the training tasks that ``own`` asks for."""
    domain, share = load_domain(spec.domain), spec.config.train_split
    if spec.own and not own_tasks(domain.configured(spec.config), "train", share):
        raise ConfigError(
            f"--own {spec.num_tasks} demonstrates training tasks, and domain {spec.domain!r} has "
            f"none with train_split={share}; raise train_split or leave --own out"
        )


def generate_examples(spec: DemonstrationSpec) -> list[Example]:
    """The demonstrations of a spec; tasks without a scripted demonstration are left out."""
    domain = load_domain(spec.domain).configured(spec.config)
    tasks = _own_tasks(domain, spec) if spec.own else _generated_tasks(domain, spec)
    examples: list[Example] = []
    rng = Random(f"{spec.seed}/mistakes")
    for task in map(domain.demonstration_task, tasks):
        has_error = rng.random() < spec.mistakes
        solved = demonstrate(domain, task, error_rng=rng if has_error else None)
        if solved is not None:
            solo = solved.solo
            system = system_prompt(domain, task, solo=solo, compact=spec.is_compact)
            tools = () if spec.is_compact else domain.tools(solo=solo)
            examples.append(
                Example(Scene(task, system, tools, solo=solo, seed=0), agent_turns(solved))
            )
    return examples


def _generated_tasks(domain: Domain, spec: DemonstrationSpec) -> list[Task]:
    return domain.generate(
        seed=spec.seed, count=spec.num_tasks, split="train", difficulty=spec.difficulty
    )


def _own_tasks(domain: Domain, spec: DemonstrationSpec) -> list[Task]:
    tasks = own_tasks(domain, "train", spec.config.train_split)
    return Random(f"{spec.seed}/own").choices(tasks, k=spec.num_tasks)


def generate_examples_parallel(
    specs: Iterable[DemonstrationSpec], *, workers: int
) -> Iterator[list[Example]]:
    """The demonstrations of several specs, in order, generated by worker processes."""
    with _pool(workers) as pool:
        yield from pool.map(generate_examples, _chunks(specs))


def tokenize_examples_parallel(
    specs: Iterable[DemonstrationSpec], *, workers: int, context: int
) -> Iterator[list[TokenTrace | None]]:
    """As ``generate_examples_parallel``, tokenized by the workers.

    One process would take minutes to tokenize thousands of long prompts.
    """
    with _pool(workers) as pool:
        yield from pool.map(partial(tokenize_examples, context=context), _chunks(specs))


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_worker)


def _begin_worker() -> None:
    """Leave signals to the parent: those of a terminal or a job reach all of its processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()


def tokenize_examples(spec: DemonstrationSpec, *, context: int) -> list[TokenTrace | None]:
    """The tokens of a spec's demonstrations; None for one longer than ``context``."""
    chat = _chat(spec.config.model_name_or_path, spec.config.sampling.dialect)
    return [tokenize_example(chat, example, context=context) for example in generate_examples(spec)]


@cache
def _chat(model: str, dialect: str) -> ChatEncoder:
    from grpo_cl.policy.chat.chat import chat_for  # noqa: PLC0415  # transformers is slow to import
    from grpo_cl.policy.model.loading import load_tokenizer, resolve  # noqa: PLC0415  # torch too

    return chat_for(load_tokenizer(resolve(model)), dialect)


def fresh_batches(
    specs: Sequence[DemonstrationSpec], *, size: int, start: int, workers: int, context: int
) -> Generator[list[TokenTrace]]:
    """Endless batches of new tasks from step ``start`` on, which worker processes generate ahead.

    At most ``BATCHES_AHEAD`` batches per worker are kept. Their number changes no batch.
    """
    if not any(spec.num_tasks for spec in specs):
        raise ConfigError("--count is 0 for every domain; with --fresh give one a positive count")
    return _fresh_from(
        start, partial(fresh_batch, specs, size=size, context=context), workers=workers
    )


def _fresh_from(
    start: int, make: "partial[list[TokenTrace]]", *, workers: int
) -> Generator[list[TokenTrace]]:
    pool = _pool(workers)
    try:
        steps = count(start)
        pending = deque(pool.submit(make, next(steps)) for _ in range(workers * BATCHES_AHEAD))
        while True:
            batch = pending.popleft().result()
            pending.append(pool.submit(make, next(steps)))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def fresh_batch(
    specs: Sequence[DemonstrationSpec], step: int, *, size: int, context: int
) -> list[TokenTrace]:
    """The batch of a step: new demonstrations, drawn from the specs in the ratio of their tasks.

    It is a function of the arguments alone.
    """
    weights = [spec.num_tasks for spec in specs]
    drawn = Counter(Random(f"{specs[0].seed}/{step}").choices(range(len(specs)), weights, k=size))
    return [
        trace
        for index, num_traces in sorted(drawn.items())
        for trace in _new_traces(specs[index], step, num_traces, context=context)
    ]


def _new_traces(
    spec: DemonstrationSpec, step: int, num_traces: int, *, context: int
) -> list[TokenTrace]:
    traces: list[TokenTrace] = []
    for attempt in range(MAX_ATTEMPTS):
        seed = Random(f"{spec.seed}/{step}/{attempt}").getrandbits(48)
        part = spec._replace(seed=seed, num_tasks=num_traces - len(traces))
        traces += [trace for trace in tokenize_examples(part, context=context) if trace is not None]
        if len(traces) == num_traces:
            return traces
    kind = "own tasks" if spec.own else "tasks"
    level = "" if spec.own else f" at difficulty {spec.difficulty}"
    change = "leave --own out" if spec.own else "lower --difficulty"
    raise ConfigError(
        f"only {len(traces)} of {num_traces} {kind} of {spec.domain}{level} have a demonstration "
        f"of at most {context} tokens, also when others were drawn {MAX_ATTEMPTS} times; raise "
        f"sampling.max_context or {change}"
    )


def _chunks(specs: Iterable[DemonstrationSpec]) -> list[DemonstrationSpec]:
    """The specs in chunks of tasks for one worker."""
    return [
        spec._replace(
            seed=spec.seed * 1_000_003 + number, num_tasks=min(CHUNK, spec.num_tasks - start)
        )
        for spec in specs
        for number, start in enumerate(range(0, spec.num_tasks, CHUNK))
    ]


def tokenize_example(chat: ChatEncoder, example: Example, *, context: int) -> TokenTrace | None:
    """Tokens and loss mask of an example; None if it is longer than ``context``."""
    ids: list[int] = []
    mask: list[bool] = []
    turns: list[tuple[int, int]] = []
    pending: list[Message] = []
    for message in example.messages:
        if message.role != "assistant":
            pending.append(message)
            continue
        between = (
            chat.continuation(pending, ended=True)
            if turns
            else chat.opening(example.scene, pending)
        )
        pending = []
        reply = chat.encode_reply(message)
        ids += between
        turns.append((len(ids), len(ids) + len(reply)))
        ids += reply
        mask += [False] * len(between) + [True] * len(reply)
    if len(ids) > context:
        return None
    logprobs = (0.0,) * sum(mask)
    return TokenTrace(ids=tuple(ids), mask=tuple(mask), logprobs=logprobs, turns=tuple(turns))


def shuffled_batches(
    traces: Sequence[TokenTrace], *, size: int, seed: int, start: int = 0
) -> Generator[list[TokenTrace]]:
    """Endless shuffled batches without the first ``start``.

    The last incomplete batch of an epoch is dropped.
    """
    if len(traces) < size:
        raise ConfigError(
            f"{len(traces)} demonstrations do not fill a batch of {size}; raise --count or --own, "
            "or lower --batch_size"
        )
    return _batches_from(start, traces, size=size, seed=seed)


def _batches_from(
    first: int, traces: Sequence[TokenTrace], *, size: int, seed: int
) -> Generator[list[TokenTrace]]:
    epoch, done = divmod(first, len(traces) // size)
    while True:
        order = Random(f"{seed}/{epoch}").sample(range(len(traces)), len(traces))
        for start in range(done * size, len(order) - size + 1, size):
            yield [traces[index] for index in order[start : start + size]]
        epoch, done = epoch + 1, 0
