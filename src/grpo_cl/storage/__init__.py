"""Atomic file writes and append-only journals of JSON lines."""

from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import link_file, read_json, write_file, write_json
from grpo_cl.storage.journal import Journal, read_journal

__all__ = [
    "Journal",
    "encode",
    "link_file",
    "read_journal",
    "read_json",
    "write_file",
    "write_json",
]
