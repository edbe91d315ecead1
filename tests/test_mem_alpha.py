"""The earlier API, and the faults of the earlier code that it no longer has."""

import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_cl.advantages import step_advantages
from grpo_cl.errors import ConfigError
from grpo_cl.mem_alpha import (
    ConversationChunk,
    GRPOTrainer,
    MemoryConstructionAgent,
    MemorySystem,
    QAEvaluator,
    Question,
    RewardCalculator,
    Rewards,
    TrainingInstance,
    TwoLayerRAGRetriever,
)
from grpo_cl.memory.generator import Knobs, generate_instances
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import WEIGHTS, PolicyRuntime
from grpo_cl.policy.sft import Lesson, batches, examples, trace
from grpo_cl.policy.supervised import supervised_update
from grpo_cl.policy.tiny_model import Size, new_tiny
from grpo_cl.rundir import RunDir
from old_memory_formulas import (
    OldPolicy,
    OldRetriever,
    old_action_reward,
    old_actions,
    old_advantages,
    old_answer,
    old_checkpoint,
    old_evaluation,
    old_is_correct,
    old_is_valid,
    old_log_probs,
    old_loss,
    old_metric_and_learned,
    old_total,
    old_training,
)
from small_runs import small_config

AVA = ConversationChunk(0, "[Dialogue on 2024-05-01]\nUser: Ava lives in Oslo.", "2024-05-01")
TALK = ConversationChunk(1, "[Dialogue on 2024-05-02]\nUser: Lovely weather.", "2024-05-02")
WHERE = Question("q1", "Which city does Ava live in?", "Oslo", evidence=(0,))
INSTANCE = TrainingInstance("ava", [AVA, TALK], [WHERE])

INSERT = {"name": "memory_insert", "arguments": {"content": "Ava lives in Oslo."}}
SKIP = '{"action": "skip"}'

Says = Callable[[str], str]


def says(*replies: str) -> Says:
    left = iter(replies)
    return lambda prompt: next(left)


def read(*replies: str, instance: TrainingInstance = INSTANCE) -> MemoryConstructionAgent:
    agent = MemoryConstructionAgent(says(*replies))
    agent.process_conversation(instance.chunks)
    return agent


def rewards(agent: MemoryConstructionAgent, judge: Says | None = None) -> Rewards:
    results = QAEvaluator(agent.memory).evaluate_questions(INSTANCE.questions)
    calculator = RewardCalculator(beta=0.05, gamma=0.1, llm_judge=judge)
    return calculator.calculate(INSTANCE, agent.actions, agent.memory, results)


# The agent.


def test_an_action_carries_what_the_model_read_and_wrote() -> None:
    reply = json.dumps(INSERT)
    action = read(reply, SKIP).actions[0]
    assert AVA.content in action.prompt
    assert "memory_insert" in action.prompt
    assert action.response == reply
    assert action.calls[0].arguments == INSERT["arguments"]
    assert action.results == ("memory 1 inserted",)
    # B8: the old action has no place for a prompt or a response.
    assert set(old_actions(0, reply)[0]._fields).isdisjoint({"prompt", "response"})


def test_the_next_prompt_shows_what_is_remembered() -> None:
    agent = read(json.dumps(INSERT), SKIP)
    assert "[1] (semantic) Ava lives in Oslo." in agent.actions[1].prompt


@pytest.mark.parametrize(
    ("reply", "contents"),
    [
        (f"{json.dumps(INSERT)} {json.dumps(INSERT).replace('Ava', 'Mia')}", ["Ava", "Mia"]),
        (f"<tool_call>{json.dumps(INSERT)}</tool_call>", ["Ava"]),
        (f"<think>Oslo?</think>\n```json\n{json.dumps(INSERT)}\n```", ["Ava"]),
        (json.dumps(INSERT).replace("memory_insert", "new_memory_insert"), ["Ava"]),
        (json.dumps(INSERT).replace("Ava", "Ava }"), ["Ava }"]),
        (SKIP, []),
    ],
)
def test_calls_are_read_in_every_form_they_used_to_come_in(reply: str, contents: list[str]) -> None:
    agent = read(reply, SKIP)
    found = [entry.content.partition(" lives")[0] for entry in agent.memory.entries.values()]
    assert found == contents
    assert agent.get_action_summary()["malformed"] == 0


