"""Endpoints and rollout servers that fail: the same episode, or no episode, never a zero."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chat_parts import Customers
from chat_server import ChatServer, Fault, calling_text
from grpo_cl.config import ModelsConfig, RolloutConfig, UserConfig
from grpo_cl.envs import load_domain
from grpo_cl.llm import GenerationParams, ModelPool
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import Termination, Trajectory
from grpo_cl.users import LLMUserFactory
from lying_server import LyingServer
from sampling import finish, request
from server_lies import LIES, honest, sampling
from torture.cases import Bench, Case, Verdict, crash, lost, survived
from torture.processes import run_forked

MODEL = "openai-api/loopback/customer"
QUICK = ModelsConfig(cache_dir=None, retries=2, backoff_s=0.001, timeout_s=0.5)
FAULTS: tuple[Fault, ...] = ("429", "500", "400", "silence", "garbage", "truncated", "empty", "odd")
BROKEN: tuple[Any, ...] = (
    calling_text("update_task_status", '{"a": '),
    {**calling_text("update_task_status", "{}"), "finish_reason": "length"},
    calling_text("no_such_tool", "{}"),
    calling_text("f", '{"a": ' + "[" * 900 + "]" * 900 + "}"),
    "",
)
BATCH = 20


def bad_endpoints(bench: Bench) -> Iterator[Case]:
    """Let requests to a user simulator's endpoint fail at random, or answer with broken calls."""
    for number in range(bench.amount(10)):
        yield Case(str(number), _isolated(lambda number=number: _users(bench, number)), tried=BATCH)


def bad_servers(bench: Bench) -> Iterator[Case]:
    """Put servers that lie at random beside a good rollout server."""
    for number in range(bench.amount(10)):
        yield Case(str(number), _isolated(lambda number=number: _lies(bench, number)), tried=BATCH)


def _isolated(work: Callable[[], None]) -> Callable[[Path], Verdict]:
    """The work in a process of its own, whose threads end with it."""

    def attempt(folder: Path) -> Verdict:
        def run() -> int:
            work()
            return 0

        ended = run_forked(run, folder)
        return survived() if ended.status == 0 else lost(crash(ended))

    return attempt


def _users(bench: Bench, number: int) -> None:
    os.environ["LOOPBACK_API_KEY"] = "any"
    mock = load_domain("mock")
    task = mock.task("create_task_1")
    rng = bench.rng("endpoints", number)
    customers = Customers(mock, [task])
    whole = _said(_play(ChatServer(customers)))
    for _ in range(BATCH):
        share = rng.random()
        faults: list[Fault | None] = [
            rng.choice(FAULTS) if rng.random() < share else None for _ in range(12)
        ]
        at = rng.randrange(8)
        broken = rng.choice(BROKEN) if rng.random() < 0.3 else None
        server = ChatServer(
            lambda body, at=at, broken=broken: (
                customers(body) if broken is None or len(body["messages"]) <= at else broken
            ),
            faults,
        )
        played = _play(server)
        is_excluded = played.termination is Termination.INFRASTRUCTURE_ERROR
        assert is_excluded or _said(played) == whole, f"{faults} {broken} {_said(played)}"


def _play(server: ChatServer) -> Trajectory:
    mock = load_domain("mock")
    task = mock.task("create_task_1")
    agent = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    with server, ModelPool(QUICK) as models:
        model = models.open(MODEL, GenerationParams(0.0, 256), base_url=server.url)
        users = LLMUserFactory(UserConfig(model=MODEL), lambda task: model)
        config = RolloutConfig(user="llm", replays=0)
        return run_episodes(agent, {"mock": mock}, [task], config, models=users)[0]


def _said(trajectory: Trajectory) -> list[str]:
    return [
        f"{message.role} {message.content} {message.tool_calls}" for message in trajectory.messages
    ]


def _lies(bench: Bench, number: int) -> None:
    rng = bench.rng("servers", number)
    for _ in range(BATCH):
        names = rng.choices(sorted(LIES), k=2)
        after = [rng.randrange(6) for _ in names]
        with ExitStack() as stack:
            liars = [
                stack.enter_context(LyingServer(_later(LIES[name][0], count)))
                for name, count in zip(names, after, strict=True)
            ]
            good = stack.enter_context(LyingServer(honest))
            engine = stack.enter_context(sampling([*(liar.url for liar in liars), good.url]))
            engine.submit([request(n, [n, 1], stop_ids=(9,)) for n in range(12)])
            replies = [done.ids for done in finish(engine, 12).values()]
        assert replies == [[7] * 6] * 12, f"{names} after {after}: {replies}"


def _later(lie: Callable[[Any, Any], object], count: int) -> Callable[[Any, Any], object]:
    """Good answers, then lies."""
    requests = iter(range(count))
    return lambda body, answer: answer if next(requests, None) is not None else lie(body, answer)
