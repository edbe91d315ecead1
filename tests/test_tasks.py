import json
import warnings
from collections import Counter

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.tasks import TaskDataLoader, difficulty


def loader(**options: object) -> TaskDataLoader:
    fields = {"task_order": ("airline",), "tau2_data_dir": None, **options}
    return TaskDataLoader(GRPOConfig.model_validate(fields))


STRATEGIES = ["random", "epoch", "curriculum", "weighted"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_never_sees_a_test_id(strategy: str) -> None:
    tasks = loader(tasks={"strategy": strategy})
    held_out = {task.id for task in tasks.evaluation_tasks("airline")}
    drawn = {task.id for _ in range(20) for task in tasks.next_batch("airline", 8)}
    assert drawn
    assert not drawn & held_out


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_seed_decides_the_batches_and_a_position_is_a_state(strategy: str) -> None:
    one, other = loader(tasks={"strategy": strategy}), loader(tasks={"strategy": strategy})
    for tasks in (one, other):
        for task in tasks.next_batch("airline", 6):
            tasks.observe(task, successes=len(task.id), trials=4)
    state = json.loads(json.dumps(one.state_dict()))
    expected = [task.id for _ in range(3) for task in one.next_batch("airline", 7)]
    assert [task.id for _ in range(3) for task in other.next_batch("airline", 7)] == expected
    resumed = loader(tasks={"strategy": strategy})
    resumed.load_state_dict(state)
    assert [task.id for _ in range(3) for task in resumed.next_batch("airline", 7)] == expected
    different = loader(tasks={"strategy": strategy}, seed=1)
    assert [task.id for _ in range(4) for task in different.next_batch("airline", 7)] != expected


def test_an_epoch_draws_every_task_once_before_any_again() -> None:
    tasks = loader()
    for _ in range(2):
        drawn = Counter(task.id for _ in range(3) for task in tasks.next_batch("airline", 10))
        assert set(drawn.values()) == {1}
        assert len(drawn) == 30


def test_a_batch_across_two_epochs_is_full() -> None:
    tasks = loader()
    tasks.next_batch("airline", 25)
    assert len(tasks.next_batch("airline", 10)) == 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_larger_than_the_domain_repeats_tasks_only_then(strategy: str) -> None:
    tasks = loader(tasks={"strategy": strategy}, max_tasks_per_domain=3)
    assert len({task.id for task in tasks.next_batch("airline", 3)}) == 3
    assert len(tasks.next_batch("airline", 8)) == 8


def test_a_curriculum_goes_from_easy_to_hard() -> None:
    options = {"strategy": "curriculum", "curriculum_draws": 200, "generated": 300}
    tasks = loader(tasks=options)
    means = []
    for _ in range(10):
        batch = tasks.next_batch("airline", 40)
        means.append(sum(map(difficulty, batch)) / 40)
    assert means[0] < 0.15
    assert means[-1] > means[0] + 0.15


def test_weights_favour_tasks_that_sometimes_succeed() -> None:
    tasks = loader(tasks={"strategy": "weighted"})
    known = tasks.train_tasks("airline")
    for task in known:
        mixed = task is known[0] or task is known[1]
        tasks.observe(task, successes=5 if mixed else 0, trials=10 if mixed else 50)
    drawn = Counter(task.id for _ in range(200) for task in tasks.next_batch("airline", 2))
    top = {task_id for task_id, _ in drawn.most_common(2)}
    assert top == {known[0].id, known[1].id}
    assert len(drawn) > 2
    batches = [tasks.next_batch("airline", 8) for _ in range(100)]
    mixed = [[task.id in top for task in batch] for batch in batches]
    # Who displaces some of a batch takes the last places, and those with most to learn come first.
    assert sum(sum(row[:4]) for row in mixed) > 2 * sum(sum(row[4:]) for row in mixed)


@pytest.mark.parametrize(("name", "own"), [("airline", 30), ("memory", 74)])
def test_generated_tasks_join_the_training_tasks(name: str, own: int) -> None:
    tasks = loader(task_order=(name,), tasks={"generated": 12, "difficulty": 0.0})
    assert len(tasks.train_tasks(name)) == own + 12
    assert all("gen-train" in task.id for task in tasks.train_tasks(name)[own:])


def test_each_domain_may_have_a_difficulty_of_its_own() -> None:
    asked = {"own": False, "generated": 2, "difficulty": {"airline": 0.0, "retail": 0.75}}
    tasks = loader(task_order=("airline", "retail"), tasks=asked)
    made = [task.difficulty for name in ("airline", "retail") for task in tasks.train_tasks(name)]
    assert made == [0.0, 0.0, 0.75, 0.75]


def test_a_domain_without_a_split_is_cut_the_same_way_for_every_seed() -> None:
    halves = []
    for seed in (0, 1):
        tasks = loader(task_order=("banking_knowledge",), train_split=0.75, seed=seed)
        train = [task.id for task in tasks.train_tasks("banking_knowledge")]
        test = [task.id for task in tasks.evaluation_tasks("banking_knowledge")]
        assert (len(train), len(test)) == (73, 24)
        assert not set(train) & set(test)
        halves.append((train, test))
    assert halves[0] == halves[1]


def test_evaluating_on_training_tasks_warns() -> None:
    tasks = loader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(tasks.evaluation_tasks("airline")) == 20
    with pytest.warns(UserWarning, match="30 of the 50 tasks of airline/base are training tasks"):
        tasks.evaluation_tasks("airline", "base")


def test_a_domain_outside_the_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="'retail' is not in task_order"):
        loader().next_batch("retail", 1)


def test_releases_are_on_record() -> None:
    assert loader().releases["airline"].startswith("inspect-evals 0.26.0 airline tasks sha256:")
