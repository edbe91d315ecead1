"""τ²-bench's telecom domains and their task generator."""
