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
from grpo_cl.buffer import Experience, TrajectoryBuffer, even_shares
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.batching import MicroBatch, Sample
from grpo_cl.policy.continual.offpolicy import (
    Rules,
    off_policy_loss,
    off_policy_part,
    stored_samples,
)
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.learner import Auxiliary, Learner
from grpo_cl.policy.ranks import Ranks
from grpo_cl.tasks import TaskDataLoader
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
PLAIN = Rules(cap=2.0, max_drift=0.5, cloning=0.0)


@dataclass
class Stage:
    """What an algorithm sees of a run, without a policy."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer
    policy: Any = None


def stage(**changes: Any) -> Stage:
    defaults: dict[str, Any] = {
        "task_order": ORDER,
        "batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
    }
    config = GRPOConfig(**{**defaults, **changes})
    return Stage(config, TaskDataLoader(config), TrajectoryBuffer(config))


def bound(view: Stage, **options: Any) -> ReplayCL:
    algorithm = ReplayCL(**options)
    algorithm.check(view.config)
    algorithm.bind(view)
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
def test_the_replayed_share_of_a_step_is_exact(mode: str, ratio: float, new: int, old: int) -> None:
    view = stage(replay_ratio=ratio)
    algorithm = bound(view, mode=mode)
    given = view.tasks.next_batch("toy_right", 8)
    tasks = algorithm.augment_batch(given, "toy_right")
    assert domains_of(tasks) == {"toy_right": new, "toy_left": old}
    assert list(tasks[:new]) == given[:new]
    algorithm.augment_rollouts([played(task, [0.0, 1.0]) for task in tasks], "toy_right")
    assert algorithm.telemetry() == {"cl/replay_groups": old, "cl/replay_varied_groups": old}


def test_nothing_is_replayed_with_ratio_zero_or_in_the_first_domain() -> None:
    view = stage(replay_ratio=0.0)
    given = view.tasks.next_batch("toy_right", 8)
    assert bound(view).augment_batch(given, "toy_right") is given
    view = stage()
    given = view.tasks.next_batch("toy_left", 8)
    assert bound(view).augment_batch(given, "toy_left") is given


def test_earlier_domains_share_the_replayed_places_evenly() -> None:
    view = stage(replay_ratio=0.375)
    algorithm = bound(view)
    total: Counter[str] = Counter()
    for _ in range(200):
        batch = algorithm.augment_batch(view.tasks.next_batch("toy_up", 8), "toy_up")
        counts = domains_of(batch)
        assert {counts["toy_left"], counts["toy_right"]} == {1, 2}
        total += counts
    # Who gets two is a fair coin: 300 each, standard deviation sqrt(200) / 2 = 7.1.
    assert abs(total["toy_left"] - 300) < 29


def test_only_training_tasks_are_replayed() -> None:
    view = stage(replay_ratio=0.5)
    algorithm = bound(view)
    seen: set[str] = set()
    for _ in range(60):
        batch = algorithm.augment_batch(view.tasks.next_batch("toy_right", 8), "toy_right")
        seen |= {task.id for task in batch if task.domain == "toy_left"}
    assert seen == {task.id for task in view.tasks.train_tasks("toy_left")}
    assert not seen & {task.id for task in view.tasks.evaluation_tasks("toy_left")}


def test_tasks_that_still_vary_are_picked_and_mastered_ones_only_reviewed() -> None:
    view = stage(replay_ratio=0.125)
    algorithm = bound(view, review=0.25)
    left = view.tasks.train_tasks("toy_left")
    for task in left:
        view.trajectory_buffer.add(played(task, [0.0, 1.0]), 0)
        view.trajectory_buffer.add(played(task, [1.0] * 4), 1)
    algorithm.post_task_hook(view, "toy_left")
    relearned = [played(task, [0.0, 1.0]) for task in left if task.id in ("train-05", "train-06")]
    algorithm.augment_rollouts(relearned, "toy_right")
    algorithm.augment_rollouts([played(relearned[1].task, [1.0, 1.0])], "toy_right")
    new = view.tasks.next_batch("toy_right", 8)
    picked = [algorithm.augment_batch(new, "toy_right")[-1].id for _ in range(400)]
    # Three quarters, and its part of the 100 reviews; the standard deviation is below 8.7.
    assert abs(picked.count("train-05") - 300 - 100 / len(left)) < 35
    assert set(picked) == {task.id for task in left}


def test_the_last_stored_episodes_say_whether_a_task_varies() -> None:
    view = stage()
    first, second, third, fourth = view.tasks.train_tasks("toy_left")[:4]
    shaped = played(third, [0.0, 0.0]).model_copy(update={"training_rewards": (0.5, 0.0)})
    failed = Trajectory(task=fourth, messages=(), termination=Termination.INFRASTRUCTURE_ERROR)
    solved = played(fourth, [1.0, 1.0, 0.0])
    unscored = solved.model_copy(update={"trajectories": (*solved.trajectories[:2], failed)})
    view.trajectory_buffer.add(played(first, [0.0, 1.0]), 0)
    view.trajectory_buffer.add(played(first, [1.0, 1.0]), 1)
    view.trajectory_buffer.add(played(second, [1.0, 0.0]), 0)
    view.trajectory_buffer.add(shaped, 1)
    view.trajectory_buffer.add(unscored, 1)
    assert varied_tasks(view.trajectory_buffer.records("toy_left")) == [second.id, third.id]


def test_without_a_task_that_varies_any_is_picked() -> None:
    view = stage(replay_ratio=0.5)
    batch = bound(view, review=0.0).augment_batch(
        view.tasks.next_batch("toy_right", 8), "toy_right"
    )
    old = [task.id for task in batch if task.domain == "toy_left"]
    assert len(set(old)) == 4


def test_replay_goes_on_from_its_state_as_if_never_interrupted() -> None:
    view = stage(replay_ratio=0.5)
    first, second = bound(view), bound(view)
    new = view.tasks.next_batch("toy_right", 8)
    old = view.tasks.train_tasks("toy_left")[:3]
    first.augment_rollouts([played(task, [0.0, 1.0]) for task in old], "toy_right")
    first.augment_batch(new, "toy_right")
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(5):
        batches = [algorithm.augment_batch(new, "toy_right") for algorithm in (first, second)]
        assert batches[0] == batches[1]


def test_settings_that_leave_no_place_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"replay_ratio 1\.0 leaves no place for new tasks"):
        bound(stage(replay_ratio=1.0))
    with pytest.raises(ConfigError, match="a step of one task cannot displace any"):
        bound(stage(batch_size_per_gpu=1))
    bound(stage(batch_size_per_gpu=1), mode="additive")
    bound(stage(batch_size_per_gpu=1, replay_ratio=0.0))


def test_what_is_left_over_goes_by_chance() -> None:
    counts = even_shares(7, ("a", "b", "c"), Random(0))
    assert sorted(counts.values()) == [2, 2, 3]
    assert even_shares(0, ("a",), Random(0)) == {"a": 0}


def test_a_stored_episode_keeps_the_advantage_it_had_in_its_group(tmp_path: Path) -> None:
    view = stage()
    task = view.tasks.train_tasks("toy_left")[0]
    view.trajectory_buffer.add(played(task, [0.0, 1.0, 1.0, 0.0, 0.0]), 3)
    advantages = [record.advantage for record in view.trajectory_buffer.records("toy_left")]
    assert advantages == pytest.approx([-0.4, 0.6, 0.6, -0.4, -0.4])
    view.trajectory_buffer.save(tmp_path / "trajectories.json")
    again = TrajectoryBuffer(view.config)
    again.load(tmp_path / "trajectories.json")
    assert again.records("toy_left") == view.trajectory_buffer.records("toy_left")


def test_an_episode_of_an_older_file_has_no_advantage() -> None:
    view = stage()
    task = view.tasks.train_tasks("toy_left")[0]
    view.trajectory_buffer.add(played(task, [0.0, 1.0]), 3)
    plain = view.trajectory_buffer.records("toy_left")[0].model_dump(mode="json")
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


def gradient_of(logprobs: list[list[float]], batch: MicroBatch, rules: Rules) -> list[list[float]]:
    logprobs_BT = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    off_policy_part(logprobs_BT, batch, rules).loss.backward()
    assert logprobs_BT.grad is not None
    return logprobs_BT.grad.tolist()


def test_a_token_weighs_its_own_ratio_up_to_the_cap() -> None:
    # Ratios 1/2, 3 and 1; the weight of the second is cut to 2, that of no other changes.
    ratios = [0.5, 3.0, 1.0]
    batch = micro_batch([[-2.0, -2.0, -2.0]], [[0.5, 0.5, -1.0]], [0.1])
    logprobs = [[-2.0 + log(ratio) for ratio in ratios]]
    rules = PLAIN._replace(max_drift=9.0)
    assert gradient_of(logprobs, batch, rules)[0] == pytest.approx([-0.025, -0.1, 0.1])
    part = off_policy_part(torch.tensor(logprobs, dtype=torch.float64), batch, rules)
    assert part.loss.item() == pytest.approx(-0.1 * (0.5 * 0.5 + 2 * 0.5 - 1))
    clone = sum(ratio - 1 - log(ratio) for ratio in ratios)
    assert part.sums.tolist() == pytest.approx([3, 3.5, clone, 1, 0])


def test_an_episode_that_drifted_too_far_teaches_nothing_but_is_still_cloned() -> None:
    batch = micro_batch([[-1.0, -1.0], [-1.0, -1.0]], [[1.0, 1.0], [1.0, 1.0]], [0.5, 0.5])
    logprobs = [[-1.9, -1.2], [-1.5, -1.5]]  # mean drifts 0.55 and 0.5
    gradient = gradient_of(logprobs, batch, PLAIN)
    assert gradient[0] == [0.0, 0.0]
    assert gradient[1] == pytest.approx([-0.5 * exp(-0.5)] * 2)
    part = off_policy_part(torch.tensor(logprobs, dtype=torch.float64), batch, PLAIN)
    assert part.sums[-2:].tolist() == [2, 1]
    cloned = gradient_of(logprobs, batch, PLAIN._replace(cloning=0.1))
    assert cloned[0] == pytest.approx([0.05 * (exp(-0.9) - 1), 0.05 * (exp(-0.2) - 1)])


def test_cloning_is_flat_where_nothing_moved_and_follows_differences_elsewhere() -> None:
    batch = micro_batch([[-1.0, -0.3]], [[0.0, 0.0]], [0.5])
    rules = PLAIN._replace(cloning=0.7)
    assert gradient_of([[-1.0, -0.3]], batch, rules) == [[0.0, 0.0]]
    at_rest = off_policy_part(torch.tensor([[-1.0, -0.3]], dtype=torch.float64), batch, rules)
    assert at_rest.loss.item() == 0.0
    point, step = [-1.7, -0.1], 1e-6
    found = gradient_of([point], batch, rules)[0]
    for place in range(2):
        values: list[float] = []
        for sign in (1, -1):
            moved = [value + sign * step * (place == n) for n, value in enumerate(point)]
            near = torch.tensor([moved], dtype=torch.float64)
            values.append(off_policy_part(near, batch, rules).loss.item())
        assert found[place] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6)


def gradients(learner: Learner, auxiliary: Auxiliary) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def take(parameters: Sequence[tuple[str, Parameter]]) -> None:
        for name, parameter in parameters:
            assert parameter.grad is not None
            found[name] = parameter.grad.clone()

    learner.update([], [], auxiliary=auxiliary, transform=take)
    return found


def stored(learner: Learner, count: int) -> tuple[list[TokenTrace], list[float]]:
    """Traces as if the learner's own policy had just written them."""
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


