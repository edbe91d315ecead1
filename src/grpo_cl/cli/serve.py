"""``grpo-cl serve``: an OpenAI-compatible server for a policy."""

import argparse
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig, LoraConfig, SamplingConfig
from grpo_cl.runs.resume import find_stage_model
from grpo_cl.runs.settings import read_settings

if TYPE_CHECKING:
    from grpo_cl.policy.inference.adapter_pool import AdapterPool

KEY_VARIABLE = "GRPO_CL_SERVER_KEY"
MIB = 1 << 20


def serve(arguments: argparse.Namespace) -> int:
    """Serve a policy until SIGTERM."""
    from grpo_cl.serving.app import AccessRules, make_app
    from grpo_cl.serving.generation_worker import GenerationWorker
    from grpo_cl.serving.process import BindAddress, run_server
    from grpo_cl.serving.service import Service
    from grpo_cl.serving.weights import ServedWeights

    key = arguments.api_key or os.environ.get(KEY_VARIABLE) or None
    address = BindAddress(arguments.host, arguments.port)
    address.check(has_key=key is not None)
    config = serving_config(arguments.model, arguments.settings)
    with address.listen() as listener:
        weights = ServedWeights(_adapter_pool(arguments, config), arguments.weights_dir)
        worker = GenerationWorker(weights, slots=config.sampling.slots)
        service = Service(worker, rng=Random(arguments.seed))
        app = make_app(service, AccessRules(api_key=key, max_body=arguments.max_body_mib * MIB))
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        try:
            run_server(
                app,
                listener,
                announce=lambda: print(f"{weights.pool.name} is at {url}/v1", flush=True),
            )
        finally:
            worker.close()
    return 0


def _adapter_pool(arguments: argparse.Namespace, config: GRPOConfig) -> "AdapterPool":
    from transformers.utils.logging import disable_progress_bar

    from grpo_cl.policy.inference.adapter_pool import AdapterPool
    from grpo_cl.policy.model.policy_model import PolicyModel
    from grpo_cl.policy.runtime import limit_threads

    disable_progress_bar()
    model = PolicyModel.load(config)
    limit_threads(model)
    name = arguments.served_model_name or Path(arguments.model).name or arguments.model
    return AdapterPool(model, config, name)


def serving_config(model: str, settings: list[str]) -> GRPOConfig:
    """The config of the served policy: that of a checkpoint's run, overridden by ``settings``.

    Options that matter for training only are reset.
    """
    found = find_stage_model(Path(model).expanduser())
    base: dict[str, Any] = {}
    if found is not None and found.config is not None:
        own = read_settings(found.config)
        options = own.sampling.model_dump(include={"max_context", "slots", "dialect"})
        base = {"model_dtype": own.model_dtype, "sampling": options}
    base["model_name_or_path"] = str(found.model_dir) if found else model
    config = read_config(settings, base)
    sampling = SamplingConfig.model_validate(
        config.sampling.model_dump(include={"top_p", "max_context", "slots", "dialect"})
    )
    return config.model_copy(update={"kl_coef": 0.0, "lora": LoraConfig(), "sampling": sampling})
