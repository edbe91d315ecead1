"""The attacks of ``make torture`` that TRL's trainer and torchrun can be given too.

    PYTHONPATH=tests/support .venv-trl/bin/python benchmarks/reliability_peers.py --seed 0

A GRPO run of TRL with the embedded policy's weights saves after every step. It is killed, its
newest checkpoint is damaged, its disk is full or its settings change; then it is resumed with
``resume_from_checkpoint``. A result is equal if the final weights have the unbroken run's bytes.
"""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a forked child has one thread

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

from grpo_cl.cli.output import table
from grpo_cl.policy.model.loading import TINY_DIR
from torture.file_operations import Trap, die, fill_disk
from torture.processes import Ended, run_forked

OUT = "out"
STEPS = 4


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    """A reward that any policy can raise."""
    return [sum(ids) / 10_000 for ids in completion_ids]


def train(*, learning_rate: float = 1e-3) -> int:
    """Train in ``OUT``, from its newest checkpoint if it has one."""
    config = GRPOConfig(
        output_dir=OUT,
        max_steps=STEPS,
        save_steps=1,
        learning_rate=learning_rate,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )
    prompts = [f"Ticket {number}: cancel my flight" for number in range(16)]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY_DIR),
        processing_class=AutoTokenizer.from_pretrained(TINY_DIR),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    found = get_last_checkpoint(OUT) if Path(OUT).is_dir() else None
    trainer.train(resume_from_checkpoint=found)
    trainer.save_model(f"{OUT}/final")
    return 0


def weights(folder: Path) -> str | None:
    """The hash of the final weights; None if there are none."""
    file = folder / OUT / "final" / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=8, help="cases of each attack")
    parser.add_argument("--rank", action="store_true", help="train as a rank of torchrun")
    options = parser.parse_args()
    if options.rank:
        sys.exit(train())
    rows: list[tuple[object, ...]] = [("attack", "tried", "equal", "differs", "crashes", "first")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, operations, seconds = unbroken(folder / "whole")
        pair = folder / "pair"
        pair.mkdir()
        launched(pair)
        for attack, attempts in attacks(
            Random(options.seed), operations, options.cases, seconds
        ).items():
            outcomes: Counter[str] = Counter()
            first = ""
            for number, attempt in enumerate(attempts):
                case = folder / f"{attack} {number}"
                case.mkdir()
                ended = attempt(case)
                outcome = "crashes" if ended.status else "differs"
                is_equal = weights(case) == weights(pair if "torchrun" in attack else whole)
                outcome = "equal" if is_equal else outcome
                outcomes[outcome] += 1
                first = first or (last_error(ended) if outcome == "crashes" else "")
                shutil.rmtree(case)
            counts = [outcomes[outcome] for outcome in ("equal", "differs", "crashes")]
            rows.append((attack, sum(counts), *counts, first))
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))


def last_error(ended: Ended) -> str:
    """The last line of a process that names an error."""
    lines = [line for line in ended.errors.splitlines() if "Error: " in line]
    return lines[-1].strip()[:100] if lines else ""


class Unbroken(NamedTuple):
    """A run that nothing interrupts."""

    folder: Path
    operations: list[str]
    """Its file operations."""
    seconds: float


def unbroken(folder: Path) -> Unbroken:
    """Make an unbroken run."""
    folder.mkdir()
    start = time.monotonic()
    trap = Trap(folder / OUT)

    def work() -> int:
        trap.set()
        status = train()
        (folder / "operations").write_text("\n".join(trap.operations))
        return status

    ended = run_forked(work, folder)
    assert ended.status == 0, ended.errors
    seconds = time.monotonic() - start
    return Unbroken(folder, (folder / "operations").read_text().splitlines(), seconds)


Attempt = Callable[[Path], Ended]


