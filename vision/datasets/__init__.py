"""Image data sets; every function here that is marked `listed` reads one.

`load` reads one or a union of them as an `ImageSet` of uint8 tensors. To add a data set, add one
function in a new file of this package. Nothing is unpickled.
"""

from vision.datasets.image_set import ImageSet, join
from vision.datasets.registry import DATASETS, has_files, load, names_in

__all__ = ["DATASETS", "has_files", "load", "names_in", "join", "ImageSet"]
