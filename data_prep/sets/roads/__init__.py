"""Records of road detectors: the formats of their publishers, and what they share."""