def attacks(
    rng: Random, operations: list[str], cases: int, seconds: float
) -> dict[str, Iterator[Attempt]]:
    """The attempts of each attack."""
    count = len(operations)
    kills = (killed(rng.randrange(count)) for _ in range(cases))
    flips = (damaged(name, rng.random(), rng) for name in FLIPPED for _ in range(2))
    return {
        "no attack": iter([lambda folder: run_forked(train, folder)]),
        "SIGKILL at a random time": (stopped(rng.uniform(0, seconds)) for _ in range(cases)),
        "SIGKILL at a file operation": kills,
        "disk full at a file operation": (filled(rng.randrange(count)) for _ in range(cases)),
        "bit flip in the newest checkpoint": flips,
        "newest checkpoint cut short": (damaged(name, None, rng) for name in FLIPPED),
        "learning rate × 10 at the resume": iter([changed]),
        "torchrun --max-restarts, a rank killed": (restarted(rng.random()) for _ in range(2)),
    }


FLIPPED = ("model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state.pth")


def killed(number: int) -> Attempt:
    """Kill a run at a file operation, then resume it."""
    return lambda folder: _again(folder, lambda: Trap(folder / OUT, number, die).set())


def stopped(seconds: float) -> Attempt:
    """Kill a run after some time, then resume it."""

    def attempt(folder: Path) -> Ended:
        run_forked(train, folder, kill_after_s=seconds)
        return run_forked(train, folder)

    return attempt


def filled(number: int) -> Attempt:
    """Fail a file operation for want of space, then resume the run."""
    return lambda folder: _again(folder, lambda: Trap(folder / OUT, number, fill_disk).set())


def _again(folder: Path, prepare: Callable[[], None]) -> Ended:
    def work() -> int:
        prepare()
        return train()

    run_forked(work, folder)
    return run_forked(train, folder)


def damaged(name: str, place: float | None, rng: Random) -> Attempt:
    """Flip a bit of a file of the newest checkpoint, or cut it short; then resume."""

    def attempt(folder: Path) -> Ended:
        _interrupt(folder)
        newest = get_last_checkpoint(str(folder / OUT))
        file = Path(str(newest)) / name
        content = bytearray(file.read_bytes())
        if place is None:
            del content[len(content) // 2 :]
        else:
            content[int(place * len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        return run_forked(train, folder)

    return attempt


def changed(folder: Path) -> Ended:
    """Resume with another learning rate."""
    _interrupt(folder)
    return run_forked(lambda: train(learning_rate=1e-2), folder)


class StepTrap(Trap):
    """Kills the process once the checkpoint of the third step is begun."""

    def _note(self, operation: str) -> None:
        if operation == "os.mkdir checkpoint-3":
            die(operation)


def _interrupt(folder: Path) -> None:
    """Kill a run when its second checkpoint is complete."""

    def work() -> int:
        StepTrap(folder / OUT).set()
        return train()

    run_forked(work, folder)


def restarted(seconds: float) -> Attempt:
    """Kill a rank of two under torchrun, which starts both again."""
    return lambda folder: launched(folder, seconds)


def launched(folder: Path, kill_after_s: float | None = None) -> Ended:
    """Train with two ranks; one is killed that long after the first checkpoint is begun."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    words = [*launch, "--max-restarts=3", str(Path(__file__).resolve()), "--rank"]
    with (folder / "stderr").open("w") as errors:
        launcher = subprocess.Popen(
            [sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=errors
        )
        if kill_after_s is not None:
            while not (folder / OUT / "checkpoint-1").exists() and launcher.poll() is None:
                time.sleep(0.1)
            time.sleep(kill_after_s)
            kill_rank(launcher.pid)
        status = launcher.wait()
    return Ended(status, (folder / "stderr").read_text(errors="replace"))


def kill_rank(launcher: int) -> None:
    """Kill the last of the processes of a launcher."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True, text=True, check=False
    )
    ranks = [int(line) for line in listing.stdout.split()]
    if ranks:
        os.kill(ranks[-1], signal.SIGKILL)


if __name__ == "__main__":
    main()
