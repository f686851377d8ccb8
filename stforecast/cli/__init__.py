"""The command `stforecast`: its groups, options and texts."""
