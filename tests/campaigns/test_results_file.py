from pathlib import Path

import pytest

from bench_campaigns import toy_campaign, write_runs
from grpo_cl.campaigns import FinishedCampaign, run_campaign
from grpo_cl.campaigns.results_file import read_results
from grpo_cl.errors import ConfigError
from grpo_cl.storage.files import read_json, write_json

SCORES = {
    "sequential": [[0.2, 0.2], [0.9, 0.2], [0.5, 0.9]],
    "ewc": [[0.2, 0.2], [0.9, 0.2], [0.8, 0.8]],
}


def finished(root: Path) -> FinishedCampaign:
    orders = [["toy_left", "toy_right"], ["toy_right", "toy_left"]]
    campaign = toy_campaign(root, orders=orders)
    write_runs(campaign, SCORES)
    return run_campaign(campaign, report=lambda line: None)


def test_the_results_read_back_are_those_written(tmp_path: Path) -> None:
    done = finished(tmp_path)
    report = read_results(tmp_path)
    assert report.summary == done.summary
    assert report.results.runs == done.results.runs
    assert report.results.methods == done.results.methods
    assert report.results.spent == done.results.spent
    assert report.campaign.out == tmp_path


def test_a_directory_without_results_and_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no results\.json; grpo-cl bench writes it"):
        read_results(tmp_path)
    path = finished(tmp_path).directory.results
    write_json(path, {**read_json(path), "format": 0})
    with pytest.raises(ConfigError, match="has format 0 and not 1"):
        read_results(tmp_path)
