"""``grpo-cl score``: recorded trajectories in, one JSON object per line out."""

import argparse
import json

from grpo_cl.config import default_data_dir
from grpo_cl.domains import Domain, load_domain
from grpo_cl.models import Models
from grpo_cl.recordings import read_recordings, score_recording
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.judge import ModelJudge
from grpo_cl.roles import JudgeConfig, ModelsConfig


def score(arguments: argparse.Namespace) -> int:
    """Execute and score each recording of a file."""
    domains: dict[str, Domain] = {}
    with Models(ModelsConfig()) as models:
        config = JudgeConfig(model=arguments.judge, base_url=arguments.judge_base_url)
        judge = ModelJudge(models, config) if config.model else None
        oracle = RewardOracle(domains, basis=arguments.basis, judge=judge)
        _score(arguments, domains, oracle)
    return 0


def _score(arguments: argparse.Namespace, domains: dict[str, Domain], oracle: RewardOracle) -> None:
    data_dir = arguments.tau2_data_dir or default_data_dir()
    for recording in read_recordings(arguments.file):
        if recording.domain not in domains:
            domains[recording.domain] = load_domain(recording.domain, data_dir)
        domain = domains[recording.domain]
        print(json.dumps(score_recording(domain, oracle, recording)), flush=True)
