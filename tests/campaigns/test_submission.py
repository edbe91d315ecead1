import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.campaigns.directory import CampaignDir
from grpo_cl.campaigns.leaderboard import leaderboard
from grpo_cl.campaigns.submission import (
    MAX_BYTES,
    MissingRun,
    Submission,
    missing_runs,
    pack,
    shareable_settings,
    write_submission,
)
from grpo_cl.campaigns.verification import Verification, verify
from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.trainer import GRPOTrainer
from paths import ROOT

SECRET = "sk-canary-0123456789"
PAGE = ROOT / "docs" / "leaderboard.md"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = GRPOConfig.model_validate(
        {
            "model_name_or_path": "tabular",
            "task_order": ("toy_left", "toy_right"),
            "max_new_tokens": 1,
            "num_steps_per_task": 2,
            "batch_size_per_gpu": 2,
            "evaluation": {"trials": 2},
            "log_dir": tmp_path_factory.mktemp("submitted") / "run",
        }
    )
    GRPOTrainer(config).train()
    return config.log_dir


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def edited(submission: Submission, change: Callable[[dict[str, Any]], None]) -> Submission:
    """The submission with a change of its first run, and a digest that fits."""
    content = submission.to_json()
    change(content["runs"][0])
    found = Submission.model_validate(content)
    return found.model_copy(update={"digest": found.computed_digest()})


def policy(submission: Submission) -> str:
    """The policy of the first run as the leaderboard shows it."""
    return f"tabular `{str(submission.runs[0].initial_model)[:8]}`"


def only(found: Verification) -> str:
    (difference,) = found.differences
    return difference


def test_a_run_is_submitted_and_everything_is_computed_again(run: Path) -> None:
    submission = pack(run)
    found = verify(submission, run)
    assert found.differences == []
    checked = "\n".join(found.checked)
    # Three rows of two domains with eight tasks and two trials each.
    assert "96 evaluation and 64 training episodes scored again" in checked
    assert "6 of 6 cells computed from their episodes" in checked
    (entry,) = submission.runs
    assert entry.scores["average_performance"] is not None
    assert set(entry.task_fingerprints) == {"toy_left", "toy_right"}
    assert entry.costs.training.rollouts == 64


def test_a_submission_is_the_same_wherever_the_run_lies(run: Path, trained: Path) -> None:
    assert pack(run).digest == pack(trained).digest


