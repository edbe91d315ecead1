"""``grpo-cl import-run``: what an engine trained by a plan, as a run directory with a report."""

import argparse
from pathlib import Path

from grpo_cl.cli.train import show_matrix
from grpo_cl.errors import ConfigError
from grpo_cl.intake import find_model, import_run
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.plans import EngineRun, read_plan
from grpo_cl.report import write_report
from grpo_cl.rundir import RunDir


def import_from_engine(arguments: argparse.Namespace) -> int:
    """Write the run directory and its report, or only say where a stage's model is."""
    if arguments.checkpoint is not None:
        print(_checkpoint(arguments.plan, arguments.run_dir, arguments.checkpoint))
        return 0
    if arguments.out is None:
        raise ConfigError("name the directory to write with --out DIR")
    import_run(arguments.plan, arguments.run_dir, arguments.out, evaluate=arguments.evaluate)
    print(show_matrix(RMatrix.load(RunDir(arguments.out).r_matrix)))
    print(f"report: {write_report(arguments.out)}")
    return 0


def _checkpoint(plan: Path, run: Path, name: str) -> Path:
    names = [stage.name for stage in read_plan(plan).plan.stages]
    if name not in names:
        raise ConfigError(f"no stage {name!r} in the plan; its stages are {', '.join(names)}")
    return find_model(EngineRun(run).model_dir(name))
