"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine must not fail a property: no deadline.
settings.register_profile("cohelix", deadline=None)
settings.load_profile("cohelix")
# Nothing is fetched in a test.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
