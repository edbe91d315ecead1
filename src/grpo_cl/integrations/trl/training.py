"""Train with TRL's ``GRPOTrainer``; all other options are those of TRL's ``GRPOConfig``."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser

from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import SHORT_OPTIONS, EpisodeContext, episode_config
from grpo_cl.integrations.rows import read_table
from grpo_cl.integrations.trl.environments import environment_class, environment_row
from grpo_cl.integrations.trl.rollouts import RolloutFunction, reward, rollout_row
from grpo_cl.policy.model.loading import load_tokenizer, resolve
from grpo_cl.types import Task

Mode = Literal["rollouts", "environments"]
PROGRAM = "python -m grpo_cl.integrations.trl"


def make_trainer(
    context: EpisodeContext, tasks: Sequence[Task], settings: GRPOConfig, *, mode: Mode
) -> GRPOTrainer:
    """A trainer of ``context.config.model_name_or_path`` on ``tasks``.

    With ``rollouts`` this project runs the episodes with the trainer's weights; with
    ``environments`` TRL runs them with the domains' tools.
    """
    source = resolve(context.config.model_name_or_path)
    tokenizer = load_tokenizer(source)
    tokenizer.padding_side = "left"
    if mode == "rollouts":
        rows = [rollout_row(task) for task in tasks]
        episode_arguments: dict[str, Any] = {
            "rollout_func": RolloutFunction(context, tokenizer, tasks),
            "reward_funcs": [reward],
        }
    else:
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"{source.name} has no chat template, which TRL needs to render tools; train it "
                "with --mode rollouts"
            )
        names = dict.fromkeys(task.domain for task in tasks)
        rows = [environment_row(context, task) for task in tasks]
        episode_arguments = {
            "environment_factory": {name: environment_class(context, name) for name in names}
        }
    return GRPOTrainer(
        model=source.place,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **episode_arguments,
    )


def train(argv: Sequence[str]) -> None:
    """Parse the options, train, and save the policy in TRL's ``output_dir``."""
    arguments, trl_options = _parser().parse_known_args(argv)
    # The rows of a table are in schedule order.
    defaults = ["--output_dir", "runs/trl", "--shuffle_dataset", str(arguments.train_file is None)]
    (settings,) = TrlParser(GRPOConfig).parse_args_and_config([*defaults, *trl_options])
    names = (*SHORT_OPTIONS, "max_new_tokens")
    overrides = {name: value for name in names if (value := vars(arguments)[name]) is not None}
    options = {"model_name_or_path": arguments.model, "seed": settings.seed, **overrides}
    if arguments.train_file is not None:
        table = read_table(arguments.train_file)
        options = {"user_strategy": table.user, **options}
        tasks = table.tasks
    else:
        options |= {"task_order": arguments.domains, "max_tasks_per_domain": arguments.max_tasks}
        loader = TaskDataLoader(episode_config(options))
        tasks = [task for name in arguments.domains for task in loader.train_tasks(name)]
    trainer = make_trainer(
        EpisodeContext(episode_config(options)), tasks, settings, mode=arguments.mode
    )
    trainer.train()
    trainer.save_model()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--domains",
        nargs="+",
        metavar="DOMAIN",
        help="train on the training tasks of these domains",
    )
    source.add_argument(
        "--train_file", type=Path, help="parquet file of grpo-cl prepare-data or grpo-cl plan"
    )
    parser.add_argument("--model", "--model_name_or_path", required=True)
    parser.add_argument("--mode", choices=("rollouts", "environments"), default="rollouts")
    parser.add_argument("--max_tasks", type=int, help="training tasks per domain of --domains")
    parser.add_argument(
        "--max_new_tokens", type=int, help="token limit of one reply, in --mode rollouts"
    )
    for name in SHORT_OPTIONS:
        value_type = int if name == "max_turns" else str
        parser.add_argument(f"--{name}", type=value_type, help=".".join(SHORT_OPTIONS[name]))
    return parser
