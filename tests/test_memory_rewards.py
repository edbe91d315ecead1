"""The memory reward, beside the formulas of an earlier trainer that never learned (``old_*``)."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_server import Body, ChatServer
from grpo_cl.advantages import step_advantages
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.memory import Chunk, Instance, Question
from grpo_cl.memory.answerers import Answer, Context
from grpo_cl.memory.baselines import WRITERS, Writer, append, copy_chunk, idle, oracle, write
from grpo_cl.memory.content import Rules
from grpo_cl.memory.examination import Answered, Examiner, Reading, choose
from grpo_cl.memory.generator import LexiconReader, Operation, generate_instances
from grpo_cl.memory.marking import mark
from grpo_cl.memory.scoring import (
    StepScore,
    Weights,
    answer_rate,
    attributed,
    compression,
    score_steps,
)
from grpo_cl.memory.steps import Diary, num_malformed
from grpo_cl.models import Models
from grpo_cl.rewards.answerer import ModelAnswerer, read_answer
from grpo_cl.rewards.content import ModelContentJudge
from grpo_cl.rewards.judge import read_verdicts
from grpo_cl.roles import AnswererConfig, JudgeConfig, ModelsConfig
from grpo_cl.trainer.rollouts import credit, is_telling
from grpo_cl.types import (
    Reward,
    StepReward,
    Task,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
    UserScenario,
)

MODEL = "openai-api/loopback/frozen"
QUICK = ModelsConfig(cache_dir=None, retries=1, backoff_s=0.001, timeout_s=30)
EXAMINER = Examiner(LexiconReader())


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


@pytest.fixture(scope="module")
def instances() -> list[Instance]:
    return generate_instances(11, 12, difficulty=0.5)


def steps_of(diary: Diary, weights: Weights | None = None) -> list[StepScore]:
    answered = EXAMINER.examine(diary.memory, diary.instance.questions)
    valid = Rules().judge(diary.steps).valid
    return score_steps(diary, valid, answered, weights or Weights())


def mean_reward(instances: Sequence[Instance], writer: Writer) -> float:
    return fmean(
        step.total(Weights()) for each in instances for step in steps_of(write(each, writer))
    )


def one_chunk(text: str, *, labels: Mapping[str, object] | None = None) -> Instance:
    question = Question(question_id="1", question="?", answers=("x",), qtype="single")
    chunk = Chunk.model_validate({"chunk_id": 1, "content": text, "labels": labels})
    return Instance(id="i", chunks=(chunk,), questions=(question,), source="s", license="l")


def step_after(instance: Instance, *calls: tuple[str, object], text: str = "") -> StepScore:
    diary = Diary(instance)
    diary.read_on()
    diary.write(calls, text)
    return steps_of(diary)[0]


INSERT = "memory_insert"
AVA = {"content": "Ava lives in Oslo."}
LINE = "[Dialogue on 2024-01-01]\nUser: Ava lives in Oslo.\nUser: Mia lives in Quito, I dreamt."
TOLD = {
    "operations": [{"name": INSERT, "arguments": AVA}],
    "told": ["Ava lives in Oslo."],
    "stale": [],
}
EMPTY = {"operations": [], "told": [], "stale": []}


# What the earlier code did.


def old_advantages(rollouts: Sequence[Sequence[float]]) -> list[list[float]]:
    every = [reward for rollout in rollouts for reward in rollout]
    mean = fmean(every)
    std = math.sqrt(fmean((reward - mean) ** 2 for reward in every)) or 1.0
    return [[(reward - mean) / (std + 1e-8) for reward in rollout] for rollout in rollouts]


def old_action_reward(*, ok: bool, accuracy: float, compressed: float) -> float:
    success = 1.0 if ok else 0.0
    content = 1.0 if ok else 0.0
    return accuracy + success + 0.05 * compressed + 0.1 * content


def old_total(accuracy: float, ok: int, total: int, memory_chars: int, input_chars: int) -> float:
    success = 1.0 if total == 0 else ok / total
    compressed = max(0.0, 1 - memory_chars / input_chars)
    return accuracy + success + 0.05 * compressed + 0.1 * 1.0


def old_is_correct(predicted: str, truth: str) -> bool:
    one, other = predicted.lower().strip("."), truth.lower()
    return other in one or one in other


def old_is_valid(reply: str) -> bool:
    return "VALID" in reply.upper()


def old_loss(advantages: Sequence[float], old: Sequence[float], new: Sequence[float]) -> float:
    del new  # the policy was never asked again
    ratios = [math.exp(logprob - logprob) for logprob in old]
    return -fmean(ratio * advantage for ratio, advantage in zip(ratios, advantages, strict=True))


# The formula and its parts.


def test_the_reward_of_a_step_is_the_formula(instances: list[Instance]) -> None:
    for instance in instances[:4]:
        diary = write(instance, append)
        answered = EXAMINER.examine(diary.memory, instance.questions)
        r3 = 1 - diary.memory.tokens() / instance.tokens
        for step, score in zip(diary.steps, steps_of(diary), strict=True):
            made = step.calls
            r2 = sum(c.outcome.ok for c in made) / len(made) if made else score.calls
            expected = answer_rate(answered) + r2 + 0.05 * r3 + 0.1 * score.content
            assert score.total(Weights()) == pytest.approx(expected, abs=1e-12)


def test_writers_are_ranked_as_their_memories_deserve(instances: list[Instance]) -> None:
    rewards = {name: mean_reward(instances, writer) for name, writer in WRITERS.items()}
    assert rewards["oracle"] > rewards["append_dated"] > rewards["append"] > rewards["idle"]
    assert rewards["oracle"] > rewards["copy_lines"] + 0.3
    assert rewards["oracle"] > rewards["copy_chunk"] + 0.3
    assert rewards["oracle"] > 2.1
    assert rewards["idle"] < 0.4


def test_copying_whole_chunks_collapses_where_little_can_be_read(instances: list[Instance]) -> None:
    def rate(writer: Writer, tokens: int) -> float:
        examiner = Examiner(LexiconReader(), reading=Reading(tokens=tokens))
        memories = [(write(each, writer).memory, each.questions) for each in instances]
        return fmean(answer_rate(examiner.examine(*pair)) for pair in memories)

    assert rate(copy_chunk, 2048) > 0.6
    assert rate(copy_chunk, 48) < 0.35
    assert rate(oracle, 2048) == rate(oracle, 96) == 1.0
    assert rate(oracle, 48) > 0.95


def test_content_is_not_a_copy_of_success() -> None:
    invented = step_after(
        one_chunk(LINE, labels=TOLD), (INSERT, {"content": "Zanzibar turnip ledger"})
    )
    assert (invented.calls, invented.content) == (1.0, 0.0)
    told = step_after(one_chunk(LINE, labels=TOLD), (INSERT, AVA))
    assert (told.calls, told.content) == (1.0, 1.0)
    # In the old formula the weight of content only adds to that of success.
    gain = old_action_reward(ok=True, accuracy=0, compressed=0) - old_action_reward(
        ok=False, accuracy=0, compressed=0
    )
    assert gain == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("content", "extra"),
    [
        ("The core memory has been updated.", {}),
        ("Placeholder for Ava in Oslo", {}),
        ("Mia lives in Quito.", {}),
        ("Ava lives in Oslo.", {"memory_type": "episodic"}),
    ],
)
def test_what_is_not_told_or_does_not_fit_is_not_valid(
    content: str, extra: dict[str, object]
) -> None:
    made = step_after(one_chunk(LINE, labels=TOLD), (INSERT, {"content": content, **extra}))
    assert (made.calls, made.content) == (1.0, 0.0)


def test_saying_the_same_in_another_order_is_no_second_memory() -> None:
    twice = step_after(
        one_chunk(LINE, labels=TOLD), (INSERT, AVA), (INSERT, {"content": "In Oslo lives Ava."})
    )
    assert twice.content == 0.5


def test_a_deletion_is_valid_where_what_it_deletes_is_wrong_now() -> None:
    gone = {"operations": [{"name": "memory_delete", "arguments": {"memory_id": 1}}], "told": ["x"]}

    def content(labels: dict[str, object] | None) -> float:
        diary = Diary(one_chunk("User: forget where Ava lives.", labels=labels))
        diary.memory.insert("Ava lives in Oslo.")
        diary.read_on()
        diary.write([("memory_delete", {"memory_id": 1})])
        return steps_of(diary)[0].content

    assert content({**gone, "stale": ["Ava lives in Oslo."]}) == 1.0
    assert content({**gone, "stale": ["Mia is afraid of spiders."]}) == 0.0
    assert content(None) == 0.0  # nobody can say, so nothing is earned


def test_calls_on_an_unknown_id_fail_and_change_nothing() -> None:
    made = step_after(
        one_chunk(LINE, labels=TOLD), (INSERT, AVA), ("memory_delete", {"memory_id": 9})
    )
    assert (made.calls, made.content) == (0.5, 0.5)


def test_calls_that_cannot_be_read_count_as_failures() -> None:
    broken = '{"name": "memory_insert", "arguments": {oops'
    assert step_after(one_chunk(LINE, labels=TOLD), (INSERT, AVA), text=broken).calls == 0.5
    assert num_malformed("I could call memory_insert here, but why?") == 0
    assert num_malformed(' memory_insert{"content": " Ava') == 1


# Silence.


def test_silence_is_right_where_there_is_nothing_and_wrong_where_there_is() -> None:
    nothing, something = one_chunk("Hm.", labels=EMPTY), one_chunk(LINE, labels=TOLD)
    for calls in ((), (("skip", {}),)):
        silent = step_after(nothing, *calls)
        assert (silent.calls, silent.content) == (1.0, 1.0)
        silent = step_after(something, *calls)
        assert (silent.calls, silent.content) == (0.0, 0.0)
    writing = step_after(nothing, (INSERT, {"content": "Hm."}))
    assert (writing.calls, writing.content) == (1.0, 0.0)


def test_without_labels_silence_is_judged_by_what_questions_need() -> None:
    chunks = tuple(Chunk(chunk_id=n, content=f"Text {n}") for n in (1, 2))
    question = Question(question_id="1", question="?", answers=("x",), qtype="q", evidence=(2,))
    instance = Instance(id="i", chunks=chunks, questions=(question,), source="s", license="l")
    assert [step.calls for step in steps_of(write(instance, idle))] == [1.0, 0.0]
    blind = instance.model_copy(
        update={"questions": (question.model_copy(update={"evidence": ()}),)}
    )
    assert [step.calls for step in steps_of(write(blind, idle))] == [0.0, 0.0]


def test_doing_nothing_earns_next_to_nothing(instances: list[Instance]) -> None:
    assert mean_reward(instances, idle) < 0.4
    # The old total gives whoever does nothing everything but the answers.
    assert old_total(0.0, 0, 0, 0, 1000) == pytest.approx(1.15)


def test_a_silent_step_is_a_step_to_learn_from(instances: list[Instance]) -> None:
    diary = write(instances[0], idle)
    assert len(steps_of(diary)) == len(instances[0].chunks)


def test_a_memory_longer_than_what_was_read_is_worse_than_none(instances: list[Instance]) -> None:
    def swell(chunk: Chunk) -> list[Operation]:
        return [
            Operation(INSERT, {"content": f"{chunk.content} {n}", "timestamp": chunk.timestamp})
            for n in range(3)
        ]

    diary = write(instances[0], swell)
    assert -1 <= compression(diary.memory, diary.instance) < -0.9
    assert old_total(0, 1, 1, 3000, 1000) == pytest.approx(1.1)  # clamped: nothing is lost by it


# Answers.


def question(*answers: str, metric: str = "exact") -> Question:
    return Question.model_validate(
        {"question_id": "1", "question": "?", "answers": answers, "qtype": "q", "metric": metric}
    )


def test_an_empty_or_partial_answer_is_wrong() -> None:
    for metric in ("exact", "contains", "keywords", "boxed", "judge"):
        for said in ("", " ", ".", "O", "slo", "Osloer"):
            assert mark(said, question("Oslo", metric=metric)) == 0.0
    assert old_is_correct("", "Oslo")
    assert old_is_correct("o", "Oslo")


@pytest.mark.parametrize(
    ("metric", "said", "score"),
    [
        ("exact", "the Oslo.", 1.0),
        ("exact", "It is Oslo", 0.0),
        ("contains", "It is Oslo.", 1.0),
        ("contains", "Oslo " + "and more " * 80, 0.0),
        ("keywords", "Oslo, but no other", 0.5),
        ("boxed", r"so \boxed{Oslo}", 1.0),
        ("boxed", "Oslo", 0.0),
    ],
)
def test_answers_are_marked_by_the_questions_metric(metric: str, said: str, score: float) -> None:
    golds = ("Oslo", "Quito") if metric == "keywords" else ("Oslo",)
    assert mark(said, question(*golds, metric=metric)) == score


def test_not_to_know_is_right_only_where_nobody_can() -> None:
    assert mark("unknown", question()) == 1.0
    assert mark("The notes do not say: no information.", question()) == 1.0
    assert mark("", question()) == 0.0
    assert mark("Oslo", question()) == 0.0
    assert mark("unknown", question("Oslo")) == 0.0


def test_the_answerer_has_no_part_of_the_policy(instances: list[Instance]) -> None:
    memory = write(instances[0], append).memory
    once, again = (EXAMINER.examine(memory, instances[0].questions) for _ in range(2))
    assert once == again


def test_a_share_of_the_questions_is_the_same_for_a_whole_group(instances: list[Instance]) -> None:
    questions = instances[0].questions
    some = choose(questions, 0.3, Random("task"))
    assert some == choose(questions, 0.3, Random("task"))
    assert len(some) == round(0.3 * len(questions))
    assert choose(questions, 1.0, Random(0)) == list(questions)
    assert len(choose(questions, 0.001, Random(0))) == 1


def test_the_context_of_an_answer_stays_within_its_budget(instances: list[Instance]) -> None:
    memory = write(instances[0], append).memory
    memory.update_core("word " * 200)
    context = Examiner(LexiconReader(), reading=Reading(tokens=40)).context(memory, "Where?")
    assert len(context.core.split()) == 40
    assert context.entries == ()


def test_a_question_is_asked_of_the_memory_as_it_was_then() -> None:
    chunks = tuple(Chunk(chunk_id=n, content=f"Text {n}") for n in (1, 2))
    where = {"question": "Which city does Ava live in?", "qtype": "q"}
    early = {**where, "question_id": "then", "answers": ["Oslo"], "ask_after": 1}
    late = {**where, "question_id": "now", "answers": ["Quito"]}
    asked = [Question.model_validate(each) for each in (early, late)]
    diary = Diary(Instance(id="i", chunks=chunks, questions=tuple(asked), source="s", license="l"))
    diary.read_on()
    diary.write([(INSERT, AVA)])
    diary.read_on()
    diary.write([("memory_update", {"memory_id": 1, "content": "Ava lives in Quito."})])
    found = EXAMINER.examine_diary(diary, asked)
    assert [each.score for each in found] == [1.0, 1.0]
    assert [each.sources for each in found] == [(1,), (2,)]
    assert attributed(diary, found, 1.0) == [1.0, 1.0]


# Evidence.


def test_attributed_rewards_add_up_and_favour_those_who_wrote(instances: list[Instance]) -> None:
    for instance in instances:
        for writer in (oracle, append, idle):
            diary = write(instance, writer)
            answered = EXAMINER.examine(diary.memory, instance.questions)
            for share in (0.0, 0.5, 1.0):
                rewards = attributed(diary, answered, share)
                assert fmean(rewards) == pytest.approx(answer_rate(answered), abs=1e-12)
        diary = write(instance, oracle)
        answered = EXAMINER.examine(diary.memory, instance.questions)
        used = {diary.memory.entries[e].source_chunk for each in answered for e in each.evidence}
        rewards = attributed(diary, answered, 1.0)
        wrote = [r for r, s in zip(rewards, diary.steps, strict=True) if s.chunk.chunk_id in used]
        idly = [
            r for r, s in zip(rewards, diary.steps, strict=True) if s.chunk.chunk_id not in used
        ]
        assert min(wrote) > max(idly, default=-1.0)


def test_an_update_takes_the_credit_from_what_it_replaced() -> None:
    chunks = tuple(Chunk(chunk_id=n, content=f"Text {n}") for n in (1, 2))
    asked = Question(
        question_id="1", question="Which city does Ava live in?", answers=("Quito",), qtype="q"
    )
    diary = Diary(Instance(id="i", chunks=chunks, questions=(asked,), source="s", license="l"))
    diary.read_on()
    diary.write([(INSERT, AVA)])
    diary.read_on()
    diary.write([("memory_update", {"memory_id": 1, "content": "Ava lives in Quito."})])
    answered = EXAMINER.examine(diary.memory, [asked])
    assert attributed(diary, answered, 1.0) == [0.0, 2.0]
    assert attributed(diary, answered, 0.5) == [0.5, 1.5]


# Advantages.


def test_advantages_are_relative_to_the_group_and_not_to_the_batch() -> None:
    easy, hard = [[5.0], [5.2]], [[1.0], [1.2]]
    ours = step_advantages(hard, "std")
    assert ours[1] is not None
    assert ours[1][0] > 0
    # Pooled over the batch, the better episode of the hard task is punished.
    pooled = old_advantages([*hard, *easy])
    assert pooled[1][0] < 0
    assert step_advantages(easy, "std")[1] == pytest.approx(ours[1])


def test_a_step_is_compared_with_the_same_step_of_the_others() -> None:
    rewards = [[1.0, 0.0], [1.0, 0.2]]
    assert step_advantages(rewards, "mean") == ((0.0, -0.1), (0.0, 0.1))
    pooled = old_advantages(rewards)  # the first step is praised for being the first
    assert pooled[0][0] > 0
    assert pooled[1][0] > 0


@given(
    st.lists(st.lists(st.floats(-2, 3), min_size=4, max_size=4), min_size=2, max_size=6),
    st.floats(-5, 5),
)
def test_a_shift_of_all_rewards_changes_no_advantage(rows: list[list[float]], shift: float) -> None:
    moved = [[reward + shift for reward in row] for row in rows]
    for one, other in zip(
        step_advantages(rows, "mean"), step_advantages(moved, "mean"), strict=True
    ):
        assert one == pytest.approx(other, abs=2e-6)
    columns = zip(*[row or () for row in step_advantages(rows, "mean")], strict=True)
    assert all(sum(column) == pytest.approx(0, abs=1e-9) for column in columns)


def test_equal_steps_have_no_advantage_and_lost_episodes_none_at_all() -> None:
    assert step_advantages([[0.3, 0.3], [0.3, 0.3]], "std") == ((0.0, 0.0), (0.0, 0.0))
    assert step_advantages([[1.0], None, [0.0, 4.0]], "mean") == ((0.5,), None, (-0.5, 0.0))


def test_the_old_loss_is_blind_to_the_policy() -> None:
    advantages = old_advantages([[1.0, 2.0], [0.0, 5.0]])
    flat = [advantage for row in advantages for advantage in row]
    old = [-1.0, -2.0, -3.0, -4.0]
    assert old_loss(flat, old, [-9.0] * 4) == old_loss(flat, old, [0.0] * 4)
    assert old_loss(flat, old, old) == pytest.approx(0.0)
    # Ours is told apart by gradients in test_loss_gradients.py; what it is given is this.


def group(*rows: Sequence[float] | None, value: float = 0.5) -> TrajectoryGroup:
    task = Task(id="t", domain="memory", user_scenario=UserScenario(instructions=""))
    trace = TokenTrace(
        ids=(0, 1, 0, 1),
        mask=(False, True, False, True),
        logprobs=(-1.0, -1.0),
        turns=((1, 2), (3, 4)),
    )
    lost = Termination.INFRASTRUCTURE_ERROR
    trajectories = [
        Trajectory(
            task=task,
            messages=(),
            termination=lost if row is None else Termination.USER_STOP,
            tokens=trace,
        )
        for row in rows
    ]
    rewards = [
        Reward(
            value=value,
            basis=None,
            basis_name="memory",
            steps=tuple(StepReward(value=each) for each in row or ()),
        )
        for row in rows
    ]
    return TrajectoryGroup(
        task=task,
        trajectories=tuple(trajectories),
        rewards=tuple(rewards),
        training_rewards=tuple(fmean(row) if row else 0.0 for row in rows),
    )


def test_each_reply_is_credited_with_its_own_reward() -> None:
    made = group([1.0, 0.0], [1.0, 0.2], None)
    assert credit(made, made.training_rewards, GRPOConfig()) == ((0.0, -0.1), (0.0, 0.1), None)


def test_what_an_algorithm_adds_to_an_episode_is_added_to_all_its_steps() -> None:
    made = group([1.0, 0.0], [1.0, 0.2])
    shaped = [made.training_rewards[0] + 1.0, made.training_rewards[1]]
    assert credit(made, shaped, GRPOConfig()) == (
        pytest.approx((0.5, 0.4)),
        pytest.approx((-0.5, -0.4)),
    )


def test_an_episode_that_could_not_be_scored_is_compared_all_the_same() -> None:
    made = group([1.0, 0.5], [])
    assert credit(made, made.training_rewards, GRPOConfig()) == ((0.5, 0.25), (-0.5, -0.25))


def test_episodes_that_differ_only_within_teach_something() -> None:
    made = group([1.0, 0.0], [0.0, 1.0])
    assert is_telling(credit(made, made.training_rewards, GRPOConfig()))
    same = group([1.0, 0.0], [1.0, 0.0])
    assert not is_telling(credit(same, same.training_rewards, GRPOConfig()))


# Models that answer and judge.


def asked_of(body: Body) -> str:
    return str(body["messages"][1]["content"])


def answers(reply: str, instance: Instance, *, models: ModelsConfig = QUICK) -> list[Answered]:
    memory = write(instance, oracle).memory
    with ChatServer(lambda body: reply) as server, Models(models) as opened:
        config = AnswererConfig(model=MODEL, base_url=server.url)
        examiner = Examiner(ModelAnswerer(opened, config))
        return examiner.examine(memory, instance.questions)


def test_a_model_answers_from_the_context_alone(instances: list[Instance]) -> None:
    instance = instances[0]
    known = next(each for each in instance.questions if each.qtype == "single")
    memory = write(instance, oracle).memory
    with ChatServer(lambda body: json.dumps({"answer": known.answers[0], "used": [1]})) as server:
        with Models(QUICK) as opened:
            config = AnswererConfig(model=MODEL, base_url=server.url)
            found = Examiner(ModelAnswerer(opened, config)).examine(memory, [known])[0]
        prompt = asked_of(server.requests[0])
    assert (found.score, found.evidence) == (1.0, (1,))
    assert found.calls[0].role == "answerer"
    assert known.question in prompt
    assert all(chunk.content not in prompt for chunk in instance.chunks)


def test_a_question_in_the_same_context_is_paid_for_once(
    instances: list[Instance], tmp_path: Path
) -> None:
    memory, question = write(instances[0], oracle).memory, instances[0].questions[0]
    twin = question.model_copy(update={"question_id": "again"})
    with ChatServer(lambda body: '{"answer": "x", "used": []}') as server:
        for _ in range(2):
            with Models(QUICK.model_copy(update={"cache_dir": tmp_path})) as opened:
                config = AnswererConfig(model=MODEL, base_url=server.url)
                Examiner(ModelAnswerer(opened, config)).examine(memory, [question, twin])
        assert len(server.requests) == 1


def test_an_answer_that_nobody_can_read_is_no_wrong_answer(instances: list[Instance]) -> None:
    with pytest.raises(ModelCallError, match="no readable answer"):
        answers("Oslo, I guess", instances[0])
    with pytest.raises(ConfigError, match=r"memory\.answerer\.model"), Models(QUICK) as opened:
        ModelAnswerer(opened, AnswererConfig())


def test_what_an_answer_rests_on_is_guessed_where_the_model_does_not_say() -> None:
    assert read_answer('So: {"answer": 7, "used": "both"}') == Answer("7", None)
    with pytest.raises(ValueError, match="no answer"):
        read_answer('{"answer": true}')
    assert Context("", ()).text == ""


def test_a_judge_that_says_invalid_is_believed() -> None:
    instance = one_chunk(LINE)
    diary = Diary(instance)
    diary.read_on()
    diary.write([(INSERT, AVA), (INSERT, {}), (INSERT, {"content": "Nonsense."})])
    entries = [{"number": n, "reason": "INVALID", "met": n == 1} for n in (1, 2)]
    with (
        ChatServer(lambda body: json.dumps({"verdicts": entries})) as server,
        Models(QUICK) as opened,
    ):
        judge = ModelContentJudge(opened, JudgeConfig(model=MODEL, base_url=server.url))
        verdicts = judge.judge(diary.steps)
        case = asked_of(server.requests[0])
    assert verdicts.valid == [[True, False, False]]
    assert "Ava lives in Oslo." in case
    assert len(verdicts.calls) == 1
    assert old_is_valid("INVALID")
    with pytest.raises(ValueError, match="no JSON object"):
        read_verdicts("VALID", 1)


def test_nobody_is_asked_about_a_step_without_changes(instances: list[Instance]) -> None:
    with ChatServer(lambda body: "{}") as server, Models(QUICK) as opened:
        judge = ModelContentJudge(opened, JudgeConfig(model=MODEL, base_url=server.url))
        assert judge.judge(write(instances[0], idle).steps).calls == ()
        assert server.requests == []
