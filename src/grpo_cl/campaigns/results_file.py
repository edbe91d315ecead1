"""``results.json``: the results of a campaign, written and read back."""

from pathlib import Path
from typing import Any

from grpo_cl.campaigns.campaign import Campaign
from grpo_cl.campaigns.costs import Costs
from grpo_cl.campaigns.directory import CampaignDir
from grpo_cl.campaigns.page import CampaignReport
from grpo_cl.campaigns.plan import make_plan
from grpo_cl.campaigns.results import CampaignResults, Method, RunResult
from grpo_cl.campaigns.summary import Summary
from grpo_cl.errors import ConfigError
from grpo_cl.storage.files import read_json, write_json

FORMAT = 1


def write_results(directory: CampaignDir, report: CampaignReport) -> None:
    """Write the results of every run, the statistics over them, and the seconds of each run."""
    results = report.results
    content: dict[str, object] = {
        "format": FORMAT,
        # The output directory and the number of workers change no result.
        "campaign": report.campaign.model_dump(mode="json", exclude={"out", "workers"}),
        "methods": [method.model_dump(mode="json") for method in results.methods],
        "summary": report.summary.model_dump(mode="json"),
        "spent": results.spent.model_dump(mode="json"),
        "runs": [
            run.model_dump(mode="json", exclude={"r_matrix"})
            | {"r_matrix": run.r_matrix.to_json() if run.r_matrix else None}
            for run in results.runs
        ],
    }
    write_json(directory.results, content)
    write_json(directory.times, results.times)


def read_results(root: Path) -> CampaignReport:
    """The results that ``results.json`` in ``root`` has; the seconds of the runs are left out."""
    path = CampaignDir(root).results
    if not path.exists():
        raise ConfigError(f"{str(root)!r} has no {path.name}; grpo-cl bench writes it")
    content: dict[str, Any] = read_json(path)
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has format {content.get('format')!r} and not {FORMAT}; write it again with "
            "grpo-cl bench"
        )
    campaign = Campaign.model_validate({**content["campaign"], "out": root})
    results = CampaignResults(
        methods=[Method.model_validate(method) for method in content["methods"]],
        runs=[RunResult.model_validate(run) for run in content["runs"]],
        spent=Costs.model_validate(content["spent"]),
        times={},
        own_times={},
    )
    summary = Summary.model_validate(content["summary"])
    return CampaignReport(campaign, make_plan(campaign), results, summary)
