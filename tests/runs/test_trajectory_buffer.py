import cProfile
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError, TaskDataError
from grpo_cl.runs.buffer_exports import read_table
from grpo_cl.runs.reservoir import NUM_LATEST, Experience, Strategy
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.types import (
    Message,
    Reward,
    RewardType,
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


def record_keys(records: list[Experience]) -> list[tuple[str, int, int]]:
    return [(record.task.id, record.step, record.trajectory.seed) for record in records]


def test_a_record_has_task_trajectory_reward_and_step() -> None:
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


def test_each_domain_has_its_own_capacity() -> None:
    buffer = make_buffer(capacity=3)
    for step in range(10):
        buffer.add(make_group(make_task("a"), [0.0, 1.0]), step)
        buffer.add(make_group(make_task("r", "retail"), [1.0]), step)
    sizes = {name: values["size"] for name, values in buffer.get_statistics().items()}
    assert sizes == {"airline": 3, "retail": 3}


def test_every_episode_is_kept_with_equal_probability() -> None:
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


def test_samples_are_distinct_and_at_most_all_records() -> None:
    buffer = make_buffer()
    for step in range(10):
        buffer.add(make_group(make_task(str(step)), [0.0, 1.0]), step)
    for strategy in STRATEGIES:
        assert len(set(record_keys(buffer.sample("airline", 8, strategy)))) == 8
        assert len(set(record_keys(buffer.sample("airline", 99, strategy)))) == 20
        assert buffer.sample("airline", 0, strategy) == []
        assert buffer.sample("unknown", 3, strategy) == []


def test_high_reward_takes_the_best_and_breaks_ties_at_random() -> None:
    buffer = make_buffer()
    rewards = [0.0, 1.0, 0.5, 1.0, 0.25, 1.0]
    buffer.add(make_group(make_task("a"), rewards), 0)
    assert [r.reward for r in buffer.sample("airline", 5, "high_reward")] == [1, 1, 1, 0.5, 0.25]
    firsts = {buffer.sample("airline", 1, "high_reward")[0].trajectory.seed for _ in range(50)}
    assert firsts == {1, 3, 5}


def test_recent_returns_the_last_episodes_and_then_the_newest_kept_ones() -> None:
    buffer = make_buffer(capacity=50)
    for step in range(1000):
        buffer.add(make_group(make_task(str(step)), [0.0]), step)
    steps = [record.step for record in buffer.sample("airline", NUM_LATEST + 10, "recent")]
    assert steps[:NUM_LATEST] == list(reversed(range(1000 - NUM_LATEST, 1000)))
    kept = sorted((r.step for r in buffer.records("airline")), reverse=True)
    older = [step for step in kept if step < 1000 - NUM_LATEST]
    assert steps[NUM_LATEST:] == older[:10]
    assert [r.step for r in buffer.sample("airline", 3, "recent")] == [999, 998, 997]


def test_last_episodes_are_restored_from_a_file(tmp_path: Path) -> None:
    buffer, restored = make_buffer(capacity=20), make_buffer(capacity=20)
    for step in range(300):
        buffer.add(make_group(make_task(str(step)), [0.0]), step)
    buffer.save(tmp_path / "buffer.json")
    restored.load(tmp_path / "buffer.json")
    for own in (buffer, restored):
        own.add(make_group(make_task("next"), [1.0]), 300)
    expected, found = (own.sample("airline", 999, "recent") for own in (buffer, restored))
    assert [record.step for record in found] == [record.step for record in expected]
    assert found[1:] == expected[1:]  # the first was added at two times


def test_has_variance_samples_tasks_with_different_rewards() -> None:
    buffer = make_buffer()
    buffer.add(make_group(make_task("always"), [1.0, 1.0]), 0)
    buffer.add(make_group(make_task("never"), [0.0, 0.0]), 0)
    buffer.add(make_group(make_task("sometimes"), [0.0, 1.0]), 0)
    buffer.add(make_group(make_task("at first"), [1.0]), 0)
    assert {r.task.id for r in buffer.sample("airline", 9, "has_variance")} == {"sometimes"}
    buffer.add(make_group(make_task("at first"), [0.0]), 1)
    sampled = buffer.sample("airline", 9, "has_variance")
    assert sorted(r.task.id for r in sampled) == ["at first"] * 2 + ["sometimes"] * 2


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown sampling strategy 'recen'.*'recent'"):
        make_buffer().sample("airline", 1, "recen")  # pyright: ignore[reportArgumentType]


def test_several_domains_are_sampled_in_the_given_order() -> None:
    buffer = make_buffer()
    for domain in ("airline", "retail", "telecom"):
        buffer.add(make_group(make_task(domain, domain), [0.0, 1.0, 1.0]), 0)
    sampled = buffer.sample_multi_domain(domains=["telecom", "airline"], num_samples_per_domain=2)
    assert [record.task.domain for record in sampled] == ["telecom"] * 2 + ["airline"] * 2


def test_statistics_match_hand_computed_values() -> None:
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


def test_a_nan_reward_is_refused() -> None:
    with pytest.raises(TaskDataError, match="task 'a' has the reward nan"):
        make_buffer().add(make_group(make_task("a"), [float("nan")]), 0)


def test_export_writes_and_counts_records_above_the_minimum_reward(tmp_path: Path) -> None:
    buffer = make_buffer()
    buffer.add(make_group(make_task("a"), [0.0, 0.5, 1.0]), 3)
    assert buffer.export_trajectories(tmp_path / "deep" / "all.jsonl") == 3
    assert buffer.export_trajectories(str(tmp_path / "good.jsonl"), min_reward=0.5) == 2
    assert buffer.export_trajectories(tmp_path / "none.jsonl", min_reward=1.1) == 0
    lines = (tmp_path / "good.jsonl").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [0.5, 1.0]
    assert Experience.model_validate_json(lines[1]) == buffer.records("airline")[2]


def scored_buffer() -> TrajectoryBuffer:
    """Episodes of two domains with components, advantages per turn and none."""
    buffer = make_buffer()
    group = make_group(make_task("a"), [0.0, 1.0])
    parts = {RewardType.DB: 0.0, RewardType.COMMUNICATE: 1.0}
    reward = Reward(value=0.0, basis=tuple(parts), basis_name="judge_free", components=parts)
    group = group.model_copy(update={"rewards": (reward, group.rewards[1])})
    buffer.add(group, 3, [(0.25, -0.5), None])
    buffer.add(make_group(make_task("r", "retail"), [1.0], text="half \ud800 pair"), 4, [0.5])
    return buffer


def test_a_record_has_a_timestamp_and_the_components_of_its_reward() -> None:
    before = datetime.now(UTC)
    first, second = scored_buffer().records("airline")
    assert first.components == {RewardType.DB: 0.0, RewardType.COMMUNICATE: 1.0}
    assert (first.basis_name, second.basis_name, second.components) == ("judge_free", "tau2", {})
    assert first.timestamp is not None
    assert abs(datetime.fromisoformat(first.timestamp) - before).total_seconds() < 60


def test_records_of_earlier_files_have_no_timestamp_and_no_components(tmp_path: Path) -> None:
    buffer, path = scored_buffer(), tmp_path / "trajectories.json"
    buffer.save(path)
    state = json.loads(path.read_text())
    for domain in state["domains"].values():
        for record in domain["records"]:
            for field in ("timestamp", "components", "basis_name"):
                del record[field]
    path.write_text(json.dumps(state))
    earlier = make_buffer()
    earlier.load(path)
    (record,) = earlier.records("retail")
    assert (record.reward, record.timestamp, record.components) == (1.0, None, {})


def test_a_json_export_is_an_array_of_records(tmp_path: Path) -> None:
    buffer, path = scored_buffer(), tmp_path / "deep" / "x.json"
    assert buffer.export_trajectories(path, min_reward=0.5) == 2
    entries = json.loads(path.read_text())
    assert [entry["trajectory"]["task"]["id"] for entry in entries] == ["a", "r"]
    assert Experience.model_validate(entries[0]) == buffer.records("airline")[1]
    assert buffer.export_trajectories(path, min_reward=2.0) == 0
    assert json.loads(path.read_text()) == []


def test_a_parquet_export_is_a_table_with_one_row_per_record(tmp_path: Path) -> None:
    buffer, path = scored_buffer(), tmp_path / "deep" / "x.parquet"
    assert buffer.export_trajectories(path) == 3
    rows = parquet.read_table(path).to_pylist()
    assert [(row["domain"], row["task_id"], row["reward"]) for row in rows] == [
        ("airline", "a", 0.0),
        ("airline", "a", 1.0),
        ("retail", "r", 1.0),
    ]
    assert (rows[0]["components"]["DB"], rows[0]["components"]["COMMUNICATE"]) == (0.0, 1.0)
    assert (rows[0]["components"]["ACTION"], rows[0]["step"]) == (None, 3)
    records = list(read_table(path))
    assert records[:2] == list(buffer.records("airline"))
    assert records[2].timestamp == rows[2]["timestamp"] == buffer.records("retail")[0].timestamp
    assert make_buffer().export_trajectories(path) == 0
    assert list(read_table(path)) == []


@pytest.mark.parametrize("name", ["x", "x.csv", "x.json.gz"])
def test_an_export_to_another_format_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"must be one of \.jsonl, \.json, \.parquet"):
        scored_buffer().export_trajectories(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_an_export_that_cannot_be_written_is_an_error_with_its_path(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=rf"cannot write .*file/x\{suffix}"):
        scored_buffer().export_trajectories(tmp_path / "file" / f"x{suffix}")


@given(
    offers=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0])), max_size=60
    ),
    cut=st.integers(0, 60),
    capacity=st.integers(1, 12),
)
@settings(max_examples=60)
def test_a_restored_buffer_continues_as_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory,
    offers: list[tuple[str, float]],
    cut: int,
    capacity: int,
) -> None:
    groups = [make_group(make_task(name), [reward]) for name, reward in offers]
    uninterrupted, first, second = (make_buffer(capacity) for _ in range(3))
    for step, group in enumerate(groups[:cut]):
        uninterrupted.add(group, step)
        first.add(group, step)
    path = tmp_path_factory.getbasetemp() / "trajectories.json"
    first.save(path)
    second.load(path)
    for step, group in enumerate(groups[cut:], cut):
        uninterrupted.add(group, step)
        second.add(group, step)
    for strategy in STRATEGIES:
        for count in (1, 3, 30):
            sampled = [
                buffer.sample("airline", count, strategy) for buffer in (uninterrupted, second)
            ]
            assert record_keys(sampled[0]) == record_keys(sampled[1])
    assert uninterrupted.get_statistics() == second.get_statistics()


