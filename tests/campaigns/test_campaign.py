import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench_campaigns import DOMAINS, SETTINGS, toy_campaign
from grpo_cl.algorithms import ALGORITHMS, find_algorithm
from grpo_cl.campaigns import (
    FinishedCampaign,
    estimate,
    make_plan,
    read_campaign,
    run_campaign,
)
from grpo_cl.campaigns.directory import CampaignDir
from grpo_cl.campaigns.leaderboard import leaderboard
from grpo_cl.campaigns.shared_stage import start_from_stage, train_first_stage
from grpo_cl.campaigns.submission import pack
from grpo_cl.campaigns.verification import verify
from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.toy.domain import NUM_SIGNALS
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.trainer import GRPOTrainer
from parameters import mostly_slow
from paths import CONFIGS, SUPPORT

SCRIPT = SUPPORT / "bench_campaigns.py"
THREE = {**SETTINGS, "task_order": DOMAINS}
ROW = 2 * NUM_SIGNALS * 2
"""Episodes of a row of the R-matrix: two domains, two trials of each signal."""
SHARING = sorted(name for name in ALGORITHMS if find_algorithm(name).shares_first_stage)


def ignore(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> FinishedCampaign:
    return run_campaign(toy_campaign(tmp_path_factory.mktemp("campaign")), report=ignore)


# --- Description


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithms": [{"name": "ewk"}]}, "unknown algorithm 'ewk'.*Did you mean 'ewc'"),
        ({"algorithms": [{"name": "ewc", "cl_options": {"power": 1}}]}, "cl_options.power"),
        ({"algorithms": [{"name": "ewc"}, {"name": "ewc"}]}, "two algorithms have the label 'ewc'"),
        ({"primary": "accuracy"}, "primary"),
        ({"variance": "equal"}, "variance"),
        ({"reference": "joint"}, "reference 'joint' is none of .* set reference to one of sequ"),
        ({"algorithms": [{"name": "ewc"}, {"name": "si"}]}, "'sequential' is none of .* ewc, si"),
        ({"base": {**SETTINGS, "temperature": 0}}, "temperature=0 makes all episodes of a group"),
        ({"seeds": [1, 1]}, "seeds must be distinct"),
        ({"base": {**SETTINGS, "seed": 1}}, "base sets 'seed', which the campaign sets"),
        ({"base": {**SETTINGS, "learning_rat": 1}}, "unknown setting 'learning_rat'"),
        ({"base": {**SETTINGS, "learning_rate": -1}}, "learning_rate: .*got -1"),
        ({"orders": [["toy_left", "toy_up"], DOMAINS]}, "has other domains than"),
        ({"workers": 0}, "workers: .*got 0"),
        ({"wrkers": 1}, "unknown setting 'wrkers'"),
        (
            {"algorithms": [{"name": "ewc", "settings": {"num_steps_per_task": 9}}]},
            "compute is 'steps'",
        ),
        (
            {
                "algorithms": [
                    {"name": "sequential"},
                    {"name": "merge", "settings": {"lora": {"r": 4}}},
                ]
            },
            "merge does not support lora.r=4",
        ),
        (
            {"algorithms": [{"name": "replay", "settings": {"replay_ratio": 1.0}}]},
            "replay_ratio 1.0 leaves no room",
        ),
    ],
)
def test_an_invalid_campaign_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        toy_campaign(tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_a_campaign_without_its_directory_is_refused_without_quoting_the_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "small.yaml").write_text("base: {}\nalgorithms: [{name: sequential}]\n")
    with pytest.raises(ConfigError) as refused:
        read_campaign(tmp_path / "small.yaml")
    assert str(refused.value) == "out: Field required"


@pytest.mark.slow
def test_the_shipped_campaigns_are_valid() -> None:
    files = sorted(CONFIGS.glob("campaign*.yaml"))
    assert files
    for file in files:
        assert make_plan(read_campaign(file)).runs


# --- Plan


