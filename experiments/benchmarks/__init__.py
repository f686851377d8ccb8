"""Programs that measure this project beside others in one run."""
