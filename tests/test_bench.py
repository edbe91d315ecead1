import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench_campaigns import DOMAINS, SETTINGS, toy_campaign
from grpo_cl.algorithms import ALGORITHMS, find_algorithm
from grpo_cl.bench import Conducted, conduct, estimate, make_plan, read_campaign
from grpo_cl.bench.branch import branch, train_trunk
from grpo_cl.bench.folder import CampaignDir
from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.domains.toy import NUM_SIGNALS
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.rundir import RunDir
from grpo_cl.trainer import GRPOTrainer

SCRIPT = Path(__file__).parent / "bench_campaigns.py"
THREE = {**SETTINGS, "task_order": DOMAINS}
ROW = 2 * NUM_SIGNALS * 2
"""Episodes of a row of the R-matrix: two domains, two plays of each signal."""
SHARING = sorted(name for name in ALGORITHMS if find_algorithm(name).shares_first_stage)


def quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Conducted:
    return conduct(toy_campaign(tmp_path_factory.mktemp("campaign")), say=quiet)


# --- The description


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithms": [{"name": "ewk"}]}, "unknown algorithm 'ewk'.*Did you mean 'ewc'"),
        ({"algorithms": [{"name": "ewc", "cl_options": {"power": 1}}]}, "cl_options.power"),
        ({"algorithms": [{"name": "ewc"}, {"name": "ewc"}]}, "two entries are called 'ewc'"),
        ({"seeds": [1, 1]}, "seeds repeats one"),
        ({"base": {**SETTINGS, "seed": 1}}, "base sets 'seed', which the campaign decides"),
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
            "merge cannot serve lora.r=4",
        ),
        (
            {"algorithms": [{"name": "replay", "settings": {"replay_ratio": 1.0}}]},
            "replay_ratio 1.0 leaves no place",
        ),
    ],
)
def test_a_campaign_that_makes_no_sense_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        toy_campaign(tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_the_campaigns_we_ship_are_valid() -> None:
    files = sorted((Path(__file__).parent.parent / "configs").glob("campaign*.yaml"))
    assert files
    for file in files:
        assert make_plan(read_campaign(file)).runs


# --- The plan


def test_runs_are_algorithms_by_orders_by_seeds_and_a_first_stage_is_shared(tmp_path: Path) -> None:
    plan = make_plan(toy_campaign(tmp_path, base=THREE, orders="all"))
    assert len(plan.runs) == 2 * 6 * 2
    assert {trunk.config.task_order[0] for trunk in plan.trunks} == set(DOMAINS)
    assert len(plan.trunks) == 3 * 2
    assert all(run.trunk is not None for run in plan.runs)


def test_what_differs_in_the_first_stage_is_not_shared(tmp_path: Path) -> None:
    entries = [
        {"name": "sequential"},
        {"name": "ewc", "settings": {"learning_rate": 0.05}},
        {"name": "joint"},
    ]
    plan = make_plan(toy_campaign(tmp_path, algorithms=entries))
    assert not plan.trunks
    assert not any(run.trunk for run in plan.runs)


def test_one_algorithm_may_have_orders_of_its_own(tmp_path: Path) -> None:
    entries = [{"name": "sequential", "orders": "all"}, {"name": "ewc"}]
    plan = make_plan(toy_campaign(tmp_path, base=THREE, algorithms=entries, seeds=(7,)))
    assert [run.config.cl_algorithm for run in plan.runs] == ["sequential"] * 6 + ["ewc"]


def test_episodes_are_estimated_before_anything_is_played(tmp_path: Path) -> None:
    found = estimate(make_plan(toy_campaign(tmp_path)))
    # 4 runs · 2 stages · 3 steps · 4 tasks · 4 episodes; of 4 first stages 2 are trained.
    assert found.training == 4 * 2 * 48
    assert found.shared == 2 * 48
    # Every signal of 2 domains, played twice: 2 base rows, and 2 rows of each run.
    assert found.evaluation == (2 + 4 * 2) * ROW
    watched = estimate(make_plan(toy_campaign(tmp_path, base={**SETTINGS, "eval_interval": 2})))
    # Once in each stage of 3 steps, domains learned so far: 2 shared stages see half a row, the
    # second stages of 4 runs a whole one.
    assert watched.evaluation == found.evaluation + 2 * ROW // 2 + 4 * ROW


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
    """What has to be the same in a branch and in a run of its own, bit for bit."""
    run = RunDir(root)
    stages = range(len(json.loads(run.config.read_text())["task_order"]))
    models = [run.stage_checkpoint(stage).model_dir for stage in stages]
    weights = [path for model in models for path in sorted(model.rglob("*.safetensors"))]
    assert len(weights) >= len(models)
    kept = [run.trajectories_journal, run.r_matrix, *weights]
    digests = {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}
    return digests | {"metrics": json.dumps(numbers(run))}


def numbers(run: RunDir) -> dict[str, Any]:
    """Every logged number, but for what an algorithm says of itself in the stage it shares."""
    metrics = run.read_metrics()
    metrics["task_0/train"] = [
        {name: value for name, value in record.items() if not name.startswith("cl/")}
        for record in metrics["task_0/train"]
    ]
    return metrics


def config(root: Path, **changes: Any) -> GRPOConfig:
    return GRPOConfig.model_validate({**SETTINGS, "log_dir": root, **changes})


@pytest.fixture(scope="module")
def trunks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """First stages without and with adapters, by their rank."""
    made = {rank: tmp_path_factory.mktemp("trunks") / str(rank) for rank in (0, 2)}
    for rank, root in made.items():
        train_trunk(config(root, lora={"r": rank}))
    return made


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in SHARING),
        ("kl_old", {"states": "current"}),
        ("rapo", {"is_normalised": True}),
        ("replay", {"mode": "additive"}),
    ],
)
def test_a_run_that_shares_its_first_stage_equals_one_that_does_not(
    name: str, options: dict[str, Any], trunks: dict[int, Path], tmp_path: Path
) -> None:
    rank = 2 if name in {"domain_lora", "olora"} else 0
    settings = {"cl_algorithm": name, "cl_options": options, "lora": {"r": rank}}
    assert_a_branch_equals_a_run(trunks[rank], tmp_path, task_order=DOMAINS[:2], **settings)


