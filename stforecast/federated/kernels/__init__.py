"""Hand-written C kernels, used where a C compiler is available; torch code is the fallback."""