def test_the_gradient_of_what_the_policy_just_played_is_the_on_policy_one() -> None:
    config = settings()
    learner = Learner(tiny_policy(config), config, Ranks())
    traces, advantages = stored(learner, 6)
    samples = stored_samples(records_of(traces, advantages), config, scale=1.0)
    found = gradients(learner, lambda _: off_policy_loss(learner, samples, PLAIN).loss)
    other = Learner(tiny_policy(config), config, Ranks())
    expected: dict[str, Tensor] = {}

    def take(parameters: Sequence[tuple[str, Parameter]]) -> None:
        expected.update({name: p.grad.clone() for name, p in parameters if p.grad is not None})

    other.update([group(*traces)], [advantages], transform=take)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_passes_and_ranks_add_up_to_the_whole() -> None:
    rules = PLAIN._replace(cloning=0.3, max_drift=9.0)
    whole_config = settings()
    cut_config = settings(optimizer={"micro_batch_tokens": 40})
    samples = stored_samples(
        records_of(random_traces(7), [0.5, -1.0, 0.25, 1.0, -0.5, 0.75, -0.25]),
        whole_config,
        scale=0.5,
    )

    def found(config: GRPOConfig, ranks: Ranks) -> dict[str, Tensor]:
        learner = Learner(tiny_policy(config), config, ranks)
        return gradients(learner, lambda _: off_policy_loss(learner, samples, rules).loss)

    whole = found(whole_config, Ranks())
    cut = found(cut_config, Ranks())
    # Each rank alone, as the learner divides its part; their sum is what all-reduce would give.
    parts = [_part_of_rank(rank, cut_config, samples, rules) for rank in range(2)]
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6)
        both = parts[0][name] + parts[1][name]
        torch.testing.assert_close(both, gradient, rtol=1e-4, atol=1e-6)


