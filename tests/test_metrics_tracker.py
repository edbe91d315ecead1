import json
from collections.abc import Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError, GRPOCLError
from grpo_cl.metrics.tracker import MetricsTracker
from grpo_cl.rundir import Journal, RunDir

CONFIG = GRPOConfig(task_order=("airline", "retail"), num_steps_per_task=10)


class Notebook:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_config(self, config: Mapping[str, Any]) -> None: ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.logged.append((step, dict(values)))

    def close(self) -> None: ...


def logged_run(**options: Any) -> MetricsTracker:
    tracker = MetricsTracker(CONFIG, **options)
    tracker.log_step(0, 1, {"loss": 0.5, "reward_mean": 0.25, "reward_max": 1.0})
    tracker.log_step(0, 2, {"loss": 0.4, "reward_mean": 0.75, "reward_max": 1.0})
    tracker.log_evaluation(
        0, 10, "airline", {"reward_mean": 0.5, "pass_rate": 0.5, "after": "airline"}
    )
    tracker.log_transfer(0, {"average_performance": 0.5, "backward_transfer": None})
    tracker.log_buffer(0, 10, {"airline": {"size": 8}})
    return tracker


def test_metrics_json_has_the_documented_form(tmp_path: Path):
    file = logged_run().save(tmp_path)
    assert file == RunDir(tmp_path).metrics
    assert json.loads(file.read_text()) == {
        "task_0/train": [
            {"task_idx": 0, "step": 1, "loss": 0.5, "reward_mean": 0.25, "reward_max": 1.0},
            {"task_idx": 0, "step": 2, "loss": 0.4, "reward_mean": 0.75, "reward_max": 1.0},
        ],
        "task_0/eval": [
            {
                "task_idx": 0,
                "step": 10,
                "domain": "airline",
                "reward_mean": 0.5,
                "pass_rate": 0.5,
                "after": "airline",
            }
        ],
        "transfer": [{"task_idx": 0, "average_performance": 0.5, "backward_transfer": None}],
        "buffer": [{"task_idx": 0, "step": 10, "domains": {"airline": {"size": 8}}}],
    }


def test_one_record_is_one_line_of_the_file(tmp_path: Path):
    lines = logged_run().save(tmp_path).read_text().splitlines()
    assert sum(line.startswith("  {") for line in lines) == 5


def test_a_tracker_without_records_is_saved_and_loaded(tmp_path: Path):
    MetricsTracker(CONFIG).save(tmp_path)
    assert MetricsTracker(CONFIG).load(tmp_path).to_json() == {}


def test_a_run_directory_and_its_file_load_alike(tmp_path: Path):
    file = logged_run().save(tmp_path)
    from_directory = MetricsTracker(CONFIG).load(tmp_path)
    from_file = MetricsTracker(CONFIG).load(str(file))
    assert from_directory.to_json() == from_file.to_json() == logged_run().to_json()
    assert from_directory.get_summary() == logged_run().get_summary()


def test_a_run_that_has_not_ended_is_loaded_from_its_journal(tmp_path: Path):
    journal = Journal(RunDir(tmp_path).metrics_journal)
    logged_run(journal=journal)
    journal.close()
    assert MetricsTracker(CONFIG).load(tmp_path).to_json() == logged_run().to_json()


def test_what_a_subclass_appends_survives_saving(tmp_path: Path):
    class Custom(MetricsTracker):
        def log_step(self, task_idx: int, step: int, values: Mapping[str, Any]) -> None:
            super().log_step(task_idx, step, values)
            self.metrics["custom"].append({"loss_squared": values["loss"] ** 2})

    tracker = Custom(CONFIG)
    tracker.log_step(0, 1, {"loss": 0.5})
    tracker.save(tmp_path)
    loaded = Custom(CONFIG).load(tmp_path)
    assert loaded.metrics["custom"] == [{"loss_squared": 0.25}]
    assert loaded.metrics["never logged"] == []


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path):
    tracker = MetricsTracker(CONFIG)
    tracker.log_step(0, 1, {"loss": nan, "kl": inf})
    file = tracker.save(tmp_path)
    assert json.loads(file.read_text())["task_0/train"][0]["loss"] is None
    assert tracker.get_summary()["stages"][0]["last_reward"] is None


