"""Recall and latency of retrieval: ours against rank-bm25 and against embeddings only.

    .venv/bin/python benchmarks/retrieval.py [--locomo PATH]

Recall is the fraction of a question's relevant entries among the best k. In generated instances an
entry is relevant if it comes from a chunk with evidence and contains an answer; in LoCoMo, if it is
an evidence turn. Latencies are medians over random entries with cached embeddings; encoding is
timed separately. Where facts change, stale and false lines share all words with the relevant one,
and retrieval cannot separate them.
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

from grpo_cl.cli.output import table
from grpo_cl.envs.memory import Instance, Limits, MemorySystem, Source, default_taxonomy, execute
from grpo_cl.envs.memory.generator import GeneratorParams, generate_instances, gold_operations
from grpo_cl.envs.memory.loaders import LoaderOptions, load_instances
from grpo_cl.envs.memory.retrieval.embeddings import EmbeddingScorer, minilm
from grpo_cl.envs.memory.retrieval.retriever import Retriever

DEPTHS = (1, 5, 10)
ANSWERABLE = ("multi_hop", "temporal", "open_domain", "single_hop")
"""LoCoMo's question types, without the adversarial questions."""
SIZES = (100, 1000, 10_000)
STABLE = dict.fromkeys(
    ("update", "correct", "retract", "relation", "rumour", "hypothetical", "repeat", "previous"),
    0.0,
)
"""Parameters without updates and false statements: one line answers a question."""
Search = Callable[[MemorySystem, str, int], list[int]]


class Case(NamedTuple):
    """A memory and the relevant entries of each query."""

    memory: MemorySystem
    queries: list[tuple[str, set[int]]]


def main() -> None:
    """Print recalls, and latencies unless LoCoMo is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=20, help="generated instances per corpus")
    parser.add_argument("--locomo", type=Path, help="a file or folder of LoCoMo to measure instead")
    parser.add_argument(
        "--conversations", type=int, help="number of LoCoMo conversations; default: all"
    )
    arguments = parser.parse_args()
    for name, cases in corpora(arguments):
        print(f"{describe(name, cases)}\n")
        print(table(recalls(cases)), "\n")
    if arguments.locomo:
        return
    print("median ms, random entries of ten words\n")
    print(table(latencies()))


def describe(name: str, cases: Sequence[Case]) -> str:
    """The size of a corpus."""
    entries = sum(len(case.memory.entries) for case in cases)
    questions = sum(len(case.queries) for case in cases)
    return f"{name}: {len(cases)} memories, {entries} entries, {questions} questions"


def corpora(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """The corpora by name."""
    if arguments.locomo:
        # One token per chunk: a chunk is one turn.
        options = LoaderOptions(chunk_tokens=1, limit=arguments.conversations)
        conversations = load_instances(arguments.locomo, "locomo", options)
        for qtype in (None, *ANSWERABLE):
            cases = [turn_case(conversation, qtype) for conversation in conversations]
            yield f"LoCoMo, turns, {qtype or 'all questions with an answer'}", cases
        return
    hard = GeneratorParams.at(1.0)
    for fraction in (0.0, 1.0):
        params = hard.model_copy(update=STABLE | {"paraphrase": fraction})
        stable = generate_instances(0, arguments.instances, params=params)
        name = f"lines, no updates, {fraction:.0%} paraphrased"
        yield name, [line_case(instance) for instance in stable]
    instances = generate_instances(0, arguments.instances, params=hard)
    yield "lines, with updates and noise", [line_case(instance) for instance in instances]
    for name, fraction in {
        "gold memory": 0.0,
        "gold memory, half in a wrong category": 0.5,
    }.items():
        yield name, [gold_case(instance, miscategorised=fraction) for instance in instances]


def line_case(instance: Instance) -> Case:
    """Every line is an entry."""
    memory = MemorySystem()
    for chunk in instance.chunks:
        for line in chunk.content.splitlines():
            source = Source(chunk=chunk.chunk_id)
            execute(memory, "memory_insert", {"content": line}, source=source)
    return Case(memory, relevant(memory, instance))


def gold_case(instance: Instance, *, miscategorised: float) -> Case:
    """The entries of the gold operations, a fraction of them in a wrong category."""
    rng = Random(instance.id)
    memory = MemorySystem()
    for chunk in instance.chunks:
        for operation in gold_operations(chunk) or []:
            source = Source(chunk=chunk.chunk_id)
            execute(memory, operation.name, operation.arguments, source=source)
    names = [category.name for category in memory.taxonomy.categories]
    for entry in list(memory.entries.values()):
        others = [name for name in names if name != entry.category]
        if rng.random() < miscategorised:
            memory.update(entry.id, category=rng.choice(others), source_chunk=entry.source_chunk)
    return Case(memory, relevant(memory, instance))


def relevant(memory: MemorySystem, instance: Instance) -> list[tuple[str, set[int]]]:
    """Each question with the entries from its evidence that contain an answer."""
    queries: list[tuple[str, set[int]]] = []
    for question in instance.questions:
        relevant_ids = {
            entry.id
            for entry in memory.entries.values()
            if entry.source_chunk in question.evidence
            and any(answer.casefold() in entry.content.casefold() for answer in question.answers)
        }
        if relevant_ids:
            queries.append((question.question, relevant_ids))
    return queries


def turn_case(instance: Instance, qtype: str | None) -> Case:
    """Every turn is an entry, and evidence refers to turns; None for questions of every type."""
    memory = MemorySystem()
    ids: dict[int, int] = {}
    for chunk in instance.chunks:
        text = chunk.content.partition("\n")[2]
        outcome = execute(memory, "memory_insert", {"content": text})
        if outcome.entry_id is not None:
            ids[chunk.chunk_id] = outcome.entry_id
    queries = [
        (question.question, {ids[chunk_id] for chunk_id in question.evidence if chunk_id in ids})
        for question in instance.questions
        if question.answers and question.qtype in ([qtype] if qtype else ANSWERABLE)
    ]
    return Case(memory, [(text, relevant_ids) for text, relevant_ids in queries if relevant_ids])


def recalls(cases: Sequence[Case]) -> list[Sequence[object]]:
    """One row per search method."""
    embeddings = EmbeddingScorer(minilm())
    methods: dict[str, Search] = {
        "rank-bm25": okapi,
        "ours, BM25": partial(ours, Retriever(prior=1.0)),
        "ours, BM25 and categories": partial(ours, Retriever()),
        "embeddings only": partial(ours, Retriever(semantic=embeddings, weight=1.0, prior=1.0)),
        "ours, BM25 and embeddings": partial(ours, Retriever(semantic=embeddings, prior=1.0)),
        "ours, all": partial(ours, Retriever(semantic=embeddings)),
        "ours, all, category gate": partial(ours, Retriever(semantic=embeddings, gate=True)),
    }
    rows: list[Sequence[object]] = [("search", *(f"recall@{depth}" for depth in DEPTHS))]
    for name, search in methods.items():
        recalls_by_depth: list[list[float]] = [[] for _ in DEPTHS]
        for memory, queries in cases:
            for query, relevant_ids in queries:
                ranked = search(memory, query, max(DEPTHS))
                for values, depth in zip(recalls_by_depth, DEPTHS, strict=True):
                    values.append(len(relevant_ids & set(ranked[:depth])) / len(relevant_ids))
        rows.append((name, *(f"{statistics.fmean(values):.3f}" for values in recalls_by_depth)))
    return rows


def ours(retriever: Retriever, memory: MemorySystem, query: str, k: int) -> list[int]:
    """The ids found by our retriever."""
    return [hit.entry.id for hit in retriever.search(memory, query, k=k)]


_INDEXES: WeakKeyDictionary[MemorySystem, BM25Okapi] = WeakKeyDictionary()


def okapi(memory: MemorySystem, query: str, k: int) -> list[int]:
    """The ids found by rank-bm25, with Mem-α's tokenization."""
    if memory not in _INDEXES:
        _INDEXES[memory] = okapi_index(memory)
    scores = _INDEXES[memory].get_scores(split(query))
    ids = list(memory.entries)
    order = sorted(range(len(ids)), key=lambda i: (-scores[i], i))[:k]
    return [ids[i] for i in order]


