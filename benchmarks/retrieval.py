"""What searching a memory finds and costs: ours against rank-bm25 and the encoder alone.

    .venv/bin/python benchmarks/retrieval.py [--locomo locomo10.json]

Recall is the share of a question's relevant entries among the best k. In generated instances an
entry is relevant if it comes from a chunk with evidence and holds an answer; in LoCoMo, if it is
one of the turns that the data names. Latencies are medians of searches in random entries, with
vectors drawn beforehand: encoding is timed apart. Where facts change, old and false lines share all
words with the one that is relevant, and no search can tell them apart.
"""

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from grpo_cl.cli.world import table
from grpo_cl.memory import Instance, Limits, MemorySystem, Source, default_taxonomy, execute
from grpo_cl.memory.generator import Knobs, generate_instances, gold_operations
from grpo_cl.memory.loaders import Reading, load_instances
from grpo_cl.memory.retrieval import Retriever
from grpo_cl.memory.semantic import Semantic, minilm

DEPTHS = (1, 5, 10)
SIZES = (100, 1000, 10_000)
STABLE = dict.fromkeys(
    ("update", "correct", "retract", "relation", "rumour", "hypothetical", "repeat", "previous"),
    0.0,
)
"""Dials at which a fact is told once and nothing false is said: one line answers a question."""
Search = Callable[[MemorySystem, str, int], list[int]]


class Case(NamedTuple):
    """A memory, and which entries each question needs."""

    memory: MemorySystem
    needs: list[tuple[str, set[int]]]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=20, help="generated instances per corpus")
    parser.add_argument("--locomo", type=Path, help="LoCoMo's file, if it is at hand")
    parser.add_argument("--conversations", type=int, help="how many of LoCoMo's; all by default")
    arguments = parser.parse_args()
    for name, cases in corpora(arguments):
        print(f"{describe(name, cases)}\n")
        print(table(recalls(cases)), "\n")
    print("median ms, random entries of ten words\n")
    print(table(latencies()))


def describe(name: str, cases: Sequence[Case]) -> str:
    """What a corpus holds."""
    entries = sum(len(case.memory.entries) for case in cases)
    questions = sum(len(case.needs) for case in cases)
    return f"{name}: {len(cases)} memories, {entries} entries, {questions} questions"


