"""benchmarks/engine_steps.py on logs as the engines' own loggers write them, with fewer metrics.

The logs went through Ray, which adds its coloured prefix to every line of a worker.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from engine_steps import Price, Source, Step, main, read_steps, steps_table
from grpo_cl.errors import ConfigError
from toy_runs import toy_run

VERL_PREFIX = "\x1b[36m(TaskRunnerV1 pid=4242)\x1b[0m "
VERL = f"""\
{VERL_PREFIX}Training Progress:   0%|          | 0/2 [00:00<?, ?it/s]
{VERL_PREFIX}step:0 - val-core/grpo_cl/reward/mean@1:np.float64(0.25)
{VERL_PREFIX}step:1 - actor/perf/max_memory_allocated_gb:10.5 - training/global_step:1 \
- critic/score/mean:0.25 - response_length/mean:9.25 - prompt_length/mean:5.0 \
- num_turns/mean:np.float64(4.5) - timing_s/gen:21.0 - timing_s/old_log_prob:2.0 \
- timing_s/ref:1.0 - timing_s/update_actor:8.0 - timing_s/update_weights:3.0 - timing_s/step:41.0 \
- timing_per_token_ms/gen:567.5675675675676 - perf/total_num_tokens:57 - perf/time_per_step:41.0
{VERL_PREFIX}step:2 - actor/perf/max_memory_allocated_gb:11.5 - training/global_step:2 \
- critic/score/mean:nan - response_length/mean:9.25 - prompt_length/mean:5.0 \
- num_turns/mean:np.float64(4.5) - timing_s/gen:22.0 - timing_s/old_log_prob:2.0 \
- timing_s/update_actor:8.0 - timing_s/save_checkpoint:6.0 - timing_s/update_weights:3.0 \
- timing_s/step:48.0 - perf/total_num_tokens:57
"""
SKYRL_PREFIX = "\x1b[36m(_run pid=4242)\x1b[0m "
SKYRL_STEP = (
    f"{SKYRL_PREFIX}\x1b[32m2026-11-19 04:06:11.601\x1b[0m | \x1b[1m\x1b[32mINFO    \x1b[0m | "
    "\x1b[36mskyrl.train.utils.tracking\x1b[0m:\x1b[36mlog\x1b[0m:\x1b[36m189\x1b[0m - "
    "\x1b[1m\x1b[32mStep {}: "
)
SKYRL = f"""\
{SKYRL_STEP.format(0)}
{SKYRL_PREFIX}{{'eval/all/avg_score': '0.2500'}}\x1b[0m
{SKYRL_STEP.format(1)}
{SKYRL_PREFIX}{{'environment/reward/telecom': '1.0000',
{SKYRL_PREFIX} 'generate/avg_assistant_tokens': '175.0000',
{SKYRL_PREFIX} 'generate/avg_num_tokens': '550.0000',
{SKYRL_PREFIX} 'generate/batch_num_seq': 4,
{SKYRL_PREFIX} 'policy/policy_loss': 'nan',
{SKYRL_PREFIX} 'reward/avg_raw_reward': '0.5000',
{SKYRL_PREFIX} 'timing/fwd_logprobs_values_reward': '4.5000',
{SKYRL_PREFIX} 'timing/generate': '30.2500',
{SKYRL_PREFIX} 'timing/save_hf_model': '2.5000',
{SKYRL_PREFIX} 'timing/step': '50.5000',
{SKYRL_PREFIX} 'timing/sync_weights': '3.0000',
{SKYRL_PREFIX} 'timing/train_critic_and_policy': '10.0000',
{SKYRL_PREFIX} 'trainer/global_step': 1}}\x1b[0m
{SKYRL_STEP.format(2)}
{SKYRL_PREFIX}{{'timing/generate': '30.2500', 'timing/step': '31.0000'}}\x1b[0m
"""


def step(step_s: float, **logged: float) -> Step:
    """A step that logged little."""
    names = Step._fields[1:]
    return Step(step_s, *(logged.get(name) for name in names))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def write_journal(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(f"{json.dumps(dict(line))}\n" for line in lines))


def test_verl_times_are_those_of_its_timers_without_the_checkpoint(tmp_path: Path) -> None:
    first, second = read_steps(written(tmp_path / "verl.txt", VERL))
    assert first == Step(
        step_s=41.0,
        rollouts_s=21.0,
        logprobs_s=3.0,
        update_s=8.0,
        sync_s=3.0,
        episodes=4,  # 57 tokens in episodes of 5 + 9.25
        generated_tokens=None,
        peak_gib=10.5,
        reward=0.25,
    )
    assert second.step_s == 42.0
    assert second.logprobs_s == 2.0  # no reference model
    assert second.reward is None


def test_skyrl_times_are_those_of_its_timers_without_the_exported_model(tmp_path: Path) -> None:
    # The second step failed: SkyRL then logs what it has, without the number of the step.
    (only,) = read_steps(written(tmp_path / "skyrl.txt", SKYRL))
    assert only == Step(
        step_s=48.0,
        rollouts_s=30.25,
        logprobs_s=4.5,
        update_s=10.0,
        sync_s=3.0,
        episodes=4,
        generated_tokens=700.0,
        peak_gib=None,
        reward=0.5,
    )


def test_step_that_a_resume_repeated_counts_once_with_its_last_time(tmp_path: Path) -> None:
    times = [
        {"kind": "eval", "stage": 0, "step": 0, "domain": "retail", "play_s": 9.0},
        {"kind": "train", "stage": 0, "step": 0, "step_s": 30.0, "rollout_s": 20.0},
        {"kind": "train", "stage": 0, "step": 1, "step_s": 5.0, "rollout_s": 3.0},
        {"kind": "train", "stage": 0, "step": 0, "step_s": 4.0, "rollout_s": 2.0, "update_s": 1.5}
        | {"peak_sample_mb": 1024.0, "peak_score_mb": 512.0, "peak_update_mb": 4096.0},
    ]
    metrics = {"series": "task_0/train", "task_idx": 0, "step": 0, "episodes": 64.0}
    write_journal(tmp_path / "times.jsonl", times)
    write_journal(
        tmp_path / "metrics.jsonl",
        [metrics | {"generated_tokens": 800.0, "reward_mean": 0.75}],
    )
    # The second step was timed, and cut off by the resume.
    assert read_steps(tmp_path) == [
        Step(
            step_s=4.0,
            rollouts_s=2.0,
            logprobs_s=None,
            update_s=1.5,
            sync_s=None,
            episodes=64.0,
            generated_tokens=800.0,
            peak_gib=4.0,
            reward=0.75,
        )
    ]


def test_every_step_of_a_real_run_is_read(tmp_path: Path) -> None:
    toy_run(tmp_path, num_steps_per_task=3, num_samples_per_prompt=2)
    steps = read_steps(tmp_path)
    assert len(steps) == 6  # two domains
    for each in steps:
        assert each.rollouts_s and each.update_s is not None
        assert each.step_s >= each.rollouts_s + each.update_s
        assert each.episodes == 16 and each.generated_tokens and each.reward is not None


def test_table_is_as_worked_out_by_hand() -> None:
    ours = [step(9.0, reward=0.0), step(1.0), step(2.0), step(3.0, reward=1.0)]
    ours = [each._replace(episodes=10, generated_tokens=100.0, peak_gib=4.0) for each in ours]
    verl = [step(70.0), step(8.0, rollouts_s=6.0), step(8.0, rollouts_s=7.0)]
    table = steps_table(
        [Source("ours", ours), Source("verl", verl)], warm_up=1, price=Price(3.6, gpus=2)
    )
    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert first["steps"] == "3"
    assert first["s per step"] == "2.00"
    assert first["range, s"] == "1.00–3.00"
    assert first["episodes"] == "10"
    assert first["tokens/s"] == "50"  # 300 tokens in 6 s
    assert first["peak, GiB"] == "4.0"
    # 30 episodes take 6 s of two GPUs at 0.001 dollars per second.
    assert first["$ per 1,000 episodes"] == "0.400"
    assert (first["reward, first quarter"], first["last quarter"]) == ("0.000", "1.000")
    assert second["rollouts"] == "6.50"
    assert second["weight sync"] == second["$ per 1,000 episodes"] == "–"
    assert (first["ratio"], second["ratio"]) == ("1.00", "4.00")


def test_rewards_are_means_of_the_first_and_the_last_quarter_of_all_steps() -> None:
    steps = [step(1.0, reward=index / 10) for index in range(8)]
    table = steps_table([Source("ours", steps)], warm_up=4, price=None)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["reward, first quarter"], row["last quarter"]) == ("0.050", "0.650")
    assert "$ per 1,000 episodes" not in row


def test_one_command_prints_the_table_in_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verl = written(tmp_path / "verl.txt", VERL)
    skyrl = written(tmp_path / "skyrl.txt", SKYRL)
    main([f"verl={verl}", f"skyrl={skyrl}", "--warm_up", "0", "--price", "3.6"])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("| run | steps | s per step | range, s |")
    assert rows[0].startswith("| verl | 2 | 41.50 | 41.00–42.00 | 21.50 | 2.50 | 8.00 | 3.00 | 4 |")
    # 48 s for 4 episodes at 0.001 dollars per second; 48 is 1.157 times 41.5.
    assert rows[1].endswith("| 12.000 | 1.16 |")


def test_what_is_no_log_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has no training step in times\.jsonl and metrics\.jsonl"
    ):
        read_steps(tmp_path)
    with pytest.raises(ConfigError, match=r"has no step of verl .* or SkyRL"):
        read_steps(written(tmp_path / "notes.txt", "Step 1: install verl\nstep:2 - train\n"))
    with pytest.raises(ConfigError, match="no file or directory"):
        read_steps(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"'verl\.txt' is not NAME=PATH"):
        main(["verl.txt"])


@pytest.mark.parametrize("warm_up", [-1, 2])
def test_warm_up_that_leaves_no_step_is_refused(warm_up: int) -> None:
    steps = [step(1.0), step(1.0)]
    with pytest.raises(ConfigError, match=f"--warm_up {warm_up} must be .* the 2 steps of verl"):
        steps_table([Source("verl", steps)], warm_up=warm_up, price=None)
