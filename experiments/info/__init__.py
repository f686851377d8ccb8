"""Descriptions of cubes, tables, raw records and runs for `stforecast info`."""