def test_a_submission_has_no_local_path_and_no_secret(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    settings = {
        "log_dir": str(run),
        "tools": str(run / "tools.py"),
        "judge": {"api_key": SECRET, "base_url": "http://host.internal:9/v1"},
        "note": f"key {SECRET}",
    }
    assert shareable_settings(settings) == {
        "tools": "…/tools.py",
        "judge": {"api_key": "<redacted>", "base_url": "http://…/v1"},
        "note": "key <redacted>",
    }
    assert str(run.parent) not in json.dumps(pack(run).to_json())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "grpo_cl.errors.ConfigError: no model in /tmp/x/alice_private_model: it has neither "
            "config.json nor adapter_config.json. Give another one.",
            "grpo_cl.errors.ConfigError: no model in …/alice_private_model: it has neither "
            "config.json nor adapter_config.json",
        ),
        (
            "/tmp/x/runs/ewc.1/r_matrix.json was changed or damaged (/tmp/x/ewc.1). Restore it.",
            "…/r_matrix.json was changed or damaged (…/ewc.1)",
        ),
        ("no '~/models/a b', ~alice/c or --out=/d/e/", "no '…/a b', …/c or --out=…/e"),
        (r"C:\Users\Alice Smith\model lacks D:/x", "…/model lacks …/x"),
        ("/home/Alice Smith/model lacks '/home/Al. S/x'", "…/model lacks '…/x'"),
        ("file:///tmp/x/y and http://host:1/v1/a: 404", "…/y and http://…/v1/a: 404"),
        ("1 / 2 of runs/x, ~/.cache, </think>", "1 / 2 of runs/x, …/.cache, </think>"),
        (f"{SECRET} in /tmp/x/y", "<redacted> in …/y"),
        ("not finished", "not finished"),
    ],
)
def test_the_reason_of_a_missing_run_is_a_sentence_without_local_paths(
    error: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    failed = {"label": "ewc", "order": ["toy_left"], "seed": 1, "error": error}
    write_json(CampaignDir(tmp_path).results, {"runs": [failed]})
    (missing,) = missing_runs(tmp_path)
    assert missing.reason == reason


def test_settings_name_the_last_part_of_a_path_of_any_system() -> None:
    places = {"model": r"C:\Users\Alice\model", "tools": "/home/Alice Smith/tools.py:Own"}
    assert shareable_settings(places) == {"model": "…/model", "tools": "…/tools.py:Own"}


def test_a_changed_file_is_named_by_its_digest(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "submission.json"
    write_submission(pack(run), path)
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    assert "changed after it was written" in verify(Submission.load(path)).differences[0]


def test_a_compressed_submission_is_the_same(run: Path, tmp_path: Path) -> None:
    plain, packed = tmp_path / "submission.json", tmp_path / "submission.json.gz"
    write_submission(pack(run), plain)
    write_submission(pack(run), packed)
    assert Submission.load(packed) == Submission.load(plain)
    assert packed.stat().st_size < plain.stat().st_size / 3


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"{" + data])
def test_a_damaged_compressed_submission_is_refused(
    run: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    packed = tmp_path / "submission.json.gz"
    write_submission(pack(run), packed)
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(ConfigError, match="cannot read the submission"):
        Submission.load(packed)


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "submission.json.gz"
    with gzip.open(packed, "wb") as file:
        for _ in range(MAX_BYTES // 2**24 + 1):
            file.write(bytes(2**24))
    with pytest.raises(ConfigError, match="after decompression"):
        Submission.load(packed)


def test_a_score_that_does_not_follow_from_the_matrix_is_named(run: Path) -> None:
    def raise_score(entry: dict[str, Any]) -> None:
        entry["scores"]["average_performance"] += 0.1

    assert "average_performance is " in only(verify(edited(pack(run), raise_score)))


def test_a_mean_that_does_not_follow_from_its_counts_is_named(run: Path) -> None:
    def raise_mean(entry: dict[str, Any]) -> None:
        entry["r_matrix"]["rows"][0]["cells"]["toy_left"]["mean"] += 0.1

    found = verify(edited(pack(run), raise_mean))
    assert "mean reward of toy_left after base" in only(found)


def test_counts_that_do_not_follow_from_the_episodes_are_named(run: Path) -> None:
    """A whole made-up cell is consistent in itself; the episodes tell."""

    def solve_all(entry: dict[str, Any]) -> None:
        cell = entry["r_matrix"]["rows"][0]["cells"]["toy_left"]
        cell["tasks"] = {task: [2, 2] for task in cell["tasks"]}
        cell["mean"] = 1.0

    submission = edited(pack(run), solve_all)
    assert verify(submission).differences == []
    named = "\n".join(verify(submission, run).differences)
    assert "toy_left after base: mean reward is 1.0, computed is" in named
    assert "toy_left after base: other successes of tasks than its episodes" in named


def test_a_made_up_reward_is_named_even_if_all_hashes_fit(run: Path) -> None:
    path = RunDir(run).evaluation_episodes(2, "toy_right")
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    failed = next(line for line in lines if line["reward"]["value"] == 0)
    failed["reward"]["value"] = 1.0
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    difference = only(verify(pack(run), run))
    assert f"evaluation episode of {failed['task_id']} after toy_right" in difference
    assert "recorded reward 1, computed 0" in difference


def episodes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write_episodes(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))


def test_a_task_that_asks_for_less_than_the_installed_one_is_named(run: Path) -> None:
    """Without criteria every episode is a success, and rewards, hashes and matrix would all fit."""
    path = RunDir(run).evaluation_episodes(2, "toy_right")
    lines = episodes(path)
    failed = next(line for line in lines if line["reward"]["value"] == 0)
    failed["task"] = {k: v for k, v in failed["task"].items() if k != "evaluation_criteria"}
    failed["reward"]["value"] = 1.0
    write_episodes(path, lines)
    other, reward = verify(pack(run), run).differences
    assert f"episode of {failed['task_id']} after toy_right: another task than the inst" in other
    assert "recorded reward 1, computed 0" in reward


def test_a_cell_with_more_trials_than_were_played_is_named(run: Path) -> None:
    def add_trials(entry: dict[str, Any]) -> None:
        cell = entry["r_matrix"]["rows"][0]["cells"]["toy_left"]
        cell["tasks"] = {task: [3, 3] for task in cell["tasks"]}
        cell["mean"] = 1.0

    submission = edited(pack(run), add_trials)
    sentence = "toy_left after base has 24 episodes of 8 tasks; its settings give 8 tasks with 2 "
    assert sentence in only(verify(submission))
    named = "\n".join(verify(submission, run).differences)
    assert f"r_matrix is not that of {run}" in named
    assert "toy_left after base: 16 episodes are kept, 24 were" in named


def test_tasks_that_were_left_out_of_a_cell_are_missed(run: Path) -> None:
    def keep_successes(entry: dict[str, Any]) -> None:
        cell = entry["r_matrix"]["rows"][0]["cells"]["toy_left"]
        cell["tasks"] = {task: [2, 2] for task in list(cell["tasks"])[:5]}
        cell["mean"] = 1.0
        cell["components"], cell["component_tasks"] = {}, None

    sentence = "toy_left after base has 10 episodes of 5 tasks; its settings give 8 tasks with 2 "
    assert sentence in only(verify(edited(pack(run), keep_successes)))


def test_a_mean_of_a_domain_whose_floors_are_left_out_is_checked_too(run: Path) -> None:
    def leave_out(entry: dict[str, Any]) -> None:
        entry["r_matrix"]["facts"] = {}
        entry["r_matrix"]["rows"][0]["cells"]["toy_left"]["mean"] += 0.1

    found = verify(edited(pack(run), leave_out))
    assert "mean reward of toy_left after base" in only(found)
    assert any("floors of toy_left not checked: they are" in text for text in found.checked)


def test_planned_runs_that_are_neither_submitted_nor_missing_are_named(run: Path) -> None:
    plain = pack(run)
    campaign = {
        "base": {"model_name_or_path": "tabular", "task_order": ["toy_left", "toy_right"]},
        "algorithms": [{"name": "sequential"}],
        "seeds": [0, 1],
    }
    part = plain.model_copy(update={"campaign": campaign})
    part = part.model_copy(update={"digest": part.computed_digest()})
    assert only(verify(part)) == (
        "sequential, toy_left → toy_right, seed 1: 0 time(s) in the file, planned 1 time(s) by its "
        "campaign"
    )
    order = plain.runs[0].r_matrix.domains
    failed = MissingRun(label="sequential", order=order, seed=1, reason="not finished")
    whole = part.model_copy(update={"missing": (failed,)})
    whole = whole.model_copy(update={"digest": whole.computed_digest()})
    assert verify(whole).differences == []
    twice = whole.model_copy(update={"missing": (failed, failed)})
    assert "seed 1: 2 time(s) in the file" in verify(twice).differences[-1]


def test_failed_episodes_that_were_removed_are_missed(run: Path) -> None:
    path = RunDir(run).evaluation_episodes(2, "toy_right")
    lines = [line for line in episodes(path) if line["reward"]["value"] == 1]
    write_episodes(path, lines)
    found = only(verify(pack(run), run))
    assert f"toy_right after toy_right: {len(lines)} episodes are kept, 16 were" in found


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("seed", 7, "seed is 7, in its settings 0"),
        ("algorithm", "ewc", "cl_algorithm is ewc, in its settings sequential"),
    ],
)
def test_an_algorithm_or_a_seed_that_is_not_that_of_the_settings_is_named(
    field: str, value: Any, sentence: str, run: Path
) -> None:
    def rename(entry: dict[str, Any]) -> None:
        entry[field] = value

    assert sentence in only(verify(edited(pack(run), rename)))


