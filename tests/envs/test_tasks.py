import json
import warnings
from collections import Counter

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.envs.generation.tasks import GENERATOR_RELEASE
from grpo_cl.envs.tasks import TaskDataLoader, difficulty
from grpo_cl.errors import ConfigError


def loader(**options: object) -> TaskDataLoader:
    fields = {"task_order": ("airline",), "tau2_data_dir": None, **options}
    return TaskDataLoader(GRPOConfig.model_validate(fields))


STRATEGIES = ["random", "epoch", "curriculum", "weighted"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_batches_contain_no_test_task(strategy: str) -> None:
    tasks = loader(tasks={"strategy": strategy})
    held_out = {task.id for task in tasks.evaluation_tasks("airline")}
    drawn = {task.id for _ in range(20) for task in tasks.next_batch("airline", 8)}
    assert drawn
    assert not drawn & held_out


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_depend_on_the_seed_and_resume_from_a_state_dict(strategy: str) -> None:
    first, second = loader(tasks={"strategy": strategy}), loader(tasks={"strategy": strategy})
    for tasks in (first, second):
        for task in tasks.next_batch("airline", 6):
            tasks.observe(task, successes=len(task.id), trials=4)
    state = json.loads(json.dumps(first.state_dict()))
    expected = [task.id for _ in range(3) for task in first.next_batch("airline", 7)]
    assert [task.id for _ in range(3) for task in second.next_batch("airline", 7)] == expected
    resumed = loader(tasks={"strategy": strategy})
    resumed.load_state_dict(state)
    assert [task.id for _ in range(3) for task in resumed.next_batch("airline", 7)] == expected
    different = loader(tasks={"strategy": strategy}, seed=1)
    assert [task.id for _ in range(4) for task in different.next_batch("airline", 7)] != expected


def test_an_epoch_draws_every_task_exactly_once() -> None:
    tasks = loader()
    for _ in range(2):
        drawn = Counter(task.id for _ in range(3) for task in tasks.next_batch("airline", 10))
        assert set(drawn.values()) == {1}
        assert len(drawn) == 30


def test_a_batch_across_two_epochs_has_full_size() -> None:
    tasks = loader()
    tasks.next_batch("airline", 25)
    assert len(tasks.next_batch("airline", 10)) == 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_a_batch_larger_than_the_domain_repeats_tasks(strategy: str) -> None:
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


def test_the_weighted_strategy_prefers_tasks_that_sometimes_succeed() -> None:
    tasks = loader(tasks={"strategy": "weighted"})
    train_tasks = tasks.train_tasks("airline")
    for task in train_tasks:
        mixed = task is train_tasks[0] or task is train_tasks[1]
        tasks.observe(task, successes=5 if mixed else 0, trials=10 if mixed else 50)
    drawn = Counter(task.id for _ in range(200) for task in tasks.next_batch("airline", 2))
    top = {task_id for task_id, _ in drawn.most_common(2)}
    assert top == {train_tasks[0].id, train_tasks[1].id}
    assert len(drawn) > 2
    batches = [tasks.next_batch("airline", 8) for _ in range(100)]
    mixed = [[task.id in top for task in batch] for batch in batches]
    # Replacements take the last places of a batch, so the preferred tasks come first.
    assert sum(sum(row[:4]) for row in mixed) > 2 * sum(sum(row[4:]) for row in mixed)


@pytest.mark.parametrize(("name", "own"), [("airline", 30), ("memory", 74)])
def test_generated_tasks_are_added_to_the_training_tasks(name: str, own: int) -> None:
    tasks = loader(task_order=(name,), tasks={"generated": 12, "difficulty": 0.0})
    assert len(tasks.train_tasks(name)) == own + 12
    assert all("gen-train" in task.id for task in tasks.train_tasks(name)[own:])


def test_each_domain_can_have_its_own_difficulty() -> None:
    options = {"own": False, "generated": 2, "difficulty": {"airline": 0.0, "retail": 0.75}}
    tasks = loader(task_order=("airline", "retail"), tasks=options)
    difficulties = [
        task.difficulty for name in ("airline", "retail") for task in tasks.train_tasks(name)
    ]
    assert difficulties == [0.0, 0.0, 0.75, 0.75]


def test_a_domain_without_splits_is_divided_equally_for_every_seed() -> None:
    splits = []
    for seed in (0, 1):
        tasks = loader(task_order=("banking_knowledge",), train_split=0.75, seed=seed)
        train = [task.id for task in tasks.train_tasks("banking_knowledge")]
        test = [task.id for task in tasks.evaluation_tasks("banking_knowledge")]
        assert (len(train), len(test)) == (73, 24)
        assert not set(train) & set(test)
        splits.append((train, test))
    assert splits[0] == splits[1]


def test_a_domain_without_a_generator_trains_on_its_own_tasks_only() -> None:
    tasks = loader(task_order=("mock", "toy_left"), tasks={"generated": 5})
    assert len(tasks.train_tasks("mock")) == len(loader(task_order=("mock",)).train_tasks("mock"))
    assert len(tasks.train_tasks("toy_left")) == 8 + 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task_order": ("toy_left",), "tasks": {"own": False}},
            "'toy_left' has no training tasks: tasks.own=false and tasks.generated=0; set "
            "tasks.own=true or tasks.generated above 0",
        ),
        (
            {"task_order": ("mock",), "tasks": {"own": False, "generated": 9}},
            "'mock' has no training tasks: tasks.own=false and no task generator; set "
            "tasks.own=true",
        ),
        (
            {"task_order": ("banking_knowledge",), "train_split": 0.001},
            "'banking_knowledge' has no training tasks: train_split=0.001 and no task generator; "
            "raise train_split",
        ),
    ],
)
def test_a_domain_without_training_tasks_is_refused_with_the_setting_to_change(
    options: dict[str, object], message: str
) -> None:
    tasks = loader(**options)
    (domain,) = tasks.domains
    for refused in (tasks.require_train_tasks, lambda name: tasks.next_batch(name, 1)):
        with pytest.raises(ConfigError) as caught:
            refused(domain)
        assert str(caught.value) == f"domain {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task_order": ("airline",), "tasks": {"eval_split": "dev"}},
            "domain 'airline' has no split 'dev'; known: base, test, train",
        ),
        (
            {"task_order": ("banking_knowledge",), "tasks": {"eval_split": "dev"}},
            "domain 'banking_knowledge' has no split 'dev'; known: base, test, train",
        ),
        (
            {"task_order": ("mock",), "evaluation": {"generated": 4}},
            "evaluation.generated=4 needs a task generator, which domain 'mock' does not have",
        ),
        (
            {"task_order": ("banking_knowledge",), "train_split": 0.999},
            "split 'test' of domain 'banking_knowledge' has no task with train_split=0.999",
        ),
    ],
)
def test_a_domain_without_evaluation_tasks_is_refused(
    options: dict[str, object], message: str
) -> None:
    tasks = loader(**options)
    with pytest.raises(ConfigError, match=message):
        tasks.require_evaluation_tasks(tasks.config.task_order[0])


