"""The table of attacks, the longest first: they run side by side."""

from torture.cases import Attack
from torture.changed_settings import change_settings
from torture.damaged_files import damage_finished_run, damage_run
from torture.endpoints import bad_endpoints, bad_servers
from torture.full_disk import full_disk, largest_file
from torture.hostile_configs import hostile_files, hostile_settings
from torture.hostile_models import hostile_models, hostile_templates
from torture.kills import kill_again_and_again, kill_at_operations, kill_at_times
from torture.larger_kills import kill_campaign, kill_embedded_policy, kill_rank, kill_sft
from torture.many_episodes import many_episodes
from torture.parser_fuzz import fuzz_parsers
from torture.tool_fuzz import fuzz_tools

ATTACKS: dict[str, Attack] = {
    "kill at file operations": kill_at_operations,
    "kill again and again": kill_again_and_again,
    "kill at random times": kill_at_times,
    "kill the embedded policy": kill_embedded_policy,
    "kill fine-tuning": kill_sft,
    "kill a campaign": kill_campaign,
    "kill one of two ranks": kill_rank,
    "full disk": full_disk,
    "file size limit": largest_file,
    "damaged files of a run": damage_run,
    "damaged files of a model": damage_finished_run,
    "changed settings": change_settings,
    "hostile models": hostile_models,
    "hostile chat templates": hostile_templates,
    "hostile config files": hostile_files,
    "hostile settings": hostile_settings,
    "bad endpoints": bad_endpoints,
    "bad rollout servers": bad_servers,
    "replies for parsers": fuzz_parsers,
    "tool calls": fuzz_tools,
    "concurrent episodes": many_episodes,
}
