"""Prediction intervals of any forecaster, conformally calibrated for each client.

Split conformal prediction widens a band until it covers the nominal share of the validation
targets. The initial band of a point forecast has zero width (Lei et al., JASA 2018); that of
quantiles lies between them (Romano, Patterson, Candès: Conformalized Quantile Regression, NeurIPS
2019, arXiv 1905.03222). Each client and each step ahead is calibrated separately. The guarantee
assumes that validation and test errors are exchangeable, which errors of a time series are not: see
the measured `coverage`.

`conformal` has one width for all hours. `normalised` divides the distances outside the band by the
size of the error to be expected at that time, so that widths follow the hour, the level and recent
changes, and adapts the level to the misses (Papadopoulos, Gammerman, Vovk: Normalized Nonconformity
Measures for Regression Conformal Prediction, AIA 2008; Lei et al., section 5.2).
"""
