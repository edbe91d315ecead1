import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.storage.lock import LOCK_FILE, locked, require_unlocked

HOLDER = """
import sys, time
from pathlib import Path
from grpo_cl.storage.lock import locked
with locked(Path(sys.argv[1]), remedy="go"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_directory_is_locked_by_one_process_which_the_refusal_names(tmp_path: Path) -> None:
    host = socket.gethostname()
    expected = rf"{tmp_path} is in use by process {os.getpid()} on {host} since .*; wait .*, or go"
    with locked(tmp_path, remedy="go"):
        with pytest.raises(ConfigError, match=expected), locked(tmp_path, remedy="go"):
            pass
        with pytest.raises(ConfigError, match=expected):
            require_unlocked(tmp_path, remedy="go")
    require_unlocked(tmp_path, remedy="go")
    with locked(tmp_path, remedy="go"):
        assert (tmp_path / LOCK_FILE).exists()
    assert not (tmp_path / LOCK_FILE).exists()


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path, remedy="go"):
        _ = 1 // 0
    require_unlocked(tmp_path, remedy="go")


def test_the_lock_of_a_killed_process_is_free_and_its_file_is_reused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"process {process.pid} on"):
            require_unlocked(tmp_path, remedy="go")
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK_FILE).exists()
    require_unlocked(tmp_path, remedy="go")
    with locked(tmp_path, remedy="go"), pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        require_unlocked(tmp_path, remedy="go")


def test_a_directory_that_was_never_locked_stays_untouched(tmp_path: Path) -> None:
    require_unlocked(tmp_path, remedy="go")
    require_unlocked(tmp_path / "missing", remedy="go")
    assert list(tmp_path.iterdir()) == []
