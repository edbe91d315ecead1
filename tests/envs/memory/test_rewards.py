"""The memory reward, compared with defective formulas of an earlier trainer (``old_*``)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_server import Body, ChatServer
from grpo_cl.config import AnswererConfig, GRPOConfig, JudgeConfig, ModelsConfig
from grpo_cl.envs.memory import Chunk, Instance, Question
from grpo_cl.envs.memory.baselines import (
    BASELINES,
    BaselinePolicy,
    append,
    copy_chunk,
    idle,
    oracle,
    run_baseline,
)
from grpo_cl.envs.memory.generator import Operation, RuleAnswerer, generate_instances
from grpo_cl.envs.memory.rewards.answer_grading import grade
from grpo_cl.envs.memory.rewards.content import RuleContentJudge
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode, num_malformed
from grpo_cl.envs.memory.rewards.formulas import (
    StepScore,
    Weights,
    answer_rate,
    attribute_answers,
    compression,
    score_steps,
)
from grpo_cl.envs.memory.rewards.llm_answerer import LLMAnswerer, parse_answer
from grpo_cl.envs.memory.rewards.llm_content_judge import LLMContentJudge
from grpo_cl.envs.memory.rewards.question_answering import (
    Answer,
    Context,
    ContextBudget,
    GradedAnswer,
    QAPipeline,
    sample_questions,
)
from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.llm import ModelPool
from grpo_cl.llm.json_replies import parse_verdicts
from grpo_cl.rewards.advantages import compute_advantages, has_signal, step_advantages
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
from old_memory_formulas import (
    old_action_reward,
    old_advantages,
    old_is_correct,
    old_is_valid,
    old_loss,
    old_total,
)

MODEL = "openai-api/loopback/frozen"
QUICK = ModelsConfig(cache_dir=None, retries=1, backoff_s=0.001, timeout_s=30)
PIPELINE = QAPipeline(RuleAnswerer())


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


@pytest.fixture(scope="module")
def instances() -> list[Instance]:
    return generate_instances(11, 12, difficulty=0.5)


def steps_of(episode: MemoryEpisode, weights: Weights | None = None) -> list[StepScore]:
    answers = PIPELINE.answer(episode.memory, episode.instance.questions)
    valid = RuleContentJudge().judge(episode.steps).valid
    return score_steps(episode, valid, answers, weights or Weights())


def mean_reward(instances: Sequence[Instance], policy: BaselinePolicy) -> float:
    return fmean(
        step.total(Weights())
        for instance in instances
        for step in steps_of(run_baseline(instance, policy))
    )


def one_chunk(text: str, *, labels: Mapping[str, object] | None = None) -> Instance:
    question = Question(question_id="1", question="?", answers=("x",), qtype="single")
    chunk = Chunk.model_validate({"chunk_id": 1, "content": text, "labels": labels})
    return Instance(id="i", chunks=(chunk,), questions=(question,), source="s", license="l")


def step_after(instance: Instance, *calls: tuple[str, object], text: str = "") -> StepScore:
    episode = MemoryEpisode(instance)
    episode.next_chunk()
    episode.apply(calls, text)
    return steps_of(episode)[0]


INSERT = "memory_insert"
AVA = {"content": "Ava lives in Oslo."}
LINE = "[Dialogue on 2024-01-01]\nUser: Ava lives in Oslo.\nUser: Mia lives in Quito, I dreamt."
WITH_FACTS = {
    "operations": [{"name": INSERT, "arguments": AVA}],
    "told": ["Ava lives in Oslo."],
    "stale": [],
}
WITHOUT_FACTS = {"operations": [], "told": [], "stale": []}


# The formula and its components.


def test_step_reward_equals_the_formula(instances: list[Instance]) -> None:
    for instance in instances[:4]:
        episode = run_baseline(instance, append)
        answers = PIPELINE.answer(episode.memory, instance.questions)
        r3 = 1 - episode.memory.tokens() / instance.tokens
        for step, score in zip(episode.steps, steps_of(episode), strict=True):
            made = step.calls
            r2 = sum(c.outcome.ok for c in made) / len(made) if made else score.calls
            expected = answer_rate(answers) + r2 + 0.05 * r3 + 0.1 * score.content
            assert score.total(Weights()) == pytest.approx(expected, abs=1e-12)


def test_baselines_are_ranked_by_memory_quality(instances: list[Instance]) -> None:
    rewards = {name: mean_reward(instances, policy) for name, policy in BASELINES.items()}
    assert rewards["oracle"] > rewards["append_dated"] > rewards["append"] > rewards["idle"]
    assert rewards["oracle"] > rewards["copy_lines"] + 0.3
    assert rewards["oracle"] > rewards["copy_chunk"] + 0.3
    assert rewards["oracle"] > 2.1
    assert rewards["idle"] < 0.4


def test_copied_chunks_score_low_under_a_tight_context_budget(instances: list[Instance]) -> None:
    def rate(policy: BaselinePolicy, tokens: int) -> float:
        pipeline = QAPipeline(RuleAnswerer(), budget=ContextBudget(tokens=tokens))
        memories = [
            (run_baseline(instance, policy).memory, instance.questions) for instance in instances
        ]
        return fmean(answer_rate(pipeline.answer(*pair)) for pair in memories)

    assert rate(copy_chunk, 2048) > 0.6
    assert rate(copy_chunk, 48) < 0.35
    assert rate(oracle, 2048) == rate(oracle, 96) == 1.0
    assert rate(oracle, 48) > 0.95


def test_content_reward_differs_from_call_success() -> None:
    invented = step_after(
        one_chunk(LINE, labels=WITH_FACTS), (INSERT, {"content": "Zanzibar turnip ledger"})
    )
    assert (invented.calls, invented.content) == (1.0, 0.0)
    told = step_after(one_chunk(LINE, labels=WITH_FACTS), (INSERT, AVA))
    assert (told.calls, told.content) == (1.0, 1.0)
    # In the old formula the weight of content only adds to that of success.
    gain = old_action_reward(ok=True, accuracy=0, compressed=0, gamma=0.1) - old_action_reward(
        ok=False, accuracy=0, compressed=0, gamma=0.1
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
def test_unsupported_or_ill_typed_content_is_invalid(
    content: str, extra: dict[str, object]
) -> None:
    made = step_after(one_chunk(LINE, labels=WITH_FACTS), (INSERT, {"content": content, **extra}))
    assert (made.calls, made.content) == (1.0, 0.0)


def test_reordered_duplicate_is_invalid_content() -> None:
    twice = step_after(
        one_chunk(LINE, labels=WITH_FACTS),
        (INSERT, AVA),
        (INSERT, {"content": "In Oslo lives Ava."}),
    )
    assert twice.content == 0.5


def test_deletion_is_valid_if_the_entry_is_stale() -> None:
    gone = {"operations": [{"name": "memory_delete", "arguments": {"memory_id": 1}}], "told": ["x"]}

    def content(labels: dict[str, object] | None) -> float:
        episode = MemoryEpisode(one_chunk("User: forget where Ava lives.", labels=labels))
        episode.memory.insert("Ava lives in Oslo.")
        episode.next_chunk()
        episode.apply([("memory_delete", {"memory_id": 1})])
        return steps_of(episode)[0].content

    assert content({**gone, "stale": ["Ava lives in Oslo."]}) == 1.0
    assert content({**gone, "stale": ["Mia is afraid of spiders."]}) == 0.0
    assert content(None) == 0.0  # undecided, so r4 is 0


def test_call_with_an_unknown_id_fails() -> None:
    made = step_after(
        one_chunk(LINE, labels=WITH_FACTS), (INSERT, AVA), ("memory_delete", {"memory_id": 9})
    )
    assert (made.calls, made.content) == (0.5, 0.5)


def test_malformed_calls_count_as_failures() -> None:
    broken = '{"name": "memory_insert", "arguments": {oops'
    assert step_after(one_chunk(LINE, labels=WITH_FACTS), (INSERT, AVA), text=broken).calls == 0.5
    assert num_malformed("I could call memory_insert here, but why?") == 0
    assert num_malformed(' memory_insert{"content": " Ava') == 1


# Steps without calls.


def test_step_without_calls_scores_one_only_for_a_chunk_without_facts() -> None:
    nothing, something = one_chunk("Hm.", labels=WITHOUT_FACTS), one_chunk(LINE, labels=WITH_FACTS)
    for calls in ((), (("skip", {}),)):
        silent = step_after(nothing, *calls)
        assert (silent.calls, silent.content) == (1.0, 1.0)
        silent = step_after(something, *calls)
        assert (silent.calls, silent.content) == (0.0, 0.0)
    writing = step_after(nothing, (INSERT, {"content": "Hm."}))
    assert (writing.calls, writing.content) == (1.0, 0.0)


def test_without_labels_a_step_without_calls_is_scored_by_question_evidence() -> None:
    chunks = tuple(Chunk(chunk_id=n, content=f"Text {n}") for n in (1, 2))
    question = Question(question_id="1", question="?", answers=("x",), qtype="q", evidence=(2,))
    instance = Instance(id="i", chunks=chunks, questions=(question,), source="s", license="l")
    assert [step.calls for step in steps_of(run_baseline(instance, idle))] == [1.0, 0.0]
    blind = instance.model_copy(
        update={"questions": (question.model_copy(update={"evidence": ()}),)}
    )
    assert [step.calls for step in steps_of(run_baseline(blind, idle))] == [0.0, 0.0]


def test_idle_baseline_has_a_low_reward(instances: list[Instance]) -> None:
    assert mean_reward(instances, idle) < 0.4
    # The old total gives an idle agent everything but r1.
    assert old_total(0.0, 0, 0, memory=0, read=1000) == pytest.approx(1.15)


def test_step_without_calls_is_a_training_step(instances: list[Instance]) -> None:
    episode = run_baseline(instances[0], idle)
    assert len(steps_of(episode)) == len(instances[0].chunks)


def test_memory_longer_than_its_input_has_negative_compression(instances: list[Instance]) -> None:
    def swell(chunk: Chunk) -> list[Operation]:
        return [
            Operation(INSERT, {"content": f"{chunk.content} {n}", "timestamp": chunk.timestamp})
            for n in range(3)
        ]

    episode = run_baseline(instances[0], swell)
    assert -1 <= compression(episode.memory, episode.instance) < -0.9
    assert old_total(0, 1, 1, memory=3000, read=1000) == pytest.approx(1.1)  # clamped at 0


# Answers.


def question(*answers: str, metric: str = "exact") -> Question:
    return Question.model_validate(
        {"question_id": "1", "question": "?", "answers": answers, "qtype": "q", "metric": metric}
    )


def test_empty_or_partial_answer_scores_zero() -> None:
    for metric in ("exact", "contains", "keywords", "boxed", "judge"):
        for said in ("", " ", ".", "O", "slo", "Osloer"):
            assert grade(said, question("Oslo", metric=metric)) == 0.0
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
def test_answers_are_graded_by_the_metric_of_the_question(
    metric: str, said: str, score: float
) -> None:
    golds = ("Oslo", "Quito") if metric == "keywords" else ("Oslo",)
    assert grade(said, question(*golds, metric=metric)) == score


def test_abstention_is_correct_for_unanswerable_questions_only() -> None:
    assert grade("unknown", question()) == 1.0
    assert grade("The notes do not say: no information.", question()) == 1.0
    assert grade("", question()) == 0.0
    assert grade("Oslo", question()) == 0.0
    assert grade("unknown", question("Oslo")) == 0.0


def test_answers_depend_on_the_memory_only(instances: list[Instance]) -> None:
    memory = run_baseline(instances[0], append).memory
    once, again = (PIPELINE.answer(memory, instances[0].questions) for _ in range(2))
    assert once == again


def test_sampled_questions_are_the_same_for_a_whole_group(instances: list[Instance]) -> None:
    questions = instances[0].questions
    some = sample_questions(questions, 0.3, Random("task"))
    assert some == sample_questions(questions, 0.3, Random("task"))
    assert len(some) == round(0.3 * len(questions))
    assert sample_questions(questions, 1.0, Random(0)) == list(questions)
    assert len(sample_questions(questions, 0.001, Random(0))) == 1


def test_context_stays_within_its_budget(instances: list[Instance]) -> None:
    memory = run_baseline(instances[0], append).memory
    memory.update_core("word " * 200)
    context = QAPipeline(RuleAnswerer(), budget=ContextBudget(tokens=40)).context(memory, "Where?")
    assert len(context.core.split()) == 40
    assert context.entries == ()


def test_question_is_answered_from_the_memory_at_its_chunk() -> None:
    chunks = tuple(Chunk(chunk_id=n, content=f"Text {n}") for n in (1, 2))
    where = {"question": "Which city does Ava live in?", "qtype": "q"}
    early = {**where, "question_id": "then", "answers": ["Oslo"], "ask_after": 1}
    late = {**where, "question_id": "now", "answers": ["Quito"]}
    asked = [Question.model_validate(each) for each in (early, late)]
    episode = MemoryEpisode(
        Instance(id="i", chunks=chunks, questions=tuple(asked), source="s", license="l")
    )
    episode.next_chunk()
    episode.apply([(INSERT, AVA)])
    episode.next_chunk()
    episode.apply([("memory_update", {"memory_id": 1, "content": "Ava lives in Quito."})])
    found = PIPELINE.answer_episode(episode, asked)
    assert [each.score for each in found] == [1.0, 1.0]
    assert [answer.source_chunks for answer in found] == [(1,), (2,)]
    assert attribute_answers(episode, found, 1.0) == [1.0, 1.0]


# Evidence.


def test_attributed_rewards_keep_their_mean_and_favour_the_writing_steps(
    instances: list[Instance],
) -> None:
    for instance in instances:
        for policy in (oracle, append, idle):
            episode = run_baseline(instance, policy)
            answers = PIPELINE.answer(episode.memory, instance.questions)
            for share in (0.0, 0.5, 1.0):
                rewards = attribute_answers(episode, answers, share)
                assert fmean(rewards) == pytest.approx(answer_rate(answers), abs=1e-12)
        episode = run_baseline(instance, oracle)
        answers = PIPELINE.answer(episode.memory, instance.questions)
        used = {episode.memory.entries[e].source_chunk for each in answers for e in each.evidence}
        rewards = attribute_answers(episode, answers, 1.0)
        wrote = [r for r, s in zip(rewards, episode.steps, strict=True) if s.chunk.chunk_id in used]
        idly = [
            r for r, s in zip(rewards, episode.steps, strict=True) if s.chunk.chunk_id not in used
        ]
        assert min(wrote) > max(idly, default=-1.0)


def test_update_gets_the_credit_of_the_entry_it_replaces() -> None:
    chunks = tuple(Chunk(chunk_id=n, content=f"Text {n}") for n in (1, 2))
    asked = Question(
        question_id="1", question="Which city does Ava live in?", answers=("Quito",), qtype="q"
    )
    episode = MemoryEpisode(
        Instance(id="i", chunks=chunks, questions=(asked,), source="s", license="l")
    )
    episode.next_chunk()
    episode.apply([(INSERT, AVA)])
    episode.next_chunk()
    episode.apply([("memory_update", {"memory_id": 1, "content": "Ava lives in Quito."})])
    answers = PIPELINE.answer(episode.memory, [asked])
    assert attribute_answers(episode, answers, 1.0) == [0.0, 2.0]
    assert attribute_answers(episode, answers, 0.5) == [0.5, 1.5]


# Advantages.


def test_advantages_are_relative_to_the_group_not_the_batch() -> None:
    easy, hard = [[5.0], [5.2]], [[1.0], [1.2]]
    ours = step_advantages(hard, "std")
    assert ours[1] is not None
    assert ours[1][0] > 0
    # Pooled over the batch, the better episode of the hard task is punished.
    pooled = old_advantages([*hard, *easy])
    assert pooled[1][0] < 0
    assert step_advantages(easy, "std")[1] == pytest.approx(ours[1])


def test_step_is_compared_with_the_same_step_of_the_group() -> None:
    rewards = [[1.0, 0.0], [1.0, 0.2]]
    assert step_advantages(rewards, "mean") == ((0.0, -0.1), (0.0, 0.1))
    pooled = old_advantages(rewards)  # position in the episode leaks into the advantage
    assert pooled[0][0] > 0
    assert pooled[1][0] > 0


@given(
    st.lists(st.lists(st.floats(-2, 3), min_size=4, max_size=4), min_size=2, max_size=6),
    st.floats(-5, 5),
)
def test_shift_of_all_rewards_changes_no_advantage(rows: list[list[float]], shift: float) -> None:
    moved = [[reward + shift for reward in row] for row in rows]
    for one, other in zip(
        step_advantages(rows, "mean"), step_advantages(moved, "mean"), strict=True
    ):
        assert one == pytest.approx(other, abs=2e-6)
    columns = zip(*[row or () for row in step_advantages(rows, "mean")], strict=True)
    assert all(sum(column) == pytest.approx(0, abs=1e-9) for column in columns)


def test_equal_steps_have_zero_advantage_and_lost_episodes_have_none() -> None:
    assert step_advantages([[0.3, 0.3], [0.3, 0.3]], "std") == ((0.0, 0.0), (0.0, 0.0))
    assert step_advantages([[1.0], None, [0.0, 4.0]], "mean") == ((0.5,), None, (-0.5, 0.0))


def test_old_loss_does_not_depend_on_the_policy() -> None:
    advantages = old_advantages([[1.0, 2.0], [0.0, 5.0]])
    flat = [advantage for row in advantages for advantage in row]
    old = [-1.0, -2.0, -3.0, -4.0]
    assert old_loss(flat, old, [-9.0] * 4) == old_loss(flat, old, [0.0] * 4)
    assert old_loss(flat, old, old) == pytest.approx(0.0)
    # test_loss_gradients.py covers the loss of this package.


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


def test_each_reply_has_the_advantage_of_its_own_reward() -> None:
    made = group([1.0, 0.0], [1.0, 0.2], None)
    assert compute_advantages(made, made.training_rewards, GRPOConfig()) == (
        (0.0, -0.1),
        (0.0, 0.1),
        None,
    )


def test_reward_shaping_of_an_episode_is_added_to_all_its_steps() -> None:
    made = group([1.0, 0.0], [1.0, 0.2])
    shaped = [made.training_rewards[0] + 1.0, made.training_rewards[1]]
    assert compute_advantages(made, shaped, GRPOConfig()) == (
        pytest.approx((0.5, 0.4)),
        pytest.approx((-0.5, -0.4)),
    )


def test_episode_without_step_rewards_is_compared_by_its_total() -> None:
    made = group([1.0, 0.5], [])
    assert compute_advantages(made, made.training_rewards, GRPOConfig()) == (
        (0.5, 0.25),
        (-0.5, -0.25),
    )


def test_group_that_differs_in_step_rewards_has_signal() -> None:
    made = group([1.0, 0.0], [0.0, 1.0])
    assert has_signal(compute_advantages(made, made.training_rewards, GRPOConfig()))
    same = group([1.0, 0.0], [1.0, 0.0])
    assert not has_signal(compute_advantages(same, same.training_rewards, GRPOConfig()))


# LLM answerer and LLM judge.


def asked_of(body: Body) -> str:
    return str(body["messages"][1]["content"])


def model_answers(
    reply: str, instance: Instance, *, models: ModelsConfig = QUICK
) -> list[GradedAnswer]:
    memory = run_baseline(instance, oracle).memory
    with ChatServer(lambda body: reply) as server, ModelPool(models) as opened:
        config = AnswererConfig(model=MODEL, base_url=server.url)
        pipeline = QAPipeline(LLMAnswerer(opened, config))
        return pipeline.answer(memory, instance.questions)


def test_model_answerer_sees_the_context_only(instances: list[Instance]) -> None:
    instance = instances[0]
    known = next(each for each in instance.questions if each.qtype == "single")
    memory = run_baseline(instance, oracle).memory
    with ChatServer(lambda body: json.dumps({"answer": known.answers[0], "used": [1]})) as server:
        with ModelPool(QUICK) as opened:
            config = AnswererConfig(model=MODEL, base_url=server.url)
            found = QAPipeline(LLMAnswerer(opened, config)).answer(memory, [known])[0]
        prompt = asked_of(server.requests[0])
    assert (found.score, found.evidence) == (1.0, (1,))
    assert found.calls[0].role == "answerer"
    assert known.question in prompt
    assert all(chunk.content not in prompt for chunk in instance.chunks)


def test_question_with_the_same_context_is_requested_once(
    instances: list[Instance], tmp_path: Path
) -> None:
    memory, question = run_baseline(instances[0], oracle).memory, instances[0].questions[0]
    twin = question.model_copy(update={"question_id": "again"})
    with ChatServer(lambda body: '{"answer": "x", "used": []}') as server:
        for _ in range(2):
            with ModelPool(QUICK.model_copy(update={"cache_dir": tmp_path})) as opened:
                config = AnswererConfig(model=MODEL, base_url=server.url)
                QAPipeline(LLMAnswerer(opened, config)).answer(memory, [question, twin])
        assert len(server.requests) == 1


def test_unparsable_answer_is_an_error_not_a_wrong_answer(instances: list[Instance]) -> None:
    with pytest.raises(ModelCallError, match="no readable answer"):
        model_answers("Oslo, I guess", instances[0])
    with pytest.raises(ConfigError, match=r"memory\.answerer\.model"), ModelPool(QUICK) as opened:
        LLMAnswerer(opened, AnswererConfig())


def test_evidence_is_inferred_if_the_model_does_not_report_it() -> None:
    assert parse_answer('So: {"answer": 7, "used": "both"}') == Answer("7", None)
    with pytest.raises(ValueError, match="no answer"):
        parse_answer('{"answer": true}')
    assert Context("", ()).text == ""


def test_verdicts_of_the_content_judge_are_used() -> None:
    instance = one_chunk(LINE)
    episode = MemoryEpisode(instance)
    episode.next_chunk()
    episode.apply([(INSERT, AVA), (INSERT, {}), (INSERT, {"content": "Nonsense."})])
    entries = [{"number": n, "reason": "INVALID", "met": n == 1} for n in (1, 2)]
    with (
        ChatServer(lambda body: json.dumps({"verdicts": entries})) as server,
        ModelPool(QUICK) as opened,
    ):
        judge = LLMContentJudge(opened, JudgeConfig(model=MODEL, base_url=server.url))
        verdicts = judge.judge(episode.steps)
        case = asked_of(server.requests[0])
    assert verdicts.valid == [[True, False, False]]
    assert "Ava lives in Oslo." in case
    assert len(verdicts.calls) == 1
    assert old_is_valid("INVALID")
    with pytest.raises(ValueError, match="no JSON object"):
        parse_verdicts("VALID", 1)


def test_no_model_call_for_a_step_without_changes(instances: list[Instance]) -> None:
    with ChatServer(lambda body: "{}") as server, ModelPool(QUICK) as opened:
        judge = LLMContentJudge(opened, JudgeConfig(model=MODEL, base_url=server.url))
        assert judge.judge(run_baseline(instances[0], idle).steps).calls == ()
        assert server.requests == []
