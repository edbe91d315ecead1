"""benchmarks/gpu_step.py: options per workload and way, its table, and the processes it runs."""

import json
import shlex
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from chat_templates import tokenizer_of
from gpu_ours import DOMAIN, agentic_settings, agentic_tasks
from gpu_step import Row, System, Unsloth, Values, comparison, main, run
from gpu_trl_episodes import with_tool_template
from gpu_work import SIZES, STEP, Work, summary
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import EpisodeContext, episode_config
from grpo_cl.integrations.trl.environments import environment_row
from grpo_cl.policy.chat.chat import Chat
from grpo_cl.rollout import Scene, system_prompt

OURS = System("agentic", "ours", None)
TRL = System("agentic", "trl", None)
REPLIES = System("reference", "ours", None)
SYSTEMS = [OURS, TRL, REPLIES]


def test_most_specific_value_of_an_option_applies() -> None:
    steps = Values.parse("steps", ["8", "agentic=5", "trl=3", "agentic/trl=2"], SYSTEMS)
    assert [steps.of(system) for system in SYSTEMS] == ["5", "2", "8"]
    assert Values.parse("steps", ["trl=3"], SYSTEMS).of(OURS) is None


def test_value_for_what_the_call_does_not_measure_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--steps: 'verl' is no workload or way of this call"):
        Values.parse("steps", ["8", "verl=2"], SYSTEMS)


def test_table_is_as_worked_out_by_hand() -> None:
    pairs = [(9.0, 5.0), (2.0, 3.0), (4.0, 4.0)]
    ours = [{"step": s, "tokens": 800.0, "turns": 5.0, "peak": peak} for s, peak in pairs]
    figures = summary(ours, warm_up=1) | {"episodes": 10.0, "used": 6.5}
    trl = summary([{"step": 30.0, "turns": 10.0}], warm_up=1) | {"episodes": 20.0}
    failed = Row(REPLIES, {}, "")
    rows = [Row(OURS, figures, ""), Row(TRL, trl, " (warm-up), stopped"), failed]
    table = comparison(rows, price=3.6)
    first, second, third = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert first == {
        "work": "agentic",
        "system": "ours",
        "s per step": "3.00",
        "range, s": "2.00–4.00",
        "steps": "2",
        "episodes": "10",
        "replies": "5.0",
        "tokens/s": "267",  # 800 in 3 s
        "ms per reply": "60.0",  # 50 replies in 3 s
        "allocated, GiB": "4.0",
        "used, GiB": "6.5",
        "$ per 1,000 episodes": "0.300",  # 300 s at 0.001 dollars
        "ratio": "1.00",
        "per reply": "1.00",
    }
    assert second["steps"] == "1 (warm-up), stopped"
    # 1.5 s per episode and 0.15 s per reply, to 0.3 and 0.06.
    assert (second["ratio"], second["per reply"]) == ("5.00", "2.50")
    assert second["tokens/s"] == second["used, GiB"] == "–"
    assert (third["s per step"], third["ratio"]) == ("no step", "–")


def test_steps_before_the_time_limit_count(tmp_path: Path) -> None:
    lines = "\n".join(STEP + json.dumps({"step": step}) for step in (3.0, 1.0))
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho {shlex.quote(lines)}\nexec sleep 600\n")
    program.chmod(0o755)
    result = run("unsloth", {}, limit_s=5.0, unsloth=Unsloth(str(program), None))
    assert result.steps == [{"step": 3.0}, {"step": 1.0}]
    assert result.is_stopped
    assert result.failure.startswith("stopped after 5 s with 2 steps")


def test_way_of_unsloth_has_its_own_path_and_a_failure_its_last_words(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "path $PYTHONPATH, arguments $2 $3" >&2\nexit 3\n')
    program.chmod(0o755)
    result = run("unsloth", {"steps": 1}, unsloth=Unsloth(str(program), "overlay:site"))
    assert not result.is_stopped
    assert result.failure == (
        'ended with status 3\npath overlay:site, arguments unsloth {"steps": 1}\n'
    )


def test_log_of_an_engine_is_a_row_with_the_memory_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "step:{} - perf/total_num_tokens:57 - response_length/mean:9.25 - prompt_length/mean:5.0"
    lines = [f"{step.format(n)} - timing_s/step:{40 + n}.0\n" for n in (1, 2, 3)]
    (tmp_path / "verl.txt").write_text("".join(lines))
    (tmp_path / "verl.memory").write_text("512\n2048\n1024\n")
    log = f"plan/verl={tmp_path / 'verl.txt'}"
    main(["--ways", "padded", "--logs", log, "--warm_up", "verl=1"])
    header, _, row, *_ = capsys.readouterr().out.splitlines()
    assert header.startswith("| work | system | s per step |")
    # 57 tokens in episodes of 5 + 9.25
    assert row.startswith("| plan | verl | 42.50 | 42.00–43.00 | 2 | 4 | – | – | – | – | 2.0 |")


def test_log_without_steps_leaves_the_other_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--ways", "padded", "--logs", f"plan/skyrl={tmp_path / 'absent.txt'}"])
    printed = capsys.readouterr()
    assert "| plan | skyrl | no step | – |" in printed.out
    assert printed.err.startswith("plan/skyrl: no file or directory")


def test_log_without_a_workload_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'verl\.txt' is not WORK/NAME=PATH"):
        main(["--logs", "verl.txt"])


@pytest.mark.parametrize("kind", ["agentic", "compact"])
def test_trl_renders_the_prompts_of_our_chat(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of("chatml")
    tokenizer.save_pretrained(tmp_path)
    work = Work(model=str(tmp_path), kind=kind, **SIZES[kind])
    config = episode_config(agentic_settings(work))
    context = EpisodeContext(config)
    task = agentic_tasks(work, config)[0]
    folder, options = with_tool_template(str(tmp_path), context)
    assert options is not None
    prompt = environment_row(context, task)["prompt"]
    rendered = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        prompt, add_generation_prompt=True, return_dict=False, **options
    )
    domain, is_compact = context.domain(DOMAIN), kind == "compact"
    scene = Scene(
        task=task,
        system=system_prompt(domain, task, solo=True, compact=is_compact),
        tools=() if is_compact else domain.tools(solo=True),
        solo=True,
        seed=0,
    )
    assert rendered == Chat(tokenizer).opening(scene, ())
    context.close()


@pytest.mark.slow
def test_one_call_measures_several_workloads_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steps.jsonl"
    small = "--steps 2 --warm_up 1 --prompts 2 --samples 2 --max_turns 3 --prompt_tokens 40"
    sizes = f"{small} --reply_tokens 16 --context 2048 --price 3.6 --limit_s 280"
    ways = "--work compact shared --ways compact/ours shared/packed padded"
    main([*ways.split(), *sizes.split(), "--out", str(out)])
    printed = capsys.readouterr().out
    systems = [line.split(" | ")[:2] for line in printed.split("\n\n")[1].splitlines()[2:]]
    assert systems == [["| compact", "ours"], ["| shared", "packed"], ["| shared", "padded"]]
    ours, packed, padded = map(json.loads, out.read_text().splitlines())
    assert [len(line["each"]) for line in (ours, packed, padded)] == [2, 2, 2]
    assert ours["tokens"] > 0
    assert ours["step"] >= ours["sample"] + ours["update"]
    assert packed["tokens"] == padded["tokens"]
    assert packed["difference"] < 1e-4
    assert padded["difference"] == 0.0
