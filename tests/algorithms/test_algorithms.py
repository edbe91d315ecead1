"""The contract of every algorithm, checked on the toy domains."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from typing_extensions import override

from algorithm_cases import (
    ACTS_AT_ONCE,
    FORGETS_LESS,
    FORGETS_NOTHING,
    IN_ADAPTERS,
    SHORT,
    UNPROTECTED,
    WITHOUT_ZERO,
    ZERO,
    settings_of,
    steps_of,
    weights_of,
)
from grpo_cl.algorithms import ALGORITHMS, find_algorithm, make_algorithm
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from parameters import mostly_slow
from paths import ROOT
from toy_runs import scores, toy_config, toy_run
from two_processes import run_two_processes

Run = Callable[[str], GRPOTrainer]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run of an algorithm with its defaults, one run per algorithm."""
    folder, runs = tmp_path_factory.mktemp("short"), dict[str, GRPOTrainer]()

    def get(name: str) -> GRPOTrainer:
        if name not in runs:
            runs[name] = toy_run(folder / name, **SHORT, **settings_of(name))
        return runs[name]

    return get


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GRPOTrainer]:
    """A short run of plain training in an algorithm's settings, shared between algorithms."""
    folder, runs = tmp_path_factory.mktemp("plain"), dict[bool, GRPOTrainer]()

    def get(name: str) -> GRPOTrainer:
        key = name in IN_ADAPTERS
        if key not in runs:
            settings = {**settings_of(name), "cl_algorithm": "sequential"}
            runs[key] = toy_run(folder / str(key), **SHORT, **settings)
        return runs[key]

    return get


def files(log_dir: Path) -> dict[str, bytes]:
    """The files that are byte-identical in equal runs."""
    run = RunDir(log_dir)
    stages = [run.stage_checkpoint(stage).model_dir for stage in (0, 1)]
    weights = [path for stage in stages for path in sorted(stage.glob("*.safetensors"))]
    kept = [run.metrics_journal, run.trajectories_journal, run.r_matrix, *weights]
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in kept}


def test_every_algorithm_is_listed_in_the_tables() -> None:
    names = set(ALGORITHMS)
    assert ZERO.keys() | WITHOUT_ZERO.keys() == names
    assert FORGETS_LESS.keys() | FORGETS_NOTHING | UNPROTECTED.keys() == names
    assert ACTS_AT_ONCE.keys() | IN_ADAPTERS <= names
    assert not ZERO.keys() & WITHOUT_ZERO.keys()
    assert not FORGETS_LESS.keys() & UNPROTECTED.keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    known = ", ".join(find_algorithm(name).options_type.model_fields) or "none"
    with pytest.raises(ConfigError, match=f"the options of {name} are: {known}"):
        make_algorithm(name, {"no_such_option": 1})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_documentation_names_every_algorithm_and_every_option(name: str) -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    options = find_algorithm(name).options_type.model_fields
    assert [word for word in (name, *options) if f"`{word}`" not in text] == []


@pytest.mark.parametrize("name", mostly_slow(ZERO, fast={"ewc", "replay"}))
def test_without_strength_an_algorithm_is_plain_training_bit_for_bit(
    name: str, plain: Run, tmp_path: Path
) -> None:
    trainer = toy_run(tmp_path / "zero", **SHORT, **settings_of(name), **ZERO[name])
    expected = files(plain(name).config.log_dir)
    actual = files(trainer.config.log_dir)
    # The log has the metrics of the algorithm too.
    log = str(RunDir(tmp_path).metrics_journal.relative_to(tmp_path))
    assert {**actual, log: without_telemetry(actual[log])} == expected


def without_telemetry(journal: bytes) -> bytes:
    """A journal without the metrics of the algorithm."""
    entries: list[dict[str, Any]] = [json.loads(line) for line in journal.splitlines()]
    kept = [{key: e[key] for key in e if not key.startswith("cl/")} for e in entries]
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - ACTS_AT_ONCE))
def test_the_first_stage_equals_plain_training(name: str, short: Run, plain: Run) -> None:
    actual, expected = (first_stage(run(name)) for run in (short, plain))
    assert actual.keys() == expected.keys()
    assert all(bool((actual[key] == expected[key]).all()) for key in expected)


@pytest.mark.parametrize("name", ACTS_AT_ONCE)
def test_an_algorithm_that_acts_in_the_first_stage_does_not_share_it(
    name: str, short: Run, plain: Run
) -> None:
    actual, expected = (first_stage(run(name)) for run in (short, plain))
    assert any(bool((actual[key] != expected[key]).any()) for key in expected)
    assert not find_algorithm(name).shares_first_stage


def first_stage(trainer: GRPOTrainer) -> dict[str, Tensor]:
    """The policy that was saved after the first domain."""
    folder = RunDir(trainer.config.log_dir).stage_checkpoint(0).model_dir
    (weights,) = folder.glob("*.safetensors")
    return load_file(weights)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"sequential"}))