def test_a_brace_within_a_text_ends_no_call() -> None:  # S4
    reply = json.dumps(INSERT).replace("Oslo", "Oslo }")
    assert read(reply, SKIP).get_action_summary()["succeeded"] == 1
    assert old_actions(0, reply) == []


def test_a_call_that_fails_or_cannot_be_read_is_counted() -> None:  # S4
    unknown = '{"name": "memory_delete", "arguments": {"memory_id": 9}}'
    broken = '{"name": "memory_insert", "arguments": {"content": "Ava'
    agent = read(f"{json.dumps(INSERT)}\n{unknown}\n{broken}", SKIP)
    assert agent.get_action_summary() == {
        "chunks": 2,
        "skipped": 1,
        "calls": 2,
        "succeeded": 1,
        "failed": 1,
        "malformed": 1,
        "memory_insert": 1,
    }
    assert not agent.actions[0].success
    assert agent.actions[0].step.num_attempts == 3
    assert old_actions(0, broken) == []


def test_a_skipped_chunk_is_a_sample_too() -> None:  # B6
    assert [action.chunk_id for action in read(SKIP, "Nothing new.").actions] == [0, 1]
    assert len(rewards(read(SKIP, "Nothing new.")).steps) == 2
    assert old_actions(0, SKIP) == []


# Questions.


def test_an_answer_comes_from_what_was_found_and_nothing_else() -> None:
    memory = read(json.dumps(INSERT), SKIP).memory
    asked: list[str] = []

    def reader(prompt: str) -> str:
        asked.append(prompt)
        return '{"answer": "Oslo", "used": [1]}'

    result = QAEvaluator(memory, reader).evaluate_questions([WHERE])[0]
    assert (result.predicted_answer, result.is_correct, result.score) == ("Oslo", True, 1.0)
    assert result.retrieved_context == "[1] (semantic) Ava lives in Oslo."
    assert result.retrieved_context in asked[0]
    assert AVA.content not in asked[0]


@pytest.mark.parametrize("said", ["", " ", ".", "O", "slo", "Osloer", '{"answer": ""}'])
def test_an_empty_answer_and_a_part_of_one_are_wrong(said: str) -> None:  # S1
    result = QAEvaluator(MemorySystem(), lambda prompt: said).evaluate_questions([WHERE])[0]
    assert (result.is_correct, result.score) == (False, 0.0)
    assert old_is_correct("", "Oslo")
    assert old_is_correct("slo", "Oslo")


def test_not_to_know_is_right_where_nobody_can() -> None:
    never = Question(2, "What is Ava's job?", None)
    results = QAEvaluator(MemorySystem()).evaluate_questions([never, WHERE])
    assert [result.is_correct for result in results] == [True, False]


def test_answers_move_with_the_memory_and_never_with_the_policy() -> None:  # B7
    memory = read(json.dumps(INSERT), SKIP).memory
    scores = [QAEvaluator(memory).evaluate_questions([WHERE])[0].score for _ in range(2)]
    assert scores == [1.0, 1.0]
    # The old answers are the policy's own words, which no memory is needed for.
    wrote, learned = old_answer(says("unknown"), "?"), old_answer(says("Oslo"), "?")
    assert not old_is_correct(wrote, "Oslo")
    assert old_is_correct(learned, "Oslo")


# Rewards.


def test_the_reward_of_a_completion_is_the_formula() -> None:
    agent = read(json.dumps(INSERT), SKIP)
    found = rewards(agent)
    assert (found.r1, found.r2, found.r4) == (1.0, 1.0, 1.0)
    assert found.steps == pytest.approx([1 + 1 + 0.05 * found.r3 + 0.1] * 2, abs=1e-12)
    assert found.total == pytest.approx(sum(found.steps) / 2)


def test_content_is_not_a_copy_of_success() -> None:  # B5
    invented = json.dumps(INSERT).replace("Ava lives in Oslo.", "Zanzibar turnip ledger")
    found = rewards(read(invented, SKIP))
    assert found.r2 == 1.0
    assert found.r4 == 0.5  # the second chunk was rightly passed over
    gain = [
        old_action_reward(ok=True, accuracy=0, compressed=0, gamma=gamma)
        - old_action_reward(ok=False, accuracy=0, compressed=0, gamma=gamma)
        for gamma in (0.0, 0.1)
    ]
    assert gain == pytest.approx([1.0, 1.1])  # the weight of content only rescales success


