"""``grpo-cl memory``: see what a memory is worth, have one written, search it, measure a writer."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_cl.cli.options import read_config
from grpo_cl.cli.world import printable, table
from grpo_cl.config import GRPOConfig
from grpo_cl.domains import load_domain
from grpo_cl.domains.memory.domain import task_of
from grpo_cl.errors import ConfigError
from grpo_cl.mem_alpha.playing import PARTS, TOTAL, Who, instances_of, intervals, player, score
from grpo_cl.memory import Instance, MemorySystem
from grpo_cl.memory.answerers import shown
from grpo_cl.memory.loaders import Reading, load_instances, save_jsonl
from grpo_cl.memory.loaders.chunks import cut_text
from grpo_cl.memory.retrieval import Retriever
from grpo_cl.memory.steps import Step
from grpo_cl.memory.tasks import instance_of
from grpo_cl.rewards.memory import replay
from grpo_cl.rundir import write_file

TEXT = "text"
MEMORY, JOURNAL = "memory.json", "journal.jsonl"
SHOWN_WRITERS = ("oracle", "append", "copy_chunk", "idle")
COUNT = 40
"""Instances that are generated unless told otherwise."""
BUDGETS = (256, 24)
"""Tokens that are read for one question, ample and tight."""


def demo(arguments: argparse.Namespace) -> int:
    """Print an instance, the memory a careful writer makes of it, and what rules are worth."""
    config = _config([], count=arguments.count, seed=arguments.seed, level=arguments.difficulty)
    tasks = instances_of(config)
    first = instance_of(tasks[0])
    print(printable("\n\n".join(chunk.content for chunk in first.chunks)))
    with player(config, Who(rule="oracle")) as play:
        diary = replay(tasks[0], play(tasks[:1])[0].messages)
    print("\nA careful writer remembers:")
    print(printable("\n".join(map(shown, diary.memory.entries.values()))))
    asked = first.questions[0]
    print(f"and is asked, among others: {asked.question} {' or '.join(asked.answers)}\n")
    heads = [f"r1 of {budget} tokens" for budget in BUDGETS]
    rows: list[Sequence[object]] = [["writer", *heads, *list(PARTS)[1:], TOTAL]]
    for rule in SHOWN_WRITERS:
        with player(config, Who(rule=rule)) as play:
            played = play(tasks)
        wide, tight = (intervals(score(_reading(config, budget), played)) for budget in BUDGETS)
        numbers = [wide["r1"], tight["r1"], *(wide[name] for name in (*list(PARTS)[1:], TOTAL))]
        rows.append([rule, *(f"{number.estimate:.3f}" for number in numbers)])
    print(table(rows))
    return 0


def construct(arguments: argparse.Namespace) -> int:
    """Have a memory written of a conversation, and save it with what was done."""
    config = _config(arguments.settings)
    instance = _conversation(arguments)
    who = Who(model=arguments.model, base_url=arguments.base_url)
    with player(config, who) as play:
        episode = play([task_of(instance)])[0]
    diary = replay(episode.task, episode.messages, stamp=config.memory.stamp)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    diary.memory.save(out / MEMORY)
    lines = [json.dumps(_line(step), ensure_ascii=False) for step in diary.steps]
    write_file(out / JOURNAL, [f"{line}\n" for line in lines])
    done = sum(call.outcome.ok for step in diary.steps for call in step.calls)
    tried = sum(step.num_attempts for step in diary.steps)
    print(
        f"{len(diary.steps)} of {len(instance.chunks)} chunks read, {done} of {tried} calls made, "
        f"{len(diary.memory.entries)} entries of {diary.memory.tokens()} tokens "
        f"({instance.tokens} were read): {out / MEMORY}"
    )
    return 0


def retrieve(arguments: argparse.Namespace) -> int:
    """Print the entries of a memory that a query needs, the best first."""
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
        print(printable(f"{hit.score:.3f} {shown(hit.entry)}"))
    if not hits:
        print(f"nothing of {len(memory.entries)} entries shares a word with the query")
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Measure a rule, a hosted model or a policy on generated or loaded instances."""
    config = _config(arguments.settings, count=arguments.count)
    tasks = instances_of(config)
    who = Who(arguments.writer, arguments.model, arguments.base_url)
    with player(config, who) as play:
        found = intervals(score(config, play(tasks)))
    if arguments.json:
        whole = {name: interval.model_dump() for name, interval in found.items()}
        print(json.dumps({"writer": _name(who, config), "instances": len(tasks), **whole}))
        return 0
    print(f"{_name(who, config)} on {len(tasks)} instances, 95 % intervals over them")
    rows: list[Sequence[object]] = [["", "mean", "low", "high"]]
    for name, each in found.items():
        rows.append([name, *(f"{value:.3f}" for value in (each.estimate, each.low, each.high))])
    print(table(rows))
    return 0


def generate(arguments: argparse.Namespace) -> int:
    """Write generated instances to a file, one on each line."""
    config = _config(arguments.settings, level=arguments.difficulty)
    made = load_domain("memory").configured(config)
    tasks = made.generate(
        seed=arguments.seed,
        count=arguments.count,
        split=arguments.split,
        difficulty=arguments.difficulty,
    )
    out: Path = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    # Not under the ids of the tasks: those are drawn anew wherever they are read.
    name = f"generated-{arguments.split}-{arguments.seed}"
    instances = [
        instance_of(task).model_copy(update={"id": f"{name}-{number}"})
        for number, task in enumerate(tasks)
    ]
    save_jsonl(out, instances)
    print(f"{len(tasks)} instances: {out}")
    return 0


def _config(
    settings: Sequence[str], *, count: int | None = None, seed: int = 0, level: float | None = None
) -> GRPOConfig:
    base: dict[str, Any] = {
        "task_order": ["memory"],
        "kl_coef": 0.0,
        "seed": seed,
        "tasks": {"difficulty": level},
        "evaluation": {"generated": COUNT},
    }
    asked = [] if count is None else ["--evaluation.generated", str(count)]
    return read_config([*settings, *asked], base)


def _reading(config: GRPOConfig, tokens: int) -> GRPOConfig:
    answerer = config.memory.answerer.model_copy(update={"context_tokens": tokens})
    memory = config.memory.model_copy(update={"answerer": answerer})
    return config.model_copy(update={"memory": memory})


def _conversation(arguments: argparse.Namespace) -> Instance:
    path: Path = arguments.file
    if arguments.format != TEXT:
        reading = Reading(chunk_tokens=arguments.chunk_tokens)
        found = load_instances(path, arguments.format, reading)
        if not 0 <= arguments.number < len(found):
            raise ConfigError(
                f"{path} has {len(found)} conversations, --number {arguments.number} is none of "
                f"them; give one from 0 to {len(found) - 1}"
            )
        return found[arguments.number]
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r} as text: {error}") from error
    chunks = cut_text(text, limit=arguments.chunk_tokens)
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
    from grpo_cl.memory.semantic import Semantic, minilm

    return Retriever(semantic=Semantic(minilm()))


def _name(who: Who, config: GRPOConfig) -> str:
    return who.rule or who.model or config.model_name_or_path