def test_an_algorithm_logs_nonzero_metrics(name: str, short: Run) -> None:
    last = steps_of(short(name).config.log_dir, 1)[-1]
    numbers = {key: value for key, value in last.items() if key.startswith("cl/")}
    assert numbers
    assert all(math.isfinite(value) for value in numbers.values())
    assert any(numbers.values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_test_task_is_stored(name: str, short: Run) -> None:
    trainer = short(name)
    stored = [
        record.task.id
        for domain in trainer.config.task_order
        for record in trainer.trajectory_buffer.records(domain)
    ]
    assert stored
    assert all(task_id.startswith("train-") for task_id in stored)
    assert '"test-' not in json.dumps(trainer.cl_algorithm.state_dict())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_evaluation_leaves_the_policy_unchanged(name: str, short: Run) -> None:
    trainer = short(name)
    before = weights_of(trainer)
    first, again = (trainer.evaluate_task("toy_left") for _ in range(2))
    assert first == again
    after = weights_of(trainer)
    assert all(bool((before[key] == after[key]).all()) for key in before)


class Interrupted(Exception):  # noqa: N818
    """Ends a run like a power failure."""


class InterruptedTrainer(GRPOTrainer):
    """Stops before a given update, or in the evaluation after a given stage."""

    stops_before: tuple[int, int] | None = None
    stops_after_stage: int | None = None

    @override
    def train_step(self, domain: str) -> dict[str, float]:
        if self.position == self.stops_before:
            raise Interrupted
        return super().train_step(domain)

    @override
    def evaluate_task(self, domain: str) -> Cell:
        is_stage_end = self.position.step == self.config.num_steps_per_task
        if is_stage_end and self.position.stage == self.stops_after_stage:
            raise Interrupted
        return super().evaluate_task(domain)


@pytest.mark.parametrize("name", mostly_slow(ALGORITHMS, fast={"ewc", "replay"}))
def test_a_run_interrupted_several_times_equals_an_uninterrupted_one(
    name: str, tmp_path: Path
) -> None:
    settings = {**SHORT, **settings_of(name), "num_steps_per_task": 3}
    settings["logging"] = {"trackers": (), "save_interval": 1}
    whole = toy_run(tmp_path / "whole", **settings)
    config = toy_config(tmp_path / "parts", **settings)
    for stop in ({"stops_before": (0, 2)}, {"stops_after_stage": 0}, {"stops_before": (1, 1)}):
        trainer = InterruptedTrainer(config)
        for key, value in stop.items():
            setattr(trainer, key, value)
        with pytest.raises(Interrupted):
            trainer.train()
        config = config.model_copy(update={"resume_from": config.log_dir})
    last = GRPOTrainer(config)
    last.train()
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert last.cl_algorithm.state_dict() == whole.cl_algorithm.state_dict()
    assert last.cl_algorithm.telemetry() == whole.cl_algorithm.telemetry()


@pytest.fixture(scope="module")
def plain_forgetting(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What plain training forgets of the first domain."""
    folder = tmp_path_factory.mktemp("plain")
    toy_run(folder / "run")
    _, first, second = scores(folder / "run")
    return first[0] - second[0]


@pytest.mark.parametrize("name", mostly_slow(FORGETS_LESS, fast={"agem", "ewc", "replay"}))
def test_a_protecting_algorithm_forgets_less_and_still_learns(
    name: str, plain_forgetting: float, tmp_path: Path
) -> None:
    toy_run(tmp_path / "run", **settings_of(name), **FORGETS_LESS[name])
    _, first, second = scores(tmp_path / "run")
    assert first[0] - second[0] < plain_forgetting - 0.2
    assert second[1] > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FORGETS_NOTHING))
def test_an_algorithm_with_one_policy_per_domain_forgets_nothing(name: str, tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **settings_of(name))
    _, first, second = scores(tmp_path / "run")
    assert second[0] == first[0] > 0.6
    assert second[1] > 0.6


@pytest.mark.slow
def test_two_processes_train_the_same_policy_as_one(short: Run, tmp_path: Path) -> None:
    run_two_processes("algorithm_cases.py", tmp_path)
    # Adam turns the rounding error of a gradient that cancels out into a step, so weights of the
    # uniform policy may differ by a hundredth; what is counted twice differs by much more.
    for name in ALGORITHMS:
        single, double = weights_of(short(name)), load_file(tmp_path / f"{name}.safetensors")
        assert single.keys() == double.keys()
        assert all(float((single[key] - double[key]).abs().max()) < 1e-2 for key in single), name
        first, second = (
            [metrics_of(step) for stage in (0, 1) for step in steps_of(log_dir, stage)]
            for log_dir in (short(name).config.log_dir, tmp_path / name)
        )
        assert first == [pytest.approx(numbers, rel=0.02, abs=1e-2) for numbers in second], name


def metrics_of(step: dict[str, Any]) -> dict[str, float]:
    """The loss, the rewards, and the metrics of the algorithm."""
    return {
        key: step[key] for key in step if key in {"loss", "reward_mean"} or key.startswith("cl/")
    }


def test_resampled_groups_count_as_observed(tmp_path: Path) -> None:
    config = toy_config(
        tmp_path, loss={"zero_variance": "resample"}, tasks={"strategy": "weighted"}
    )
    trainer = GRPOTrainer(config)
    numbers = trainer.train_step(config.task_order[0])
    observed = trainer.tasks.state_dict()["observed"][config.task_order[0]]
    played = numbers["groups"] + numbers["resampled_groups"]
    assert numbers["resampled_groups"] > 0
    assert sum(trials for _, trials in observed.values()) == played * config.num_samples_per_prompt
