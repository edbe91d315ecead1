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
from grpo_cl.policy.inference.adapter_pool import AdapterPool
from grpo_cl.policy.inference.backends import InferenceBackend, weight_fingerprint
from grpo_cl.policy.inference.policy_agent import PolicyActor
from grpo_cl.policy.inference.sampler import TokenCompletion
from grpo_cl.policy.inference.server_client import ServerPool, _require_vllm
from grpo_cl.policy.inference.server_sampler import ServerSampler
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.inference.weight_sync import WeightPublisher
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tiny_model import Size
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.serving.generation_worker import GenerationPrompt, GenerationWorker
from grpo_cl.serving.weights import ServedWeights
from sampling import finish, greedy, is_greedy, request, sampler
from serving import Served, serve_worker, served, word_policy
from small_runs import make_policy, small_config, small_trainer
from tiny_policies import load, perturb, save_model

SAMPLED = {"temperature": 1.0, "max_new_tokens": 40}


@contextmanager
def servers(module: torch.nn.Module, count: int) -> Generator[list[Served]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(served(*word_policy(copy.deepcopy(module)))) for _ in range(count)
        ]


@contextmanager
def sampler_over(
    pool: ServerPool, config: GRPOConfig, *, vocabulary: int = 1 << 16
) -> Generator[ServerSampler]:
    pool.open()
    publisher = WeightPublisher(pool, config, DistributedContext())
    engine = ServerSampler(pool, publisher, context=CONTEXT, vocabulary=vocabulary)
    try:
        yield engine
    finally:
        engine.close()


def over(running: Sequence[Served]) -> Any:
    pool = ServerPool([server.url for server in running])
    return sampler_over(pool, word_policy(built(llama))[1])


def test_completions_equal_those_of_the_in_process_sampler():
    module = built(llama)
    local = sampler(module)
    with servers(module, 2) as running, over(running) as engine:
        requests = [request(n, [n, 2, 3], seed=n, **SAMPLED) for n in range(6)]
        for each in (local, engine):
            each.submit(requests)
        expected, done = finish(local, 6), finish(engine, 6)
        for name, completion in done.items():
            assert completion.ids == expected[name].ids
            assert completion.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)


def test_sequence_stays_with_its_server_and_new_ones_go_to_the_least_loaded():
    module = built(llama)
    with servers(module, 2) as running, over(running) as engine:
        engine.submit([request(n, [n], **SAMPLED) for n in range(4)])
        done = finish(engine, 4)
        assigned = {name: engine._pool._assigned[name].url for name in done}
        assert sorted(assigned.values()) == sorted(2 * [server.url for server in running])
        engine.submit([request(n, [7], **SAMPLED) for n in range(4)])
        finish(engine, 4)
        assert {name: engine._pool._assigned[name].url for name in done} == assigned
        engine.release(0)
        assert 0 not in engine._pool._assigned


@pytest.mark.slow
def test_requests_of_a_dead_server_move_to_the_others(caplog: pytest.LogCaptureFixture):
    module = built(llama)
    histories = {n: [n, 2, 3] for n in range(6)}
    with servers(module, 2) as running, over(running) as engine:
        engine.submit([request(n, ids, max_new_tokens=60) for n, ids in histories.items()])
        with caplog.at_level(logging.ERROR, "uvicorn.error"):  # the killed server logs errors
            running[0].kill()
        for name, completion in finish(engine, 6).items():
            assert is_greedy(module, histories[name], completion.ids)
            histories[name] += completion.ids
        engine.submit([request(n, [9], max_new_tokens=5) for n in histories])
        for name, completion in finish(engine, 6).items():
            assert is_greedy(module, [*histories[name], 9], completion.ids)
        assert [server.is_dead for server in engine._pool.servers] == [True, False]


@pytest.mark.slow
def test_run_ends_with_an_error_when_all_servers_are_dead():
    with servers(built(llama), 1) as running, over(running) as engine:
        running[0].kill()
        engine.submit([request(0, [1])])
        with pytest.raises(EngineError, match=r"all 1 servers are dead.*--resume_from"):
            finish(engine, 1)


def test_unreachable_or_too_old_server_is_rejected_at_the_start():
    unreachable = ServerPool(["http://127.0.0.1:9"])
    with pytest.raises(ConfigError, match=r"a server of sampling\.servers cannot be used"):
        unreachable.open()
    unreachable.close()
    with pytest.raises(EngineError, match=r"is vLLM 0.9.2; 0.20 or later is needed"):
        _require_vllm("0.9.2")
    with pytest.raises(EngineError, match="is neither vLLM nor grpo-cl serve"):
        _require_vllm("")
    _require_vllm("0.23.1.dev3+gabc")


