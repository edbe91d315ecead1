import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from grpo_cl.cli import main
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import episode_config
from grpo_cl.integrations.plan import Plan, read_plan, write_plan
from grpo_cl.integrations.plan.folder import CONFIG_VARIABLE
from grpo_cl.integrations.plan.scripts import ENGINES
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.types import Task
from toy_runs import toy_config, toy_run

SMALL: dict[str, Any] = {"num_steps_per_task": 3, "num_samples_per_prompt": 2}


def rows(folder: Path, plan: Plan, stage: int) -> list[dict[str, Any]]:
    return parquet.read_table(folder / plan.stages[stage].table).to_pylist()


def scheduled(folder: Path, plan: Plan) -> list[tuple[int, str, str]]:
    return [
        (stage.index * stage.steps + entry["step"], entry["domain"], entry["task_id"])
        for stage in plan.stages
        for entry in read_journal(folder / stage.schedule)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"cl_algorithm": "sequential"},
        {"cl_algorithm": "joint"},
        {"cl_algorithm": "replay", "replay_ratio": 0.25},
        {"cl_algorithm": "replay", "cl_options": {"mode": "additive"}, "replay_ratio": 0.25},
        {"cl_algorithm": "sequential", "tasks": {"strategy": "curriculum", "generated": 8}},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_plan_has_the_tasks_of_a_local_run(tmp_path: Path, changes: dict[str, Any]):
    plan = write_plan(toy_config(tmp_path / "run", **SMALL, **changes), tmp_path / "plan")
    config = read_plan(tmp_path / "plan").config
    toy_run(tmp_path / "run", **SMALL, **{**changes, "cl_options": config.cl_options})
    played = [
        (line["step"], line["domain"], line["task_id"])
        for line in read_journal(RunDir(tmp_path / "run").trajectories_journal)
    ]
    assert scheduled(tmp_path / "plan", plan) == played[:: SMALL["num_samples_per_prompt"]]


def test_rows_are_those_of_prepare_data_with_stage_and_step(tmp_path: Path):
    changes = {"cl_algorithm": "replay", "replay_ratio": 0.25}
    plan = write_plan(toy_config(tmp_path, **SMALL, **changes), tmp_path / "plan")
    first, second = (rows(tmp_path / "plan", plan, stage) for stage in (0, 1))
    assert [row["extra_info"]["step"] for row in first] == [n // 8 for n in range(24)]
    assert plan.stages[0].mix == {"toy_left": 24}
    assert plan.stages[1].mix == {"toy_right": 18, "toy_left": 6}
    assert [row["data_source"] for row in second[6:8]] == ["grpo_cl/toy_left"] * 2
    info = second[7]["extra_info"]
    assert Task.model_validate_json(info["task"]).id == info["task_id"]
    assert second[7]["reward_spec"]["ground_truth"] == info["task_id"]


def test_each_stage_starts_from_the_model_of_the_previous_stage(tmp_path: Path):
    plan = write_plan(toy_config(tmp_path, **SMALL), tmp_path / "plan")
    assert [stage.name for stage in plan.stages] == ["stage_0_toy_left", "stage_1_toy_right"]
    assert [stage.checkpoint_in for stage in plan.stages] == ["tabular", "stage_0_toy_left"]
    assert plan.stages[1].evaluations == plan.base_evaluations == ("toy_left", "toy_right")
    assert read_plan(tmp_path / "plan").plan == plan


def test_algorithms_that_change_the_update_are_rejected_with_the_supported_ones(
    tmp_path: Path,
):
    with pytest.raises(ConfigError, match=r"'ewc' .*; joint, replay, sequential can be planned"):
        write_plan(toy_config(tmp_path, cl_algorithm="ewc"), tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cl_algorithm": "replay", "cl_options": {"selection": "varied"}}, "selection=random"),
        ({"tasks": {"strategy": "weighted"}}, "choose epoch, random or curriculum"),
        ({"loss": {"zero_variance": "resample"}}, "filters of their own"),
        ({"eval_interval": 2}, "only after each"),
        ({"evaluation": {"drift": True}}, "remove it from a plan"),
    ],
)
def test_settings_that_depend_on_rewards_are_rejected(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        write_plan(toy_config(tmp_path, **changes), tmp_path / "plan")


def test_existing_plan_is_not_overwritten(tmp_path: Path):
    write_plan(toy_config(tmp_path, **SMALL), tmp_path / "plan")
    with pytest.raises(ConfigError, match="already holds a plan"):
        write_plan(toy_config(tmp_path, **SMALL), tmp_path / "plan")


def test_plan_command_accepts_the_options_of_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--out", str(tmp_path / "plan"), "--model_name_or_path", "tabular"]
    arguments += ["--task_order", "toy_up", "toy_down", "num_steps_per_task=2", "rollout.user=solo"]
    assert main(["plan", *arguments]) == 0
    assert "stage_1_toy_down  2      toy_down 16  stage_0_toy_up" in capsys.readouterr().out
    assert read_plan(tmp_path / "plan").config.num_steps_per_task == 2


def test_engine_options_override_the_settings_of_the_planned_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = toy_config(tmp_path, rollout={"user": "solo", "max_turns": 5, "max_errors": 3})
    write_plan(config, tmp_path / "plan")
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "plan" / "config.json"))
    merged = episode_config({"model_name_or_path": "elsewhere", "max_turns": 7})
    assert merged.rollout == config.rollout.model_copy(update={"max_turns": 7})
    assert (merged.model_name_or_path, merged.evaluation) == ("elsewhere", config.evaluation)


@pytest.mark.parametrize("engine", ENGINES)
def test_scripts_chain_the_checkpoints_of_an_engine(tmp_path: Path, engine: str):
    plan = write_plan(toy_config(tmp_path, **SMALL), tmp_path / "a plan")
    stub = tmp_path / "stub"
    stub.write_text(
        "#!/bin/sh\n"
        'for word in "$0" "$@"; do printf "%s\\n" "$word"; done | tr "\\n" "\\t" >> "$LOG"\n'
        'echo >> "$LOG"\n'
        'case "$1-$5" in import-run---checkpoint) echo "/models/$6";; esac\n'
    )
    stub.chmod(0o755)
    log = tmp_path / "log"
    environment = {"PYTHON": str(stub), "GRPO_CL": str(stub), "LOG": str(log)}
    script = tmp_path / "a plan" / f"{engine}.sh"
    subprocess.run([script, "extra=1"], env={**os.environ, **environment}, check=True)
    calls = [line.split("\t")[1:-1] for line in log.read_text().splitlines()]
    trained = [call for call in calls if call[0] == "-m"]
    assert [call[1] for call in trained] == [f"grpo_cl.integrations.{engine}"] * 2
    assert all(call[-1] == "extra=1" for call in trained)
    assert any("tabular" in word for word in trained[0])
    assert any("/models/stage_0_toy_left" in word for word in trained[1])
    for call, stage in zip(trained, plan.stages, strict=True):
        assert any(str(tmp_path / "a plan" / stage.table) in word for word in call)
    evaluated = [call[-1] for call in calls if call[0] == "evaluate"]
    run = tmp_path / "a plan" / "runs" / engine
    names = ["base", *(stage.name for stage in plan.stages)]
    assert evaluated == [str(run / name / "evaluation.json") for name in names]
    assert calls[-1][0] == "import-run" and calls[-1][-1] == str(run / "imported")


def test_folder_without_a_plan_is_reported(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no plan\.json in"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"stages": 1}))
    with pytest.raises(ConfigError, match="is not a plan of this release"):
        read_plan(tmp_path)
