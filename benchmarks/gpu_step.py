"""Time and memory of one GRPO step on a GPU, compared with TRL on the same workload.

    python benchmarks/gpu_step.py --model DIR --ways ours ours-vllm trl trl-vllm
    python benchmarks/gpu_step.py --model WARM_DIR --work agentic --ways ours ours-vllm trl-vllm
    python benchmarks/gpu_step.py --model DIR --work shared
    python benchmarks/gpu_step.py --model DIR --shape qwen2.5-1.5b --ways ours trl-vllm

Workload "reference": 16 prompts of about 525 tokens, 8 replies each of at most 256 tokens, a KL
penalty and one update per batch. Workload "agentic": 16 telecom tasks with policy and tools in the
prompt, 8 episodes each of at most 10 replies of 128 tokens; a model that cannot write tool calls
ends its episodes with the first reply. Workload "compact": the same without policy and tools in
the prompt and with at most 30 replies, for models fine-tuned on such prompts. Workload "shared":
only updates, of episodes with shared prefixes, with and without prefix sharing. A shape is a model
with random weights and the tokenizer of --model. Without a GPU use a smaller workload (--prompts 2
--samples 2).

Each implementation (--ways) runs in a separate process, so that memory and caches are fresh. The
figures are medians over the steps after --warm_up. Unsloth needs other versions of transformers and
TRL, so its ways run with the interpreter --unsloth.
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
from grpo_cl.cli.output import table

OURS: dict[str, Callable[[Work, Report], None]] = {
    "ours": ours,
    "ours-vllm": partial(ours, engine="vllm"),
}
UNSLOTH = ("unsloth", "unsloth-vllm")
"""Ways of ``gpu_unsloth.py``, for the workload "reference"; with vLLM it trains LoRA adapters."""
WAYS: dict[str, dict[str, Callable[[Work, Report], None]]] = {
    "reference": {**OURS, "trl": trl, "trl-vllm": partial(trl, vllm=True)},
    "agentic": {
        **OURS,
        "trl": environments,
        "trl-vllm": partial(environments, vllm=True),
        "trl-rollouts": rollouts,
    },
    "compact": OURS,
    "shared": {"shared": shared},
}
TIMES = ("step", "sync", "sample", "environment", "reference", "update", "spread")
AMOUNTS = ("tokens", "turns", "prompt", "reward", "peak", "measured")
RATES = ("s_per_1000_tokens", "s_per_turn")
COLUMNS = {
    "reference": (*TIMES, *AMOUNTS, *RATES),
    "agentic": (*TIMES, *AMOUNTS, *RATES),
    "compact": (*TIMES, *AMOUNTS, *RATES),
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
"""Seconds, GiB and counts per step; turns, prompt tokens and reward are means over episodes."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Lets vLLM start without network and compiler."""
STDERR_CHARS = 3000
"""Characters of stderr shown after a failure."""


class ProcessResult(NamedTuple):
    """The output of a benchmark process."""

    steps: list[Numbers]
    failure: str
    """Reason of a failure; empty on success."""


def main() -> None:
    """Run every implementation and print the table."""
    arguments = vars(_parser().parse_args())
    child = arguments.pop("child")
    if child:
        _run_child(*child)
        return
    out: Path | None = arguments.pop("out")
    limit_s, shape = arguments.pop("limit_s"), arguments.pop("shape")
    ways, kind = arguments.pop("ways"), arguments.pop("kind")
    interpreters: dict[str, str] = dict.fromkeys(UNSLOTH, arguments.pop("unsloth"))
    overrides = {name: value for name, value in arguments.items() if value is not None}
    sizes: dict[str, Any] = {**SIZES[kind], **SHAPES.get(shape, {}), **overrides}
    with TemporaryDirectory() as folder:
        if shape:
            result = run("make", {"shape": shape, "tokenizer": sizes["model"], "into": folder})
            if result.failure:
                sys.exit(result.failure)
            sizes["model"] = folder
        work = Work(kind=kind, **sizes)
        rows = [
            _measured(way, work, shape, limit_s, out, interpreters.get(way))
            for way in ways or _defaults(kind)
        ]
    print(table([("way", *COLUMNS[kind]), *rows]), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="a folder or another model_name_or_path")
    parser.add_argument("--work", dest="kind", choices=sorted(WAYS), default="reference")
    names = sorted({*UNSLOTH, *(way for ways in WAYS.values() for way in ways)})
    parser.add_argument("--ways", nargs="+", choices=names)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape")
    parser.add_argument(
        "--limit_s", type=float, default=240.0, help="time limit per implementation"
    )
    parser.add_argument("--out", type=Path, help="file for one JSON line per implementation")
    parser.add_argument(
        "--unsloth", default=sys.executable, help="Python of an environment with Unsloth"
    )
    for name in SIZES["reference"]:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser


