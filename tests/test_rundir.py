import json
import logging
import os
from collections.abc import Mapping
from math import inf, nan
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.rundir import (
    SERIES,
    CheckpointFiles,
    Journal,
    RunDir,
    encode,
    file_name,
    read_journal,
    read_json,
    redact,
    redact_command,
    resume_point,
    write_json,
)
from grpo_cl.rundir.encoding import whole_text
from grpo_cl.rundir.environment import describe_environment, source_commit

CANARY = "CANARY-7f3a9c"
ODD_IDS = (
    "../x",
    "../../etc/passwd",
    "/etc/passwd",
    "[mobile_data_issue]airplane_mode_on|bad_network[PERSONA:None]",
    "[" + "data_usage_exceeded|" * 10 + "end]:Hard",
    "..",
    ".",
    "",
    ".hidden",
    "nul\0byte",
    "line\nbreak",
    "ü" * 200,
    "half \ud800 pair",
    "x" * 300,
)


def save_step(run: RunDir, step: int) -> CheckpointFiles:
    path = run.save_step(step, lambda files: write_json(files.state, {"step": step}), keep=3)
    return CheckpointFiles(path)


def spoil(files: CheckpointFiles) -> None:
    files.state.write_text("{}")


# The layout


def test_the_files_have_the_names_people_look_for() -> None:
    run = RunDir(Path("runs/a"))
    stage = run.stage_checkpoint(2)
    found = [
        run.config,
        run.environment,
        run.metrics,
        run.metrics_journal,
        run.trajectories_journal,
        run.r_matrix,
        run.report,
        run.plot("curves"),
        stage.model_dir,
        stage.trajectories,
        stage.config,
    ]
    assert [path.relative_to("runs/a").as_posix() for path in found] == [
        "config.json",
        "environment.json",
        "metrics.json",
        "metrics.jsonl",
        "trajectories.jsonl",
        "r_matrix.json",
        "report.html",
        "plots/curves.png",
        "checkpoint_task_2/model",
        "checkpoint_task_2/trajectories.json",
        "checkpoint_task_2/config.json",
    ]


def test_a_step_is_saved_under_its_number(tmp_path: Path) -> None:
    assert save_step(RunDir(tmp_path), 42).root == tmp_path / "checkpoints" / "step_00000042"


def test_a_new_run_may_share_a_directory_with_strangers_but_not_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run = RunDir(tmp_path)
    run.create()
    run.write_config(GRPOConfig())
    with pytest.raises(ConfigError) as raised:
        run.create()
    assert str(raised.value) == (
        f"log_dir '{tmp_path}' holds a run already (config.json); go on with it by --resume_from "
        f"{tmp_path}, or choose another --log_dir"
    )


@pytest.mark.parametrize("trace", ["metrics.jsonl", "checkpoints", "checkpoint_task_0"])
def test_any_trace_of_a_run_is_enough_to_refuse_another(trace: str, tmp_path: Path) -> None:
    (tmp_path / trace).mkdir()
    with pytest.raises(ConfigError, match=trace):
        RunDir(tmp_path).create()


@pytest.mark.parametrize("reason", ["a file", "below a file", "read only"])
def test_a_directory_that_cannot_be_written_is_one_sentence(reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "run",
        "read only": Path("/proc/self/run"),  # refused to the superuser too
    }[reason]
    with pytest.raises(ConfigError, match=r"cannot be written: .*; make it writable, or choose"):
        RunDir(root).create()


@pytest.mark.parametrize("task_id", ODD_IDS)
def test_odd_task_ids_never_leave_the_run_directory(task_id: str, tmp_path: Path) -> None:
    path = RunDir(tmp_path).plot(task_id)
    path.parent.mkdir(exist_ok=True)
    path.write_text("figure")
    assert path.resolve().parent == (tmp_path / "plots").resolve()
    assert len(path.name.encode()) <= 100
    assert not path.name.startswith(".")


