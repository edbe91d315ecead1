import json
import re
import runpy
from collections.abc import Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError, GRPOCLError
from grpo_cl.metrics.metrics_tracker import MetricsTracker
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import Journal
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.run_log import Position
from paths import ROOT
from toy_runs import toy_config

CONFIG = GRPOConfig(task_order=("airline", "retail"), num_steps_per_task=10)


class RecordingTracker:
    """An experiment tracker that keeps the logged values."""

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


def test_each_record_is_one_line_of_the_file(tmp_path: Path):
    lines = logged_run().save(tmp_path).read_text().splitlines()
    assert sum(line.startswith("  {") for line in lines) == 5


def test_a_tracker_without_records_is_saved_and_loaded(tmp_path: Path):
    MetricsTracker(CONFIG).save(tmp_path)
    assert MetricsTracker(CONFIG).load(tmp_path).to_json() == {}


def test_a_run_directory_and_its_metrics_file_load_equally(tmp_path: Path):
    file = logged_run().save(tmp_path)
    from_directory = MetricsTracker(CONFIG).load(tmp_path)
    from_file = MetricsTracker(CONFIG).load(str(file))
    assert from_directory.to_json() == from_file.to_json() == logged_run().to_json()
    assert from_directory.get_summary() == logged_run().get_summary()


def test_an_unfinished_run_is_loaded_from_its_journal(tmp_path: Path):
    journal = Journal(RunDir(tmp_path).metrics_journal)
    logged_run(journal=journal)
    journal.close()
    assert MetricsTracker(CONFIG).load(tmp_path).to_json() == logged_run().to_json()


def test_series_of_a_subclass_are_saved_and_loaded(tmp_path: Path):
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_the_documented_own_trackers_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    section = (ROOT / "docs" / "metrics.md").read_text().partition("## Trackers")[2]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(program)
    runpy.run_path("example.py")
    printed = capsys.readouterr().out.splitlines()
    assert "seed 0" in printed
    assert printed[-1] == "done"
    logged = json.loads(Path("runs/own_tracker/metrics.json").read_text())
    losses = [entry["loss"] for task in (0, 1) for entry in logged[f"task_{task}/train"]]
    assert [entry["value"] for entry in logged["squared_loss"]] == [loss**2 for loss in losses]


def test_a_resumed_run_keeps_the_series_of_an_own_metrics_tracker(tmp_path: Path):
    class Squares(MetricsTracker):
        @override
        def log_step(self, task_idx: int, step: int, values: Mapping[str, Any]) -> None:
            super().log_step(task_idx, step, values)
            self.append("squares", {"step": step, "value": values["loss"] ** 2})

    config = toy_config(tmp_path, num_steps_per_task=2)
    GRPOTrainer(config, metrics=Squares(config)).train(until=Position(stage=0, step=2))
    config = config.model_copy(update={"resume_from": tmp_path})
    recorder = RecordingTracker()
    GRPOTrainer(config, metrics=Squares(config), trackers=[recorder]).train()
    assert len(RunDir(tmp_path).read_metrics()["squares"]) == 4
    assert [step for step, values in recorder.logged if "train/reward" in values] == [2, 3]


def test_non_finite_numbers_are_written_as_null(tmp_path: Path):
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


def test_loading_metrics_logs_nothing_to_experiment_trackers():
    recorder = RecordingTracker()
    restored = MetricsTracker(CONFIG, trackers=[recorder]).from_json(logged_run().to_json())
    assert restored.to_json() == logged_run().to_json()
    assert recorder.logged == []


def test_experiment_trackers_get_the_names_of_trl():
    recorder = RecordingTracker()
    tracker = MetricsTracker(CONFIG, trackers=[recorder])
    tracker.log_step(
        1,
        3,
        {
            "reward_mean": 0.5,
            "pass_rate": 0.25,
            "loss": nan,
            "kl": 0.1,
            "clip_fraction": 0.125,
            "cl/replay_groups": 2.0,
            "zero_variance_groups": 1,
            "groups": 4,
            "is_main": True,
        },
    )
    tracker.log_evaluation(
        1, 10, "airline", {"reward_mean": 0.5, "pass_rate": 0.25, "after": "retail"}
    )
    tracker.log_transfer(1, {"backward_transfer": -0.25, "forgetting": 0.5, "x": None})
    assert recorder.logged == [
        (
            13,
            {
                "train/reward": 0.5,
                "train/pass_rate": 0.25,
                "train/kl": 0.1,
                "train/clip_ratio/region_mean": 0.125,
                "cl/replay_groups": 2.0,
                "train/zero_variance_groups": 1.0,
                "train/groups": 4.0,
                "train/frac_reward_zero_std": 0.25,
            },
        ),
        (
            20,
            {
                "eval/airline/reward_mean": 0.5,
                "eval/airline/pass_rate": 0.25,
            },
        ),
        (20, {"cl/bwt": -0.25, "cl/forgetting": 0.5}),
    ]


def test_learning_curves_are_plotted_to_a_file_or_a_directory(tmp_path: Path):
    tracker = logged_run()
    assert tracker.plot_learning_curves(tmp_path / "curve.png") == [tmp_path / "curve.png"]
    files = tracker.plot_learning_curves(str(tmp_path / "plots"))
    assert [file.name for file in files] == ["learning_curves.png", "learning_curves.svg"]
    assert all(file.stat().st_size > 1000 for file in files)


def test_missing_and_damaged_metrics_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no metrics at"):
        MetricsTracker(CONFIG).load(tmp_path)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(GRPOCLError, match=r"metrics\.json"):
        MetricsTracker(CONFIG).load(tmp_path)
    (tmp_path / "metrics.json").write_text('{"task_0/train": 3}')
    with pytest.raises(ConfigError, match="object of lists"):
        MetricsTracker(CONFIG).load(tmp_path)


def test_scores_before_the_first_step_are_logged_at_step_zero():
    recorder = RecordingTracker()
    tracker = MetricsTracker(CONFIG, trackers=[recorder])
    tracker.log_transfer(0, {"average_performance": 0.25}, step=0)
    tracker.log_step(0, 0, {"loss": 0.5})
    tracker.log_transfer(0, {"average_performance": 0.5})
    tracker.log_step(1, 0, {"loss": 0.5})
    assert [step for step, _ in recorder.logged] == [0, 0, 10, 10]