def test_runs_are_algorithms_by_orders_by_seeds_and_a_first_stage_is_shared(tmp_path: Path) -> None:
    plan = make_plan(toy_campaign(tmp_path, base=THREE, orders="all"))
    assert len(plan.runs) == 2 * 6 * 2
    assert {stage.config.task_order[0] for stage in plan.shared_stages} == set(DOMAINS)
    assert len(plan.shared_stages) == 3 * 2
    assert all(run.shared_stage is not None for run in plan.runs)


def test_runs_with_different_first_stages_share_nothing(tmp_path: Path) -> None:
    entries = [
        {"name": "sequential"},
        {"name": "ewc", "settings": {"learning_rate": 0.05}},
        {"name": "joint"},
    ]
    plan = make_plan(toy_campaign(tmp_path, algorithms=entries))
    assert not plan.shared_stages
    assert not any(run.shared_stage for run in plan.runs)


def test_a_campaign_has_the_same_jobs_on_a_machine_with_other_places(tmp_path: Path) -> None:
    plans = [
        make_plan(toy_campaign(tmp_path, base={**SETTINGS, "models": {"cache_dir": place}}))
        for place in ("/one/replies", "/other/replies")
    ]
    names, others = (
        [(job.name, job.fingerprint) for job in (*plan.shared_stages, *plan.runs)] for plan in plans
    )
    assert names == others


@pytest.mark.slow
def test_the_campaign_of_six_domains_fixes_its_analysis_and_all_orders_have_three_algorithms() -> (
    None
):
    six = read_campaign(CONFIGS / "campaign_six.yaml")
    titles = [entry.title for entry in six.algorithms]
    assert len(titles) >= 10 and {"sequential", "joint", "single"} <= set(titles)
    assert len(six.orders_of(six.algorithms[0])[0]) == 6 and len(six.seeds) >= 8
    assert {"primary", "variance", "reference"} <= six.model_fields_set
    plan = make_plan(six)
    assert len(plan.shared_stages) == len(six.seeds)
    # joint trains on all domains from its first step; every other algorithm shares it.
    assert {run.config.cl_algorithm for run in plan.runs if not run.shared_stage} == {"joint"}
    orders = read_campaign(CONFIGS / "campaign_orders.yaml")
    assert len(orders.algorithms) == 3
    assert all(len(orders.orders_of(entry)) == 6 for entry in orders.algorithms)


def test_an_algorithm_may_have_its_own_orders(tmp_path: Path) -> None:
    entries = [{"name": "sequential", "orders": "all"}, {"name": "ewc"}]
    plan = make_plan(toy_campaign(tmp_path, base=THREE, algorithms=entries, seeds=(7,)))
    assert [run.config.cl_algorithm for run in plan.runs] == ["sequential"] * 6 + ["ewc"]


def test_the_number_of_episodes_is_estimated_from_the_plan(tmp_path: Path) -> None:
    found = estimate(make_plan(toy_campaign(tmp_path)))
    # 4 runs · 2 stages · 3 steps · 4 tasks · 4 episodes; of 4 first stages 2 are trained.
    assert found.training == 4 * 2 * 48
    assert found.shared == 2 * 48
    # Every signal of 2 domains, two trials each: 2 base rows, and 2 rows of each run.
    assert found.evaluation == (2 + 4 * 2) * ROW
    within_stages = estimate(
        make_plan(toy_campaign(tmp_path, base={**SETTINGS, "eval_interval": 2}))
    )
    # Once in each stage of 3 steps, on the domains learned so far: half a row in each of 2 shared
    # stages, a whole row in the second stage of each of 4 runs.
    assert within_stages.evaluation == found.evaluation + 2 * ROW // 2 + 4 * ROW


