r"""What goes on while the policy is updated: rollouts of the next step, and checkpoints.

    python benchmarks/overlap.py rollouts [--model tiny] [--domain retail] [--steps 10] [--seeds 3]
    python benchmarks/overlap.py rollouts --server http://127.0.0.1:8000 --model MODEL
    python benchmarks/overlap.py saves [--model tiny] [--domain retail] [--steps 8] [--folder DIR]
    python benchmarks/overlap.py checkpoints [--parameters 135e6] [--saves 5] [--folder DIR]

``rollouts`` trains the same steps with sampling.max_staleness 0 and 1 over one ``grpo-cl serve``,
a process of its own, or over the --server that is running. ``saves`` trains the same steps without
a checkpoint, and with one after each step: with everything done before the next step, and with
fsync, checksums and rename in a thread. Further arguments of both are settings of the runs.
``checkpoints`` does not train: it writes weights and both moments of AdamW in float32, and prints
how long a save in these two ways holds up training.

The first step is the warm-up. "GPU idle" is the share of time without a running kernel, from the
start of the second step to the start of the last one, with what is done between the steps: 1 − the
mean utilization that NVML reports for GPU 0, read ten times a second. NVML's utilization is the
share of its last sample period (1/6 to 1 second) in which a kernel of any process ran, so other
programs on the GPU count too. Without NVML the column has a dash.
"""

import argparse
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from typing_extensions import override

from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.checkpoints import CheckpointPublisher, draft_checkpoint, save_checkpoint
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.run_log import Position
from served_model import served_model

TENSORS = 64
"""Tensors of a file of a checkpoint."""
READ_INTERVAL_S = 0.1
LEAST_STEPS = 3
"""The first one is the warm-up, and the last one ends the time that is measured."""


class Reading(NamedTuple):
    """The utilization of a GPU at a time of ``time.monotonic``."""

    time: float
    utilization: float


class _Utilization(ctypes.Structure):
    """``nvmlUtilization_t``, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@contextmanager
def gpu_readings() -> Generator[list[Reading]]:
    """NVML's readings for GPU 0 until the block ends; without NVML there are none."""
    readings: list[Reading] = []
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        print(f"GPU idle is not measured: {error}", file=sys.stderr)
        yield readings
        return
    device, is_over = ctypes.c_void_p(), threading.Event()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(device))

    def read() -> None:
        now = _Utilization()
        while not is_over.wait(READ_INTERVAL_S):
            if nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(now)) == 0:
                readings.append(Reading(time.monotonic(), now.gpu / 100))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield readings
    finally:
        is_over.set()
        thread.join()


def idle_share(readings: Sequence[Reading], starts: Sequence[Sequence[float]]) -> str:
    """1 − the mean utilization from the second to the last start of a step, over some runs."""
    values = [
        reading.utilization
        for reading in readings
        if any(begins[1] <= reading.time < begins[-1] for begins in starts)
    ]
    return f"{1 - fmean(values):.0%}" if values else "–"


class TimedTrainer(GRPOTrainer):
    """Records when each step starts."""

    def __init__(self, config: GRPOConfig, *, publishes_first: bool = False) -> None:
        super().__init__(config)
        self.starts: list[float] = []
        self._publishes_first = publishes_first

    @override
    def train_step(self, domain: str) -> dict[str, float]:
        if self._publishes_first:
            self.run_log.wait_for_checkpoints()
        self.starts.append(time.monotonic())
        return super().train_step(domain)


def train(
    config: GRPOConfig, *, publishes_first: bool = False, until: Position | None = None
) -> list[float]:
    """Train a run and return the times at which its steps start."""
    with redirect_stdout(sys.stderr):
        trainer = TimedTrainer(config, publishes_first=publishes_first)
        trainer.train(until=until)
    starts = trainer.starts
    del trainer
    gc.collect()
    torch.cuda.empty_cache()  # the next run finds as much free memory
    return starts


def step_times(config: GRPOConfig) -> list[dict[str, Any]]:
    """The wall times of a run's steps but the first."""
    lines = read_journal(RunDir(config.log_dir).times_journal)
    return [line for line in lines if "rollout_s" in line][1:]


def spread(values: Sequence[float]) -> str:
    """The median with the range in brackets."""
    return f"{median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


@contextmanager
def _server(arguments: argparse.Namespace, weights_dir: str) -> Generator[str]:
    if arguments.server:
        yield arguments.server
        return
    with served_model(arguments.model, "--weights_dir", weights_dir) as server:
        yield server.url


