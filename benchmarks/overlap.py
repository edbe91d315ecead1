r"""What goes on while the policy is updated: rollouts of the next step, and checkpoints.

    python benchmarks/overlap.py rollouts [--model tiny] [--domain retail] [--steps 10] [--seeds 3]
    python benchmarks/overlap.py checkpoints [--parameters 135e6] [--saves 5] [--folder DIR]

``rollouts`` trains the same steps with sampling.max_staleness 0 and 1 over one ``grpo-cl serve``,
a process of its own; further arguments are settings of the runs. ``checkpoints`` writes
weights and both moments of AdamW in float32, and prints how long a save holds up training: with
everything done before the next step, and with fsync, checksums and rename in a thread.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from grpo_cl.cli.options import read_config
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.checkpoints import CheckpointPublisher, draft_checkpoint, save_checkpoint
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from served_model import served_model

TENSORS = 64
"""Tensors of a file of a checkpoint."""


def spread(values: Sequence[float]) -> str:
    """The median with the range in brackets."""
    return f"{median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def rollouts(arguments: argparse.Namespace, settings: list[str]) -> None:
    """Print the times of the steps but the first, which is on-policy, and what was learned."""
    rows: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    gains: dict[int, list[float]] = {0: [], 1: []}
    with (
        TemporaryDirectory() as folder,
        served_model(arguments.model, "--weights_dir", folder) as server,
    ):
        url = server.url.removesuffix("/v1")
        for seed in range(arguments.seeds):
            for staleness in rows:
                base = {
                    "model_name_or_path": arguments.model,
                    "task_order": [arguments.domain],
                    "num_steps_per_task": arguments.steps,
                    "seed": seed,
                    "log_dir": str(Path(folder) / f"{seed}_{staleness}"),
                    "sampling": {"engine": "server", "servers": [url], "max_staleness": staleness},
                    "logging": {"trackers": []},
                }
                config = read_config(settings, base)
                with redirect_stdout(sys.stderr):
                    GRPOTrainer(config).train()
                run = RunDir(config.log_dir)
                times = [line for line in read_journal(run.times_journal) if "rollout_s" in line]
                rows[staleness] += times[1:]
                matrix = RMatrix.load(run.r_matrix)
                before, after = (row.cells[arguments.domain].mean for row in matrix.rows)
                gains[staleness].append(after - before)
    print("| max_staleness | s per step | waits for rollouts | rollouts | update | gain |")
    print("|---|---|---|---|---|---|")
    for staleness, lines in rows.items():
        names = ("step_s", "rollout_s", "play_s", "update_s")
        numbers = " | ".join(spread([line[name] for line in lines]) for name in names)
        gained = ", ".join(f"{gain:+.3f}" for gain in gains[staleness])
        print(f"| {staleness} | {numbers} | {gained} |")


def checkpoints(arguments: argparse.Namespace) -> None:
    """Print the seconds for which each way of saving holds up training."""
    size = int(arguments.parameters) // TENSORS
    tensors = {f"layer{index}": torch.randn(size) for index in range(TENSORS)}

    def fill(folder: Path) -> None:
        for name in ("weights", "exp_avg", "exp_avg_sq"):
            save_file(tensors, folder / f"{name}.safetensors")

    def timed(save: Callable[[], object]) -> float:
        started = time.perf_counter()
        save()
        return time.perf_counter() - started

    held_up: dict[str, list[float]] = {"before the next step": [], "in a thread": []}
    with TemporaryDirectory(dir=arguments.folder) as folder:
        publisher, parent = CheckpointPublisher(), Path(folder)
        for number in range(arguments.saves):
            name = f"step_{2 * number:08d}"
            whole = timed(lambda name=name: save_checkpoint(parent, name, fill, keep=1))
            held_up["before the next step"].append(whole)
            name = f"step_{2 * number + 1:08d}"
            part = timed(
                lambda name=name: publisher.save(
                    lambda: draft_checkpoint(parent, name, fill, keep=1)
                )
            )
            held_up["in a thread"].append(part)
            publisher.wait()
    gib = 3 * 4 * size * TENSORS / 2**30
    print(f"| published, {gib:.1f} GiB | training waits, s |\n|---|---|")
    for way, seconds in held_up.items():
        print(f"| {way} | {spread(seconds)} |")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("rollouts")
    one.add_argument("--model", default="tiny")
    one.add_argument("--domain", default="retail")
    one.add_argument("--steps", type=int, default=10)
    one.add_argument("--seeds", type=int, default=3)
    other = kinds.add_parser("checkpoints")
    other.add_argument("--parameters", type=float, default=135e6)
    other.add_argument("--saves", type=int, default=5)
    other.add_argument("--folder", type=Path, help="where; the disk is measured")
    arguments, settings = parser.parse_known_args()
    if arguments.kind == "rollouts":
        rollouts(arguments, settings)
    else:
        checkpoints(arguments)


if __name__ == "__main__":
    main()
