"""Start one run on the nodes of a Ray cluster, with one ``torchrun`` per node: docs/multi-node.md.

    python configs/cluster/ray_launch.py --nodes 2 --gpus_per_node 8 -- --config run.yaml \
        sharding=fsdp log_dir=/shared/runs/one

Ray places the ``torchrun`` agents and stops them together; the processes use its rendezvous.
"""

import argparse
import socket
import subprocess
import sys
from typing import Any


def torchrun_arguments(arguments: argparse.Namespace, endpoint: str) -> list[str]:
    """The arguments of each node's ``torchrun``."""
    nodes = [f"--nnodes={arguments.nodes}", f"--nproc_per_node={max(1, arguments.gpus_per_node)}"]
    rendezvous = [
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint={endpoint}",
        f"--rdzv_id={arguments.name}",
    ]
    return [*nodes, *rendezvous, "-m", "grpo_cl.train", *arguments.settings]


def run_agent(torchrun: list[str]) -> None:
    """Run ``torchrun`` on this node, with Ray's Python."""
    subprocess.check_call([sys.executable, "-m", "torch.distributed.run", *torchrun])


def address() -> str:
    """A free address (host and port) of this node."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{socket.gethostbyname(socket.gethostname())}:{listener.getsockname()[1]}"


def launch(arguments: argparse.Namespace) -> int:
    """Start one agent per node and wait; the first failure stops all."""
    try:
        import ray  # noqa: PLC0415  # not needed for --help and --dry_run
        from ray.util.placement_group import placement_group  # noqa: PLC0415
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            PlacementGroupSchedulingStrategy as Scheduling,
        )
    except ImportError:
        sys.exit(
            "Ray is not installed: pip install ray, or start torchrun yourself (docs/multi-node.md)"
        )
    ray.init()  # the cluster of this machine, or of RAY_ADDRESS
    bundle = {"CPU": arguments.cpus_per_node, "GPU": arguments.gpus_per_node}
    group: Any = placement_group([bundle] * arguments.nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def on_node(function: Any, node: int) -> Any:
        strategy = Scheduling(group, placement_group_bundle_index=node)
        return ray.remote(function).options(
            num_cpus=arguments.cpus_per_node,
            num_gpus=arguments.gpus_per_node,
            scheduling_strategy=strategy,
            max_retries=0,
        )

    endpoint = ray.get(on_node(address, 0).remote())
    torchrun = torchrun_arguments(arguments, endpoint)
    ray.get([on_node(run_agent, node).remote(torchrun) for node in range(arguments.nodes)])
    return 0


def main() -> int:
    """Parse the command line and launch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus_per_node", type=int, default=8)
    parser.add_argument("--cpus_per_node", type=int, default=16)
    parser.add_argument("--name", default="grpo-cl", help="rendezvous id")
    parser.add_argument("--dry_run", action="store_true", help="print the command of a node")
    parser.add_argument("settings", nargs=argparse.REMAINDER, help="settings of the run, after --")
    arguments = parser.parse_args()
    arguments.settings = [setting for setting in arguments.settings if setting != "--"]
    if arguments.dry_run:
        print("torchrun", *torchrun_arguments(arguments, "HOST:PORT"))
        return 0
    return launch(arguments)


if __name__ == "__main__":
    sys.exit(main())
