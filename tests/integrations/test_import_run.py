import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from transformers import AutoModelForCausalLM

from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig, RolloutConfig
from grpo_cl.envs import load_domain
from grpo_cl.envs.toy.domain import OPTIONS, signal_names, signal_of
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.integrations.import_run import find_model, import_run
from grpo_cl.integrations.plan import EngineRun, Plan, read_plan, write_plan
from grpo_cl.metrics.metrics_tracker import read_metrics
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.policy.model.tabular import new_tabular, register, tabular_tokenizer
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.runs.checkpoints import verify
from grpo_cl.runs.episodes import FOLDER_VARIABLE, episode_log
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import Task, ToolCall
from toy_runs import toy_config

DOMAINS = ("toy_left", "toy_right")


class OtherEngine:
    """A training loop independent of grpo-cl: plain PyTorch on the rows of a plan."""

    def __init__(self, plan_dir: Path, run: EngineRun) -> None:
        self.plan_dir = plan_dir
        self.run = run

    def train(self, plan: Plan) -> None:
        register()
        for stage in plan.stages:
            module: Any
            if stage.index:
                source = find_model(self.run.model_dir(stage.checkpoint_in))
                module = AutoModelForCausalLM.from_pretrained(source)
            else:
                module = new_tabular("float32")
            rows = parquet.read_table(self.plan_dir / stage.table).to_pylist()
            optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
            for start in range(0, len(rows), stage.tasks_per_step):
                self.update(module, optimizer, rows[start : start + stage.tasks_per_step])
            # As in SkyRL and verl: one folder per checkpoint with the model in a subfolder.
            folder = self.run.model_dir(stage.name) / f"global_step_{stage.steps}" / "policy"
            module.save_pretrained(folder)
            tabular_tokenizer().save_pretrained(folder)

    def update(self, module: Any, optimizer: torch.optim.SGD, rows: list[dict[str, Any]]) -> None:
        tasks = [Task.model_validate_json(row["extra_info"]["task"]) for row in rows]
        inputs = [len(OPTIONS) + signal_names().index(signal_of(task)) for task in tasks]
        gold = [OPTIONS.index(str(task.gold_actions[0].arguments["option"])) for task in tasks]
        logits = module(torch.tensor(inputs)[:, None]).logits[:, 0]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(gold))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan and an engine's run of it, without evaluations."""
    root = tmp_path_factory.mktemp("engine")
    changes = {"num_steps_per_task": 3, "num_samples_per_prompt": 2, "replay_ratio": 0.25}
    config = toy_config(root / "ours", cl_algorithm="replay", **changes)
    plan = write_plan(config, root / "plan")
    OtherEngine(root / "plan", EngineRun(root / "run")).train(plan)
    return root


def local_evaluation(config: GRPOConfig, model: str) -> dict[str, Cell]:
    trainer = GRPOTrainer(config.model_copy(update={"model_name_or_path": model}))
    return {domain: trainer.evaluate_task(domain) for domain in DOMAINS}


