import copy
import json
import logging
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from architectures import CONTEXT, built, llama
from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.errors import ConfigError, EngineError
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.engines import Engine, weight_stamp
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.publishing import Publisher
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.remote import RemoteSampler
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.policy.sampler import Completion
from grpo_cl.policy.servers import Fleet, _require_vllm
from grpo_cl.policy.tiny_model import Size
from grpo_cl.policy.voices import Voices
from grpo_cl.serve.scribe import Prompt, Scribe
from grpo_cl.serve.weights import Weights
from sampling import finish, greedy, is_greedy, request, sampler
from serving import Served, serve_scribe, served, word_policy
from small_runs import make_policy, small_config, small_trainer
from tiny_policies import load, move, save_model

WARM = {"temperature": 1.0, "max_new_tokens": 40}


@contextmanager
def servers(module: torch.nn.Module, count: int) -> Generator[list[Served]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(served(*word_policy(copy.deepcopy(module)))) for _ in range(count)
        ]


@contextmanager
def remote(fleet: Fleet, config: GRPOConfig) -> Generator[RemoteSampler]:
    fleet.open()
    engine = RemoteSampler(fleet, Publisher(fleet, config, Ranks()), context=CONTEXT)
    try:
        yield engine
    finally:
        engine.close()


def over(found: Sequence[Served]) -> Any:
    return remote(Fleet([one.url for one in found]), word_policy(built(llama))[1])


def test_replies_are_those_of_the_sampler_in_process():
    module = built(llama)
    home = sampler(module)
    with servers(module, 2) as found, over(found) as engine:
        orders = [request(n, [n, 2, 3], seed=n, **WARM) for n in range(6)]
        for one in (home, engine):
            one.submit(orders)
        expected, done = finish(home, 6), finish(engine, 6)
        for name, completion in done.items():
            assert completion.ids == expected[name].ids
            assert completion.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)


def test_a_sequence_stays_with_its_server_and_new_ones_go_where_least_is_to_do():
    module = built(llama)
    with servers(module, 2) as found, over(found) as engine:
        engine.submit([request(n, [n], **WARM) for n in range(4)])
        done = finish(engine, 4)
        homes = {name: engine._fleet._homes[name].url for name in done}
        assert sorted(homes.values()) == sorted(2 * [one.url for one in found])
        engine.submit([request(n, [7], **WARM) for n in range(4)])
        finish(engine, 4)
        assert {name: engine._fleet._homes[name].url for name in done} == homes
        engine.release(0)
        assert 0 not in engine._fleet._homes


def test_a_lost_server_is_survived(caplog: pytest.LogCaptureFixture):
    module = built(llama)
    histories = {n: [n, 2, 3] for n in range(6)}
    with servers(module, 2) as found, over(found) as engine:
        engine.submit([request(n, ids, max_new_tokens=60) for n, ids in histories.items()])
        with caplog.at_level(logging.ERROR, "uvicorn.error"):  # it is meant to end badly
            found[0].kill()
        for name, completion in finish(engine, 6).items():
            assert is_greedy(module, histories[name], completion.ids)
            histories[name] += completion.ids
        engine.submit([request(n, [9], max_new_tokens=5) for n in histories])
        for name, completion in finish(engine, 6).items():
            assert is_greedy(module, [*histories[name], 9], completion.ids)
        assert [server.is_lost for server in engine._fleet.servers] == [True, False]


def test_when_no_server_is_left_the_run_ends_with_a_sentence():
    with servers(built(llama), 1) as found, over(found) as engine:
        found[0].kill()
        engine.submit([request(0, [1])])
        with pytest.raises(EngineError, match=r"none of 1 servers is left.*--resume_from"):
            finish(engine, 1)


def test_a_server_that_is_not_there_or_too_old_is_refused_at_the_start():
    absent = Fleet(["http://127.0.0.1:9"])
    with pytest.raises(ConfigError, match=r"a server of sampling\.servers is of no use"):
        absent.open()
    absent.close()
    with pytest.raises(EngineError, match=r"is vLLM 0.9.2, and 0.20 or later is needed"):
        _require_vllm("http://x", "0.9.2")
    with pytest.raises(EngineError, match="does not say that it is vLLM"):
        _require_vllm("http://x", "")
    _require_vllm("http://x", "0.23.1.dev3+gabc")


