"""The memory domain: an agent reads chunks and decides what to keep."""
