"""`python -m harness calibrate COMMAND`: gives the simulator its iteration times.

fit, crossval and predict work on measured latencies from files. measure profiles an engine on this
machine: our engine, or a real vLLM server.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from harness.calibrate import published_fit, published_page, report, silicon, zoo
from harness.calibrate.conf_files import calibrations, write_calibrations
from harness.calibrate.crossval import leave_one_out
from harness.calibrate.fit import fit_law, fit_pair, on_limits
from harness.calibrate.outputs import writable_file, writable_folder
from harness.calibrate.predict import COLUMNS, predict
from harness.calibrate.profiles import read_profiles
from harness.calibrate.scores import batch_alone_pct, scores, table
from harness.calibrate.sources import DEVICE, compare, distserve
from harness.configuration.threads import engine_threads
from harness.errors import RunError, UsageError

REPEATS = 5
RESULTS = zoo.CONF.parent / "results" / "published" / "calibration"


def fit(chosen: argparse.Namespace, console: Console) -> None:
    writable_folder(chosen.conf, "--conf")
    writable_folder(chosen.results, "--results")
    writable_folder(chosen.silicon, "--silicon")
    writable_folder(chosen.engines, "--engines")
    distserve(chosen.profiles)  # compared last: that it can be read is known first
    cells = read_profiles(chosen.profiles)
    seen = published_fit.read(chosen.published, chosen.profiles)
    law = fit_law(cells)
    pairs = [(c, fit_pair(c, law.terms(c))) for c in cells]
    found = calibrations(law, pairs)
    sources = compare(found.get(DEVICE, law.mean), chosen.profiles)
    written = write_calibrations(chosen.conf, found)
    fitted = table(scores(c, terms) | {"batch_alone_pct": batch_alone_pct(c)} for c, terms in pairs)
    by_law = table(scores(c, law.terms(c)) for c in cells)
    report.show(console, fitted.drop(columns=["prefill_bias_pct", "decode_bias_pct"]), "fitted")
    report.show(console, sources, "independent sources on A100, and the model")
    limited = {name: on_limits(each) for name, each in law.devices.items()}
    console.print(f"constants on a limit: {report.limits(limited)}", soft_wrap=True)
    report.save_csv(fitted, chosen.results / "fit.csv")
    report.save_csv(by_law, chosen.results / "law.csv")
    report.save_csv(sources, chosen.results / "sources.csv")
    report.write_markdown(
        chosen.results / "fit.md", report.fit_report(fitted, by_law, sources, limited)
    )
    report.written(console, [*written, chosen.results / "fit.md"])
    fit_silicon(chosen, seen, console)


def fit_silicon(
    chosen: argparse.Namespace, seen: published_fit.Measurements, console: Console
) -> None:
    """What serving measurements of others teach of devices, apart from their engines."""
    rows = seen.rows()
    fitted = silicon.fit(rows)
    found = published_fit.silicons(fitted, chosen.published)
    costs = fitted.costs(silicon.V1, published_fit.path_s(fitted, seen.served))
    written = published_fit.write_conf(chosen.silicon, chosen.engines, found, costs)
    scored = published_fit.score(fitted, rows)
    report.show(console, published_page.summed(scored), "silicon and engines")
    report.save_csv(scored, chosen.results / "silicon.csv")
    page = chosen.results / "silicon.md"
    report.write_markdown(page, published_page.fit_page(seen, fitted, scored, found))
    report.written(console, [*written, page])


def crossval(chosen: argparse.Namespace, console: Console) -> None:
    writable_folder(chosen.results, "--results")
    cells = read_profiles(chosen.profiles)
    seen = published_fit.read(chosen.published, chosen.profiles)
    left_out = {"model": leave_one_out(cells, "model"), "device": leave_one_out(cells, "device")}
    for what, frame in left_out.items():
        report.show(console, frame[report.LEFT_OUT_COLUMNS], f"each {what} left out")
        report.save_csv(frame, chosen.results / f"crossval_{what}.csv")
    report.show(console, report.medians(left_out), "median over pairs")
    report.write_markdown(chosen.results / "crossval.md", report.crossval_report(left_out))
    report.written(console, [chosen.results / "crossval.md"])
    served = {what: published_fit.left_out(seen, what) for what in ("model", "chip")}
    for what, frame in served.items():
        report.save_csv(frame, chosen.results / f"silicon_crossval_{what}.csv")
    page = chosen.results / "silicon_crossval.md"
    report.write_markdown(page, published_page.crossval_page(served))
    report.written(console, [page])


def predict_cells(chosen: argparse.Namespace, console: Console) -> None:
    result = predict(chosen.cells, chosen.out)
    console.print(f"{len(result)} cells, {result.source.value_counts().to_dict()}: {chosen.out}")


def measure(chosen: argparse.Namespace, console: Console) -> None:
    # Both start engines: the other commands need none.
    from harness.calibrate import measure as torch_engine
    from harness.calibrate import measure_vllm

    model, lengths, batches, num = chosen.model, chosen.lengths, chosen.batches, chosen.num_requests
    local = "local_vllm" if chosen.engine == "vllm" else "local_gpu" if chosen.hardware else "local"
    out = chosen.out or zoo.CONF / "hardware" / f"{local}.yaml"
    writable_file(out, "--out")
    if chosen.engine == "vllm":
        refuse_torchs(chosen)
        measure_vllm.profile(model, lengths, batches, num, out, console)
        return
    repeats = REPEATS if chosen.repeats is None else chosen.repeats
    threads = engine_threads() if chosen.num_threads is None else chosen.num_threads
    torch_engine.profile(
        model, lengths, batches, repeats, num, threads, chosen.hardware, out, console
    )


def refuse_torchs(chosen: argparse.Namespace) -> None:
    """UsageError for what a vLLM server would not be told."""
    for name in ("repeats", "num_threads", "hardware"):
        if getattr(chosen, name) is not None:
            option = f"--{name.replace('_', '-')} {getattr(chosen, name)}"
            raise UsageError(f"{option} is of --engine torch alone: leave it out")


def numbers(words: str) -> list[int]:
    try:
        found = [int(word) for word in words.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{words!r} is not a list of whole numbers ≥ 1: 1,2,4")
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m harness calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True)

    def command(name: str, function: object, what: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        one.set_defaults(function=function)
        return one

    for name, function, what in (
        (
            "fit",
            fit,
            "fit iteration times to measured latencies, and write them to conf/",
        ),
        (
            "crossval",
            crossval,
            "fit without each model and each device in turn, and predict the one left out",
        ),
    ):
        one = command(name, function, what)
        data = "$HARNESS_DATA_DIR"
        folder(one, "--profiles", None, f"measured latencies; default: {data}/profiles")
        folder(one, "--published", None, f"published GPU runs; default: {data}/gpu_e2e")
        folder(one, "--results", RESULTS, "reports; default: results/published/calibration")
        if name == "fit":
            hardware, engines = zoo.CONF / "hardware", zoo.CONF / "engine" / "profile"
            folder(one, "--silicon", hardware / "silicon", "default: conf/hardware/silicon")
            folder(one, "--engines", engines, "default: conf/engine/profile")
            folder(one, "--conf", hardware / "calibration", "default: conf/hardware/calibration")
    one = command(
        "predict", predict_cells, "predict the iteration times of the cells in a CSV file"
    )
    columns = f"CSV file to read, with {', '.join(COLUMNS)}"
    one.add_argument("--cells", type=Path, required=True, metavar="FILE", help=columns)
    one.add_argument("--out", type=Path, required=True, metavar="FILE", help="CSV file to write")
    one = command(
        "measure", measure, "profile an engine on this machine; write conf/hardware/local*"
    )
    engine = "our engine, or a vLLM server (%(default)s)"
    one.add_argument("--engine", choices=("torch", "vllm"), default="torch", help=engine)
    one.add_argument("--model", default="tiny-llama", metavar="NAME", help="%(default)s")
    tokens, sizes = "prompt lengths, tokens (%(default)s)", "batch sizes (%(default)s)"
    lengths, batches = "16,64,256,1024", "1,2,4,8,16,32"
    one.add_argument("--lengths", type=numbers, default=lengths, metavar="N,N", help=tokens)
    one.add_argument("--batches", type=numbers, default=batches, metavar="N,N", help=sizes)
    repeats = f"runs of each length and batch, torch alone ({REPEATS})"
    one.add_argument("--repeats", type=int, metavar="N", help=repeats)
    per_load = "requests of each round, mix and load (%(default)s)"
    one.add_argument("--num-requests", type=int, default=100, metavar="N", help=per_load)
    threads = "CPU threads, torch alone (all cores but one)"
    one.add_argument("--num-threads", type=int, metavar="N", help=threads)
    gpu = "profile of this machine's GPU, torch alone, e.g. h100x1; without it, the CPU"
    one.add_argument("--hardware", metavar="NAME", help=gpu)
    outs = "local.yaml for a CPU, local_gpu.yaml for a GPU, local_vllm.yaml for vLLM"
    out = f"profile to write; default, in conf/hardware: {outs}"
    one.add_argument("--out", type=Path, metavar="FILE", help=out)
    return made


def folder(one: argparse.ArgumentParser, name: str, default: Path | None, what: str) -> None:
    one.add_argument(name, type=Path, default=default, metavar="DIR", help=what)


def main(arguments: list[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        chosen.function(chosen, Console())
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