def rollouts(arguments: argparse.Namespace, settings: list[str]) -> None:
    """Print the times of the steps but the first, which is on-policy, and what was learned."""
    rows: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    gains: dict[int, list[float]] = {0: [], 1: []}
    starts: dict[int, list[list[float]]] = {0: [], 1: []}
    with (
        TemporaryDirectory() as folder,
        _server(arguments, folder) as url,
        gpu_readings() as readings,
    ):
        for seed in range(arguments.seeds):
            for staleness in rows:
                sampling = {
                    "engine": "server",
                    "servers": [url.removesuffix("/v1")],
                    "max_staleness": staleness,
                }
                base = _base(arguments, Path(folder) / f"{seed}_{staleness}")
                config = read_config(settings, base | {"seed": seed, "sampling": sampling})
                starts[staleness].append(train(config))
                rows[staleness] += step_times(config)
                matrix = RMatrix.load(RunDir(config.log_dir).r_matrix)
                before, after = (row.cells[arguments.domain].mean for row in matrix.rows)
                gains[staleness].append(after - before)
    print(
        "| max_staleness | s per step | waits for rollouts | rollouts | update | GPU idle | gain |"
    )
    print("|---|---|---|---|---|---|---|")
    for staleness, lines in rows.items():
        names = ("step_s", "rollout_s", "play_s", "update_s")
        numbers = " | ".join(spread([line[name] for line in lines]) for name in names)
        idle = idle_share(readings, starts[staleness])
        gained = ", ".join(f"{gain:+.3f}" for gain in gains[staleness])
        print(f"| {staleness} | {numbers} | {idle} | {gained} |")


def saves(arguments: argparse.Namespace, settings: list[str]) -> None:
    """Print the times from step to step, with the checkpoint between them, for ways to save."""
    steps: int = arguments.steps
    ways = {"none": steps + 1, "before the next step": 1, "in a thread": 1}
    print("| checkpoint | s from step to step | of which the step | GPU idle |\n|---|---|---|---|")
    with TemporaryDirectory(dir=arguments.folder) as folder:
        for way, interval in ways.items():
            logging = {"trackers": [], "save_interval": interval, "keep_checkpoints": 1}
            base = _base(arguments, Path(folder) / way.replace(" ", "_"))
            base |= {"logging": logging, "evaluation": {"max_tasks": 1}}
            config = read_config(settings, base)
            with gpu_readings() as readings:
                starts = train(
                    config,
                    publishes_first=way == "before the next step",
                    until=Position(stage=0, step=steps),
                )
            periods = [end - begin for begin, end in pairwise(starts[1:])]
            step_s = [line["step_s"] for line in step_times(config)[:-1]]
            idle = idle_share(readings, [starts])
            print(f"| {way} | {spread(periods)} | {spread(step_s)} | {idle} |", flush=True)


def _base(arguments: argparse.Namespace, log_dir: Path) -> dict[str, Any]:
    return {
        "model_name_or_path": arguments.model,
        "task_order": [arguments.domain],
        "num_steps_per_task": arguments.steps,
        "log_dir": str(log_dir),
        "logging": {"trackers": []},
    }


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


def main(words: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("rollouts")
    one.add_argument("--server", help="URL of a running server of the model (docs/serving.md)")
    one.add_argument("--seeds", type=int, default=3)
    two = kinds.add_parser("saves")
    two.add_argument("--folder", type=Path, help="where; the disk is measured")
    for each, steps in ((one, 10), (two, 8)):
        each.add_argument("--model", default="tiny")
        each.add_argument("--domain", default="retail")
        each.add_argument("--steps", type=int, default=steps)
    other = kinds.add_parser("checkpoints")
    other.add_argument("--parameters", type=float, default=135e6)
    other.add_argument("--saves", type=int, default=5)
    other.add_argument("--folder", type=Path, help="where; the disk is measured")
    arguments, settings = parser.parse_known_args(words)
    if arguments.kind == "checkpoints":
        checkpoints(arguments)
        return
    if arguments.steps < LEAST_STEPS:
        parser.error(f"--steps {arguments.steps}: at least {LEAST_STEPS}, see --help")
    measure = rollouts if arguments.kind == "rollouts" else saves
    measure(arguments, settings)


if __name__ == "__main__":
    main()
