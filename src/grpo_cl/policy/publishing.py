"""New weights for servers, and the proof that they write with them.

A server that goes on with older weights trains a policy on somebody else's tokens, and nothing
else would show it. So after each push every server is asked about a probe: the log-probs of
its tokens, and a reply drawn as the run draws, are compared with the trainer's own.
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
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.probing import token_logprobs
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.servers import ADAPTER, Fleet, Server, UnreachableError, all_of
from grpo_cl.rundir import RunDir

KEPT = 2
"""Published folders that stay: a server may still be reading the one before."""
PROBE, PROBE_REPLY = 24, 8
"""Tokens of the probe, and of the reply to it."""
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.2
"""Mean difference of log-probs that is allowed in float32 and in half precision."""
MOVED = 1e-3
"""A difference of one log-prob that only other weights make."""


class Report(NamedTuple):
    """What a server said to the probe."""

    url: str
    prompt: list[float]
    """Log-probs of the probe's tokens but the first, at temperature 1."""
    ids: list[int]
    logprobs: list[float]
    """Of the reply's ids, at the run's temperature."""


class _Outcome(NamedTuple):
    """What the main process tells the others of a push."""

    reports: list[Report]
    lost: dict[str, str]
    """Why, by address."""
    error: str | None = None


class Publisher:
    """Writes a policy's weights where servers find them, and makes sure that they did."""

    def __init__(self, fleet: Fleet, config: GRPOConfig, ranks: Ranks) -> None:
        self._fleet = fleet
        self._config = config
        self._ranks = ranks
        given = config.sampling.publish_dir or RunDir(config.log_dir).published_dir
        self._folder = given.absolute()
        self._before: dict[str, list[float]] = {}

    def publish(self, model: PolicyModel) -> None:
        """Write, push, prove; all ranks call together, and all are told of a failure."""
        folder = self._write(model)
        probe = _probe(model)
        is_adapter = isinstance(model.module, PeftModel)
        outcome = None
        if self._ranks.is_main:
            outcome = self._push(folder, probe, is_adapter=is_adapter)
        told = self._ranks.broadcast(outcome)
        assert told is not None
        if told.error is not None:
            raise EngineError(told.error)
        for server in self._fleet.servers:
            server.is_lost = False
            server.model = ADAPTER if is_adapter else server.base
        for server in self._fleet.servers:
            if server.url in told.lost:
                self._fleet.lose(server, told.lost[server.url])
        self._fleet.living()
        self._prove(model, probe, told.reports)

    def _write(self, model: PolicyModel) -> Path:
        """A new folder with the weights, complete before it has its name."""
        earlier = sorted(self._folder.glob("weights_*")) if self._ranks.is_main else []
        number = int(earlier[-1].name.removeprefix("weights_")) + 1 if earlier else 1
        draft = self._folder / "draft"
        folder = self._folder / f"weights_{number:08d}"
        if self._ranks.is_main:
            shutil.rmtree(draft, ignore_errors=True)
        model.save(draft, is_main=self._ranks.is_main)
        if self._ranks.is_main:
            draft.rename(folder)
            for old in earlier[: -KEPT + 1]:
                shutil.rmtree(old)
        return folder

    def _push(self, folder: Path, probe: Sequence[int], *, is_adapter: bool) -> _Outcome:
        body = _probe_body(probe, self._config)
        reports: list[Report] = []
        lost: dict[str, str] = {}
        works = [
            _offer(server, folder, body, is_adapter=is_adapter) for server in self._fleet.servers
        ]
        answers = self._fleet.wait_for(all_of(works))
        for server, answer in zip(self._fleet.servers, answers, strict=True):
            if isinstance(answer, UnreachableError):
                lost[server.url] = str(answer)
            elif isinstance(answer, EngineError):
                return _Outcome([], {}, f"cannot give {server.url} new weights: {answer}")
            else:
                reports.append(answer)
        return _Outcome(reports, lost)

    def _prove(self, model: PolicyModel, probe: Sequence[int], reports: Sequence[Report]) -> None:
        own = token_logprobs(model, probe)
        for report in reports:
            self._require_near(_mean_gap(report.prompt, own), report, _WEIGHTS)
            self._require_new(report, own)
            warm = self._config.temperature or 1.0
            scored = token_logprobs(model, [*probe, *report.ids], temperature=warm)
            reply = scored[len(probe) - 1 :]
            self._require_near(_mean_gap(report.logprobs, reply), report, _MODE)
        self._before = {report.url: report.prompt for report in reports} | {"": own}

    def _require_near(self, gap: float, report: Report, advice: str) -> None:
        is_whole = self._config.model_dtype == "float32"
        allowed = self._config.sampling.sync_tolerance
        tolerance = allowed or (TOLERANCE if is_whole else HALF_TOLERANCE)
        if not gap <= tolerance:
            raise EngineError(
                f"{report.url} is not in step with the trainer: the log-probs of a probe differ by "
                f"{gap:.4g} in the mean and sampling.sync_tolerance allows {tolerance:g}. {advice}"
            )

    def _require_new(self, report: Report, own: Sequence[float]) -> None:
        """Refuse a server that answers bit by bit as before though the policy moved."""
        before, own_before = self._before.get(report.url), self._before.get("")
        if before is None or own_before is None or report.prompt != before:
            return
        moved = max(abs(new - old) for new, old in zip(own, own_before, strict=True))
        if moved > MOVED:
            raise EngineError(
                f"{report.url} is not in step with the trainer: it answers a probe exactly as "
                f"before the last update, which moved a log-prob by {moved:.4g}. {_WEIGHTS}"
            )


_WEIGHTS = (
    "It did not take the weights that were pushed, or serves another model; see that it reads "
    "sampling.publish_dir, start it anew and go on with --resume_from"
)
_MODE = (
    "Its weights are right but the log-probs of what it draws are not; start vLLM with "
    "--logprobs-mode processed_logprobs and leave sampling.top_p at 1"
)


def _probe(model: PolicyModel) -> list[int]:
    rng = Random(0)
    length = max(2, min(PROBE, model.context - PROBE_REPLY, model.context // 2))
    return [rng.randrange(len(model.tokenizer)) for _ in range(length)]


def _probe_body(probe: Sequence[int], config: GRPOConfig) -> dict[str, Any]:
    return {
        "prompt": list(probe),
        "max_tokens": PROBE_REPLY,
        "temperature": config.temperature or 1.0,
        "top_p": config.sampling.top_p,
        "seed": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "prompt_logprobs": 1,
        "return_token_ids": True,
    }


async def _offer(
    server: Server, folder: Path, body: Mapping[str, Any], *, is_adapter: bool
) -> Report | EngineError:
    try:
        await server.push(folder, is_adapter=is_adapter)
        choice = await server.probe(body)
    except EngineError as error:
        return error
    try:
        pairs = zip(body["prompt"][1:], choice["prompt_logprobs"][1:], strict=True)
        prompt = [float(entry[str(token)]["logprob"]) for token, entry in pairs]
        logprobs = [float(one) for one in choice["logprobs"]["token_logprobs"]]
        return Report(server.url, prompt, list(choice["token_ids"]), logprobs)
    except (LookupError, TypeError, ValueError):
        return EngineError(
            "it does not tell the log-probs of a prompt; it must know prompt_logprobs, logprobs "
            "and return_token_ids, as vLLM and grpo-cl serve do"
        )


def _mean_gap(left: Sequence[float], right: Sequence[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(left, right, strict=True))
