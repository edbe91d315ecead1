"""TRL's ``GRPOTrainer`` with our episodes; options not named here are of TRL's ``GRPOConfig``."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser

from grpo_cl.engines.trl.environments import environment_class, environment_row
from grpo_cl.engines.trl.rollouts import Rollouts, reward, rollout_row
from grpo_cl.engines.venue import SHORT, Venue, episode_config
from grpo_cl.errors import ConfigError
from grpo_cl.policy.loading import load_tokenizer, resolve
from grpo_cl.rows import read_table
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Task

Mode = Literal["rollouts", "environments"]
PROGRAM = "python -m grpo_cl.engines.trl"


def make_trainer(
    venue: Venue, tasks: Sequence[Task], settings: GRPOConfig, *, mode: Mode
) -> GRPOTrainer:
    """A trainer of ``venue.config.model_name_or_path`` that learns from ``tasks``.

    In ``rollouts`` this project plays the episodes with the trainer's weights; in ``environments``
    TRL plays them with the domains' tools.
    """
    source = resolve(venue.config.model_name_or_path)
    tokenizer = load_tokenizer(source)
    tokenizer.padding_side = "left"
    if mode == "rollouts":
        rows = [rollout_row(task) for task in tasks]
        played: dict[str, Any] = {
            "rollout_func": Rollouts(venue, tokenizer, tasks),
            "reward_funcs": [reward],
        }
    else:
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"{source.name} has no chat template, and TRL shows tools with it; train it with "
                "--mode rollouts"
            )
        names = dict.fromkeys(task.domain for task in tasks)
        rows = [environment_row(venue, task) for task in tasks]
        played = {"environment_factory": {name: environment_class(venue, name) for name in names}}
    return GRPOTrainer(
        model=source.place,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **played,
    )


def train(words: Sequence[str]) -> None:
    """Train as ``words`` say and save the policy in TRL's ``output_dir``."""
    chosen, others = _parser().parse_known_args(words)
    # A table has its tasks in the order in which they are due.
    defaults = ["--output_dir", "runs/trl", "--shuffle_dataset", str(chosen.train_file is None)]
    (settings,) = TrlParser(GRPOConfig).parse_args_and_config([*defaults, *others])
    names = (*SHORT, "max_new_tokens")
    given = {name: value for name in names if (value := vars(chosen)[name]) is not None}
    options = {"model_name_or_path": chosen.model, "seed": settings.seed, **given}
    if chosen.train_file is not None:
        table = read_table(chosen.train_file)
        options = {"user_strategy": table.user, **options}
        tasks = table.tasks
    else:
        options |= {"task_order": chosen.domains, "max_tasks_per_domain": chosen.max_tasks}
        loader = TaskDataLoader(episode_config(options))
        tasks = [task for name in chosen.domains for task in loader.train_tasks(name)]
    trainer = make_trainer(Venue(episode_config(options)), tasks, settings, mode=chosen.mode)
    trainer.train()
    trainer.save_model()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--domains", nargs="+", metavar="DOMAIN", help="train on their own tasks")
    given.add_argument("--train_file", type=Path, help="a table of grpo-cl prepare-data or plan")
    parser.add_argument("--model", "--model_name_or_path", required=True)
    parser.add_argument("--mode", choices=("rollouts", "environments"), default="rollouts")
    parser.add_argument("--max_tasks", type=int, help="training tasks of each of --domains")
    parser.add_argument("--max_new_tokens", type=int, help="of one reply, in --mode rollouts")
    for name in SHORT:
        kind = int if name == "max_turns" else str
        parser.add_argument(f"--{name}", type=kind, help=".".join(SHORT[name]))
    return parser