@pytest.mark.parametrize(
    ("field", "value"), [("label", "our method"), ("environment", {"commit": "other"})]
)
def test_a_label_or_a_version_that_is_not_that_of_the_run_is_named(
    field: str, value: Any, run: Path
) -> None:
    def rename(entry: dict[str, Any]) -> None:
        entry[field] = value

    assert f"{field} is not that of {run}" in only(verify(edited(pack(run), rename), run))


@pytest.mark.parametrize("setting", ["tools", "domain_files", "task_order"])
def test_code_that_a_submission_names_is_never_imported(
    setting: str, run: Path, tmp_path: Path
) -> None:
    marker, file = tmp_path / "imported", tmp_path / "own.py"
    file.write_text(f"open({str(marker)!r}, 'w')\nclass Own: name = 'toy_left'\n")
    code = f"{file}:Own"
    values = {
        "tools": str(file),
        "domain_files": {"toy_left": code},
        "task_order": [code, "toy_right"],
    }

    def name_code(entry: dict[str, Any]) -> None:
        entry["config"][setting] = values[setting]

    submission = edited(pack(run), name_code)
    write_json(RunDir(run).config, {**read_json(RunDir(run).config), setting: values[setting]})
    for found in (verify(submission), verify(submission, run)):
        assert any("need code that is not installed" in text for text in found.differences)
    assert not marker.exists()


