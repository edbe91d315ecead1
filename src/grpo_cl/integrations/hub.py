"""Uploads the model of a finished stage to a Hugging Face repository: ``grpo-cl push``."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] — of the HTTP client that the hub uses
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.report.model_card import CARD_FILE
from grpo_cl.runs.checkpoints import verify
from grpo_cl.runs.resume import find_stage_model
from grpo_cl.storage.files import read_json

ADAPTER_FILE = "adapter_config.json"
BASE_MODEL = "base_model_name_or_path"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write to it"


class Upload(NamedTuple):
    """Files of a model, by their paths in the repository."""

    model_dir: Path
    contents: dict[str, Path | bytes]


def prepare_upload(path: Path, *, base_model: str | None = None) -> Upload:
    """The verified files of a run's last model, or of the stage that ``path`` names.

    ``base_model`` is the repository of the base model, which replaces a path on this machine.
    """
    found = find_stage_model(path)
    if found is None:
        raise ConfigError(
            f"{str(path)!r} is neither a run nor a stage of one (RUN/checkpoint_task_N); only "
            "models of runs are pushed, because their files can be verified"
        )
    if problem := verify(found.model_dir.parent):
        raise CheckpointError(
            f"the model {found.model_dir} is not the one that was saved: in "
            f"{found.model_dir.parent}, {problem}; restore it, or push another stage"
        )
    files = {
        file.relative_to(found.model_dir).as_posix(): file
        for file in sorted(found.model_dir.rglob("*"))
        if file.is_file()
    }
    contents: dict[str, Path | bytes] = {**files}
    if ADAPTER_FILE in files:
        contents[ADAPTER_FILE] = _adapter_config(files[ADAPTER_FILE], base_model)
    elif read_json(found.model_dir / "config.json").get("model_type") == "tabular":
        raise ConfigError(f"the policy of {path} is tabular, which no other program loads")
    if base_model is not None and CARD_FILE in files:
        card = ModelCard(files[CARD_FILE].read_text())
        card.data["base_model"] = base_model
        contents[CARD_FILE] = str(card).encode()
    return Upload(found.model_dir, contents)


def push(upload: Upload, repository: str, *, is_private: bool) -> str:
    """Create the repository if it does not exist, upload the files as one commit; returns its URL.

    The endpoint is ``HF_ENDPOINT``, the token that of the login or ``HF_TOKEN``.
    """
    require_repository(repository)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with _hub_errors(repository, api.endpoint):
        url = api.create_repo(repository, private=is_private or None, exist_ok=True)
        api.create_commit(
            repository,
            [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
                for name, content in upload.contents.items()
            ],
            commit_message="Upload a policy trained with grpo-cl",
        )
    return str(url)


def require_repository(repository: str) -> None:
    """Refuse a name that is not OWNER/NAME."""
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{repository!r} is no repository: {reason}; give OWNER/NAME") from error
    if "/" not in repository:
        raise ConfigError(f"{repository!r} names no owner; give OWNER/NAME")


def _adapter_config(path: Path, base_model: str | None) -> bytes:
    """The adapter's settings, with a base model that others can load."""
    settings = json.loads(path.read_text())
    base = base_model or str(settings.get(BASE_MODEL) or "")
    if not base or Path(base).is_absolute():
        raise ConfigError(
            f"the adapter's base model is {Path(base).name!r} on this machine, which others cannot "
            "load; name its repository with --base_model OWNER/NAME"
        )
    require_repository(base)
    return json.dumps(settings | {BASE_MODEL: base}, indent=2).encode()


@contextmanager
def _hub_errors(repository: str, endpoint: str) -> Generator[None]:
    """Errors of the hub as one sentence, without headers, in which the token is."""
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise ConfigError(f"{endpoint} needs a token for {repository!r}; {LOGIN}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        remedy = LOGIN if status in (401, 403, 404) else "try again later"
        raise ConfigError(
            f"{endpoint} did not accept {repository!r} (status {status}); {remedy}"
        ) from error
    except (HTTPError, OfflineModeIsEnabled, ConnectionError) as error:
        raise ConfigError(
            f"{endpoint} cannot be reached ({type(error).__name__}), so {repository!r} was not "
            "written; check the network and HF_ENDPOINT, and push again"
        ) from error
