"""Numbers and figures: what a run logs, what it adds up to, and how it is shown."""