def test_a_changed_and_a_missing_file_of_the_run_are_named(run: Path) -> None:
    submission = pack(run)
    files = RunDir(run)
    files.r_matrix.write_text(files.r_matrix.read_text() + "\n")
    files.evaluation_episodes(0, "toy_left").unlink()
    named = verify(submission, run).differences
    assert any(text.endswith("r_matrix.json was changed") for text in named)
    assert any(text.endswith("0_toy_left.jsonl.gz is missing") for text in named)


def test_other_tasks_than_the_installed_ones_are_named(run: Path) -> None:
    def other_tasks(entry: dict[str, Any]) -> None:
        entry["task_fingerprints"]["toy_left"] = "0" * 64

    difference = only(verify(edited(pack(run), other_tasks)))
    assert "the evaluation tasks of toy_left (toy 1) are not those installed here" in difference


def test_a_run_with_tasks_of_another_release_is_refused(run: Path) -> None:
    file = RunDir(run).environment
    environment = read_json(file)
    environment["task_releases"]["toy_right"] = "toy 0"
    write_json(file, environment)
    with pytest.raises(ConfigError, match="the toy_right tasks of 'toy 0', and those installed"):
        pack(run)


def test_an_unfinished_run_and_another_directory_are_refused(run: Path, tmp_path: Path) -> None:
    matrix = read_json(RunDir(run).r_matrix)
    write_json(RunDir(run).r_matrix, matrix | {"rows": matrix["rows"][:2]})
    with pytest.raises(ConfigError, match="lacks 1 of 3 rows of its R-matrix"):
        pack(run)
    with pytest.raises(ConfigError, match="neither a run nor a campaign"):
        pack(tmp_path)
    (tmp_path / "wrong.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a submission of format 1"):
        Submission.load(tmp_path / "wrong.json")


def test_a_submission_of_another_format_is_refused(run: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "later.json", pack(run).to_json() | {"format": 2})
    with pytest.raises(ConfigError, match=r"format 1: format: Input should be 1 \(got 2\)"):
        Submission.load(tmp_path / "later.json")


def test_the_leaderboard_has_a_table_for_each_set_of_tasks_and_the_best_comes_first(
    run: Path,
) -> None:
    def solve_all(entry: dict[str, Any]) -> None:
        for cell in entry["r_matrix"]["rows"][-1]["cells"].values():
            cell["tasks"] = {task: [2, 2] for task in cell["tasks"]}
            cell["mean"] = 1.0

    def other_tasks(entry: dict[str, Any]) -> None:
        entry["task_fingerprints"]["toy_left"] = "0" * 64

    plain = pack(run, name="plain | <b>")
    better = edited(pack(run, name="better"), solve_all)
    other = edited(pack(run, name="other"), other_tasks)
    page = leaderboard([plain, other, better])
    assert page.count("## toy_left → toy_right") == 2
    assert page.index("| better |") < page.index("| plain \\| \\<b\\> |")
    assert "| does nothing | 0.000 | 0.000 |" in page
    assert "1.000 [0.794, 1.000]" in page  # all of 16 tasks: 0.025 ** (1 / 16)
    assert "0.000 (no variance)" in page
    with pytest.raises(ConfigError, match="two submissions are called 'better'"):
        leaderboard([better, better])


def test_runs_with_another_user_or_reward_basis_stand_in_another_table(run: Path) -> None:
    def other_basis(entry: dict[str, Any]) -> None:
        entry["config"]["reward"]["basis"] = "judge_free"

    def other_user(entry: dict[str, Any]) -> None:
        entry["config"]["rollout"]["user"] = "scripted"

    changed = [edited(pack(run, name=c.__name__), c) for c in (other_basis, other_user)]
    page = leaderboard([pack(run), *changed])
    assert page.count("## toy_left → toy_right") == 3
    for conditions in (
        "solo, reward basis tau2",
        "solo, reward basis judge\\_free",
        "scripted, rew",
    ):
        assert f"trials 2, user {conditions}" in page


