"""Mem-α's interface, compared with the defects B1 to B12 and S1 to S6 of old formulas."""

import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from grpo_cl.envs.memory.generator import GeneratorParams, generate_instances
from grpo_cl.envs.memory.store.taxonomy import default_taxonomy
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha import (
    ConversationChunk,
    GRPOBatch,
    GRPOTrainer,
    HuggingFacePolicy,
    HybridRetriever,
    MemoryCategory,
    MemoryConstructionAgent,
    MemoryManager,
    MemorySystem,
    QAEvaluator,
    Question,
    RewardCalculator,
    Rewards,
    TrainingInstance,
    TwoLayerRAGRetriever,
)
from grpo_cl.integrations.mem_alpha import PolicyModel as PolicyProtocol
from grpo_cl.integrations.mem_alpha.settings import MemorySettings
from grpo_cl.mem_alpha import main as mem_alpha_command
from grpo_cl.policy.learner.learner import WEIGHTS_FILE, Learner, supervised_update
from grpo_cl.policy.learner.sft_data import (
    DemonstrationSpec,
    generate_examples,
    shuffled_batches,
    tokenize_example,
)
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tiny_model import Size, create_tiny_model
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rewards.advantages import step_advantages
from grpo_cl.runs.layout import RunDir
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

Completion = Callable[[str], str]


def scripted_llm(*replies: str) -> Completion:
    remaining = iter(replies)
    return lambda prompt: next(remaining)


def processed(*replies: str, instance: TrainingInstance = INSTANCE) -> MemoryConstructionAgent:
    agent = MemoryConstructionAgent(scripted_llm(*replies))
    agent.process_conversation(instance.chunks)
    return agent


def rewards(agent: MemoryConstructionAgent, judge: Completion | None = None) -> Rewards:
    results = QAEvaluator(agent.memory).evaluate_questions(INSTANCE.questions)
    calculator = RewardCalculator(beta=0.05, gamma=0.1, llm_judge=judge)
    return calculator.calculate(INSTANCE, agent.actions, agent.memory, results)


# The agent.


def test_action_has_the_exact_prompt_and_response() -> None:
    reply = json.dumps(INSERT)
    action = processed(reply, SKIP).actions[0]
    assert AVA.content in action.prompt
    assert "memory_insert" in action.prompt
    assert action.response == reply
    assert action.calls[0].arguments == INSERT["arguments"]
    assert action.results == ("memory 1 inserted",)
    # B8: the old action has no place for a prompt or a response.
    assert set(old_actions(0, reply)[0]._fields).isdisjoint({"prompt", "response"})


def test_next_prompt_shows_the_memory() -> None:
    agent = processed(json.dumps(INSERT), SKIP)
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
def test_calls_are_parsed_in_every_supported_format(reply: str, contents: list[str]) -> None:
    agent = processed(reply, SKIP)
    found = [entry.content.partition(" lives")[0] for entry in agent.memory.entries.values()]
    assert found == contents
    assert agent.get_action_summary()["malformed"] == 0


def test_brace_inside_content_does_not_end_a_call() -> None:  # S4
    reply = json.dumps(INSERT).replace("Oslo", "Oslo }")
    assert processed(reply, SKIP).get_action_summary()["succeeded"] == 1
    assert old_actions(0, reply) == []


def test_failed_and_malformed_calls_are_counted() -> None:  # S4
    unknown = '{"name": "memory_delete", "arguments": {"memory_id": 9}}'
    broken = '{"name": "memory_insert", "arguments": {"content": "Ava'
    agent = processed(f"{json.dumps(INSERT)}\n{unknown}\n{broken}", SKIP)
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


def test_action_has_the_result_of_its_calls() -> None:
    unknown = '{"name": "memory_delete", "arguments": {"memory_id": 9}}'
    agent = processed(f"{json.dumps(INSERT)}\n{unknown}", json.dumps(INSERT).replace("Ava", "Mia"))
    failed, done = agent.actions
    assert (failed.tool_name, failed.arguments) == ("memory_insert", INSERT["arguments"])
    assert not failed.result.success
    assert [result.success for result in failed.tool_results] == [True, False]
    assert "9" in failed.tool_results[1].message
    assert done.result.success
    assert done.result.message == "memory 2 inserted"
    found = rewards(agent)
    assert (found.successful_actions, found.total_actions) == (2, 3)


