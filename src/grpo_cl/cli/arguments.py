"""Options of the commands; their functions are imported when a command runs."""

from pathlib import Path

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, add_data_dir, add_tools, command


def add_train(parser: Parser) -> None:
    """Add the options of ``train``."""
    parser.take_settings(all_shown=True)
    parser.set_defaults(run=command("train", "train"))


def add_evaluate(parser: Parser) -> None:
    """Add the options of ``evaluate``."""
    parser.add_argument(
        "path",
        nargs="?",
        type=values.text,
        metavar="RUN",
        help="a run, or the end of one of its stages, RUN/checkpoint_task_N; its settings are used",
    )
    parser.add(
        "--model",
        type=values.text,
        metavar="PROVIDER/MODEL",
        help="a hosted model, such as openai/gpt-4o, instead of a policy",
    )
    parser.add("--base_url", type=values.text, metavar="URL", help="endpoint of the hosted model")
    parser.add("--out", type=values.output_file, metavar="FILE", help="write the results as JSON")
    parser.add(
        "--every_stage",
        action="store_true",
        help="evaluate the initial policy and every stage of RUN: its R-matrix on other tasks",
    )
    parser.add(
        "--domain", nargs="+", type=values.text, metavar="NAME", help="the same as --task_order"
    )
    parser.add("--user", type=values.text, metavar="NAME", help="the same as --rollout.user")
    parser.take_settings(
        "model_name_or_path",
        "seed",
        "evaluation.trials",
        "evaluation.max_tasks",
        "evaluation.generated",
    )
    parser.set_defaults(run=command("train", "evaluate"))


def add_demo(parser: Parser) -> None:
    """Add the options of ``demo``."""
    parser.add(
        "--log_dir",
        type=values.output_dir,
        default=Path("runs/demo"),
        metavar="DIR",
        help="run directory; if it exists, a number is added",
    )
    parser.take_settings(
        "seed",
        "num_steps_per_task=8",
        "evaluation.generated=20",
        "learning_rate=0.000425",
        "cl_algorithm",
        "task_order",
    )
    parser.set_defaults(run=command("demo", "demo"))


def add_report(parser: Parser) -> None:
    """Add the options of ``report``."""
    parser.add_argument(
        "run_dir",
        type=values.input_dir,
        metavar="RUN",
        help="a run directory; report.html and episodes.html are written into it",
    )
    parser.set_defaults(run=command("train", "report"))


def add_fetch_model(parser: Parser) -> None:
    """Add the options of ``fetch-model``."""
    parser.add_argument(
        "name",
        type=values.text,
        help="name of the model: smollm2-135m, gemma-3-270m or tinyllama-1.1b",
    )
    parser.add(
        "--out",
        type=values.output_dir,
        metavar="DIR",
        help="where it is saved; default: a folder in the user cache",
    )
    parser.set_defaults(run=command("train", "fetch"))


def add_sft(parser: Parser) -> None:
    """Add the options of ``sft``."""
    parser.add(
        "--domain",
        nargs="+",
        type=values.text,
        metavar="NAME",
        help="domains of the demonstrations; default: airline retail telecom",
    )
    parser.add(
        "--count",
        nargs="+",
        type=values.count,
        help="tasks per domain and difficulty: one value, or one for each domain; default: 1000",
    )
    parser.add(
        "--own",
        type=values.count,
        help="own training tasks of each domain that are drawn besides, once for all difficulties; "
        "those without a demonstration are left out, or drawn again with --fresh; default: 0",
    )
    parser.add(
        "--fresh",
        action="store_true",
        help="new tasks in every batch; the values of --count are the ratio of the domains",
    )
    parser.add(
        "--difficulty",
        nargs="+",
        type=values.share,
        metavar="0..1",
        help="difficulties, for all domains; default: tasks.difficulty",
    )
    parser.add("--steps", type=values.count, help="optimizer steps; default: 300")
    parser.add("--batch_size", type=values.positive, help="demonstrations per step; default: 16")
    parser.add("--seed", type=values.seed, help="seed of demonstrations and weights; default: 0")
    parser.add(
        "--workers",
        type=values.positive,
        help="processes that generate demonstrations; default: 2",
    )
    parser.add(
        "--log_interval", type=values.positive, help="steps between printed losses; default: 50"
    )
    parser.add(
        "--save_interval", type=values.positive, help="steps between checkpoints; default: 200"
    )
    parser.add(
        "--mistakes",
        type=values.share,
        metavar="0..1",
        help="fraction of demonstrations with an injected error",
    )
    parser.add("--new_tiny", action="store_true", help="start from a new, untrained tiny policy")
    parser.add(
        "--width", type=values.positive, help="hidden size of a new tiny policy; default: 256"
    )
    parser.add("--layers", type=values.positive, help="layers of a new tiny policy; default: 6")
    parser.add(
        "--context",
        type=values.positive,
        metavar="N",
        help="extend the context to N tokens (RoPE scaling)",
    )
    parser.add("--out", type=values.output_dir, metavar="DIR", help="where the model is saved")
    parser.add(
        "--overwrite",
        action="store_true",
        help="replace a model that is in --out, once the new one is complete",
    )
    parser.add(
        "--resume_from",
        type=values.input_dir,
        metavar="DIR",
        help="continue the fine-tuning of this --out, with its settings",
    )
    parser.take_settings("model_name_or_path", "learning_rate=0.0001", "lora.r", "rollout.prompt")
    parser.set_defaults(run=command("sft", "sft"))