def test_a_dry_run_shows_the_plan_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "campaign.yaml"
    campaign = toy_campaign(tmp_path / "out").model_dump(mode="json")
    file.write_text(json.dumps(campaign))
    assert main(["bench", str(file), "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert "4 runs" in shown and "2 first stages trained once" in shown
    assert f"288 of training (96 saved by sharing), {10 * ROW} of evaluation" in shown
    assert not (tmp_path / "out").exists()


# --- Shared stages


def files(root: Path) -> dict[str, str]:
    """Hashes of the files that must be identical in a run with a shared stage and one without."""
    run = RunDir(root)
    stages = range(len(json.loads(run.config.read_text())["task_order"]))
    models = [run.stage_checkpoint(stage).model_dir for stage in stages]
    weights = [path for model in models for path in sorted(model.rglob("*.safetensors"))]
    assert len(weights) >= len(models)
    kept = [run.trajectories_journal, run.r_matrix, *weights]
    digests = {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}
    return digests | {"metrics": json.dumps(numbers(run))}


def numbers(run: RunDir) -> dict[str, Any]:
    """Every logged number, except the algorithm's own telemetry in the shared stage."""
    metrics = run.read_metrics()
    metrics["task_0/train"] = [
        {name: value for name, value in record.items() if not name.startswith("cl/")}
        for record in metrics["task_0/train"]
    ]
    return metrics


def config(root: Path, **changes: Any) -> GRPOConfig:
    return GRPOConfig.model_validate({**SETTINGS, "log_dir": root, **changes})


@pytest.fixture(scope="module")
def shared_stages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """First stages without and with LoRA, by rank."""
    roots = {rank: tmp_path_factory.mktemp("shared_stages") / str(rank) for rank in (0, 2)}
    for rank, root in roots.items():
        train_first_stage(config(root, lora={"r": rank}))
    return roots


SHARED_CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SHARING),
    ("kl_old", {"states": "current"}),
    ("rapo", {"is_normalised": True}),
    ("replay", {"mode": "additive"}),
]


@pytest.mark.parametrize("case", mostly_slow(SHARED_CASES, fast=[("ewc", {}), ("olora", {})]))
def test_a_run_from_a_shared_stage_equals_one_trained_alone(
    case: tuple[str, dict[str, Any]], shared_stages: dict[int, Path], tmp_path: Path
) -> None:
    name, options = case
    rank = 2 if name in {"domain_lora", "olora"} else 0
    settings = {"cl_algorithm": name, "cl_options": options, "lora": {"r": rank}}
    assert_shared_equals_alone(shared_stages[rank], tmp_path, task_order=DOMAINS[:2], **settings)


@pytest.mark.slow
def test_a_first_stage_is_shared_by_other_orders_of_the_remaining_domains(tmp_path: Path) -> None:
    train_first_stage(config(tmp_path / "stage", task_order=DOMAINS))
    order = [DOMAINS[0], DOMAINS[2], DOMAINS[1]]
    assert_shared_equals_alone(tmp_path / "stage", tmp_path, cl_algorithm="ewc", task_order=order)


def assert_shared_equals_alone(stage_dir: Path, root: Path, **settings: Any) -> None:
    GRPOTrainer(config(root / "alone", **settings)).train()
    shared = config(root / "shared", **settings)
    start_from_stage(stage_dir, shared)
    GRPOTrainer(shared.model_copy(update={"resume_from": shared.log_dir})).train()
    assert files(root / "shared") == files(root / "alone")
    second = RunDir(root / "shared").read_metrics()["task_1/train"]
    assert any(record["grad_norm"] > 0 for record in second)


def test_runs_link_the_weights_of_a_shared_stage(
    shared_stages: dict[int, Path], tmp_path: Path
) -> None:
    start_from_stage(shared_stages[0], config(tmp_path / "run"))
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    (weights,) = checkpoint.rglob("weights.safetensors")
    assert weights.samefile(
        shared_stages[0] / "checkpoints" / weights.relative_to(checkpoint.parent)
    )


