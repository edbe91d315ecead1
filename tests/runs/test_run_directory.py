import json
import logging
import os
import shutil
import sys
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
from grpo_cl.runs.checkpoints import verify
from grpo_cl.runs.environment import describe_environment, source_commit
from grpo_cl.runs.layout import SERIES, CheckpointFiles, CutOff, RunDir, file_name
from grpo_cl.runs.resume import find_stage_model, resume_point
from grpo_cl.storage.encoding import encode, replace_surrogates
from grpo_cl.storage.files import read_json, temporary_path, write_json
from grpo_cl.storage.journal import Journal, read_journal, require_offset
from grpo_cl.storage.redaction import hide, redact, redact_command

CANARY = "CANARY-7f3a9c"
UNUSUAL_IDS = (
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


def damage(files: CheckpointFiles) -> None:
    files.state.write_text("{}")


# The layout


def test_run_directory_file_names() -> None:
    run = RunDir(Path("runs/a"))
    stage = run.stage_checkpoint(2)
    paths = [
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
    assert [path.relative_to("runs/a").as_posix() for path in paths] == [
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


def test_a_step_checkpoint_is_named_by_its_number(tmp_path: Path) -> None:
    assert save_step(RunDir(tmp_path), 42).root == tmp_path / "checkpoints" / "step_00000042"


def test_a_new_run_may_use_a_directory_with_other_files_but_not_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run = RunDir(tmp_path)
    run.require_vacant()
    run.write_config(GRPOConfig())
    with pytest.raises(ConfigError) as raised:
        run.require_vacant()
    assert str(raised.value) == (
        f"'{tmp_path}' already holds a run (config.json); continue it with --resume_from "
        f"{tmp_path}, or choose another directory"
    )


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "checkpoint_task_0"])
def test_any_file_of_a_run_prevents_a_new_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=name):
        RunDir(tmp_path).require_vacant()


@pytest.mark.parametrize("reason", ["a file", "below a file", "read only"])
def test_an_unwritable_directory_raises_an_error(reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "run",
        "read only": Path("/proc/self/run"),  # not writable by root either
    }[reason]
    with pytest.raises(ConfigError, match=r"cannot be written: .*; make it writable, or choose"):
        RunDir(root).require_writable()


@pytest.mark.parametrize("task_id", UNUSUAL_IDS)
def test_unusual_task_ids_stay_inside_the_run_directory(task_id: str, tmp_path: Path) -> None:
    path = RunDir(tmp_path).plot(task_id)
    path.parent.mkdir(exist_ok=True)
    path.write_text("figure")
    assert path.resolve().parent == (tmp_path / "plots").resolve()
    assert len(path.name.encode()) <= 100
    assert not path.name.startswith(".")


def test_different_task_ids_have_different_files() -> None:
    ids = [*UNUSUAL_IDS, "a|b", "a:b", "a-b", "x" * 301]
    assert len({file_name(task_id, ".json") for task_id in ids}) == len(ids)


def test_metrics_are_grouped_by_series(tmp_path: Path) -> None:
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


def test_config_is_read_back_unchanged(tmp_path: Path) -> None:
    config = GRPOConfig(task_order=("airline", "retail"), log_dir=tmp_path, max_new_tokens=64)
    RunDir(tmp_path).write_config(config)
    assert GRPOConfig.model_validate(read_json(RunDir(tmp_path).config)) == config


# Resuming


def test_a_run_resumes_from_its_last_intact_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save_step(run, 1)
    intact = save_step(run, 2)
    damaged = save_step(run, 3)
    damage(damaged)
    for path in (tmp_path, tmp_path / "checkpoints"):
        point = resume_point(path)
        assert (point.run, point.checkpoint) == (run, intact)
        assert [entry.path for entry in point.damaged] == [damaged.root]