def _defaults(kind: str) -> list[str]:
    return ["shared"] if kind == "shared" else ["ours", "trl"]


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


def _measured(
    way: str,
    work: Work,
    shape: str | None,
    limit_s: float,
    out: Path | None,
    unsloth: str | None,
) -> tuple[str, ...]:
    """Run one implementation; prints its figures and returns its table row.

    ``unsloth`` is the interpreter of Unsloth's ways, ``None`` for the others.
    """
    result = run(way, work._asdict(), limit_s=limit_s, unsloth=unsloth)
    figures = _with_rates(summary(result.steps, work.warm_up), work) if result.steps else {}
    line = {"way": way, "shape": shape, **work._asdict(), **figures, "failure": result.failure}
    if result.failure:
        print(f"{way}: {result.failure}", file=sys.stderr, flush=True)
    print(json.dumps({"way": way, **figures}), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps({**line, "each": result.steps}) + "\n")
    cells = (f"{figures[name]:.3f}" if name in figures else "-" for name in COLUMNS[work.kind])
    return (way, *cells)


def _with_rates(figures: Numbers, work: Work) -> Numbers:
    """Add the time per sampled token and per turn, as implementations sample different amounts."""
    rates = {"s_per_1000_tokens": 1000 * figures["step"] / max(1.0, figures["tokens"])}
    if "turns" in figures:
        rates["s_per_turn"] = figures["step"] / (figures["turns"] * work.replies)
    return {**figures, **rates}


def run(
    way: str,
    arguments: Mapping[str, Any],
    *,
    limit_s: float = 600.0,
    unsloth: str | None = None,
) -> ProcessResult:
    """Run an implementation in a separate process, killed after ``limit_s`` seconds."""
    if unsloth:
        program = [unsloth, str(Path(__file__).with_name("gpu_unsloth.py"))]
    else:
        program = [sys.executable, __file__, "--child"]
    command = [*program, way, json.dumps(arguments)]
    with TemporaryDirectory() as folder:
        out_file, error_file = Path(folder) / "stdout", Path(folder) / "stderr"
        with out_file.open("w") as stdout, error_file.open("w") as stderr:
            # A separate process group, so that subprocesses of the engine are killed too.
            process = subprocess.Popen(
                command,
                stdout=stdout,
                stderr=stderr,
                env={**ENVIRONMENT, **os.environ},
                start_new_session=True,
            )
            failure = _wait(process, limit_s)
        lines = out_file.read_text(errors="replace").splitlines()
        # A library may have printed text without a newline before a step's numbers.
        numbers = [line.split(STEP, 1)[1] for line in lines if STEP in line]
        steps: list[Numbers] = [json.loads(line) for line in numbers]
        stderr_end = error_file.read_text(errors="replace")[-STDERR_CHARS:]
    return ProcessResult(steps, f"{failure}\n{stderr_end}" if failure else "")


def _wait(process: subprocess.Popen[Any], limit_s: float) -> str:
    """The reason of a failure; empty on success."""
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not done after {limit_s:.0f} s; raise --limit_s or reduce --steps"
    return f"ended with status {status}" if status else ""


if __name__ == "__main__":
    main()
