"""Weight sync: publishes new weights to the servers and verifies that they sample with them.

A server with stale weights would train the policy on off-policy tokens without any sign of it. So
after each push every server completes a probe: the log-probs of the probe's tokens, and of a
completion sampled at the run's settings, are compared with the trainer's own.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from peft import PeftModel

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import EngineError
from grpo_cl.policy.inference.server_client import (
    ADAPTER_NAME,
    CompletionChoice,
    InvalidAnswerError,
    Server,
    ServerPool,
    UnreachableError,
    gather,
)
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.runs.layout import RunDir

NUM_KEPT = 2
"""Published folders that are kept: a server may still be reading the previous one."""
PROBE_TOKENS, PROBE_REPLY_TOKENS = 24, 8
"""Tokens of the probe, and of its completion."""
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.2
"""Mean log-prob difference that is allowed in float32 and in half precision."""
MIN_CHANGE = 1e-3
"""Change of one log-prob that only an update of the weights explains."""


class ProbeReport(NamedTuple):
    """A server's answer to the probe."""

    url: str
    prompt_logprobs: list[float]
    """Of the probe's tokens but the first, at temperature 1."""
    ids: list[int]
    logprobs: list[float]
    """Of the completion's ids, at the run's temperature."""
    fingerprint: str | None
    """Version of the weights, if the server is ``grpo-cl serve``."""


class _PushResult(NamedTuple):
    """The main process's result of a push, broadcast to all ranks."""

    reports: list[ProbeReport]
    unreachable: dict[str, str]
    """Reasons by server URL."""
    error: str | None = None


class _Push(NamedTuple):
    """What every server gets: new weights and a probe."""

    folder: Path
    body: Mapping[str, Any]
    """Of the probe's request."""
    vocabulary: int
    is_adapter: bool


class WeightPublisher:
    """Writes a policy's weights to disk, makes all servers load them and verifies the result."""

    def __init__(self, pool: ServerPool, config: GRPOConfig, ranks: DistributedContext) -> None:
        self._pool = pool
        self._config = config
        self._ranks = ranks
        folder = config.sampling.publish_dir or RunDir(config.log_dir).published_dir
        self._folder = folder.absolute()
        self._previous: dict[str, list[float]] = {}
        """Prompt log-probs of the last probe by server URL; the trainer's under ""."""

    def publish(self, model: PolicyModel) -> None:
        """Write, push and verify the weights; a collective call that fails on all ranks alike."""
        folder = self._write(model)
        probe = _probe(model)
        is_adapter = isinstance(model.module, PeftModel)
        local = None
        if self._ranks.is_main:
            push = _Push(folder, _probe_body(probe, self._config), model.vocabulary, is_adapter)
            local = self._push(push)
        result = self._ranks.broadcast(local)
        assert result is not None
        if result.error is not None:
            raise EngineError(result.error)
        fingerprints = {report.url: report.fingerprint for report in result.reports}
        for server in self._pool.servers:
            server.model = ADAPTER_NAME if is_adapter else server.base_model
            server.fingerprint = fingerprints.get(server.url)
            if server.url in result.unreachable:
                self._pool.mark_dead(server, result.unreachable[server.url])
            else:
                server.is_dead = False
        self._pool.alive()  # raises if none is
        self._verify(model, probe, result.reports)

    def _write(self, model: PolicyModel) -> Path:
        """A new folder with the weights, complete before it gets its final name."""
        earlier = sorted(self._folder.glob("weights_*")) if self._ranks.is_main else []
        number = int(earlier[-1].name.removeprefix("weights_")) + 1 if earlier else 1
        draft = self._folder / "draft"
        folder = self._folder / f"weights_{number:08d}"
        if self._ranks.is_main:
            shutil.rmtree(draft, ignore_errors=True)
        model.save(draft, is_main=self._ranks.is_main)
        if self._ranks.is_main:
            draft.rename(folder)
            for old in earlier[: -NUM_KEPT + 1]:
                shutil.rmtree(old)
        return folder

    def _push(self, push: _Push) -> _PushResult:
        reports: list[ProbeReport] = []
        unreachable: dict[str, str] = {}
        pushes = [_push_and_probe(server, push) for server in self._pool.servers]
        answers = self._pool.wait_for(gather(pushes))
        for server, answer in zip(self._pool.servers, answers, strict=True):
            if isinstance(answer, UnreachableError):
                unreachable[server.url] = str(answer)
            elif isinstance(answer, EngineError):
                return _PushResult([], {}, f"cannot give {server.url} new weights: {answer}")
            else:
                reports.append(answer)
        return _PushResult(reports, unreachable)

    def _verify(
        self, model: PolicyModel, probe: Sequence[int], reports: Sequence[ProbeReport]
    ) -> None:
        expected = model.token_logprobs(probe)
        for report in reports:
            self._require_close(_mean_gap(report.prompt_logprobs, expected), report, _STALE_WEIGHTS)
            self._require_change(report, expected)
            temperature = self._config.temperature or 1.0
            scored = model.token_logprobs([*probe, *report.ids], temperature=temperature)
            completion = scored[len(probe) - 1 :]
            self._require_close(_mean_gap(report.logprobs, completion), report, _LOGPROBS_MODE)
        self._previous = {report.url: report.prompt_logprobs for report in reports} | {"": expected}

    def _require_close(self, gap: float, report: ProbeReport, advice: str) -> None:
        is_full_precision = self._config.model_dtype == "float32"
        configured = self._config.sampling.sync_tolerance
        tolerance = configured or (TOLERANCE if is_full_precision else HALF_TOLERANCE)
        if not gap <= tolerance:
            raise EngineError(
                f"{report.url} is not in sync with the trainer: the log-probs of a probe differ by "
                f"{gap:.4g} on average and sampling.sync_tolerance allows {tolerance:g}. {advice}"
            )

    def _require_change(self, report: ProbeReport, expected: Sequence[float]) -> None:
        """Raise if a server's log-probs are bit-identical although the policy's have changed."""
        previous, expected_before = self._previous.get(report.url), self._previous.get("")
        if previous is None or expected_before is None or report.prompt_logprobs != previous:
            return
        change = max(abs(new - old) for new, old in zip(expected, expected_before, strict=True))
        if change > MIN_CHANGE:
            raise EngineError(
                f"{report.url} is not in sync with the trainer: it answers a probe exactly as "
                f"before the last update, which changed a log-prob by {change:.4g}. "
                f"{_STALE_WEIGHTS}"
            )


