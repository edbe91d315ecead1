"""Rollouts: an actor, an environment and a user produce trajectories."""

from grpo_cl.rollout.episode import (
    GREETING,
    MIN_REPLY,
    Actor,
    Agent,
    EnvironmentDrivenEpisode,
    Episode,
    Opening,
    Scene,
    ScriptedActor,
    ScriptedAgent,
    known_opening,
    play,
    run_all,
    run_episodes,
    system_prompt,
)

__all__ = [
    "GREETING",
    "MIN_REPLY",
    "Actor",
    "Agent",
    "EnvironmentDrivenEpisode",
    "Episode",
    "Opening",
    "Scene",
    "ScriptedActor",
    "ScriptedAgent",
    "known_opening",
    "play",
    "run_all",
    "run_episodes",
    "system_prompt",
]