def test_manager_executes_tools_and_a_failed_call_changes_nothing() -> None:
    manager = MemoryManager()
    inserted = manager.execute_tool(
        "memory_insert",
        {"content": "Ava lives in Oslo.", "category": MemoryCategory.SPATIOTEMPORAL_CONTEXT},
        timestamp="2024-05-01",
    )
    assert (inserted.success, inserted.entry_id) == (True, 1)
    assert manager.memory.entries[1].timestamp == "2024-05-01"
    before = manager.memory.hash()
    refused = manager.execute_tool("memory_delete", {"memory_id": 7})
    assert not refused.success
    assert "7" in refused.message
    assert manager.memory.hash() == before


def test_memory_is_saved_and_loaded_by_a_path_as_text(tmp_path: Path) -> None:
    memory = MemorySystem()
    memory.insert("Ava lives in Oslo.", category=MemoryCategory.SPATIOTEMPORAL_CONTEXT)
    memory.save(f"{tmp_path}/memory.json")
    assert MemorySystem.load(f"{tmp_path}/memory.json").hash() == memory.hash()


def test_categories_are_those_of_the_taxonomy() -> None:
    categories = default_taxonomy().categories
    assert [category.value for category in MemoryCategory] == [c.name for c in categories]
    assert [category.description for category in MemoryCategory] == [
        c.description for c in categories
    ]


def test_skipped_chunk_is_a_training_sample() -> None:  # B6
    assert [action.chunk_id for action in processed(SKIP, "Nothing new.").actions] == [0, 1]
    assert len(rewards(processed(SKIP, "Nothing new.")).steps) == 2
    assert old_actions(0, SKIP) == []


# Questions.


def test_answerer_sees_the_retrieved_context_only() -> None:
    memory = processed(json.dumps(INSERT), SKIP).memory
    prompts: list[str] = []

    def answerer(prompt: str) -> str:
        prompts.append(prompt)
        return '{"answer": "Oslo", "used": [1]}'

    result = QAEvaluator(memory, answerer).evaluate_questions([WHERE])[0]
    assert (result.predicted_answer, result.is_correct, result.score) == ("Oslo", True, 1.0)
    assert result.retrieved_context == "[1] (semantic) Ava lives in Oslo."
    assert result.retrieved_context in prompts[0]
    assert AVA.content not in prompts[0]


@pytest.mark.parametrize("said", ["", " ", ".", "O", "slo", "Osloer", '{"answer": ""}'])
def test_empty_and_partial_answers_are_wrong(said: str) -> None:  # S1
    result = QAEvaluator(MemorySystem(), lambda prompt: said).evaluate_questions([WHERE])[0]
    assert (result.is_correct, result.score) == (False, 0.0)
    assert old_is_correct("", "Oslo")
    assert old_is_correct("slo", "Oslo")


def test_abstention_is_correct_for_unanswerable_questions() -> None:
    never = Question(2, "What is Ava's job?", None)
    results = QAEvaluator(MemorySystem()).evaluate_questions([never, WHERE])
    assert [result.is_correct for result in results] == [True, False]


def test_answers_depend_on_the_memory_not_on_the_policy() -> None:  # B7
    memory = processed(json.dumps(INSERT), SKIP).memory
    scores = [QAEvaluator(memory).evaluate_questions([WHERE])[0].score for _ in range(2)]
    assert scores == [1.0, 1.0]
    # In the old code the policy answers, and needs no memory for it.
    untrained = old_answer(scripted_llm("unknown"), "?")
    trained_answer = old_answer(scripted_llm("Oslo"), "?")
    assert not old_is_correct(untrained, "Oslo")
    assert old_is_correct(trained_answer, "Oslo")


# Rewards.


def test_reward_of_a_completion_equals_the_formula() -> None:
    agent = processed(json.dumps(INSERT), SKIP)
    found = rewards(agent)
    assert (found.r1, found.r2, found.r4) == (1.0, 1.0, 1.0)
    assert found.steps == pytest.approx([1 + 1 + 0.05 * found.r3 + 0.1] * 2, abs=1e-12)
    assert found.total == pytest.approx(sum(found.steps) / 2)


