"""From a cube to samples: series, windows, splits, scaling, imputation, calendar inputs."""
