"""``grpo-cl memory``: generate instances, construct and search a memory, evaluate policies."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_cl.cli.options import read_config
from grpo_cl.cli.output import printable, table
from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.envs.memory import Instance, MemorySystem
from grpo_cl.envs.memory.domain import task_of
from grpo_cl.envs.memory.instances import instance_of
from grpo_cl.envs.memory.loaders import LoaderOptions, load_instances, save_jsonl
from grpo_cl.envs.memory.loaders.chunks import split_text
from grpo_cl.envs.memory.retrieval.retriever import Retriever
from grpo_cl.envs.memory.rewards.episode import Step
from grpo_cl.envs.memory.rewards.question_answering import format_entry
from grpo_cl.envs.memory.rewards.scorer import replay
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.evaluation import (
    COMPONENTS,
    TOTAL,
    ActorChoice,
    episode_runner,
    evaluation_tasks,
    intervals,
    score,
)
from grpo_cl.storage.files import write_file

TEXT = "text"
MEMORY, JOURNAL = "memory.json", "journal.jsonl"
DEMO_BASELINES = ("oracle", "append", "copy_chunk", "idle")
COUNT = 40
"""Default number of generated instances."""
BUDGETS = (256, 24)
"""Context tokens per question: a wide and a tight budget."""


def demo(arguments: argparse.Namespace) -> int:
    """Print an instance, its gold memory, and the scores of baselines."""
    config = _config([], level=arguments.difficulty)
    # Not ``evaluation_tasks``: runs with different seeds are evaluated on the same tasks.
    tasks = load_domain("memory").generate(
        seed=arguments.seed, count=arguments.count, split="test", difficulty=arguments.difficulty
    )
    first = instance_of(tasks[0])
    print(printable("\n\n".join(chunk.content for chunk in first.chunks)))
    with episode_runner(config, ActorChoice(baseline="oracle")) as run:
        episode = replay(tasks[0], run(tasks[:1])[0].messages)
    print("\nThe gold memory:")
    print(printable("\n".join(map(format_entry, episode.memory.entries.values()))))
    question = first.questions[0]
    print(f"The first question: {question.question} {' or '.join(question.answers)}\n")
    headers = [f"r1 of {budget} tokens" for budget in BUDGETS]
    other_components = [*list(COMPONENTS)[1:], TOTAL]
    rows: list[Sequence[object]] = [["writer", *headers, *other_components]]
    for name in DEMO_BASELINES:
        with episode_runner(config, ActorChoice(baseline=name)) as run:
            episodes = run(tasks)
        wide, tight = (intervals(score(_with_budget(config, n), episodes)) for n in BUDGETS)
        numbers = [wide["r1"], tight["r1"], *(wide[component] for component in other_components)]
        rows.append([name, *(f"{number.estimate:.3f}" for number in numbers)])
    print(table(rows))
    return 0


def construct(arguments: argparse.Namespace) -> int:
    """Construct the memory of a conversation, and save it with a journal of the calls."""
    config = _config(arguments.settings)
    instance = _conversation(arguments)
    choice = ActorChoice(model=arguments.model, base_url=arguments.base_url)
    with episode_runner(config, choice) as run:
        trajectory = run([task_of(instance)])[0]
    episode = replay(trajectory.task, trajectory.messages, stamp=config.memory.stamp)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    episode.memory.save(out / MEMORY)
    lines = [json.dumps(_line(step), ensure_ascii=False) for step in episode.steps]
    write_file(out / JOURNAL, [f"{line}\n" for line in lines])
    succeeded = sum(call.outcome.ok for step in episode.steps for call in step.calls)
    attempted = sum(step.num_attempts for step in episode.steps)
    print(
        f"{len(episode.steps)} of {len(instance.chunks)} chunks read, "
        f"{succeeded} of {attempted} calls made, "
        f"{len(episode.memory.entries)} entries of {episode.memory.tokens()} tokens "
        f"({instance.tokens} were read): {out / MEMORY}"
    )
    return 0


def retrieve(arguments: argparse.Namespace) -> int:
    """Print the entries of a memory for a query, best first."""
    memory = MemorySystem.load(arguments.memory)
    hits = _retriever(is_semantic=arguments.semantic).search(
        memory, arguments.query, k=arguments.count
    )
    if arguments.json:
        for hit in hits:
            print(json.dumps({"score": hit.score, **hit.entry.model_dump()}))
        return 0
    if memory.core:
        print(printable(f"Core: {memory.core}"))
    for hit in hits:
        print(printable(f"{hit.score:.3f} {format_entry(hit.entry)}"))
    if not hits:
        print(f"none of {len(memory.entries)} entries shares a word with the query")
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a baseline, a hosted model or a policy on generated or loaded instances."""
    config = _config(arguments.settings, count=arguments.count)
    tasks = evaluation_tasks(config)
    choice = ActorChoice(arguments.writer, arguments.model, arguments.base_url)
    with episode_runner(config, choice) as run:
        components = intervals(score(config, run(tasks)))
    actor_name = choice.baseline or choice.model or config.model_name_or_path
    if arguments.json:
        dumped = {name: interval.model_dump() for name, interval in components.items()}
        print(json.dumps({"writer": actor_name, "instances": len(tasks), **dumped}))
        return 0
    print(f"{actor_name} on {len(tasks)} instances, with 95 % confidence intervals")
    rows: list[Sequence[object]] = [["", "mean", "low", "high"]]
    for name, interval in components.items():
        values = (interval.estimate, interval.low, interval.high)
        rows.append([name, *(f"{value:.3f}" for value in values)])
    print(table(rows))
    return 0


