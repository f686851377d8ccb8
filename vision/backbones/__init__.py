"""Frozen backbones: networks shared by all clients, with features computed only once.

`load_backbone` builds one from a weight file, from timm or at random; `Backbone` computes query
features and runs inputs with prompts.
"""

from vision.backbones.backbone import Backbone
from vision.backbones.load import NORMALISATIONS, TINY, load_backbone

__all__ = ["NORMALISATIONS", "TINY", "Backbone", "load_backbone"]
