"""``grpo-cl push``: upload a trained model to a Hugging Face repository."""

import argparse

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command


def add_options(parser: Parser) -> None:
    """Add the options of ``push``."""
    parser.add_argument(
        "path",
        type=values.input_dir,
        metavar="RUN",
        help="a run, for its last model, or a stage of one (RUN/checkpoint_task_N)",
    )
    parser.add_argument(
        "repository", type=values.text, metavar="OWNER/NAME", help="created if it does not exist"
    )
    parser.add(
        "--base_model",
        type=values.text,
        metavar="OWNER/NAME",
        help="the repository of the base model, where the run started from a local directory",
    )
    parser.add("--private", action="store_true", help="create a private repository")
    parser.add("--dry_run", action="store_true", help="verify and list the files, upload nothing")
    parser.set_defaults(run=command("push", "push"))


def push(arguments: argparse.Namespace) -> int:
    """Verify the model, upload it, and print its address."""
    from grpo_cl.integrations import hub

    hub.require_repository(arguments.repository)
    if arguments.base_model is not None:
        hub.require_repository(arguments.base_model)
    upload = hub.prepare_upload(arguments.path, base_model=arguments.base_model)
    if arguments.dry_run:
        print(f"{arguments.repository} would get, from {upload.model_dir}:")
        print("\n".join(f"  {name}" for name in upload.contents))
        return 0
    print(hub.push(upload, arguments.repository, is_private=arguments.private))
    return 0
