"""Stand-ins for Slurm's commands: a job is a process of this host, with the environment that Slurm
gives it. They know what submitit and docs/examples/cluster.sbatch ask of them, and no more."""

from __future__ import annotations

from pathlib import Path

SBATCH = r"""#!/bin/bash
# sbatch FILE: begins its job, or each task of its array
jobs=$(dirname "$0")/jobs job=$$
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$1")
mkdir -p "$jobs"
for task in $(seq 0 "${last:-0}"); do
    (
        export SLURM_JOB_ID=$((job + task)) SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1
        export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
        [ -z "$last" ] || export SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$task
        mine=$jobs/$job${last:+_$task}
        echo RUNNING > "$mine"
        bash "$1" && echo COMPLETED > "$mine" || echo FAILED > "$mine"
    ) < /dev/null > /dev/null 2>&1 &
done
echo "Submitted batch job $job"
"""

SACCT = r"""#!/bin/bash
# sacct: the states of all jobs
echo "JobID|State|NodeList"
for job in "$(dirname "$0")"/jobs/*; do
    echo "$(basename "$job")|$(cat "$job")|$HOSTNAME"
done
"""

SRUN = r"""#!/bin/bash
# srun [option ...] COMMAND: runs it so many times, beside one another
ntasks=1 output=/dev/stdout error=/dev/stderr
array=$SLURM_ARRAY_JOB_ID task=$SLURM_ARRAY_TASK_ID
place() { sed "s/%A/$array/; s/%a/$task/; s/%j/$SLURM_JOB_ID/; s/%t/0/"; }
while [[ $1 == -* ]]; do
    case $1 in
        --output) output=$(place <<< "$2"); shift ;;
        --error) error=$(place <<< "$2"); shift ;;
        -w) shift ;;
        --ntasks=*) ntasks=${1#*=} ;;
    esac
    shift
done
for task in $(seq "$ntasks"); do
    "$@" >> "$output" 2>> "$error" &
done
status=0
for task in $(jobs -p); do
    wait "$task" || status=$?
done
exit $status
"""

SCONTROL = r"""#!/bin/bash
# scontrol show hostnames LIST
tr , '\n' <<< "$3"
"""


def stand_ins(folder: Path) -> Path:
    """Puts them into `folder`, which is for PATH."""
    folder.mkdir()
    for name, text in (
        ("sbatch", SBATCH), ("sacct", SACCT), ("srun", SRUN), ("scontrol", SCONTROL),
    ):  # fmt: skip
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder
