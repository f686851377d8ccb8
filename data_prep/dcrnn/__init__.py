"""The files that DCRNN's authors publish of METR-LA: a frame of speeds and the sensors."""
