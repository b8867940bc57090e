"""`python -m harness calibrate COMMAND`: gives the simulator its iteration times.

fit, crossval and predict work on measured latencies from files. measure profiles an engine on this
machine: our engine, or a real vLLM server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from harness.calibrate import pages, published_fit, silicon, zoo
from harness.calibrate.conf_files import calibrations, write_calibrations
from harness.calibrate.fit import fit_law, fit_pair, on_limits
from harness.calibrate.predict import COLUMNS, predict
from harness.calibrate.profiles import read_profiles
from harness.calibrate.scores import batch_alone_pct, leave_one_out, scores, table
from harness.calibrate.sources import DEVICE, compare, distserve
from harness.calibrate.tables import save_csv, show, writable_file, writable_folder
from harness.configuration.command_line import ends_in_order, parser
from harness.configuration.threads import engine_threads
from harness.errors import UsageError
from harness.files import write_text

REPEATS = 5
RESULTS = zoo.CONF.parent / "results" / "published" / "calibration"


def fit(chosen: argparse.Namespace, console: Console) -> None:
    for option in ("conf", "results", "silicon", "engines"):
        writable_folder(vars(chosen)[option], f"--{option}")
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
    show(console, fitted.drop(columns=["prefill_bias_pct", "decode_bias_pct"]), "fitted")
    show(console, sources, "independent sources on A100, and the model")
    limited = {name: on_limits(each) for name, each in law.devices.items()}
    console.print(f"constants on a limit: {pages.limits(limited)}", soft_wrap=True)
    tables = {"fit": fitted, "law": by_law, "sources": sources}
    page = chosen.results / "fit.md"
    publish(page, pages.fit_page(fitted, by_law, sources, limited), tables, console, written)
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
    show(console, pages.summed(scored), "silicon and engines")
    text = pages.silicon_page(seen, fitted, scored, found)
    publish(chosen.results / "silicon.md", text, {"silicon": scored}, console, written)


def crossval(chosen: argparse.Namespace, console: Console) -> None:
    writable_folder(chosen.results, "--results")
    cells = read_profiles(chosen.profiles)
    seen = published_fit.read(chosen.published, chosen.profiles)
    left_out = {"model": leave_one_out(cells, "model"), "device": leave_one_out(cells, "device")}
    for what, frame in left_out.items():
        show(console, frame[pages.LEFT_OUT_COLUMNS], f"each {what} left out")
    show(console, pages.medians(left_out), "median over pairs")
    tables = {f"crossval_{what}": frame for what, frame in left_out.items()}
    publish(chosen.results / "crossval.md", pages.crossval_page(left_out), tables, console)
    served = {what: published_fit.left_out(seen, what) for what in ("model", "chip")}
    tables = {f"silicon_crossval_{what}": frame for what, frame in served.items()}
    text = pages.silicon_crossval_page(served)
    publish(chosen.results / "silicon_crossval.md", text, tables, console)


def publish(
    page: Path,
    text: str,
    tables: Mapping[str, pd.DataFrame],
    console: Console,
    written: Sequence[Path] = (),
) -> None:
    """Writes `page`, beside it `tables`, and tells of the page and what was `written` before."""
    for name, frame in tables.items():
        save_csv(frame, page.with_name(f"{name}.csv"))
    write_text(page, text)
    for path in (*written, page):
        console.print(f"wrote {path}", soft_wrap=True)


def predict_cells(chosen: argparse.Namespace, console: Console) -> None:
    result = predict(chosen.cells, chosen.out)
    console.print(f"{len(result)} cells, {result.source.value_counts().to_dict()}: {chosen.out}")


def measure(chosen: argparse.Namespace, console: Console) -> None:
    # Both start engines: the other commands need none.
    from harness.calibrate import measure as torch_engine
    from harness.calibrate import measure_vllm

    local = "local_vllm" if chosen.engine == "vllm" else "local"
    local += "_gpu" if chosen.hardware else ""
    chosen.out = chosen.out or zoo.CONF / "hardware" / f"{local}.yaml"
    writable_file(chosen.out, "--out")
    if chosen.engine == "vllm":
        refuse_torchs(chosen)
    chosen.repeats = REPEATS if chosen.repeats is None else chosen.repeats
    chosen.num_threads = engine_threads() if chosen.num_threads is None else chosen.num_threads
    if chosen.repeats < 1:
        raise UsageError(f"--repeats {chosen.repeats} must be at least 1")
    if chosen.num_requests < 10:
        raise UsageError(f"--num-requests {chosen.num_requests} are too few to fit: at least 10")
    profile = measure_vllm.profile if chosen.engine == "vllm" else torch_engine.profile
    profile(chosen, console)


def refuse_torchs(chosen: argparse.Namespace) -> None:
    """UsageError for what a vLLM server would not be told."""
    for name in ("repeats", "num_threads"):
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


def calibrate_parser() -> argparse.ArgumentParser:
    made = parser("calibrate", __doc__)
    commands = made.add_subparsers(dest="command", required=True)

    def command(name: str, function: object, what: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        one.set_defaults(function=function)
        return one

    def fitting(name: str, function: object, what: str) -> argparse.ArgumentParser:
        one, data = command(name, function, what), "$HARNESS_DATA_DIR"
        folder(one, "--profiles", None, f"measured latencies; default: {data}/profiles")
        folder(one, "--published", None, f"published GPU runs; default: {data}/gpu_e2e")
        folder(one, "--results", RESULTS, "reports; default: results/published/calibration")
        return one

    one = fitting("fit", fit, "fit iteration times to measured latencies, and write them to conf/")
    hardware, engines = zoo.CONF / "hardware", zoo.CONF / "engine" / "profile"
    folder(one, "--silicon", hardware / "silicon", "default: conf/hardware/silicon")
    folder(one, "--engines", engines, "default: conf/engine/profile")
    folder(one, "--conf", hardware / "calibration", "default: conf/hardware/calibration")
    what = "fit without each model and each device in turn, and predict the one left out"
    fitting("crossval", crossval, what)
    what = "predict the iteration times of the cells in a CSV file"
    add = command("predict", predict_cells, what).add_argument
    columns = f"CSV file to read, with {', '.join(COLUMNS)}"
    add("--cells", type=Path, required=True, metavar="FILE", help=columns)
    add("--out", type=Path, required=True, metavar="FILE", help="CSV file to write")
    what = "profile an engine on this machine; write conf/hardware/local*"
    add = command("measure", measure, what).add_argument
    engine = "our engine, or a vLLM server (%(default)s)"
    add("--engine", choices=("torch", "vllm"), default="torch", help=engine)
    add("--model", default="tiny-llama", metavar="NAME", help="%(default)s")
    tokens, sizes = "prompt lengths, tokens (%(default)s)", "batch sizes (%(default)s)"
    add("--lengths", type=numbers, default="16,64,256,1024", metavar="N,N", help=tokens)
    add("--batches", type=numbers, default="1,2,4,8,16,32", metavar="N,N", help=sizes)
    repeats = f"runs of each length and batch, torch alone ({REPEATS})"
    add("--repeats", type=int, metavar="N", help=repeats)
    per_load = "requests of each round, mix and load (%(default)s)"
    add("--num-requests", type=int, default=100, metavar="N", help=per_load)
    threads = "CPU threads, torch alone (all cores but one)"
    add("--num-threads", type=int, metavar="N", help=threads)
    gpu = "profile of this machine's GPU, e.g. h100x1; without it, the CPU"
    add("--hardware", metavar="NAME", help=gpu)
    outs = "local.yaml for a CPU, local_gpu.yaml for a GPU, local_vllm(_gpu).yaml for vLLM"
    out = f"profile to write; default, in conf/hardware: {outs}"
    add("--out", type=Path, metavar="FILE", help=out)
    return made


def folder(one: argparse.ArgumentParser, name: str, default: Path | None, what: str) -> None:
    one.add_argument(name, type=Path, default=default, metavar="DIR", help=what)


@ends_in_order
def main(arguments: list[str] | None = None) -> int:
    chosen = calibrate_parser().parse_args(arguments)
    chosen.function(chosen, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
