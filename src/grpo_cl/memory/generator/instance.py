"""Instances drawn from a seed and dials, each checked before it is handed out."""

from collections.abc import Sequence
from random import Random

from pydantic import JsonValue

from grpo_cl.errors import ConfigError
from grpo_cl.memory.content import OPERATIONS, STALE, TOLD
from grpo_cl.memory.generator.knobs import Knobs
from grpo_cl.memory.generator.people import people
from grpo_cl.memory.generator.questions import ask
from grpo_cl.memory.generator.soundness import flaw
from grpo_cl.memory.generator.story import Line, Operation, Story
from grpo_cl.memory.instances import Chunk, Instance

SOURCE = "generated"
LICENSE = "MIT"
ATTEMPTS = 50
"""Draws before the generator admits that no sound instance has these dials."""


def generate_instance(
    rng: Random, knobs: Knobs, *, split: str = "train", name: str = "generated"
) -> Instance:
    """A sound instance."""
    reason = ""
    for _ in range(ATTEMPTS):
        instance = _draw(rng, knobs, split=split, name=name)
        reason = flaw(instance)
        if not reason:
            return instance
    raise ConfigError(f"no sound instance after {ATTEMPTS} draws, at last: {reason}; ease {knobs}")


def generate_instances(
    seed: int,
    count: int,
    *,
    difficulty: float | None = None,
    knobs: Knobs | None = None,
    split: str = "train",
) -> list[Instance]:
    """``count`` instances of a difficulty, of given dials, or of a mixture of all difficulties."""
    if difficulty is not None and knobs is not None:
        raise ConfigError("difficulty sets all dials; give either difficulty or knobs")
    made: list[Instance] = []
    for number in range(count):
        rng = Random(f"memory/{split}/{seed}/{number}")
        level = rng.random() if difficulty is None else difficulty
        dials = knobs or Knobs.at(level)
        name = f"generated-{split}-{seed}-{number}"
        made.append(generate_instance(rng, dials, split=split, name=name))
    return made


def gold_operations(chunk: Chunk) -> list[Operation] | None:
    """A careful writer's calls on reading a chunk; None where nobody labelled it."""
    if chunk.labels is None or not isinstance(listed := chunk.labels.get(OPERATIONS), list):
        return None
    return [
        Operation(str(each["name"]), dict(given))
        for each in listed
        if isinstance(each, dict) and isinstance(given := each["arguments"], dict)
    ]


def _draw(rng: Random, knobs: Knobs, *, split: str, name: str) -> Instance:
    persons = people(rng, count=knobs.people, namesakes=knobs.namesakes, split=split)
    story = Story(rng, knobs, persons)
    chunks = [_chunk(story, story.tell_chunk()) for _ in range(knobs.chunks)]
    return Instance(
        id=name,
        chunks=tuple(chunks),
        questions=tuple(ask(story)),
        source=SOURCE,
        license=LICENSE,
        meta={"knobs": knobs.model_dump(mode="json")},
    )


def _chunk(story: Story, lines: Sequence[Line]) -> Chunk:
    day = story.today.isoformat()
    operations: list[JsonValue] = [
        {"name": line.operation.name, "arguments": dict(line.operation.arguments)}
        for line in lines
        if line.operation
    ]
    said = "\n".join(f"User: {line.text}" for line in lines)
    return Chunk(
        chunk_id=story.chunk_id,
        content=f"[Dialogue on {day}]\n{said}",
        timestamp=day,
        labels={
            OPERATIONS: operations,
            TOLD: [line.text for line in lines if line.operation],
            STALE: [line.stale for line in lines if line.stale],
        },
    )
