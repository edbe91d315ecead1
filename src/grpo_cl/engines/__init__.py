"""Our tasks, users and rewards inside other training engines: docs/engines/."""
