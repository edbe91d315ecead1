import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cl.errors import ConfigError
from grpo_cl.memory import Entry, MemorySystem, default_taxonomy
from grpo_cl.memory.answerers import UNKNOWN, Context
from grpo_cl.memory.baselines import append, idle, oracle, write
from grpo_cl.memory.examination import Answered, Examiner, Reading
from grpo_cl.memory.generator import (
    Knobs,
    LexiconReader,
    generate_instance,
    generate_instances,
    gold_operations,
)
from grpo_cl.memory.generator.attributes import RELATIONS, attributes
from grpo_cl.memory.generator.claims import claims
from grpo_cl.memory.generator.people import people
from grpo_cl.memory.generator.reader import read_question
from grpo_cl.memory.generator.soundness import flaw, is_grounded
from grpo_cl.memory.generator.wording import CORRECTION, RETRACTION, phrase, replacement
from grpo_cl.memory.instances import Instance

LEVELS = (0.0, 0.3, 0.6, 1.0)


def examined(
    instance: Instance, memory: MemorySystem, reading: Reading | None = None
) -> list[Answered]:
    return Examiner(LexiconReader(), reading=reading).examine(memory, instance.questions)


def rate(instance: Instance, memory: MemorySystem, reading: Reading | None = None) -> float:
    answered = examined(instance, memory, reading)
    return sum(each.score for each in answered) / len(answered)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.fixed_dictionaries(
        {
            "update": st.floats(0, 0.6),
            "retract": st.floats(0, 0.3),
            "relation": st.floats(0, 0.4),
            "happening": st.floats(0, 0.4),
            "noise": st.floats(0, 3),
            "rumour": st.floats(0, 0.5),
            "empty": st.floats(0, 0.5),
            "chunks": st.integers(1, 9),
        }
    ),
)
def test_a_careful_writer_scores_one_whatever_the_dials(
    seed: int, level: float, dials: dict[str, float]
) -> None:
    knobs = Knobs.model_validate({**Knobs.at(level).model_dump(), **dials})
    instance = generate_instance(Random(seed), knobs)
    memory = write(instance, oracle).memory
    assert rate(instance, memory) == 1.0
    assert rate(instance, memory, Reading(tokens=96, entries=8)) == 1.0


@pytest.mark.parametrize("level", LEVELS)
def test_every_answer_stands_in_its_evidence_and_never_in_its_question(level: float) -> None:
    for instance in generate_instances(3, 4, difficulty=level):
        for question in instance.questions:
            assert is_grounded(instance, question), question


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_memory_answers_only_what_nobody_can_know(level: float) -> None:
    for instance in generate_instances(4, 4, difficulty=level):
        for each in examined(instance, write(instance, idle).memory):
            assert each.score == float(each.question.is_unanswerable)
        unknown = sum(question.is_unanswerable for question in instance.questions)
        assert unknown / len(instance.questions) <= 0.17


def test_a_writer_who_never_changes_anything_lies_between() -> None:
    instances = generate_instances(5, 12, difficulty=0.6)
    rates = [
        sum(rate(each, write(each, writer).memory) for each in instances) / len(instances)
        for writer in (oracle, append, idle)
    ]
    assert rates[0] == 1.0
    assert 0.3 < rates[1] < 0.8
    assert rates[2] < 0.15


def test_a_seed_decides_an_instance_whatever_else_was_made() -> None:
    first = generate_instances(7, 3, difficulty=0.4)
    assert generate_instances(7, 5, difficulty=0.4)[:3] == first
    assert generate_instances(8, 3, difficulty=0.4) != first


def test_harder_instances_are_longer_and_change_more() -> None:
    easy, hard = (generate_instances(1, 6, difficulty=level) for level in (0.0, 1.0))
    assert sum(each.tokens for each in hard) > 10 * sum(each.tokens for each in easy)
    kinds = Counter(q.qtype for each in hard for q in each.questions)
    assert {"single", "updated", "previous", "temporal", "multihop"} <= set(kinds)
    assert {q.qtype for each in easy for q in each.questions} <= {"single", "updated", "abstain"}


def test_some_chunks_hold_nothing_and_say_so() -> None:
    knobs = Knobs(empty=0.5, chunks=12)
    instance = generate_instance(Random(0), knobs)
    empty = [chunk for chunk in instance.chunks if gold_operations(chunk) == []]
    assert 0 < len(empty) < 12
    assert all(chunk.labels and not chunk.labels["told"] for chunk in empty)


def test_train_and_test_share_no_person() -> None:
    halves = [
        {name for seed in range(20) for name in people(Random(seed), count=8, namesakes=0, split=s)}
        for s in ("train", "test")
    ]
    assert not halves[0] & halves[1]
    with pytest.raises(ConfigError, match="not 'dev'"):
        people(Random(0), count=3, namesakes=0, split="dev")


def test_namesakes_are_told_apart_by_their_surnames() -> None:
    found = people(Random(0), count=6, namesakes=2, split="train")
    assert len(set(found)) == 6
    assert len({name.split()[0] for name in found}) == 4


def test_more_people_than_names_are_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="raise `namesakes`"):
        generate_instance(Random(0), Knobs(people=40), split="test")


