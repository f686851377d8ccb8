"""Hand-written kernels: chosen at run time where a C compiler is at hand, absent without harm."""
