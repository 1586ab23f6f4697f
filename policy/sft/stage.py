"""An SFT stage: what is asked for, what comes out, and the keys it is recorded under."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from harness.protocols import WorkLedger
from harness.records import Record, content_id
from policy.block import is_whole, policy_identity
from policy.checkpoint import Progress, read_manifest
from policy.config import AnyPolicyConfig, SftConfig
from policy.errors import TrainingError
from policy.sft.metric import SftStepMetrics
from policy.sft.record import SftRecord


class SftRequest(Record):
    """What to learn."""

    parent: Path | None = None
    """Checkpoint folder whose weights to start from; None starts from the base policy."""
    records: tuple[SftRecord, ...]
    """Prompts with their completions, see :func:`policy.sft.record.sft_records`."""
    config: SftConfig = SftConfig()
    seed: int = 0
    """Used where ``config.seed`` is None."""

    @property
    def stage_seed(self) -> int:
        """Of the order of records, of dropout and of fresh adapters."""
        return self.seed if self.config.seed is None else self.config.seed


class SftResult(Record):
    """What came out."""

    checkpoint: Path
    checkpoint_id: str
    policy_id: str
    base_id: str
    progress: Progress
    steps: tuple[SftStepMetrics, ...]


class SftStageRecord(Record):
    """A stage, or its first updates, as the ledger keeps it."""

    checkpoint_id: str
    steps: tuple[SftStepMetrics, ...]


def sft_key(policy: AnyPolicyConfig, request: SftRequest) -> str:
    """Ledger key of a stage: the hash of everything that decides its weights."""
    # a picture is known by its hash, wherever its file stands
    place = {"prompt": {"__all__": {"images": {"__all__": {"path"}}}}}
    records: list[JsonValue] = [record.model_dump(mode="json", exclude=place) for record in request.records]
    inputs: dict[str, JsonValue] = {
        **policy_identity(policy),
        "work": "sft_stage",
        "purpose": "training",
        "replicate": 0,
        "parent": read_manifest(request.parent).checkpoint_id if request.parent else None,
        "records": content_id(records, prefix="records"),
        "seed": request.stage_seed,
        "config": request.config.model_dump(mode="json", exclude={"seed"}),
    }
    return content_id(inputs, prefix="block", length=32)


def check_sft_request(request: SftRequest) -> None:
    """Refuse a request without records, or with two of one id, whose messages would name neither.

    Raises:
        TrainingError: as above.
    """
    ids = [record.record_id for record in request.records]
    if not ids:
        raise TrainingError("SFT needs at least one record; got none; accept more traces or leave the stage out")
    twice = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise TrainingError(f"records {twice[:3]} are given more than once; give every record an id of its own")


def find_sft_result(key: str, checkpoints: Path, ledger: WorkLedger) -> SftResult | None:
    """The result of a stage that was finished before and whose checkpoint is whole, or None.

    Args:
        key: see :func:`sft_key`.
        checkpoints: folder of all checkpoints.
        ledger: where the stage is recorded.
    """
    finished = ledger.find(key)
    if finished is None:
        return None
    record = SftStageRecord.model_validate(finished)
    return read_sft_result(record, checkpoints) if is_whole(checkpoints / record.checkpoint_id) else None


def read_sft_result(record: SftStageRecord, checkpoints: Path) -> SftResult:
    """A finished stage's result."""
    path = checkpoints / record.checkpoint_id
    manifest = read_manifest(path)
    return SftResult(
        checkpoint=path,
        checkpoint_id=record.checkpoint_id,
        policy_id=manifest.policy_id,
        base_id=manifest.base_id,
        progress=manifest.progress,
        steps=record.steps,
    )