def test_servers_are_named_where_they_are_used():
    with pytest.raises(ValueError, match=r"sampling\.servers and sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"engine": "server"}})
    with pytest.raises(ValueError, match=r"sampling\.servers and sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"servers": ["http://127.0.0.1:8000"]}})
    with pytest.raises(ValueError, match=r"are for sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"publish_dir": "x"}})


def settings(tmp_path: Path, **sampling: Any) -> GRPOConfig:
    save_model(tmp_path / "base")
    return small_config(
        tmp_path / "base", tmp_path / "log", kl_coef=0.0, temperature=0.7, sampling=sampling
    )


def test_published_weights_write_on_every_server_and_old_folders_go(tmp_path: Path):
    config = settings(tmp_path)
    trained = load(tmp_path / "base")
    with ExitStack() as stack:
        found = [
            stack.enter_context(served(load(tmp_path / "base"), config, folders=[tmp_path]))
            for _ in range(2)
        ]
        engine = stack.enter_context(remote(Fleet([one.url for one in found]), config))
        for _ in range(4):
            move(trained)
            engine.refresh(trained)
            engine.submit([request(n, [n, 2], max_new_tokens=5) for n in range(4)])
            for name, completion in finish(engine, 4).items():
                assert completion.ids == greedy(trained.module, [name, 2], 5)
                engine.release(name)
        assert [one.weights.version for one in found] == [4, 4]
    folders = sorted(path.name for path in (tmp_path / "log" / "published").iterdir())
    assert folders == ["weights_00000003", "weights_00000004"]


def test_adapters_are_published_alone(tmp_path: Path):
    save_model(tmp_path / "base")
    lora = {"r": 2, "alpha": 4}
    config = small_config(tmp_path / "base", tmp_path / "log", lora=lora, temperature=0.7)
    trained = load(tmp_path / "base", lora=lora)
    with (
        served(load(tmp_path / "base"), config, folders=[tmp_path]) as server,
        remote(Fleet([server.url]), config) as engine,
    ):
        for _ in range(2):
            move(trained)
            engine.refresh(trained)
            engine.submit([request(0, [1, 2], max_new_tokens=5)])
            assert finish(engine, 1)[0].ids == greedy(trained.module, [1, 2], 5)
            engine.release(0)
        assert server.weights.voices.names == ["policy", "grpo-cl-policy"]


class DeafWeights(Weights):
    """Says that it took new weights, and keeps its own."""

    @override
    def reload(self, folder: Path) -> None:
        self.version += 1


@pytest.mark.parametrize(
    ("tolerance", "said"),
    [(None, "differ by .* in the mean"), (1e6, "answers a probe exactly as before")],
)
def test_a_server_that_ignores_new_weights_ends_the_run(
    tmp_path: Path, tolerance: float | None, said: str
):
    sampling = {"engine": "server", "servers": ["http://x"], "sync_tolerance": tolerance}
    config = settings(tmp_path, **sampling)
    trained = load(tmp_path / "base")
    scribe = Scribe(DeafWeights(Voices(load(tmp_path / "base"), config, "p")), slots=2)
    with serve_scribe(scribe) as server, remote(Fleet([server.url]), config) as engine:
        engine.refresh(trained)  # what it serves is still the same
        move(trained)
        with pytest.raises(EngineError, match=f"not in step with the trainer.*{said}"):
            engine.refresh(trained)


class RawScribe(Scribe):
    """Tells log-probs at temperature 1 whatever the temperature, as vLLM does by default."""

    @override
    async def write(self, prompt: Prompt) -> Completion:
        completion = await super().write(prompt)
        scored = await self.score(prompt.voice, [*prompt.ids, *completion.ids])
        return completion._replace(logprobs=scored[len(prompt.ids) - 1 :])


def test_logprobs_at_another_temperature_are_noticed(tmp_path: Path):
    config = settings(tmp_path)
    weights = Weights(Voices(load(tmp_path / "base"), config, "p"), [tmp_path])
    scribe = RawScribe(weights, slots=2)
    trained = load(tmp_path / "base")
    with (
        serve_scribe(scribe) as server,
        remote(Fleet([server.url]), config) as engine,
        pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"),
    ):
        engine.refresh(trained)


def test_a_server_started_anew_is_not_asked_before_it_has_the_weights(tmp_path: Path):
    config = settings(tmp_path)
    trained = load(tmp_path / "base")
    with (
        served(load(tmp_path / "base"), config, folders=[tmp_path]) as server,
        remote(Fleet([server.url]), config) as engine,
    ):
        move(trained)
        engine.refresh(trained)
        server.weights.version = 0
        engine.submit([request(0, [1])])
        with pytest.raises(EngineError, match="started anew and has other weights"):
            finish(engine, 1)
        engine.release(0)
        engine.refresh(trained)
        engine.submit([request(0, [1, 2], max_new_tokens=5)])
        assert finish(engine, 1)[0].ids == greedy(trained.module, [1, 2], 5)


def test_weights_travel_only_when_they_have_changed(tmp_path: Path):
    save_model(tmp_path / "base")
    config = settings(tmp_path)
    with served(load(tmp_path / "base"), config, folders=[tmp_path]) as server:
        sampling = {"engine": "server", "servers": [server.url]}
        trained = load(tmp_path / "base")
        engine = Engine(trained, settings(tmp_path, **sampling), Ranks())
        for count in (1, 1, 2, 2):
            if count > server.weights.version:
                move(trained)
            engine.refresh()
            assert server.weights.version == count
        engine.close()


def test_actors_that_share_servers_get_their_own_replies(tmp_path: Path):
    save_model(tmp_path / "base")
    with served(load(tmp_path / "base"), settings(tmp_path), folders=[tmp_path]) as server:
        sampling = {"engine": "server", "servers": [server.url]}
        trained = load(tmp_path / "base")
        engine = Engine(trained, settings(tmp_path, **sampling), Ranks())
        one, other = engine.sampler(), engine.sampler()
        one.submit([request(n, [n, 1], max_new_tokens=5) for n in (1, 2)])
        other.submit([request(n, [n, 1], max_new_tokens=5) for n in (3, 4)])
        for names, sampler in (((1, 2), one), ((3, 4), other)):
            done = finish(sampler, 2)
            assert {n: done[n].ids for n in done} == {
                n: greedy(trained.module, [n, 1], 5) for n in names
            }
        engine.close()


def test_a_stamp_sees_every_weight_and_the_adapters_in_use(tmp_path: Path):
    policy = load(save_model(tmp_path / "base"), lora={"r": 2, "alpha": 4})
    module: Any = policy.module
    before = weight_stamp(module)
    assert weight_stamp(module) == before
    for weight in list(module.parameters())[::7]:
        kept = weight.data.clone()
        weight.data.reshape(-1)[0] += 1e-3
        assert weight_stamp(module) != before
        weight.data.copy_(kept)
    assert weight_stamp(module) == before


def trained_tokens(log_dir: Path) -> list[Any]:
    lines = (log_dir / "trajectories.jsonl").read_text().splitlines()
    return [json.loads(line)["tokens"]["ids"] for line in lines]


@pytest.mark.parametrize(
    "lora", [{}, pytest.param({"r": 4, "alpha": 8}, marks=pytest.mark.slow)], ids=["all", "lora"]
)
def test_a_run_over_a_server_is_the_run_in_process(tmp_path: Path, lora: dict[str, Any]):
    policy = make_policy(tmp_path / "policy", Size(width=64, layers=2))
    plain = {"task_order": ("mock",), "num_steps_per_task": 3, "lora": lora}
    home = small_config(policy, tmp_path / "home", **plain)
    small_trainer(home).train()
    base = home.model_copy(update={"lora": LoraConfig()})
    with served(PolicyModel.load(base), base, slots=8, folders=[tmp_path]) as server:
        sampling = {**home.sampling.model_dump(), "engine": "server", "servers": [server.url]}
        away = small_config(policy, tmp_path / "away", **plain, sampling=sampling)
        trainer = small_trainer(away)
        trainer.train()
        assert server.weights.version == 4  # before the first step, and after each
        runtime = trainer.policy
        assert isinstance(runtime, PolicyRuntime)
        frozen = runtime.frozen_actor(temperature=0.0)
        assert isinstance(frozen, PolicyActor)
        assert isinstance(frozen.desk.sampler, TransformersSampler)  # of weights that stay
        runtime._engine.close()
    assert trained_tokens(tmp_path / "away") == trained_tokens(tmp_path / "home")
    matrices = [(tmp_path / name / "r_matrix.json").read_text() for name in ("home", "away")]
    assert matrices[0] == matrices[1]
