"""The baselines of the algorithms: joint training, and one policy per domain (single)."""

from collections import Counter
from pathlib import Path

import pytest

from grpo_cl.algorithms.joint import JointCL
from grpo_cl.errors import ConfigError
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from toy_resume import fingerprint, runtime
from toy_runs import scores, toy_config, toy_run


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """The R-matrix of plain training."""
    return scores(toy_run(tmp_path_factory.mktemp("runs") / "plain").config.log_dir)


ORDER = ("toy_left", "toy_right", "toy_up")


def joint_batches(trainer: GRPOTrainer, domain: str, count: int) -> list[Counter[str]]:
    """The number of tasks per domain in ``count`` batches of a stage."""
    found: list[Counter[str]] = []
    for _ in range(count):
        new_tasks = trainer.tasks.next_batch(domain, trainer.config.tasks_per_step(world_size=1))
        tasks = trainer.cl_algorithm.augment_batch(new_tasks, domain)
        found.append(Counter(task.domain for task in tasks))
    return found


def joint_trainer(folder: Path, **changes: object) -> GRPOTrainer:
    return GRPOTrainer(toy_config(folder, cl_algorithm="joint", **changes))


def test_joint_draws_all_domains_equally_without_larger_batches(tmp_path: Path):
    trainer = joint_trainer(tmp_path, task_order=ORDER, batch_size_per_gpu=4)
    left, right, up = ORDER
    assert joint_batches(trainer, "toy_right", 3) == [
        {left: 2, right: 1, up: 1},
        {left: 1, right: 2, up: 1},
        {left: 1, right: 1, up: 2},
    ]
    shares = trainer.cl_algorithm.telemetry()
    assert shares == pytest.approx({f"cl/share/{name}": 1 / 3 for name in ORDER})


def test_joint_draws_domains_by_their_weights(tmp_path: Path):
    weights = {"toy_left": 3, "toy_right": 1}
    trainer = joint_trainer(tmp_path, cl_options={"weights": weights}, batch_size_per_gpu=2)
    total = sum(joint_batches(trainer, "toy_left", 6), Counter[str]())
    assert total == {"toy_left": 9, "toy_right": 3}


def test_joint_draws_every_task_of_an_epoch_once(tmp_path: Path):
    trainer = joint_trainer(tmp_path, task_order=ORDER, batch_size_per_gpu=3)
    played: Counter[tuple[str, str]] = Counter()
    size = len(trainer.tasks.train_tasks("toy_left"))
    for _ in range(size):
        tasks = trainer.cl_algorithm.augment_batch(
            trainer.tasks.next_batch("toy_left", 3), "toy_left"
        )
        played.update((task.domain, task.id) for task in tasks)
    assert len(played) == 3 * size
    assert set(played.values()) == {1}


def test_joint_of_one_domain_equals_sequential_bit_for_bit(tmp_path: Path):
    runs = {
        name: toy_run(
            tmp_path / name, cl_algorithm=name, task_order=("toy_left",), num_steps_per_task=5
        )
        for name in ("joint", "sequential")
    }
    assert fingerprint(runs["joint"]) == fingerprint(runs["sequential"])
    assert scores(tmp_path / "joint") == scores(tmp_path / "sequential")


@pytest.mark.slow
def test_joint_learns_both_domains_where_sequential_forgets_the_first(
    sequential: list[list[float]], tmp_path: Path
):
    joint = scores(toy_run(tmp_path / "joint", cl_algorithm="joint").config.log_dir)
    assert min(joint[-1]) > 0.7
    assert sequential[-1][0] < 0.5


def test_weights_of_other_domains_are_an_error():
    with pytest.raises(ConfigError, match="names toy_left, mock, but the domains are"):
        GRPOTrainer(
            toy_config(
                Path("unused"),
                cl_algorithm="joint",
                cl_options={"weights": {"toy_left": 1, "mock": 1}},
                model_name_or_path="no/such/model",  # refused before a model is looked for
            )
        )


def test_joint_with_resampling_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="zero_variance=skip"):
        joint_trainer(tmp_path, loss={"zero_variance": "resample"})


def test_weights_must_be_positive():
    with pytest.raises(ValueError, match="greater than 0"):
        JointCL(weights={"toy_left": 0})


@pytest.mark.slow
def test_single_evaluates_each_domain_with_its_own_policy(
    sequential: list[list[float]], tmp_path: Path
):
    toy_run(tmp_path / "single", cl_algorithm="single")
    base, first, second = scores(tmp_path / "single")
    assert first[0] == second[0] == sequential[1][0]
    assert first[1] == base[1]  # of a domain not learned yet, the policy the run started from
    assert second[1] > 0.7


def test_single_starts_each_domain_from_the_initial_policy(tmp_path: Path):
    trainer = toy_run(tmp_path, cl_algorithm="single", num_steps_per_task=2)
    start = fingerprint(GRPOTrainer(trainer.config))
    assert fingerprint(trainer) != start
    trainer.cl_algorithm.before_task("toy_right")
    assert fingerprint(trainer) == start
    assert runtime(trainer).learner.state_dict().numbers["updates"] == 0


def test_single_evaluates_the_current_policy_within_a_stage(tmp_path: Path):
    toy_run(tmp_path, cl_algorithm="single", eval_interval=8)
    numbers = RunDir(tmp_path).read_metrics()["task_1/eval"]
    within, final = [row["pass_rate"] for row in numbers if row["domain"] == "toy_right"]
    start = RunDir(tmp_path).read_metrics()["task_0/eval"][1]["pass_rate"]
    assert start < min(within, final)
