"""Every YAML composes, and builds what it names: a broken option cannot land.

No engine is started: what is built is all that is built before one. Models are built by
tests/unit/calibrate/test_zoo.py, SLOs by tests/unit/metrics/test_slo.py.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from harness.configuration.config import build, typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.placement import Demand, Placement
from harness.running import own_pace
from harness.running.prepare import KEYS, ClientConfig, Prepared, prepare
from tests.unit.workloads.texts import conversations, make_tokenizer, write_json

CONF = Path(__file__).resolve().parents[2] / "conf"
BUILT_ALONE = ("engine", "tracking")  # what needs no running cluster and no data
NEEDED = {"openai": ["engine.url=http://127.0.0.1:1/v1"]}  # keys that have no default
FEW = ("tracking=none", "workload.num_requests=20")
# Complete in themselves; what lies in the folders below them are parts of these.
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
# A part by the experiment that it is chosen in.
PARTS = {
    "aegaeon/inputs": "aegaeon_fig11a",
    "aegaeon/lengths": "aegaeon_fig12_rps01",
    "aegaeon/machine": "aegaeon_fig15_live",
    "aegaeon/stage": "aegaeon_fig07_sim",
    "aegaeon/system": "aegaeon_fig11a",
    "aqua/live": "aqua_live_burst",
    "aqua/served": "aqua_rates_low",
    "aqua/system": "aqua_fig08",
    "aqua/vllm": "aqua_vllm_burst",
    "blitzscale/system": "blitzscale_fig18",
    "blitzscale/workload": "blitzscale_fig17",
    "kunserve/dataset": "kunserve_fig10_burstgpt",
    "kunserve/point": "kunserve_regime",
    "kunserve/setting": "kunserve_table_limits",
    "kunserve/system": "kunserve_fig10_burstgpt",
    "matrix/hardware": "matrix_burst_h100",
    "matrix/links": "matrix_links_many",
    "matrix/system": "matrix_burst_h100",
    "matrix/workload": "matrix_burst_h100",
}
OTHER_BASES = {  # of parts that the group's own experiment has no keys for
    ("blitzscale/system", "vllm_full"): "blitzscale_fig24",
    ("blitzscale/system", "vllm_half"): "blitzscale_fig24",
    ("kunserve/system", "vllm"): "kunserve_fig01",
    ("kunserve/system", "vllm_kv_swap"): "kunserve_fig01",
    ("kunserve/system", "vllm_parameter_swap"): "kunserve_fig01",
    **{
        ("matrix/system", path.stem): "matrix_many_h100"
        for name in ("aegaeon", "dedicated", "muxserve", "serverlessllm")
        for path in (CONF / "experiment/matrix/system").glob(f"{name}_*.yaml")
    },
}
PAPERS = {"aegaeon", "aqua", "blitzscale", "kunserve", "matrix"}


def options(group: str) -> list[str]:
    found = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert found or group == "experiment", group
    return found


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_the_base_composes_and_has_only_known_keys() -> None:
    config = composed()
    assert set(config) <= set(KEYS)
    typed(plain(config.client), ClientConfig, "client")


@pytest.mark.parametrize("name", options("hardware"))
def test_hardware(name: str) -> None:
    profile = typed(plain(composed(f"hardware={name}").hardware), Hardware, "hardware")
    assert profile.name == name


@pytest.mark.parametrize("group", BUILT_ALONE)
def test_groups_built_alone(group: str) -> None:
    for name in options(group):
        runtime = {"announce": print} if group == "tracking" else {}
        needed = NEEDED.get(name, [])
        config = composed("+system=vllm", f"{group}={name}", *needed)
        build(plain(config[group]), group, **runtime)


def prepared(*overrides: str) -> Prepared:
    return prepare(composed(*overrides, *FEW))


def prepared_experiment(name: str, *overrides: str) -> Prepared:
    """Bursts of AQUA's and the matrix's begin later than the first 20 requests."""
    few = ("tracking=none",) if name.startswith(("aqua_", "matrix_")) else FEW
    config = composed(f"+experiment={name}", *overrides, *few)
    try:
        return prepare(config)
    except UsageError as error:
        if "HARNESS_DATA_DIR" not in os.environ and "nothing can stand in for it" in str(error):
            pytest.skip(str(error))
        raise


def placements(parts: Prepared) -> list[Placement]:
    """What the system asks for."""
    demand = Demand(dict.fromkeys(parts.models, 0.1))
    return list(parts.system.place(parts.system_config, parts.models, parts.hardware, demand))


@cache
def with_engine(name: str) -> DictConfig:
    return composed("+system=vllm", f"engine={name}", *NEEDED.get(name, []))


@pytest.mark.parametrize("name", options("system"))
def test_systems_resolve_in_every_engine_and_place_their_instances(name: str) -> None:
    words = (f"+system='{name}'", "+workload=azure_code")
    config = composed(*words)
    for engine in options("engine"):
        config.engine = with_engine(engine).engine
        OmegaConf.to_container(config, resolve=True)
    roomy = (*words, "engine=sim", "hardware=h800x16")
    for model_set in ([], ["model_set=one", "model=llama2-13b"]):  # its own, and a single model
        parts = prepared(*roomy, *model_set)
        asked = placements(parts)
        assert bool(asked) == (name != "null")
        assert all(p.devices.stop <= parts.hardware.num_devices for p in asked)


@pytest.mark.parametrize("name", options("model_set"))
def test_model_sets(name: str) -> None:
    parts = prepared("+system=vllm", "+workload=lmsys_arena", f"model_set={name}")
    assert set(parts.schedule.model) == set(parts.models)


OTHER_KEYS = ("joined", "sessions")


@pytest.mark.parametrize("name", [each for each in options("workload") if each not in OTHER_KEYS])
def test_workloads(name: str, tmp_path: Path) -> None:
    config = composed("+system=vllm", f"+workload={name}", *FEW)
    assert config.workload.name == name
    if name == "trace":  # a file of the user's own
        config.workload.path = str(tmp_path / "t.csv")
        rows = "".join(f"{i},m,10,5\n" for i in range(30))
        (tmp_path / "t.csv").write_text("arrival_s,model,prompt_tokens,output_tokens\n" + rows)
    if name == "hf":  # a dataset and a tokenizer of this machine, in the form of the default's
        config.workload.text.dataset = str(write_json(tmp_path / "s.json", conversations() * 5))
        config.workload.text.prompt = config.workload.text.known.sharegpt.prompt
        config.workload.text.tokenizer = str(make_tokenizer(tmp_path / "checkpoint"))
    assert len(prepare(config).schedule) == 20


def test_sessions(tmp_path: Path) -> None:
    config = composed("+system=vllm", "+workload=sessions", "tracking=none")
    config.workload.path = str(tmp_path / "turns.csv")
    rows = "".join(f"{prompt},5\n" for prompt in [10, 20, 30] * 3)
    (tmp_path / "turns.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + rows)
    schedule = prepare(config).schedule
    assert schedule.sessions is not None
    assert sorted(schedule.sessions.session) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_pace, "decoded_per_s", lambda *given: 2000.0)  # the demo measures it
    assert placements(prepared_experiment(name))


@pytest.mark.parametrize(
    ("group", "name"), [(g, name) for g in PARTS for name in options(f"experiment/{g}")]
)
def test_parts_of_experiments(group: str, name: str) -> None:
    base = OTHER_BASES.get((group, name), PARTS[group])
    assert placements(prepared_experiment(base, f"experiment/{group}@_global_={name}"))


def test_every_folder_of_experiments_is_tested() -> None:
    folders = {path.parent for path in (CONF / "experiment").rglob("*.yaml")}
    parts = {str(folder.relative_to(CONF / "experiment")) for folder in folders}
    # What lies in a paper's own folder is a base of its figures.
    assert parts - {".", *PAPERS} == set(PARTS)
