"""Rollout servers whose answers cannot be right: each is given up, and others get its requests."""

import logging
import threading
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli.serve import serving_config
from grpo_cl.errors import ConfigError, EngineError
from grpo_cl.policy.inference.server_client import ServerPool
from grpo_cl.policy.inference.weight_sync import WeightPublisher
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.trainer import GRPOTrainer
from lying_server import Answer, LyingServer
from parameters import mostly_slow
from sampling import finish, request
from server_lies import LIES, QUICK, changed, honest, hung, sampled, sampling, sent
from serving import served
from small_runs import small_config
from tiny_policies import load, perturb, save_model
from toy_resume import SAVING
from toy_runs import scores, toy_config, toy_run

LOGGER = "grpo_cl.policy.inference.server_client"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.name == LOGGER]


@pytest.mark.parametrize("lie", LIES)
def test_requests_of_a_lying_server_go_elsewhere(lie: str, caplog: pytest.LogCaptureFixture):
    answer, reason = LIES[lie]
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        LyingServer(answer) as liar,
        LyingServer(honest) as good,
        sampling([liar.url, good.url]) as engine,
    ):
        engine.submit([request(n, [n, 1], stop_ids=(9,)) for n in range(4)])
        assert [done.ids for done in finish(engine, 4).values()] == [[7] * 6] * 4
        num_asked = len(liar.requests)
        engine.submit([request(n, [1], stop_ids=(9,)) for n in range(4)])
        finish(engine, 4)
        assert num_asked == len(liar.requests) > 0
        (line,) = warnings(caplog)
        assert line.startswith(f"{liar.url} is dead: ")
        assert reason in line


def test_restarted_server_without_a_fingerprint_is_given_up(caplog: pytest.LogCaptureFixture):
    def lie(body: Any, answer: Answer) -> Answer:
        del body, answer["system_fingerprint"]
        return answer

    with (
        caplog.at_level(logging.WARNING, LOGGER),
        LyingServer(lie) as liar,
        LyingServer(honest) as good,
        sampling([liar.url, good.url]) as engine,
    ):
        for server in engine._pool.servers:
            server.fingerprint = "weights-1"
        engine.submit([request(n, [n, 1]) for n in range(2)])
        finish(engine, 2)
        (line,) = warnings(caplog)
        assert "returns no system_fingerprint" in line


HANGS = {
    "every request": (
        False,
        QUICK._replace(probe_interval_s=0.01, probe_timeout_s=0.1),
        "it hangs: GET /health gives no answer for 0.1 s",
    ),
    "completions": (
        True,
        QUICK._replace(stall_s=1.0, stall_s_per_token=0.0),
        "it hangs: /v1/completions gives no answer for 1 s",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HANGS)
def test_requests_of_a_hung_server_go_elsewhere(what: str, caplog: pytest.LogCaptureFixture):
    is_healthy, patience, reason = HANGS[what]
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        LyingServer(hung, is_healthy=is_healthy) as liar,
        LyingServer(honest) as good,
        sampling([liar.url, good.url], patience) as engine,
    ):
        engine.submit([request(n, [n, 1]) for n in range(4)])
        assert len(finish(engine, 4)) == 4
        assert len(liar.requests) == 2  # each was sent once
        (line,) = warnings(caplog)
        assert reason in line


class EndlessServer(LyingServer):
    """Answers health probes with bytes without end, after ``start``."""

    start = b""
    part = b""

    def _get(self, path: str) -> object:
        return chain([self.start], repeat(self.part)) if path == "/health" else super()._get(path)


def test_server_that_answers_health_probes_byte_by_byte_is_given_up(
    caplog: pytest.LogCaptureFixture,
):
    class Dripping(EndlessServer):
        start, part = b"HTTP/1.1 200 OK\r\n", b"x:"

    with (
        caplog.at_level(logging.WARNING, LOGGER),
        Dripping(hung) as liar,
        LyingServer(honest) as good,
        sampling([liar.url, good.url], HANGS["every request"][1]) as engine,
    ):
        engine.submit([request(n, [n, 1]) for n in range(4)])
        assert len(finish(engine, 4)) == 4
        (line,) = warnings(caplog)
        assert "it hangs: GET /health gives no answer for 0.1 s" in line


def test_endless_body_of_a_health_probe_is_not_read():
    class Flooding(EndlessServer):
        start, part = b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65_536

    with Flooding(honest) as server, sampling([server.url]) as engine:
        engine._pool.wait_for(engine._pool.servers[0].require_health())


