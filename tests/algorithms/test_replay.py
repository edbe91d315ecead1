import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from grpo_cl.algorithms import make_algorithm
from grpo_cl.algorithms.replay import ReplayCL, varied_tasks
from grpo_cl.algorithms.trajectory_replay import ClearCL, TrajectoryReplayCL
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.off_policy import (
    OffPolicyParams,
    off_policy_loss,
    off_policy_terms,
    stored_samples,
)
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.learner.batching import MicroBatch, TrainingSample
from grpo_cl.policy.learner.learner import AuxiliaryLoss, Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.runs.reservoir import Experience, even_shares
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.types import (
    Reward,
    Task,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
)
from tiny_learners import group, random_traces, settings, tiny_policy

ORDER = ("toy_left", "toy_right", "toy_up")
PARAMS = OffPolicyParams(cap=2.0, max_drift=0.5, cloning=0.0)


@dataclass
class FakeTrainer:
    """A ``TrainerView`` without a policy."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer
    policy: Any = None


def fake_trainer(**changes: Any) -> FakeTrainer:
    defaults: dict[str, Any] = {
        "task_order": ORDER,
        "batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
    }
    config = GRPOConfig(**{**defaults, **changes})
    return FakeTrainer(config, TaskDataLoader(config), TrajectoryBuffer(config))


def bind_algorithm(trainer: FakeTrainer, **options: Any) -> ReplayCL:
    algorithm = ReplayCL(**options)
    algorithm.check(trainer.config)
    algorithm.bind(trainer)
    return algorithm


def played(task: Task, rewards: Sequence[float]) -> TrajectoryGroup:
    trajectory = Trajectory(task=task, messages=(), termination=Termination.AGENT_STOP)
    scores = [Reward(value=value, basis=None, basis_name="tau2") for value in rewards]
    return TrajectoryGroup(
        task=task,
        trajectories=(trajectory,) * len(rewards),
        rewards=tuple(scores),
        training_rewards=tuple(rewards),
    )


def domains_of(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(task.domain for task in tasks)


@pytest.mark.parametrize(
    ("mode", "ratio", "new", "old"),
    [
        ("displacing", 0.25, 6, 2),
        ("displacing", 0.01, 7, 1),
        ("displacing", 0.9, 1, 7),
        ("displacing", 0.99, 1, 7),
        ("additive", 0.2, 8, 2),
        ("additive", 0.5, 8, 8),
        ("additive", 0.01, 8, 1),
    ],
)
def test_the_number_of_replayed_tasks_is_exact(mode: str, ratio: float, new: int, old: int) -> None:
    trainer = fake_trainer(replay_ratio=ratio)
    algorithm = bind_algorithm(trainer, mode=mode)
    new_tasks = trainer.tasks.next_batch("toy_right", 8)
    tasks = algorithm.augment_batch(new_tasks, "toy_right")
    assert domains_of(tasks) == {"toy_right": new, "toy_left": old}
    assert list(tasks[:new]) == new_tasks[:new]
    algorithm.augment_rollouts([played(task, [0.0, 1.0]) for task in tasks], "toy_right")
    assert algorithm.telemetry() == {"cl/replay_groups": old, "cl/replay_varied_groups": old}


def test_nothing_is_replayed_with_ratio_zero_or_in_the_first_domain() -> None:
    trainer = fake_trainer(replay_ratio=0.0)
    new_tasks = trainer.tasks.next_batch("toy_right", 8)
    assert bind_algorithm(trainer).augment_batch(new_tasks, "toy_right") is new_tasks
    trainer = fake_trainer()
    new_tasks = trainer.tasks.next_batch("toy_left", 8)
    assert bind_algorithm(trainer).augment_batch(new_tasks, "toy_left") is new_tasks


def test_replayed_tasks_are_divided_evenly_over_earlier_domains() -> None:
    trainer = fake_trainer(replay_ratio=0.375)
    algorithm = bind_algorithm(trainer)
    total: Counter[str] = Counter()
    for _ in range(200):
        batch = algorithm.augment_batch(trainer.tasks.next_batch("toy_up", 8), "toy_up")
        counts = domains_of(batch)
        assert {counts["toy_left"], counts["toy_right"]} == {1, 2}
        total += counts
    # The domain with two tasks is a fair coin: 300 each, standard deviation sqrt(200) / 2 = 7.1.
    assert abs(total["toy_left"] - 300) < 29


def test_only_training_tasks_are_replayed() -> None:
    trainer = fake_trainer(replay_ratio=0.5)
    algorithm = bind_algorithm(trainer)
    seen: set[str] = set()
    for _ in range(60):
        batch = algorithm.augment_batch(trainer.tasks.next_batch("toy_right", 8), "toy_right")
        seen |= {task.id for task in batch if task.domain == "toy_left"}
    assert seen == {task.id for task in trainer.tasks.train_tasks("toy_left")}
    assert not seen & {task.id for task in trainer.tasks.evaluation_tasks("toy_left")}


def test_varied_tasks_are_preferred_and_mastered_ones_only_reviewed() -> None:
    trainer = fake_trainer(replay_ratio=0.125)
    algorithm = bind_algorithm(trainer, review=0.25)
    left = trainer.tasks.train_tasks("toy_left")
    for task in left:
        trainer.trajectory_buffer.add(played(task, [0.0, 1.0]), 0)
        trainer.trajectory_buffer.add(played(task, [1.0] * 4), 1)
    algorithm.post_task_hook(trainer, "toy_left")
    relearned = [played(task, [0.0, 1.0]) for task in left if task.id in ("train-05", "train-06")]
    algorithm.augment_rollouts(relearned, "toy_right")
    algorithm.augment_rollouts([played(relearned[1].task, [1.0, 1.0])], "toy_right")
    new = trainer.tasks.next_batch("toy_right", 8)
    chosen = [algorithm.augment_batch(new, "toy_right")[-1].id for _ in range(400)]
    # Three quarters, and its part of the 100 reviews; the standard deviation is below 8.7.
    assert abs(chosen.count("train-05") - 300 - 100 / len(left)) < 35
    assert set(chosen) == {task.id for task in left}


def test_a_task_is_varied_if_its_latest_stored_episodes_have_an_advantage() -> None:
    trainer = fake_trainer()
    first, second, third, fourth = trainer.tasks.train_tasks("toy_left")[:4]
    shaped = played(third, [0.0, 0.0]).model_copy(update={"training_rewards": (0.5, 0.0)})
    failed = Trajectory(task=fourth, messages=(), termination=Termination.INFRASTRUCTURE_ERROR)
    solved = played(fourth, [1.0, 1.0, 0.0])
    unscored = solved.model_copy(update={"trajectories": (*solved.trajectories[:2], failed)})
    trainer.trajectory_buffer.add(played(first, [0.0, 1.0]), 0)
    trainer.trajectory_buffer.add(played(first, [1.0, 1.0]), 1)
    trainer.trajectory_buffer.add(played(second, [1.0, 0.0]), 0)
    trainer.trajectory_buffer.add(shaped, 1)
    trainer.trajectory_buffer.add(unscored, 1)
    assert varied_tasks(trainer.trajectory_buffer.records("toy_left")) == [second.id, third.id]


def test_without_varied_tasks_random_ones_are_chosen() -> None:
    trainer = fake_trainer(replay_ratio=0.5)
    batch = bind_algorithm(trainer, review=0.0).augment_batch(
        trainer.tasks.next_batch("toy_right", 8), "toy_right"
    )
    old = [task.id for task in batch if task.domain == "toy_left"]
    assert len(set(old)) == 4


def test_replay_continues_exactly_from_its_state() -> None:
    trainer = fake_trainer(replay_ratio=0.5)
    first, second = bind_algorithm(trainer), bind_algorithm(trainer)
    new = trainer.tasks.next_batch("toy_right", 8)
    old = trainer.tasks.train_tasks("toy_left")[:3]
    first.augment_rollouts([played(task, [0.0, 1.0]) for task in old], "toy_right")
    first.augment_batch(new, "toy_right")
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(5):
        batches = [algorithm.augment_batch(new, "toy_right") for algorithm in (first, second)]
        assert batches[0] == batches[1]


def test_settings_without_room_for_new_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"replay_ratio 1\.0 leaves no room for new tasks"):
        bind_algorithm(fake_trainer(replay_ratio=1.0))
    with pytest.raises(ConfigError, match="one task per rank has none to displace"):
        bind_algorithm(fake_trainer(batch_size_per_gpu=1))
    bind_algorithm(fake_trainer(batch_size_per_gpu=1), mode="additive")
    bind_algorithm(fake_trainer(batch_size_per_gpu=1, replay_ratio=0.0))


def test_the_remainder_of_even_shares_is_assigned_at_random() -> None:
    counts = even_shares(7, ("a", "b", "c"), Random(0))
    assert sorted(counts.values()) == [2, 2, 3]
    assert even_shares(0, ("a",), Random(0)) == {"a": 0}


def test_a_stored_episode_has_the_advantage_of_its_group(tmp_path: Path) -> None:
    trainer = fake_trainer()
    task = trainer.tasks.train_tasks("toy_left")[0]
    trainer.trajectory_buffer.add(played(task, [0.0, 1.0, 1.0, 0.0, 0.0]), 3)
    advantages = [record.advantage for record in trainer.trajectory_buffer.records("toy_left")]
    assert advantages == pytest.approx([-0.4, 0.6, 0.6, -0.4, -0.4])
    trainer.trajectory_buffer.save(tmp_path / "trajectories.json")
    again = TrajectoryBuffer(trainer.config)
    again.load(tmp_path / "trajectories.json")
    assert again.records("toy_left") == trainer.trajectory_buffer.records("toy_left")


def test_an_episode_of_a_file_without_advantages_has_none() -> None:
    trainer = fake_trainer()
    task = trainer.tasks.train_tasks("toy_left")[0]
    trainer.trajectory_buffer.add(played(task, [0.0, 1.0]), 3)
    plain = trainer.trajectory_buffer.records("toy_left")[0].model_dump(mode="json")
    del plain["advantage"]
    assert Experience.model_validate(plain).advantage is None


def micro_batch(
    sampler: list[list[float]], advantages: list[list[float]], weights: list[float]
) -> MicroBatch:
    sampler_BT = torch.tensor(sampler, dtype=torch.float64)
    return MicroBatch(
        ids_BT=torch.zeros(sampler_BT.shape, dtype=torch.long),
        attention_BT=torch.ones(sampler_BT.shape, dtype=torch.long),
        mask_BT=torch.ones(sampler_BT.shape, dtype=torch.bool),
        sampler_logprobs_BT=sampler_BT,
        advantages_BT=torch.tensor(advantages, dtype=torch.float64),
        weights_B=torch.tensor(weights, dtype=torch.float64),
    )


def gradient_of(
    logprobs: list[list[float]], batch: MicroBatch, params: OffPolicyParams
) -> list[list[float]]:
    logprobs_BT = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    off_policy_terms(logprobs_BT, batch, params).loss.backward()
    assert logprobs_BT.grad is not None
    return logprobs_BT.grad.tolist()


def test_the_weight_of_a_token_is_its_ratio_up_to_the_cap() -> None:
    # Ratios 1/2, 3 and 1; only the weight of the second is capped, at 2.
    ratios = [0.5, 3.0, 1.0]
    batch = micro_batch([[-2.0, -2.0, -2.0]], [[0.5, 0.5, -1.0]], [0.1])
    logprobs = [[-2.0 + log(ratio) for ratio in ratios]]
    params = PARAMS._replace(max_drift=9.0)
    assert gradient_of(logprobs, batch, params)[0] == pytest.approx([-0.025, -0.1, 0.1])
    part = off_policy_terms(torch.tensor(logprobs, dtype=torch.float64), batch, params)
    assert part.loss.item() == pytest.approx(-0.1 * (0.5 * 0.5 + 2 * 0.5 - 1))
    clone = sum(ratio - 1 - log(ratio) for ratio in ratios)
    assert part.sums.tolist() == pytest.approx([3, 3.5, clone, 1, 0])


def test_an_episode_beyond_max_drift_has_no_policy_gradient_but_is_cloned() -> None:
    batch = micro_batch([[-1.0, -1.0], [-1.0, -1.0]], [[1.0, 1.0], [1.0, 1.0]], [0.5, 0.5])
    logprobs = [[-1.9, -1.2], [-1.5, -1.5]]  # mean drifts 0.55 and 0.5
    gradient = gradient_of(logprobs, batch, PARAMS)
    assert gradient[0] == [0.0, 0.0]
    assert gradient[1] == pytest.approx([-0.5 * exp(-0.5)] * 2)
    part = off_policy_terms(torch.tensor(logprobs, dtype=torch.float64), batch, PARAMS)
    assert part.sums[-2:].tolist() == [2, 1]
    cloned = gradient_of(logprobs, batch, PARAMS._replace(cloning=0.1))
    assert cloned[0] == pytest.approx([0.05 * (exp(-0.9) - 1), 0.05 * (exp(-0.2) - 1)])


def test_the_cloning_gradient_is_zero_at_the_sampler_and_matches_finite_differences() -> None:
    batch = micro_batch([[-1.0, -0.3]], [[0.0, 0.0]], [0.5])
    params = PARAMS._replace(cloning=0.7)
    assert gradient_of([[-1.0, -0.3]], batch, params) == [[0.0, 0.0]]
    at_rest = off_policy_terms(torch.tensor([[-1.0, -0.3]], dtype=torch.float64), batch, params)
    assert at_rest.loss.item() == 0.0
    point, step = [-1.7, -0.1], 1e-6
    actual = gradient_of([point], batch, params)[0]
    for place in range(2):
        values: list[float] = []
        for sign in (1, -1):
            moved = [value + sign * step * (place == n) for n, value in enumerate(point)]
            near = torch.tensor([moved], dtype=torch.float64)
            values.append(off_policy_terms(near, batch, params).loss.item())
        assert actual[place] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6)


def gradients(learner: Learner, auxiliary: AuxiliaryLoss) -> dict[str, Tensor]:
    actual: dict[str, Tensor] = {}

    def take(parameters: Sequence[tuple[str, Parameter]]) -> None:
        for name, parameter in parameters:
            assert parameter.grad is not None
            actual[name] = parameter.grad.clone()

    learner.update([], [], auxiliary=auxiliary, transform=take)
    return actual


def fresh_traces(learner: Learner, count: int) -> tuple[list[TokenTrace], list[float]]:
    """Traces with the learner's own log-probs as those of their sampler."""
    traces = random_traces(count)
    rows = trace_logprobs(learner, traces)
    advantages = [(-1) ** place * 0.25 * (place + 1) for place in range(count)]
    return [
        trace.model_copy(update={"logprobs": row}) for trace, row in zip(traces, rows, strict=True)
    ], advantages