def test_max_tasks_per_domain_limits_training_and_evaluation_max_tasks_evaluation() -> None:
    tasks = loader(task_order=("toy_left",), max_tasks_per_domain=2)
    assert (len(tasks.train_tasks("toy_left")), len(tasks.evaluation_tasks("toy_left"))) == (2, 8)
    for generated in (0, 6):
        limited = loader(
            task_order=("toy_left",), evaluation={"max_tasks": 3, "generated": generated}
        )
        assert len(limited.evaluation_tasks("toy_left")) == 3
        assert len(limited.train_tasks("toy_left")) == 8


def test_evaluating_on_training_tasks_warns() -> None:
    tasks = loader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(tasks.evaluation_tasks("airline")) == 20
    with pytest.warns(UserWarning, match="30 of the 50 tasks of airline/base are training tasks"):
        tasks.evaluation_tasks("airline", "base")


def test_a_domain_outside_the_task_order_is_rejected() -> None:
    with pytest.raises(ConfigError, match="'retail' is not in task_order"):
        loader().next_batch("retail", 1)


def test_releases_name_source_and_hash() -> None:
    assert loader().releases["airline"].startswith("inspect-evals 0.26.0 airline tasks sha256:")


@pytest.mark.parametrize("section", ["tasks", "evaluation"])
def test_releases_name_that_of_generated_tasks_where_they_are_used(section: str) -> None:
    own = loader().releases["airline"]
    generated = f"{own}, generated tasks of release {GENERATOR_RELEASE}"
    options: dict[str, dict[str, object]] = {section: {"generated": 4}}
    assert loader(**options).releases["airline"] == generated
    options["tasks"] = options.get("tasks", {}) | {"wording": "varied"}
    assert loader(**options).releases["airline"] == f"{generated} in varied wording 2"
    without = loader(task_order=("toy_left",), tasks={"generated": 4})
    assert without.releases["toy_left"] == without.domains["toy_left"].release


def test_a_task_has_the_release_of_its_origin() -> None:
    retail = load_domain("retail")
    (task,) = retail.generate(seed=0, count=1)
    assert retail.release_of(task) == retail.release_with_generated != retail.release
    assert retail.release_of(retail.tasks("test")[0]) == retail.release
