"""``grpo-cl serve``: a policy behind an OpenAI-compatible API."""

import argparse
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import yaml

from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig, LoraConfig, SamplingConfig
from grpo_cl.errors import ConfigError
from grpo_cl.rundir import RunDir
from grpo_cl.rundir.layout import CheckpointFiles

if TYPE_CHECKING:
    from grpo_cl.policy.voices import Voices

KEY_VARIABLE = "GRPO_CL_SERVER_KEY"
MIB = 1 << 20


def serve(arguments: argparse.Namespace) -> int:
    """Serve a policy until SIGTERM."""
    from grpo_cl.serve.app import Rules, make_app
    from grpo_cl.serve.process import Address, run_server
    from grpo_cl.serve.scribe import Scribe
    from grpo_cl.serve.service import Service
    from grpo_cl.serve.weights import Weights

    key = arguments.api_key or os.environ.get(KEY_VARIABLE) or None
    address = Address(arguments.host, arguments.port)
    address.check(has_key=key is not None)
    listener = address.listen()
    config = serving_config(arguments.model, arguments.settings)
    weights = Weights(_voices(arguments, config), arguments.weights_dir)
    scribe = Scribe(weights, slots=config.sampling.slots)
    service = Service(scribe, rng=Random(arguments.seed))
    app = make_app(service, Rules(api_key=key, max_body=arguments.max_body_mib * MIB))
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    try:
        run_server(
            app,
            listener,
            announce=lambda: print(f"{weights.voices.name} is at {url}/v1", flush=True),
        )
    finally:
        scribe.close()
    return 0


def _voices(arguments: argparse.Namespace, config: GRPOConfig) -> "Voices":
    from transformers.utils.logging import disable_progress_bar

    from grpo_cl.policy.model import PolicyModel
    from grpo_cl.policy.runtime import use_few_threads
    from grpo_cl.policy.voices import Voices

    disable_progress_bar()
    model = PolicyModel.load(config)
    use_few_threads(model)
    name = arguments.served_model_name or Path(arguments.model).name or arguments.model
    return Voices(model, config, name)


def serving_config(model: str, settings: list[str]) -> GRPOConfig:
    """The run whose policy is served: its own description for a checkpoint, over it the settings.

    What only matters for learning is left out.
    """
    place, described = _place(Path(model).expanduser())
    base: dict[str, Any] = {}
    if described is not None:
        found = yaml.safe_load(described.read_text())
        sampling = {name: found["sampling"][name] for name in ("max_context", "slots", "dialect")}
        base = {"model_dtype": found["model_dtype"], "sampling": sampling}
    chosen = {**base, "model_name_or_path": str(place) if place else model}
    config = read_config(settings, chosen)
    own = SamplingConfig.model_validate(
        config.sampling.model_dump(include={"top_p", "max_context", "slots", "dialect"})
    )
    return config.model_copy(update={"kl_coef": 0.0, "lora": LoraConfig(), "sampling": own})


def _place(path: Path) -> tuple[Path | None, Path | None]:
    """The folder of the weights and the description of their run, where there are such."""
    checkpoint = CheckpointFiles(path)
    if checkpoint.model_dir.is_dir():
        return checkpoint.model_dir, checkpoint.config if checkpoint.config.is_file() else None
    if path.name == checkpoint.model_dir.name and CheckpointFiles(path.parent).config.is_file():
        return path, CheckpointFiles(path.parent).config
    if not RunDir(path).metrics_journal.is_file():
        return None, None
    stages = 0
    while RunDir(path).stage_checkpoint(stages).model_dir.is_dir():
        stages += 1
    if stages == 0:
        raise ConfigError(f"the run in {path} has finished no stage yet; there is nothing to serve")
    last = RunDir(path).stage_checkpoint(stages - 1)
    return last.model_dir, last.config
