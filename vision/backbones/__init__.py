"""Frozen backbones: one network that all clients share, never trained, its features computed once.

`load_backbone` makes one from a weight file, from timm or at random; `Backbone` answers queries and
runs prompts through it.
"""

from vision.backbones.backbone import Backbone
from vision.backbones.load import NORMALISATIONS, TINY, load_backbone

__all__ = ["NORMALISATIONS", "TINY", "Backbone", "load_backbone"]