def add_serve(parser: Parser) -> None:
    """Add the options of ``serve``."""
    parser.add_argument(
        "model", type=values.text, help="a model, a checkpoint, a run directory, or tiny"
    )
    parser.add(
        "--host",
        type=values.text,
        default="127.0.0.1",
        help="address to listen on; other than localhost needs --api_key",
    )
    parser.add(
        "--port", type=values.port, default=8000, help="port to listen on, 0 for any free one"
    )
    parser.add(
        "--api_key",
        type=values.text,
        metavar="KEY",
        help="key that requests must have; default: $GRPO_CL_SERVER_KEY",
    )
    parser.add(
        "--weights_dir",
        type=values.input_dir,
        nargs="+",
        default=[],
        metavar="DIR",
        help="folders from which clients may load weights; default: none",
    )
    parser.add(
        "--served_model_name",
        type=values.text,
        metavar="NAME",
        help="name in requests; default: the last part of the model path",
    )
    parser.add(
        "--max_body_mib",
        type=values.positive,
        default=16,
        metavar="N",
        help="size limit of a request",
    )
    parser.add("--seed", type=values.seed, default=0, help="seed of requests without a seed")
    parser.take_settings(
        "model_dtype", "sampling.slots", "sampling.max_context", "sampling.dialect"
    )
    parser.set_defaults(run=command("serve", "serve"))


def add_bench(parser: Parser) -> None:
    """Add the options of ``bench``."""
    parser.add_argument("file", type=values.input_file, help="campaign file, see docs/campaigns.md")
    parser.add(
        "--out",
        type=values.output_dir,
        metavar="DIR",
        help="campaign directory; default: as in the file",
    )
    parser.add(
        "--workers",
        type=values.positive,
        metavar="N",
        help="concurrent runs; default: as in the file",
    )
    parser.add(
        "--seeds",
        nargs="+",
        type=values.seed,
        metavar="SEED",
        help="the seeds of one part of the campaign; default: as in the file",
    )
    parser.add(
        "--report_only",
        action="store_true",
        help="train nothing; write the tables and the page of the finished runs",
    )
    parser.add("--dry_run", action="store_true", help="print the planned runs and exit")
    parser.set_defaults(run=command("bench", "bench"))


def add_prepare_data(parser: Parser) -> None:
    """Add the options of ``prepare-data``."""
    parser.add(
        "--input_path",
        type=values.input_file,
        metavar="FILE",
        help="task file; default: training tasks",
    )
    parser.add(
        "--domains",
        nargs="+",
        type=values.text,
        default=[],
        metavar="NAME",
        help="domains of the tables; with --input_path, the domain of tasks that name none",
    )
    parser.add(
        "--output_dir",
        type=values.output_dir,
        required=True,
        metavar="DIR",
        help="where the tables are written",
    )
    parser.add(
        "--train_ratio",
        type=values.share,
        default=0.9,
        metavar="0..1",
        help="fraction of the tasks in the training table",
    )
    parser.add(
        "--max_tasks_per_domain",
        type=values.positive,
        metavar="N",
        help="maximum number of tasks of a domain; default: all",
    )
    parser.add("--user", type=values.text, default="solo", help="user strategy of the environment")
    add_tools(parser)
    add_data_dir(parser)
    parser.set_defaults(run=command("engines", "prepare"))


def add_plan(parser: Parser) -> None:
    """Add the options of ``plan``."""
    parser.add(
        "--out",
        type=values.output_dir,
        required=True,
        metavar="DIR",
        help="folder of the schedule, which must be new",
    )
    parser.take_settings("model_name_or_path", "task_order", "num_steps_per_task", "cl_algorithm")
    parser.set_defaults(run=command("engines", "plan"))