_STALE_WEIGHTS = (
    "It did not load the weights that were pushed, or serves another model; check that it can read "
    "sampling.publish_dir, restart it and continue with --resume_from"
)
_LOGPROBS_MODE = (
    "Its weights are right but the log-probs of its completions are not; start vLLM with "
    "--logprobs-mode processed_logprobs --generation-config vllm and leave sampling.top_p at 1"
)


def _probe(model: PolicyModel) -> list[int]:
    rng = Random(0)
    length = max(2, min(PROBE_TOKENS, model.context - PROBE_REPLY_TOKENS, model.context // 2))
    return [rng.randrange(len(model.tokenizer)) for _ in range(length)]


def _probe_body(probe: Sequence[int], config: GRPOConfig) -> dict[str, Any]:
    return {
        "prompt": list(probe),
        "max_tokens": PROBE_REPLY_TOKENS,
        "temperature": config.temperature or 1.0,
        "top_p": config.sampling.top_p,
        "seed": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "prompt_logprobs": 1,
        "return_token_ids": True,
    }


async def _push_and_probe(server: Server, push: _Push) -> ProbeReport | EngineError:
    try:
        if server.is_dead:
            await server.require_health()  # a server that hangs would delay every sync
        await server.load_weights(push.folder, is_adapter=push.is_adapter)
        choice = await server.probe(push.body)
        choice.check(max_tokens=push.body["max_tokens"], vocabulary=push.vocabulary)
        return ProbeReport(
            server.url,
            _prompt_logprobs(push.body["prompt"], choice),
            choice.token_ids,
            choice.logprobs.token_logprobs,
            server.fingerprint,
        )
    except EngineError as error:
        return error


def _prompt_logprobs(prompt: Sequence[int], choice: CompletionChoice) -> list[float]:
    entries = (choice.prompt_logprobs or [])[1:]
    found = [
        (entry or {}).get(str(token)) for token, entry in zip(prompt[1:], entries, strict=False)
    ]
    logprobs = [entry.logprob for entry in found if entry is not None]
    if len(logprobs) != len(prompt) - 1:
        raise InvalidAnswerError(
            "it does not return the log-probs of a prompt; it must support prompt_logprobs, "
            "logprobs and return_token_ids, as vLLM and grpo-cl serve do"
        )
    return logprobs


def _mean_gap(left: Sequence[float], right: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(left, right, strict=True))