@given(
    offers=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0])), min_size=1
    ),
    capacity=st.integers(1, 12),
)
@settings(max_examples=60)
def test_indexed_samples_match_a_full_scan(offers: list[tuple[str, float]], capacity: int) -> None:
    buffer = make_buffer(capacity)
    for step, (name, reward) in enumerate(offers):
        buffer.add(make_group(make_task(name), [reward]), step)
    records = list(buffer.records("airline"))
    rewards = {
        name: {r.reward for r in records if r.task.id == name}
        for name in {r.task.id for r in records}
    }
    varied = [r for r in records if len(rewards[r.task.id]) > 1]
    assert sorted(record_keys(buffer.sample("airline", 99, "has_variance"))) == sorted(
        record_keys(varied)
    )
    best = [r.reward for r in buffer.sample("airline", 3, "high_reward")]
    assert best == sorted((r.reward for r in records), reverse=True)[:3]
    assert sorted(record_keys(buffer.sample("airline", 99))) == sorted(record_keys(records))


def test_a_loaded_buffer_samples_the_same_records_as_the_saved_one(tmp_path: Path) -> None:
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
        sampled = [record_keys(b.sample("telecom", 5, strategy)) for b in (buffer, loaded)]
        assert sampled[0] == sampled[1]
    document = json.loads((tmp_path / "trajectories.json").read_text())
    assert document["domains"]["airline"]["records"][0]["trajectory"]["task"]["id"] == "a"