def records_of(traces: Sequence[TokenTrace], advantages: Sequence[float]) -> list[Experience]:
    trajectories = group(*traces).trajectories
    return [
        Experience(trajectory=trajectory, reward=1.0, step=0, advantage=advantage)
        for trajectory, advantage in zip(trajectories, advantages, strict=True)
    ]


def test_the_gradient_on_fresh_samples_is_the_on_policy_gradient() -> None:
    config = settings()
    learner = Learner(tiny_policy(config), config, DistributedContext())
    traces, advantages = fresh_traces(learner, 6)
    samples = stored_samples(records_of(traces, advantages), config, scale=1.0)
    actual = gradients(learner, lambda _: off_policy_loss(learner, samples, PARAMS).loss)
    other = Learner(tiny_policy(config), config, DistributedContext())
    expected: dict[str, Tensor] = {}

    def take(parameters: Sequence[tuple[str, Parameter]]) -> None:
        expected.update({name: p.grad.clone() for name, p in parameters if p.grad is not None})

    other.update([group(*traces)], [advantages], transform=take)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_micro_batches_and_ranks_add_up_to_the_full_gradient() -> None:
    params = PARAMS._replace(cloning=0.3, max_drift=9.0)
    whole_config = settings()
    cut_config = settings(optimizer={"micro_batch_tokens": 40})
    samples = stored_samples(
        records_of(random_traces(7), [0.5, -1.0, 0.25, 1.0, -0.5, 0.75, -0.25]),
        whole_config,
        scale=0.5,
    )

    def actual(config: GRPOConfig, ranks: DistributedContext) -> dict[str, Tensor]:
        learner = Learner(tiny_policy(config), config, ranks)
        return gradients(learner, lambda _: off_policy_loss(learner, samples, params).loss)

    whole = actual(whole_config, DistributedContext())
    cut = actual(cut_config, DistributedContext())
    # Each rank alone, divided as the learner does; their sum is the result of the all-reduce.
    parts = [_gradients_of_rank(rank, cut_config, samples, params) for rank in range(2)]
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6)
        both = parts[0][name] + parts[1][name]
        torch.testing.assert_close(both, gradient, rtol=1e-4, atol=1e-6)