def test_different_task_ids_have_different_files() -> None:
    ids = [*ODD_IDS, "a|b", "a:b", "a-b", "x" * 301]
    assert len({file_name(task_id, ".json") for task_id in ids}) == len(ids)


def test_metrics_are_collected_from_the_journal_by_series(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.read_metrics() == {}
    with Journal(run.metrics_journal) as journal:
        journal.append({SERIES: "task_0/train", "task_idx": 0, "step": 1, "loss": 0.5})
        journal.append({SERIES: "task_0/eval", "pass_rate": 0.25})
        journal.append({SERIES: "task_0/train", "task_idx": 0, "step": 2, "loss": 0.25})
    assert run.read_metrics() == {
        "task_0/train": [
            {"task_idx": 0, "step": 1, "loss": 0.5},
            {"task_idx": 0, "step": 2, "loss": 0.25},
        ],
        "task_0/eval": [{"pass_rate": 0.25}],
    }


def test_a_config_survives_the_directory(tmp_path: Path) -> None:
    config = GRPOConfig(task_order=("airline", "retail"), log_dir=tmp_path, max_new_tokens=64)
    RunDir(tmp_path).write_config(config)
    assert GRPOConfig.model_validate(read_json(RunDir(tmp_path).config)) == config


# Resuming


def test_a_run_directory_resumes_from_its_last_good_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save_step(run, 1)
    good = save_step(run, 2)
    bad = save_step(run, 3)
    spoil(bad)
    for given_path in (tmp_path, tmp_path / "checkpoints"):
        point = resume_point(given_path)
        assert (point.run, point.checkpoint) == (run, good)
        assert [damage.path for damage in point.damaged] == [bad.root]


def test_an_explicit_checkpoint_is_taken_or_refused_but_never_exchanged(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first, second = save_step(run, 1), save_step(run, 2)
    assert resume_point(first.root) == (run, first, [])
    spoil(second)
    with pytest.raises(CheckpointError, match=r"state\.json has .* use .*step_00000001 instead"):
        resume_point(second.root)


def test_a_run_that_never_reached_a_checkpoint_begins_again(tmp_path: Path) -> None:
    RunDir(tmp_path).write_config(GRPOConfig())
    assert resume_point(tmp_path).checkpoint is None


def test_a_run_with_damaged_checkpoints_only_is_refused(tmp_path: Path) -> None:
    spoil(save_step(RunDir(tmp_path), 1))
    with pytest.raises(CheckpointError, match=r"step_00000001: state\.json has 2 bytes"):
        resume_point(tmp_path)


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        resume_point(tmp_path)
    with pytest.raises(ConfigError, match="is no directory"):
        resume_point(tmp_path / "nowhere")


def test_a_stage_is_not_resumed_but_may_be_started_from(tmp_path: Path) -> None:
    path = RunDir(tmp_path).save_stage(0, lambda files: files.write_config(GRPOConfig()))
    with pytest.raises(ConfigError, match=r"--model_name_or_path .*checkpoint_task_0/model"):
        resume_point(path)


def test_reopening_removes_leftovers_and_rewinding_forgets_the_future(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (1, 2, 3):
        save_step(run, step)
    for stage in (0, 1):
        run.save_stage(stage, lambda files: files.write_config(GRPOConfig()))
    (run.checkpoints_dir / ".tmp-step_00000004").mkdir()
    (tmp_path / ".tmp-metrics.json").write_text("{")
    run.reopen()
    run.rewind(step=2, stages=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_task_0", "checkpoints"]
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == [
        "step_00000001",
        "step_00000002",
    ]


def _count(root: Path, end: int) -> None:
    """A run in small: it writes numbers, saves every third step, and resumes by itself."""
    run = RunDir(root)
    run.reopen()
    state: Mapping[str, Any] = {"step": 0, "offset": 0}
    if run.latest().path is not None:
        point = resume_point(root)
        assert point.checkpoint is not None
        state = read_json(point.checkpoint.state)
    with Journal(run.metrics_journal) as journal:
        journal.truncate(state["offset"])
        for step in range(state["step"] + 1, end + 1):
            journal.append({"step": step, "text": "x" * Random(step).randrange(3000)})
            if step % 3 == 0:
                saved = {"step": step, "offset": journal.offset()}
                run.save_step(step, lambda f, s=saved: write_json(f.state, s), keep=2)


def test_a_run_killed_at_any_moment_writes_the_same_journal_in_the_end(tmp_path: Path) -> None:
    rng = Random(1)
    end = 120
    _count(tmp_path / "whole", end)
    kills = 0
    for _ in range(12):
        process = get_context("fork").Process(target=_count, args=(tmp_path / "killed", end))
        process.start()
        sleep(rng.uniform(0.005, 0.04))
        process.kill()
        process.join()
        kills += process.exitcode != 0
    _count(tmp_path / "killed", end)
    journals = [RunDir(tmp_path / name).metrics_journal for name in ("whole", "killed")]
    assert journals[0].read_bytes() == journals[1].read_bytes()
    assert kills > 0


# Journals


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_journal(path))


def test_a_torn_last_line_is_not_read_and_is_cut_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"step": 1})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "text": "' + b"x" * 200_000)
    assert lines(path) == [{"step": 1}]
    with Journal(path) as journal:
        journal.append({"step": 3})
    assert lines(path) == [{"step": 1}, {"step": 3}]


def test_a_journal_that_is_one_torn_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"x" * 200_000)
    Journal(path).close()
    assert path.read_bytes() == b""


