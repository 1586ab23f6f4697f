import pytest

from harness.errors import UserError
from policy.config import ApiPolicyConfig, HfPolicyConfig, PocketPolicyConfig
from policy.source import is_hub_id, refuse_missing_weights


@pytest.fixture
def offline(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_path_is_told_from_a_hub_id():
    assert is_hub_id("Qwen/Qwen3.5-9B")
    assert not any(map(is_hub_id, ("./a/b", "/a", "../b", "~/b", "a/b/c", ".cohelix/models", "model")))


def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=f"weights are not here; got no folder {tmp_path}/none"):
        refuse_missing_weights(HfPolicyConfig(type="hf", model=f"{tmp_path}/none"))
    refuse_missing_weights(HfPolicyConfig(type="hf", model=str(tmp_path)))


def test_offline_a_hub_id_must_be_in_the_cache(offline):
    policy = HfPolicyConfig(type="hf", model="some-owner/some-model")
    with pytest.raises(UserError, match="hub id some-owner/some-model, not in the cache, and HF_HUB_OFFLINE is set"):
        refuse_missing_weights(policy)
    place = offline / "models--some-owner--some-model"
    (place / "snapshots" / "a1").mkdir(parents=True)
    (place / "snapshots" / "a1" / "config.json").write_text("{}")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("a1")
    refuse_missing_weights(policy)


def test_online_the_hub_is_left_to_the_loader_and_other_policies_have_nothing_to_miss(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    refuse_missing_weights(HfPolicyConfig(type="hf", model="some-owner/some-model"))
    refuse_missing_weights(PocketPolicyConfig())
    refuse_missing_weights(ApiPolicyConfig(type="api", model="openai/x"))
