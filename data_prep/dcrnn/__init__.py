"""Files of METR-LA as DCRNN's authors publish them: a frame of speeds and the sensors."""
