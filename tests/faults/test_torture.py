"""The short form of ``make torture``: some cases of every attack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cl.cli.options import read_config
from grpo_cl.errors import ConfigError
from paths import SUPPORT
from torture.__main__ import run_attack
from torture.attacks import ATTACKS
from torture.cases import Bench, Outcome
from torture.hostile_configs import FILES

IN_PROCESS = {
    "hostile settings": 0.02,
    "replies for parsers": 0.01,
    "tool calls": 0.002,
    "concurrent episodes": 0.001,
}
"""Attacks that start no process, with the share of their cases."""
ELSEWHERE = {
    "kill the embedded policy",  # tests/trainer/test_loop.py
    "kill fine-tuning",  # tests/cli/test_sft.py
    "kill a campaign",  # tests/campaigns/test_campaign.py
    "kill one of two ranks",  # test_launcher.py
}
"""Attacks of minutes, of which other tests are the short form."""


@pytest.mark.parametrize("attack", IN_PROCESS)
def test_attack_is_survived(attack: str, tmp_path: Path) -> None:
    tally = run_attack(attack, Bench(0, IN_PROCESS[attack], tmp_path))
    assert not tally.failures
    assert tally.outcomes[Outcome.SURVIVED] > 0


@pytest.mark.parametrize("name", ["aliases in a setting", "self reference in a setting"])
def test_config_that_aliases_make_huge_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(FILES[name])
    with pytest.raises(ConfigError, match="more than 100000 values; remove its aliases"):
        read_config(["--config", str(tmp_path / "config.yaml")])


@pytest.mark.slow
def test_one_case_of_each_attack_on_processes_is_survived(tmp_path: Path) -> None:
    attacks = [name for name in ATTACKS if name not in {*IN_PROCESS, *ELSEWHERE}]
    ended = subprocess.run(
        [sys.executable, "-m", "torture", "--scale", "0", "--only", ",".join(attacks)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all(name in ended.stdout for name in attacks)
