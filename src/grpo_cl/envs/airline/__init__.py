"""τ²-bench's airline domain and its task generator."""