def test_content_reward_differs_from_call_success() -> None:  # B5
    invented = json.dumps(INSERT).replace("Ava lives in Oslo.", "Zanzibar turnip ledger")
    found = rewards(processed(invented, SKIP))
    assert found.r2 == 1.0
    assert found.r4 == 0.5  # the second chunk has no facts and was skipped
    gain = [
        old_action_reward(ok=True, accuracy=0, compressed=0, gamma=gamma)
        - old_action_reward(ok=False, accuracy=0, compressed=0, gamma=gamma)
        for gamma in (0.0, 0.1)
    ]
    assert gain == pytest.approx([1.0, 1.1])  # gamma only rescales the success reward


@pytest.mark.parametrize(
    ("verdict", "worth"),
    [("VALID", 1.0), ("INVALID", 0.5), ("It is invalid, not valid.", 0.5), ("Hm.", 0.5)],
)
def test_invalid_verdict_is_not_read_as_valid(verdict: str, worth: float) -> None:  # S2
    assert rewards(processed(json.dumps(INSERT), SKIP), judge=lambda prompt: verdict).r4 == worth
    assert old_is_valid("INVALID")


def test_idle_agent_earns_less_than_a_working_one() -> None:  # S3
    idle = rewards(processed("", "")).total
    assert idle < 0.8 < rewards(processed(json.dumps(INSERT), SKIP)).total
    assert rewards(processed("", "")).steps[0] == pytest.approx(0.05)
    assert old_total(0.0, 0, 0, memory=0, read=1000) == pytest.approx(1.15)


def test_memory_longer_than_its_input_has_negative_compression() -> None:  # S6
    swollen = " ".join(
        json.dumps(INSERT).replace("Oslo.", f"Oslo, Oslo, Oslo, Oslo, and Oslo, said {n}.")
        for n in range(6)
    )
    assert rewards(processed(swollen, SKIP)).r3 < 0
    longer = old_total(0, 1, 1, memory=3000, read=1000)
    assert longer == old_total(0, 1, 1, memory=1000, read=1000)


def test_reported_reward_is_the_training_reward() -> None:  # B9
    for replies in ((json.dumps(INSERT), SKIP), ("", ""), ("{", json.dumps(INSERT))):
        found = rewards(processed(*replies))
        assert found.total == pytest.approx(
            found.r1 + found.r2 + 0.05 * found.r3 + 0.1 * found.r4, abs=1e-12
        )
    reported, training_reward = old_metric_and_learned([True, False], 0.5)
    assert reported != pytest.approx(training_reward)


def test_actions_of_other_chunks_are_refused() -> None:  # B11
    agent = processed(json.dumps(INSERT), SKIP)
    with pytest.raises(ConfigError, match="one action for each"):
        RewardCalculator().calculate(INSTANCE, agent.actions[:1], agent.memory, [])


# Retrieval.


def test_retriever_sees_edits_at_once() -> None:  # S5
    memory = MemorySystem()
    retriever = TwoLayerRAGRetriever(memory)
    stale = OldRetriever([entry.content for entry in memory.entries.values()])
    memory.insert("Ava lives in Oslo.", category="spatiotemporal_context")
    assert [entry.content for entry in retriever.retrieve("Oslo").entries] == ["Ava lives in Oslo."]
    memory.update(1, content="Ava lives in Quito.")
    assert retriever.retrieve("Oslo").entries == ()
    assert retriever.retrieve("Quito").scores[0] > 0
    assert stale.retrieve("Oslo") == []


def test_retriever_limits_entries_per_category_and_core_is_optional() -> None:
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


class WordCounts:
    """An embedder: normalized counts of a few words, with a synonym."""

    width = 3

    def embed(self, text: str) -> NDArray[np.float32]:
        words = text.lower().replace("dwells", "lives").split()
        counts = np.array([words.count(w) for w in ("lives", "likes", "ava")], np.float32) + 0.01
        return (counts / np.linalg.norm(counts)).astype(np.float32)


def test_hybrid_retriever_finds_what_shares_no_word_with_the_query() -> None:
    memory = MemorySystem()
    memory.insert("Mia lives here", category=MemoryCategory.SPATIOTEMPORAL_CONTEXT)
    memory.insert("Bob likes tea", category=MemoryCategory.SENSORY_LIFESTYLE)
    assert TwoLayerRAGRetriever(memory_system=memory).retrieve("dwells").total_retrieved == 0
    found = HybridRetriever(memory_system=memory, embedder=WordCounts()).retrieve("dwells")
    entry, score = found.retrieved_entries[0]
    assert entry.content == "Mia lives here"
    assert score > found.scores[1]
    with pytest.raises(ConfigError, match="embedding_weight=2"):
        HybridRetriever(memory, embedding_weight=2, embedder=WordCounts())