def add_import_run(parser: Parser) -> None:
    """Add the options of ``import-run``."""
    parser.add_argument("plan", type=values.input_dir, help="folder written by `grpo-cl plan`")
    parser.add(
        "--run",
        dest="run_dir",
        type=values.input_dir,
        required=True,
        metavar="DIR",
        help="run directory of the external engine",
    )
    parser.add("--out", type=values.output_dir, metavar="DIR", help="run directory to write")
    parser.add("--evaluate", action="store_true", help="run the missing evaluations")
    parser.add(
        "--checkpoint",
        type=values.text,
        metavar="STAGE",
        help="only print the path of this stage's model",
    )
    parser.set_defaults(run=command("engines", "import_from_engine"))


def add_export_tau2(parser: Parser) -> None:
    """Add the options of ``export-tau2``."""
    parser.add_argument(
        "source", type=values.input_path, help="a run directory, or a file of episodes"
    )
    parser.add(
        "--out",
        type=values.output_file,
        required=True,
        metavar="FILE",
        help="results file to write",
    )
    parser.add(
        "--domain",
        type=values.text,
        metavar="NAME",
        help="needed if the episodes are from several domains",
    )
    add_data_dir(parser)
    parser.set_defaults(run=command("recordings", "export_results"))


def add_import_tau2(parser: Parser) -> None:
    """Add the options of ``import-tau2``."""
    parser.add_argument("file", type=values.input_file, help="results.json of a τ²-bench run")
    parser.add(
        "--out", type=values.output_file, required=True, metavar="FILE", help="one episode per line"
    )
    add_data_dir(parser)
    parser.set_defaults(run=command("recordings", "import_results"))


def add_estimate_memory(parser: Parser) -> None:
    """Add the options of ``estimate-memory``."""
    parser.add(
        "--prompt_tokens",
        type=values.positive,
        metavar="N",
        help="prompt length; default: the longest prompt of each domain of task_order",
    )
    parser.add(
        "--reply_tokens",
        type=values.positive,
        metavar="N",
        help="tokens after the prompt; default: all turns, up to rollout.max_turns, "
        "rollout.max_steps or sampling.max_context",
    )
    parser.add(
        "--turn_tokens",
        type=values.count,
        metavar="N",
        help="tokens of a tool's or user's message between two replies; default: 384",
    )
    parser.add(
        "--shared_tokens",
        type=values.count,
        metavar="N",
        help="prefix shared by all prompts of a domain; default: as rendered, or with "
        "--prompt_tokens all but 256",
    )
    parser.add(
        "--gpus",
        type=values.positive,
        default=1,
        metavar="N",
        help="number of GPUs (torchrun processes)",
    )
    parser.add(
        "--gpu_memory",
        type=values.number(0, 1e6, is_above=True),
        default=80.0,
        metavar="GIB",
        help="memory of one GPU",
    )
    parser.add("--json", action="store_true", help="print JSON, sizes in bytes")
    parser.take_settings("model_name_or_path", "batch_size_per_gpu", "max_new_tokens", "lora.r")
    parser.set_defaults(run=command("estimate", "estimate_memory"))


def add_power(parser: Parser) -> None:
    """Add the options of ``power``."""
    parser.add(
        "--tasks",
        nargs="+",
        type=values.positive,
        metavar="N",
        help="test tasks per domain, in order",
    )
    parser.add("--trials", type=values.positive, help="evaluation episodes per test task")
    parser.add("--seeds", type=values.positive, help="training runs (seeds) per method")
    parser.add("--level", type=values.share, metavar="0..1", help="expected mean score")
    parser.add(
        "--task_spread",
        type=values.share,
        metavar="0..1",
        help="fraction of the episode variance that is between tasks",
    )
    parser.add(
        "--seed_sd",
        type=values.share,
        help="standard deviation of a cell of the R-matrix between seeds",
    )
    parser.add(
        "--domain_correlation",
        type=values.share,
        metavar="0..1",
        help="correlation of two domains' scores between seeds; default: 1, the worst case",
    )
    parser.add(
        "--test",
        choices=("welch", "paired", "pooled"),
        help="paired by seed for runs that share their first stage; pooled: one variance for all",
    )
    parser.add(
        "--pair_correlation",
        type=values.share,
        metavar="0..1",
        help="correlation of two methods' runs of one seed, for a paired test; default: 0",
    )
    parser.add(
        "--comparisons",
        type=values.positive,
        metavar="N",
        help="number of methods compared with the baseline",
    )
    parser.add("--power", type=values.share, metavar="0..1", help="statistical power (1 − β)")
    parser.add(
        "--effect",
        type=values.number(0, 1, is_above=True),
        help="difference to detect: prints the number of seeds it needs",
    )
    parser.add(
        "--runs",
        nargs="+",
        type=values.input_path,
        default=(),
        metavar="DIR",
        help="runs of one method with different seeds, to estimate the assumptions from",
    )
    parser.add("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=command("power", "power"))
