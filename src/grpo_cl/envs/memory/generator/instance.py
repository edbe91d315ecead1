"""Sample instances from a seed and difficulty parameters; only valid instances are returned."""

import re
from collections.abc import Iterator, Sequence
from random import Random

from pydantic import JsonValue

from grpo_cl.envs.generation.tasks import allows_skills, skill_set
from grpo_cl.envs.memory.generator.conversation import ConversationGenerator, Line, Operation
from grpo_cl.envs.memory.generator.parameters import GeneratorParams
from grpo_cl.envs.memory.generator.questions import generate_questions
from grpo_cl.envs.memory.generator.validation import find_defect
from grpo_cl.envs.memory.instances import Chunk, Instance
from grpo_cl.envs.memory.rewards.content import FACT_LINES, OPERATIONS, STALE
from grpo_cl.errors import ConfigError

SOURCE = "generated"
LICENSE = "MIT"
ATTEMPTS = 200
"""Samples before the generator gives up on finding a valid instance."""

SKILLS = "skills"
"""The key of the skills in ``Instance.meta``."""

TEST_NAME_STRIDE = 5
"""Every fifth first name is reserved for test instances; training instances have the others."""

MIN_NAME_LENGTH = 3
"""Of an invented name."""

_FIRST = (
    "Ava Noah Mia Liam Zoe Omar Ines Raj Yuki Lena Paulo Greta Tariq Nadia Felix Sara Bruno Hana "
    "Ivan Chloe Anouk Boris Clara Dario Elif Farid Gwen Hugo Irina Jonas Kenji Laila Marco Nils "
    "Olga Petra Quinn Rosa Sven Tessa Umar Vera Wanda Xenia Yusuf Zahra Amir Bianca Cyril Daphne "
    "Emil Freya Goran Heidi Isaac Jelena Kofi Livia Milan Nora"
)
_NAME = re.compile(rf"\b(?:{'|'.join(_FIRST.split())})\b")
_VOWELS, _CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"
_LAST = "Lind Moreno Okafor Petrov Silva Tanaka Varga Weber Yilmaz Zeman"


def generate_instance(
    rng: Random, params: GeneratorParams, *, split: str = "train", name: str = "generated"
) -> Instance:
    """A valid instance with a set of skills that belongs to ``split``."""
    defect = ""
    for _ in range(ATTEMPTS):
        instance = _sample(rng, params, split=split, name=name)
        if not allows_skills(skills_of(instance), split):
            defect = f"its set of questions, facts and changes is not in {split!r}"
            continue
        defect = find_defect(instance)
        if not defect:
            return instance
    raise ConfigError(
        f"no valid instance after {ATTEMPTS} samples, the last defect: {defect}; "
        f"choose easier parameters than {params}"
    )


def generate_instances(
    seed: int,
    count: int,
    *,
    difficulty: float | None = None,
    params: GeneratorParams | None = None,
    split: str = "train",
) -> list[Instance]:
    """``count`` instances of a difficulty, of given parameters, or of random difficulties."""
    if difficulty is not None and params is not None:
        raise ConfigError("difficulty sets all parameters; give either difficulty or params")
    instances: list[Instance] = []
    for number in range(count):
        rng = Random(f"memory/{split}/{seed}/{number}")
        level = rng.random() if difficulty is None else difficulty
        name = f"generated-{split}-{seed}-{number}"
        instances.append(
            generate_instance(rng, params or GeneratorParams.at(level), split=split, name=name)
        )
    return instances


def skills_of(instance: Instance) -> tuple[str, ...]:
    """Kinds of questions, facts asked for and changes; empty if the instance is not generated."""
    listed = instance.meta.get(SKILLS)
    return tuple(map(str, listed)) if isinstance(listed, list) else ()


def gold_operations(chunk: Chunk) -> list[Operation] | None:
    """The gold operations at a chunk; None for an unlabelled chunk."""
    if chunk.labels is None or not isinstance(listed := chunk.labels.get(OPERATIONS), list):
        return None
    return [
        Operation(str(item["name"]), dict(arguments))
        for item in listed
        if isinstance(item, dict) and isinstance(arguments := item["arguments"], dict)
    ]