def test_the_summary_has_scores_evaluations_and_stages():
    summary = logged_run().get_summary()
    assert summary["average_performance"] == 0.5
    assert "backward_transfer" not in summary
    assert summary["evaluation"] == {"airline": {"reward_mean": 0.5, "pass_rate": 0.5}}
    assert summary["stages"] == [
        {
            "domain": "airline",
            "steps": 2,
            "first_reward": 0.25,
            "last_reward": 0.75,
            "best_reward": 0.75,
        }
    ]


def test_a_checkpoint_restores_the_tracker_without_logging_twice():
    notebook = Notebook()
    restored = MetricsTracker(CONFIG, trackers=[notebook]).from_json(logged_run().to_json())
    assert restored.to_json() == logged_run().to_json()
    assert notebook.logged == []


def test_trackers_get_the_names_their_users_know():
    notebook = Notebook()
    tracker = MetricsTracker(CONFIG, trackers=[notebook])
    tracker.log_step(
        1,
        3,
        {
            "reward_mean": 0.5,
            "pass_rate": 0.25,
            "loss": nan,
            "loss/kl": 0.1,
            "loss/ratio_max": 2.0,
            "zero_variance_groups": 1,
            "groups": 4,
            "step_s": 2.0,
            "is_main": True,
        },
    )
    tracker.log_evaluation(
        1, 10, "airline", {"reward_mean": 0.5, "pass_rate": 0.25, "after": "retail"}
    )
    tracker.log_transfer(1, {"backward_transfer": -0.25, "forgetting": 0.5, "x": None})
    assert notebook.logged == [
        (
            13,
            {
                "train/reward": 0.5,
                "train/pass_rate": 0.25,
                "train/kl": 0.1,
                "loss/ratio_max": 2.0,
                "train/zero_variance_groups": 1.0,
                "train/groups": 4.0,
                "train/step_time": 2.0,
                "train/frac_reward_zero_std": 0.25,
            },
        ),
        (
            20,
            {
                "eval/airline/reward_mean": 0.5,
                "eval/airline/pass_rate": 0.25,
                "cl/acc_matrix/retail/airline": 0.5,
            },
        ),
        (20, {"cl/bwt": -0.25, "cl/forgetting": 0.5}),
    ]


def test_learning_curves_are_drawn_to_a_file_or_a_folder(tmp_path: Path):
    tracker = logged_run()
    assert tracker.plot_learning_curves(tmp_path / "curve.png") == [tmp_path / "curve.png"]
    drawn = tracker.plot_learning_curves(str(tmp_path / "plots"))
    assert [file.name for file in drawn] == ["learning_curves.png", "learning_curves.svg"]
    assert all(file.stat().st_size > 1000 for file in drawn)


def test_missing_and_damaged_metrics_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="no metrics at"):
        MetricsTracker(CONFIG).load(tmp_path)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(GRPOCLError, match=r"metrics\.json"):
        MetricsTracker(CONFIG).load(tmp_path)
    (tmp_path / "metrics.json").write_text('{"task_0/train": 3}')
    with pytest.raises(ConfigError, match="object of lists"):
        MetricsTracker(CONFIG).load(tmp_path)


def test_the_scores_before_the_first_step_are_published_at_the_start():
    notebook = Notebook()
    tracker = MetricsTracker(CONFIG, trackers=[notebook])
    tracker.log_transfer(0, {"average_performance": 0.25}, step=0)
    tracker.log_step(0, 0, {"loss": 0.5})
    tracker.log_transfer(0, {"average_performance": 0.5})
    tracker.log_step(1, 0, {"loss": 0.5})
    assert [step for step, _ in notebook.logged] == [0, 0, 10, 10]
