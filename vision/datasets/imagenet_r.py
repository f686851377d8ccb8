"""ImageNet-R: 200 classes of ImageNet as art, cartoons, toys and other renditions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from data_prep.registry import listed
from vision.datasets.files import find
from vision.datasets.image_set import ImageSet
from vision.datasets.tree import find_images

SOURCE = "get imagenet-r.tar from https://github.com/hendrycks/imagenet-r and unpack it"


@listed
def imagenet_r(
    root: Path,
    *,
    size: int | None = None,
    renditions: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
) -> ImageSet:
    """ImageNet-R: 30,000 images of 200 classes in 15 renditions, of many sizes, RGB.

    Hendrycks et al., "The Many Faces of Robustness", ICCV 2021, arXiv 2006.16241. Read from the
    official layout, `imagenet-r/WNID/RENDITION_*.jpg`. It was made for testing only and has no
    official split; papers on continual learning use 0.2 for testing.

    Args:
        root: folder with `imagenet-r`.
        size: height and width of all images.
        renditions: whether renditions (art, cartoon, …), read from the file names, are the domains;
            otherwise there is one domain.
        test_share: share of each class in each domain that becomes the test part.
        seed: seed of the split.

    Raises:
        InputError: if there are no images, a file is damaged, or `size` is missing.
    """
    tree = find_images(find(root, ("imagenet-r",), ("",), SOURCE, Path.is_dir), SOURCE, splits={})
    if renditions:
        tree = replace(tree, domains=[path.name.partition("_")[0] for path in tree.paths])
    return tree.read("imagenet-r", size=size, test_share=test_share, seed=seed)
