"""Start one run over the nodes of a Ray cluster, a ``torchrun`` on each: docs/multi-node.md.

    python configs/cluster/ray_launch.py --nodes 2 --gpus_per_node 8 -- --config run.yaml \
        sharding=fsdp log_dir=/shared/runs/one

Ray places the agents and ends them together; the processes meet by ``torchrun``'s own rendezvous.
"""

import argparse
import socket
import subprocess
import sys
from typing import Any


def words(arguments: argparse.Namespace, endpoint: str) -> list[str]:
    """What one node's ``torchrun`` is told."""
    nodes = [f"--nnodes={arguments.nodes}", f"--nproc_per_node={max(1, arguments.gpus_per_node)}"]
    meeting = ["--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", f"--rdzv_id={arguments.name}"]
    return [*nodes, *meeting, "-m", "grpo_cl.train", *arguments.settings]


def run_agent(told: list[str]) -> None:
    """Be one node's ``torchrun``, with the Python that Ray uses there."""
    subprocess.check_call([sys.executable, "-m", "torch.distributed.run", *told])


def address() -> str:
    """A free address of this node."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{socket.gethostbyname(socket.gethostname())}:{listener.getsockname()[1]}"


def launch(arguments: argparse.Namespace) -> int:
    """Place one agent per node and wait; the first failure ends all."""
    try:
        import ray  # noqa: PLC0415  # help and mistakes are answered without it
        from ray.util.placement_group import placement_group  # noqa: PLC0415
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            PlacementGroupSchedulingStrategy as Placed,
        )
    except ImportError:
        sys.exit("this needs Ray: pip install ray, or start torchrun yourself (docs/multi-node.md)")
    ray.init()  # the cluster this machine is part of, or the one RAY_ADDRESS names
    bundle = {"CPU": arguments.cpus_per_node, "GPU": arguments.gpus_per_node}
    group: Any = placement_group([bundle] * arguments.nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def on_node(work: Any, place: int) -> Any:
        strategy = Placed(group, placement_group_bundle_index=place)
        return ray.remote(work).options(
            num_cpus=arguments.cpus_per_node,
            num_gpus=arguments.gpus_per_node,
            scheduling_strategy=strategy,
            max_retries=0,
        )

    endpoint = ray.get(on_node(address, 0).remote())
    told = words(arguments, endpoint)
    ray.get([on_node(run_agent, place).remote(told) for place in range(arguments.nodes)])
    return 0


def main() -> int:
    """Read the command line and start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus_per_node", type=int, default=8)
    parser.add_argument("--cpus_per_node", type=int, default=16)
    parser.add_argument("--name", default="grpo-cl", help="of the rendezvous")
    parser.add_argument("--dry_run", action="store_true", help="print what a node would run")
    parser.add_argument("settings", nargs=argparse.REMAINDER, help="after --: of the run")
    arguments = parser.parse_args()
    arguments.settings = [word for word in arguments.settings if word != "--"]
    if arguments.dry_run:
        print("torchrun", *words(arguments, "HOST:PORT"))
        return 0
    return launch(arguments)


if __name__ == "__main__":
    sys.exit(main())
