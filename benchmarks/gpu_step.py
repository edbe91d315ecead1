"""Time, memory and cost of GRPO steps on a GPU: grpo-cl beside TRL, Unsloth, verl and SkyRL.

    python benchmarks/gpu_step.py --model DIR --ways ours ours-vllm trl trl-vllm
    python benchmarks/gpu_step.py --model DIR agentic=WARM compact=WARM_COMPACT --price 3.5
        --work reference long agentic compact shared --ways ours trl-vllm unsloth packed padded
        --limit_s 60 agentic/trl-vllm=210 --logs plan/ours=RUN_DIR plan/verl=LOG plan/skyrl=LOG
    python benchmarks/gpu_step.py --model DIR --shape qwen2.5-1.5b --ways ours trl-vllm

The workloads, all but "shared" with a KL penalty and one update per batch:

reference  16 prompts of about 525 tokens, 8 replies each of at most 256 tokens
long       4 prompts of about 7,500 tokens, 8 replies each of at most 256 tokens
agentic    16 telecom tasks with policy and tools in the prompt, 8 episodes each of at most 10
           replies of 128 tokens; without tool calls an episode ends with the first reply
compact    the same without policy and tools in the prompt and with at most 30 replies, for models
           fine-tuned on such prompts
shared     gradients of 16 groups of 8 episodes that share 10,000 of 10,600 tokens, each prefix
           computed once (packed) or in every episode (padded); tokens/s counts all tokens

An option of several values has one for everything, and others for a workload, a way, or a way of a
workload: --steps 8 agentic=5 trl=3 agentic/trl-vllm=2. --ways takes ways for all workloads that
have them, and WORK/WAY for one. A shape is a model with random weights and the tokenizer of
--model. Without a GPU use a smaller workload (--prompts 2 --samples 2).

Each way runs in a separate process, so that memory and caches are fresh. A process that reaches
--limit_s is killed, and the steps that it finished count. Unsloth needs other versions of
transformers and TRL: --unsloth is the Python of its ways, and --unsloth_path their PYTHONPATH.
--logs adds rows from what engine_steps.py reads, under any name of their work, and the used memory
from a file beside the log that ends in ".memory": the output of nvidia-smi
--query-gpu=memory.used --format=csv,noheader,nounits -lms 500.

The columns, over the steps after --warm_up:

s per step, range      median, shortest and longest
replies                mean per episode
tokens/s               generated tokens over the whole step
allocated, used        GiB: peak of torch's allocator; peak of the GPU by nvidia-smi
$ per 1,000 episodes   at --price dollars per GPU hour, for the time of the steps
ratio, per reply       seconds per episode and per reply, to those of the first row of the workload
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from engine_steps import read_steps
from gpu_ours import ours
from gpu_shared import shared
from gpu_trl import trl
from gpu_trl_episodes import environments, rollouts
from gpu_work import (
    SHAPES,
    SIZES,
    STEP,
    Numbers,
    Report,
    Work,
    make_model,
    report,
    summary,
)
from grpo_cl.errors import ConfigError, GRPOCLError
from grpo_cl.metrics.tables import Table, markdown

Way = Callable[[Work, Report], None]
OURS: dict[str, Way] = {"ours": ours, "ours-vllm": partial(ours, engine="vllm")}
REPLIES: dict[str, Way] = {**OURS, "trl": trl, "trl-vllm": partial(trl, vllm=True)}
EPISODES: dict[str, Way] = {
    **OURS,
    "trl": environments,
    "trl-vllm": partial(environments, vllm=True),
    "trl-rollouts": rollouts,
}
UPDATES: dict[str, Way] = {
    "packed": partial(shared, packed=True),
    "padded": partial(shared, packed=False),
}
WAYS = {
    "reference": REPLIES,
    "long": REPLIES,
    "agentic": EPISODES,
    "compact": EPISODES,
    "shared": UPDATES,
}
UNSLOTH = ("unsloth", "unsloth-vllm")
"""Ways of ``gpu_unsloth.py``, for single replies; with vLLM it trains LoRA adapters."""
DEFAULTS = {"model": ["tiny"], "limit_s": ["240"]}
"""Defaults of the options of several values; those of the sizes are the workload's."""
WARM_UP = 2
"""Steps of a log that are left out by default."""
COLUMNS = (
    *("work", "system", "s per step", "range, s", "steps", "episodes", "replies", "tokens/s"),
    *("ms per reply", "allocated, GiB", "used, GiB", "$ per 1,000 episodes", "ratio", "per reply"),
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "UNSLOTH_VLLM_NO_FLASHINFER": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Lets vLLM start without network and compiler."""
MEMORY_QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
STDERR_CHARS = 3000
"""Characters of stderr shown after a failure."""


class System(NamedTuple):
    """A row of the table: a way that is run, or a log that is read."""

    kind: str
    name: str
    log: Path | None


class Values(NamedTuple):
    """The values of an option: under "" for everything, others under WORK, WAY or WORK/WAY."""

    by_key: Mapping[str, str]

    @classmethod
    def parse(cls, name: str, words: Sequence[str], systems: Sequence[System]) -> "Values":
        """The values of ``words``, each VALUE or KEY=VALUE."""
        known = {key for kind, system, _ in systems for key in (kind, system, f"{kind}/{system}")}
        by_key = {key: value for key, _, value in (word.rpartition("=") for word in words)}
        for key in by_key.keys() - known - {""}:
            raise ConfigError(
                f"--{name}: {key!r} is no workload or way of this call; known: "
                f"{', '.join(sorted(known))}"
            )
        return cls(by_key)

    def of(self, system: System) -> str | None:
        """The most specific value; None if there is none."""
        keys = (f"{system.kind}/{system.name}", system.name, system.kind, "")
        return next((self.by_key[key] for key in keys if key in self.by_key), None)


class Row(NamedTuple):
    """What was measured of a system."""

    system: System
    figures: Numbers
    """Medians over the steps; empty if none was finished."""
    note: str
    """Stands behind the number of steps."""


class Unsloth(NamedTuple):
    """How the ways of Unsloth are started."""

    python: str
    path: str | None
    """PYTHONPATH; None for the one of this process."""


class ProcessResult(NamedTuple):
    """The output of a benchmark process."""

    steps: list[Numbers]
    used_gib: float | None
    """Largest used memory of the GPU; None without ``nvidia-smi``."""
    is_stopped: bool
    """Killed at the time limit."""
    failure: str
    """Reason of a failure, also of being stopped; empty on success."""


def main(words: Sequence[str] | None = None) -> None:
    """Measure every system and print its row, then the table."""
    options = _parser().parse_args(words)
    if options.child:
        _run_child(*options.child)
        return
    systems = _systems(options)
    values = {
        name: Values.parse(name, [*DEFAULTS.get(name, ()), *vars(options)[name]], systems)
        for name in (*DEFAULTS, *SIZES["reference"])
    }
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        tokenizer = values["model"].by_key[""]
        if options.shape:
            values["model"] = Values({"": folder})
        works = [None if s.log else _work(s, values, options.shape) for s in systems]
        if options.shape:
            arguments = {"shape": options.shape, "tokenizer": tokenizer, "into": folder}
            result = run("make", arguments)
            if result.failure:
                sys.exit(result.failure)
        for system, work in zip(systems, works, strict=True):
            if work is None:
                rows.append(_read(system, int(values["warm_up"].of(system) or WARM_UP)))
            else:
                limit_s = float(values["limit_s"].of(system) or 0)
                rows.append(_measure(system, work, limit_s, options))
            header, rule, *lines = markdown(comparison(rows, options.price)).splitlines()
            print("\n".join([header, rule, *lines] if len(rows) == 1 else lines[-1:]), flush=True)
    print(f"\n{markdown(comparison(rows, options.price))}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", nargs="+", default=[], help="a folder or another model_name_or_path"
    )
    parser.add_argument("--work", nargs="+", choices=WAYS, default=["reference"])
    places = [(kind, way) for kind in WAYS for way in _available(kind)]
    names = {name for kind, way in places for name in (way, f"{kind}/{way}")}
    known = ", ".join(dict.fromkeys(way for _, way in places))
    parser.add_argument(
        "--ways",
        nargs="*",
        choices=sorted(names),
        default=["ours", "trl", *UPDATES],
        metavar="WAY",
        help=f"{known}, or WORK/WAY; none to read --logs only",
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape")
    parser.add_argument(
        "--limit_s", nargs="+", default=[], help="time limit of a process, with its start"
    )
    parser.add_argument("--logs", nargs="+", default=[], metavar="WORK/NAME=PATH")
    parser.add_argument("--price", type=float, help="dollars per GPU hour")
    parser.add_argument("--out", type=Path, help="file for one JSON line per way")
    parser.add_argument(
        "--unsloth", default=sys.executable, help="Python of an environment with Unsloth"
    )
    parser.add_argument("--unsloth_path", help="PYTHONPATH of Unsloth's ways")
    for name in SIZES["reference"]:
        parser.add_argument(f"--{name}", nargs="+", default=[])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser


def _available(kind: str) -> list[str]:
    """The ways of a workload."""
    return [*WAYS[kind], *(UNSLOTH if WAYS[kind] is REPLIES else ())]


def _systems(options: argparse.Namespace) -> list[System]:
    """The rows of the table, by workload."""
    logs: list[System] = []
    for word in options.logs:
        place, _, path = word.partition("=")
        kind, _, name = place.partition("/")
        if not (kind and name and path):
            raise ConfigError(
                f"--logs: {word!r} is not WORK/NAME=PATH; write for example plan/verl=logs/verl.txt"
            )
        logs.append(System(kind, name, Path(path)))
    systems: list[System] = []
    for kind in dict.fromkeys([*options.work, *(log.kind for log in logs)]):
        if kind in options.work:
            chosen = [word.removeprefix(f"{kind}/") for word in options.ways]
            ways = [way for way in dict.fromkeys(chosen) if way in _available(kind)]
            systems += [System(kind, way, None) for way in ways]
        systems += [log for log in logs if log.kind == kind]
    return systems


def _run_child(way: str, encoded: str) -> None:
    arguments = json.loads(encoded)
    if way == "make":
        make_model(arguments["shape"], arguments["tokenizer"], arguments["into"])
        return
    work = Work(**arguments)
    WAYS[work.kind][way](work, report)
    # Skip the exit handlers of the engines, which can take long or hang.
    sys.stdout.flush()
    os._exit(0)


def _work(system: System, values: Mapping[str, Values], shape: str | None) -> Work:
    given = {name: values[name].of(system) for name in SIZES[system.kind]}
    sizes = {
        **SIZES[system.kind],
        **SHAPES.get(shape or "", {}),
        **{name: int(value) for name, value in given.items() if value is not None},
    }
    return Work(model=values["model"].of(system) or "", kind=system.kind, **sizes)


def _measure(system: System, work: Work, limit_s: float, options: argparse.Namespace) -> Row:
    """Run one way."""
    unsloth = Unsloth(options.unsloth, options.unsloth_path) if system.name in UNSLOTH else None
    result = run(system.name, work._asdict(), limit_s=limit_s, unsloth=unsloth)
    row = _row(system, result.steps, work.warm_up, result.used_gib)
    if row.figures:
        row.figures["episodes"] = float(work.replies)
    if result.failure:
        print(f"{system.kind}/{system.name}: {result.failure}", file=sys.stderr, flush=True)
    if options.out:
        line = {"way": system.name, "shape": options.shape, **work._asdict(), **row.figures}
        with options.out.open("a") as file:
            each = {"failure": result.failure, "each": result.steps}
            file.write(json.dumps({**line, **each}) + "\n")
    return row._replace(note=f"{row.note}, stopped") if result.is_stopped else row


def _read(system: System, warm_up: int) -> Row:
    """Read the steps of a log, and the memory beside it."""
    assert system.log
    try:
        logged = [step._asdict() for step in read_steps(system.log)]
    except ConfigError as error:
        # The engine may have failed, which does not spoil the other rows.
        print(f"{system.kind}/{system.name}: {error}", file=sys.stderr, flush=True)
        logged = []
    names = {"step_s": "step", "generated_tokens": "tokens", "peak_gib": "peak"}
    steps = [
        {names.get(name, name): value for name, value in step.items() if value is not None}
        for step in logged
    ]
    return _row(system, steps, warm_up, _used_gib(system.log.with_suffix(".memory")))


def _row(system: System, steps: Sequence[Numbers], warm_up: int, used_gib: float | None) -> Row:
    """The row of a system; without the figures that some steps lack."""
    if not steps:
        return Row(system, {}, "")
    names = [name for name in steps[0] if all(name in step for step in steps)]
    figures = summary([{name: step[name] for name in names} for step in steps], warm_up)
    if used_gib is not None:
        figures["used"] = used_gib
    return Row(system, figures, "" if len(steps) > warm_up else " (warm-up)")


def comparison(rows: Sequence[Row], price: float | None) -> Table:
    """The table of all rows; ratios are those to the first row with figures of a workload."""
    first = {row.system.kind: row.figures for row in reversed(rows) if row.figures}
    return Table(COLUMNS, [_cells(row, first.get(row.system.kind, {}), price) for row in rows])


def _cells(row: Row, first: Numbers, price: float | None) -> tuple[str, ...]:
    figures = row.figures
    if not figures:
        return (row.system.kind, row.system.name, "no step", *["–"] * (len(COLUMNS) - 3))
    step = figures["step"]
    tokens, dollars = figures.get("tokens"), None
    if price is not None and "episodes" in figures:
        dollars = step * price / 3600 / figures["episodes"] * 1000
    per_reply = _seconds_per_reply(figures)
    return (
        row.system.kind,
        row.system.name,
        _text(step, 2),
        f"{figures['shortest']:.2f}–{figures['longest']:.2f}",
        f"{figures['measured']:.0f}{row.note}",
        _text(figures.get("episodes"), 0),
        _text(figures.get("turns"), 1),
        _text(tokens and tokens / step, 0),
        _text(per_reply and 1000 * per_reply, 1),
        _text(figures.get("peak"), 1),
        _text(figures.get("used"), 1),
        _text(dollars, 3),
        _ratio(_seconds_per_episode(figures), _seconds_per_episode(first)),
        _ratio(per_reply, _seconds_per_reply(first)),
    )


def _seconds_per_episode(figures: Numbers) -> float | None:
    return figures["step"] / figures["episodes"] if "episodes" in figures else None


def _seconds_per_reply(figures: Numbers) -> float | None:
    per_episode, turns = _seconds_per_episode(figures), figures.get("turns")
    return per_episode / turns if per_episode and turns else None


def _ratio(value: float | None, first: float | None) -> str:
    return _text(value / first if value and first else None, 2)


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def run(
    way: str,
    arguments: Mapping[str, Any],
    *,
    limit_s: float = 600.0,
    unsloth: Unsloth | None = None,
) -> ProcessResult:
    """Run an implementation in a separate process, killed after ``limit_s`` seconds."""
    environment = {**ENVIRONMENT, **os.environ}
    program = [sys.executable, __file__, "--child"]
    with TemporaryDirectory() as folder:
        if unsloth:
            program = [unsloth.python, str(Path(__file__).with_name("gpu_unsloth.py"))]
            environment["UNSLOTH_COMPILE_LOCATION"] = str(Path(folder) / "unsloth")
            if unsloth.path:
                environment["PYTHONPATH"] = unsloth.path
        out_file, error_file = Path(folder) / "stdout", Path(folder) / "stderr"
        memory = Path(folder) / "memory"
        with (
            out_file.open("w") as stdout,
            error_file.open("w") as stderr,
            _recorded_memory(memory),
        ):
            # A separate process group, so that subprocesses of the engine are killed too.
            process = subprocess.Popen(
                [*program, way, json.dumps(arguments)],
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
            status = _wait(process, limit_s)
        lines = out_file.read_text(errors="replace").splitlines()
        # A library may have printed text without a newline before a step's numbers.
        numbers = [line.split(STEP, 1)[1] for line in lines if STEP in line]
        steps: list[Numbers] = [json.loads(line) for line in numbers]
        stderr_end = error_file.read_text(errors="replace")[-STDERR_CHARS:]
        used_gib = _used_gib(memory)
    reason = f"ended with status {status}"
    if status is None:
        reason = f"stopped after {limit_s:.0f} s with {len(steps)} steps; see --limit_s, --steps"
    failure = "" if status == 0 else f"{reason}\n{stderr_end}"
    return ProcessResult(steps, used_gib, status is None, failure)


@contextmanager
def _recorded_memory(out: Path) -> Generator[None]:
    """Write the used memory of the GPU to ``out`` twice a second, where there is nvidia-smi."""
    if not which(MEMORY_QUERY[0]):
        yield
        return
    with out.open("w") as file:
        query = subprocess.Popen([*MEMORY_QUERY, "-lms", "500"], stdout=file)
        try:
            yield
        finally:
            query.kill()
            query.wait()


def _used_gib(memory: Path) -> float | None:
    """The largest of the MiB that nvidia-smi wrote; None if there are none."""
    lines = memory.read_text().splitlines() if memory.is_file() else []
    used = [int(line) for line in lines if line.strip().isdigit()]
    return max(used) / 1024 if used else None


def _wait(process: subprocess.Popen[Any], limit_s: float) -> int | None:
    """The exit status; None if the process was killed at the time limit."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


if __name__ == "__main__":
    try:
        main()
    except GRPOCLError as error:
        sys.exit(str(error))
