import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cl.envs.memory import Entry, MemorySystem, default_taxonomy
from grpo_cl.envs.memory.baselines import append, idle, oracle, run_baseline
from grpo_cl.envs.memory.generator import (
    GeneratorParams,
    RuleAnswerer,
    generate_instance,
    generate_instances,
    gold_operations,
)
from grpo_cl.envs.memory.generator.attributes import RELATIONS, attributes
from grpo_cl.envs.memory.generator.fact_extraction import extract_facts
from grpo_cl.envs.memory.generator.instance import sample_people
from grpo_cl.envs.memory.generator.rule_answerer import parse_question
from grpo_cl.envs.memory.generator.templates import (
    CORRECTION,
    RETRACTION,
    phrase,
    statement_with_previous,
)
from grpo_cl.envs.memory.generator.validation import find_defect, is_grounded
from grpo_cl.envs.memory.instances import Instance
from grpo_cl.envs.memory.rewards.answer_grading import UNKNOWN
from grpo_cl.envs.memory.rewards.question_answering import (
    Context,
    ContextBudget,
    GradedAnswer,
    QAPipeline,
)
from grpo_cl.errors import ConfigError

LEVELS = (0.0, 0.3, 0.6, 1.0)


def graded_answers(
    instance: Instance, memory: MemorySystem, budget: ContextBudget | None = None
) -> list[GradedAnswer]:
    return QAPipeline(RuleAnswerer(), budget=budget).answer(memory, instance.questions)


def rate(instance: Instance, memory: MemorySystem, budget: ContextBudget | None = None) -> float:
    answers = graded_answers(instance, memory, budget)
    return sum(answer.score for answer in answers) / len(answers)


@settings(max_examples=25)
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
def test_gold_operations_score_one_for_any_parameters(
    seed: int, level: float, changes: dict[str, float]
) -> None:
    params = GeneratorParams.model_validate({**GeneratorParams.at(level).model_dump(), **changes})
    instance = generate_instance(Random(seed), params)
    memory = run_baseline(instance, oracle).memory
    assert rate(instance, memory) == 1.0
    assert rate(instance, memory, ContextBudget(tokens=96, entries=8)) == 1.0


@pytest.mark.parametrize("level", LEVELS)
def test_evidence_contains_the_answer_and_the_question_does_not(level: float) -> None:
    for instance in generate_instances(3, 4, difficulty=level):
        for question in instance.questions:
            assert is_grounded(instance, question), question


@pytest.mark.parametrize("level", LEVELS)
def test_empty_memory_answers_only_unanswerable_questions(level: float) -> None:
    for instance in generate_instances(4, 4, difficulty=level):
        for answer in graded_answers(instance, run_baseline(instance, idle).memory):
            assert answer.score == float(answer.question.is_unanswerable)
        unknown = sum(question.is_unanswerable for question in instance.questions)
        assert unknown / len(instance.questions) <= 0.17


def test_append_only_baseline_scores_between_oracle_and_idle() -> None:
    instances = generate_instances(5, 12, difficulty=0.6)
    rates = [
        sum(rate(instance, run_baseline(instance, policy).memory) for instance in instances)
        / len(instances)
        for policy in (oracle, append, idle)
    ]
    assert rates[0] == 1.0
    assert 0.3 < rates[1] < 0.8
    assert rates[2] < 0.15


def test_instance_depends_on_its_seed_and_number_only() -> None:
    first = generate_instances(7, 3, difficulty=0.4)
    assert generate_instances(7, 5, difficulty=0.4)[:3] == first
    assert generate_instances(8, 3, difficulty=0.4) != first


def test_harder_instances_are_longer_and_have_more_question_types() -> None:
    easy, hard = (generate_instances(1, 6, difficulty=level) for level in (0.0, 1.0))
    assert sum(each.tokens for each in hard) > 10 * sum(each.tokens for each in easy)
    kinds = Counter(q.qtype for each in hard for q in each.questions)
    assert {"single", "updated", "previous", "temporal", "multihop"} <= set(kinds)
    assert {q.qtype for each in easy for q in each.questions} <= {"single", "updated", "abstain"}


def test_chunks_without_facts_are_labelled() -> None:
    params = GeneratorParams(empty=0.5, chunks=12)
    instance = generate_instance(Random(0), params)
    empty = [chunk for chunk in instance.chunks if gold_operations(chunk) == []]
    assert 0 < len(empty) < 12
    assert all(chunk.labels and not chunk.labels["told"] for chunk in empty)


def test_train_and_test_instances_share_no_first_name() -> None:
    names = [
        {
            name
            for seed in range(20)
            for name in sample_people(Random(seed), count=8, namesakes=0, split=s)
        }
        for s in ("train", "test")
    ]
    assert not names[0] & names[1]
    with pytest.raises(ConfigError, match="not 'dev'"):
        sample_people(Random(0), count=3, namesakes=0, split="dev")


def test_namesakes_have_different_surnames() -> None:
    people = sample_people(Random(0), count=6, namesakes=2, split="train")
    assert len(set(people)) == 6
    assert len({name.split()[0] for name in people}) == 4


def test_more_people_than_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="raise `namesakes`"):
        generate_instance(Random(0), GeneratorParams(people=40), split="test")


