"""Mem-α's trainer over an own PyTorch policy: ``mem_alpha.LineSelector`` of ``examples``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typing_extensions import override

import mem_alpha
from grpo_cl.envs.memory.generator import generate_instances
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.integrations.mem_alpha import (
    AgentAction,
    Completion,
    ConversationChunk,
    EvaluationResult,
    GRPOBatch,
    GRPOTrainer,
    MemorySystem,
    PolicyModel,
    QAResult,
    Question,
    RewardCalculator,
    RolloutResult,
    TrainingInstance,
)
from grpo_cl.policy.learner.optimizer import TENSORS_FILE
from grpo_cl.policy.learner.torch_policy import WEIGHTS
from grpo_cl.runs.layout import RunDir
from mem_alpha import LineSelector
from old_memory_formulas import OldPolicy, old_advantages, old_loss


def instances(seed: int, count: int, split: str = "train") -> list[TrainingInstance]:
    found = generate_instances(seed, count, difficulty=0, split=split)
    return [TrainingInstance.of(instance) for instance in found]


def trainer(
    log_dir: Path,
    *,
    policy: PolicyModel | None = None,
    calculator: RewardCalculator | None = None,
    **changes: Any,
) -> GRPOTrainer:
    config = {
        "learning_rate": 0.1,
        "batch_size": 2,
        "grpo_rollout_n": 4,
        "max_steps": 50,
        **changes,
    }
    return GRPOTrainer(policy or LineSelector(), calculator, config, log_dir=log_dir)


def selector_with_bias(skip: float, store: float) -> LineSelector:
    policy = LineSelector()
    state = {**policy.module.state_dict(), "bias": torch.tensor([skip, store])}
    policy.module.load_state_dict(state)
    return policy


def batch_of(own: GRPOTrainer, data: Sequence[TrainingInstance]) -> GRPOBatch:
    rollouts = [own.collect_rollouts(instance) for instance in data]
    return GRPOBatch(data, rollouts, [own.compute_advantages(group) for group in rollouts])


def weight_of(own: GRPOTrainer) -> torch.Tensor:
    assert isinstance(own.policy_model, LineSelector)
    weight = own.policy_model.module.weight
    assert isinstance(weight, torch.Tensor)
    return weight


# Rollouts.


def test_rollout_has_one_action_per_chunk_with_exact_tokens_and_log_probs(tmp_path: Path) -> None:
    own = trainer(tmp_path)  # B2, B6, B8
    (instance,) = instances(0, 1)
    rollouts = own.collect_rollouts(instance)
    assert len(rollouts) == 4
    for rollout in rollouts:
        assert [a.chunk_id for a in rollout.actions] == [c.chunk_id for c in instance.chunks]
        for action, recorded in zip(rollout.actions, rollout.log_probs, strict=True):
            assert len(mem_alpha.lines_of(action.prompt)) == len(recorded)
            assert all(value < 0 for value in recorded)
        assert rollout.trajectory.tokens is not None
        assert len(rollout.trajectory.tokens.ids) == sum(map(len, rollout.log_probs))
        # A line that was said before is not stored again, and its call fails.
        repeated = [a for a in rollout.actions if "already says this" in a.result.message]
        assert [a for a in rollout.actions if not a.result.success] == repeated
        assert (rollout.successful_actions == rollout.total_actions) == (not repeated)
        assert len(rollout.memory.entries) == rollout.successful_actions


def test_recorded_log_probs_are_those_of_the_sampling_policy(tmp_path: Path) -> None:  # B2
    own = trainer(tmp_path)
    own.train_step(instances(0, 2))  # a policy that is not uniform
    rollout = own.collect_rollouts(instances(3, 1)[0])[0]
    trace = rollout.trajectory.tokens
    assert trace is not None
    assert isinstance(own.policy_model, LineSelector)
    for action, (start, end), recorded in zip(
        rollout.actions, trace.turns, rollout.log_probs, strict=True
    ):
        completion = Completion(action.response, trace.ids[start:end], recorded)
        again = own.policy_model.get_log_prob(action.prompt, completion)
        assert recorded == pytest.approx(again.tolist(), abs=1e-6)
        assert len(set(recorded)) > 1 or len(recorded) == 1


def test_skipping_policy_still_has_samples(tmp_path: Path) -> None:  # B6
    skipping = selector_with_bias(30.0, -30.0)
    rollout = trainer(tmp_path, policy=skipping).collect_rollouts(instances(0, 1)[0])[0]
    assert rollout.total_actions == 0
    assert len(rollout.rewards) == len(rollout.actions) == 3
    assert [action.tool_name for action in rollout.actions] == ["skip"] * 3


# Advantages and loss.


def test_advantages_are_relative_to_the_instance_and_the_chunk(tmp_path: Path) -> None:  # B3
    own = trainer(tmp_path)
    first, second = (own.collect_rollouts(instance) for instance in instances(0, 2))
    together = own.compute_advantages([*first, *second])
    assert together == [*own.compute_advantages(first), *own.compute_advantages(second)]
    by_chunk = zip(
        *(values for values in together[:4] if isinstance(values, Sequence)), strict=True
    )
    assert [sum(column) for column in by_chunk] == pytest.approx([0.0] * 3, abs=1e-6)
    pooled = old_advantages([rollout.rewards for rollout in (*first, *second)])
    assert pooled[0] != pytest.approx(together[0])


def test_loss_is_a_function_of_the_weights_with_the_right_gradient(tmp_path: Path) -> None:
    own = trainer(tmp_path)  # B1, B4
    batch = batch_of(own, instances(0, 2))
    weight = weight_of(own)
    loss = own.compute_policy_loss(batch)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert gradient.abs().max() > 1e-4
    row, column = divmod(int(gradient.abs().argmax()), gradient.shape[1])
    moved: list[float] = []
    for change in (1e-2, -2e-2):
        with torch.no_grad():
            weight[row, column] += change
        moved.append(own.compute_policy_loss(batch).item())
    slope = (moved[0] - moved[1]) / 2e-2
    assert slope == pytest.approx(gradient[row, column].item(), rel=0.02)
    gains = [1.0, -1.0]
    assert old_loss(gains, [-1.0, -2.0], [-9.0, -9.0]) == old_loss(gains, [-1.0, -2.0], [0.0, 0.0])


def test_update_raises_the_probability_of_better_completions(tmp_path: Path) -> None:  # B1
    own = trainer(tmp_path)
    batch = batch_of(own, instances(0, 2))
    before = own.compute_policy_loss(batch).item()
    own.policy_model.update(own.compute_policy_loss(batch), learning_rate=0.05)
    assert own.compute_policy_loss(batch).item() < before - 0.01


def test_learning_rate_of_the_config_is_used(tmp_path: Path) -> None:  # B4
    steps: list[float] = []
    for rate in (0.01, 0.1):
        own = trainer(tmp_path, learning_rate=rate)
        own.train_step(instances(0, 2))
        steps.append(weight_of(own).abs().max().item())
    assert steps == pytest.approx([0.01, 0.1], rel=1e-2)  # the first step of Adam


def test_deterministic_policy_makes_no_update(tmp_path: Path) -> None:  # B12
    sure = selector_with_bias(-30.0, 30.0)
    own = trainer(tmp_path, policy=sure)
    metrics = own.train_step(instances(0, 2))
    assert metrics["zero_variance_groups"] == metrics["groups"] == 2
    assert metrics["grad_norm"] == 0
    assert not weight_of(own).any()
    assert len({OldPolicy().generate("?") for _ in range(8)}) == 1


# Training.


def test_reported_reward_is_the_mean_training_reward(tmp_path: Path) -> None:  # B9
    own, again = trainer(tmp_path), trainer(tmp_path)
    data = instances(0, 2)
    rollouts = [rollout for instance in data for rollout in own.collect_rollouts(instance)]
    metrics = again.train_step(data)
    assert len({rollout.total_reward for rollout in rollouts}) > 1
    for rollout in rollouts:
        found = rollout.evaluation
        total = found.r1 + found.r2 + 0.05 * found.r3 + 0.1 * found.r4
        assert rollout.total_reward == pytest.approx(total)
        assert rollout.total_reward == pytest.approx(sum(rollout.rewards) / len(rollout.rewards))
    assert metrics["total_actions"] >= metrics["successful_actions"] > 0
    means = own.evaluate(data)
    total = means["r1"] + means["r2"] + 0.05 * means["r3"] + 0.1 * means["r4"]
    assert means["total_reward"] == pytest.approx(total)


def test_training_makes_a_run_and_stops_at_max_steps(tmp_path: Path) -> None:  # B11
    own = trainer(tmp_path, max_steps=3)
    own.train(instances(0, 4), instances(1, 1, "test"), num_epochs=5)
    assert own.step == len(own.history) == 3
    assert RunDir(tmp_path / "part_0" / "run").metrics.exists()
    assert weight_of(own).any()
    with pytest.raises(ConfigError, match="max_steps=3"):
        own.train_step(instances(0, 1))


def test_training_without_validation_data_evaluates_the_training_instances(tmp_path: Path) -> None:
    own = trainer(tmp_path, max_steps=1)
    with pytest.warns(UserWarning, match="are training tasks"):
        summary = own.train(instances(0, 2))
    assert Path(summary["run"]) == tmp_path / "part_0" / "run"
    assert own.step == 1


def test_instance_in_training_and_validation_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both the training and the validation data"):
        trainer(tmp_path).train(instances(0, 2), instances(0, 1))


@pytest.mark.slow
def test_example_learns_what_to_remember(tmp_path: Path) -> None:
    # Over seeds 0 to 3 the reward rises from 1.39-1.46 to 1.79-1.81, r1 from 0.43-0.50 to 0.68-0.69
    # and r4 from 0.48-0.51 to 0.85-0.92.
    before, after = mem_alpha.train(20, 0, tmp_path)
    assert after["total_reward"] > before["total_reward"] + 0.2
    assert after["r1"] > before["r1"] + 0.1
    assert after["r4"] > before["r4"] + 0.2


# Rewards and answers.


class ShortMemoryCalculator(RewardCalculator):
    """Rewards a short memory and nothing else."""

    @override
    def evaluate(
        self,
        instance: TrainingInstance,
        actions: Sequence[AgentAction],
        memory: MemorySystem,
        results: Sequence[QAResult],
    ) -> EvaluationResult:
        found = super().evaluate(instance, actions, memory, results)
        return found._replace(steps=tuple(-float(len(a.calls)) for a in actions))


def test_own_reward_calculator_defines_the_training_reward(tmp_path: Path) -> None:
    own = trainer(tmp_path, calculator=ShortMemoryCalculator())
    for _ in range(8):
        own.train_step(instances(0, 2))
    rewards = [line["reward_mean"] for line in own.history]
    assert rewards[-1] > rewards[0] + 0.2


def test_weights_of_the_calculator_and_the_config_must_agree(tmp_path: Path) -> None:
    own = trainer(tmp_path, calculator=RewardCalculator(beta=0.2, gamma=0.3))
    assert (own.settings.beta, own.settings.gamma) == (0.2, 0.3)
    with pytest.raises(ConfigError, match=r"beta=0.1 and reward_calculator has 0.05"):
        trainer(tmp_path, calculator=RewardCalculator(), beta=0.1)
    with pytest.raises(ConfigError, match="beta=-1"):
        RewardCalculator(beta=-1)


AVA = TrainingInstance(
    "ava",
    [ConversationChunk(0, "User: Ava lives in Oslo.\nUser: Lovely weather.", "2024-05-01")],
    [Question("q1", "Which city does Ava live in?", "Oslo", evidence=(0,))],
)


def test_function_answers_questions_of_own_instances(tmp_path: Path) -> None:  # B7
    prompts: list[str] = []

    def answerer(prompt: str) -> str:
        prompts.append(prompt)
        return "Oslo" if "Ava lives in Oslo" in prompt else "unknown"

    judged: list[str] = []

    def judge(prompt: str) -> str:
        judged.append(prompt)
        return "INVALID" if "weather" in prompt.rpartition("Change:")[2] else "VALID"

    calculator = RewardCalculator(llm_judge=judge)
    config = {"grpo_rollout_n": 8, "learning_rate": 0.1}
    own = GRPOTrainer(LineSelector(), calculator, config, answerer=answerer, log_dir=tmp_path)
    rollouts = own.collect_rollouts(AVA)
    for rollout in rollouts:
        stored = [entry.content for entry in rollout.memory.entries.values()]
        assert rollout.evaluation.r1 == float("Ava lives in Oslo." in stored)
        if stored:
            assert rollout.evaluation.r4 == ("Lovely weather." not in stored) + 0.5 * (
                len(stored) == 2
            )
    assert judged
    assert len({rollout.evaluation.r1 for rollout in rollouts}) == 2
    with pytest.raises(ConfigError, match="are not generated"):
        trainer(tmp_path).collect_rollouts(AVA)


class SelfAnsweringSelector(LineSelector):
    """A policy that could also answer questions."""

    def answer(self, prompt: str) -> str:
        return self.generate(prompt, temperature=0, seed=0).text


def test_policy_cannot_answer_the_questions(tmp_path: Path) -> None:  # B7
    policy = SelfAnsweringSelector()
    with pytest.raises(ConfigError, match="would grade itself"):
        GRPOTrainer(policy, RewardCalculator(), {}, answerer=policy.answer, log_dir=tmp_path)


# Own policies that cannot be trained.


class TextOnlySelector(LineSelector):
    """Returns a text, as a policy of the original interface."""

    @override
    def generate(self, prompt: str, *, temperature: float, seed: int) -> Any:
        return super().generate(prompt, temperature=temperature, seed=seed).text


class UntokenizedSelector(LineSelector):
    """Reports no tokens."""

    @override
    def generate(self, prompt: str, *, temperature: float, seed: int) -> Completion:
        text, _, log_probs = super().generate(prompt, temperature=temperature, seed=seed)
        return Completion(text, [], log_probs)


class ConstantSelector(LineSelector):
    """Returns log-probs that do not depend on the weights."""

    @override
    def get_log_prob(self, prompt: str, completion: Completion) -> torch.Tensor:
        return torch.tensor(completion.log_probs)


class SummedSelector(LineSelector):
    """Returns one log-prob for all tokens."""

    @override
    def get_log_prob(self, prompt: str, completion: Completion) -> torch.Tensor:
        return super().get_log_prob(prompt, completion).sum()


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (TextOnlySelector(), r"generate returned 'str'; return Completion"),  # B2
        (UntokenizedSelector(), "0 tokens with"),
        (ConstantSelector(), "without a gradient"),  # B1
        (SummedSelector(), "one log-prob per token"),
    ],
)
def test_policy_that_cannot_be_trained_is_refused(
    policy: PolicyModel, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        trainer(tmp_path, policy=policy).train_step(instances(0, 1))


class PolicyWithoutState:
    """Has the three methods of the original interface only."""

    def generate(self, prompt: str, *, temperature: float, seed: int) -> Completion:
        raise NotImplementedError

    def get_log_prob(self, prompt: str, completion: Completion) -> torch.Tensor:
        raise NotImplementedError

    def update(self, loss: torch.Tensor, *, learning_rate: float) -> dict[str, float]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (PolicyWithoutState(), r"'PolicyWithoutState', .* save_state and load_state"),
        (LineSelector, "the class 'LineSelector'; give an object of it"),
    ],
)
def test_policy_without_the_methods_of_the_protocol_is_refused(
    policy: Any, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"policy_model is {problem}"):
        trainer(tmp_path, policy=policy)


def test_settings_that_an_own_policy_cannot_follow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reference model"):
        trainer(tmp_path, kl_coef=0.1)
    with pytest.raises(ConfigError, match="policy_model has 'LineSelector'"):
        trainer(tmp_path, model_name_or_path="tiny")
    with pytest.raises(ConfigError, match="config="):
        GRPOTrainer({"batch_size": 2})  # type: ignore[arg-type]
    ewc = trainer(tmp_path, settings={"cl_algorithm": "ewc"})
    with pytest.raises(ConfigError, match="train a Hugging Face model"):
        ewc.train(instances(0, 1), instances(1, 1, "test"))


# Checkpoints.


@pytest.mark.parametrize("name", ["step_2.pt", "step_2.json", "step_2"])
def test_training_continues_exactly_from_a_checkpoint(tmp_path: Path, name: str) -> None:  # B10
    calculator = RewardCalculator(beta=0.2, gamma=0.3)
    whole = trainer(tmp_path / "whole", calculator=calculator, clip_epsilon=0.3, seed=5)
    data = instances(0, 2)
    whole.train_step(data)
    whole.train(data, instances(1, 1, "test"))
    path = tmp_path / "ckpt" / name
    whole.save_checkpoint(str(path))
    assert path.exists()
    resumed = trainer(tmp_path / "resumed", learning_rate=1.0)
    resumed.load_checkpoint(str(path))
    assert resumed.settings == whole.settings
    assert resumed.history == whole.history
    assert (resumed.reward_calculator.beta, resumed.reward_calculator.gamma) == (0.2, 0.3)
    for own in (whole, resumed):
        own.train_step(data)
        own.train(data, instances(1, 1, "test"))
        own.save_checkpoint(own.log_dir / "end")
    assert resumed.history == whole.history
    for file in (WEIGHTS, TENSORS_FILE):
        expected, found = (load_file(own.log_dir / "end" / file) for own in (whole, resumed))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_checkpoint_has_only_safetensors_and_json(tmp_path: Path) -> None:
    own = trainer(tmp_path)
    own.train_step(instances(0, 1))
    own.save_checkpoint(tmp_path / "out" / "last.pt")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".pt", ".json", ".safetensors"}
    pointer = json.loads((tmp_path / "out" / "last.pt").read_text())
    assert pointer == {"step": 1, "files": "last.pt.files"}


def test_damaged_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    own = trainer(tmp_path)
    own.train_step(instances(0, 1))
    own.save_checkpoint(tmp_path / "last")
    weights_file = tmp_path / "last" / WEIGHTS
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    other = trainer(tmp_path)
    with pytest.raises(CheckpointError, match="damaged"):
        other.load_checkpoint(tmp_path / "last")
    assert other.step == 0
    with pytest.raises(CheckpointError, match="cannot read"):
        other.load_checkpoint(tmp_path / "none.pt")


def test_same_seed_gives_the_same_training(tmp_path: Path) -> None:  # B11
    def run() -> tuple[list[dict[str, Any]], list[RolloutResult]]:
        own = trainer(tmp_path, seed=3)
        own.train_step(instances(0, 2))
        return own.history, own.collect_rollouts(instances(1, 1)[0])

    (first, rollouts), (second, again) = run(), run()
    assert first == second
    assert [r.log_probs for r in rollouts] == [r.log_probs for r in again]