@pytest.mark.parametrize(
    ("verdict", "worth"),
    [("VALID", 1.0), ("INVALID", 0.5), ("It is invalid, not valid.", 0.5), ("Hm.", 0.5)],
)
def test_a_judge_that_says_invalid_is_believed(verdict: str, worth: float) -> None:  # S2
    assert rewards(read(json.dumps(INSERT), SKIP), judge=lambda prompt: verdict).r4 == worth
    assert old_is_valid("INVALID")


def test_doing_nothing_earns_less_than_doing_the_work() -> None:  # S3
    idle = rewards(read("", "")).total
    assert idle < 0.8 < rewards(read(json.dumps(INSERT), SKIP)).total
    assert rewards(read("", "")).steps[0] == pytest.approx(0.05)
    assert old_total(0.0, 0, 0, memory=0, read=1000) == pytest.approx(1.15)


def test_a_memory_longer_than_its_source_is_worse_than_none() -> None:  # S6
    swollen = " ".join(
        json.dumps(INSERT).replace("Oslo.", f"Oslo, Oslo, Oslo, Oslo, and Oslo, said {n}.")
        for n in range(6)
    )
    assert rewards(read(swollen, SKIP)).r3 < 0
    longer = old_total(0, 1, 1, memory=3000, read=1000)
    assert longer == old_total(0, 1, 1, memory=1000, read=1000)


def test_what_is_reported_is_what_is_learned_from() -> None:  # B9
    for replies in ((json.dumps(INSERT), SKIP), ("", ""), ("{", json.dumps(INSERT))):
        found = rewards(read(*replies))
        assert found.total == pytest.approx(
            found.r1 + found.r2 + 0.05 * found.r3 + 0.1 * found.r4, abs=1e-12
        )
    reported, learned = old_metric_and_learned([True, False], 0.5)
    assert reported != pytest.approx(learned)


def test_actions_that_do_not_fit_the_chunks_are_refused() -> None:  # B11
    agent = read(json.dumps(INSERT), SKIP)
    with pytest.raises(ConfigError, match="one action for each"):
        RewardCalculator().calculate(INSTANCE, agent.actions[:1], agent.memory, [])


# Retrieval.


def test_an_edit_is_found_at_once() -> None:  # S5
    memory = MemorySystem()
    retriever = TwoLayerRAGRetriever(memory)
    stale = OldRetriever([entry.content for entry in memory.entries.values()])
    memory.insert("Ava lives in Oslo.", category="spatiotemporal_context")
    assert [entry.content for entry in retriever.retrieve("Oslo").entries] == ["Ava lives in Oslo."]
    memory.update(1, content="Ava lives in Quito.")
    assert retriever.retrieve("Oslo").entries == ()
    assert retriever.retrieve("Quito").scores[0] > 0
    assert stale.retrieve("Oslo") == []


def test_each_category_gives_a_few_entries_and_the_core_is_optional() -> None:
    memory = MemorySystem()
    memory.update_core("Ava is the user.")
    for number in range(4):
        memory.insert(f"Ava likes dish {number}.", category="sensory_lifestyle")
    memory.insert("Ava likes the tram.")
    found = TwoLayerRAGRetriever(memory, 2, 2).retrieve("What does Ava like?")
    kinds = [entry.category for entry in found.entries]
    assert kinds.count("sensory_lifestyle") == 2
    assert None in kinds
    assert found.text.startswith("Core: Ava is the user.")
    bare = TwoLayerRAGRetriever(memory, use_core_memory=False).retrieve("Ava")
    assert not bare.core


# Advantages and the loss.


def test_advantages_are_relative_to_the_instance() -> None:  # B3
    easy, hard = [[5.0], [5.2]], [[1.0], [1.2]]
    better = step_advantages(hard, "std")[1]
    assert better is not None
    assert better[0] > 0
    assert step_advantages(easy, "std")[1] == pytest.approx(better)
    assert old_advantages([*hard, *easy])[1][0] < 0