def okapi_index(memory: MemorySystem) -> BM25Okapi:
    """An index that must be rebuilt after every edit."""
    return BM25Okapi([split(entry.content) for entry in memory.entries.values()])


def split(text: str) -> list[str]:
    """Lower-case words, with stop words and without stemming."""
    return re.findall(r"\b\w+\b", text.lower())


class RandomEmbedder:
    """Random embeddings, to time a search without the encoder."""

    width = 384

    def embed(self, text: str) -> NDArray[np.float32]:
        """A unit vector that depends on the text only."""
        seed = int.from_bytes(text.encode()[:16].ljust(16))
        vector = np.random.default_rng(seed).standard_normal(self.width, np.float32)
        return vector / np.float32(np.linalg.norm(vector))


def latencies() -> list[Sequence[object]]:
    """One row per operation."""
    memories = [random_memory(size) for size in SIZES]
    rows: list[Sequence[object]] = [("what", *(f"{size} entries" for size in SIZES))]
    query = "word7 word77 word177 word277 word377"
    lexical, hybrid = Retriever(), Retriever(semantic=EmbeddingScorer(RandomEmbedder()))
    operations: dict[str, Callable[[MemorySystem], object]] = {
        "search, rank-bm25": lambda memory: okapi(memory, query, 10),
        "search, BM25 and categories": lambda memory: ours(lexical, memory, query, 10),
        "search, all": lambda memory: ours(hybrid, memory, query, 10),
        "rebuild and search, rank-bm25": lambda memory: okapi_index(memory).get_scores(
            split(query)
        ),
        "insert and search, BM25": lambda memory: (
            memory.insert(f"word1 thing{len(memory.entries)}"),
            ours(lexical, memory, query, 10),
        ),
        "copy": lambda memory: memory.copy(),
        "copy and insert": lambda memory: memory.copy().insert("something new"),
    }
    for name, operation in operations.items():
        times = [median_ms(partial(operation, memory)) for memory in memories]
        rows.append((name, *(f"{ms:.3f}" for ms in times)))
    encoding_ms = f"{median_ms(lambda: minilm().embed(query * 2)):.1f}"
    rows.append(("encode a new text of ten words", *[encoding_ms] * len(SIZES)))
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
    """The median time of a few runs after a warm-up run."""
    run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
