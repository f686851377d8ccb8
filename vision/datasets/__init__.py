"""Image data sets: every function here that is marked `listed` reads one.

`load` brings one or a union of them as an `ImageSet` of uint8 tensors. Adding a data set is one
function in one new file of this package. Nothing is unpickled.
"""

from vision.datasets.image_set import ImageSet, join
from vision.datasets.registry import DATASETS, load

__all__ = ["DATASETS", "load", "join", "ImageSet"]
