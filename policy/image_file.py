"""Open the picture of a task; its bytes must still be those that the task was made with."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from harness.records import ImageFile
from policy.errors import ImageError

FORMATS = ("PNG", "JPEG")


def open_image(file: ImageFile) -> Any:
    """The picture of a file, as a PIL image in RGB.

    Raises:
        ImageError: the file is missing, is no PNG or JPEG, or is no longer what the task names.
    """
    from PIL import Image

    try:
        data = Path(file.path).read_bytes()
    except OSError as error:
        raise ImageError(f"cannot read image {file.path}: {error}; put the file back") from error
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise ImageError(
            f"image {file.path} has changed: sha256 {found[:16]}…, the task names {file.sha256[:16]}…; put back the "
            "file that the task was made with, or start a new run"
        )
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"cannot open image {file.path}: {error}; give a whole PNG or JPEG file") from error