def test_a_journal_is_cut_back_to_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"step": 1})
        offset = journal.offset()
        journal.append({"step": 2})
        journal.truncate(offset)
        journal.append({"step": 22})
    assert lines(path) == [{"step": 1}, {"step": 22}]
    assert offset == len('{"step": 1}\n')


def test_a_journal_of_another_run_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"step": 1})
        with pytest.raises(CheckpointError, match=r"has 12 bytes, but .* when it had 13"):
            journal.truncate(13)
        with pytest.raises(CheckpointError, match=r"byte 5 of .* is inside a line"):
            journal.truncate(5)
    assert lines(path) == [{"step": 1}]


def test_readers_see_what_is_appended_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert lines(path) == []
    with Journal(path) as journal:
        for step in range(3):
            journal.append({"step": step})
            assert len(lines(path)) == step + 1


@pytest.mark.parametrize("line", ["{broken", "[1]", "\0\0\0"])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(CheckpointError, match="line 2 is"):
        lines(path)


def test_numbers_that_are_none_become_null_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal.jsonl"
    with caplog.at_level(logging.WARNING), Journal(path) as journal:
        journal.append({"loss": nan, "by_domain": {"airline": [1.0, -inf]}, "step": 1})
    assert lines(path) == [{"loss": None, "by_domain": {"airline": [1.0, None]}, "step": 1}]
    assert [record.getMessage() for record in caplog.records] == [
        "loss is nan; written as null",
        "by_domain.airline[1] is -inf; written as null",
    ]


def test_halves_of_pairs_are_found_wherever_they_stand() -> None:
    rng = Random(0)
    parts = ["\\", "u", "d", "83d", "\ud83d", "\ude00", "\U0001f600", "\ud7ff", '"', "\n", "\ue000"]
    for _ in range(20_000):
        text = "".join(rng.choices(parts, k=rng.randrange(1, 9)))
        assert json.loads(encode([text])) == [whole_text(text)]


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"a\udc00": "x\ud800y", "smile": "\N{SLIGHTLY SMILING FACE}\u2028"})
    assert lines(path) == [{"a\ufffd": "x\ufffdy", "smile": "\N{SLIGHTLY SMILING FACE}\u2028"}]
    assert len(path.read_text().splitlines()) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\n\"\\"), inner),
    max_leaves=8,
)  # fmt: skip


@given(value=JSON)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_encoded_comes_back_from_one_line(value: Any) -> None:
    text = encode(value)
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text) == value