def test_question_keeps_the_chunk_after_which_it_is_asked() -> None:
    asked = Question("q1", "Where?", "Oslo", ask_after=1)
    assert Question.of(asked.record()).ask_after == 1
    result = QAEvaluator(memory_system=MemorySystem()).evaluate_questions([asked])[0]
    assert result.question is asked


# Advantages and the loss.


def test_advantages_are_relative_to_the_instance() -> None:  # B3
    easy, hard = [[5.0], [5.2]], [[1.0], [1.2]]
    better = step_advantages(hard, "std")[1]
    assert better is not None
    assert better[0] > 0
    assert step_advantages(easy, "std")[1] == pytest.approx(better)
    assert old_advantages([*hard, *easy])[1][0] < 0


def test_old_loss_does_not_depend_on_the_policy() -> None:  # B1
    gains = [advantage for row in old_advantages([[1.0, 2.0], [0.0, 5.0]]) for advantage in row]
    before = [-1.0, -2.0, -3.0, -4.0]
    assert old_loss(gains, before, [-9.0] * 4) == old_loss(gains, before, before)
    assert old_loss(gains, before, before) == pytest.approx(0.0)


# Training of a small policy.


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


def training_instances(seed: int, count: int, split: str = "train") -> list[TrainingInstance]:
    params = GeneratorParams.model_validate({**GeneratorParams.at(0).model_dump(), **KNOBS})
    instances = generate_instances(seed, count, params=params, split=split)
    return [TrainingInstance.of(instance) for instance in instances]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy after a few SFT steps: it writes calls, many of them wrong."""
    folder = tmp_path_factory.mktemp("pretrained")
    config = small_config(folder, folder, memory={"knobs": KNOBS}, learning_rate=4e-3, kl_coef=0.0)
    examples = generate_examples(
        DemonstrationSpec("memory", 0, 16, 0.0, is_compact=True, config=config)
    )
    create_tiny_model(examples, folder, seed=0, size=Size(width=64, layers=1))
    model = PolicyModel.load(config, device=torch.device("cpu"))
    traces = [tokenize_example(model.chat, example, context=512) for example in examples]  # type: ignore[arg-type]
    learner = Learner(model, config, DistributedContext(device=model.device))
    complete = [trace for trace in traces if trace is not None]
    for batch in islice(shuffled_batches(complete, size=8, seed=0), 40):
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
    return GRPOTrainer(config=config, log_dir=log_dir)


def weights(memory_trainer: GRPOTrainer, folder: Path) -> dict[str, torch.Tensor]:
    memory_trainer.save_checkpoint(folder)
    return load_file(folder / WEIGHTS_FILE)


def episodes(log_dir: Path) -> list[dict[str, Any]]:
    lines = RunDir(log_dir / "part_0" / "run").trajectories_journal.read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[GRPOTrainer, Path]:
    folder = tmp_path_factory.mktemp("trained")
    memory_trainer = trainer(pretrained, folder / "log")
    before = memory_trainer.evaluate(training_instances(9, 2, "test"))
    assert set(before) == {"r1", "r2", "r3", "r4", "total_reward"}
    memory_trainer.train(training_instances(0, 4), training_instances(1, 2, "test"), num_epochs=5)
    return memory_trainer, folder


@pytest.mark.slow
def test_training_changes_weights_and_stops_at_max_steps(
    trained: tuple[GRPOTrainer, Path], pretrained: Path
) -> None:  # B1, B4, B11
    memory_trainer, folder = trained
    assert memory_trainer.step == len(memory_trainer.history) == 3
    moved = weights(memory_trainer, folder / "after")
    start = weights(trainer(pretrained, folder / "none"), folder / "start")
    assert any(not torch.equal(moved[name], start[name]) for name in moved)
    assert any(line["grad_norm"] > 0 for line in memory_trainer.history)
    assert old_training(epochs=5, batches=2, max_steps=3) > 3
    old = OldPolicy()
    old.update(-0.7)
    assert old.weights == OldPolicy().weights
    with pytest.raises(ConfigError, match="max_steps"):
        memory_trainer.train(training_instances(0, 4), training_instances(1, 2, "test"))


def test_recorded_logprobs_equal_recomputed_ones(
    trained: tuple[GRPOTrainer, Path], pretrained: Path
) -> None:  # B2, B8
    first = episodes(trained[1] / "log")[0]["tokens"]
    runtime = PolicyRuntime(small_config(pretrained, Path("none"), kl_coef=0.0))
    ids_BT = torch.tensor([first["ids"]])
    mask_BT = torch.tensor([first["mask"]])
    with torch.no_grad():
        found = runtime.model.logprobs(ids_BT, torch.ones_like(ids_BT), mask_BT=mask_BT)
    again = found.logprobs_BT[mask_BT].tolist()
    assert first["logprobs"] == pytest.approx(again, abs=1e-4)
    assert any(first["logprobs"])
    assert old_log_probs(len(again)) != pytest.approx(again, abs=1e-4)


@pytest.mark.slow
def test_language_model_has_rollouts_advantages_and_a_loss(
    pretrained: Path, tmp_path: Path
) -> None:  # B1, B2, B3, B8
    config = {"batch_size": 2, "grpo_rollout_n": 4, "learning_rate": 1e-3, "settings": SETTINGS}
    calculator = RewardCalculator(beta=0.05, gamma=0.1)
    memory_trainer = GRPOTrainer(str(pretrained), calculator, config, log_dir=tmp_path)
    data = training_instances(0, 2)
    rollouts = [memory_trainer.collect_rollouts(instance) for instance in data]
    batch = GRPOBatch(data, rollouts, [memory_trainer.compute_advantages(g) for g in rollouts])
    loss = memory_trainer.compute_policy_loss(batch)
    before = loss.item()
    loss.backward()
    parameters = list(memory_trainer.policy.model.module.parameters())
    assert any(weight.grad is not None and weight.grad.abs().max() > 0 for weight in parameters)
    action = rollouts[0][0].actions[0]
    assert "Chunk 1 of 1" in action.prompt
    assert action.response
    memory_trainer.train_step(data)
    assert memory_trainer.compute_policy_loss(batch).item() != pytest.approx(before, abs=1e-4)
    memory_trainer.save_checkpoint(tmp_path / "step_1.pt")
    restored = GRPOTrainer(str(pretrained), log_dir=tmp_path)
    restored.load_checkpoint(tmp_path / "step_1.pt")
    assert restored.settings == memory_trainer.settings
    assert restored.settings.model_name_or_path == str(pretrained)
    pairs = zip(parameters, restored.policy.model.module.parameters(), strict=True)
    assert all(torch.equal(own, other) for own, other in pairs)


@pytest.mark.slow
def test_hugging_face_policy_implements_the_protocol(pretrained: Path, tmp_path: Path) -> None:
    config = {"learning_rate": 1e-2, "settings": SETTINGS}
    policy: PolicyProtocol = HuggingFacePolicy(str(pretrained), config)
    completion = policy.generate("User: Ava lives in Oslo.", temperature=1.0, seed=1)
    log_probs = policy.get_log_prob("User: Ava lives in Oslo.", completion)
    assert log_probs.tolist() == pytest.approx(completion.log_probs, abs=1e-4)
    assert completion == policy.generate("User: Ava lives in Oslo.", temperature=1.0, seed=1)
    assert policy.update(-log_probs.sum(), learning_rate=1e-2)["grad_norm"] > 0
    again = policy.get_log_prob("User: Ava lives in Oslo.", completion)
    assert again.sum() > log_probs.sum() + 0.1
    with pytest.raises(ConfigError, match=r"learning_rate=0\.5"):
        policy.update(again.sum(), learning_rate=0.5)
    with pytest.raises(ConfigError, match="loaded with other settings"):
        GRPOTrainer(policy, config={"learning_rate": 1.0}, log_dir=tmp_path)


def test_episodes_of_a_group_differ(trained: tuple[GRPOTrainer, Path]) -> None:  # B12
    groups: dict[str, set[str]] = {}
    for line in episodes(trained[1] / "log"):
        groups.setdefault(line["task_id"], set()).add(str(line["tokens"]["ids"]))
    assert max(map(len, groups.values())) > 1
    assert len({OldPolicy().generate("?") for _ in range(8)}) == 1


@pytest.mark.slow
def test_training_resumes_exactly_from_a_checkpoint(pretrained: Path, tmp_path: Path) -> None:
    # B10
    def rounds(memory_trainer: GRPOTrainer, seeds: Sequence[int]) -> None:
        for seed in seeds:
            memory_trainer.train(training_instances(seed, 2), training_instances(5, 1, "test"))

    whole = trainer(pretrained, tmp_path / "whole", beta=0.2)
    rounds(whole, [0])
    whole.save_checkpoint(tmp_path / "half")
    rounds(whole, [1])
    resumed = trainer(pretrained, tmp_path / "resumed", clip_epsilon=0.1, learning_rate=1.0)
    resumed.load_checkpoint(tmp_path / "half")
    assert resumed.settings == whole.settings
    assert resumed.step == 1
    rounds(resumed, [1])
    expected, restored = weights(whole, tmp_path / "one"), weights(resumed, tmp_path / "other")
    assert all(torch.equal(expected[name], restored[name]) for name in expected)
    assert resumed.history[-1] == whole.history[-1]
    assert "weights" not in old_checkpoint(1, {"beta": 0.2})


def test_evaluation_of_no_instances_is_refused(pretrained: Path, tmp_path: Path) -> None:  # B11
    with pytest.raises(ConfigError, match="at least one"):
        trainer(pretrained, tmp_path).evaluate([])
    with pytest.raises(ZeroDivisionError):
        old_evaluation([])


@pytest.mark.slow
def test_same_seed_gives_the_same_run(
    trained: tuple[GRPOTrainer, Path], pretrained: Path, tmp_path: Path
) -> None:  # B11: the old order of instances had no seed
    again = trainer(pretrained, tmp_path)
    again.train(training_instances(0, 4), training_instances(1, 2, "test"), num_epochs=5)
    assert again.history == trained[0].history


@pytest.mark.slow
def test_questions_that_were_not_generated_need_a_frozen_answerer(
    pretrained: Path, tmp_path: Path
) -> None:  # B7
    with pytest.raises(ConfigError, match=r"memory\.answerer\.model"):
        trainer(pretrained, tmp_path).train([INSTANCE], training_instances(1, 1, "test"))


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="learning_rat"):
        GRPOTrainer(config={"learning_rat": 1e-6})
    with pytest.raises(ConfigError, match="no valid run config"):
        GRPOTrainer(config={"settings": {"max_grad_norm": -1}}).settings.run({}, {})
    known = {"kl_coef": 0.001, "core_max_tokens": 512, "max_chunk_tokens": 2000}
    run = GRPOTrainer(config=known).settings.run({}, {})
    assert (run.kl_coef, run.num_samples_per_prompt, run.loss.epsilon_high) == (0.001, 8, 0.2)
    assert (run.memory.beta, run.memory.gamma, run.learning_rate) == (0.05, 0.1, 1e-6)
    with pytest.raises(ConfigError, match="max_chunk_tokens"):
        GRPOTrainer(config={"max_chunk_tokens": 3}).evaluate([INSTANCE])


def test_the_embedded_policy_is_trained_on_the_given_instances_not_on_generated_ones() -> None:
    config = MemorySettings.read({"model_name_or_path": "tiny"}).run({}, {})
    assert config.tasks.own
    assert (config.tasks.generated, config.evaluation.generated) == (0, 0)


def test_training_instance_round_trips() -> None:
    instance = generate_instances(0, 1, difficulty=0.5)[0]
    assert TrainingInstance.of(instance).record() == instance


def test_modes_of_the_command_line_are_the_commands_of_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = MemorySystem()
    memory.insert("Ava lives in Oslo.")
    memory.save(tmp_path / "memory.json")
    arguments = [str(tmp_path / "memory.json"), "Where does Ava live?"]
    assert mem_alpha_command(["--mode", "retrieve", *arguments]) == 0
    assert mem_alpha_command([*arguments, "--mode=retrieve"]) == 0
    assert capsys.readouterr().out.count("Ava lives in Oslo.") == 2
    assert mem_alpha_command(["--mode", "unknown"]) == 2
    assert "unknown command 'unknown'" in capsys.readouterr().err
