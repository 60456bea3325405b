"""Images as they travel in events: a picture file in Base64, here as an array of rows, columns and three colours."""

from __future__ import annotations

import base64
import binascii
import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from relight import sdk

LARGEST = 25_000_000
"""Pixels of a picture at most: a small file can claim to be a very large picture."""


def decode(text: object, field: str) -> sdk.Array:
    """BadInput names the field."""
    try:
        picture = Image.open(io.BytesIO(base64.b64decode(str(text), validate=True)))
        if picture.width * picture.height > LARGEST:
            raise sdk.BadInput(f"a picture of at most {LARGEST} pixels was expected", param=field)
        return np.asarray(picture.convert("RGB"))
    except (binascii.Error, UnidentifiedImageError, OSError, ValueError) as error:
        raise sdk.BadInput(f"a picture in Base64 was expected: {error}"[:200], param=field) from error


def encode(pixels: sdk.Array) -> str:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def scaled(pixels: sdk.Array, width: int, height: int) -> sdk.Array:
    """As the networks take it: blue, green, red planes from -1 to 1, of another size."""
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    return np.ascontiguousarray((resized[:, :, ::-1] / 127.5 - 1.0).transpose(2, 0, 1))
