"""The memory store: entries, taxonomy, validation and tools."""