def sample_people(rng: Random, *, count: int, namesakes: int, split: str) -> list[str]:
    """``count`` names, of which ``namesakes`` share a first name with another; no split overlap.

    With namesakes all persons have surnames.
    """
    if split not in {"train", "test"}:
        raise ConfigError(f"a generator makes 'train' or 'test' instances, not {split!r}")
    is_test = split == "test"
    pool = [name for n, name in enumerate(_FIRST.split()) if (n % TEST_NAME_STRIDE == 0) == is_test]
    if count - namesakes > len(pool):
        raise ConfigError(
            f"{count} people with {namesakes} namesakes need {count - namesakes} first names; "
            f"{split} has {len(pool)}. Lower `people` or raise `namesakes`"
        )
    if 2 * namesakes > count:
        raise ConfigError(
            f"{namesakes} namesakes of {count} people need as many others to share names with; "
            "lower `namesakes` or raise `people`"
        )
    first = rng.sample(pool, count - namesakes)
    if not namesakes:
        return first
    first += rng.sample(first, namesakes)
    surnames = _LAST.split()
    last = rng.sample(surnames, len(surnames))
    return [f"{name} {last[n % len(last)]}" for n, name in enumerate(first)]


def with_invented_names(instance: Instance, rng: Random) -> Instance:
    """The instance with a new invented word for each first name.

    A policy that reads the few names of training instances only memorises them instead of copying.
    """
    text = instance.model_dump_json()
    invented = _invented_names(rng)
    names = {name: next(invented) for name in sorted(set(_NAME.findall(text)))}
    return Instance.model_validate_json(_NAME.sub(lambda match: names[match[0]], text))


def _invented_names(rng: Random) -> Iterator[str]:
    """Distinct words of one to three syllables that are no first names of instances."""
    used: set[str] = set(_FIRST.split())
    while True:
        syllables = (
            rng.choice(_CONSONANTS) + rng.choice(_VOWELS) + rng.choice(["", rng.choice("hklnrst")])
            for _ in range(rng.randint(1, 3))
        )
        name = "".join(syllables)[rng.random() < 1 / 5 :].capitalize()
        if len(name) >= MIN_NAME_LENGTH and name not in used:
            used.add(name)
            yield name


def _sample(rng: Random, params: GeneratorParams, *, split: str, name: str) -> Instance:
    people = sample_people(rng, count=params.people, namesakes=params.namesakes, split=split)
    conversation = ConversationGenerator(rng, params, people)
    chunks = [_chunk(conversation, conversation.next_chunk()) for _ in range(params.chunks)]
    questions = generate_questions(conversation)
    skills = skill_set(
        (
            *(f"question: {question.qtype}" for question in questions),
            *(f"fact: {question.meta['subject']}" for question in questions),
            *(f"change: {change}" for change in conversation.changes),
        )
    )
    return Instance(
        id=name,
        chunks=tuple(chunks),
        questions=tuple(questions),
        source=SOURCE,
        license=LICENSE,
        meta={"knobs": params.model_dump(mode="json"), SKILLS: list(skills)},
    )


def _chunk(conversation: ConversationGenerator, lines: Sequence[Line]) -> Chunk:
    date = conversation.today.isoformat()
    operations: list[JsonValue] = [
        {"name": line.operation.name, "arguments": dict(line.operation.arguments)}
        for line in lines
        if line.operation
    ]
    dialogue = "\n".join(f"User: {line.text}" for line in lines)
    return Chunk(
        chunk_id=conversation.chunk_id,
        content=f"[Dialogue on {date}]\n{dialogue}",
        timestamp=date,
        labels={
            OPERATIONS: operations,
            FACT_LINES: [line.text for line in lines if line.operation],
            STALE: [line.stale for line in lines if line.stale],
        },
    )
