"""τ²-bench's mock domain."""
