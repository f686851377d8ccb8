"""Common parts of the data sets of digits."""

from __future__ import annotations

import numpy as np
import torch

from data_prep.errors import InputError
from vision.datasets.image_set import ImageSet

DIGITS = tuple("0123456789")

Part = tuple[np.ndarray, np.ndarray]
"""Images `(n, channels, height, width)` uint8 and labels `(n,)`."""


def digit_set(name: str, train: Part, test: Part, source: str) -> ImageSet:
    """Build a set of digits from its official training and test part; its domain has its name.

    Raises:
        InputError: if the images of the two parts differ in size.
    """
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(
            f"{name}: training images are {train[0].shape[1:]}, test images {test[0].shape[1:]}; "
            "expected one size; get the files again"
        )
    images, labels = (
        torch.from_numpy(np.concatenate(two)) for two in zip(train, test, strict=True)
    )
    return ImageSet(
        name=name,
        images=images,
        labels=labels.long(),
        domains=torch.zeros(len(labels), dtype=torch.int64),
        is_test=torch.arange(len(labels)) >= len(train[1]),
        class_names=DIGITS,
        domain_names=(name,),
        source=source,
    )