# Secrets


@pytest.mark.parametrize(
    "arguments",
    [
        [f"--api_key={CANARY}"],
        [f"--api-key={CANARY}"],
        ["--wandb.api_key", CANARY],
        ["--hf-token", CANARY, "--seed", "1"],
        ["--auth-tokens", CANARY, CANARY],
        [f"WANDB_API_KEY={CANARY}"],
        [f"judge.password=two words {CANARY}"],
        [f"--url=https://user:{CANARY}@host/path"],
        [f"--url=https://{CANARY}@host/path"],
        [f"--url=https://user:pa/{CANARY}@host/path"],
        [f"--url=https://host/v1?api_key={CANARY}&x=1"],
        [f"--proxy=user:{CANARY}@proxy:3128"],
        ["--header", f"Authorization: Bearer {CANARY}"],
        ["--header", f"X-Api-Key: {CANARY}"],
        ["--extra", f'{{"api_key": "with \\" quote {CANARY}", "n": 1}}'],
        ["--extra", f"{{'client_secret': '{CANARY}'}}"],
        ["--note", f"the variable's value {CANARY}-of-the-environment"],
    ],
)
def test_no_secret_of_a_command_line_is_kept(arguments: list[str]) -> None:
    variables = {"MY_SECRET": f"{CANARY}-of-the-environment"}
    kept = redact_command(["train.py", *arguments, "--seed", "7"], variables=variables)
    assert CANARY not in " ".join(kept)
    assert kept[0] == "train.py"
    assert kept[-2:] == ["--seed", "7"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max_new_tokens", "64"],
        ["--optimizer.micro_batch_tokens=16384", "--learning_rate=1e-6"],
        ["--task_order", "airline", "retail", "--log_dir", "runs/a:b"],
        ["--model_name_or_path", "https://host:8080/models/x@v1"],
        ["--tokenizer=local", "--logging.keep_checkpoints=2", "--author=me"],
    ],
)
def test_what_is_no_secret_stays_readable(arguments: list[str]) -> None:
    assert redact_command(arguments, variables={"API_KEY": "short"}) == arguments


def test_data_is_redacted_by_name_at_any_depth() -> None:
    data = {"a": [{"openai_key": CANARY, "steps": 3}], "max_tokens": 5, "HF_TOKEN": CANARY}
    hidden = {"a": [{"openai_key": "<redacted>", "steps": 3}], "max_tokens": 5}
    assert redact(data, variables={}) == {**hidden, "HF_TOKEN": "<redacted>"}


def test_no_byte_of_a_secret_reaches_a_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", f"{CANARY}-wandb")
    monkeypatch.setenv("HF_TOKEN", f"{CANARY}-hugging")
    monkeypatch.setenv("HF_ENDPOINT", f"https://me:{CANARY}@mirror.example")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = RunDir(tmp_path)
    run.create()
    run.write_config(GRPOConfig(model_name_or_path=f"https://me:{CANARY}@host/model"))
    run.write_environment(
        command=["grpo-cl", "train", "--key", f"{CANARY}-flag", "--max_new_tokens=9"],
        task_releases={"airline": f"git+https://{CANARY}@host/tau2"},
    )
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(path.name for path in written) == ["config.json", "environment.json"]
    assert not any(CANARY.encode() in data for data in written.values())
    environment = read_json(run.environment)
    assert environment["variables"]["HF_ENDPOINT"] == "https://<redacted>@mirror.example"
    assert environment["variables"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert environment["command"][-1] == "--max_new_tokens=9"


def test_the_environment_tells_how_to_run_it_again() -> None:
    found = describe_environment(
        command=["grpo-cl", "train"], variables=os.environ, task_releases={"airline": "1.0"}
    )
    assert found["task_releases"] == {"airline": "1.0"}
    assert {"pydantic", "inspect-evals"} <= found["versions"].keys()
    commit = source_commit()
    assert commit is None or len(commit.removesuffix("-dirty")) == 40
