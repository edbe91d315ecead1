"""What ``grpo-cl memory`` can be told."""

from pathlib import Path

from grpo_cl.cli.parser import Parser, command


def add_memory(parser: Parser) -> None:
    """The verbs and their options."""
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=Parser)
    demo = verbs.add_parser("demo", help="what a memory is worth, without any model")
    demo.add("--count", type=int, default=20, help="instances")
    demo.add("--seed", type=int, default=0)
    demo.add("--difficulty", type=float, default=0.1, metavar="0..1")
    demo.set_defaults(run=command("memory", "demo"))
    _add_construct(verbs.add_parser("construct", help="have a memory written of a conversation"))
    _add_retrieve(verbs.add_parser("retrieve", help="search a memory"))
    generate = verbs.add_parser("generate", help="write generated instances to a file")
    generate.add("--count", type=int, default=100)
    generate.add("--seed", type=int, default=0)
    generate.add("--difficulty", type=float, metavar="0..1", help="default: a mixture of all")
    generate.add("--split", choices=("train", "test"), default="train")
    generate.add("--out", type=Path, required=True, metavar="FILE")
    generate.set_defaults(run=command("memory", "generate"), takes_settings=True)
    measure = verbs.add_parser("eval", help="measure a rule, a hosted model or a policy")
    measure.add("--writer", metavar="RULE", help="oracle, append, copy_chunk, idle, ...")
    measure.add("--count", type=int, metavar="N", help="generated instances; default: 40")
    measure.add("--json", action="store_true", help="print JSON")
    _writer_model(measure)
    measure.set_defaults(run=command("memory", "evaluate"), takes_settings=True)


def _add_construct(parser: Parser) -> None:
    parser.add_argument("file", type=Path)
    parser.add("--format", default="text", help="text, or one that docs/memory.md lists")
    parser.add("--number", type=int, default=0, help="of the conversation in the file")
    parser.add("--chunk_tokens", type=int, default=500, metavar="N")
    parser.add("--out", type=Path, required=True, metavar="DIR")
    _writer_model(parser)
    parser.set_defaults(run=command("memory", "construct"), takes_settings=True)


def _add_retrieve(parser: Parser) -> None:
    parser.add_argument("memory", type=Path, help="memory.json")
    parser.add_argument("query")
    parser.add("--count", type=int, default=5, metavar="N")
    parser.add("--semantic", action="store_true", help="by meaning too: grpo-cl[memory]")
    parser.add("--json", action="store_true", help="print JSON, one entry per line")
    parser.set_defaults(run=command("memory", "retrieve"))


def _writer_model(parser: Parser) -> None:
    parser.add("--model", metavar="PROVIDER/MODEL", help="default: --model_name_or_path")
    parser.add("--base_url", metavar="URL", help="of the model's endpoint")
