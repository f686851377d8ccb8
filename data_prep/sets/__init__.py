"""Data sets, one module each, found by `data_prep.DATA_SETS`."""
