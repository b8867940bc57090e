"""BlitzScale's figures. A figure's CSV has a row per number: `quantity`, of which `workload`,
`system` and `seed`, the `value`, and where it is a curve's its `x`, of a CDF its `share`. Shares
saved and ratios that the paper states are among them. `mechanism`: how many instances the run
scaled up."""
