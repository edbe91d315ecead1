"""``grpo-cl submit``, ``verify-submission`` and ``leaderboard``: results that others can check."""

import argparse

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command


def add_submit(parser: Parser) -> None:
    """Add the options of ``submit``."""
    parser.add_argument(
        "source",
        type=values.input_dir,
        metavar="RUN_OR_CAMPAIGN",
        help="the directory of a finished run, or of a campaign",
    )
    parser.add("--name", type=values.text, help="its name on the leaderboard; default: as it is")
    parser.add(
        "--out",
        type=values.output_file,
        metavar="FILE",
        help="file to write, compressed if it ends in .gz; default: submission.json in the "
        "current directory",
    )
    parser.set_defaults(run=command("submission", "submit"))


def add_verify(parser: Parser) -> None:
    """Add the options of ``verify-submission``."""
    parser.add_argument("file", type=values.input_file, metavar="FILE", help="a submission")
    parser.add_argument(
        "source",
        type=values.input_dir,
        nargs="?",
        metavar="RUN_OR_CAMPAIGN",
        help="its directory: its episodes are scored again",
    )
    parser.set_defaults(run=command("submission", "verify"))


def add_leaderboard(parser: Parser) -> None:
    """Add the options of ``leaderboard``."""
    parser.add_argument(
        "files", type=values.input_file, nargs="+", metavar="FILE", help="submissions"
    )
    parser.add(
        "--out",
        type=values.output_file,
        metavar="FILE",
        help="file of the page; default: standard output",
    )
    parser.set_defaults(run=command("submission", "print_leaderboard"))


def submit(arguments: argparse.Namespace) -> int:
    """Write the submission of a run or a campaign."""
    from pathlib import Path

    from grpo_cl.campaigns.submission import pack, write_submission
    from grpo_cl.cli.output import printable

    submission = pack(arguments.source, name=arguments.name)
    out = arguments.out or Path("submission.json")
    write_submission(submission, out)
    print(f"{len(submission.runs)} run(s) written to {out}")
    for run in submission.missing:
        order = " → ".join(run.order)
        print(printable(f"missing: {run.label}, {order}, seed {run.seed}: {run.reason}"))
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Print what was checked and every difference; returns 1 if there is one."""
    from grpo_cl.campaigns.submission import Submission
    from grpo_cl.campaigns.verification import verify as verify_submission
    from grpo_cl.cli.output import printable

    found = verify_submission(Submission.load(arguments.file), arguments.source)
    for sentence in found.checked:
        print(printable(f"checked: {sentence}"))
    for sentence in found.differences:
        print(printable(f"differs: {sentence}"))
    print(f"{len(found.differences)} difference(s)")
    return int(bool(found.differences))


def print_leaderboard(arguments: argparse.Namespace) -> int:
    """Write or print the leaderboard of submissions."""
    from grpo_cl.campaigns.leaderboard import leaderboard
    from grpo_cl.campaigns.submission import Submission
    from grpo_cl.storage.files import write_file

    page = leaderboard([Submission.load(path) for path in arguments.files])
    if arguments.out is None:
        print(page, end="")
    else:
        write_file(arguments.out, [page])
    return 0
