"""Typed failures of this package; each message says what failed, got, expected, do. Torch-free."""

from __future__ import annotations

from harness.records import Boundary


class PolicyError(RuntimeError):
    """Base of every failure of loading, rolling out, training or storing a policy."""

    boundary: Boundary = "engine"


class PolicyLoadError(PolicyError):
    """A model or tokenizer cannot be used as a policy."""


class ImageError(PolicyError):
    """An image cannot be shown: missing, changed since the task was made, unreadable, or one too many."""


class TrainingError(PolicyError):
    """A training block cannot go on."""

    boundary: Boundary = "trainer"


class NoSignal(TrainingError):
    """Dynamic sampling reached its bound: too many groups whose rewards are all equal."""


class NonFiniteTraining(TrainingError):
    """A reward, loss, gradient or weight is NaN or infinite; no number is made of it."""


class TooManyUnscored(TrainingError):
    """Infrastructure failures left too few scored attempts to train on."""


class TemplateMismatch(TrainingError):
    """A chat template does not write a prompt and its completion as they are sampled."""


class OverlongRecord(TrainingError):
    """Records are longer than the policy or the configuration allows; nothing is cut."""


class TrainerFailed(TrainingError):
    """Training raised what no part of this program foresees; a second try would meet it again."""


class TrainerDied(TrainingError):
    """The process that trains is gone, or says nothing; a new one can go on from the block's last checkpoint."""


class TrainerOutOfMemory(TrainerDied):
    """Training asked for more memory than there is; its process was ended, so all of its memory is free again."""


class CheckpointError(PolicyError):
    """A checkpoint is torn, altered, missing or of another kind."""

    boundary: Boundary = "store"
