"""The ladder every algorithm climbs, in the toy world."""

import json
import math
import subprocess
import sys
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
from grpo_cl.rundir import RunDir
from grpo_cl.trainer import GRPOTrainer
from toy_runs import scores, toy_config, toy_run

Run = Callable[[str], GRPOTrainer]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run of an algorithm with its defaults, made once."""
    folder, made = tmp_path_factory.mktemp("short"), dict[str, GRPOTrainer]()

    def get(name: str) -> GRPOTrainer:
        if name not in made:
            made[name] = toy_run(folder / name, **SHORT, **settings_of(name))
        return made[name]

    return get


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GRPOTrainer]:
    """A short run of plain training under the same conditions as an algorithm's, made once."""
    folder, made = tmp_path_factory.mktemp("plain"), dict[bool, GRPOTrainer]()

    def get(name: str) -> GRPOTrainer:
        key = name in IN_ADAPTERS
        if key not in made:
            settings = {**settings_of(name), "cl_algorithm": "sequential"}
            made[key] = toy_run(folder / str(key), **SHORT, **settings)
        return made[key]

    return get


def files(log_dir: Path) -> dict[str, bytes]:
    """What is the same in two runs that are the same."""
    run = RunDir(log_dir)
    stages = [run.stage_checkpoint(stage).model_dir for stage in (0, 1)]
    weights = [path for stage in stages for path in sorted(stage.glob("*.safetensors"))]
    kept = [run.metrics_journal, run.trajectories_journal, run.r_matrix, *weights]
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in kept}


def test_every_algorithm_has_its_place_in_the_tables() -> None:
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
    text = (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text()
    options = find_algorithm(name).options_type.model_fields
    assert [word for word in (name, *options) if f"`{word}`" not in text] == []


@pytest.mark.parametrize("name", ZERO)
def test_without_strength_an_algorithm_is_plain_training_bit_for_bit(
    name: str, plain: Run, tmp_path: Path
) -> None:
    trainer = toy_run(tmp_path / "zero", **SHORT, **settings_of(name), **ZERO[name])
    expected = files(plain(name).config.log_dir)
    found = files(trainer.config.log_dir)
    # The log also has what the algorithm says of itself.
    log = str(RunDir(tmp_path).metrics_journal.relative_to(tmp_path))
    assert {**found, log: without_telemetry(found[log])} == expected


def without_telemetry(journal: bytes) -> bytes:
    """A journal without the numbers of the algorithm, as it would have been written."""
    entries: list[dict[str, Any]] = [json.loads(line) for line in journal.splitlines()]
    kept = [{key: e[key] for key in e if not key.startswith("cl/")} for e in entries]
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in kept)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - ACTS_AT_ONCE))
def test_before_the_second_domain_there_is_nothing_to_protect(
    name: str, short: Run, plain: Run
) -> None:
    found, expected = (first_stage(run(name)) for run in (short, plain))
    assert found.keys() == expected.keys()
    assert all(bool((found[key] == expected[key]).all()) for key in expected)


@pytest.mark.parametrize("name", ACTS_AT_ONCE)
def test_what_acts_in_the_first_stage_does_not_share_it(name: str, short: Run, plain: Run) -> None:
    found, expected = (first_stage(run(name)) for run in (short, plain))
    assert any(bool((found[key] != expected[key]).any()) for key in expected)
    assert not find_algorithm(name).shares_first_stage


def first_stage(trainer: GRPOTrainer) -> dict[str, Tensor]:
    """The policy that was saved after the first domain."""
    folder = RunDir(trainer.config.log_dir).stage_checkpoint(0).model_dir
    (weights,) = folder.glob("*.safetensors")
    return load_file(weights)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"sequential"}))
def test_the_log_shows_that_an_algorithm_is_at_work(name: str, short: Run) -> None:
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
def test_measuring_a_policy_leaves_it_as_it_was(name: str, short: Run) -> None:
    trainer = short(name)
    before = weights_of(trainer)
    first, again = (trainer.evaluate_task("toy_left") for _ in range(2))
    assert first == again
    after = weights_of(trainer)
    assert all(bool((before[key] == after[key]).all()) for key in before)


class Stopped(Exception):  # noqa: N818
    """A power cut, as far as a process can tell."""


