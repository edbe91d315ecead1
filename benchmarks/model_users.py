r"""Training with a served model as the user simulator and as the judge.

    python benchmarks/model_users.py --customer MODEL_DIR
    python benchmarks/model_users.py --customer NAME --base_url http://127.0.0.1:8000/v1 --model \
        MODEL --tasks 16 --samples 8 --turns 20 --max_tokens 256 --judge_tokens 512 --calls 64

Without --base_url the customer is served by ``grpo-cl serve``, in a process of its own on a free
port. For each strategy of the user simulator a run of a few steps is trained, then one with a judge
and without a user, on those airline tasks of τ²-bench that have one assertion. The numbers are
those of the training steps, or of the evaluation in which the run ended. "lost" episodes ended with
an infrastructure error; "waits" is the share of the episodes' time in which they wait for the user;
"idle" is the share of the steps in which no episode waits for the policy (docs/metrics.md). Medians
have their range in brackets. The second table has the same calls made in several ways; "prefilled"
are the prompt tokens that the server does not report as cached (vLLM reports them with
--enable-prompt-tokens-details). Further arguments are settings of the runs, such as
--models.concurrency 128 (16 calls at once by default). MODEL_USERS_API_KEY is the server's key, if
it needs one.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig, ModelsConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.envs.tau2_files import installed_data_dir
from grpo_cl.errors import GRPOCLError
from grpo_cl.llm import GenerationParams, ModelPool, Prompt
from grpo_cl.metrics.tables import Table, Value, markdown
from grpo_cl.rollout import GREETING
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import Message
from grpo_cl.users import STRATEGIES
from grpo_cl.users.llm.prompts import user_system_prompt
from served_model import served_model

JUDGE, CALLS = "judge", "calls"
KINDS = (*STRATEGIES, JUDGE, CALLS)
KEY_VARIABLE = "MODEL_USERS_API_KEY"
FOLLOW_UP = "I see. Please tell me more about what you need."
RUN_COLUMNS = (
    *("model is", "episodes", "lost", "calls per episode", "failed", "retried", "rejected"),
    *("tokens in", "tokens out", "cost", "s per step", "waits", "idle", "calls/s"),
)
JUDGE_TURNS = 20
"""Most replies of the policy where there is no user: only episodes that it ends are judged."""
CALL_COLUMNS = ("calls", "s", "calls/s", "prompt tokens", "prefilled", "reply tokens", "ratio")


class Server(NamedTuple):
    """The customer's endpoint."""

    url: str
    name: str

    @property
    def model(self) -> str:
        """The model in the settings of a run."""
        return f"openai-api/model_users/{self.name}"


class Way(NamedTuple):
    """What some calls took."""

    calls: int
    seconds: float
    prompt_tokens: int
    prefilled: int | None
    """None where it is not known."""
    reply_tokens: int


