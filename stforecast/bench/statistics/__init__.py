"""Statistics of comparisons: intervals, tests and ranks of methods' errors.

It knows no runs: errors come as sums for each seed, client and block of days (`ErrorSums`).
"""
