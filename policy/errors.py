"""Typed failures of this package; each message says what failed, got, expected, do. Torch-free."""

from __future__ import annotations

from harness.records import Boundary


class PolicyError(RuntimeError):
    """Base of every failure of loading, rolling out, training or storing a policy."""

    boundary: Boundary = "engine"


class PolicyLoadError(PolicyError):
    """A model or tokenizer cannot be used as a policy."""


class TrainingError(PolicyError):
    """A training block cannot go on."""

    boundary: Boundary = "trainer"


class NoSignal(TrainingError):
    """Dynamic sampling reached its bound: too many groups whose rewards are all equal."""


class NonFiniteTraining(TrainingError):
    """A reward, loss, gradient or weight is NaN or infinite; no number is made of it."""


class TooManyUnscored(TrainingError):
    """Infrastructure failures left too few scored attempts to train on."""


class CheckpointError(PolicyError):
    """A checkpoint is torn, altered, missing or of another kind."""

    boundary: Boundary = "store"
