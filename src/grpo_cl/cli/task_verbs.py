"""Options of ``grpo-cl tasks``, ``play`` and ``score``."""

from grpo_cl.cli import values
from grpo_cl.cli.parser import (
    Parser,
    add_data_dir,
    add_generator_options,
    add_task_selection,
    add_tools,
    command,
)


def add_tasks(parser: Parser) -> None:
    """Add the options of ``tasks``."""
    listing, show, check, generate = parser.add_verbs(
        {
            "list": "list the tasks of a split, one per line",
            "show": "show one task as text or JSON",
            "check": "score gold solutions, doing nothing, and a transfer",
            "generate": "generate verified tasks as a τ² task file",
        }
    )
    add_task_selection(listing, split="test")
    listing.add("--count", type=values.positive, metavar="N", help="at most N tasks per domain")
    listing.set_defaults(run=command("tasks", "list_tasks"))
    show.add_argument("task", type=values.text, help="id of a task, also of a generated one")
    add_task_selection(show, split=None, num_domains=1)  # `--domain airline ID` has one domain
    show.set_defaults(run=command("tasks", "show_task"))
    add_task_selection(check, split=None)
    check.add(
        "--generated",
        type=values.count,
        default=0,
        metavar="N",
        help="also check N generated tasks",
    )
    add_generator_options(check)
    check.set_defaults(run=command("tasks", "check_tasks"))
    add_task_selection(generate, split="train")
    generate.add(
        "--count", type=values.positive, default=100, metavar="N", help="tasks of each domain"
    )
    add_generator_options(generate)
    generate.add(
        "--out",
        type=values.output_file,
        metavar="FILE",
        help="file to write; default: standard output",
    )
    generate.set_defaults(run=command("tasks", "generate_tasks"))


def add_play(parser: Parser) -> None:
    """Add the options of ``play``."""
    add_task_selection(parser, split="test")
    parser.add(
        "--task",
        type=values.text,
        metavar="ID",
        help="id of the task; default: the first of the split",
    )
    parser.add(
        "--user", type=values.text, default="scripted", help="user strategy: scripted or solo"
    )
    parser.add("--scripted", action="store_true", help="show an episode of the gold solution")
    parser.add(
        "--count", type=values.positive, metavar="N", help="run N tasks per domain and print scores"
    )
    parser.add(
        "--max_turns", type=values.positive, metavar="N", help="maximum number of agent replies"
    )
    parser.set_defaults(run=command("play", "play"))


def add_score(parser: Parser) -> None:
    """Add the options of ``score``."""
    parser.add_argument(
        "source",
        type=values.input_path,
        metavar="FILE_OR_RUN",
        help="a run or checkpoint directory, its trajectories, an export, τ² results, recordings",
    )
    parser.add(
        "--basis",
        choices=("tau2", "judge_free"),
        help="judge_free replaces natural-language assertions by COMMUNICATE; default: as recorded",
    )
    parser.add(
        "--judge", type=values.text, metavar="MODEL", help="model that judges these assertions"
    )
    parser.add(
        "--judge_base_url", type=values.text, metavar="URL", help="endpoint of the judge model"
    )
    add_tools(parser)
    add_data_dir(parser)
    parser.set_defaults(run=command("recordings", "score"))
