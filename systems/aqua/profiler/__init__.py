"""AQUA-PROFILER (section 4): which models have memory to lend, and which models need memory."""
