import json
from collections import Counter
from pathlib import Path
from random import Random
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cl.buffer import Experience, Strategy, TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.types import (
    Message,
    Reward,
    Task,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
    UserScenario,
)

STRATEGIES: tuple[Strategy, ...] = ("random", "high_reward", "recent", "has_variance")


def make_task(task_id: str, domain: str = "airline") -> Task:
    return Task(id=task_id, domain=domain, user_scenario=UserScenario(instructions="help"))


def make_group(task: Task, rewards: list[float], text: str = "hello") -> TrajectoryGroup:
    trajectory = Trajectory(
        task=task,
        messages=(Message(role="assistant", content=text),),
        termination=Termination.AGENT_STOP,
        tokens=TokenTrace(ids=(5, 6, 7), mask=(False, True, True), logprobs=(-0.1, -1e-9),
                          turns=((1, 3),)),
    )  # fmt: skip
    return TrajectoryGroup(
        task=task,
        trajectories=tuple(
            trajectory.model_copy(update={"seed": seed}) for seed in range(len(rewards))
        ),
        rewards=tuple(Reward(value=value, basis=None, basis_name="tau2") for value in rewards),
        training_rewards=tuple(0.0 for _ in rewards),
    )


def make_buffer(capacity: int = 100, seed: int = 0) -> TrajectoryBuffer:
    return TrajectoryBuffer(GRPOConfig(replay_buffer_size=capacity, seed=seed))


def keys(records: list[Experience]) -> list[tuple[str, int, int]]:
    return [(record.task.id, record.step, record.trajectory.seed) for record in records]


def test_a_record_tells_task_trajectory_reward_and_step() -> None:
    buffer = make_buffer()
    group = make_group(make_task("a"), [0.0, 1.0])
    buffer.add(group, 7)
    first, second = buffer.records("airline")
    assert first.task == group.task
    assert second.trajectory == group.trajectories[1]
    assert (first.reward, second.reward) == (0.0, 1.0)
    assert first.step == 7
    assert len(buffer) == 2
    assert buffer.domains == ["airline"]


def test_each_domain_has_its_own_room() -> None:
    buffer = make_buffer(capacity=3)
    for step in range(10):
        buffer.add(make_group(make_task("a"), [0.0, 1.0]), step)
        buffer.add(make_group(make_task("r", "retail"), [1.0]), step)
    sizes = {name: values["size"] for name, values in buffer.get_statistics().items()}
    assert sizes == {"airline": 3, "retail": 3}


def test_every_episode_is_kept_with_the_same_chance() -> None:
    kept: Counter[int] = Counter()
    runs, offers, capacity = 2000, 20, 5
    groups = [make_group(make_task(str(number)), [0.0]) for number in range(offers)]
    for run in range(runs):
        buffer = make_buffer(capacity, seed=run)
        for step, group in enumerate(groups):
            buffer.add(group, step)
        kept.update(record.step for record in buffer.records("airline"))
    # Binomial with mean 500 and standard deviation sqrt(2000 · 1/4 · 3/4) = 19.4.
    assert all(abs(kept[step] - 500) < 4 * 19.4 for step in range(offers))


def test_samples_are_different_records_and_at_most_all_of_them() -> None:
    buffer = make_buffer()
    for step in range(10):
        buffer.add(make_group(make_task(str(step)), [0.0, 1.0]), step)
    for strategy in STRATEGIES:
        assert len(set(keys(buffer.sample("airline", 8, strategy)))) == 8
        assert len(set(keys(buffer.sample("airline", 99, strategy)))) == 20
        assert buffer.sample("airline", 0, strategy) == []
        assert buffer.sample("unheard of", 3, strategy) == []


def test_high_reward_takes_the_best_and_leaves_equals_to_chance() -> None:
    buffer = make_buffer()
    rewards = [0.0, 1.0, 0.5, 1.0, 0.25, 1.0]
    buffer.add(make_group(make_task("a"), rewards), 0)
    assert [r.reward for r in buffer.sample("airline", 5, "high_reward")] == [1, 1, 1, 0.5, 0.25]
    firsts = {buffer.sample("airline", 1, "high_reward")[0].trajectory.seed for _ in range(50)}
    assert firsts == {1, 3, 5}


def test_recent_takes_the_newest_that_were_kept_newest_first() -> None:
    buffer = make_buffer(capacity=50)
    for step in range(500):
        buffer.add(make_group(make_task(str(step)), [0.0]), step)
    steps = [record.step for record in buffer.sample("airline", 10, "recent")]
    assert steps == sorted((r.step for r in buffer.records("airline")), reverse=True)[:10]


