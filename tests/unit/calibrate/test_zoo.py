"""The zoo is what it says it is: published sizes, every pair priced, names of the profiles."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from harness.calibrate import zoo
from harness.cost.hardware import Hardware
from harness.cost.law import law
from harness.cost.model import CostModel
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.pooled.blocks import device_shape, host_shape
from tests.running import hardware_profile

# Parameters that the published checkpoints hold (the sum of their safetensors), in billions.
PUBLISHED = {
    "codellama-34b": 33.743970304, "mistral-7b": 7.241732096,
    "mistral-nemo-12b": 12.247782400, "qwen3-14b": 14.768307200, "qwen3-32b": 32.762123264,
    "baichuan-7b": 7.000559616, "baichuan2-13b": 13.896668160, "internlm2.5-7b": 7.737708544,
    "llama2-7b": 6.738415616, "llama2-13b": 13.015864320, "llama2-70b": 68.976648192,
    "llama3-8b": 8.030261248, "llama3.1-8b": 8.030261248, "llama3.1-70b": 70.553706496,
    "llama3.2-1b": 1.235814400, "llama3.2-3b": 3.212749824, "mistral-24b": 23.572403200,
    "opt-13b": 12.853473280, "opt-30b": 29.974540288, "opt-66b": 65.718784000,
    "qwen-7b": 7.721324544, "qwen-72b": 72.287920128, "qwen1.5-14b": 14.167290880,
    "qwen2.5-7b": 7.615616512, "qwen2.5-14b": 14.770033664, "qwen2.5-72b": 72.706203648,
    "yi-6b": 6.061035520, "yi1.5-9b": 8.829407232, "yi-34b": 34.388917248,
    "yi-34b-200k": 34.388917248,
}  # fmt: skip
VISION = {"llama3.2-90b": 88.6}  # its text layers: the vision encoder is not modelled


@pytest.mark.parametrize("name", [n for n in zoo.names("model") if not n.startswith("tiny-")])
def test_a_model_has_its_published_number_of_parameters(name: str) -> None:
    published, tolerance = PUBLISHED.get(name), 0.002
    if published is None:
        published, tolerance = VISION[name], 0.015
    assert zoo.model(name).num_params == pytest.approx(published * 1e9, rel=tolerance)


def test_each_models_file_has_its_name() -> None:
    assert all(zoo.model(name).name == name for name in zoo.names("model"))


def test_kv_per_token_is_that_of_aegaeons_table_1() -> None:
    kib = {"qwen-7b": 512, "internlm2.5-7b": 128, "llama2-13b": 800, "qwen-72b": 2560}
    assert {name: zoo.model(name).kv_bytes_per_token / 1024 for name in kib} == kib


def test_layers_without_kv_of_the_text_weigh_and_hold_none() -> None:
    """Llama-3.2-90B: 80 of 100 layers x keys and values x 8 heads x 128 x 2 bytes."""
    vision, hardware = zoo.model("llama3.2-90b"), zoo.device("h800_sxm")
    whole = replace(vision, num_kv_layers=None)
    assert vision.kv_bytes_per_token == vision.held_kv_bytes_per_token == 320 * 1024
    assert whole.kv_bytes_per_token == 400 * 1024
    assert vision.weight_bytes == whole.weight_bytes
    assert host_shape(vision, 16).block_bytes == 16 * 320 * 1024
    assert device_shape(vision, 16).block_bytes == 16 * 320 * 1024 // vision.tp
    less, more = (law(model, hardware, hardware.calibration) for model in (vision, whole))
    assert less.attend_s == pytest.approx(0.8 * more.attend_s)
    assert less.context_s == pytest.approx(0.8 * more.context_s)
    assert less.weights_s == more.weights_s


def test_kv_is_in_at_least_one_layer_and_in_no_more_than_there_are() -> None:
    for count in (0, 101):
        with pytest.raises(ValueError, match=f"num_kv_layers={count} must be 1 to num_layers=100"):
            replace(zoo.model("llama3.2-90b"), num_kv_layers=count)


def step_times(model: ModelSpec, hardware: Hardware) -> tuple[float, float]:
    cost = CostModel(model, hardware)
    return cost.mixed_step([(0, 512)], 0, 0), cost.decode_step(8, 4096)[0]


@pytest.mark.parametrize("device", zoo.names("hardware/device"))
def test_every_model_has_step_times_on_every_device(device: str) -> None:
    for name in zoo.names("model"):
        model = zoo.model(name)
        prefill_s, decode_s = step_times(model, zoo.device(device))
        floor_s = model.num_layers * model.layer_bytes / model.tp
        floor_s /= zoo.device(device).memory_bandwidth_bytes_per_s
        assert floor_s < decode_s < 60 * floor_s + 0.05
        assert floor_s < prefill_s < 100 * floor_s + 0.05


def test_a_cluster_has_the_calibration_of_its_device() -> None:
    cluster, node = hardware_profile("h800x16"), zoo.device("h800_sxm")
    assert asdict(cluster.calibration) == asdict(node.calibration)
    assert (cluster.num_nodes, cluster.num_devices) == (2, 16)
    assert hardware_profile("a800x8").num_nodes == 8


def test_the_origin_of_step_times_is_told() -> None:
    sources = {
        ("llama2-13b", "a100_sxm"): "measured",
        ("llama2-13b", "a800_sxm"): "measured",  # the same chip and memory
        ("llama2-13b", "a100_pcie"): "device law",
        ("llama3-8b", "h800_sxm"): "device law",
        ("llama3-8b", "h20"): "datasheet",
    }
    for (model, device), source in sources.items():
        assert CostModel(zoo.model(model), zoo.device(device)).source == source


@pytest.mark.parametrize(
    ("given", "known"),
    [("llama2_7b", "llama2-7b"), ("qwen2_5_7b", "qwen2.5-7b"), ("yi1_5_9b_chat", "yi1.5-9b"),
     ("qwen_14b_chat", "qwen1.5-14b"), ("llava1_5_13b", "llama2-13b"), ("opt-13b", "opt-13b")],
)  # fmt: skip
def test_names_of_public_profiles_are_known(given: str, known: str) -> None:
    assert zoo.model_name(given) == known


def test_devices_go_by_short_zoo_and_datasheet_names() -> None:
    boards = ("RTX4090", "RTX PRO 6000", "B200", "H100 80GB HBM3", "A100-40GB")
    known = ["rtx4090", "rtxpro6000", "b200_sxm", "h100_sxm", "a100_40gb"]
    assert [zoo.device_name(name) for name in boards] == known
    names = [zoo.device_name(name) for name in ("A100", "a100_sxm", "A100-SXM4-80GB", "h20")]
    assert names == ["a100_sxm"] * 3 + ["h20"]
    with pytest.raises(UsageError, match="valid: a10, a100_40gb, a100_pcie"):
        zoo.device_name("tpu")
    with pytest.raises(UsageError, match="llama2-7b"):
        zoo.model_name("gpt-5")
