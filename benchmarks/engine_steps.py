"""Seconds per step of grpo-cl, verl and SkyRL on the same work, from what their runs logged.

    python benchmarks/engine_steps.py ours=RUN_DIR verl=LOG skyrl=LOG --warm_up 2 --price 3.5

Each argument is NAME=PATH. The path is a run directory of grpo-cl, or the console output of verl
0.9.1 or SkyRL 0.3.0 (``trainer.logger=console``, stdout and stderr); which one, the content tells.
The columns, over the steps after the first --warm_up:

s per step       median, without checkpoints and exported models; evaluations are outside of steps
range            shortest and longest step
rollouts         medians again: episodes with scoring; grpo-cl: with its weight sync
log-probs        of the policy before the update and of the reference; grpo-cl: in the update
update           optimizer steps
weight sync      from the trainer to the inference engine
episodes         mean per step; verl: all tokens of a step divided by their mean per episode
tokens/s         generated tokens over the whole steps; verl counts them only with tool results
peak, GiB        largest of torch's allocator; of verl's trainer, without vLLM; SkyRL logs none
reward           mean training reward of the first and the last quarter of all steps, as logged
$ per 1,000      episodes, at --price dollars per GPU hour and --gpus, for the time of the steps
ratio            of the medians to that of the first row

A dash stands for what is not logged. Every step in a console log counts, of several stages too.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from grpo_cl.errors import ConfigError, GRPOCLError
from grpo_cl.metrics.names import numbers
from grpo_cl.metrics.tables import Table, markdown
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""Ray colours its prefix of a line, and SkyRL its messages."""
VERL_STEP = re.compile(r"(?:^|\s)step:\d+ - (.*\btiming_s/step:.*)$", re.MULTILINE)
VERL_VALUE = re.compile(r"(?:^| - )([^\s:]+):(?:np\.\w+\()?([^\s()]+)")
"""A number of numpy is printed as ``np.float64(4.5)``."""
SKYRL_STEP = re.compile(r"tracking:log:\d+ - Step \d+:")
SKYRL_VALUE = re.compile(r"'([^\s']+)': '?([^\s',}]+)")
"""A float is printed as text with four digits."""
COLUMNS = (
    *("run", "steps", "s per step", "range, s", "rollouts", "log-probs", "update", "weight sync"),
    *("episodes", "tokens/s", "peak, GiB", "reward, first quarter", "last quarter"),
)

Values = Mapping[str, float]


class Step(NamedTuple):
    """What was logged of one step; None where nothing was."""

    step_s: float
    rollouts_s: float | None
    logprobs_s: float | None
    """Of the policy before the update and of the reference."""
    update_s: float | None
    sync_s: float | None
    episodes: float | None
    generated_tokens: float | None
    peak_gib: float | None
    reward: float | None


class Source(NamedTuple):
    """The steps of one run."""

    name: str
    steps: list[Step]


class Price(NamedTuple):
    """What an hour of the machine costs."""

    dollars_per_gpu_hour: float
    gpus: int


def read_steps(path: Path) -> list[Step]:
    """The steps of a run directory or of an engine's console log, in order."""
    if path.is_dir():
        return _run_steps(path)
    if not path.is_file():
        raise ConfigError(f"no file or directory {str(path)!r}; check NAME=PATH")
    text = COLOUR.sub("", path.read_text(errors="replace"))
    steps = [*_verl_steps(text)] or [*_skyrl_steps(text)]
    if not steps:
        raise ConfigError(
            f"{str(path)!r} has no step of verl 0.9.1 ('step:1 - … - timing_s/step:41.0') or SkyRL "
            "0.3.0 ('Step 1:' and its metrics); name a run directory of grpo-cl, or the console "
            "output of an engine with trainer.logger=console that finished a step"
        )
    return steps


def _run_steps(root: Path) -> list[Step]:
    """The steps of a run; one that was repeated after a resume counts once."""
    run = RunDir(root)
    times = {
        (line["stage"], line["step"]): numbers(line)
        for line in read_journal(run.times_journal)
        if line["kind"] == "train"
    }
    logged = {
        (line["task_idx"], line["step"]): numbers(line)
        for series, lines in run.read_metrics().items()
        if series.endswith("/train")
        for line in lines
    }
    steps = [_run_step(times[place] | logged[place]) for place in sorted(times.keys() & logged)]
    if not steps:
        raise ConfigError(
            f"{str(root)!r} has no training step in {run.times_journal.name} and "
            f"{run.metrics_journal.name}; name the log_dir of `grpo-cl train`, or an engine's "
            "console log instead of its imported run"
        )
    return steps


def _run_step(values: Values) -> Step:
    peaks = [values[name] for name in values if re.fullmatch(r"peak_\w+_mb", name)]
    return Step(
        step_s=values["step_s"],
        rollouts_s=values.get("rollout_s"),
        logprobs_s=None,
        update_s=values.get("update_s"),
        sync_s=None,
        episodes=values.get("episodes"),
        generated_tokens=values.get("generated_tokens"),
        peak_gib=max(peaks) / 1024 if peaks else None,
        reward=values.get("reward_mean"),
    )