class FragileTrainer(GRPOTrainer):
    """Stops where it is told: before an update, or in the measurement after a stage."""

    stops_before: tuple[int, int] | None = None
    stops_after_stage: int | None = None

    @override
    def train_step(self, domain: str) -> dict[str, float]:
        if self.position == self.stops_before:
            raise Stopped
        return super().train_step(domain)

    @override
    def evaluate_task(self, domain: str) -> Cell:
        has_learned = self.position.step == self.config.num_steps_per_task
        if has_learned and self.position.stage == self.stops_after_stage:
            raise Stopped
        return super().evaluate_task(domain)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_stops_again_and_again_ends_as_if_it_had_not(name: str, tmp_path: Path) -> None:
    settings = {**SHORT, **settings_of(name), "num_steps_per_task": 3}
    settings["logging"] = {"trackers": (), "save_interval": 1}
    whole = toy_run(tmp_path / "whole", **settings)
    config = toy_config(tmp_path / "parts", **settings)
    for stop in ({"stops_before": (0, 2)}, {"stops_after_stage": 0}, {"stops_before": (1, 1)}):
        trainer = FragileTrainer(config)
        for key, value in stop.items():
            setattr(trainer, key, value)
        with pytest.raises(Stopped):
            trainer.train()
        config = config.model_copy(update={"resume_from": config.log_dir})
    last = GRPOTrainer(config)
    last.train()
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert last.cl_algorithm.state_dict() == whole.cl_algorithm.state_dict()
    assert last.cl_algorithm.telemetry() == whole.cl_algorithm.telemetry()


@pytest.fixture(scope="module")
def loss_of_plain(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What plain training loses of the first domain."""
    folder = tmp_path_factory.mktemp("plain")
    toy_run(folder / "run")
    _, first, second = scores(folder / "run")
    return first[0] - second[0]


@pytest.mark.parametrize("name", FORGETS_LESS)
def test_an_algorithm_that_protects_forgets_less_and_still_learns(
    name: str, loss_of_plain: float, tmp_path: Path
) -> None:
    toy_run(tmp_path / "run", **settings_of(name), **FORGETS_LESS[name])
    _, first, second = scores(tmp_path / "run")
    assert first[0] - second[0] < loss_of_plain - 0.2
    assert second[1] > 0.4


@pytest.mark.parametrize("name", sorted(FORGETS_NOTHING))
def test_a_policy_of_its_own_for_each_domain_forgets_nothing(name: str, tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **settings_of(name))
    _, first, second = scores(tmp_path / "run")
    assert second[0] == first[0] > 0.6
    assert second[1] > 0.6


@pytest.mark.slow
def test_two_processes_learn_what_one_does(short: Run, tmp_path: Path) -> None:
    script = Path(__file__).parent / "algorithm_cases.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([*launcher, str(script), str(tmp_path)], check=True, capture_output=True)
    # Adam turns a gradient that cancels out but for its rounding into a step, so weights of the
    # uniform policy may differ by a hundredth; what is counted twice differs by much more.
    for name in ALGORITHMS:
        one, two = weights_of(short(name)), load_file(tmp_path / f"{name}.safetensors")
        assert one.keys() == two.keys()
        assert all(float((one[key] - two[key]).abs().max()) < 1e-2 for key in one), name
        first, second = (
            [numbers_of(step) for stage in (0, 1) for step in steps_of(log_dir, stage)]
            for log_dir in (short(name).config.log_dir, tmp_path / name)
        )
        assert first == [pytest.approx(numbers, rel=0.02, abs=1e-2) for numbers in second], name


def numbers_of(step: dict[str, Any]) -> dict[str, float]:
    """The loss, the rewards, and what the algorithm says of itself."""
    return {key: step[key] for key in step if key in {"loss", "reward_mean"} or key[:3] == "cl/"}


def test_groups_that_were_played_in_vain_are_observed_too(tmp_path: Path) -> None:
    config = toy_config(
        tmp_path, loss={"zero_variance": "resample"}, tasks={"strategy": "weighted"}
    )
    trainer = GRPOTrainer(config)
    numbers = trainer.train_step(config.task_order[0])
    observed = trainer.tasks.state_dict()["observed"][config.task_order[0]]
    played = numbers["groups"] + numbers["resampled_groups"]
    assert numbers["resampled_groups"] > 0
    assert sum(trials for _, trials in observed.values()) == played * config.num_samples_per_prompt