def test_the_old_loss_is_blind_to_the_policy() -> None:  # B1
    gains = [advantage for row in old_advantages([[1.0, 2.0], [0.0, 5.0]]) for advantage in row]
    before = [-1.0, -2.0, -3.0, -4.0]
    assert old_loss(gains, before, [-9.0] * 4) == old_loss(gains, before, before)
    assert old_loss(gains, before, before) == pytest.approx(0.0)


# Training: a small policy that writes calls, some of them right.


KNOBS: dict[str, Any] = {
    "chunks": 1,
    "facts": 1,
    "attributes": 2,
    "people": 3,
    "noise": 0.0,
    "update": 0.0,
    "empty": 0.0,
    "questions": 1,
    "unknown": 0.0,
}
SETTINGS: dict[str, Any] = {
    "model_dtype": "float32",
    "max_new_tokens": 40,
    "rollout": {"user": "solo", "prompt": "compact"},
    "sampling": {"max_context": 512, "dialect": "compact", "slots": 16},
    "logging": {"trackers": [], "save_interval": 1},
    "memory": {"answerer": {"context_tokens": 32}},
}


def told(seed: int, count: int, split: str = "train") -> list[TrainingInstance]:
    knobs = Knobs.model_validate({**Knobs.at(0).model_dump(), **KNOBS})
    made = generate_instances(seed, count, knobs=knobs, split=split)
    return [TrainingInstance.of(instance) for instance in made]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that has seen a few demonstrations: it writes calls, many of them wrong."""
    folder = tmp_path_factory.mktemp("taught")
    config = small_config(folder, folder, memory={"knobs": KNOBS}, learning_rate=4e-3, kl_coef=0.0)
    lesson = examples(Lesson("memory", 0, 16, 0.0, is_compact=True, config=config))
    new_tiny(lesson, folder, seed=0, size=Size(width=64, layers=1))
    model = PolicyModel.load(config, device=torch.device("cpu"))
    traces = [trace(model.chat, each, context=512) for each in lesson]  # type: ignore[arg-type]
    learner = Learner(model, config, Ranks(device=model.device))
    known = [each for each in traces if each is not None]
    for batch in islice(batches(known, size=8, seed=0), 40):
        supervised_update(learner, batch)
    model.save(folder)
    return folder


def trainer(policy: Path, log_dir: Path, **changes: Any) -> GRPOTrainer:
    config = {
        "model_name_or_path": str(policy),
        "learning_rate": 1e-3,
        "batch_size": 2,
        "grpo_rollout_n": 4,
        "clip_epsilon": 0.3,
        "max_steps": 3,
        "beta": 0.05,
        "gamma": 0.1,
        "settings": SETTINGS,
        **changes,
    }
    return GRPOTrainer(config, log_dir=log_dir)


def weights(one: GRPOTrainer, folder: Path) -> dict[str, torch.Tensor]:
    one.save_checkpoint(folder)
    return load_file(folder / WEIGHTS)


def episodes(log_dir: Path) -> list[dict[str, Any]]:
    lines = RunDir(log_dir / "part_0" / "run").trajectories_journal.read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[GRPOTrainer, Path]:
    folder = tmp_path_factory.mktemp("trained")
    one = trainer(taught, folder / "log")
    before = one.evaluate(told(9, 2, "test"))
    (folder / "log" / "part_0").rename(folder / "before")
    assert set(before) == {"r1", "r2", "r3", "r4"}
    one.train(told(0, 4), told(1, 2, "test"), num_epochs=5)
    return one, folder


def test_training_moves_weights_and_ends_at_the_most_steps(
    trained: tuple[GRPOTrainer, Path], taught: Path
) -> None:  # B1, B4, B11
    one, folder = trained
    assert one.step == len(one.history) == 3
    moved = weights(one, folder / "after")
    start = weights(trainer(taught, folder / "none"), folder / "start")
    assert any(not torch.equal(moved[name], start[name]) for name in moved)
    assert any(line["grad_norm"] > 0 for line in one.history)
    assert old_training(epochs=5, batches=2, max_steps=3) > 3
    old = OldPolicy()
    old.update(-0.7)
    assert old.weights == OldPolicy().weights
    with pytest.raises(ConfigError, match="max_steps"):
        one.train(told(0, 4), told(1, 2, "test"))


def test_log_probs_are_those_of_the_policy_that_wrote(
    trained: tuple[GRPOTrainer, Path], taught: Path
) -> None:  # B2, B8
    first = episodes(trained[1] / "log")[0]["tokens"]
    runtime = PolicyRuntime(small_config(taught, Path("none"), kl_coef=0.0))
    ids_BT = torch.tensor([first["ids"]])
    mask_BT = torch.tensor([first["mask"]])
    with torch.no_grad():
        found = runtime.model.logprobs(ids_BT, torch.ones_like(ids_BT), mask_BT=mask_BT)
    again = found.logprobs_BT[mask_BT].tolist()
    assert first["logprobs"] == pytest.approx(again, abs=1e-4)
    assert any(first["logprobs"])
    assert old_log_probs(len(again)) != pytest.approx(again, abs=1e-4)


def test_the_episodes_of_a_group_differ(trained: tuple[GRPOTrainer, Path]) -> None:  # B12
    groups: dict[str, set[str]] = {}
    for line in episodes(trained[1] / "log"):
        groups.setdefault(line["task_id"], set()).add(str(line["tokens"]["ids"]))
    assert max(map(len, groups.values())) > 1
    assert len({OldPolicy().generate("?") for _ in range(8)}) == 1


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(taught: Path, tmp_path: Path) -> None:
    # B10
    def rounds(one: GRPOTrainer, seeds: Sequence[int]) -> None:
        for seed in seeds:
            one.train(told(seed, 2), told(5, 1, "test"))

    whole = trainer(taught, tmp_path / "whole", beta=0.2)
    rounds(whole, [0])
    whole.save_checkpoint(tmp_path / "half")
    rounds(whole, [1])
    resumed = trainer(taught, tmp_path / "resumed", clip_epsilon=0.1, learning_rate=1.0)
    resumed.load_checkpoint(tmp_path / "half")
    assert resumed.settings == whole.settings
    assert resumed.step == 1
    rounds(resumed, [1])
    one, other = weights(whole, tmp_path / "one"), weights(resumed, tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert resumed.history[-1] == whole.history[-1]
    assert "weights" not in old_checkpoint(1, {"beta": 0.2})


def test_an_evaluation_of_nothing_is_refused(taught: Path, tmp_path: Path) -> None:  # B11
    with pytest.raises(ConfigError, match="at least one"):
        trainer(taught, tmp_path).evaluate([])
    with pytest.raises(ZeroDivisionError):
        old_evaluation([])


def test_the_same_seed_makes_the_same_run(
    trained: tuple[GRPOTrainer, Path], taught: Path, tmp_path: Path
) -> None:  # B11: the old order of instances was nobody's seed
    again = trainer(taught, tmp_path)
    again.train(told(0, 4), told(1, 2, "test"), num_epochs=5)
    assert again.history == trained[0].history


def test_questions_of_users_need_a_frozen_model(taught: Path, tmp_path: Path) -> None:  # B7
    with pytest.raises(ConfigError, match=r"memory\.answerer\.model"):
        trainer(taught, tmp_path).train([INSTANCE], told(1, 1, "test"))


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="learning_rat"):
        GRPOTrainer({"learning_rat": 1e-6})
    with pytest.raises(ConfigError, match="describe no run"):
        GRPOTrainer({"settings": {"max_grad_norm": -1}}).settings.run({}, {})
    known = {"kl_coef": 0.001, "core_max_tokens": 512, "max_chunk_tokens": 2000}
    run = GRPOTrainer(known).settings.run({}, {})
    assert (run.kl_coef, run.num_samples_per_prompt, run.loss.epsilon_high) == (0.001, 8, 0.2)
    assert (run.memory.beta, run.memory.gamma, run.learning_rate) == (0.05, 0.1, 1e-6)
    with pytest.raises(ConfigError, match="max_chunk_tokens"):
        GRPOTrainer({"max_chunk_tokens": 3}).evaluate([INSTANCE])


def test_an_instance_keeps_everything_under_either_name() -> None:
    instance = generate_instances(0, 1, difficulty=0.5)[0]
    assert TrainingInstance.of(instance).record() == instance
