"""Subcommands and options of ``grpo-cl memory``."""

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command


def add_memory(parser: Parser) -> None:
    """Add the subcommands and their options."""
    demo, construct, retrieve, generate, measure = parser.add_verbs(
        {
            "demo": "an instance, its gold memory and baseline scores; no model",
            "construct": "construct the memory of a conversation",
            "retrieve": "search a memory",
            "generate": "write generated instances to a file",
            "eval": "evaluate a baseline, a hosted model or a policy",
        }
    )
    demo.add("--count", type=values.positive, default=20, metavar="N", help="instances")
    demo.add("--seed", type=values.seed, default=0, help="seed of the generator")
    demo.add(
        "--difficulty", type=values.share, default=0.1, metavar="0..1", help="of the instances"
    )
    demo.set_defaults(run=command("memory", "demo"))
    _add_construct(construct)
    _add_retrieve(retrieve)
    generate.add("--count", type=values.positive, default=100, metavar="N", help="instances")
    generate.add("--seed", type=values.seed, default=0, help="seed of the generator")
    generate.add(
        "--difficulty",
        type=values.share,
        metavar="0..1",
        help="of the instances; default: a mixture of all",
    )
    generate.add("--split", choices=("train", "test"), default="train", help="which part")
    generate.add(
        "--out", type=values.output_file, required=True, metavar="FILE", help="one instance a line"
    )
    generate.take_settings("memory.knobs")
    generate.set_defaults(run=command("memory", "generate"))
    measure.add(
        "--writer",
        type=values.text,
        metavar="RULE",
        help="a baseline: oracle, append, copy_chunk, idle, ...",
    )
    measure.add(
        "--count", type=values.positive, metavar="N", help="generated instances; default: 40"
    )
    measure.add("--json", action="store_true", help="print JSON")
    _writer_model(measure)
    measure.take_settings("model_name_or_path", "seed", "memory.path", "memory.format")
    measure.set_defaults(run=command("memory", "evaluate"))


def _add_construct(parser: Parser) -> None:
    parser.add_argument(
        "file", type=values.input_path, help="a text, or a file or folder of --format"
    )
    parser.add(
        "--format", type=values.text, default="text", help="text, or a format of docs/memory.md"
    )
    parser.add(
        "--number", type=values.count, default=0, help="index of the conversation in the file"
    )
    parser.add(
        "--chunk_tokens",
        type=values.positive,
        default=500,
        metavar="N",
        help="maximum tokens of a chunk of a text",
    )
    parser.add(
        "--out",
        type=values.output_dir,
        required=True,
        metavar="DIR",
        help="where memory.json and journal.jsonl are written",
    )
    _writer_model(parser)
    parser.take_settings("model_name_or_path", "sampling.engine")
    parser.set_defaults(run=command("memory", "construct"))


def _add_retrieve(parser: Parser) -> None:
    parser.add_argument("memory", type=values.input_file, help="memory.json")
    parser.add_argument("query", type=values.text, help="what is searched for")
    parser.add(
        "--count", type=values.positive, default=5, metavar="N", help="maximum number of entries"
    )
    parser.add("--semantic", action="store_true", help="use embeddings too; needs grpo-cl[memory]")
    parser.add("--json", action="store_true", help="print JSON, one entry per line")
    parser.set_defaults(run=command("memory", "retrieve"))


def _writer_model(parser: Parser) -> None:
    parser.add(
        "--model",
        type=values.text,
        metavar="PROVIDER/MODEL",
        help="a hosted model; default: the policy of --model_name_or_path",
    )
    parser.add("--base_url", type=values.text, metavar="URL", help="endpoint of the model")