def test_an_explicit_checkpoint_is_loaded_or_refused_but_never_substituted(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first, second = save_step(run, 1), save_step(run, 2)
    assert resume_point(first.root) == (run, first, [])
    damage(second)
    with pytest.raises(CheckpointError, match=r"state\.json has .* use .*step_00000001 instead"):
        resume_point(second.root)


def test_a_run_without_a_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    RunDir(tmp_path).write_config(GRPOConfig())
    assert resume_point(tmp_path).checkpoint is None


def test_a_run_with_only_damaged_checkpoints_is_refused(tmp_path: Path) -> None:
    damage(save_step(RunDir(tmp_path), 1))
    with pytest.raises(CheckpointError, match=r"step_00000001: state\.json has 2 bytes"):
        resume_point(tmp_path)


def test_resuming_from_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        resume_point(tmp_path)
    with pytest.raises(ConfigError, match="is not a directory"):
        resume_point(tmp_path / "nowhere")
    model = save_stage(RunDir(tmp_path), 0) / "model"
    with pytest.raises(ConfigError, match=rf"is the model of a stage.* stage, {model.parent}"):
        resume_point(model)


def save_stage(run: RunDir, stage: int) -> Path:
    def fill(files: CheckpointFiles) -> None:
        files.model_dir.mkdir()
        files.write_config(GRPOConfig())

    return run.draft_stage(stage, fill).publish()


def save_position(run: RunDir, step: int, *, stage: int, stage_step: int) -> Path:
    state = {"position": {"stage": stage, "step": stage_step}}
    draft = run.draft_step(
        step, lambda files: write_json(files.state, state), keep=1, keep_stage_ends=True
    )
    return draft.publish()


def test_a_stage_is_resumed_from_the_checkpoint_at_its_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_config(GRPOConfig())
    save_position(run, 2, stage=0, stage_step=2)
    end = save_position(run, 2, stage=1, stage_step=0)
    stage = save_stage(run, 0)
    for step in (3, 4):
        save_position(run, step, stage=1, stage_step=step - 2)
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == [
        "step_00000002",
        "step_00000004",
    ]
    assert resume_point(stage) == (run, CheckpointFiles(end), [])


def test_a_stage_whose_end_was_not_kept_is_refused_with_its_model(tmp_path: Path) -> None:
    RunDir(tmp_path).write_config(GRPOConfig())
    stage = save_stage(RunDir(tmp_path), 0)
    with pytest.raises(ConfigError, match=r"--model_name_or_path .*checkpoint_task_0/model"):
        resume_point(stage)
    with pytest.raises(ConfigError, match=r"has not finished stage 4; its last one is 0"):
        resume_point(tmp_path / "checkpoint_task_4")


def test_a_path_in_a_run_names_a_model_and_its_settings(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.metrics_journal.touch()
    with pytest.raises(ConfigError, match="no finished stage"):
        find_stage_model(tmp_path)
    stages = [save_stage(run, stage) for stage in range(11)]
    assert find_stage_model(stages[2]) == (stages[2] / "model", stages[2] / "config.json")
    assert find_stage_model(stages[2] / "model") == find_stage_model(stages[2])
    assert find_stage_model(tmp_path) == find_stage_model(stages[10])
    assert find_stage_model(tmp_path / "other") is None


def test_reopen_removes_temporary_files(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save_step(run, 1)
    (run.checkpoints_dir / ".tmp-step_00000004").mkdir()
    temporary_path(run.metrics).write_text("{")
    (tmp_path / ".tmp-metrics.json").write_text("a file of the user")
    run.reopen()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-metrics.json", "checkpoints"]
    assert [path.name for path in run.checkpoints_dir.iterdir()] == ["step_00000001"]


def run_of_three_steps(root: Path) -> RunDir:
    """A run with checkpoints after each of three steps, and a stage after the last two."""
    run = RunDir(root)
    run.write_config(GRPOConfig())
    write_json(run.metrics, {})
    with Journal(run.metrics_journal) as metrics, Journal(run.trajectories_journal) as episodes:
        for step in (1, 2, 3):
            metrics.append({"step": step})
            episodes.append({"step": step, "text": "x" * 100_000})
            state = {"offsets": {"metrics": metrics.offset(), "episodes": episodes.offset()}}
            run.save_step(step, lambda files, s=state: write_json(files.state, s), keep=9)
    for stage in (0, 1):
        save_stage(run, stage)
    return run


def cut_off_after_one(run: RunDir) -> CutOff | None:
    """Return to the first checkpoint, as a resumed run does."""
    state = read_json(run.checkpoints_dir / "step_00000001" / "state.json")
    cut = run.cut_off(step=1, stages=0, **state["offsets"])
    for journal, name in ((run.metrics_journal, "metrics"), (run.trajectories_journal, "episodes")):
        with Journal(journal) as open_journal:
            open_journal.truncate(state["offsets"][name])
    return cut


def test_what_a_resume_cuts_off_is_moved_aside(tmp_path: Path) -> None:
    run = run_of_three_steps(tmp_path)
    cut = cut_off_after_one(run)
    folder = tmp_path / "cut_off" / "1_from_step_00000001"
    assert cut == CutOff(folder, steps=2, stages=2, metrics=2, episodes=2)
    assert [line["step"] for line in read_journal(run.metrics_journal)] == [1]
    assert [line["step"] for line in read_journal(folder / "metrics.jsonl")] == [2, 3]
    assert [line["step"] for line in read_journal(folder / "trajectories.jsonl")] == [2, 3]
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint_task_0",
        "checkpoint_task_1",
        "checkpoints",
        "config.json",
        "metrics.json",
        "metrics.jsonl",
        "trajectories.jsonl",
    ]
    assert all(verify(path) is None for path in (folder / "checkpoints").iterdir())
    assert run.last_stage() is None
    assert resume_point(tmp_path).checkpoint == CheckpointFiles(
        run.checkpoints_dir / "step_00000001"
    )


def test_a_resume_from_the_newest_checkpoint_moves_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save_step(run, 1)
    with Journal(run.metrics_journal) as journal:
        journal.append({"step": 2})
    assert run.cut_off(step=1, stages=0, metrics=0, episodes=0) is None
    assert not run.cut_off_dir.exists()


FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.truncate", "shutil.copyfile"}


def _cut_off_and_die(root: Path, events: int) -> None:
    """Return to the first checkpoint, killed before the file operation number ``events``."""

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(root)):
            events -= 1
            if events < 0:
                os._exit(9)

    sys.addaudithook(kill)
    cut_off_after_one(RunDir(root))


@pytest.mark.slow
def test_a_process_killed_at_any_file_operation_of_a_resume_leaves_everything(
    tmp_path: Path,
) -> None:
    whole = run_of_three_steps(tmp_path / "whole")
    kills = 0
    for events in range(200):
        root = tmp_path / f"killed_{events}"
        shutil.copytree(whole.root, root)
        process = get_context("fork").Process(target=_cut_off_and_die, args=(root, events))
        process.start()
        process.join()
        run = RunDir(root)
        run.reopen()
        point = resume_point(root)
        assert point.checkpoint is not None and not point.damaged
        offsets = read_json(point.checkpoint.state)["offsets"]
        require_offset(run.metrics_journal, offsets["metrics"])
        require_offset(run.trajectories_journal, offsets["episodes"])
        saved = {path.name for path in root.rglob("*_*") if (path / "MANIFEST.json").exists()}
        assert len(saved) == 5, f"killed before operation {events}"
        lines = [
            line["step"] for path in root.rglob("metrics.jsonl") for line in read_journal(path)
        ]
        assert set(lines) == {1, 2, 3}
        if process.exitcode == 0:
            break
        kills += 1
    assert 10 < kills < 200


def _count_steps(root: Path, end: int) -> None:
    """A minimal run: appends numbers, saves every third step, and resumes automatically."""
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


def test_a_run_killed_at_any_time_ends_with_the_same_journal(tmp_path: Path) -> None:
    rng = Random(1)
    end = 120
    _count_steps(tmp_path / "uninterrupted", end)
    kills = 0
    for _ in range(12):
        process = get_context("fork").Process(target=_count_steps, args=(tmp_path / "killed", end))
        process.start()
        sleep(rng.uniform(0.005, 0.04))
        process.kill()
        process.join()
        kills += process.exitcode != 0
    _count_steps(tmp_path / "killed", end)
    journals = [RunDir(tmp_path / name).metrics_journal for name in ("uninterrupted", "killed")]
    assert journals[0].read_bytes() == journals[1].read_bytes()
    assert kills > 0


# Journals


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_journal(path))


