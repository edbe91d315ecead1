"""Keeps Python's collector of garbage from what a process has from its start to its end."""

import gc


def settle() -> None:
    """Look no more at what is there by now.

    That is half a million objects of libraries, domains and models. A full collection goes through
    all of them, which takes a tenth of a second and more; a small model takes a step in that time.
    """
    gc.collect()
    gc.freeze()
