import shutil
import subprocess
from pathlib import Path

import pytest

from grpo_cl.cli import main


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    capsys.readouterr()
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["tr"], {"train"}),
        (["tasks", "sh"], {"show"}),
        (["tasks", "list", "--sp"], {"--split"}),
        (["train", "--loss.kl"], {"--loss.kl_estimator"}),
        (["train", "--task_order", "airline", "--loss.ki"], {"--loss.kind"}),
        (["init", "al"], {"algorithm"}),
        (["report", "--loss"], set[str]()),
    ],
)
def test_bash_completes_commands_options_and_settings(
    capsys: pytest.CaptureFixture[str], typed: list[str], found: set[str]
) -> None:
    line = " ".join(["grpo-cl", *typed])
    program = (
        f"{script(capsys, 'bash')}\nCOMP_WORDS=({line}); COMP_CWORD={len(typed)}; _grpo_cl; "
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert (set(done.stdout.split()), done.stderr) == (found, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(
    capsys: pytest.CaptureFixture[str], shell: str, tmp_path: Path
) -> None:
    text = script(capsys, shell)
    assert "train" in text
    assert "loss.kl_estimator" in text
    if shutil.which(shell) is not None:
        file = tmp_path / "script"
        file.write_text(text)
        subprocess.run([shell, "-n", str(file)], check=True)
