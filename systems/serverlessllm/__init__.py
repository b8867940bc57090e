"""ServerlessLLM (OSDI'24): request-level auto-scaling; ServerlessLLM+: with shortest job first."""