def test_a_run_with_rewards_between_0_and_1_has_scores_without_intervals(run: Path) -> None:
    def half(entry: dict[str, Any]) -> None:
        for row in entry["r_matrix"]["rows"]:
            for cell in row["cells"].values():
                cell["tasks"] = {task: [0, 2] for task in cell["tasks"]}
                cell["mean"] = 0.5

    page = leaderboard([edited(pack(run), half)])
    assert "| 1 | 0.500 | 0.000 | 0.000 | 0.000 | 0.500 | 64 |" in page


def test_runs_of_one_method_in_two_orders_stand_in_two_tables(run: Path) -> None:
    def reverse(entry: dict[str, Any]) -> None:
        matrix = entry["r_matrix"]
        matrix["domains"].reverse()
        matrix["rows"] = [row | {"cells": matrix["rows"][-1]["cells"]} for row in matrix["rows"]]
        for row, after in zip(matrix["rows"], ("base", *matrix["domains"]), strict=True):
            row["after"] = after

    plain = pack(run)
    both = plain.model_copy(update={"runs": (*plain.runs, *edited(plain, reverse).runs)})
    page = leaderboard([both])
    assert page.count(f"| run | sequential | {policy(plain)} | 1 |") == 2
    assert "## toy_left → toy_right" in page and "## toy_right → toy_left" in page


def test_a_submission_names_the_initial_model_of_a_run_whose_checkpoint_is_kept(run: Path) -> None:
    def leave_out(entry: dict[str, Any]) -> None:
        del entry["initial_model"]

    named = pack(run)
    newest = RunDir(run).latest().path
    assert newest is not None
    recorded = read_json(newest / "policy" / "initial.json")
    assert named.runs[0].initial_model == recorded["checksum"]
    unnamed = edited(named, leave_out)
    found = verify(unnamed, run)
    assert found.differences == []
    assert any("initial model not checked" in sentence for sentence in found.checked)
    assert "| sequential | tabular | 1 |" in leaderboard([unnamed])
    shutil.rmtree(RunDir(run).checkpoints_dir)
    assert pack(run).digest == unnamed.digest
    assert "initial_model is not that of" in only(verify(named, run))


def test_another_initial_model_than_that_of_the_run_is_named(run: Path) -> None:
    def change(entry: dict[str, Any]) -> None:
        entry["initial_model"] = "0" * 64

    assert f"initial_model is not that of {run}" in only(verify(edited(pack(run), change), run))


def test_runs_of_one_method_from_two_initial_models_stand_in_two_rows(run: Path) -> None:
    def change(entry: dict[str, Any]) -> None:
        entry["initial_model"] = "0" * 64

    plain = pack(run)
    both = plain.model_copy(update={"runs": (*plain.runs, *edited(plain, change).runs)})
    page = leaderboard([both])
    assert page.count("## toy_left → toy_right") == 1
    assert f"| sequential | {policy(plain)} | 1 of 2 |" in page
    assert "| sequential | tabular `00000000` | 1 of 2 |" in page


def test_the_commands_write_verify_and_list_submissions(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "one.json", tmp_path / "page.md"
    assert main(["submit", str(run), "--name", "ours", "--out", str(file)]) == 0
    assert main(["verify-submission", str(file), str(run)]) == 0
    assert "0 difference(s)" in capsys.readouterr().out
    RunDir(run).metrics_journal.unlink()
    assert main(["verify-submission", str(file), str(run)]) == 1
    assert "differs: sequential, toy_left → toy_right, seed 0: metrics" in capsys.readouterr().out
    assert main(["leaderboard", str(file), "--out", str(page)]) == 0
    assert f"| ours | sequential | {policy(Submission.load(file))} | 1 |" in page.read_text()


def test_the_published_leaderboard_is_made_from_the_published_submissions() -> None:
    files = sorted((ROOT / "docs" / "leaderboard").iterdir())
    submissions = [Submission.load(file) for file in files]
    assert [each.digest for each in submissions] == [each.computed_digest() for each in submissions]
    assert leaderboard(submissions) == PAGE.read_text()