def test_has_variance_takes_tasks_that_went_well_and_badly() -> None:
    buffer = make_buffer()
    buffer.add(make_group(make_task("always"), [1.0, 1.0]), 0)
    buffer.add(make_group(make_task("never"), [0.0, 0.0]), 0)
    buffer.add(make_group(make_task("sometimes"), [0.0, 1.0]), 0)
    buffer.add(make_group(make_task("at first"), [1.0]), 0)
    assert {r.task.id for r in buffer.sample("airline", 9, "has_variance")} == {"sometimes"}
    buffer.add(make_group(make_task("at first"), [0.0]), 1)
    drawn = buffer.sample("airline", 9, "has_variance")
    assert sorted(r.task.id for r in drawn) == ["at first"] * 2 + ["sometimes"] * 2


def test_an_unknown_strategy_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown sampling strategy 'recen'.*'recent'"):
        make_buffer().sample("airline", 1, "recen")  # pyright: ignore[reportArgumentType]


def test_several_domains_are_drawn_from_in_the_order_given() -> None:
    buffer = make_buffer()
    for domain in ("airline", "retail", "telecom"):
        buffer.add(make_group(make_task(domain, domain), [0.0, 1.0, 1.0]), 0)
    drawn = buffer.sample_multi_domain(domains=["telecom", "airline"], num_samples_per_domain=2)
    assert [record.task.domain for record in drawn] == ["telecom"] * 2 + ["airline"] * 2


def test_statistics_are_those_worked_out_by_hand() -> None:
    buffer = make_buffer()
    assert buffer.get_statistics() == {}
    buffer.add(make_group(make_task("a"), [0.0, 0.25, 1.0, 1.0]), 0)
    expected = {
        "size": 4,
        "seen": 4,
        "reward_mean": 0.5625,
        "reward_max": 1.0,
        "reward_min": 0.0,
        "num_high_reward": 2,
    }
    assert buffer.get_statistics() == {"airline": expected}
    assert buffer.get_statistics(high_reward=0.25)["airline"]["num_high_reward"] == 3


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(TaskDataError, match="task 'a' was rewarded with nan"):
        make_buffer().add(make_group(make_task("a"), [float("nan")]), 0)


def test_export_writes_the_good_ones_and_counts_them(tmp_path: Path) -> None:
    buffer = make_buffer()
    buffer.add(make_group(make_task("a"), [0.0, 0.5, 1.0]), 3)
    assert buffer.export_trajectories(tmp_path / "deep" / "all.jsonl") == 3
    assert buffer.export_trajectories(str(tmp_path / "good.jsonl"), min_reward=0.5) == 2
    assert buffer.export_trajectories(tmp_path / "none.jsonl", min_reward=1.1) == 0
    lines = (tmp_path / "good.jsonl").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [0.5, 1.0]
    assert Experience.model_validate_json(lines[1]) == buffer.records("airline")[2]


@given(
    offers=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0])), max_size=60
    ),
    cut=st.integers(0, 60),
    capacity=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_a_restored_buffer_goes_on_as_if_never_interrupted(
    tmp_path_factory: pytest.TempPathFactory,
    offers: list[tuple[str, float]],
    cut: int,
    capacity: int,
) -> None:
    groups = [make_group(make_task(name), [reward]) for name, reward in offers]
    whole, first, second = (make_buffer(capacity) for _ in range(3))
    for step, group in enumerate(groups[:cut]):
        whole.add(group, step)
        first.add(group, step)
    path = tmp_path_factory.getbasetemp() / "trajectories.json"
    first.save(path)
    second.load(path)
    for step, group in enumerate(groups[cut:], cut):
        whole.add(group, step)
        second.add(group, step)
    for strategy in STRATEGIES:
        for count in (1, 3, 30):
            drawn = [buffer.sample("airline", count, strategy) for buffer in (whole, second)]
            assert keys(drawn[0]) == keys(drawn[1])
    assert whole.get_statistics() == second.get_statistics()


@given(
    offers=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0])), min_size=1
    ),
    capacity=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_fast_draws_agree_with_looking_at_everything(
    offers: list[tuple[str, float]], capacity: int
) -> None:
    buffer = make_buffer(capacity)
    for step, (name, reward) in enumerate(offers):
        buffer.add(make_group(make_task(name), [reward]), step)
    records = list(buffer.records("airline"))
    rewards = {
        name: {r.reward for r in records if r.task.id == name}
        for name in {r.task.id for r in records}
    }
    varied = [r for r in records if len(rewards[r.task.id]) > 1]
    assert sorted(keys(buffer.sample("airline", 99, "has_variance"))) == sorted(keys(varied))
    best = [r.reward for r in buffer.sample("airline", 3, "high_reward")]
    assert best == sorted((r.reward for r in records), reverse=True)[:3]
    assert sorted(keys(buffer.sample("airline", 99))) == sorted(keys(records))