def _gradients_of_rank(
    rank: int, config: GRPOConfig, samples: Sequence[TrainingSample], params: OffPolicyParams
) -> dict[str, Tensor]:
    policy = tiny_policy(config)
    learner = Learner(policy, config, DistributedContext(rank=rank, world_size=2))
    (off_policy_loss(learner, samples, params).loss / 2).backward()
    return {name: p.grad for name, p in policy.trainable() if p.grad is not None}


def test_clear_is_trajectory_replay_with_cloning_of_half_the_batch() -> None:
    clear = make_algorithm("clear")
    assert isinstance(clear, ClearCL)
    assert (clear.options.share, clear.options.cloning) == (0.5, 0.01)
    plain = make_algorithm("trajectory_replay")
    assert isinstance(plain, TrajectoryReplayCL)
    assert (plain.options.share, plain.options.cloning) == (0.25, 0.0)


def test_stored_episodes_of_earlier_domains_are_the_configured_share_of_an_update() -> None:
    trainer = fake_trainer()
    algorithm = TrajectoryReplayCL(share=0.25)
    algorithm.bind(trainer)
    learner = Learner(tiny_policy(settings()), settings(), DistributedContext())
    traces, _ = fresh_traces(learner, 8)
    for domain in ("toy_left", "toy_right"):
        for task in trainer.tasks.train_tasks(domain):
            rewards = [1.0, 0.0] * 4
            trainer.trajectory_buffer.add(_with_traces(task, traces, rewards), 0)
    fresh = [_with_traces(trainer.tasks.train_tasks("toy_right")[0], traces, [0.0] * 8)] * 3
    algorithm.augment_rollouts(fresh, "toy_right")
    assert len(algorithm._samples) == 8  # a quarter of 24 + 8
    # All traces weigh as tokens do, times 8 stored for 24 new.
    total = sum(sum(sample.trace.mask) for sample in algorithm._samples)
    assert [sample.weight for sample in algorithm._samples] == pytest.approx([1 / 3 / total] * 8)
    assert {max(sample.advantages, key=abs) for sample in algorithm._samples} <= {0.5, -0.5}
    algorithm.augment_rollouts(fresh, "toy_left")
    assert algorithm.auxiliary_loss(None) is None


def _with_traces(task: Task, traces: Sequence[TokenTrace], rewards: list[float]) -> TrajectoryGroup:
    new_tasks = played(task, rewards)
    pairs = zip(new_tasks.trajectories, traces, strict=True)
    trajectories = [trajectory.model_copy(update={"tokens": trace}) for trajectory, trace in pairs]
    return new_tasks.model_copy(update={"trajectories": tuple(trajectories)})


def test_episodes_without_an_advantage_are_drawn_only_with_cloning() -> None:
    trainer = fake_trainer()
    learner = Learner(tiny_policy(settings()), settings(), DistributedContext())
    traces, _ = fresh_traces(learner, 4)
    task = trainer.tasks.train_tasks("toy_left")[0]
    trainer.trajectory_buffer.add(_with_traces(task, traces, [1.0] * 4), 0)
    fresh = [_with_traces(trainer.tasks.train_tasks("toy_right")[0], traces, [0.0] * 4)]
    for algorithm, count in ((TrajectoryReplayCL(share=0.5), 0), (ClearCL(), 4)):
        algorithm.bind(trainer)
        algorithm.augment_rollouts(fresh, "toy_right")
        assert len(algorithm._samples) == count
