#!/usr/bin/env bash
# A researcher's first tasks. Each task is one command or one page.
#   bash docs/first-tasks.sh                 all tasks, simulated, in a minute or two
#   bash docs/first-tasks.sh trace report    some tasks
#   URL=http://host:8000/v1 bash docs/first-tasks.sh server
# OUT=DIR: the folder for files (default: results/runs/first-tasks). PYTHON=…: another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
out=$(realpath -m "${OUT:-results/runs/first-tasks}")
# One simulated A100 with a 7B model; no W&B.
sim=(engine=sim hardware=a100x1 model=llama2-7b tracking=none progress=false)

harness() {
  echo "+ python -m harness $*" >&2
  "$python" -m harness "$@"
}

server() { # measure my own server, with any engine
  if [ -z "${URL:-}" ]; then
    echo "server: skipped; URL=http://host:8000/v1 names an OpenAI-compatible endpoint" >&2
    return
  fi
  harness +system=vllm +workload=burstgpt engine=openai engine.url="$URL" workload.num_requests=20 \
    tracking=none hydra.run.dir="$out/server"
}

trace() { # replay my own trace: a CSV of arrivals and lengths
  mkdir -p "$out"
  printf '%s\n' arrival_s,model,prompt_tokens,output_tokens 0.0,m,200,50 0.4,m,900,20 1.5,m,30,120 \
    >"$out/mine.csv"
  harness +system=vllm +workload=trace workload.path="$out/mine.csv" "${sim[@]}" \
    hydra.run.dir="$out/trace"
}

model() { # serve my own model; docs/add-a-model.md shows how to make it a file
  harness +system=vllm +workload=burstgpt "${sim[@]}" model.name=mine model.num_layers=40 \
    model.num_kv_heads=8 hydra.run.dir="$out/model"
}

hardware() { # simulate my own GPU; docs/add-hardware.md shows how to make it a file
  harness +system=vllm +workload=burstgpt "${sim[@]}" hardware.name=mine \
    hardware.memory_bandwidth_bytes_per_s=3.0e+12 hydra.run.dir="$out/hardware"
}

capacity() { # how many GPUs does this load need?
  harness capacity hardware.num_devices=1..4 until 'ttft_s.p50<1' +system=vllm +workload=burstgpt \
    "${sim[@]}" hardware=a100x16 workload.num_requests=300 workload.scale.to_rate_per_s=30 figure=null
}

sweep() { # draw mean TTFT over the rate, with 95 % intervals over seeds
  harness -m +system=vllm +workload=burstgpt "${sim[@]}" workload.num_requests=60 figure=null \
    workload.arrivals.kind=poisson workload.scale.to_rate_per_s=null \
    workload.arrivals.rate_per_s=2,8 seed=0,1,2 hydra.sweep.dir="$out/sweep"
  harness plots sweep "$(ls -t "$out"/sweep/sweep-*.csv | head -1)" \
    --x workload.arrivals.rate_per_s --y ttft_s.mean
}

system() { # write my own scheduler: a page with under 60 lines of code
  echo "system: docs/add-a-system.md" >&2
}

figure() { # draw a paper's figure, and find the run behind a number in it
  mkdir -p "$out/figure"
  harness figures aegaeon_fig06 --out "$out/figure" --jobs 2
  # The config_hash in a row names a folder in results/runs; aegaeon_fig06.json has its full name.
  head -2 "$out/figure/aegaeon_fig06.csv"
}

report() { # make report.html of any earlier run, in its folder
  [ -d "$out/trace" ] || trace
  harness plots report "$out/trace"
}

for task in "${@:-server trace model hardware capacity sweep system figure report}"; do
  for each in $task; do
    case $each in
      server | trace | model | hardware | capacity | sweep | system | figure | report) "$each" ;;
      *)
        echo "error: $each is no task; valid: server, trace, model, hardware, capacity, sweep," \
          "system, figure, report" >&2
        exit 2
        ;;
    esac
  done
done