def test_a_saved_buffer_draws_what_the_living_one_draws(tmp_path: Path) -> None:
    buffer = make_buffer(capacity=20)
    for step in range(60):
        buffer.add(make_group(make_task(f"task [{step % 7}]|:/..", "telecom"), [step % 2]), step)
        buffer.add(make_group(make_task("a"), [0.0], text="half \ud800 pair"), step)
    buffer.save(tmp_path / "trajectories.json")
    loaded = make_buffer(capacity=20, seed=99)
    loaded.load(tmp_path / "trajectories.json")
    assert loaded.domains == buffer.domains
    assert loaded.records("telecom") == buffer.records("telecom")
    for strategy in STRATEGIES:
        drawn = [keys(b.sample("telecom", 5, strategy)) for b in (buffer, loaded)]
        assert drawn[0] == drawn[1]
    document = json.loads((tmp_path / "trajectories.json").read_text())
    assert document["domains"]["airline"]["records"][0]["trajectory"]["task"]["id"] == "a"


def test_an_empty_buffer_is_saved_and_loaded(tmp_path: Path) -> None:
    make_buffer().save(tmp_path / "empty.json")
    buffer = make_buffer()
    buffer.load(tmp_path / "empty.json")
    assert len(buffer) == 0


def test_a_larger_file_can_be_inspected_with_any_config(tmp_path: Path) -> None:
    buffer = make_buffer(capacity=50)
    buffer.add(make_group(make_task("a"), [0.0] * 50), 0)
    buffer.save(tmp_path / "large.json")
    small = make_buffer(capacity=10)
    small.load(tmp_path / "large.json")
    small.add(make_group(make_task("b"), [1.0] * 50), 1)
    assert len(small) == 50
    assert 0 < small.get_statistics()["airline"]["num_high_reward"] < 50


@pytest.mark.parametrize(
    "content",
    [
        '{"rng": ',
        "[]",
        "{}",
        '{"rng": [3, [1], null], "domains": {}}',
        '{"rng": [3, [], null], "domains": {"airline": {"records": [{}]}}}',
    ],
)
def test_a_file_that_is_no_buffer_is_refused_and_changes_nothing(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "trajectories.json"
    path.write_text(content)
    buffer = make_buffer()
    buffer.add(make_group(make_task("a"), [1.0]), 0)
    with pytest.raises(TaskDataError, match=r"trajectories\.json is no"):
        buffer.load(path)
    assert len(buffer) == 1
    with pytest.raises(ConfigError, match="cannot read trajectories"):
        buffer.load(tmp_path / "nowhere.json")


def test_slots_that_do_not_fit_the_records_are_refused(tmp_path: Path) -> None:
    buffer, path = make_buffer(), tmp_path / "trajectories.json"
    buffer.add(make_group(make_task("a"), [0.0, 1.0]), 0)
    for field, value in (("varied", []), ("by_reward", [[0.0, [0, 1]]]), ("offers", [1])):
        buffer.save(path)
        state = json.loads(path.read_text())
        state["domains"]["airline"][field] = value
        path.write_text(json.dumps(state))
        with pytest.raises(TaskDataError, match=r"fit the records|as many offers"):
            make_buffer().load(path)


def test_chance_may_be_passed_in() -> None:
    drawn: list[list[tuple[str, int, int]]] = []
    for seed in (1, 1, 2):
        buffer = TrajectoryBuffer(GRPOConfig(), rng=Random(seed))
        buffer.add(make_group(make_task("a"), [0.0] * 30), 0)
        drawn.append(keys(buffer.sample("airline", 10)))
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_a_hundred_thousand_records_do_not_slow_it_down() -> None:
    buffer = make_buffer(capacity=100_000)
    groups = [make_group(make_task(str(n)), [0.0, n / 977, 1.0, 1.0]) for n in range(977)]

    def seconds_of_adding(count: int) -> float:
        start = perf_counter()
        for step in range(count):
            buffer.add(groups[step % 977], step)
        return perf_counter() - start

    seconds_of_adding(22_500)
    full = min(seconds_of_adding(2_500) for _ in range(4))
    assert len(buffer) == 100_000
    assert full / 10_000 < 0.001
    for strategy in STRATEGIES:
        start = perf_counter()
        for _ in range(100):
            buffer.sample("airline", 32, strategy)
        assert (perf_counter() - start) / 100 < 0.005
