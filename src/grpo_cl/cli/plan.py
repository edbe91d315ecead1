"""``grpo-cl plan``: a run's schedule as files that other engines train from."""

import argparse

from grpo_cl.cli.options import read_config
from grpo_cl.cli.world import table
from grpo_cl.plans import write_plan
from grpo_cl.plans.scripts import ENGINES


def plan(arguments: argparse.Namespace) -> int:
    """Write the plan of a run and show its stages."""
    written = write_plan(read_config(arguments.settings), arguments.out)
    rows: list[list[object]] = [["stage", "steps", "tasks", "begins with"]]
    for stage in written.stages:
        mix = ", ".join(f"{domain} {count}" for domain, count in stage.mix.items())
        rows.append([stage.name, stage.steps, mix, stage.checkpoint_in])
    print(table(rows))
    scripts = ", ".join(f"{engine}.sh" for engine in ENGINES)
    print(f"written to {arguments.out}; start one of {scripts} there")
    return 0