def test_an_incomplete_last_line_is_not_read_and_is_removed_before_the_next_append(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"step": 1})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "text": "' + b"x" * 200_000)
    assert lines(path) == [{"step": 1}]
    with Journal(path) as journal:
        journal.append({"step": 3})
    assert lines(path) == [{"step": 1}, {"step": 3}]


def test_a_journal_of_one_incomplete_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"x" * 200_000)
    Journal(path).close()
    assert path.read_bytes() == b""


def test_a_journal_is_truncated_to_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"step": 1})
        offset = journal.offset()
        journal.append({"step": 2})
        journal.truncate(offset)
        journal.append({"step": 22})
    assert lines(path) == [{"step": 1}, {"step": 22}]
    assert offset == len('{"step": 1}\n')


def test_a_journal_with_a_wrong_offset_is_not_truncated(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"step": 1})
        with pytest.raises(CheckpointError, match=r"has 12 bytes, but .* when it had 13"):
            journal.truncate(13)
        with pytest.raises(CheckpointError, match=r"byte 5 of .* is inside a line"):
            journal.truncate(5)
    assert lines(path) == [{"step": 1}]


def test_appended_lines_are_visible_to_readers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert lines(path) == []
    with Journal(path) as journal:
        for step in range(3):
            journal.append({"step": step})
            assert len(lines(path)) == step + 1


