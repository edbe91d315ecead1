#!/bin/bash
#SBATCH --job-name=grpo-cl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append
#
# One run on all nodes of the job: docs/multi-node.md. Arguments are settings of the run:
#   sbatch configs/cluster/slurm.sh --config run.yaml sharding=fsdp log_dir=/shared/runs/one
#
# SERVER_NODES=1 reserves the last node of the job for vLLM servers of MODEL, one per GPU, and passes
# their addresses to the run. log_dir and MODEL must be on a shared file system.
set -euo pipefail

server_nodes=${SERVER_NODES:-0}
gpus=${GPUS_PER_NODE:-8}
port=${PORT:-29500}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
train_nodes=$((${#nodes[@]} - server_nodes))
if [ "$train_nodes" -lt 1 ]; then
    echo "SERVER_NODES=$server_nodes leaves no node of ${#nodes[@]} to train on" >&2
    exit 2
fi

join() { local IFS=,; echo "$*"; }
trainers=$(join "${nodes[@]:0:train_nodes}")
servers=()
if [ "$server_nodes" -gt 0 ]; then
    : "${MODEL:?name the model to serve with MODEL}"
    for node in "${nodes[@]:train_nodes}"; do
        for ((gpu = 0; gpu < gpus; gpu++)); do
            servers+=("http://$node:$((8000 + gpu))")
            srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \
                env CUDA_VISIBLE_DEVICES="$gpu" VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \
                VLLM_SERVER_DEV_MODE=1 \
                vllm serve "$MODEL" --host "$node" --port "$((8000 + gpu))" --enable-lora &
        done
    done
    for server in "${servers[@]}"; do
        until curl --silent --fail --output /dev/null "$server/health"; do sleep 5; done
    done
    set -- "$@" "sampling.engine=server" "sampling.servers=[$(join "${servers[@]}")]"
fi

# One torchrun per node; the first node of the job holds the rendezvous.
srun --nodes="$train_nodes" --ntasks="$train_nodes" --ntasks-per-node=1 --nodelist="$trainers" \
    torchrun --nnodes="$train_nodes" --nproc_per_node="$gpus" --rdzv_backend=c10d \
    --rdzv_endpoint="${nodes[0]}:$port" --rdzv_id="$SLURM_JOB_ID" -m grpo_cl.train "$@"
