"""Digits of 8 × 8 pixels that are part of scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from data_prep.registry import listed
from vision.datasets.digits import DIGITS
from vision.datasets.image_set import ImageSet
from vision.datasets.strata import hold_out


@listed
def digits8x8(*, test_share: float = 0.2, seed: int = 0) -> ImageSet:
    """Digits 8 × 8: 1,797 handwritten digits from scikit-learn; no files are needed.

    The test part of Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
    Learning Repository, 1998. Values from 0 to 16 are scaled to 0 to 255 and rounded.

    Args:
        test_share: share of each class that becomes the test part.
        seed: seed of the split.

    Raises:
        InputError: if the share is not between 0 and 1.
    """
    bunch = load_digits()
    labels = torch.from_numpy(bunch.target).long()
    domains = torch.zeros_like(labels)
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return ImageSet(
        name="digits8x8",
        images=torch.from_numpy(images)[:, None],
        labels=labels,
        domains=domains,
        is_test=hold_out(labels, domains, test_share, seed),
        class_names=DIGITS,
        domain_names=("digits8x8",),
        source=f"scikit-learn's digits, {test_share:g} of each class for testing, seed {seed}",
    )