def test_difficulty_and_dials_are_not_given_together() -> None:
    with pytest.raises(ConfigError, match="either difficulty or knobs"):
        generate_instances(0, 1, difficulty=0.5, knobs=Knobs())
    with pytest.raises(ConfigError, match="outside"):
        Knobs.at(1.5)


def test_a_spoiled_instance_is_found_out() -> None:
    instance = generate_instances(0, 1, difficulty=0.5)[0]
    silent = tuple(c.model_copy(update={"labels": {"operations": []}}) for c in instance.chunks)
    assert "misses" in flaw(instance.model_copy(update={"chunks": silent}))


def test_attributes_share_no_value_and_use_categories_that_exist() -> None:
    values = Counter(value for each in attributes().values() for value in each.values)
    assert max(values.values()) == 1
    known = set(default_taxonomy().category_index)
    used = {each.category for each in attributes().values()}
    assert used == known


@pytest.mark.parametrize("name", [name for name in attributes() if name not in RELATIONS])
def test_every_way_of_saying_and_asking_is_understood(name: str) -> None:
    attribute = attributes()[name]
    new, old = attribute.values[:2]
    for template in attribute.says:
        assert [c[:3] for c in claims(name, phrase(template, n="Ava", v=new))] == [
            ("Ava", new, None)
        ]
    for template in (attribute.change, CORRECTION):
        text = phrase(template, n="Ava Lind", v=new, o=old, noun=attribute.noun)
        assert [c[:3] for c in claims(name, text)] == [("Ava Lind", new, old)]
    kept = replacement(attribute, "Ava", new, before=old)
    assert [c[:3] for c in claims(name, kept)] == [("Ava", new, old)]
    gone = phrase(RETRACTION, n="Ava", noun=attribute.noun)
    assert [c[:3] for c in claims(name, gone)] == [("Ava", None, None)]
    for template in attribute.asks:
        query = read_question(phrase(template, n="Ava's sister"))
        assert query is not None
        assert (query.person, query.relation, query.attribute) == ("Ava", "sister", name)


def test_what_is_known_is_also_found_in_other_words() -> None:
    assert claims("city", "Home city of Ava: Quito")[0][:2] == ("Ava", "Quito")
    assert claims("city", "Ava lives in Quito, not in Oslo")[0][:2] == ("Ava", "Quito")
    assert not claims("city", "Ava flew to Quito")
    assert not claims("city", "Ava has lived in Quito and in Oslo, her home")
    assert claims("city", "Ava's sister Mia now lives in Quito")[0][:2] == ("Mia", "Quito")


def answer(question: str, *texts: str, dates: tuple[str, ...] = ()) -> str:
    entries = tuple(
        Entry(id=n, type="semantic", content=text, timestamp=dates[n] if dates else None)
        for n, text in enumerate(texts)
    )
    return LexiconReader().answer([(question, Context("", entries))])[0].text


def test_the_newest_date_wins_and_without_dates_the_first_found() -> None:
    texts = ("Ava lives in Oslo.", "Ava lives in Quito.")
    where = "Which city does Ava live in?"
    assert answer(where, *texts) == "Oslo"
    assert answer(where, *texts, dates=("2024-01-01", "2024-02-01")) == "Quito"
    before = "What was Ava's home city before the latest change?"
    assert answer(before, *texts, dates=("2024-01-01", "2024-02-01")) == "Oslo"
    assert answer(before, *texts) == UNKNOWN


def test_the_reader_believes_what_it_reads_and_knows_nothing_else() -> None:
    assert answer("Which city does Ava live in?", "People joke: Ava lives in Oslo.") == "Oslo"
    assert answer("Which city does Ava live in?", "Mia lives in Oslo.") == UNKNOWN
    assert answer("What is the capital of Norway?", "Ava lives in Oslo.") == UNKNOWN


def test_an_event_needs_its_date_in_words_that_last() -> None:
    when = "On which date did Ava meet the mayor?"
    assert answer(when, "Ava met the mayor on 2024-03-02.") == "2024-03-02"
    assert answer(when, "Ava met the mayor yesterday.", dates=("2024-03-03",)) == UNKNOWN


def test_a_second_look_follows_a_relation() -> None:
    memory = MemorySystem()
    memory.insert("Ava's sister is Mia.")
    memory.insert("Mia works as a baker.")
    for number in range(30):
        memory.insert(f"Ava's neighbour, colleague and friend number {number} is what she does.")
    knobs = Knobs.at(0.0)
    question = (
        generate_instance(Random(0), knobs)
        .questions[0]
        .model_copy(
            update={
                "question": "What is Ava's sister's job?",
                "answers": ("baker",),
                "evidence": (),
            }
        )
    )
    found = Examiner(LexiconReader(), reading=Reading(tokens=24, entries=2)).examine(
        memory, [question]
    )[0]
    assert (found.answer, found.evidence) == ("baker", (1, 2))


def test_dates_are_never_those_of_the_clock() -> None:
    for instance in generate_instances(0, 3, difficulty=1.0):
        days = {day for c in instance.chunks for day in re.findall(r"\d{4}-\d\d-\d\d", c.content)}
        assert all(day < "2026" for day in days)
