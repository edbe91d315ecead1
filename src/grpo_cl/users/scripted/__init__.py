"""Rule-based user simulator: replies follow from the task's scenario, no model is called."""