def corpora(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """The corpora by name."""
    hard = Knobs.at(1.0)
    for share in (0.0, 1.0):
        knobs = hard.model_copy(update=STABLE | {"paraphrase": share})
        told = generate_instances(0, arguments.instances, knobs=knobs)
        yield f"lines, facts stay, {share:.0%} paraphrased", [by_line(each) for each in told]
    told = generate_instances(0, arguments.instances, knobs=hard)
    yield "lines, facts change and are denied", [by_line(each) for each in told]
    yield "entries of a careful writer", [by_writer(each, misfiled=0.0) for each in told]
    yield "the same, half of them misfiled", [by_writer(each, misfiled=0.5) for each in told]
    if arguments.locomo:
        reading = Reading(chunk_tokens=1, limit=arguments.conversations)  # a turn is a chunk
        talks = load_instances(arguments.locomo, "locomo", reading)
        yield "LoCoMo, turns", [by_turn(each) for each in talks]


def by_line(instance: Instance) -> Case:
    """Every line that was said is an entry."""
    memory = MemorySystem()
    for chunk in instance.chunks:
        for line in chunk.content.splitlines():
            source = Source(chunk=chunk.chunk_id)
            execute(memory, "memory_insert", {"content": line}, source=source)
    return Case(memory, relevant(memory, instance))


def by_writer(instance: Instance, *, misfiled: float) -> Case:
    """The entries of somebody who does everything right, but perhaps not the filing."""
    rng = Random(instance.id)
    memory = MemorySystem()
    for chunk in instance.chunks:
        for operation in gold_operations(chunk) or []:
            source = Source(chunk=chunk.chunk_id)
            execute(memory, operation.name, operation.arguments, source=source)
    names = [category.name for category in memory.taxonomy.categories]
    for entry in list(memory.entries.values()):
        others = [name for name in names if name != entry.category]
        if rng.random() < misfiled:
            memory.update(entry.id, category=rng.choice(others), source_chunk=entry.source_chunk)
    return Case(memory, relevant(memory, instance))


def relevant(memory: MemorySystem, instance: Instance) -> list[tuple[str, set[int]]]:
    """What each question needs: entries from its evidence that hold an answer."""
    needs: list[tuple[str, set[int]]] = []
    for question in instance.questions:
        wanted = {
            entry.id
            for entry in memory.entries.values()
            if entry.source_chunk in question.evidence
            and any(answer.casefold() in entry.content.casefold() for answer in question.answers)
        }
        if wanted:
            needs.append((question.question, wanted))
    return needs


def by_turn(instance: Instance) -> Case:
    """Every turn is an entry, and evidence names turns."""
    memory = MemorySystem()
    ids: dict[int, int] = {}
    for chunk in instance.chunks:
        said = chunk.content.partition("\n")[2]
        outcome = execute(memory, "memory_insert", {"content": said})
        if outcome.entry_id is not None:
            ids[chunk.chunk_id] = outcome.entry_id
    needs = [
        (question.question, {ids[place] for place in question.evidence if place in ids})
        for question in instance.questions
        if question.answers
    ]
    return Case(memory, [(text, wanted) for text, wanted in needs if wanted])


def recalls(cases: Sequence[Case]) -> list[Sequence[object]]:
    """One row per way of searching."""
    meaning = Semantic(minilm())
    ways: dict[str, Search] = {
        "rank-bm25": okapi,
        "ours, words": partial(ours, Retriever(prior=1.0)),
        "ours, words and categories": partial(ours, Retriever()),
        "encoder alone": partial(ours, Retriever(semantic=meaning, weight=1.0, prior=1.0)),
        "ours, words and meaning": partial(ours, Retriever(semantic=meaning, prior=1.0)),
        "ours, all": partial(ours, Retriever(semantic=meaning)),
        "ours, all, categories as a gate": partial(ours, Retriever(semantic=meaning, gate=True)),
    }
    rows: list[Sequence[object]] = [("search", *(f"recall@{depth}" for depth in DEPTHS))]
    for name, search in ways.items():
        shares: list[list[float]] = [[] for _ in DEPTHS]
        for memory, needs in cases:
            for query, wanted in needs:
                found = search(memory, query, max(DEPTHS))
                for share, depth in zip(shares, DEPTHS, strict=True):
                    share.append(len(wanted & set(found[:depth])) / len(wanted))
        rows.append((name, *(f"{statistics.fmean(share):.3f}" for share in shares)))
    return rows


def ours(retriever: Retriever, memory: MemorySystem, query: str, k: int) -> list[int]:
    """The ids our search finds."""
    return [hit.entry.id for hit in retriever.search(memory, query, k=k)]


_INDEXES: WeakKeyDictionary[MemorySystem, BM25Okapi] = WeakKeyDictionary()


def okapi(memory: MemorySystem, query: str, k: int) -> list[int]:
    """The ids rank-bm25 finds, its words cut as Mem-α cuts them."""
    if memory not in _INDEXES:
        _INDEXES[memory] = okapi_index(memory)
    scores = _INDEXES[memory].get_scores(split(query))
    ids = list(memory.entries)
    order = sorted(range(len(ids)), key=lambda place: (-scores[place], place))[:k]
    return [ids[place] for place in order]


def okapi_index(memory: MemorySystem) -> BM25Okapi:
    """An index that has to be built again after every edit."""
    return BM25Okapi([split(entry.content) for entry in memory.entries.values()])


def split(text: str) -> list[str]:
    """Words without stop words or stems."""
    return re.findall(r"\b\w+\b", text.lower())


class Drawn:
    """Vectors by chance, to time a search without the encoder."""

    width = 384

    def embed(self, text: str) -> NDArray[np.float32]:
        """A vector of length one that depends on the text alone."""
        seed = int.from_bytes(text.encode()[:16].ljust(16))
        vector = np.random.default_rng(seed).standard_normal(self.width, np.float32)
        return vector / np.float32(np.linalg.norm(vector))


def latencies() -> list[Sequence[object]]:
    """One row per operation."""
    memories = [random_memory(size) for size in SIZES]
    rows: list[Sequence[object]] = [("what", *(f"{size} entries" for size in SIZES))]
    query = "word7 word77 word177 word277 word377"
    words, both = Retriever(), Retriever(semantic=Semantic(Drawn()))
    operations: dict[str, Callable[[MemorySystem], object]] = {
        "search, rank-bm25": lambda memory: okapi(memory, query, 10),
        "search, words and categories": lambda memory: ours(words, memory, query, 10),
        "search, all": lambda memory: ours(both, memory, query, 10),
        "rebuild and search, rank-bm25": lambda memory: okapi_index(memory).get_scores(
            split(query)
        ),
        "insert and search, words": lambda memory: (
            memory.insert(f"word1 thing{len(memory.entries)}"),
            ours(words, memory, query, 10),
        ),
        "copy": lambda memory: memory.copy(),
        "copy and insert": lambda memory: memory.copy().insert("something new"),
    }
    for name, operation in operations.items():
        rows.append((name, *(f"{median_ms(partial(operation, each)):.3f}" for each in memories)))
    encoding = f"{median_ms(lambda: minilm().embed(query * 2)):.1f}"
    rows.append(("encode a new text of ten words", *[encoding] * len(SIZES)))
    return rows


def random_memory(size: int) -> MemorySystem:
    """Entries of ten words out of four thousand."""
    rng = Random(size)
    memory = MemorySystem(limits=Limits(entries=2 * size))
    names = [category.name for category in default_taxonomy().categories]
    while len(memory.entries) < size:
        content = " ".join(f"word{int(4000 * rng.random() ** 3)}" for _ in range(10))
        arguments = {"content": content, "category": rng.choice(names)}
        execute(memory, "memory_insert", arguments)
    return memory


def median_ms(run: Callable[[], object], repeats: int = 15) -> float:
    """The median time of a few runs after a first one."""
    run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
