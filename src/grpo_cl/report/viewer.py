"""The page of evaluation episodes, ``grpo-cl view``: one HTML file that loads nothing.

The part of its address after ``#`` names what is shown: ``#DOMAIN/TASK/STAGE`` one episode,
``#DOMAIN/TASK/STAGE,STAGE`` two side by side, ``#DOMAIN/TASK`` the two that show how the task was
lost or gained. Domain and task are percent-encoded. A stage is a row of the R-matrix, 0 before
training; ``STAGE.TRIAL`` names one of several trials. ``docs/viewer.md`` lists the filters.
"""

import base64
import gzip
import hashlib
import html
import re
from pathlib import Path
from urllib.parse import quote

from grpo_cl.report.viewer_data import Episodes, viewer_data
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import write_file

_TEMPLATES = Path(__file__).parent / "templates"


def episode_fragment(domain: str, task_id: str, *stages: int) -> str:
    """The end of an address that shows a task: after one stage, or after two, side by side."""
    place = f"/{','.join(map(str, stages))}" if stages else ""
    return f"#{quote(domain, safe='')}/{quote(task_id, safe='')}{place}"


def viewer_page(run_root: Path) -> str:
    """The page as one HTML document."""
    episodes = Episodes(run_root)
    style, script = (_source(f"viewer.{kind}") for kind in ("css", "js"))
    # Only this stylesheet and this script: text of a model cannot add another.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{episodes.name}: episodes"),
        "style": style,
        "script": script,
        "data": _packed(encode(viewer_data(episodes))),
    }
    # In one pass: a part that looks like a placeholder stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("viewer.html"))


def write_viewer(run_root: Path, out: Path | None = None) -> Path:
    """Write the page to ``out``, by default ``episodes.html`` in the run directory."""
    file = out or RunDir(run_root).viewer
    write_file(file, [viewer_page(run_root)])
    return file


def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _packed(text: str) -> str:
    """Compressed and in base64: a tenth of the size, and no character of it is markup."""
    return base64.b64encode(gzip.compress(text.encode("ascii"), mtime=0)).decode()