def test_an_empty_buffer_can_be_saved_and_loaded(tmp_path: Path) -> None:
    make_buffer().save(tmp_path / "empty.json")
    buffer = make_buffer()
    buffer.load(tmp_path / "empty.json")
    assert len(buffer) == 0


def test_a_file_larger_than_the_capacity_can_be_loaded(tmp_path: Path) -> None:
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
def test_an_invalid_file_is_refused_and_leaves_the_buffer_unchanged(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "trajectories.json"
    path.write_text(content)
    buffer = make_buffer()
    buffer.add(make_group(make_task("a"), [1.0]), 0)
    with pytest.raises(TaskDataError, match=r"trajectories\.json is not"):
        buffer.load(path)
    assert len(buffer) == 1
    with pytest.raises(ConfigError, match="cannot read trajectories"):
        buffer.load(tmp_path / "nowhere.json")


def test_slots_that_do_not_match_the_records_are_refused(tmp_path: Path) -> None:
    buffer, path = make_buffer(), tmp_path / "trajectories.json"
    buffer.add(make_group(make_task("a"), [0.0, 1.0]), 0)
    for field, value in (("varied", []), ("by_reward", [[0.0, [0, 1]]]), ("offers", [1])):
        buffer.save(path)
        state = json.loads(path.read_text())
        state["domains"]["airline"][field] = value
        path.write_text(json.dumps(state))
        with pytest.raises(TaskDataError, match=r"match the records|number of offers differs"):
            make_buffer().load(path)


def test_a_random_generator_may_be_passed_in() -> None:
    sampled: list[list[tuple[str, int, int]]] = []
    for seed in (1, 1, 2):
        buffer = TrajectoryBuffer(GRPOConfig(), rng=Random(seed))
        buffer.add(make_group(make_task("a"), [0.0] * 30), 0)
        sampled.append(record_keys(buffer.sample("airline", 10)))
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.slow
def test_work_of_adding_and_sampling_does_not_grow_with_the_buffer() -> None:
    """Counted in function calls, which no other load on the machine changes."""
    groups = [make_group(make_task(str(n)), [0.0, n / 977, 1.0, 1.0]) for n in range(977)]
    small, large = (filled_buffer(capacity, groups) for capacity in (2_000, 50_000))
    works: list[Callable[[TrajectoryBuffer], object]] = [
        lambda buffer: [buffer.add(group, step) for step, group in enumerate(groups)],
        *(
            lambda buffer, strategy=strategy: buffer.sample("airline", 32, strategy)
            for strategy in STRATEGIES
        ),
    ]
    for work in works:
        assert num_calls(work, large) < 1.5 * num_calls(work, small)


def filled_buffer(capacity: int, groups: list[TrajectoryGroup]) -> TrajectoryBuffer:
    buffer = make_buffer(capacity)
    for step in range(capacity // 4):
        buffer.add(groups[step % len(groups)], step)
    assert len(buffer) == capacity
    return buffer


def num_calls(work: Callable[[TrajectoryBuffer], object], buffer: TrajectoryBuffer) -> int:
    profile = cProfile.Profile()
    profile.runcall(work, buffer)
    return sum(entry.callcount for entry in profile.getstats())


def test_episodes_of_a_loaded_buffer_are_read_from_its_file_when_drawn(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.json"
    buffer = make_buffer(capacity=40)
    for step in range(30):
        buffer.add(make_group(make_task(str(step % 3)), [step % 2, 1.0]), step)
    buffer.save(path)
    loaded = make_buffer(capacity=40)
    loaded.load(path)
    path.unlink()  # a run deletes old checkpoints
    for step in range(30, 60):
        for each in (buffer, loaded):
            each.add(make_group(make_task(str(step % 3)), [step % 2, 1.0]), step)
    for strategy in STRATEGIES:
        sampled = [record_keys(b.sample("airline", 9, strategy)) for b in (buffer, loaded)]
        assert sampled[0] == sampled[1]
    assert loaded.get_statistics() == buffer.get_statistics()
    loaded.save(tmp_path / "loaded.json")
    again = make_buffer(capacity=40)
    again.load(tmp_path / "loaded.json")
    assert record_keys(list(again.records("airline"))) == record_keys(
        list(buffer.records("airline"))
    )


def test_a_file_in_another_layout_and_of_the_first_format_loads_the_same(tmp_path: Path) -> None:
    path, other, first = (tmp_path / f"{name}.json" for name in ("lines", "other", "first"))
    buffer = make_buffer(capacity=20)
    for step in range(30):
        buffer.add(make_group(make_task(str(step % 3)), [step % 2]), step)
        buffer.add(make_group(make_task("a", "telecom"), [0.5]), step)
    buffer.save(path)
    document = json.loads(path.read_text())
    other.write_text(json.dumps(document, indent=1))
    lines = path.read_text().replace('{"format": 2, ', "{")
    for saved in document["domains"].values():
        lines = lines.replace(f'"by_task": {json.dumps(saved["by_task"])}, ', "")
    first.write_text(lines)
    assert "by_task" not in first.read_text()
    for file in (path, other, first):
        loaded = make_buffer(capacity=20, seed=7)
        loaded.load(file)
        assert list(loaded.records("airline")) == list(buffer.records("airline"))
        for strategy in STRATEGIES:
            expected = make_buffer(capacity=20)
            expected.load(path)
            sampled = [b.sample("telecom", 5, strategy) for b in (loaded, expected)]
            assert record_keys(sampled[0]) == record_keys(sampled[1])
            loaded.load(file)


def test_an_episode_that_is_damaged_in_the_file_of_a_loaded_buffer_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trajectories.json"
    buffer = make_buffer()
    buffer.add(make_group(make_task("a"), [0.0, 1.0]), 0)
    buffer.save(path)
    loaded = make_buffer()
    loaded.load(path)
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content.replace(b'"reward": 0.0', b'"reward": 0.9', 1))
    with pytest.raises(TaskDataError, match="was damaged while it was in use"):
        list(loaded.records("airline"))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.json"
    make_buffer().save(path)
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(TaskDataError, match="it has format 3, and this version reads formats 1 to"):
        make_buffer().load(path)
