"""Pictures of cats, and others: what Pillow reads."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import InputError
from attncli.loading.source import open_source

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["read_image"]

# Pixels of the longer side that are kept: a figure of 8 inches has 1200.
_LONGEST = 1600


def read_image(name: str) -> npt.NDArray[np.uint8]:
    """Return an image as (height, width, 3), upright; a large one is made smaller.

    Parameters
    ----------
    name : str
        A file that Pillow reads, such as PNG or JPEG.

    Raises
    ------
    InputError
        It is no image, is cut off, or has too many pixels.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415 - few commands need it

    source = open_source(name)
    try:
        with warnings.catch_warnings(), source.open() as stream, Image.open(stream) as image:
            # Pillow warns above 90 million pixels and refuses above 180 million.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise InputError(f"{source.name}: the image has too many pixels") from None
    except (OSError, ValueError, SyntaxError):
        raise InputError(f"{source.name}: expected an image, such as PNG or JPEG") from None
    upright.thumbnail((_LONGEST, _LONGEST))
    return np.asarray(upright)
