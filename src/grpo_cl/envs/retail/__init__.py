"""τ²-bench's retail domain and its task generator."""
