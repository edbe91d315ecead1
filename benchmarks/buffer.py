"""Loading a saved trajectory buffer: time and peak memory, beside parsing the whole document.

    python benchmarks/buffer.py [--plain_up_to N] [EPISODES ...]

Every measurement runs in a process of its own. The plain way parses the JSON document and validates
every episode. The buffer indexes the lines of the file, and reads an episode when it is drawn.
Times are those of the processor, which other processes change less than the clock.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from grpo_cl.config import GRPOConfig
from grpo_cl.runs.reservoir import Experience
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.types import (
    Message,
    Reward,
    Task,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
    UserScenario,
)

NUM_TOKENS = 64
NUM_TASKS = 500
NUM_DRAWS = 1000
WAYS = ("plain", "buffer")


def groups(rng: Random) -> list[TrajectoryGroup]:
    """Groups of four short episodes with token ids and log-probs."""
    found: list[TrajectoryGroup] = []
    for number in range(NUM_TASKS):
        scenario = UserScenario(instructions="Cancel the reservation.")
        task = Task(id=f"task-{number}", domain="airline", user_scenario=scenario)
        trace = TokenTrace(
            ids=tuple(rng.randrange(50_000) for _ in range(NUM_TOKENS)),
            mask=(True,) * NUM_TOKENS,
            logprobs=tuple(-rng.random() for _ in range(NUM_TOKENS)),
            turns=((0, NUM_TOKENS),),
        )
        messages = (
            Message(role="user", content="Cancel it."),
            Message(role="assistant", content="Done."),
        )
        trajectory = Trajectory(
            task=task, messages=messages, tokens=trace, termination=Termination.AGENT_STOP
        )
        values = [float(rng.random() < 0.5) for _ in range(4)]
        rewards = [Reward(value=value, basis=None, basis_name="tau2") for value in values]
        found.append(
            TrajectoryGroup(
                task=task,
                trajectories=(trajectory,) * 4,
                rewards=tuple(rewards),
                training_rewards=tuple(values),
            )
        )
    return found


def write(path: Path, count: int) -> None:
    """Save a buffer of ``count`` episodes."""
    buffer = TrajectoryBuffer(GRPOConfig(replay_buffer_size=count))
    made = groups(Random(0))
    for step in range(count // 4):
        buffer.add(made[step % NUM_TASKS], step)
    buffer.save(path)


def measure(way: str, path: Path) -> None:
    """Load the file, and print the seconds and the peak memory of the process."""
    started = time.process_time()
    if way == "plain":
        document = json.loads(path.read_bytes())
        domains = document["domains"].values()
        records = [Experience.model_validate(r) for each in domains for r in each["records"]]
        draw = lambda: records[0]  # noqa: E731
    else:
        buffer = TrajectoryBuffer(GRPOConfig())
        buffer.load(path)
        draw = lambda: buffer.sample("airline", 1)  # noqa: E731
    loaded_s = time.process_time() - started
    for _ in range(NUM_DRAWS):
        draw()
    draw_s = (time.process_time() - started - loaded_s) / NUM_DRAWS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"load_s": loaded_s, "draw_s": draw_s, "peak_mb": peak / 1024}))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", nargs="*", type=int, default=[200_000, 1_000_000])
    parser.add_argument("--plain_up_to", type=int, default=200_000)
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure[0], Path(arguments.measure[1]))
        return
    print("| episodes | file, MB | way | load, CPU s | peak memory, MB | draw, CPU ms |")
    print("|---|---|---|---|---|---|")
    for count in arguments.episodes:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trajectories.json"
            write(path, count)
            for way in WAYS if count <= arguments.plain_up_to else WAYS[1:]:
                command = [sys.executable, __file__, "--measure", way, str(path)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = json.loads(done.stdout)
                size = path.stat().st_size / 1e6
                numbers = f"{row['load_s']:.1f} | {row['peak_mb']:.0f} | {1e3 * row['draw_s']:.2f}"
                print(f"| {count:,} | {size:.0f} | {way} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
