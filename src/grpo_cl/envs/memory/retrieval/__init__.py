"""Two-layer retrieval over a memory: BM25 and embeddings."""