def test_difficulty_and_parameters_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="either difficulty or params"):
        generate_instances(0, 1, difficulty=0.5, params=GeneratorParams())
    with pytest.raises(ConfigError, match="outside"):
        GeneratorParams.at(1.5)


def test_validation_finds_an_instance_without_gold_operations() -> None:
    instance = generate_instances(0, 1, difficulty=0.5)[0]
    silent = tuple(c.model_copy(update={"labels": {"operations": []}}) for c in instance.chunks)
    assert "does not answer" in find_defect(instance.model_copy(update={"chunks": silent}))


def test_attributes_share_no_value_and_use_every_category() -> None:
    values = Counter(value for each in attributes().values() for value in each.values)
    assert max(values.values()) == 1
    used = {attribute.category for attribute in attributes().values()}
    assert used == set(default_taxonomy().category_positions)


@pytest.mark.parametrize("name", [name for name in attributes() if name not in RELATIONS])
def test_every_statement_and_question_template_is_parsed(name: str) -> None:
    attribute = attributes()[name]
    new, old = attribute.values[:2]
    for template in attribute.statements:
        assert [fact[:3] for fact in extract_facts(name, phrase(template, n="Ava", v=new))] == [
            ("Ava", new, None)
        ]
    for template in (attribute.change, CORRECTION):
        text = phrase(template, n="Ava Lind", v=new, o=old, noun=attribute.noun)
        assert [fact[:3] for fact in extract_facts(name, text)] == [("Ava Lind", new, old)]
    kept = statement_with_previous(attribute, "Ava", new, before=old)
    assert [fact[:3] for fact in extract_facts(name, kept)] == [("Ava", new, old)]
    gone = phrase(RETRACTION, n="Ava", noun=attribute.noun)
    assert [fact[:3] for fact in extract_facts(name, gone)] == [("Ava", None, None)]
    for template in attribute.questions:
        query = parse_question(phrase(template, n="Ava's sister"))
        assert query is not None
        assert (query.person, query.relation, query.attribute) == ("Ava", "sister", name)


def test_facts_are_extracted_from_other_wordings() -> None:
    assert extract_facts("city", "Home city of Ava: Quito")[0][:2] == ("Ava", "Quito")
    assert extract_facts("city", "Ava lives in Quito, not in Oslo")[0][:2] == ("Ava", "Quito")
    assert not extract_facts("city", "Ava flew to Quito")
    assert not extract_facts("city", "Ava has lived in Quito and in Oslo, her home")
    assert extract_facts("city", "Ava's sister Mia now lives in Quito")[0][:2] == ("Mia", "Quito")


def answer(question: str, *texts: str, dates: tuple[str, ...] = ()) -> str:
    entries = tuple(
        Entry(id=n, type="semantic", content=text, timestamp=dates[n] if dates else None)
        for n, text in enumerate(texts)
    )
    return RuleAnswerer().answer([(question, Context("", entries))])[0].text


def test_newest_date_wins_and_without_dates_the_best_rank() -> None:
    texts = ("Ava lives in Oslo.", "Ava lives in Quito.")
    where = "Which city does Ava live in?"
    assert answer(where, *texts) == "Oslo"
    assert answer(where, *texts, dates=("2024-01-01", "2024-02-01")) == "Quito"
    before = "What was Ava's home city before the latest change?"
    assert answer(before, *texts, dates=("2024-01-01", "2024-02-01")) == "Oslo"
    assert answer(before, *texts) == UNKNOWN


def test_rule_answerer_uses_its_context_only() -> None:
    assert answer("Which city does Ava live in?", "People joke: Ava lives in Oslo.") == "Oslo"
    assert answer("Which city does Ava live in?", "Mia lives in Oslo.") == UNKNOWN
    assert answer("What is the capital of Norway?", "Ava lives in Oslo.") == UNKNOWN


def test_event_question_needs_an_absolute_date() -> None:
    when = "On which date did Ava meet the mayor?"
    assert answer(when, "Ava met the mayor on 2024-03-02.") == "2024-03-02"
    assert answer(when, "Ava met the mayor yesterday.", dates=("2024-03-03",)) == UNKNOWN


def test_follow_up_question_resolves_a_relation() -> None:
    memory = MemorySystem()
    memory.insert("Ava's sister is Mia.")
    memory.insert("Mia works as a baker.")
    for number in range(30):
        memory.insert(f"Ava's neighbour, colleague and friend number {number} is what she does.")
    params = GeneratorParams.at(0.0)
    question = (
        generate_instance(Random(0), params)
        .questions[0]
        .model_copy(
            update={
                "question": "What is Ava's sister's job?",
                "answers": ("baker",),
                "evidence": (),
            }
        )
    )
    found = QAPipeline(RuleAnswerer(), budget=ContextBudget(tokens=24, entries=2)).answer(
        memory, [question]
    )[0]
    assert (found.answer, found.evidence) == ("baker", (1, 2))


def test_dates_do_not_depend_on_the_clock() -> None:
    for instance in generate_instances(0, 3, difficulty=1.0):
        days = {day for c in instance.chunks for day in re.findall(r"\d{4}-\d\d-\d\d", c.content)}
        assert all(day < "2026" for day in days)