def test_password_of_a_server_is_not_in_errors_and_logs(caplog: pytest.LogCaptureFixture):
    pool = ServerPool(["http://me:canary-password@127.0.0.1:9"])
    with pytest.raises(ConfigError, match="<redacted>@127") as error:
        pool.open()
    pool.mark_dead(pool.servers[0], str(error.value))
    pool.close()
    assert "<redacted>@127.0.0.1:9 is dead" in caplog.text
    assert "canary" not in caplog.text


def test_servers_need_the_server_engine_and_the_reverse():
    with pytest.raises(ValueError, match=r"sampling\.servers and sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"engine": "server"}})
    with pytest.raises(ValueError, match=r"sampling\.servers and sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"servers": ["http://127.0.0.1:8000"]}})
    with pytest.raises(ValueError, match=r"require sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"publish_dir": "x"}})


def settings(tmp_path: Path, **sampling: Any) -> GRPOConfig:
    save_model(tmp_path / "base")
    return small_config(
        tmp_path / "base", tmp_path / "log", kl_coef=0.0, temperature=0.7, sampling=sampling
    )


@pytest.mark.slow
def test_published_weights_reach_every_server_and_old_folders_are_deleted(tmp_path: Path):
    config = settings(tmp_path)
    trained = load(tmp_path / "base")
    with ExitStack() as stack:
        running = [
            stack.enter_context(served(load(tmp_path / "base"), config, folders=[tmp_path]))
            for _ in range(2)
        ]
        engine = stack.enter_context(
            sampler_over(ServerPool([server.url for server in running]), config)
        )
        for _ in range(4):
            perturb(trained)
            engine.sync_weights(trained)
            engine.submit([request(n, [n, 2], max_new_tokens=5) for n in range(4)])
            for name, completion in finish(engine, 4).items():
                assert completion.ids == greedy(trained.module, [name, 2], 5)
                engine.release(name)
        assert [server.weights.version for server in running] == [4, 4]
    folders = sorted(path.name for path in (tmp_path / "log" / "published").iterdir())
    assert folders == ["weights_00000003", "weights_00000004"]


@pytest.mark.slow
def test_with_lora_only_the_adapter_is_published(tmp_path: Path):
    save_model(tmp_path / "base")
    lora = {"r": 2, "alpha": 4}
    config = small_config(tmp_path / "base", tmp_path / "log", lora=lora, temperature=0.7)
    trained = load(tmp_path / "base", lora=lora)
    with (
        served(load(tmp_path / "base"), config, folders=[tmp_path]) as server,
        sampler_over(ServerPool([server.url]), config) as engine,
    ):
        for _ in range(2):
            perturb(trained)
            engine.sync_weights(trained)
            engine.submit([request(0, [1, 2], max_new_tokens=5)])
            assert finish(engine, 1)[0].ids == greedy(trained.module, [1, 2], 5)
            engine.release(0)
        assert server.weights.pool.names == ["policy", "grpo-cl-policy"]


class IgnoredReload(ServedWeights):
    """Reports that it loaded new weights, and keeps its own."""

    @override
    def reload(self, folder: Path) -> None:
        self.version += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tolerance", "reason"),
    [(None, "differ by .* on average"), (1e6, "answers a probe exactly as before")],
)
def test_server_that_ignores_new_weights_ends_the_run(
    tmp_path: Path, tolerance: float | None, reason: str
):
    sampling = {"engine": "server", "servers": ["http://x"], "sync_tolerance": tolerance}
    config = settings(tmp_path, **sampling)
    trained = load(tmp_path / "base")
    worker = GenerationWorker(
        IgnoredReload(AdapterPool(load(tmp_path / "base"), config, "p")), slots=2
    )
    with serve_worker(worker) as server, sampler_over(ServerPool([server.url]), config) as engine:
        engine.sync_weights(trained)  # its weights are still the same
        perturb(trained)
        with pytest.raises(EngineError, match=f"not in sync with the trainer.*{reason}"):
            engine.sync_weights(trained)


class RawLogprobsWorker(GenerationWorker):
    """Returns log-probs at temperature 1 whatever the temperature, as vLLM does by default."""

    @override
    async def generate(self, prompt: GenerationPrompt) -> TokenCompletion:
        completion = await super().generate(prompt)
        scored = await self.score(prompt.model, [*prompt.ids, *completion.ids])
        return completion._replace(logprobs=scored[len(prompt.ids) - 1 :])


@pytest.mark.slow
def test_logprobs_at_another_temperature_are_detected(tmp_path: Path):
    config = settings(tmp_path)
    weights = ServedWeights(AdapterPool(load(tmp_path / "base"), config, "p"), [tmp_path])
    worker = RawLogprobsWorker(weights, slots=2)
    trained = load(tmp_path / "base")
    with (
        serve_worker(worker) as server,
        sampler_over(ServerPool([server.url]), config) as engine,
        pytest.raises(EngineError, match="processed_logprobs --generation-config vllm"),
    ):
        engine.sync_weights(trained)


@pytest.mark.slow
def test_restarted_server_gets_no_requests_before_it_has_the_weights(tmp_path: Path):
    config = settings(tmp_path)
    trained = load(tmp_path / "base")
    with (
        served(load(tmp_path / "base"), config, folders=[tmp_path]) as server,
        sampler_over(ServerPool([server.url]), config) as engine,
    ):
        perturb(trained)
        engine.sync_weights(trained)
        server.weights.version = 0
        engine.submit([request(0, [1])])
        with pytest.raises(EngineError, match="was restarted and has other weights"):
            finish(engine, 1)
        engine.release(0)
        engine.sync_weights(trained)
        engine.submit([request(0, [1, 2], max_new_tokens=5)])
        assert finish(engine, 1)[0].ids == greedy(trained.module, [1, 2], 5)


@pytest.mark.slow
def test_weights_are_pushed_only_when_they_have_changed(tmp_path: Path):
    save_model(tmp_path / "base")
    config = settings(tmp_path)
    with served(load(tmp_path / "base"), config, folders=[tmp_path]) as server:
        sampling = {"engine": "server", "servers": [server.url]}
        trained = load(tmp_path / "base")
        engine = InferenceBackend(trained, settings(tmp_path, **sampling), DistributedContext())
        for count in (1, 1, 2, 2):
            if count > server.weights.version:
                perturb(trained)
            engine.sync_weights()
            assert server.weights.version == count
        engine.close()


def test_clients_of_a_shared_sampler_get_their_own_completions(tmp_path: Path):
    save_model(tmp_path / "base")
    with served(load(tmp_path / "base"), settings(tmp_path), folders=[tmp_path]) as server:
        sampling = {"engine": "server", "servers": [server.url]}
        trained = load(tmp_path / "base")
        engine = InferenceBackend(trained, settings(tmp_path, **sampling), DistributedContext())
        first, second = engine.sampler(), engine.sampler()
        first.submit([request(n, [n, 1], max_new_tokens=5) for n in (1, 2)])
        second.submit([request(n, [n, 1], max_new_tokens=5) for n in (3, 4)])
        for names, client in (((1, 2), first), ((3, 4), second)):
            done = finish(client, 2)
            assert {n: done[n].ids for n in done} == {
                n: greedy(trained.module, [n, 1], 5) for n in names
            }
        engine.close()


def test_fingerprint_changes_with_any_weight(tmp_path: Path):
    policy = load(save_model(tmp_path / "base"), lora={"r": 2, "alpha": 4})
    module: Any = policy.module
    before = weight_fingerprint(module)
    assert weight_fingerprint(module) == before
    for weight in list(module.parameters())[::7]:
        original = weight.data.clone()
        weight.data.reshape(-1)[0] += 1e-3
        assert weight_fingerprint(module) != before
        weight.data.copy_(original)
    assert weight_fingerprint(module) == before


def trained_tokens(log_dir: Path) -> list[Any]:
    lines = (log_dir / "trajectories.jsonl").read_text().splitlines()
    return [json.loads(line)["tokens"]["ids"] for line in lines]


@pytest.mark.parametrize(
    "lora", [{}, pytest.param({"r": 4, "alpha": 8}, marks=pytest.mark.slow)], ids=["all", "lora"]
)
def test_run_over_a_server_equals_the_run_in_process(tmp_path: Path, lora: dict[str, Any]):
    policy = make_policy(tmp_path / "policy", Size(width=64, layers=2))
    plain = {"task_order": ("mock",), "num_steps_per_task": 3, "lora": lora}
    local_config = small_config(policy, tmp_path / "local", **plain)
    small_trainer(local_config).train()
    base = local_config.model_copy(update={"lora": LoraConfig()})
    with served(PolicyModel.load(base), base, slots=8, folders=[tmp_path]) as server:
        sampling = {
            **local_config.sampling.model_dump(),
            "engine": "server",
            "servers": [server.url],
        }
        remote_config = small_config(policy, tmp_path / "remote", **plain, sampling=sampling)
        trainer = small_trainer(remote_config)
        trainer.train()
        assert server.weights.version == 4  # before the first step and after each
        runtime = trainer.policy
        assert isinstance(runtime, PolicyRuntime)
        frozen = runtime.frozen_actor(temperature=0.0)
        assert isinstance(frozen, PolicyActor)
        assert isinstance(
            frozen.queue.sampler, TransformersSampler
        )  # on weights that do not change
        runtime._engine.close()
    assert trained_tokens(tmp_path / "remote") == trained_tokens(tmp_path / "local")
    matrices = [(tmp_path / name / "r_matrix.json").read_text() for name in ("local", "remote")]
    assert matrices[0] == matrices[1]