def main() -> None:
    """Train the runs, make the calls, print both tables."""
    arguments, settings = _parser().parse_known_args()
    os.environ.setdefault(KEY_VARIABLE, "any")
    rows: list[tuple[Value, ...]] = []
    with _server(arguments) as server, TemporaryDirectory() as folder:
        for kind in arguments.kinds:
            if kind != CALLS:
                rows.append(_run_row(kind, server, arguments, settings, Path(folder)))
                print(f"{' | '.join(map(str, rows[-1]))}", file=sys.stderr, flush=True)
        if rows:
            print(markdown(Table(RUN_COLUMNS, rows)), end="\n\n", flush=True)
        if CALLS in arguments.kinds:
            calls = call_rows(server, arguments, Path(folder))
            print(markdown(Table(("the same calls", *CALL_COLUMNS), calls)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--customer", required=True, help="a model to serve, or its served name")
    parser.add_argument("--base_url", help="URL of a running server, which ends in /v1")
    parser.add_argument("--dtype", default="float32", help="number format of a served customer")
    parser.add_argument("--context", type=int, default=4096, help="context of a served customer")
    parser.add_argument("--model", default="tiny", help="model_name_or_path of the policy")
    parser.add_argument("--domain", default="airline")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=2, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--turns", type=int, default=4, help="most replies of the policy")
    parser.add_argument("--max_tokens", type=int, default=32, help="of a reply of the customer")
    parser.add_argument("--judge_tokens", type=int, default=96, help="of a verdict")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--timeout_s", type=float, default=600.0, help="of one call")
    parser.add_argument(
        "--price", nargs=2, type=float, default=(0.15, 0.6), help="of a million tokens in and out"
    )
    parser.add_argument("--calls", type=int, default=8, help="calls of the second table")
    parser.add_argument("--repeats", type=int, default=3, help="of the second table")
    return parser


@contextmanager
def _server(arguments: argparse.Namespace) -> Generator[Server]:
    if arguments.base_url:
        yield Server(arguments.base_url.rstrip("/"), arguments.customer)
        return
    options = ("--model_dtype", arguments.dtype, f"--sampling.max_context={arguments.context}")
    with served_model(arguments.customer, *options) as served:
        yield Server(*served)


def run_config(
    kind: str, server: Server, arguments: argparse.Namespace, settings: list[str], folder: Path
) -> GRPOConfig:
    """The settings of a run with a strategy of the user simulator, or with the judge."""
    role = {"model": server.model, "base_url": server.url, "temperature": arguments.temperature}
    price = [value / 1000 for value in arguments.price]
    base: dict[str, Any] = {
        "model_name_or_path": arguments.model,
        "task_order": [arguments.domain],
        "num_samples_per_prompt": arguments.samples,
        "batch_size_per_gpu": arguments.tasks,
        "gradient_accumulation_steps": 1,
        "num_steps_per_task": arguments.steps,
        "rollout": {"user": kind, "max_turns": arguments.turns},
        "user": {**role, "max_tokens": arguments.max_tokens},
        "models": {
            "cache_dir": None,
            "prices": {server.model: price},
            "timeout_s": arguments.timeout_s,
        },
        "evaluation": {"max_tasks": 1, "trials": 1},
        "logging": {"trackers": []},
        "log_dir": str(folder / kind),
    }
    if kind == JUDGE:
        base |= {
            "task_order": ["airline"],
            "rollout": {"user": "solo", "max_turns": JUDGE_TURNS},
            "user": {},
            "judge": {**role, "max_tokens": arguments.judge_tokens},
            "tasks": {"own": True, "generated": 0},
            "evaluation": {"max_tasks": 4, "trials": 1, "generated": 0},
            "tau2_data_dir": str(_judged_tasks(folder / "tau2")),
        }
    return read_config(settings, base)


def _judged_tasks(data_dir: Path) -> Path:
    """τ²-bench's airline tasks with one assertion, which enters their reward."""
    target = data_dir / "domains" / "airline"
    shutil.copytree(installed_data_dir() / "domains" / "airline", target)
    tasks = json.loads((target / "tasks.json").read_text())
    chosen = [
        task for task in tasks if len(task["evaluation_criteria"]["nl_assertions"] or ()) == 1
    ]
    for task in chosen:
        task["evaluation_criteria"]["reward_basis"] = ["DB", "NL_ASSERTION"]
    names = {task["id"] for task in chosen}
    splits = json.loads((target / "split_tasks.json").read_text())
    kept = {split: [name for name in ids if name in names] for split, ids in splits.items()}
    (target / "tasks.json").write_text(json.dumps(chosen))
    (target / "split_tasks.json").write_text(json.dumps(kept))
    return data_dir


def _run_row(
    kind: str, server: Server, arguments: argparse.Namespace, settings: list[str], folder: Path
) -> tuple[Value, ...]:
    config = run_config(kind, server, arguments, settings, folder)
    with redirect_stdout(sys.stderr):
        trainer = GRPOTrainer(config)
        try:
            trainer.train()
        except GRPOCLError as error:
            print(f"{kind}: the run ended: {error}", flush=True)
        finally:
            trainer.auxiliary_models.close()
    run = RunDir(config.log_dir)
    times = [line for line in read_journal(run.times_journal) if line["kind"] == "train"]
    lost = trainer.auxiliary_models.use.take()  # of a step or evaluation that did not end
    return (kind, *_run_cells(times, run.read_metrics().get("task_0/train", []), lost))


def _run_cells(
    times: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    lost: Mapping[str, float],
) -> tuple[Value, ...]:
    def total(name: str) -> float:
        return sum(line.get(name, 0.0) for line in times) + lost.get(name, 0.0)

    counts = ("model_calls_failed", "model_retries", "model_calls_rejected")
    numbers = [f"{total(name):,.0f}" for name in (*counts, "model_input_tokens")]
    spent = (f"{total('model_output_tokens'):,.0f}", f"{total('model_cost'):.4f}")
    if not times:
        return ("–", "all", f"{total('model_calls'):.0f} in all", *numbers, *spent, *("–",) * 4)
    episodes = sum(step["episodes"] for step in steps)
    seconds = [line["step_s"] for line in times]
    return (
        f"{episodes:.0f}",
        f"{sum(step['infrastructure_errors'] for step in steps):.0f}",
        f"{total('model_calls') / episodes:.1f}",
        *numbers,
        *spent,
        f"{median(seconds):.1f} [{min(seconds):.1f} {max(seconds):.1f}]",
        f"{total('user_wait_s') / (total('episode_s') or 1.0):.0%}",
        f"{total('policy_idle_s') / sum(seconds):.0%}",
        f"{total('model_calls') / sum(seconds):.2f}",
    )


def call_rows(
    server: Server, arguments: argparse.Namespace, folder: Path
) -> list[tuple[Value, ...]]:
    """Pairs of ways to make the same calls, of which the second saves time."""
    config = GRPOConfig(model_name_or_path=arguments.model, task_order=(arguments.domain,))
    tasks = TaskDataLoader(config).train_tasks(arguments.domain)[: arguments.calls]
    systems = [user_system_prompt(task, ()) for task in tasks]
    ways: dict[str, list[Way]] = {}
    for repeat in range(arguments.repeats):
        measured = {
            "one after another": _chats(server, arguments, systems, f"{repeat}a", at_once=1),
            f"{len(systems)} at once": _chats(
                server, arguments, systems, f"{repeat}b", at_once=len(systems)
            ),
            "without the reply cache": _replies(server, arguments, systems, f"{repeat}c", None),
            "from the reply cache": _replies(
                server, arguments, systems, f"{repeat}c", folder / f"cache{repeat}"
            ),
            "a chat, prefilled from its start": _chat(server, arguments, systems[0], repeat),
            "a chat, continued": _chat(server, arguments, systems[0], repeat, continued=True),
        }
        for name, way in measured.items():
            ways.setdefault(name, []).append(way)
    names = list(ways)
    return [
        _call_row(name, ways[name], ways[names[index - 1]] if index % 2 else None)
        for index, name in enumerate(names)
    ]


def _call_row(name: str, ways: Sequence[Way], other: Sequence[Way] | None) -> tuple[Value, ...]:
    seconds = [way.seconds for way in ways]
    ratio = f"{median(way.seconds for way in other) / median(seconds):.1f}" if other else ""
    middle = sorted(ways, key=lambda way: way.seconds)[len(ways) // 2]
    return (
        name,
        f"{middle.calls}",
        f"{median(seconds):.2f} [{min(seconds):.2f} {max(seconds):.2f}]",
        f"{middle.calls / median(seconds):.2f}",
        f"{middle.prompt_tokens:,}",
        "–" if middle.prefilled is None else f"{middle.prefilled:,}",
        f"{middle.reply_tokens:,}",
        ratio,
    )


def _chats(
    server: Server,
    arguments: argparse.Namespace,
    systems: Sequence[str],
    mark: str,
    *,
    at_once: int,
) -> Way:
    """The first message of each customer; the mark keeps out what the server has cached."""
    prompts = [
        [_message("system", f"({mark}) {system}"), _message("user", GREETING)] for system in systems
    ]

    async def ask_all() -> list[dict[str, Any]]:
        slots = asyncio.Semaphore(at_once)
        async with _client(server, arguments) as client:

            async def ask(messages: Sequence[Mapping[str, str]], seed: int) -> dict[str, Any]:
                async with slots:
                    return await _ask(client, server, arguments, messages, seed)

            return await asyncio.gather(
                *(ask(messages, seed) for seed, messages in enumerate(prompts))
            )

    started = time.monotonic()
    answers = asyncio.run(ask_all())
    return _way(answers, time.monotonic() - started)


def _chat(
    server: Server,
    arguments: argparse.Namespace,
    system: str,
    repeat: int,
    *,
    continued: bool = False,
) -> Way:
    """A chat of --calls turns, whose start is the same in all calls only if it is ``continued``."""

    async def ask_all() -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        history = [_message("user", GREETING)]
        async with _client(server, arguments) as client:
            for turn in range(arguments.calls):
                mark = f"({repeat}{'continued' if continued else turn})"
                messages = [_message("system", f"{mark} {system}"), *history]
                answers.append(await _ask(client, server, arguments, messages, turn))
                reply = answers[-1]["choices"][0]["message"]["content"] or ""
                history += [_message("assistant", reply), _message("user", FOLLOW_UP)]
        return answers

    started = time.monotonic()
    answers = asyncio.run(ask_all())
    return _way(answers, time.monotonic() - started)


def _client(server: Server, arguments: argparse.Namespace) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {os.environ[KEY_VARIABLE]}"}
    return httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=arguments.timeout_s, trust_env=False
    )


async def _ask(
    client: httpx.AsyncClient,
    server: Server,
    arguments: argparse.Namespace,
    messages: Sequence[Mapping[str, str]],
    seed: int,
) -> dict[str, Any]:
    body = {
        "model": server.name,
        "messages": messages,
        "seed": seed,
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
    }
    answer = await client.post("/chat/completions", json=body)
    if answer.is_error:
        sys.exit(f"the server answers {answer.status_code}: {answer.text[:300]}")
    return answer.json()


def _way(answers: Sequence[Mapping[str, Any]], seconds: float) -> Way:
    usages = [answer["usage"] for answer in answers]
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    details = [usage.get("prompt_tokens_details") or {} for usage in usages]
    cached = sum(detail.get("cached_tokens") or 0 for detail in details)
    replies = sum(usage["completion_tokens"] for usage in usages)
    return Way(len(answers), seconds, prompts, prompts - cached, replies)


def _replies(
    server: Server,
    arguments: argparse.Namespace,
    systems: Sequence[str],
    mark: str,
    cache_dir: Path | None,
) -> Way:
    """The same calls by the client of a run; with a cache, by one that finds all replies there."""
    params = GenerationParams(arguments.temperature, arguments.max_tokens)
    greeting = [Message(role="user", content=GREETING)]
    prompts = [Prompt(f"({mark}) {system}", greeting) for system in systems]
    config = ModelsConfig(cache_dir=cache_dir, timeout_s=arguments.timeout_s)
    with ModelPool(config) as pool:
        model = pool.open(server.model, params, base_url=server.url)

        async def ask_all() -> None:
            await asyncio.gather(*(model.reply(prompt, seed=0) for prompt in prompts))

        if cache_dir is not None:
            asyncio.run(ask_all())
            pool.use.take()
        started = time.monotonic()
        asyncio.run(ask_all())
        seconds, use = time.monotonic() - started, pool.use.take()
    tokens = int(use["model_input_tokens"]), None, int(use["model_output_tokens"])
    return Way(len(prompts), seconds, *tokens)


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


if __name__ == "__main__":
    main()