def test_long_request_is_not_given_up_while_its_server_completes_others():
    release = threading.Event()

    def answer_slowly(body: Any, answer: Answer) -> Answer:
        release.wait(None if body["prompt"][0] == 0 else 0.4)
        return answer

    patience = QUICK._replace(stall_s=1.0, stall_s_per_token=0.0)
    with LyingServer(answer_slowly) as server, sampling([server.url], patience) as engine:
        engine.submit([request(0, [0, 1])])
        for n in range(1, 4):  # longer than stall_s in all
            engine.submit([request(n, [n, 1])])
            assert list(finish(engine, 1)) == [n]
        release.set()
        assert list(finish(engine, 1)) == [0]


def test_run_ends_with_a_sentence_when_every_server_lies():
    with LyingServer(sampled(-1)) as liar, sampling([liar.url]) as engine:
        engine.submit([request(0, [1])])
        with pytest.raises(EngineError, match=r"all 1 servers are dead.*-1.*--resume_from"):
            finish(engine, 1)


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"version": 5}', b'{"server": "grpo-cl"}'])
def test_server_that_does_not_say_what_it_is_is_refused_at_the_start(answer: bytes):
    class Unknown(LyingServer):
        def _get(self, path: str) -> object:
            del path
            return answer

    with Unknown(honest) as server:
        pool = ServerPool([server.url], patience=QUICK)
        with pytest.raises(
            ConfigError, match=r"a server of sampling\.servers cannot be used: http"
        ):
            pool.open()
        pool.close()


def without_fingerprint(body: Any, answer: Answer) -> Answer:
    del body
    return {"choices": answer["choices"]}


SYNC_LIES = {
    "no fingerprint": (without_fingerprint, "no system_fingerprint"),
    "no prompt log-probs": (changed(prompt_logprobs=None), "the log-probs of a prompt"),
    "few prompt log-probs": (changed(prompt_logprobs=[None]), "the log-probs of a prompt"),
    "impossible id": (sampled(10**6), "the vocabulary has"),
    "not JSON": (sent(b"<html>"), "does not return JSON"),
}


@pytest.mark.parametrize("lie", mostly_slow(SYNC_LIES, fast=["not JSON"]))
def test_server_that_lies_to_the_probe_of_a_weight_sync_gets_no_requests(
    lie: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    answer, reason = SYNC_LIES[lie]
    save_model(tmp_path / "base")
    config = small_config(tmp_path / "base", tmp_path / "log", kl_coef=0.0, temperature=0.7)
    trained = load(tmp_path / "base")
    perturb(trained)
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        LyingServer(answer) as liar,
        served(load(tmp_path / "base"), config, folders=[tmp_path]) as good,
    ):
        pool = ServerPool([liar.url, good.url], patience=QUICK)
        pool.open()
        publisher = WeightPublisher(pool, config, DistributedContext())
        publisher.publish(trained)
        perturb(trained)
        publisher.publish(trained)  # the server has its next chance, and no second line in the log
        assert [server.url for server in pool.alive()] == [good.url]
        (line,) = warnings(caplog)
        assert reason in line
        pool.close()


@pytest.mark.slow
def test_run_whose_only_server_lies_ends_and_resumes_to_the_same_result(tmp_path: Path):
    shape = {
        "num_steps_per_task": 2,
        "num_samples_per_prompt": 2,
        "task_order": ("toy_left",),
        "evaluation": {"trials": 1},
        "logging": SAVING,
    }
    toy_run(tmp_path / "local", **shape)
    is_mended = threading.Event()

    def late(body: Any, answer: Answer) -> Answer:
        is_good = is_mended.is_set() or len(server.requests) < 32  # 8 to evaluate, 16 a step
        return answer if is_good else sampled(-1)(body, answer)

    policy = serving_config("tabular", ["--model_dtype", "float32"])
    with (
        served(PolicyModel.load(policy), policy, slots=8, folders=[tmp_path]) as upstream,
        LyingServer(late, upstream=upstream.url) as server,
    ):
        remote = {"engine": "server", "servers": [server.url]}
        config = toy_config(tmp_path / "remote", sampling=remote, **shape)
        with pytest.raises(EngineError, match="all 1 servers are dead"):
            GRPOTrainer(config).train()
        is_mended.set()
        GRPOTrainer(config.model_copy(update={"resume_from": config.log_dir})).train()
    assert scores(tmp_path / "remote") == scores(tmp_path / "local")