def _verl_steps(text: str) -> Iterator[Step]:
    """One line per step; that of an evaluation before training has no times."""
    for line in VERL_STEP.findall(text):
        values = _finite(VERL_VALUE.findall(line))
        tokens = values.get("perf/total_num_tokens")
        lengths = _sum(values, "prompt_length/mean", "response_length/mean")
        yield Step(
            step_s=values["timing_s/step"] - values.get("timing_s/save_checkpoint", 0.0),
            rollouts_s=values.get("timing_s/gen"),
            logprobs_s=_sum(values, "timing_s/old_log_prob", "timing_s/ref"),
            update_s=values.get("timing_s/update_actor"),
            sync_s=values.get("timing_s/update_weights"),
            episodes=round(tokens / lengths) if tokens and lengths else None,
            generated_tokens=None,
            peak_gib=values.get("actor/perf/max_memory_allocated_gb"),
            reward=values.get("critic/score/mean"),
        )


def _skyrl_steps(text: str) -> Iterator[Step]:
    """One dict per step; an evaluation has no times, a step that failed no ``global_step``."""
    for block in SKYRL_STEP.split(text)[1:]:
        values = _finite(SKYRL_VALUE.findall(block))
        if not {"timing/step", "trainer/global_step"} <= values.keys():
            continue
        saving = _sum(values, "timing/save_checkpoints", "timing/save_hf_model")
        episodes = values.get("generate/batch_num_seq")
        sampled = values.get("generate/avg_assistant_tokens")
        yield Step(
            step_s=values["timing/step"] - (saving or 0.0),
            rollouts_s=values.get("timing/generate"),
            logprobs_s=values.get("timing/fwd_logprobs_values_reward"),
            update_s=values.get("timing/train_critic_and_policy"),
            sync_s=values.get("timing/sync_weights"),
            episodes=episodes,
            generated_tokens=sampled * episodes if sampled and episodes else None,
            peak_gib=None,
            reward=values.get("reward/avg_raw_reward"),
        )


def _finite(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """The finite numbers among the texts."""
    found: dict[str, float] = {}
    for name, text in pairs:
        try:
            value = float(text)
        except ValueError:
            continue
        if isfinite(value):
            found[name] = value
    return found


def _sum(values: Values, *names: str) -> float | None:
    known = [values[name] for name in names if name in values]
    return sum(known) if known else None


def steps_table(sources: Sequence[Source], *, warm_up: int, price: Price | None) -> Table:
    """One row per run."""
    for source in sources:
        if not 0 <= warm_up < len(source.steps):
            raise ConfigError(
                f"--warm_up {warm_up} must be at least 0 and less than the {len(source.steps)} "
                f"steps of {source.name}; choose another one"
            )
    measured = [source.steps[warm_up:] for source in sources]
    medians = [median(step.step_s for step in steps) for steps in measured]
    rows: list[tuple[str, ...]] = []
    for source, steps, middle in zip(sources, measured, medians, strict=True):
        row = [source.name, *_figures(steps), *_rewards(source.steps)]
        row += [] if price is None else [_text(_dollars(steps, price), 3)]
        rows.append((*row, _text(middle / medians[0], 2)))
    cost = () if price is None else ("$ per 1,000 episodes",)
    return Table((*COLUMNS, *cost, "ratio"), [*rows])


def _figures(steps: Sequence[Step]) -> list[str]:
    totals = [step.step_s for step in steps]
    episodes = _known([step.episodes for step in steps])
    peaks = _known([step.peak_gib for step in steps])
    return [
        str(len(steps)),
        _text(median(totals), 2),
        f"{min(totals):.2f}–{max(totals):.2f}",
        _median([step.rollouts_s for step in steps]),
        _median([step.logprobs_s for step in steps]),
        _median([step.update_s for step in steps]),
        _median([step.sync_s for step in steps]),
        _text(fmean(episodes) if episodes else None, 0),
        _text(_per_second(steps, [step.generated_tokens for step in steps]), 0),
        _text(max(peaks) if peaks else None, 1),
    ]


def _rewards(steps: Sequence[Step]) -> list[str]:
    """Means over the first and the last quarter."""
    rewards = _known([step.reward for step in steps])
    count = max(1, len(rewards) // 4)
    quarters = (rewards[:count], rewards[-count:]) if rewards else ([], [])
    return [_text(fmean(quarter) if quarter else None, 3) for quarter in quarters]


def _dollars(steps: Sequence[Step], price: Price) -> float | None:
    """Per 1,000 episodes."""
    rate = _per_second(steps, [step.episodes for step in steps])
    per_second = price.dollars_per_gpu_hour * price.gpus / 3600
    return 1000 * per_second / rate if rate else None


def _per_second(steps: Sequence[Step], amounts: Sequence[float | None]) -> float | None:
    """The amount over the time of the steps; None if a step did not log it."""
    known = _known(amounts)
    return sum(known) / sum(step.step_s for step in steps) if len(known) == len(steps) else None


def _median(values: Sequence[float | None]) -> str:
    known = _known(values)
    return _text(median(known) if known else None, 2)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--warm_up", type=int, default=2, help="first steps left out (default: 2)")
    parser.add_argument("--price", type=float, help="dollars per GPU hour")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of each run (default: 1)")
    options = parser.parse_args(words)
    sources: list[Source] = []
    for word in options.runs:
        name, _, path = word.partition("=")
        if not name or not path:
            raise ConfigError(f"{word!r} is not NAME=PATH; write for example verl=logs/verl.txt")
        sources.append(Source(name, read_steps(Path(path))))
    price = None if options.price is None else Price(options.price, options.gpus)
    print(markdown(steps_table(sources, warm_up=options.warm_up, price=price)))


if __name__ == "__main__":
    try:
        main()
    except GRPOCLError as error:
        sys.exit(str(error))