def _part_of_rank(
    rank: int, config: GRPOConfig, samples: Sequence[Sample], rules: Rules
) -> dict[str, Tensor]:
    policy = tiny_policy(config)
    learner = Learner(policy, config, Ranks(rank=rank, world_size=2))
    (off_policy_loss(learner, samples, rules).loss / 2).backward()
    return {name: p.grad for name, p in policy.trainable() if p.grad is not None}


def test_clear_is_trajectory_replay_with_half_of_the_batch_cloned() -> None:
    clear = make_algorithm("clear")
    assert isinstance(clear, ClearCL)
    assert (clear.options.share, clear.options.cloning) == (0.5, 0.1)
    plain = make_algorithm("trajectory_replay")
    assert isinstance(plain, TrajectoryReplayCL)
    assert (plain.options.share, plain.options.cloning) == (0.25, 0.0)


def test_stored_episodes_make_up_their_share_of_an_update_and_are_of_earlier_domains() -> None:
    view = stage()
    algorithm = TrajectoryReplayCL(share=0.25)
    algorithm.bind(view)
    learner = Learner(tiny_policy(settings()), settings(), Ranks())
    traces, _ = stored(learner, 8)
    for domain in ("toy_left", "toy_right"):
        for task in view.tasks.train_tasks(domain):
            rewards = [1.0, 0.0] * 4
            view.trajectory_buffer.add(_written(task, traces, rewards), 0)
    fresh = [_written(view.tasks.train_tasks("toy_right")[0], traces, [0.0] * 8)] * 3
    algorithm.augment_rollouts(fresh, "toy_right")
    assert len(algorithm._samples) == 8  # a quarter of 24 + 8
    # All traces weigh as tokens do, times 8 stored for 24 new.
    total = sum(sum(sample.trace.mask) for sample in algorithm._samples)
    assert [sample.weight for sample in algorithm._samples] == pytest.approx([1 / 3 / total] * 8)
    assert {max(sample.advantages, key=abs) for sample in algorithm._samples} <= {0.5, -0.5}
    algorithm.augment_rollouts(fresh, "toy_left")
    assert algorithm.auxiliary_loss(None) is None


def _written(task: Task, traces: Sequence[TokenTrace], rewards: list[float]) -> TrajectoryGroup:
    given = played(task, rewards)
    pairs = zip(given.trajectories, traces, strict=True)
    trajectories = [one.model_copy(update={"tokens": trace}) for one, trace in pairs]
    return given.model_copy(update={"trajectories": tuple(trajectories)})


def test_episodes_without_an_advantage_are_drawn_only_to_be_cloned() -> None:
    view = stage()
    learner = Learner(tiny_policy(settings()), settings(), Ranks())
    traces, _ = stored(learner, 4)
    task = view.tasks.train_tasks("toy_left")[0]
    view.trajectory_buffer.add(_written(task, traces, [1.0] * 4), 0)
    fresh = [_written(view.tasks.train_tasks("toy_right")[0], traces, [0.0] * 4)]
    for algorithm, count in ((TrajectoryReplayCL(share=0.5), 0), (ClearCL(), 4)):
        algorithm.bind(view)
        algorithm.augment_rollouts(fresh, "toy_right")
        assert len(algorithm._samples) == count