@pytest.mark.parametrize("line", ["{broken", "[1]", "\0\0\0"])
def test_a_damaged_line_is_reported_by_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(CheckpointError, match="line 2 is"):
        lines(path)


def test_non_finite_numbers_become_null_with_a_warning(
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


def test_lone_surrogates_are_replaced_at_any_position() -> None:
    rng = Random(0)
    parts = ["\\", "u", "d", "83d", "\ud83d", "\ude00", "\U0001f600", "\ud7ff", '"', "\n", "\ue000"]
    for _ in range(20_000):
        text = "".join(rng.choices(parts, k=rng.randrange(1, 9)))
        assert json.loads(encode([text])) == [replace_surrogates(text)]


def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
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
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_value_is_encoded_on_one_line_and_decoded_unchanged(value: Any) -> None:
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
def test_secrets_of_a_command_line_are_redacted(arguments: list[str]) -> None:
    variables = {"MY_SECRET": f"{CANARY}-of-the-environment"}
    redacted = redact_command(["train.py", *arguments, "--seed", "7"], variables=variables)
    assert CANARY not in " ".join(redacted)
    assert redacted[0] == "train.py"
    assert redacted[-2:] == ["--seed", "7"]


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
def test_other_arguments_are_not_redacted(arguments: list[str]) -> None:
    assert redact_command(arguments, variables={"API_KEY": "short"}) == arguments


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("https://h/v1?api_key=abc&x=1", "https://h/v1?api_key=<redacted>&x=1"),
        ("https://h/v1?x=1&key=12345#end", "https://h/v1?x=1&key=<redacted>#end"),
        (
            "see https://h/?X-Amz-Signature=a%2Fb, then",
            "see https://h/?X-Amz-Signature=<redacted>, then",
        ),
        ("(got 'https://h/?access_token=abc')", "(got 'https://h/?access_token=<redacted>')"),
        ("https://h/?max_tokens=5&design=x", "https://h/?max_tokens=5&design=x"),
        ("https://h/?api_key=<redacted>", "https://h/?api_key=<redacted>"),
    ],
)
def test_secrets_in_the_query_of_an_address_are_hidden(text: str, hidden: str) -> None:
    assert hide(text, variables={}) == hidden


def test_data_is_redacted_by_key_at_any_depth() -> None:
    data = {"a": [{"openai_key": CANARY, "steps": 3}], "max_tokens": 5, "HF_TOKEN": CANARY}
    hidden = {"a": [{"openai_key": "<redacted>", "steps": 3}], "max_tokens": 5}
    assert redact(data, variables={}) == {**hidden, "HF_TOKEN": "<redacted>"}


def test_no_secret_is_written_to_a_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", f"{CANARY}-wandb")
    monkeypatch.setenv("HF_TOKEN", f"{CANARY}-hugging")
    monkeypatch.setenv("HF_ENDPOINT", f"https://me:{CANARY}@mirror.example")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = RunDir(tmp_path)
    user = {"base_url": f"https://me:{CANARY}@host/v1?api_key={CANARY}&region=eu"}
    run.write_config(
        GRPOConfig.model_validate(
            {"model_name_or_path": f"https://me:{CANARY}@host/model", "user": user}
        )
    )
    run.write_environment(
        command=["grpo-cl", "train", "--key", f"{CANARY}-flag", "--max_new_tokens=9"],
        task_releases={"airline": f"git+https://{CANARY}@host/tau2"},
    )
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(path.name for path in written) == ["config.json", "environment.json"]
    assert not any(CANARY.encode() in data for data in written.values())
    address = read_json(run.config)["user"]["base_url"]
    assert address == "https://<redacted>@host/v1?api_key=<redacted>&region=eu"
    environment = read_json(run.environment)
    assert environment["variables"]["HF_ENDPOINT"] == "https://<redacted>@mirror.example"
    assert environment["variables"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert environment["command"][-1] == "--max_new_tokens=9"


def test_environment_record_has_versions_and_task_releases() -> None:
    environment = describe_environment(
        command=["grpo-cl", "train"], variables=os.environ, task_releases={"airline": "1.0"}
    )
    assert environment["task_releases"] == {"airline": "1.0"}
    assert {"pydantic", "inspect-evals"} <= environment["versions"].keys()
    commit = source_commit()
    assert commit is None or len(commit.removesuffix("-dirty")) == 40