def test_a_first_stage_is_shared_by_other_orders_of_the_rest(tmp_path: Path) -> None:
    train_trunk(config(tmp_path / "trunk", task_order=DOMAINS))
    order = [DOMAINS[0], DOMAINS[2], DOMAINS[1]]
    assert_a_branch_equals_a_run(tmp_path / "trunk", tmp_path, cl_algorithm="ewc", task_order=order)


def assert_a_branch_equals_a_run(trunk: Path, folder: Path, **settings: Any) -> None:
    GRPOTrainer(config(folder / "alone", **settings)).train()
    shared = config(folder / "shared", **settings)
    branch(trunk, shared)
    GRPOTrainer(shared.model_copy(update={"resume_from": shared.log_dir})).train()
    assert files(folder / "shared") == files(folder / "alone")
    second = RunDir(folder / "shared").read_metrics()["task_1/train"]
    assert any(record["grad_norm"] > 0 for record in second)


def test_runs_that_share_a_stage_share_its_files(trunks: dict[int, Path], tmp_path: Path) -> None:
    branch(trunks[0], config(tmp_path / "run"))
    (made,) = (tmp_path / "run" / "checkpoints").iterdir()
    (weights,) = made.rglob("weights.safetensors")
    assert weights.samefile(trunks[0] / "checkpoints" / weights.relative_to(made.parent))


def test_a_damaged_shared_stage_is_named(trunks: dict[int, Path], tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(trunks[0]), str(tmp_path / "trunk")], check=True)
    state = max((tmp_path / "trunk" / "checkpoints").iterdir()) / "state.json"
    state.write_text(state.read_text().replace("0", "1", 1))
    with pytest.raises(CheckpointError, match=r"state\.json.*delete that folder"):
        branch(tmp_path / "trunk", config(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


# --- Results


def results(done: Conducted) -> dict[str, Any]:
    return json.loads(done.folder.results.read_text())


def test_every_run_is_in_the_results_with_its_matrix_and_its_ledger(done: Conducted) -> None:
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


def test_scores_and_differences_come_with_intervals_and_counts(done: Conducted) -> None:
    first, second = results(done)["summary"]["methods"]
    assert (first["label"], first["finished"], first["planned"]) == ("sequential", 2, 2)
    for score in ("average_performance", "backward_transfer", "forward_transfer"):
        interval = second["scores"][score]
        assert interval["low"] <= interval["estimate"] <= interval["high"]
        assert interval["seeds"] == 2 and interval["tasks"] == 2 * NUM_SIGNALS
    assert first["differences"]["average_performance"] is None
    assert second["differences"]["average_performance"]["p_holm"] is not None
    assert second["is_matched"] is True
    assert second["components"]["tool_name"]["average_performance"] == 1.0


def test_a_finished_campaign_is_not_trained_again(done: Conducted) -> None:
    before = done.folder.results.read_bytes()
    started = time.monotonic()
    lines: list[str] = []
    conduct(toy_campaign(done.folder.root), say=lines.append)
    assert lines == ["6 of 6 were finished before"]
    assert done.folder.results.read_bytes() == before
    assert time.monotonic() - started < 5


def test_other_settings_are_refused_before_any_work(done: Conducted) -> None:
    other = toy_campaign(done.folder.root, base={**SETTINGS, "learning_rate": 0.2})
    with pytest.raises(ConfigError, match="begun with other settings"):
        conduct(other, say=quiet)


def test_two_processes_do_not_work_on_one_campaign(done: Conducted) -> None:
    with done.folder.held(), pytest.raises(ConfigError, match="another process works on"):
        conduct(toy_campaign(done.folder.root), say=quiet)


def test_a_run_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # O-LoRA needs adapters, which it says when it meets the policy.
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


# --- Ends that nobody planned


def conducting(out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(SCRIPT), str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def begun(out: Path, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None and not list(out.glob("trunks/*/metrics.jsonl")):
        time.sleep(0.02)


@pytest.mark.slow
def test_a_campaign_killed_at_random_moments_has_the_results_of_an_uninterrupted_one(
    done: Conducted, tmp_path: Path
) -> None:
    chance = Random(3)
    kills = 0
    for _ in range(12):
        with conducting(tmp_path) as process:
            if kills < 3:
                begun(tmp_path, process)
                time.sleep(chance.uniform(0.0, 2.0))
                kills += process.poll() is None
                process.send_signal(signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            break
    assert kills > 0
    assert (tmp_path / "results.json").read_bytes() == done.folder.results.read_bytes()


@pytest.mark.slow
def test_a_campaign_that_is_asked_to_end_ends_its_runs_and_can_go_on(
    done: Conducted, tmp_path: Path
) -> None:
    with conducting(tmp_path) as process:
        begun(tmp_path, process)
        process.terminate()
        assert process.wait() == 143
    ended = [json.loads(path.read_text()) for path in tmp_path.glob("outcomes/*")]
    assert len(ended) < 6
    assert all(outcome["error"] is None for outcome in ended)
    assert not (tmp_path / "results.json").exists()
    conduct(toy_campaign(tmp_path), say=quiet)
    assert (tmp_path / "results.json").read_bytes() == done.folder.results.read_bytes()
