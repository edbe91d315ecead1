"""Worker processes that end with the process that started them."""

import os
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def exit_with_parent() -> None:
    """Exit when the parent process ends, also if it is killed; called first in a worker.

    A worker of a process pool would wait for its next job forever.
    """
    parent = parent_process()
    assert parent is not None, "a worker is started by multiprocessing"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
