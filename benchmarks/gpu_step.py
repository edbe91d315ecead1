"""What one GRPO step costs on a GPU, against TRL on the same work in the same call.

    python benchmarks/gpu_step.py --model DIR --ways ours ours-vllm trl trl-vllm
    python benchmarks/gpu_step.py --model WARM_DIR --work agentic --ways ours ours-vllm trl-vllm
    python benchmarks/gpu_step.py --model DIR --work shared
    python benchmarks/gpu_step.py --model DIR --shape qwen2.5-1.5b --ways ours trl-vllm

The reference work: 16 prompts of about 525 tokens, 8 replies each of at most 256 tokens, a KL
penalty and one update per batch. The agentic work: 16 telecom tasks with policy and tools in the
prompt, 8 episodes each of at most 10 replies of 128 tokens; the model has to know how calls are
written, or episodes end with the first reply. The shared work: only updates, of episodes that begin
alike, with and without using that. A shape is a model with random weights and the tokenizer of
--model. A machine without a GPU needs less of everything (--prompts 2 --samples 2).

Each way runs in a process of its own, so that none finds memory or caches as another left them. The
figures are medians over the steps after --warm_up.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gpu_ours import ours
from gpu_shared import shared
from gpu_trl import environments, rollouts, trl
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

from grpo_cl.cli.world import table

OURS: dict[str, Callable[[Work, Report], None]] = {
    "ours": ours,
    "ours-vllm": partial(ours, engine="vllm"),
}
WAYS: dict[str, dict[str, Callable[[Work, Report], None]]] = {
    "reference": {**OURS, "trl": trl, "trl-vllm": partial(trl, vllm=True)},
    "agentic": {
        **OURS,
        "trl": environments,
        "trl-vllm": partial(environments, vllm=True),
        "trl-rollouts": rollouts,
    },
    "shared": {"shared": shared},
}
TIMES = ("step", "sync", "sample", "environment", "reference", "update", "spread")
AMOUNTS = ("tokens", "turns", "prompt", "reward", "peak", "measured")
RATES = ("s_per_1000_tokens", "s_per_turn")
COLUMNS = {
    "reference": (*TIMES, *AMOUNTS, *RATES),
    "agentic": (*TIMES, *AMOUNTS, *RATES),
    "shared": (
        "plain_s",
        "packed_s",
        "plain_tokens_per_s",
        "packed_tokens_per_s",
        "ratio",
        "difference",
        "plain_peak",
        "packed_peak",
        "tokens",
        "measured",
    ),
}
"""Seconds, GiB and counts of one step; turns, prompt tokens and reward are means over episodes."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Lets vLLM start in a process that has no network and no compiler."""
SHOWN = 3000
"""Characters of what a way that failed said last."""


class Outcome(NamedTuple):
    """What a process told."""

    steps: list[Numbers]
    failure: str
    """Why it ended before its time; empty if it did not."""


def main() -> None:
    """Run every way and print the table."""
    arguments = vars(_parser().parse_args())
    child = arguments.pop("child")
    if child:
        _run_child(*child)
        return
    out: Path | None = arguments.pop("out")
    limit_s, shape = arguments.pop("limit_s"), arguments.pop("shape")
    ways, kind = arguments.pop("ways"), arguments.pop("kind")
    chosen = {name: value for name, value in arguments.items() if value is not None}
    sizes: dict[str, Any] = {**SIZES[kind], **SHAPES.get(shape, {}), **chosen}
    with TemporaryDirectory() as folder:
        if shape:
            made = run("make", {"shape": shape, "tokenizer": sizes["model"], "into": folder})
            if made.failure:
                sys.exit(made.failure)
            sizes["model"] = folder
        work = Work(kind=kind, **sizes)
        rows = [_measured(way, work, shape, limit_s, out) for way in ways or _defaults(kind)]
    print(table([("way", *COLUMNS[kind]), *rows]), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="a folder, or what else a run takes")
    parser.add_argument("--work", dest="kind", choices=sorted(WAYS), default="reference")
    known = sorted({way for ways in WAYS.values() for way in ways})
    parser.add_argument("--ways", nargs="+", choices=known)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape")
    parser.add_argument("--limit_s", type=float, default=240.0, help="of one way, in seconds")
    parser.add_argument("--out", type=Path, help="a file that gets a JSON line for each way")
    for name in SIZES["reference"]:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser


def _defaults(kind: str) -> list[str]:
    return ["shared"] if kind == "shared" else ["ours", "trl"]


def _run_child(way: str, given: str) -> None:
    told = json.loads(given)
    if way == "make":
        make_model(told["shape"], told["tokenizer"], told["into"])
        return
    work = Work(**told)
    WAYS[work.kind][way](work, report)
    # What engines do when Python ends takes long, or for ever, and the GPU's time is dear.
    sys.stdout.flush()
    os._exit(0)


def _measured(
    way: str, work: Work, shape: str | None, limit_s: float, out: Path | None
) -> tuple[str, ...]:
    """A row of the table, which is printed as soon as it is there."""
    told = run(way, work._asdict(), limit_s=limit_s)
    found = _rated(summary(told.steps, work.warm_up), work) if told.steps else {}
    line = {"way": way, "shape": shape, **work._asdict(), **found, "failure": told.failure}
    if told.failure:
        print(f"{way}: {told.failure}", file=sys.stderr, flush=True)
    print(json.dumps({"way": way, **found}), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps({**line, "each": told.steps}) + "\n")
    cells = (f"{found[name]:.3f}" if name in found else "-" for name in COLUMNS[work.kind])
    return (way, *cells)


def _rated(found: Numbers, work: Work) -> Numbers:
    """The numbers with the time by what was written, for ways that write different amounts."""
    rates = {"s_per_1000_tokens": 1000 * found["step"] / max(1.0, found["tokens"])}
    if "turns" in found:
        rates["s_per_turn"] = found["step"] / (found["turns"] * work.replies)
    return {**found, **rates}


def run(way: str, told: Mapping[str, Any], *, limit_s: float = 600.0) -> Outcome:
    """What a way tells of its steps in a process of its own, which is ended after ``limit_s``."""
    command = [sys.executable, __file__, "--child", way, json.dumps(told)]
    with TemporaryDirectory() as folder:
        said, erred = Path(folder) / "said", Path(folder) / "erred"
        with said.open("w") as stdout, erred.open("w") as stderr:
            # A group of its own, which can be ended with whatever the engine started besides.
            process = subprocess.Popen(
                command,
                stdout=stdout,
                stderr=stderr,
                env={**ENVIRONMENT, **os.environ},
                start_new_session=True,
            )
            failure = _wait(process, limit_s)
        lines = said.read_text(errors="replace").splitlines()
        # What a library prints without a newline may stand before a step's numbers.
        numbers = [line.split(STEP, 1)[1] for line in lines if STEP in line]
        steps: list[Numbers] = [json.loads(line) for line in numbers]
        last = erred.read_text(errors="replace")[-SHOWN:]
    return Outcome(steps, f"{failure}\n{last}" if failure else "")


def _wait(process: subprocess.Popen[Any], limit_s: float) -> str:
    """Why the process did not end well, if so."""
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not done after {limit_s:.0f} s; raise --limit_s or ask for fewer --steps"
    return f"ended with status {status}" if status else ""


if __name__ == "__main__":
    main()
