"""Many runs: sweeps, figures, searches."""