def test_imported_run_has_the_r_matrix_of_evaluating_its_checkpoints_and_a_report(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plan, config = read_plan(trained / "plan")
    files, run = EngineRun(trained / "run"), ["--run", str(trained / "run")]
    assert (
        main(["import-run", str(trained / "plan"), *run, "--checkpoint", "stage_0_toy_left"]) == 0
    )
    first = capsys.readouterr().out.strip()
    assert first.endswith("global_step_3/policy")
    # One row is evaluated by the command of the plan's scripts, the others during the import.
    arguments = ["--config", str(trained / "plan" / plan.config), "--model_name_or_path", first]
    out = files.evaluation("stage_0_toy_left")
    assert main(["evaluate", *arguments, "--out", str(out)]) == 0
    target = ["--out", str(tmp_path / "imported")]
    assert main(["import-run", str(trained / "plan"), *run, *target]) == 2
    assert "base/evaluation.json lacks toy_left, toy_right" in capsys.readouterr().err
    assert main(["import-run", str(trained / "plan"), *run, *target, "--evaluate"]) == 0

    models = [find_model(files.model_dir(stage.name)) for stage in plan.stages]
    expected = [local_evaluation(config, model) for model in ("tabular", *map(str, models))]
    imported = RunDir(tmp_path / "imported")
    matrix = RMatrix.load(imported.r_matrix)
    assert [row.after for row in matrix.rows] == ["base", *DOMAINS]
    assert [row.cells for row in matrix.rows] == expected
    assert matrix.scores()[1][0] != matrix.scores()[0][0]  # training changed the score
    assert imported.report.exists()
    assert [cell["domain"] for cell in read_metrics(imported.root)["task_1/eval"]] == [*DOMAINS]


def test_imported_run_has_the_files_of_a_local_run(trained: Path, tmp_path: Path):
    import_run(trained / "plan", trained / "run", tmp_path / "imported", evaluate=True)
    config = read_plan(trained / "plan").config
    GRPOTrainer(config.model_copy(update={"log_dir": tmp_path / "ours"})).train()
    imported, local = RunDir(tmp_path / "imported"), RunDir(tmp_path / "ours")
    assert {"checkpoints", "evaluations"} == _names(local.root) - _names(imported.root)
    for stage in (0, 1):
        checkpoint = imported.stage_checkpoint(stage)
        assert verify(checkpoint.root) is None
        assert _names(checkpoint.root) == _names(local.stage_checkpoint(stage).root)
        assert find_model(checkpoint.model_dir) == checkpoint.model_dir
    local_metrics, metrics = (read_metrics(run.root) for run in (local, imported))
    assert local_metrics["transfer"][-1].keys() == metrics["transfer"][-1].keys()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def log_episodes(plan_dir: Path, folder: Path, stage: int) -> int:
    """Log the episodes of a stage as the integrations do, with a policy that solves every task."""
    plan, config = read_plan(plan_dir)
    domains = {name: load_domain(name) for name in DOMAINS}
    log = episode_log({FOLDER_VARIABLE: str(folder)})
    assert log is not None
    tasks = [
        domains[entry["domain"]].task(entry["task_id"])
        for entry in read_journal(plan_dir / plan.stages[stage].schedule)
        for _ in range(config.num_samples_per_prompt)
    ]
    oracle = RewardOracle(domains)
    for trajectory in run_episodes(ScriptedActor(gold), domains, tasks, RolloutConfig()):
        log.add(trajectory, oracle.score(trajectory))
    log.close()
    return len(tasks)


def test_logged_episodes_are_imported_at_their_scheduled_steps(trained: Path, tmp_path: Path):
    import_run(trained / "plan", trained / "run", tmp_path / "without", evaluate=True)
    run = EngineRun(trained / "run")
    count = log_episodes(trained / "plan", run.rollouts_dir("stage_1_toy_right"), 1)
    import_run(trained / "plan", trained / "run", tmp_path / "imported", evaluate=False)
    lines = list(read_journal(RunDir(tmp_path / "imported").trajectories_journal))
    plan = read_plan(trained / "plan").plan
    schedule = list(read_journal(trained / "plan" / plan.stages[1].schedule))
    assert len(lines) == count
    assert sorted((line["step"], line["task_id"]) for line in lines) == sorted(
        (3 + entry["step"], entry["task_id"]) for entry in schedule for _ in range(2)
    )
    logged = read_metrics(tmp_path / "imported")["task_1/train"]
    assert [(entry["step"], entry["reward_mean"]) for entry in logged] == [(0, 1), (1, 1), (2, 1)]
    assert [entry["episodes"] for entry in logged] == [16.0] * 3
    assert "task_0/train" not in read_metrics(tmp_path / "imported")
    for path in run.rollouts_dir("stage_1_toy_right").iterdir():
        path.unlink()


def imported_rewards(trained: Path, out: Path, files: dict[str, list[dict[str, Any]]]) -> list[Any]:
    folder = EngineRun(trained / "run").rollouts_dir("stage_0_toy_left")
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    try:
        import_run(trained / "plan", trained / "run", out, evaluate=True)
    finally:
        for name in files:
            (folder / name).unlink()
    return [entry["reward_mean"] for entry in read_metrics(out)["task_0/train"]]


def test_scores_in_the_engines_own_dumps_are_read_per_step(trained: Path, tmp_path: Path):
    verl = {
        f"{step}.jsonl": [
            {"input": "…", "output": "…", "gts": "x", "score": score, "step": step}
            for score in (0.0, step / 4)
        ]
        for step in (2, 10, 1)
    }
    assert imported_rewards(trained, tmp_path / "verl", verl) == [0.125, 0.25, 1.25]
    areal = {f"{version}/7.jsonl": [{"reward": version, "prompt": "…"}] for version in (0, 1)}
    assert imported_rewards(trained, tmp_path / "areal", areal) == [0.0, 1.0]


def test_invalid_line_is_reported_with_its_location(trained: Path, tmp_path: Path):
    with pytest.raises(
        TaskDataError, match=r"3\.jsonl, line 1 is neither an episode .* it has text"
    ):
        imported_rewards(trained, tmp_path / "out", {"3.jsonl": [{"text": "…"}]})
    line = {"messages": [], "domain": "airline", "task_id": "1"}
    with pytest.raises(TaskDataError, match=r"a.jsonl, line 1: .* a task of toy_left, toy_right"):
        imported_rewards(trained, tmp_path / "out2", {"a.jsonl": [line]})


def test_plan_of_another_task_release_is_rejected(trained: Path, tmp_path: Path):
    plan = json.loads((trained / "plan" / "plan.json").read_text())
    plan["releases"]["toy_left"] = "another"
    for name in ("config.json", "plan.json"):
        (tmp_path / name).write_text((trained / "plan" / name).read_text())
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match="made with release 'another' of toy_left"):
        import_run(tmp_path, trained / "run", tmp_path / "out", evaluate=False)


def test_checkpoint_with_the_highest_number_is_found(tmp_path: Path):
    for name in ("global_step_9/actor/huggingface", "global_step_10/actor/huggingface"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("")
    assert "global_step_10" in str(find_model(tmp_path))
    with pytest.raises(ConfigError, match="save or export in Hugging Face's format"):
        find_model(tmp_path / "global_step_9" / "nothing")