def test_a_damaged_shared_stage_is_refused(shared_stages: dict[int, Path], tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(shared_stages[0]), str(tmp_path / "stage")], check=True)
    state = max((tmp_path / "stage" / "checkpoints").iterdir()) / "state.json"
    state.write_text(state.read_text().replace("0", "1", 1))
    with pytest.raises(CheckpointError, match=r"state\.json.*delete that directory"):
        start_from_stage(tmp_path / "stage", config(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


# --- Results


def results(done: FinishedCampaign) -> dict[str, Any]:
    return json.loads(done.directory.results.read_text())


@pytest.mark.slow
def test_results_have_the_matrix_and_the_costs_of_every_run(done: FinishedCampaign) -> None:
    found = results(done)
    assert done.is_complete
    assert [(run["label"], run["seed"]) for run in found["runs"]] == [
        ("sequential", 0),
        ("sequential", 1),
        ("ewc", 0),
        ("ewc", 1),
    ]
    for run in found["runs"]:
        assert run["r_matrix"]["domains"] == DOMAINS[:2]
        training, evaluation = run["costs"]["training"], run["costs"]["evaluation"]
        # Two stages of 3 steps, 4 tasks, 4 episodes; one call of one token in each.
        assert (training["steps"], training["rollouts"]) == (6, 96)
        assert training["environment_steps"] == training["generated_tokens"] == 96
        assert 0 < training["trained_tokens"] <= 96
        assert training["simulator_calls"] == 0
        assert (evaluation["steps"], evaluation["rollouts"]) == (0, 3 * ROW)
        assert len(run["fingerprint"]) == 12
    # Two shared stages of 48 episodes, and 48 more of each of 4 runs.
    assert found["spent"]["training"]["rollouts"] == 2 * 48 + 4 * 48
    assert found["spent"]["evaluation"]["rollouts"] == 10 * ROW


def test_scores_and_differences_have_intervals_and_counts(done: FinishedCampaign) -> None:
    first, second = results(done)["summary"]["methods"]
    assert (first["label"], first["finished"], first["planned"]) == ("sequential", 2, 2)
    for score in ("average_performance", "backward_transfer", "forward_transfer"):
        interval = second["scores"][score]
        assert interval["low"] <= interval["estimate"] <= interval["high"]
        assert interval["seeds"] == 2 and interval["tasks"] == 2 * NUM_SIGNALS
    assert first["differences"]["average_performance"] is None
    primary, exploratory = (
        second["differences"][name] for name in ("average_performance", "learning_accuracy")
    )
    assert primary["p_holm"] is not None
    assert exploratory["p_value"] is None or exploratory["p_holm"] is None
    # The runs of a seed share their first stage.
    assert primary["difference"]["method"] == "paired t over seeds"
    assert second["is_matched"] is True
    assert second["components"]["tool_name"]["average_performance"] == 1.0
    change = second["component_changes"]["tool_arguments"]
    assert change["interval"]["estimate"] == change["mean"] < 1.0
    assert change["difference"]["difference"]["method"] == "paired t over seeds"


def test_floors_and_scores_without_the_tasks_they_solve_stand_beside_the_scores(
    done: FinishedCampaign,
) -> None:
    summary = results(done)["summary"]
    assert summary["primary"] == "average_performance"
    assert summary["floors"]["toy_left"]["idle"] == 0.0
    assert summary["remarks"] == []
    for method in summary["methods"]:
        # No policy without skill solves a toy task, so no task is left out.
        assert method["without_floor_tasks"] == method["scores"]
    assert done.directory.report.read_text().count("best floor") == len(summary["methods"])


def test_a_campaign_is_submitted_with_all_its_runs(done: FinishedCampaign) -> None:
    submission = pack(done.directory.root)
    assert [(run.label, run.seed) for run in submission.runs] == [
        ("sequential", 0),
        ("sequential", 1),
        ("ewc", 0),
        ("ewc", 1),
    ]
    assert submission.campaign is not None
    assert submission.campaign["primary"] == "average_performance"
    assert verify(submission, done.directory.root).differences == []
    assert "| 2 |" in leaderboard([submission])
    declared = {**submission.campaign, "primary": "backward_transfer"}
    other = submission.model_copy(update={"campaign": declared, "digest": ""})
    other = other.model_copy(update={"digest": other.computed_digest()})
    (difference,) = verify(other, done.directory.root).differences
    assert "the campaign is not that of" in difference


def with_failed_runs(done: FinishedCampaign, tmp_path: Path, *failed: int) -> Path:
    """A copy of the campaign whose results have an error for these runs."""
    copy = Path(shutil.copytree(done.directory.root, tmp_path / "campaign"))
    found = read_json(copy / "results.json")
    for index in failed:
        found["runs"][index]["error"] = "OutOfMemoryError: CUDA out of memory. Tried to allocate."
    write_json(copy / "results.json", found)
    return copy


def test_a_failed_run_is_named_in_the_submission_and_counted_on_the_leaderboard(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    copy = with_failed_runs(done, tmp_path, 3)
    submission = pack(copy)
    assert len(submission.runs) == 3
    (missing,) = submission.missing
    assert (missing.label, missing.seed) == ("ewc", 1)
    assert missing.reason == "OutOfMemoryError: CUDA out of memory"
    assert verify(submission, copy).differences == []
    page = leaderboard([submission])
    policy = f"tabular `{str(submission.runs[0].initial_model)[:8]}`"
    assert f"| ewc | {policy} | 1 of 2 |" in page and f"| sequential | {policy} | 2 |" in page


@pytest.mark.parametrize("named", [0, 2])
def test_a_missing_run_that_a_submission_leaves_out_or_repeats_is_named(
    named: int, done: FinishedCampaign, tmp_path: Path
) -> None:
    copy = with_failed_runs(done, tmp_path, 3)
    submission = pack(copy)
    other = submission.model_copy(update={"missing": submission.missing * named})
    other = other.model_copy(update={"digest": other.computed_digest()})
    (alone,) = verify(other).differences
    assert f"seed 1: {named} time(s) in the file, planned 1 time(s)" in alone
    _, difference = verify(other, copy).differences
    assert f"ewc, toy_left → toy_right, seed 1: named {named} time(s) as a missing" in difference


def test_the_leaderboard_names_methods_without_a_finished_run_under_their_table(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    submission = pack(with_failed_runs(done, tmp_path, 2, 3))
    page = leaderboard([submission])
    table, sentence = page.strip().split("\n\n")[-2:]
    assert table.splitlines()[-1].startswith("| toy | sequential | tabular")
    assert sentence == "No finished run: ewc (0 of 2). Submission: toy."
    other = tuple(run.model_copy(update={"order": ("toy_up",)}) for run in submission.missing)
    page = leaderboard([submission.model_copy(update={"missing": other})])
    assert page.endswith(f"\n\n## toy\\_up\n\n{sentence}\n")


def test_a_campaign_without_a_finished_run_is_not_submitted(
    done: FinishedCampaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, file = with_failed_runs(done, tmp_path, 0, 1, 2, 3), tmp_path / "submission.json"
    assert main(["submit", str(copy), "--out", str(file)]) != 0
    assert "none of the 4 runs of the campaign" in capsys.readouterr().err
    assert not file.exists()


def test_a_finished_campaign_is_not_trained_again(done: FinishedCampaign) -> None:
    before = done.directory.results.read_bytes()
    lines: list[str] = []
    run_campaign(toy_campaign(done.directory.root), report=lines.append)
    assert lines == ["6 of 6 were finished before"]
    assert done.directory.results.read_bytes() == before


def test_changed_settings_are_refused_before_training(done: FinishedCampaign) -> None:
    other = toy_campaign(done.directory.root, base={**SETTINGS, "learning_rate": 0.2})
    with pytest.raises(ConfigError, match="started with other settings"):
        run_campaign(other, report=ignore)


def test_a_campaign_of_a_version_with_fewer_settings_is_resumed(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(done.directory.root, root)
    campaign = toy_campaign(root)
    for job in (*make_plan(campaign).shared_stages, *make_plan(campaign).runs):
        file = RunDir(job.config.log_dir).config
        settings = read_json(file)
        del settings["fork"]
        write_json(file, settings)
    directory = CampaignDir(root)
    write_json(directory.fingerprints, dict.fromkeys(read_json(directory.fingerprints), "older"))
    lines: list[str] = []
    run_campaign(campaign, report=lines.append)
    assert lines == ["6 of 6 were finished before"]


def test_a_campaign_is_locked_by_its_process(done: FinishedCampaign) -> None:
    with done.directory.locked(), pytest.raises(ConfigError, match=r"is in use by process \d+ on"):
        run_campaign(toy_campaign(done.directory.root), report=ignore)


def test_a_failed_run_is_reported_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # O-LoRA needs adapters, which it checks when it is bound to the policy.
    entries = [{"name": "sequential"}, {"name": "olora"}]
    campaign = toy_campaign(tmp_path / "out", algorithms=entries, seeds=(0,))
    file = tmp_path / "campaign.yaml"
    file.write_text(json.dumps(campaign.model_dump(mode="json")))
    assert main(["bench", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "olora, toy_left → toy_right, seed 0: FAILED" in shown
    assert "0/1" in shown
    found = json.loads(CampaignDir(tmp_path / "out").results.read_text())
    good, bad = found["runs"]
    assert good["error"] is None and good["scores"]["average_performance"] is not None
    assert "lora.r" in bad["error"] and bad["r_matrix"] is None
    assert any("lora.r" in sentence for sentence in found["summary"]["missing"])


# --- Interruptions


def start_campaign(out: Path, *workers: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(SCRIPT), str(out), *workers]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for_training(out: Path, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None and not list(out.glob("shared_stages/*/metrics.jsonl")):
        time.sleep(0.02)


@pytest.mark.slow
def test_a_campaign_killed_at_random_times_has_the_results_of_an_uninterrupted_one(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    rng = Random(3)
    kills = 0
    for _ in range(12):
        with start_campaign(tmp_path) as process:
            if kills < 3:
                wait_for_training(tmp_path, process)
                time.sleep(rng.uniform(0.0, 2.0))
                kills += process.poll() is None
                process.send_signal(signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            break
    assert kills > 0
    assert (tmp_path / "results.json").read_bytes() == done.directory.results.read_bytes()


def test_shared_stages_of_earlier_versions_are_renamed_and_not_trained_again(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    shutil.copytree(done.directory.root, tmp_path, dirs_exist_ok=True)
    for path in (*tmp_path.glob("shared_stages"), *tmp_path.glob("*/shared_stage.*")):
        path.rename(path.with_name(path.name.replace("shared_stage", "trunk")))
    lines: list[str] = []
    run_campaign(toy_campaign(tmp_path), report=lines.append)
    assert lines == ["6 of 6 were finished before"]
    assert (tmp_path / "results.json").read_bytes() == done.directory.results.read_bytes()


@pytest.mark.slow
def test_a_terminated_campaign_stops_its_runs_and_can_be_resumed(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    with start_campaign(tmp_path) as process:
        wait_for_training(tmp_path, process)
        process.terminate()
        assert process.wait() == 143
    ended = [json.loads(path.read_text()) for path in tmp_path.glob("outcomes/*.json")]
    assert len(ended) < 6
    assert all(outcome["error"] is None for outcome in ended)
    assert not (tmp_path / "results.json").exists()
    run_campaign(toy_campaign(tmp_path), report=ignore)
    assert (tmp_path / "results.json").read_bytes() == done.directory.results.read_bytes()


def parallel_runs(out: Path) -> list[int]:
    """The processes of the runs that are being trained now."""
    found: list[int] = []
    for lock in out.glob("runs/*/lock"):
        with suppress(FileNotFoundError):  # its run has ended just now
            found += map(int, re.findall(r"^process (\d+) on", lock.read_text()))
    return found


@pytest.mark.slow
def test_parallel_runs_are_killed_together_and_go_on_with_the_same_results(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    """Four runs at once, killed when they train; a second process is refused while they go on."""
    with start_campaign(tmp_path, "4") as process:
        while process.poll() is None and len(parallel_runs(tmp_path)) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    lock = tmp_path / "lock"  # the killed process left its own
    with start_campaign(tmp_path, "4") as process:
        holder = f"process {process.pid} on"
        while process.poll() is None and holder not in lock.read_text():
            time.sleep(0.01)
        with pytest.raises(ConfigError, match=f"is in use by {holder}"):
            run_campaign(toy_campaign(tmp_path), report=ignore)
        assert process.wait() == 0
    assert (tmp_path / "results.json").read_bytes() == done.directory.results.read_bytes()


@pytest.mark.slow
def test_a_run_that_is_killed_fails_alone_and_is_trained_to_the_end_the_next_time(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    with start_campaign(tmp_path, "4") as process:
        running: list[int] = []
        while process.poll() is None and not running:
            running = parallel_runs(tmp_path)
        for pid in running[:1]:
            with suppress(ProcessLookupError):  # it may have ended just now
                os.kill(pid, signal.SIGKILL)
        process.wait()
    ended = [json.loads(path.read_text()) for path in tmp_path.glob("outcomes/run.*")]
    assert len(ended) == 4
    assert sum(outcome["error"] is not None for outcome in ended) <= 1
    run_campaign(toy_campaign(tmp_path, workers=3), report=ignore)
    assert (tmp_path / "results.json").read_bytes() == done.directory.results.read_bytes()


# --- Other machines


def bring(source: Path, target: Path) -> None:
    """Copy a campaign without models and episodes, as docs/campaigns.md does with tar."""
    left_out = ("checkpoints", "checkpoint_task_*", "evaluations", "trajectories.jsonl*", "*.html")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out), dirs_exist_ok=True)


def test_a_campaign_without_models_and_episodes_has_the_same_results_and_page(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    bring(done.directory.root, tmp_path)
    directory = CampaignDir(tmp_path)
    directory.results.unlink()
    lines: list[str] = []
    brought = run_campaign(toy_campaign(tmp_path), report=lines.append)
    assert lines == ["6 of 6 were finished before"]
    assert brought.is_complete
    assert directory.results.read_bytes() == done.directory.results.read_bytes()
    assert directory.times.read_bytes() == done.directory.times.read_bytes()
    assert directory.report.read_bytes() == done.directory.report.read_bytes()
    reports = [path.read_text() for path in tmp_path.glob("runs/*/report.html")]
    assert len(reports) == 4 and not any("episodes.html" in text for text in reports)


@pytest.mark.slow
def test_seeds_trained_in_two_directories_are_merged_by_copying(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    for seed in (0, 1):
        run_campaign(toy_campaign(tmp_path / str(seed), seeds=(seed,)), report=ignore)
        bring(tmp_path / str(seed), tmp_path / "merged")
    lines: list[str] = []
    merged = run_campaign(toy_campaign(tmp_path / "merged"), report=lines.append)
    assert lines == ["6 of 6 were finished before"]
    assert merged.directory.results.read_bytes() == done.directory.results.read_bytes()


def test_a_copied_run_with_other_settings_is_refused(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    bring(done.directory.root, tmp_path)
    CampaignDir(tmp_path).fingerprints.unlink()
    other = toy_campaign(tmp_path, base={**SETTINGS, "learning_rate": 0.2})
    with pytest.raises(ConfigError, match="started with other settings"):
        run_campaign(other, report=ignore)
    elsewhere = {**SETTINGS, "models": {"cache_dir": str(tmp_path)}}
    assert run_campaign(toy_campaign(tmp_path, base=elsewhere), report=ignore).is_complete


def test_report_only_shows_the_finished_runs_and_trains_nothing(
    done: FinishedCampaign, tmp_path: Path
) -> None:
    bring(done.directory.root, tmp_path)
    lines: list[str] = []
    campaign = toy_campaign(tmp_path, seeds=(0, 1, 2))
    brought = run_campaign(campaign, report=lines.append, report_only=True)
    assert lines == []
    assert [row.finished for row in brought.summary.methods] == [2, 2]
    assert "sequential, toy_left → toy_right, seed 2: not finished." in brought.summary.missing
    assert len(list((tmp_path / "runs").iterdir())) == 4


@pytest.mark.slow
def test_a_seed_is_finished_before_the_next_so_that_a_campaign_cut_off_has_whole_seeds(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    run_campaign(toy_campaign(tmp_path, workers=1), report=lines.append)
    assert [line.split("seed ")[1][0] for line in lines] == ["0"] * 3 + ["1"] * 3
