"""The reward of a memory episode: question answering, calls, compression, content."""