def generate(arguments: argparse.Namespace) -> int:
    """Write generated instances to a file, one per line."""
    config = _config(arguments.settings, level=arguments.difficulty)
    domain = load_domain("memory").configured(config)
    tasks = domain.generate(
        seed=arguments.seed,
        count=arguments.count,
        split=arguments.split,
        difficulty=arguments.difficulty,
    )
    out: Path = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    # Not the ids of the tasks: those are the ids of newly generated tasks wherever they are read.
    name = f"generated-{arguments.split}-{arguments.seed}"
    instances = [
        instance_of(task).model_copy(update={"id": f"{name}-{number}"})
        for number, task in enumerate(tasks)
    ]
    save_jsonl(out, instances)
    print(f"{len(tasks)} instances: {out}")
    return 0


def _config(
    settings: Sequence[str], *, count: int | None = None, level: float | None = None
) -> GRPOConfig:
    base: dict[str, Any] = {
        "task_order": ["memory"],
        "kl_coef": 0.0,
        "tasks": {"difficulty": level},
        "evaluation": {"generated": COUNT},
    }
    count_setting = [] if count is None else ["--evaluation.generated", str(count)]
    return read_config([*settings, *count_setting], base)


def _with_budget(config: GRPOConfig, tokens: int) -> GRPOConfig:
    answerer = config.memory.answerer.model_copy(update={"context_tokens": tokens})
    memory = config.memory.model_copy(update={"answerer": answerer})
    return config.model_copy(update={"memory": memory})


def _conversation(arguments: argparse.Namespace) -> Instance:
    path: Path = arguments.file
    if arguments.format != TEXT:
        options = LoaderOptions(chunk_tokens=arguments.chunk_tokens)
        instances = load_instances(path, arguments.format, options)
        if not 0 <= arguments.number < len(instances):
            raise ConfigError(
                f"{path} has {len(instances)} conversations, --number {arguments.number} is none "
                f"of them; give one from 0 to {len(instances) - 1}"
            )
        return instances[arguments.number]
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r} as text: {error}") from error
    chunks = split_text(text, limit=arguments.chunk_tokens)
    if not chunks:
        raise ConfigError(f"{path} holds no text; give a file that does")
    return Instance(
        id=path.stem, chunks=tuple(chunks), questions=(), source=TEXT, license="not stated"
    )


def _line(step: Step) -> dict[str, Any]:
    calls = [
        {
            "name": call.name,
            "arguments": call.arguments,
            "ok": call.outcome.ok,
            "result": call.outcome.message,
        }
        for call in step.calls
    ]
    return {"chunk_id": step.chunk.chunk_id, "calls": calls, "malformed": step.num_malformed}


def _retriever(*, is_semantic: bool) -> Retriever:
    if not is_semantic:
        return Retriever()
    from grpo_cl.envs.memory.retrieval.embeddings import EmbeddingScorer, minilm

    return Retriever(semantic=EmbeddingScorer(minilm()))
